//! The link between a node and the bridge: cut, slowed down, and mended.

use crate::cluster::Request;
use crate::cluster::layout::{Layout, NODES, Node};
use crate::cluster::tell::{told, works};
use crate::failure::Failure;

/// State of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// Cut: what is sent is lost, and the node's interface does not know of it: as when a switch fails.
    Cut,
    /// Slowed: what is sent to the node comes at so many Mbit/s.
    Slow(u32),
    /// As it was in the beginning.
    Whole,
}

/// Reads the words after `cargo xtask cluster cut`, `slow` or `mend`.
pub(crate) fn parse(command: &str, words: &[String]) -> Result<Request, Failure> {
    let node = |name: &String| {
        let found = NODES.into_iter().find(|node| node.name() == *name);
        found.ok_or_else(|| Failure::usage(format!("there is no node `{name}`, only node1 and node2")))
    };
    match (command, words) {
        ("cut", [name]) => Ok(Request::Link(node(name)?, Link::Cut)),
        ("mend", [name]) => Ok(Request::Link(node(name)?, Link::Whole)),
        ("slow", [name, rate]) => match rate.parse() {
            Ok(rate @ 1..) => Ok(Request::Link(node(name)?, Link::Slow(rate))),
            _ => Err(Failure::usage(format!("`{rate}` is no rate in Mbit/s"))),
        },
        ("slow", _) => Err(Failure::usage("`cluster slow` needs a node and a rate in Mbit/s")),
        _ => Err(Failure::usage(format!("`cluster {command}` needs one node"))),
    }
}

impl Link {
    /// Makes the link of a node so.
    pub(crate) fn apply(self, layout: &Layout, node: Node) -> Result<(), Failure> {
        let (fabric, port) = (layout.fabric(), format!("port{}", node.0));
        let joined = if self == Link::Cut { "nomaster" } else { "master br0" };
        told("ip", format!("-n {fabric} link set {port} {joined}").split(' '))?;
        let tc = |words: String| format!("netns exec {fabric} tc qdisc {words}");
        match self {
            Link::Slow(rate) => {
                let shaped = format!("replace dev {port} root tbf rate {rate}mbit burst 256kb latency 200ms");
                told("ip", tc(shaped).split(' ')).map(|_| ())
            }
            Link::Cut | Link::Whole => {
                // There may be none to take away.
                works("ip", tc(format!("del dev {port} root")).split(' '));
                Ok(())
            }
        }
    }
}
