//! Commands that speak to the cluster: kubectl and helm from beside the API server, ctr on a node.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::cluster::layout::{Layout, NODES, Node};
use crate::cluster::record::Record;
use crate::cluster::service::enter;
use crate::cluster::tell::told;
use crate::failure::Failure;
use crate::place::Place;
use crate::run::Job;
use crate::style::Style;

/// The words that run kubectl as an administrator, in the network of node 1.
pub(crate) fn kubectl_command(layout: &Layout, arguments: &[&str]) -> Vec<String> {
    let words = arguments.iter().map(|word| (*word).to_owned());
    client(layout, "kubectl").into_iter().chain(words).collect()
}

/// Answer of kubectl.
pub(crate) fn kubectl(layout: &Layout, arguments: &[&str]) -> Result<String, Failure> {
    let command = kubectl_command(layout, arguments);
    told(&command[0], &command[1..])
}

/// A client and its surroundings. It keeps its caches with the cluster, not in the user's home, and kubectl finds the plugin
/// that lies beside this program, where one is built.
fn client(layout: &Layout, program: &str) -> Vec<String> {
    let run = layout.run().display().to_string();
    let network = format!("--net=/run/netns/{}", layout.namespace(NODES[0]));
    vec![
        "nsenter".to_owned(),
        network,
        "env".to_owned(),
        format!("KUBECONFIG={}", layout.kubeconfig().display()),
        format!("KUBECACHEDIR={run}/kubectl-cache"),
        format!("HELM_CACHE_HOME={run}/helm/cache"),
        format!("HELM_CONFIG_HOME={run}/helm/config"),
        format!("HELM_DATA_HOME={run}/helm/data"),
        format!("PATH={}", plugins_first()),
        layout.bin().join(program).display().to_string(),
    ]
}

/// Path in which programs are looked for: beside this one, then wherever else.
fn plugins_first() -> String {
    let own = std::env::current_exe().ok();
    let directory = own.as_deref().and_then(Path::parent).map(|path| path.display().to_string());
    let rest = std::env::var("PATH").ok();
    [directory, rest].into_iter().flatten().collect::<Vec<_>>().join(":")
}

/// Runs kubectl or helm with the user's arguments, terminal and directory; gives its exit code.
pub(crate) fn pass_on(program: &str, arguments: &[String], place: &Place) -> Result<u8, Failure> {
    let layout = Layout::of(place);
    if !layout.kubeconfig().is_file() {
        return Err(Failure::new("the cluster is not up").remedy("`cargo xtask cluster up` brings it up"));
    }
    let here =
        std::env::current_dir().map_err(|error| Failure::new(format!("no current directory: {error}")))?;
    let command = client(&layout, program);
    let job = Job::new(&command[0], &command[1..]).with(arguments).inside(here);
    Ok(job.attached(place)?.exit_code())
}

/// Answer of containerd of a node.
pub(crate) fn ctr(layout: &Layout, node: Node, arguments: &[&OsStr]) -> Result<String, Failure> {
    let record = Record::read(&layout.run())?.unwrap_or_default();
    let mut command: Vec<OsString> = enter(node, &record)?.into_iter().map(OsString::from).collect();
    command.push(layout.bin().join("ctr").into_os_string());
    command.extend(["--namespace", "k8s.io"].map(OsString::from));
    command.extend(arguments.iter().map(|word| (*word).to_owned()));
    told(&command[0], &command[1..])
}

/// Brings an OCI archive to every node.
pub(crate) fn load(layout: &Layout, archive: &Path, style: Style) -> Result<(), Failure> {
    let archive = archive.canonicalize().map_err(|error| Failure::file("find", archive, &error))?;
    for node in NODES {
        let arguments: [&OsStr; 4] =
            ["images".as_ref(), "import".as_ref(), "--local".as_ref(), archive.as_os_str()];
        ctr(layout, node, &arguments)?;
        println!("{} {} has {}", style.good("ok"), node.name(), archive.display());
    }
    Ok(())
}
