//! Reach of the port for peers, from the NetworkPolicies of a namespace as Kubernetes reads them: a pod that none selects is open to
//! everyone, and for one that some select, what any of them allows is allowed. Whether the cluster's network enforces policies, and
//! policies of other kinds, are not seen here.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::namespace::Namespace;
use super::{Seen, hidden, name};
use crate::findings::Finding;
use crate::names::{EXCHANGE, INJECTED, PEERS_PORT};
use crate::plan::matches;

const ABOUT: &str = "network";

/// Pods of an exchange that are named where only some are open.
const NAMED_MAX: usize = 3;

/// Reach of the port for peers of one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// Pods and addresses that policies name.
    Named,
    /// Everyone, for no policy selects the pod.
    Unselected,
    /// Everyone, for the policy of this name says so.
    OpenedBy(String),
}

/// Finding about each exchange of a namespace.
pub(super) fn findings(of: &Namespace) -> Vec<Finding> {
    let exchanges = of.exchanges.items();
    if let (Seen::Hidden(why), false) = (&of.policies, exchanges.is_empty()) {
        return vec![hidden(ABOUT, "the NetworkPolicies", why)];
    }
    let policies: Vec<NetworkPolicy> =
        of.policies.items().iter().filter_map(|one| serde_json::from_value(one.clone()).ok()).collect();
    exchanges.iter().map(|exchange| finding(of, name(exchange), &policies)).collect()
}

fn finding(of: &Namespace, exchange: &str, policies: &[NetworkPolicy]) -> Finding {
    let pods: Vec<(&str, Reach)> = (of.pods.items().iter())
        .filter(|pod| labels(pod).get(EXCHANGE).is_some_and(|label| label == exchange))
        .map(|pod| (name(pod), reach(policies, &labels(pod))))
        .collect();
    // Before there is a pod: those labels that every pod of the exchange will have.
    let reaches: Vec<Reach> = match pods.is_empty() {
        true => vec![reach(policies, &own_labels(exchange))],
        false => pods.iter().map(|(_, reach)| reach.clone()).collect(),
    };
    let Some(worst) = reaches.iter().max().filter(|reach| **reach != Reach::Named) else {
        let found = format!("{exchange}: port {PEERS_PORT} is open to those alone that NetworkPolicies name");
        return Finding::ok(ABOUT, found);
    };
    let open: Vec<&str> =
        pods.iter().filter(|(_, reach)| *reach != Reach::Named).map(|(name, _)| *name).collect();
    let which = match open.len() == pods.len() {
        true => "of its pods".to_owned(),
        false => {
            let more = if open.len() > NAMED_MAX { " and others" } else { "" };
            let names = open[..open.len().min(NAMED_MAX)].join(", ");
            format!("of {} of {} pods ({names}{more})", open.len(), pods.len())
        }
    };
    let said = |why: &str| format!("{exchange}: port {PEERS_PORT} {which} is open to everyone: {why}");
    match worst {
        Reach::OpenedBy(policy) => Finding::advice(
            ABOUT,
            said(&format!("NetworkPolicy {policy} allows it")),
            format!("policies add up: have {policy} name who may reach {PEERS_PORT}"),
        ),
        _ => Finding::advice(ABOUT, said("no NetworkPolicy selects them"), remedy(&of.name, exchange)),
    }
}

/// Command that closes the port, ready to be run, and the value of the chart that does the same.
fn remedy(namespace: &str, exchange: &str) -> String {
    let policy = policy(namespace, exchange);
    let yaml = serde_yaml::to_string(&policy).unwrap_or_else(|_| policy.to_string());
    format!(
        "networkPolicy.exchanges of the chart: {{namespace: {namespace}, name: {exchange}}}; or:\nkubectl apply -f - <<'END'\n{yaml}END"
    )
}

/// The policy by which only pods with the labels of the exchange reach its port for peers. All other ports stay as they are.
pub fn policy(namespace: &str, exchange: &str) -> Value {
    let pods = json!({"matchLabels": own_labels(exchange)});
    let [below, above] = [(1, PEERS_PORT - 1), (PEERS_PORT + 1, u16::MAX)];
    let range =
        |(port, end): (u16, u16), protocol: &str| json!({"port": port, "endPort": end, "protocol": protocol});
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": format!("tensorlane-exchange-{exchange}"), "namespace": namespace},
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": pods}],
                    "ports": [
                        {"port": PEERS_PORT, "protocol": "TCP"},
                        {"port": PEERS_PORT, "protocol": "UDP"},
                    ],
                },
                {"ports": [
                    range(below, "TCP"), range(above, "TCP"), range(below, "UDP"), range(above, "UDP"),
                    range((1, u16::MAX), "SCTP"),
                ]},
            ],
        },
    })
}

/// The labels that every pod of an exchange has.
fn own_labels(exchange: &str) -> BTreeMap<String, String> {
    [(INJECTED, "true"), (EXCHANGE, exchange)].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn labels(pod: &Value) -> BTreeMap<String, String> {
    let labels = pod.pointer("/metadata/labels").cloned().unwrap_or_default();
    serde_json::from_value(labels).unwrap_or_default()
}

/// Returns who reaches the port of a pod with these labels.
fn reach(policies: &[NetworkPolicy], labels: &BTreeMap<String, String>) -> Reach {
    let mut selecting = policies.iter().filter(|policy| selects(policy, labels)).peekable();
    if selecting.peek().is_none() {
        return Reach::Unselected;
    }
    let opens = |policy: &&NetworkPolicy| {
        let rules = policy.spec.iter().flat_map(|spec| spec.ingress.iter().flatten());
        rules.clone().any(|rule| is_for_everyone(rule) && is_about_peers(rule))
    };
    match selecting.find(opens) {
        Some(policy) => Reach::OpenedBy(policy.metadata.name.clone().unwrap_or_default()),
        None => Reach::Named,
    }
}

/// Returns whether a policy is about what reaches a pod with these labels.
fn selects(policy: &NetworkPolicy, labels: &BTreeMap<String, String>) -> bool {
    let Some(spec) = &policy.spec else { return false };
    // Without types a policy is about what comes in.
    let types = spec.policy_types.as_deref().unwrap_or_default();
    let is_ingress = types.is_empty() || types.iter().any(|kind| kind == "Ingress");
    is_ingress && spec.pod_selector.as_ref().is_none_or(|selector| matches(selector, labels))
}

fn is_for_everyone(rule: &NetworkPolicyIngressRule) -> bool {
    let from = rule.from.as_deref().unwrap_or_default();
    from.is_empty() || from.iter().any(is_everyone)
}

/// Returns whether a peer of a rule is every address, or every pod of the cluster.
fn is_everyone(peer: &NetworkPolicyPeer) -> bool {
    let is_all = |selector: &LabelSelector| {
        selector.match_labels.iter().flatten().next().is_none()
            && selector.match_expressions.iter().flatten().next().is_none()
    };
    let every_address = peer.ip_block.as_ref().is_some_and(|block| block.cidr.ends_with("/0"));
    let every_pod =
        peer.namespace_selector.as_ref().is_some_and(is_all) && peer.pod_selector.as_ref().is_none_or(is_all);
    every_address || every_pod
}

fn is_about_peers(rule: &NetworkPolicyIngressRule) -> bool {
    let peers = i32::from(PEERS_PORT);
    let is_it = |port: &NetworkPolicyPort| {
        let is_ours = port.protocol.as_deref().is_none_or(|protocol| ["TCP", "UDP"].contains(&protocol));
        is_ours
            && match (&port.port, port.end_port) {
                (None, _) => true,
                (Some(IntOrString::Int(first)), last) => (*first..=last.unwrap_or(*first)).contains(&peers),
                // The names that the sidecar's container gives its ports.
                (Some(IntOrString::String(name)), _) => ["tl-peers", "tl-quic"].contains(&name.as_str()),
            }
    };
    let ports = rule.ports.as_deref().unwrap_or_default();
    ports.is_empty() || ports.iter().any(is_it)
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
