//! Service meshes beside the sidecar: its ports stay outside of them, by annotations that a mesh reads.
//!
//! Peers speak TLS with each other by their own keys, and the kubelet's probes come from no pod: a mesh that takes these
//! ports over adds a proxy to the one and refuses the other. A mesh reads its annotations while it injects. Where it has
//! done so before, a warning says that they come too late.
//!
//! An annotation of a pod takes the place of what the mesh is told elsewhere. So ours go into what the namespace says where
//! the pod is silent, and a pod that has its proxy already gets none that the mesh has not written there itself.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;

use super::View;
use super::facts::{Facts, Namespace};
use super::sidecar::PORTS;
use super::status::Written;

/// Annotation by which Linkerd is asked for, on a pod or a namespace.
pub const LINKERD_INJECT: &str = "linkerd.io/inject";

/// Annotations of a namespace that are read here.
pub const OF_NAMESPACE: [&str; 3] =
    [LINKERD_INJECT, "config.linkerd.io/skip-inbound-ports", "config.linkerd.io/skip-outbound-ports"];

/// A mesh that is known.
struct Mesh {
    name: &'static str,
    /// Name of its container.
    proxy: &'static str,
    /// Annotations for ports that it leaves alone.
    keys: [&'static str; 2],
    is_asked: fn(&View, &Namespace) -> bool,
}

const MESHES: [Mesh; 2] = [
    Mesh {
        name: "Istio",
        proxy: "istio-proxy",
        keys: [
            "traffic.sidecar.istio.io/excludeInboundPorts",
            "traffic.sidecar.istio.io/excludeOutboundPorts",
        ],
        is_asked: istio,
    },
    Mesh {
        name: "Linkerd",
        proxy: "linkerd-proxy",
        keys: [OF_NAMESPACE[1], OF_NAMESPACE[2]],
        is_asked: linkerd,
    },
];

/// Annotations to write for the meshes that the pod is or will be in. What comes too late is a warning.
///
/// `handed_in` are the annotations of the pod with what an earlier call wrote.
pub(super) fn annotations(
    view: &View,
    facts: &Facts,
    handed_in: &BTreeMap<String, String>,
    warnings: &mut Vec<String>,
) -> BTreeMap<String, Written> {
    let said = view.metadata.annotations.clone().unwrap_or_default();
    let mut all = BTreeMap::new();
    for mesh in &MESHES {
        let is_there = containers(view).any(|container| container.name == mesh.proxy);
        if !is_there && !(mesh.is_asked)(view, &facts.namespace) {
            continue;
        }
        let of_namespace = |key: &str| {
            let is_read = OF_NAMESPACE.contains(&key);
            facts.namespace.annotations.get(key).filter(|_| is_read)
        };
        let has_all = |key: &str| {
            let text = handed_in.get(key).or_else(|| of_namespace(key));
            text.is_some_and(|text| missing(text).is_empty())
        };
        if is_there && !mesh.keys.iter().all(|key| has_all(key)) {
            warnings.push(too_late(mesh));
        }
        // A mesh with a CNI plugin writes them while it injects, and its plugin reads them later.
        if is_there && !mesh.keys.iter().any(|key| handed_in.contains_key(*key)) {
            continue;
        }
        for key in mesh.keys {
            let was = said.get(key);
            let before = was.or_else(|| of_namespace(key));
            let now = with_ports(before.map_or("", String::as_str));
            if before != Some(&now) {
                all.insert(key.to_owned(), Written { was: was.cloned(), now });
            }
        }
    }
    all
}

fn too_late(mesh: &Mesh) -> String {
    let ports = PORTS.map(|port| port.to_string()).join(",");
    format!(
        "{} was there before Tensorlane and may take over its ports: write {}: \"{ports}\" and {}: \"{ports}\" on the pod's template yourself (docs/meshes.md)",
        mesh.name, mesh.keys[0], mesh.keys[1]
    )
}

fn containers(view: &View) -> impl Iterator<Item = &Container> {
    view.spec.init_containers.iter().flatten().chain(&view.spec.containers)
}

/// The pod's label or annotation wins over the labels of its namespace.
fn istio(view: &View, namespace: &Namespace) -> bool {
    const INJECT: &str = "sidecar.istio.io/inject";
    const REVISION: &str = "istio.io/rev";
    let (labels, annotations) = (view.metadata.labels.as_ref(), view.metadata.annotations.as_ref());
    let said = [labels, annotations].into_iter().flatten().find_map(|all| all.get(INJECT));
    if let Some(said) = said {
        return said == "true";
    }
    let revision = labels.is_some_and(|labels| labels.contains_key(REVISION));
    let of_namespace = match namespace.labels.get("istio-injection") {
        Some(word) => word == "enabled",
        None => namespace.labels.contains_key(REVISION),
    };
    revision || of_namespace
}

/// The pod's annotation wins over that of its namespace.
fn linkerd(view: &View, namespace: &Namespace) -> bool {
    let own = view.metadata.annotations.as_ref().and_then(|all| all.get(LINKERD_INJECT));
    let said = own.or_else(|| namespace.annotations.get(LINKERD_INJECT));
    said.is_some_and(|word| word == "enabled" || word == "ingress")
}

/// A list of ports with ours in it. What it says already stays as it is written.
fn with_ports(text: &str) -> String {
    let missing = missing(text).into_iter().map(|port| port.to_string());
    let said = Some(text.trim().trim_end_matches(',')).filter(|text| !text.is_empty()).map(str::to_owned);
    said.into_iter().chain(missing).collect::<Vec<_>>().join(",")
}

/// Our ports that a list of ports and ranges does not have.
fn missing(text: &str) -> Vec<i32> {
    let has = |part: &str, port: i32| match part.split_once('-') {
        _ if part == "*" => true,
        Some((from, to)) => {
            let bound = |text: &str| text.trim().parse::<i32>().ok();
            bound(from).zip(bound(to)).is_some_and(|(from, to)| (from..=to).contains(&port))
        }
        None => part.parse() == Ok(port),
    };
    let mut ports = PORTS.to_vec();
    ports.retain(|port| !text.split(',').any(|part| has(part.trim(), *port)));
    ports.sort_unstable();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_added_to_a_list_that_does_not_have_them() {
        assert_eq!(with_ports(""), "9420,9421");
        assert_eq!(with_ports("8080, 9421"), "8080, 9421,9420");
        assert_eq!(with_ports("9000-9420"), "9000-9420,9421");
        assert_eq!(with_ports("443,"), "443,9420,9421");
        for text in ["*", "9420,9421", "9421 , 9420", "1-65535"] {
            assert_eq!(with_ports(text), text);
        }
    }
}
