//! Directories of exchanges that share memory: whether each is a file system of its own on every node.

use serde_json::Value;

use super::namespace::Namespace;
use super::{Seen, hidden, list, name, text};
use crate::findings::Finding;

/// The DaemonSet of the chart that mounts them.
pub const NODE_DAEMON: &str = "tensorlane-node";

const ABOUT: &str = "sameNode";

/// Finding about each exchange of a namespace whose pods share memory.
pub(super) fn findings(of: &Namespace, daemon: &Seen, operator_namespace: &str) -> Vec<Finding> {
    let shares = |exchange: &&Value| ["claim", "hostPath"].contains(&text(exchange, "/spec/sameNode"));
    let sharing = of.exchanges.items().iter().filter(shares).map(name);
    sharing.map(|exchange| finding(&of.name, exchange, daemon, operator_namespace)).collect()
}

fn finding(namespace: &str, exchange: &str, daemon: &Seen, operator_namespace: &str) -> Finding {
    let daemon = match daemon {
        Seen::Hidden(why) => return hidden(ABOUT, &format!("DaemonSet {NODE_DAEMON}"), why),
        Seen::There(daemon) if is_listed(daemon, &format!("{namespace}/{exchange}")) => daemon,
        Seen::There(_) | Seen::Missing => {
            let found = format!(
                "{exchange} has no file system of its own on nodes: any pod that mounts its directory can fill /run of the node"
            );
            let remedy = format!(
                "sameNode.exchanges of the chart: {{namespace: {namespace}, name: {exchange}}}, and a privileged namespace for it"
            );
            return Finding::advice(ABOUT, found, remedy);
        }
    };
    let number = |pointer| daemon.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let (wanted, ready) = (number("/status/desiredNumberScheduled"), number("/status/numberReady"));
    let found = format!("{exchange} has a file system of its own on {ready} of {wanted} nodes");
    if ready < wanted {
        let remedy = format!(
            "kubectl -n {operator_namespace} get pods -l app.kubernetes.io/component=node -o wide; kubectl -n {operator_namespace} logs daemonset/{NODE_DAEMON}"
        );
        return Finding::problem(ABOUT, found, remedy);
    }
    Finding::ok(ABOUT, found)
}

/// Returns whether the DaemonSet was told of the exchange.
fn is_listed(daemon: &Value, exchange: &str) -> bool {
    let containers = list(daemon, "/spec/template/spec/containers").iter();
    containers.flat_map(|container| list(container, "/args")).any(|argument| argument == exchange)
}
