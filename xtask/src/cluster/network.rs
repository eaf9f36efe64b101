//! The wires between the nodes: namespaces on a bridge that has a namespace of its own. Nothing of it is seen, or can
//! be reached, from the machine's own network.

use crate::cluster::layout::{GATEWAY, Layout, NODES};
use crate::cluster::record::{Made, Record};
use crate::cluster::tell::told;
use crate::failure::Failure;

/// Makes the namespaces and connects them.
pub(crate) fn make(layout: &Layout) -> Result<(), Failure> {
    for name in namespaces(layout) {
        Record::add(&layout.run(), &Made::Namespace(name.clone()))?;
        told("ip", ["netns", "add", &name])?;
    }
    for words in wires(layout) {
        told("ip", words.split(' '))?;
    }
    Ok(())
}

fn namespaces(layout: &Layout) -> Vec<String> {
    let nodes = NODES.iter().map(|node| layout.namespace(*node));
    std::iter::once(layout.fabric()).chain(nodes).collect()
}

/// Commands for `ip`, in this order.
fn wires(layout: &Layout) -> Vec<String> {
    let fabric = layout.fabric();
    let mut words = vec![
        format!("-n {fabric} link set lo up"),
        format!("-n {fabric} link add br0 type bridge"),
        format!("-n {fabric} addr add {GATEWAY}/24 dev br0"),
        format!("-n {fabric} link set br0 up"),
    ];
    for node in NODES {
        let (number, name, address) = (node.0, layout.namespace(node), node.address());
        words.extend([
            format!("link add port{number} netns {fabric} type veth peer name eth0 netns {name}"),
            format!("-n {fabric} link set port{number} master br0 up"),
            format!("-n {name} link set lo up"),
            format!("-n {name} addr add {address}/24 dev eth0"),
            format!("-n {name} link set eth0 up"),
            // Services have addresses that are nowhere: a packet needs a way before its address is changed.
            format!("-n {name} route add default via {GATEWAY}"),
        ]);
    }
    for node in NODES {
        for other in NODES.iter().filter(|other| **other != node) {
            let (name, pods, via) = (layout.namespace(node), other.pods(), other.address());
            words.push(format!("-n {name} route add {pods} via {via}"));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use std::path::Path;

    #[test]
    fn every_wire_is_inside_a_namespace() {
        let layout = Layout::of(&Place::at(Path::new("/r")));
        for words in wires(&layout) {
            assert!(words.starts_with("-n tlc-") || words.matches("netns tlc-").count() == 2, "{words}");
        }
    }

    #[test]
    fn each_node_has_a_way_to_the_pods_of_the_other() {
        let layout = Layout::of(&Place::at(Path::new("/r")));
        let wires = wires(&layout).join("\n");
        assert!(wires.contains("node1 route add 198.18.2.0/24 via 198.18.0.12"), "{wires}");
        assert!(wires.contains("node2 route add 198.18.1.0/24 via 198.18.0.11"), "{wires}");
    }
}
