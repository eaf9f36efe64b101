//! Containers that other injectors are known to add. They never use our sockets, and they may stand before the sidecar.
//!
//! Sources: the injection templates of Istio 1.27, Linkerd 2.18, Kuma 2.11, Consul 1.21, Vault's agent injector 1.6 and
//! Dapr 1.15.

/// Names of such containers, of both lists of a pod.
const NAMES: [&str; 18] = [
    "istio-init",
    "istio-proxy",
    "istio-validation",
    "linkerd-init",
    "linkerd-network-validator",
    "linkerd-proxy",
    "linkerd-debug",
    "kuma-init",
    "kuma-sidecar",
    "kuma-validation",
    "consul-connect-inject-init",
    "consul-dataplane",
    "consul-mesh-init",
    "vault-agent-init",
    "vault-agent",
    "daprd",
    "envoy-sidecar",
    "otc-container",
];

/// Returns whether another injector is known to add a container of this name.
pub(super) fn is_known(name: &str) -> bool {
    NAMES.contains(&name)
}
