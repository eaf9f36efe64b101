//! What is wrong with a cluster, from the objects of the installation and of one namespace.

use serde_json::Value;

use super::{Seen, condition, hidden, list, name, peers, text};
use crate::findings::Finding;
use crate::names::INJECT;

/// The role and role binding with which the pods of a namespace find each other.
pub const PEER_ROLE: &str = "tensorlane-peer";

const INSTALL: &str = "install the chart, or: kubectl apply --server-side -f manifests/install.yaml";

/// Everything that is looked at.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The operator's namespace.
    pub operator_namespace: String,
    /// The definitions of our objects, by name.
    pub definitions: Vec<(String, Seen)>,
    /// The policies and their bindings, by name.
    pub policies: Vec<(String, Seen)>,
    /// The operator's Deployment.
    pub operator: Seen,
    /// The Lease of the leader.
    pub lease: Seen,
    /// The webhook's configuration.
    pub webhook: Seen,
    /// The EndpointSlices of the webhook's Service.
    pub endpoints: Seen,
    /// The namespace that is asked about.
    pub namespace: Seen,
    /// Its exchanges.
    pub exchanges: Seen,
    /// Its peers.
    pub peers: Seen,
    /// The role of pods that find their peers.
    pub role: Seen,
    /// What gives it to the pods of the namespace.
    pub binding: Seen,
    /// What the API server says whether the pods of the namespace may do: a word for each, and its SubjectAccessReview.
    pub access: Vec<(&'static str, Seen)>,
}

/// What is found, the installation first.
pub fn findings(cluster: &Cluster) -> Vec<Finding> {
    let mut all = Vec::new();
    if cluster.operator == Seen::Missing && cluster.webhook == Seen::Missing {
        return vec![not_installed(cluster)];
    }
    all.extend(cluster.definitions.iter().map(|(name, seen)| definition(name, seen)));
    all.extend(policies(cluster));
    all.push(operator(cluster));
    all.push(leader(cluster));
    all.extend(webhook(cluster));
    all.push(endpoints(cluster));
    all.extend(namespace(cluster));
    if cluster.namespace == Seen::Missing {
        return all;
    }
    all.extend(exchanges(cluster));
    all.extend(permissions(cluster));
    all.extend(peers::findings(&cluster.peers));
    all
}

/// One sentence in place of a line for everything that is missing.
fn not_installed(cluster: &Cluster) -> Finding {
    let namespace = &cluster.operator_namespace;
    let found = format!(
        "Tensorlane is not installed: no operator in namespace {namespace}, no webhook; {}",
        without_webhook(cluster)
    );
    Finding::problem("installation", found, format!("{INSTALL}; elsewhere: --operator-namespace"))
}

/// What becomes of pods that ask while nobody is called for them: a policy looks at what comes out.
fn without_webhook(cluster: &Cluster) -> &'static str {
    let there = cluster.policies.iter().any(|(_, seen)| matches!(seen, Seen::There(_)));
    let hidden = cluster.policies.iter().any(|(_, seen)| matches!(seen, Seen::Hidden(_)));
    match (there, hidden) {
        (true, _) => "pods that ask are refused",
        (false, true) => {
            "pods that ask are refused, or run without a sidecar where the policies are gone too"
        }
        (false, false) => "pods that ask run without a sidecar",
    }
}

fn definition(name: &str, seen: &Seen) -> Finding {
    match seen {
        Seen::Hidden(why) => hidden("definitions", name, why),
        Seen::Missing => {
            let remedy = "kubectl apply --server-side -f manifests/crds, or install the chart";
            Finding::problem("definitions", format!("{name} is not defined"), remedy)
        }
        Seen::There(crd) => {
            let established = condition(crd, "Established").is_some_and(|one| one["status"] == "True");
            let serves =
                list(crd, "/spec/versions").iter().any(|v| v["name"] == "v1alpha1" && v["served"] == true);
            match (established, serves) {
                (true, true) => Finding::ok("definitions", format!("{name} is served")),
                (true, false) => Finding::problem(
                    "definitions",
                    format!("{name} does not serve v1alpha1"),
                    "kubectl apply --server-side -f manifests/crds of the operator's version",
                ),
                (false, _) => Finding::problem(
                    "definitions",
                    format!("{name} is not established"),
                    format!("kubectl describe crd {name}"),
                ),
            }
        }
    }
}

fn policies(cluster: &Cluster) -> Vec<Finding> {
    let mut findings: Vec<Finding> = (cluster.policies.iter())
        .filter_map(|(name, seen)| match seen {
            Seen::There(_) => None,
            Seen::Hidden(why) => Some(hidden("policies", name, why)),
            Seen::Missing => Some(Finding::problem(
                "policies",
                format!("{name} is missing"),
                "kubectl apply --server-side -f manifests/policies.yaml, or install the chart",
            )),
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok("policies", format!("all {} are there", cluster.policies.len())));
    }
    findings
}

fn operator(cluster: &Cluster) -> Finding {
    let namespace = &cluster.operator_namespace;
    let deployment = match &cluster.operator {
        Seen::Hidden(why) => return hidden("operator", "its Deployment", why),
        Seen::Missing => {
            let found = format!("there is no Deployment of the operator in namespace {namespace}");
            return Finding::problem(
                "operator",
                found,
                format!("{INSTALL}; elsewhere: --operator-namespace"),
            );
        }
        Seen::There(deployment) => deployment,
    };
    let number = |pointer| deployment.pointer(pointer).and_then(Value::as_i64);
    let (wanted, ready) =
        (number("/spec/replicas").unwrap_or(1), number("/status/readyReplicas").unwrap_or(0));
    let name = name(deployment);
    if wanted == 0 {
        let found = "it is scaled to 0: pods that ask are refused, peers are not kept";
        return Finding::problem(
            "operator",
            found,
            format!("kubectl -n {namespace} scale deploy/{name} --replicas=2"),
        );
    }
    if ready < wanted {
        let remedy = format!(
            "kubectl -n {namespace} describe deploy/{name}; kubectl -n {namespace} logs deploy/{name}"
        );
        return Finding::problem("operator", format!("{ready} of {wanted} replicas are ready"), remedy);
    }
    Finding::ok("operator", format!("{ready} of {wanted} replicas are ready"))
}

fn leader(cluster: &Cluster) -> Finding {
    match &cluster.lease {
        Seen::Hidden(why) => hidden("leader", "its Lease", why),
        Seen::There(lease) if !text(lease, "/spec/holderIdentity").is_empty() => {
            Finding::ok("leader", text(lease, "/spec/holderIdentity"))
        }
        Seen::There(_) | Seen::Missing => {
            let remedy = format!("kubectl -n {} logs deploy/tensorlane-operator", cluster.operator_namespace);
            Finding::problem("leader", "no replica leads: peers and exchanges are not kept", remedy)
        }
    }
}

fn webhook(cluster: &Cluster) -> Vec<Finding> {
    let configuration = match &cluster.webhook {
        Seen::Hidden(why) => return vec![hidden("webhook", "its configuration", why)],
        Seen::Missing => {
            let found =
                format!("there is no MutatingWebhookConfiguration tensorlane: {}", without_webhook(cluster));
            return vec![Finding::problem("webhook", found, INSTALL)];
        }
        Seen::There(configuration) => configuration,
    };
    let namespace = &cluster.operator_namespace;
    let one = |entry: &Value| {
        let called = text(entry, "/name").to_owned();
        let service = text(entry, "/clientConfig/service/namespace");
        if text(entry, "/clientConfig/caBundle").is_empty() {
            let found = format!("{called} has no caBundle: the API server cannot call it");
            let remedy = format!(
                "the leader writes it within seconds: kubectl -n {namespace} logs deploy/tensorlane-operator; with cert-manager: kubectl -n {namespace} get certificates"
            );
            return Finding::problem("webhook", found, remedy);
        }
        if service != namespace {
            let found = format!(
                "{called} calls a Service of namespace {service:?}, and the operator is in {namespace:?}"
            );
            return Finding::problem(
                "webhook",
                found,
                "two installations? remove one; else --operator-namespace",
            );
        }
        Finding::ok("webhook", format!("{called} has its bundle"))
    };
    list(configuration, "/webhooks").iter().map(one).collect()
}

fn endpoints(cluster: &Cluster) -> Finding {
    if let Seen::Hidden(why) = &cluster.endpoints {
        return hidden("endpoints", "the EndpointSlices of the webhook", why);
    }
    let endpoints = cluster.endpoints.items().iter().flat_map(|slice| list(slice, "/endpoints"));
    let ready = endpoints.filter(|one| one.pointer("/conditions/ready") != Some(&Value::Bool(false))).count();
    if ready == 0 {
        let remedy = format!("kubectl -n {} get pods,endpointslices", cluster.operator_namespace);
        return Finding::problem("endpoints", "no ready replica is behind the webhook's Service", remedy);
    }
    Finding::ok("endpoints", format!("{ready} behind the webhook's Service"))
}

fn namespace(cluster: &Cluster) -> Vec<Finding> {
    let namespace = match &cluster.namespace {
        Seen::Hidden(why) => return vec![hidden("namespace", "the namespace", why)],
        Seen::Missing => {
            let remedy = "-n NAMESPACE names another one; kubectl get namespaces lists them";
            return vec![Finding::problem("namespace", "it does not exist", remedy)];
        }
        Seen::There(namespace) => namespace,
    };
    let own = name(namespace);
    if own == "kube-system" || own == cluster.operator_namespace {
        let found = format!("{own} is excluded: its pods get no sidecars");
        return vec![Finding::note("namespace", found)];
    }
    let label =
        namespace.pointer("/metadata/labels").and_then(|labels| labels.get(INJECT)).and_then(Value::as_str);
    vec![match label {
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
    }]
}

fn exchanges(cluster: &Cluster) -> Vec<Finding> {
    if let Seen::Hidden(why) = &cluster.exchanges {
        return vec![hidden("exchanges", "the exchanges", why)];
    }
    let all = cluster.exchanges.items();
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

fn permissions(cluster: &Cluster) -> Vec<Finding> {
    let mut findings = Vec::new();
    let has_exchange = !cluster.exchanges.items().is_empty();
    for (what, seen) in [("ClusterRole", &cluster.role), ("RoleBinding", &cluster.binding)] {
        match seen {
            Seen::Hidden(why) => findings.push(hidden("permissions", &format!("{what} {PEER_ROLE}"), why)),
            // The operator makes it with the first exchange or pod, and never without the policy.
            Seen::Missing if what == "RoleBinding" && !has_exchange => {}
            Seen::Missing => findings.push(Finding::problem(
                "permissions",
                format!("{what} {PEER_ROLE} is missing: sidecars cannot find their peers"),
                if what == "RoleBinding" {
                    "the leader makes it where policies are whole: see policies and leader above"
                } else {
                    INSTALL
                },
            )),
            Seen::There(_) => {}
        }
    }
    for (what, seen) in cluster.access.iter().filter(|_| has_exchange) {
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
    if findings.is_empty() {
        findings.push(Finding::ok("permissions", "pods may find their peers"));
    }
    findings
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
