//! The names that the injected pod, the manifests and the operator have to agree on.

/// Prefix of all our annotations and labels.
pub const PREFIX: &str = "tensorlane.dev/";

/// On a pod: `enabled` or `disabled`. As a label of a namespace: `enabled`, for its pods that say nothing.
pub const INJECT: &str = "tensorlane.dev/inject";

/// On a pod, as an annotation: the exchange that it wants. As a label, written by us: the one that it has.
pub const EXCHANGE: &str = "tensorlane.dev/exchange";

/// A label that we write on every pod with a sidecar.
pub const INJECTED: &str = "tensorlane.dev/injected";

/// An annotation that we write on every pod with a sidecar: what was added, so that it can be taken away again.
pub const STATUS: &str = "tensorlane.dev/status";

/// The container.
pub const SIDECAR: &str = "tensorlane";

/// The volume with the sockets, which workloads see read-only.
pub const SOCKETS_VOLUME: &str = "tensorlane-sockets";
/// The volume with identity and state, which only the sidecar sees.
pub const STATE_VOLUME: &str = "tensorlane-state";
/// The volume with the sidecar's own token.
pub const TOKEN_VOLUME: &str = "tensorlane-token";
/// The volume in which sidecars of one node find each other.
pub const NODE_VOLUME: &str = "tensorlane-node";
/// All of them.
pub const VOLUMES: [&str; 4] = [SOCKETS_VOLUME, STATE_VOLUME, TOKEN_VOLUME, NODE_VOLUME];

/// Directory of the sockets, in every container.
pub const SOCKETS_PATH: &str = "/run/tensorlane";
/// Directory of the state, in the sidecar.
pub const STATE_PATH: &str = "/var/lib/tensorlane";
/// Directory in which client libraries of Kubernetes look for a token, in the sidecar.
pub const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Directory of the sockets of the node, in the sidecar.
pub const NODE_PATH: &str = "/run/tensorlane-node";

/// Directory of sets on files, in the sidecar.
pub const SETS_PATH: &str = "/var/lib/tensorlane-sets";

/// Variable by which a client finds the sockets.
pub const SOCKETS_VARIABLE: &str = "TENSORLANE_SOCKETS";

/// Port for connections of other peers.
pub const PEERS_PORT: u16 = 9421;
/// Port at which metrics and probes are served.
pub const ADMIN_PORT: u16 = 9420;

/// Owner of the fields that the operator applies.
pub const FIELD_MANAGER: &str = "tensorlane-operator";

/// Path of the webhook without its secret part, which the operator adds.
pub const MUTATE_PATH: &str = "/mutate";

/// The service account of a pod that names none.
pub const DEFAULT_ACCOUNT: &str = "default";

/// The claim through which the sidecars of an exchange share memory where `sameNode` is `claim`.
pub fn node_claim(exchange: &str) -> String {
    format!("tensorlane-{exchange}")
}

/// The directory of the node for that where `sameNode` is `hostPath`.
pub fn node_directory(namespace: &str, exchange: &str) -> String {
    format!("/run/tensorlane/{namespace}/{exchange}")
}
