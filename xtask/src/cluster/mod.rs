//! `cargo xtask cluster`: a real Kubernetes of two nodes on this machine, for tests and for trying things.
//!
//! A node is a network, mount and process namespace; everything on it ends with its first process. What is made is
//! recorded before it is made, and `down` goes by the record. Nothing here knows what runs on the cluster.

mod access;
mod cgroup;
mod components;
mod definitions;
mod down;
mod layout;
mod link;
mod lock;
mod network;
mod pki;
mod process;
mod record;
mod service;
mod status;
mod tell;
mod template;
mod up;
mod wait;

use std::path::Path;

use crate::failure::Failure;
use crate::images;
use crate::place::Place;
use crate::style::Style;
use layout::Node;
use link::Link;
use lock::Lock;
use record::Record;

pub(crate) use components::provide as provide_components;
pub(crate) use layout::Layout;
pub(crate) use tell::told;

/// Request to the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// Builds its components where they are not built.
    Build,
    /// Builds it where needed and brings it up.
    Up,
    /// Takes it down.
    Down,
    /// Says what runs.
    Status,
    /// Runs kubectl or helm with these arguments.
    Client(&'static str, Vec<String>),
    /// Brings an image to every node: the path of an OCI archive, or the name of an image of `images`.
    Load(String),
    /// Kills services, as a crash would.
    Stop(Vec<String>),
    /// Starts services that were stopped.
    Start(Vec<String>),
    /// Changes the link of a node.
    Link(Node, Link),
}

/// Reads the words after `cargo xtask cluster`.
pub(crate) fn parse(words: &[String]) -> Result<Request, Failure> {
    let Some((command, rest)) = words.split_first() else {
        return Err(Failure::usage(
            "`cluster` needs to know what to do: build, up, down, status, kubectl, helm, load, stop, start, cut, slow or mend",
        ));
    };
    match (command.as_str(), rest) {
        ("build", []) => Ok(Request::Build),
        ("up", []) => Ok(Request::Up),
        ("down", []) => Ok(Request::Down),
        ("status", []) => Ok(Request::Status),
        ("kubectl", _) => Ok(Request::Client("kubectl", rest.to_vec())),
        ("helm", _) => Ok(Request::Client("helm", rest.to_vec())),
        ("load", [image]) => Ok(Request::Load(image.clone())),
        ("load", _) => {
            Err(Failure::usage("`cluster load` needs one image: an OCI archive, or a name such as `sidecar`"))
        }
        ("stop" | "start", []) => {
            Err(Failure::usage(format!("`cluster {command}` needs the names of services")))
        }
        ("stop", names) => Ok(Request::Stop(names.to_vec())),
        ("start", names) => Ok(Request::Start(names.to_vec())),
        ("cut" | "slow" | "mend", _) => link::parse(command, rest),
        ("build" | "up" | "down" | "status", [word, ..]) => {
            Err(Failure::usage(format!("`cluster {command}` takes no argument, not `{word}`")))
        }
        _ => Err(Failure::usage(format!("`cluster` cannot `{command}`"))),
    }
}

/// Does it; gives the exit code.
pub(crate) fn perform(request: &Request, place: &Place, style: Style) -> Result<u8, Failure> {
    let layout = Layout::of(place);
    match request {
        Request::Build => components::provide(place, style).map(|()| 0),
        Request::Up => up::up(place, style).map(|()| 0),
        Request::Down => take_down(&layout).map(|()| 0),
        Request::Status => status::status(&layout, style),
        Request::Client(program, arguments) => access::pass_on(program, arguments, place),
        Request::Load(image) => load(image, place, &layout, style).map(|()| 0),
        Request::Stop(names) => stop(names, &layout).map(|()| 0),
        Request::Start(names) => start(names, &layout).map(|()| 0),
        Request::Link(node, link) => {
            record_of(&layout)?;
            link.apply(&layout, *node).map(|()| 0)
        }
    }
}

fn take_down(layout: &Layout) -> Result<(), Failure> {
    let _lock = Lock::take(layout)?;
    let was = down::down(layout)?;
    println!(
        "{}",
        if was { "the cluster is down; nothing of it is left but its logs" } else { "no cluster" }
    );
    Ok(())
}

fn load(image: &str, place: &Place, layout: &Layout, style: Style) -> Result<(), Failure> {
    if Path::new(image).is_file() {
        return access::load(layout, Path::new(image), style);
    }
    images::provide(&[image], place, style)?;
    access::load(layout, &images::archive(&place.images(), image), style)
}

fn record_of(layout: &Layout) -> Result<Record, Failure> {
    Record::read(&layout.run())?
        .ok_or_else(|| Failure::new("the cluster is not up").remedy("`cargo xtask cluster up` brings it up"))
}

fn stop(names: &[String], layout: &Layout) -> Result<(), Failure> {
    let record = record_of(layout)?;
    let services = names.iter().map(|name| service::named(name)).collect::<Result<Vec<_>, _>>()?;
    for service in services {
        let Some(process) = service.process(&record) else { continue };
        let all = [process.descendants(), vec![process.clone()]].concat();
        all.iter().for_each(process::Process::kill);
        let ended = || !all.iter().any(process::Process::is_alive);
        wait::until(&format!("{} ends", service.name), &layout.log(&service.name), ended)?;
    }
    Ok(())
}

fn start(names: &[String], layout: &Layout) -> Result<(), Failure> {
    let record = record_of(layout)?;
    let services = names.iter().map(|name| service::named(name)).collect::<Result<Vec<_>, _>>()?;
    for service in services.iter().filter(|service| service.process(&record).is_none()) {
        service.start(layout, &record)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words).map_err(|failure| failure.what().to_owned())
    }

    #[test]
    fn the_arguments_of_clients_are_passed_on_untouched() {
        let expected = ["get", "pods", "--help"].map(str::to_owned).to_vec();
        assert_eq!(parsed("kubectl get pods --help"), Ok(Request::Client("kubectl", expected)));
        assert_eq!(parsed("up"), Ok(Request::Up));
        assert_eq!(parsed("load a.tar"), Ok(Request::Load("a.tar".into())));
        assert_eq!(parsed("slow node2 40"), Ok(Request::Link(layout::NODES[1], Link::Slow(40))));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (line, word) in [
            ("", "build, up, down"),
            ("fly", "`fly`"),
            ("up now", "`now`"),
            ("load", "one image"),
            ("load a b", "one image"),
            ("stop", "`cluster stop`"),
            ("cut", "`cluster cut`"),
            ("cut node3", "`node3`"),
            ("mend node1 node2", "`cluster mend`"),
            ("slow node1 fast", "`fast`"),
        ] {
            let what = parsed(line).unwrap_err();
            assert!(what.contains(word), "{line}: {what}");
        }
    }
}
