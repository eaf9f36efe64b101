//! The programs that run while the cluster is up: what each one is told, and where it runs. All of it is plain data.

use std::fs;

use crate::cluster::layout::{API, DNS, Layout, NODES, Node, PODS, SERVICES, init_of};
use crate::cluster::process::{self, Process};
use crate::cluster::record::Record;
use crate::cluster::template::Values;
use crate::failure::Failure;
use crate::images;

macro_rules! config {
    ($file:literal) => {
        include_str!(concat!("../../../tests/cluster/config/", $file))
    };
}

/// A program of the control plane, or of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Service {
    /// Name in the cluster: `apiserver`, `node2.kubelet`.
    pub(crate) name: String,
    program: &'static str,
    arguments: &'static str,
    node: Node,
}

/// The control plane, in the order in which it starts. It shares node 1.
const CONTROL: [(&str, &str, &str); 4] = [
    ("etcd", "etcd", config!("etcd.args")),
    ("apiserver", "kube-apiserver", config!("apiserver.args")),
    ("controller-manager", "kube-controller-manager", config!("controller-manager.args")),
    ("scheduler", "kube-scheduler", config!("scheduler.args")),
];

/// Services that run on every node, in the order in which they start.
const ON_NODES: [(&str, &str); 3] = [
    ("containerd", config!("containerd.args")),
    ("kube-proxy", config!("kube-proxy.args")),
    ("kubelet", config!("kubelet.args")),
];

/// Every service.
pub(crate) fn services() -> Vec<Service> {
    let control = CONTROL.iter().map(|&(name, program, arguments)| Service {
        name: name.to_owned(),
        program,
        arguments,
        node: NODES[0],
    });
    let on_nodes = ON_NODES.iter().flat_map(|&(program, arguments)| {
        NODES.map(|node| Service { name: format!("{}.{program}", node.name()), program, arguments, node })
    });
    control.chain(on_nodes).collect()
}

/// The service of a name.
pub(crate) fn named(name: &str) -> Result<Service, Failure> {
    let all = services();
    let known = || all.iter().map(|service| service.name.as_str()).collect::<Vec<_>>().join(", ");
    all.iter().find(|service| service.name == name).cloned().ok_or_else(|| {
        Failure::new(format!("there is no service `{name}`")).remedy(format!("the services are {}", known()))
    })
}

impl Service {
    /// Process of the service, if it runs.
    pub(crate) fn process<'a>(&self, record: &'a Record) -> Option<&'a Process> {
        record.process(&self.name).filter(|process| process.is_alive())
    }

    /// Starts it on its node, which must be up.
    pub(crate) fn start(&self, layout: &Layout, record: &Record) -> Result<(), Failure> {
        let mut command = enter(self.node, record)?;
        let bin = layout.bin();
        // containerd looks for its shim and runc there.
        let path =
            format!("PATH={}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
        command.extend(["env".to_owned(), path, bin.join(self.program).display().to_string()]);
        command.extend(values(layout, self.node).arguments(self.arguments)?);
        let record = Record::path(&layout.run());
        process::start(&self.name, &command, &record, &layout.log(&self.name))
    }
}

/// The words that run a command on a node: in its network, its mounts and its processes.
pub(crate) fn enter(node: Node, record: &Record) -> Result<Vec<String>, Failure> {
    let init = first_process(node, record).ok_or_else(|| {
        Failure::new(format!("{} is not up", node.name())).remedy("`cargo xtask cluster up` brings it up")
    })?;
    let target = init.id.to_string();
    Ok(["nsenter", "--target", &target, "--net", "--mount", "--pid", "--"].map(str::to_owned).to_vec())
}

/// The first process of a node, as the machine sees it. The record has the one that made its namespaces; its child is
/// the first one inside.
pub(crate) fn first_process(node: Node, record: &Record) -> Option<Process> {
    record.process(&init_of(node))?.descendants().into_iter().next()
}

/// Values with which the configuration of a node's services is filled.
pub(crate) fn values(layout: &Layout, node: Node) -> Values {
    let shown = |path: std::path::PathBuf| path.display().to_string();
    Values::default()
        .with("api", API)
        .with("services", SERVICES)
        .with("dns", DNS)
        .with("pods", PODS)
        .with("node", node.name())
        .with("address", node.address())
        .with("node_pods", node.pods())
        .with("cgroup", layout.namespace(node))
        .with("run", shown(layout.run()))
        .with("bin", shown(layout.bin()))
        .with("pki", shown(layout.pki()))
        .with("dir", shown(layout.directory(node)))
        .with("sandbox", images::name_of("pause"))
        .with("coredns", images::name_of("coredns"))
}

/// Writes the files that a node's services read.
pub(crate) fn configure(layout: &Layout, node: Node) -> Result<(), Failure> {
    let directory = layout.directory(node);
    let files = [
        ("kubelet.yaml", config!("kubelet.yaml")),
        ("containerd.toml", config!("containerd.toml")),
        ("cni/10-cluster.conflist", config!("cni.conflist")),
        ("init.sh", config!("node-init.sh")),
    ];
    let cni = directory.join("cni");
    fs::create_dir_all(&cni).map_err(|error| Failure::file("make", &cni, &error))?;
    for (name, text) in files {
        let path = directory.join(name);
        let text = values(layout, node).fill(text)?;
        fs::write(&path, text).map_err(|error| Failure::file("write", &path, &error))?;
    }
    Ok(())
}

/// Manifests that are applied to a new cluster.
pub(crate) fn addons(layout: &Layout) -> Result<String, Failure> {
    values(layout, NODES[0]).fill(config!("addons.yaml"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use std::path::Path;

    #[test]
    fn every_service_has_a_name_of_its_own_and_all_its_values() {
        let layout = Layout::of(&Place::at(Path::new("/r")));
        let all = services();
        assert_eq!(all.len(), CONTROL.len() + ON_NODES.len() * NODES.len());
        for service in &all {
            let arguments = values(&layout, service.node).arguments(service.arguments).unwrap();
            assert!(arguments.iter().all(|argument| argument.starts_with("--")), "{arguments:?}");
            assert_eq!(all.iter().filter(|other| other.name == service.name).count(), 1);
        }
        addons(&layout).unwrap();
    }

    #[test]
    fn a_service_that_does_not_exist_is_answered_with_those_that_do() {
        let failure = named("kubelet").unwrap_err();
        assert!(failure.shown(crate::style::Style::plain()).contains("node2.kubelet"), "{failure:?}");
        assert_eq!(named("node2.kubelet").unwrap().node, NODES[1]);
    }
}
