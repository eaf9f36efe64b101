//! Faults of a namespace: its label, its exchanges, its peers, and what its pods may do.

use std::collections::BTreeSet;

use serde_json::Value;

use super::cluster::{Cluster, PEER_ROLE};
use super::{Seen, condition, hidden, memory, name, network, peers, shared_memory, text};
use crate::findings::Finding;
use crate::names::INJECT;

/// Everything of a namespace that is looked at.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Name of the namespace.
    pub name: String,
    /// Itself.
    pub object: Seen,
    /// Exchanges of the namespace.
    pub exchanges: Seen,
    /// Peers of the namespace.
    pub peers: Seen,
    /// Pods of the namespace that have a sidecar.
    pub pods: Seen,
    /// NetworkPolicies of the namespace.
    pub policies: Seen,
    /// DaemonSets of the namespace.
    pub daemons: Seen,
    /// Binding that gives its pods the role with which they find their peers.
    pub binding: Seen,
    /// Answers of the API server about what its pods may do: a word for each, and its SubjectAccessReview.
    pub access: Vec<(&'static str, Seen)>,
}

/// The namespaces that have something of ours: our label, or objects.
///
/// # Errors
/// What the API server said of a list that cannot be read.
pub fn names(labelled: &Seen, objects: &[Seen]) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    for (list, pointer) in [(labelled, "/metadata/name")]
        .into_iter()
        .chain(objects.iter().map(|list| (list, "/metadata/namespace")))
    {
        if let Seen::Hidden(why) = list {
            return Err(why.clone());
        }
        names.extend(list.items().iter().map(|item| text(item, pointer).to_owned()));
    }
    Ok(names)
}

/// Findings about the namespace.
pub(super) fn findings(of: &Namespace, cluster: &Cluster) -> Vec<Finding> {
    let mut all = vec![object(of, &cluster.operator_namespace)];
    if of.object == Seen::Missing {
        return all;
    }
    all.extend(daemons(of));
    all.extend(exchanges(of));
    all.extend(permissions(of, &cluster.role));
    all.extend(shared_memory::findings(of, &cluster.node_daemon, &cluster.operator_namespace));
    all.extend(network::findings(of));
    all.extend(memory::of_pods(&of.pods));
    all.extend(peers::findings(&of.peers));
    all
}

fn object(of: &Namespace, operator_namespace: &str) -> Finding {
    let namespace = match &of.object {
        Seen::Hidden(why) => return hidden("namespace", "the namespace", why),
        Seen::Missing => {
            let remedy = "-n NAMESPACE names another one; kubectl get namespaces lists them";
            return Finding::problem("namespace", "it does not exist", remedy);
        }
        Seen::There(namespace) => namespace,
    };
    let own = name(namespace);
    if own == "kube-system" || own == operator_namespace {
        let found = format!("{own} is excluded: its pods get no sidecars");
        return Finding::note("namespace", found);
    }
    match label(namespace) {
        None => Finding::ok("namespace", format!("{own}: pods that say {INJECT}: enabled get a sidecar")),
        Some("enabled") => {
            Finding::ok("namespace", format!("{own}: every pod gets a sidecar that says nothing else"))
        }
        Some("disabled") => {
            Finding::ok("namespace", format!("{own}: pods get a sidecar only if they ask themselves"))
        }
        Some(other) => Finding::problem(
            "namespace",
            format!("{own} has the label {INJECT}: {other:?}, so its pods are refused"),
            format!("kubectl label namespace {own} --overwrite {INJECT}=enabled (or {INJECT}-)"),
        ),
    }
}

/// Fault of a namespace whose label asks for pods of the nodes' own networks: they are refused, and with a plugin of the
/// network or of GPUs among them, a node does not come up.
fn daemons(of: &Namespace) -> Option<Finding> {
    let asks = label(of.object.object()?)? == "enabled";
    let on_host = |one: &&Value| {
        let said = one.pointer("/spec/template/metadata/annotations").and_then(|all| all.get(INJECT));
        one.pointer("/spec/template/spec/hostNetwork") == Some(&Value::Bool(true)) && said.is_none()
    };
    let names: Vec<&str> = of.daemons.items().iter().filter(on_host).take(8).map(name).collect();
    (asks && !names.is_empty()).then(|| {
        Finding::problem(
            "namespace",
            format!("its label asks for sidecars in DaemonSets with hostNetwork, whose pods are refused: {}", names.join(", ")),
            format!("{INJECT}: disabled in their templates, or take the label off the namespace and ask by the pods that want one"),
        )
    })
}

/// The label of a namespace by which its pods ask.
fn label(namespace: &Value) -> Option<&str> {
    namespace.pointer("/metadata/labels").and_then(|labels| labels.get(INJECT)).and_then(Value::as_str)
}

fn exchanges(of: &Namespace) -> Vec<Finding> {
    if let Seen::Hidden(why) = &of.exchanges {
        return vec![hidden("exchanges", "the exchanges", why)];
    }
    let all = of.exchanges.items();
    if all.is_empty() {
        return vec![Finding::note(
            "exchanges",
            "there is none; default is made with the first pod that belongs to it",
        )];
    }
    all.iter().map(exchange).collect()
}

fn exchange(exchange: &Value) -> Finding {
    let own = name(exchange);
    let generation = exchange.pointer("/metadata/generation");
    let accepted = condition(exchange, "Accepted");
    let Some(accepted) = accepted.filter(|_| exchange.pointer("/status/observedGeneration") == generation)
    else {
        let found = format!("the operator has not looked at {own} yet");
        return Finding::problem("exchanges", found, "does a replica lead? see leader above");
    };
    if accepted["status"] != "True" {
        let found = format!("{own} is not accepted: {}", text(accepted, "/reason"));
        return Finding::problem("exchanges", found, text(accepted, "/message"));
    }
    match condition(exchange, "Ready") {
        Some(ready) if ready["status"] != "True" && ready["reason"] != "NoPeers" => {
            let found = format!("{own}: {}", text(ready, "/message"));
            Finding::problem("exchanges", found, "see peers below")
        }
        Some(ready) => Finding::ok("exchanges", format!("{own}: {}", text(ready, "/message"))),
        None => Finding::ok("exchanges", own),
    }
}

fn permissions(of: &Namespace, role: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    let has_exchange = !of.exchanges.items().is_empty();
    match &of.binding {
        Seen::Hidden(why) => {
            findings.push(hidden("permissions", &format!("RoleBinding {PEER_ROLE}"), why));
        }
        Seen::Missing if has_exchange => findings.push(Finding::problem(
            "permissions",
            format!("RoleBinding {PEER_ROLE} is missing: sidecars cannot find their peers"),
            "the leader makes it where policies are whole: see policies and leader above",
        )),
        // The operator makes it with the first exchange or pod, and never without the policy.
        Seen::Missing | Seen::There(_) => {}
    }
    for (what, seen) in of.access.iter().filter(|_| has_exchange) {
        match seen {
            Seen::There(review) if review.pointer("/status/allowed") == Some(&Value::Bool(true)) => {}
            Seen::There(_) => findings.push(Finding::problem(
                "permissions",
                format!("pods of this namespace may not {what}"),
                format!("does something else own RoleBinding {PEER_ROLE}? kubectl get rolebinding {PEER_ROLE} -o yaml"),
            )),
            Seen::Missing => {}
            Seen::Hidden(why) => findings.push(hidden("permissions", &format!("whether pods may {what}"), why)),
        }
    }
    if findings.is_empty() && matches!(role, Seen::There(_)) {
        findings.push(Finding::ok("permissions", "pods may find their peers"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_namespace_is_one_of_ours_by_its_label_or_by_an_object_in_it() {
        let labelled = Seen::There(json!({"items": [{"metadata": {"name": "ml"}}]}));
        let objects = |namespaces: &[&str]| {
            let one = |of: &&str| json!({"metadata": {"name": "default", "namespace": of}});
            Seen::There(json!({"items": namespaces.iter().map(one).collect::<Vec<_>>()}))
        };
        let found = names(&labelled, &[objects(&["rl", "ml"]), objects(&["rl", "old"])]).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["ml", "old", "rl"]);
        assert!(
            names(&labelled, &[Seen::Missing]).unwrap().contains("ml"),
            "a kind that is not defined has none"
        );
        assert_eq!(names(&labelled, &[Seen::Hidden("no".to_owned())]), Err("no".to_owned()));
    }
}
