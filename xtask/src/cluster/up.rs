//! `cargo xtask cluster up`: from nothing, or from half a cluster, to two nodes that are ready and resolve names.

use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::cluster::access::{ctr, kubectl};
use crate::cluster::layout::{Layout, NODES, Node, init_of};
use crate::cluster::lock::Lock;
use crate::cluster::record::{Made, Record, boot_id};
use crate::cluster::service::{self, Service, first_process};
use crate::cluster::tell::works;
use crate::cluster::{cgroup, components, down, network, pki, process, wait};
use crate::failure::Failure;
use crate::images;
use crate::place::Place;
use crate::setup;
use crate::style::Style;

/// Brings the cluster up. One that is up stays as it is, except that services which have ended are started again.
pub(crate) fn up(place: &Place, style: Style) -> Result<(), Failure> {
    let started = Instant::now();
    let progress = |what: &str| {
        println!("{} {what}", style.faint(&format!("[{:6.1} s]", started.elapsed().as_secs_f64())));
    };
    let layout = Layout::of(place);
    setup::cluster_can_run(place, style, layout.state()).map_err(Failure::new)?;
    components::provide(place, style)?;
    images::provide(&["pause", "coredns"], place, style)?;
    let _lock = Lock::take(&layout)?;
    match is_up(&layout)? {
        true => progress("the cluster is up"),
        false => {
            down::down(&layout)?;
            progress("network, certificates, nodes");
            begin(&layout)?;
        }
    }
    start(&layout, &progress)?;
    Record::add(&layout.run(), &Made::Complete)?;
    progress(&format!(
        "ready: `cargo xtask cluster kubectl get pods -A`, or KUBECONFIG={} in the network namespace {}",
        place.short(&layout.kubeconfig()),
        layout.namespace(NODES[0]),
    ));
    Ok(())
}

/// Returns whether there is a whole cluster, of this boot of the machine, with all its nodes.
pub(crate) fn is_up(layout: &Layout) -> Result<bool, Failure> {
    let Some(record) = Record::read(&layout.run())? else { return Ok(false) };
    let nodes = NODES.iter().all(|node| first_process(*node, &record).is_some());
    Ok(record.is_complete() && record.is_of_boot(&boot_id()) && nodes)
}

/// Everything below the services.
fn begin(layout: &Layout) -> Result<(), Failure> {
    for directory in [layout.run(), layout.logs()] {
        fs::create_dir_all(&directory).map_err(|error| Failure::file("make", &directory, &error))?;
    }
    Record::add(&layout.run(), &Made::Boot(boot_id()))?;
    if let Some(own) = process::Process::own() {
        Record::add(&layout.run(), &Made::Process(own))?;
    }
    network::make(layout)?;
    for node in NODES {
        service::configure(layout, node)?;
        cgroup::make(&layout.run(), &layout.namespace(node))?;
        start_node(layout, node)?;
    }
    pki::make(layout)?;
    for node in NODES {
        let ready = layout.directory(node).join("ready");
        wait::until(&format!("{} starts", node.name()), &layout.log(&init_of(node)), || ready.is_file())?;
    }
    Ok(())
}

/// Makes a node's namespaces, which live and die with its first process.
fn start_node(layout: &Layout, node: Node) -> Result<(), Failure> {
    let network = format!("--net=/run/netns/{}", layout.namespace(node));
    let script = layout.directory(node).join("init.sh").display().to_string();
    let unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh"];
    let command: Vec<String> = ["nsenter", &network]
        .into_iter()
        .chain(unshare)
        .chain([script.as_str()])
        .map(str::to_owned)
        .collect();
    let name = init_of(node);
    process::start(&name, &command, &Record::path(&layout.run()), &layout.log(&name))
}

/// Starts every service that does not run, and waits until the cluster is ready.
fn start(layout: &Layout, progress: &dyn Fn(&str)) -> Result<(), Failure> {
    let services = service::services();
    let (early, late): (Vec<_>, Vec<_>) = services.iter().partition(|service| is_early(service));
    start_missing(layout, &early)?;
    for node in NODES {
        import(layout, node)?;
    }
    progress("waiting for the API server");
    let log = layout.log("apiserver");
    let alive = || runs(layout, "apiserver");
    let ready = || works_with(layout, &["get", "--raw=/readyz"]);
    wait::while_alive("the API server is ready", &log, alive, ready)?;
    start_missing(layout, &late)?;
    apply_addons(layout)?;
    progress("waiting for nodes and name server");
    for node in NODES {
        await_node(layout, node)?;
    }
    let coredns = ["rollout", "status", "deployment/coredns", "--namespace=kube-system", "--timeout=2s"];
    wait::until("the name server is ready", &layout.log("node1.kubelet"), || works_with(layout, &coredns))
}

/// True if the service needs nothing else to run.
fn is_early(service: &Service) -> bool {
    service.name == "etcd" || service.name == "apiserver" || service.name.ends_with(".containerd")
}

fn start_missing(layout: &Layout, services: &[&Service]) -> Result<(), Failure> {
    let record = Record::read(&layout.run())?.unwrap_or_default();
    for service in services {
        if service.process(&record).is_none() {
            service.start(layout, &record)?;
        }
    }
    Ok(())
}

fn runs(layout: &Layout, name: &str) -> bool {
    let record = Record::read(&layout.run()).ok().flatten().unwrap_or_default();
    // Before it has written its line it is about to run.
    record.process(name).is_none_or(process::Process::is_alive)
}

/// Brings the images to a node that the cluster itself needs there.
fn import(layout: &Layout, node: Node) -> Result<(), Failure> {
    let name = format!("{}.containerd", node.name());
    let log = layout.log(&name);
    let answers = || ctr(layout, node, &["version".as_ref()]).is_ok();
    wait::while_alive(&format!("{name} answers"), &log, || runs(layout, &name), answers)?;
    for image in ["pause", "coredns"] {
        let archive = images::archive(&layout_images(layout), image);
        ctr(layout, node, &["images".as_ref(), "import".as_ref(), "--local".as_ref(), archive.as_os_str()])?;
    }
    Ok(())
}

/// The images of the checkout that the cluster belongs to lie beside it.
fn layout_images(layout: &Layout) -> std::path::PathBuf {
    layout.state().parent().unwrap_or(Path::new("/")).join("images")
}

fn apply_addons(layout: &Layout) -> Result<(), Failure> {
    let path = layout.run().join("addons.yaml");
    fs::write(&path, service::addons(layout)?).map_err(|error| Failure::file("write", &path, &error))?;
    let file = path.display().to_string();
    let apply = ["apply", "--server-side", "--force-conflicts", "--filename", &file];
    // Right after its start the API server may still be making the namespaces and classes that this refers to.
    wait::until("the name server is installed", &layout.log("apiserver"), || works_with(layout, &apply))
}

fn await_node(layout: &Layout, node: Node) -> Result<(), Failure> {
    let service = format!("{}.kubelet", node.name());
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    let said = || kubectl(layout, &["get", "node", &node.name(), "--output", ready]).unwrap_or_default();
    let what = format!("{} is ready", node.name());
    wait::while_alive(&what, &layout.log(&service), || runs(layout, &service), || said() == "True")
}

fn works_with(layout: &Layout, arguments: &[&str]) -> bool {
    let command = crate::cluster::access::kubectl_command(layout, arguments);
    works(&command[0], &command[1..])
}
