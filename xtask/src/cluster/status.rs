//! `cargo xtask cluster status`: which services run, and what Kubernetes says of nodes and pods.

use crate::cluster::access::kubectl;
use crate::cluster::layout::{Layout, NODES, init_of};
use crate::cluster::process::Process;
use crate::cluster::record::Record;
use crate::cluster::service;
use crate::failure::Failure;
use crate::style::Style;

/// Prints it; gives 0 where everything runs, 1 where something does not, 3 where there is no cluster.
pub(crate) fn status(layout: &Layout, style: Style) -> Result<u8, Failure> {
    let Some(record) = Record::read(&layout.run())? else {
        println!("no cluster; `cargo xtask cluster up` brings one up");
        return Ok(3);
    };
    let names = NODES
        .iter()
        .map(|node| init_of(*node))
        .chain(service::services().into_iter().map(|service| service.name));
    let mut all = record.is_complete();
    for name in names {
        let process = record.process(&name).filter(|process| process.is_alive());
        all &= process.is_some();
        println!("{:20} {}", name, shown(process, style));
    }
    for arguments in
        [&["get", "nodes", "--output=wide"][..], &["get", "pods", "--all-namespaces", "--output=wide"]]
    {
        match kubectl(layout, arguments) {
            Ok(text) => println!("\n{}", text.trim_end()),
            Err(failure) => {
                all = false;
                println!("\n{}", failure.shown(style));
            }
        }
    }
    if !record.is_complete() {
        println!("\n{} it was never ready: `cargo xtask cluster up` starts afresh", style.warned("NOTE:"));
    }
    Ok(u8::from(!all))
}

fn shown(process: Option<&Process>, style: Style) -> String {
    match process {
        Some(process) => format!("{} process {}", style.good("runs   "), process.id),
        None => style.bad("stopped"),
    }
}
