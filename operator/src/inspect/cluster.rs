//! Faults of a cluster, from the objects of the installation and of namespaces.

use serde_json::Value;

use super::namespace::{self, Namespace};
use super::{Seen, condition, hidden, list, name, text};
use crate::findings::Finding;
use crate::manifests::{Installation, PEER_POLICY, gap, gap_remedy};
use crate::names::MUTATE_PATH;

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
    /// The role of pods that find their peers.
    pub role: Seen,
    /// The DaemonSet that mounts directories of exchanges on nodes.
    pub node_daemon: Seen,
    /// Namespaces that are asked about.
    pub namespaces: Namespaces,
}

/// The namespaces that are asked about.
#[derive(Clone, Debug)]
pub enum Namespaces {
    /// Namespace that was named, or that of the context.
    One(Box<Namespace>),
    /// All that have an exchange, a peer or our label.
    All(Vec<Namespace>),
    /// All, and which there are could not be read: what the API server said.
    Hidden(String),
}

/// Findings, those on the installation first.
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
    all.extend(role(cluster));
    let of = |one: &Namespace| namespace::findings(one, cluster);
    match &cluster.namespaces {
        Namespaces::One(one) => all.extend(of(one)),
        Namespaces::Hidden(why) => all.push(hidden("namespaces", "which of them use Tensorlane", why)),
        Namespaces::All(none) if none.is_empty() => {
            let found = "none has an exchange, a peer or the label tensorlane.dev/inject";
            all.push(Finding::note("namespaces", found));
        }
        Namespaces::All(every) => {
            all.extend(every.iter().flat_map(|one| of(one).into_iter().map(|found| found.of(&one.name))));
        }
    }
    all
}

/// Fault of the role; it is the same for every namespace.
fn role(cluster: &Cluster) -> Option<Finding> {
    let what = format!("ClusterRole {PEER_ROLE}");
    match &cluster.role {
        Seen::There(_) => None,
        Seen::Hidden(why) => Some(hidden("permissions", &what, why)),
        Seen::Missing => Some(Finding::problem(
            "permissions",
            format!("{what} is missing: sidecars cannot find their peers"),
            INSTALL,
        )),
    }
}

/// Single finding in place of a line for everything that is missing.
fn not_installed(cluster: &Cluster) -> Finding {
    let namespace = &cluster.operator_namespace;
    let found = format!(
        "Tensorlane is not installed: no operator in namespace {namespace}, no webhook; {}",
        without_webhook(cluster)
    );
    Finding::problem("installation", found, format!("{INSTALL}; elsewhere: --operator-namespace"))
}

/// Fate of pods that ask while nobody is called for them: a policy looks at what comes out.
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
                gap_remedy(&cluster.operator_namespace),
            )),
        })
        .collect();
    findings.extend(changed_guard(cluster));
    if findings.is_empty() {
        findings.push(Finding::ok("policies", format!("all {} are there", cluster.policies.len())));
    }
    findings
}

/// Fault of a guard of peers that is there, and guards nothing.
fn changed_guard(cluster: &Cluster) -> Option<Finding> {
    let object = |kind: &str| {
        let name = format!("{kind} {PEER_POLICY}");
        cluster.policies.iter().find(|(one, _)| *one == name).and_then(|(_, seen)| seen.object())
    };
    let (policy, binding) =
        (object("ValidatingAdmissionPolicy")?, object("ValidatingAdmissionPolicyBinding")?);
    let namespace = cluster.operator_namespace.clone();
    let installation = Installation { namespace, ..Installation::default() };
    let gap = gap(Some(policy), Some(binding), &installation)?;
    Some(Finding::problem("policies", gap.what, gap.remedy))
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
        // The path itself is not said: whoever knows it is taken for the API server.
        if !has_secret_part(text(entry, "/clientConfig/service/path")) {
            let found = format!("{called} calls a path without its secret part: pods that ask are refused");
            let remedy = format!(
                "the leader writes it within seconds: kubectl -n {namespace} logs deploy/tensorlane-operator; where a tool takes it away again: docs/kubernetes.md, GitOps"
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
        Finding::ok("webhook", format!("{called} has its bundle and its path"))
    };
    list(configuration, "/webhooks").iter().map(one).collect()
}

fn has_secret_part(path: &str) -> bool {
    let part = path.strip_prefix(MUTATE_PATH).and_then(|rest| rest.strip_prefix('/'));
    part.is_some_and(|part| !part.is_empty())
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

#[cfg(test)]
#[path = "cluster_tests.rs"]
pub(super) mod tests;
