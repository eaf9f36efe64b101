use serde_json::json;

use super::*;
use crate::findings::{Level, exit_code};

fn there(object: Value) -> Seen {
    Seen::There(object)
}

/// The policy on the status of peers and its binding, as they are installed.
fn guards() -> Vec<(String, Seen)> {
    let all = crate::manifests::objects(&Installation::default());
    let guards = all.into_iter().filter(|object| object["metadata"]["name"] == PEER_POLICY);
    guards.map(|object| (format!("{} {PEER_POLICY}", text(&object, "/kind")), there(object))).collect()
}

/// A cluster in which all is well.
fn well() -> Cluster {
    let crd = json!({
        "spec": {"versions": [{"name": "v1alpha1", "served": true}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    });
    Cluster {
        operator_namespace: "tensorlane-system".to_owned(),
        definitions: vec![("tensorpeers.tensorlane.dev".to_owned(), there(crd))],
        policies: guards(),
        operator: there(
            json!({"metadata": {"name": "tensorlane-operator"}, "spec": {"replicas": 2}, "status": {"readyReplicas": 2}}),
        ),
        lease: there(json!({"spec": {"holderIdentity": "operator-a"}})),
        webhook: there(json!({"webhooks": [{
            "name": "pods.tensorlane.dev",
            "clientConfig": {"caBundle": "TFM=", "service": {"namespace": "tensorlane-system", "path": "/mutate/0123"}},
        }]})),
        endpoints: there(json!({"items": [{"endpoints": [{"conditions": {"ready": true}}, {}]}]})),
        role: there(json!({})),
        node_daemon: Seen::Missing,
        namespaces: Namespaces::One(Box::new(ml())),
    }
}

/// A namespace in which all is well.
pub(in crate::inspect) fn ml() -> Namespace {
    let allowed = json!({"status": {"allowed": true}});
    Namespace {
        name: "ml".to_owned(),
        object: there(json!({"metadata": {"name": "ml", "labels": {"tensorlane.dev/inject": "enabled"}}})),
        exchanges: there(json!({"items": [{
            "metadata": {"name": "default", "generation": 3},
            "status": {"observedGeneration": 3, "conditions": [
                {"type": "Accepted", "status": "True", "reason": "Accepted"},
                {"type": "Ready", "status": "True", "message": "all 1 peers can be reached"},
            ]},
        }]})),
        peers: there(json!({"items": [{
            "metadata": {"name": "a"},
            "status": {"fingerprints": ["sha256:1"], "conditions": [{"type": "Ready", "status": "True"}]},
        }]})),
        pods: there(json!({"items": []})),
        policies: there(json!({"items": [super::super::network::policy("ml", "default")]})),
        daemons: there(json!({"items": []})),
        binding: there(json!({})),
        access: vec![("list tensorpeers", there(allowed))],
    }
}

/// The one namespace that is asked about.
fn one(cluster: &mut Cluster) -> &mut Namespace {
    match &mut cluster.namespaces {
        Namespaces::One(one) => one,
        other => unreachable!("{other:?}"),
    }
}

/// The one thing that is wrong.
fn only_problem(cluster: &Cluster) -> String {
    let all = findings(cluster);
    let wrong: Vec<_> = all.iter().filter(|one| one.level == Level::Problem).collect();
    assert_eq!(wrong.len(), 1, "{all:#?}");
    let remedy = wrong[0].remedy.as_deref().unwrap_or_default();
    assert!(!remedy.is_empty(), "{all:#?}");
    format!("{}: {} -> {remedy}", wrong[0].about, wrong[0].found)
}

#[test]
fn a_cluster_that_is_well_has_a_line_for_everything_and_no_problem() {
    let all = findings(&well());
    assert!(all.iter().all(|one| one.level == Level::Ok), "{all:#?}");
    let about: std::collections::BTreeSet<_> = all.iter().map(|one| one.about).collect();
    assert_eq!(about.len(), 11);
    assert_eq!(exit_code(&all), 0);
}

#[test]
fn each_thing_that_is_wrong_is_found_alone_with_what_to_do() {
    type Break = fn(&mut Cluster);
    let cases: [(Break, &str); 19] = [
        (|c| c.definitions[0].1 = Seen::Missing, "is not defined -> kubectl apply"),
        (|c| c.definitions[0].1 = there(json!({})), "is not established"),
        (
            |c| c.policies[0].1 = Seen::Missing,
            "policies: ValidatingAdmissionPolicy tensorlane-peer-status is missing",
        ),
        (
            |c| {
                if let Seen::There(binding) = &mut c.policies[1].1 {
                    binding["spec"]["validationActions"] = json!(["Audit"]);
                }
            },
            "policies: validationActions of ValidatingAdmissionPolicyBinding tensorlane-peer-status is [\"Audit\"]",
        ),
        (|c| c.operator = Seen::Missing, "no Deployment of the operator"),
        (
            |c| c.operator = there(json!({"metadata": {"name": "o"}, "spec": {"replicas": 0}})),
            "scale deploy/o",
        ),
        (
            |c| c.operator = there(json!({"spec": {"replicas": 2}, "status": {"readyReplicas": 1}})),
            "1 of 2 replicas",
        ),
        (|c| c.lease = Seen::Missing, "leader: no replica leads"),
        (|c| c.webhook = Seen::Missing, "webhook: there is no"),
        (
            |c| {
                c.webhook = there(
                    json!({"webhooks": [{"name": "x", "clientConfig": {"service": {"namespace": "tensorlane-system"}}}]}),
                );
            },
            "x has no caBundle",
        ),
        (
            |c| {
                let client = json!({"caBundle": "TFM=", "service": {"namespace": "tensorlane-system", "path": "/mutate"}});
                c.webhook = there(json!({"webhooks": [{"name": "x", "clientConfig": client}]}));
            },
            "x calls a path without its secret part",
        ),
        (|c| c.endpoints = there(json!({"items": []})), "no ready replica"),
        (
            |c| c.endpoints = there(json!({"items": [{"endpoints": [{"conditions": {"ready": false}}]}]})),
            "no ready replica",
        ),
        (
            |c| {
                one(c).object =
                    there(json!({"metadata": {"name": "ml", "labels": {"tensorlane.dev/inject": "true"}}}));
            },
            "its pods are refused -> kubectl label namespace ml",
        ),
        (
            |c| one(c).exchanges = there(json!({"items": [{"metadata": {"name": "x", "generation": 1}}]})),
            "has not looked at x",
        ),
        (
            |c| {
                one(c).exchanges = there(
                    json!({"items": [{"metadata": {"name": "x"}, "status": {"conditions": [
                        {"type": "Accepted", "status": "False", "reason": "PolicyMissing", "message": "apply it"},
                    ]}}]}),
                );
            },
            "x is not accepted: PolicyMissing -> apply it",
        ),
        (|c| one(c).binding = Seen::Missing, "RoleBinding tensorlane-peer is missing"),
        (|c| one(c).access[0].1 = there(json!({"status": {"allowed": false}})), "may not list tensorpeers"),
        (
            |c| {
                one(c).peers = there(
                    json!({"items": [{"metadata": {"name": "b"}, "spec": {"node": "n1"}, "status": {"conditions": [
                        {"type": "Ready", "status": "False", "reason": "NodeLost", "message": "it does not answer"},
                    ]}}]}),
                );
            },
            "b: it does not answer (NodeLost) -> kubectl describe node n1",
        ),
    ];
    for (break_it, part) in cases {
        let mut cluster = well();
        break_it(&mut cluster);
        let told = only_problem(&cluster);
        assert!(told.contains(part), "{part} is not in {told}");
    }
}

#[test]
fn a_key_of_two_peers_is_told_with_both() {
    let mut cluster = well();
    let peer = |name: &str| json!({"metadata": {"name": name}, "status": {"fingerprints": ["sha256:1"], "conditions": [{"type": "Ready", "status": "True"}]}});
    one(&mut cluster).peers = there(json!({"items": [peer("a"), peer("b")]}));
    assert!(only_problem(&cluster).contains("a and b claim the same key"));
}

#[test]
fn what_may_not_be_read_is_unknown_and_not_wrong() {
    let mut cluster = well();
    cluster.webhook = Seen::Hidden("forbidden".to_owned());
    one(&mut cluster).access[0].1 = Seen::Hidden("forbidden".to_owned());
    let all = findings(&cluster);
    assert_eq!(all.iter().filter(|one| one.level == Level::Unknown).count(), 2, "{all:#?}");
    assert_eq!(exit_code(&all), 3);
}

#[test]
fn a_namespace_without_exchanges_lacks_nothing() {
    let mut cluster = well();
    let empty = || there(json!({"items": []}));
    let access = vec![("x", there(json!({})))];
    *one(&mut cluster) =
        Namespace { exchanges: empty(), peers: empty(), binding: Seen::Missing, access, ..ml() };
    assert_eq!(exit_code(&findings(&cluster)), 0);
}

#[test]
fn every_namespace_is_told_apart_and_the_installation_is_told_once() {
    let mut cluster = well();
    let broken = Namespace { name: "rl".to_owned(), binding: Seen::Missing, ..ml() };
    cluster.namespaces = Namespaces::All(vec![ml(), broken]);
    let all = findings(&cluster);
    assert_eq!(all.iter().filter(|one| one.about == "operator").count(), 1);
    let of =
        |namespace: &'static str| all.iter().filter(move |one| one.namespace.as_deref() == Some(namespace));
    assert!(of("ml").count() == 5 && of("ml").all(|one| one.level == Level::Ok), "{all:#?}");
    let wrong: Vec<_> = of("rl").filter(|one| one.level == Level::Problem).map(|one| one.about).collect();
    assert_eq!(wrong, ["permissions"], "{all:#?}");

    cluster.namespaces = Namespaces::All(Vec::new());
    assert_eq!(exit_code(&findings(&cluster)), 0);
    cluster.namespaces = Namespaces::Hidden("forbidden".to_owned());
    assert_eq!(exit_code(&findings(&cluster)), 3);
}

/// The exchange shares memory by a claim, and this DaemonSet is there, with so many of its pods ready on two nodes.
fn sharing(daemon: Option<(&str, u32)>) -> Cluster {
    let mut cluster = well();
    if let Seen::There(list) = &mut one(&mut cluster).exchanges {
        list["items"][0]["spec"] = json!({"sameNode": "claim"});
    }
    if let Some((listed, ready)) = daemon {
        cluster.node_daemon = there(json!({
            "spec": {"template": {"spec": {"containers": [{"args": ["--bytes=1Mi", listed]}]}}},
            "status": {"desiredNumberScheduled": 2, "numberReady": ready},
        }));
    }
    cluster
}

#[test]
fn an_exchange_that_shares_memory_without_a_file_system_of_its_own_is_told() {
    for missing in [None, Some(("ml/other", 2))] {
        let all = findings(&sharing(missing));
        let told = all.iter().find(|one| one.about == "sameNode").unwrap();
        assert_eq!((told.level, exit_code(&all)), (Level::Note, 0));
        assert!(told.found.contains("can fill /run of the node"), "{told:?}");
        assert!(told.remedy.as_ref().unwrap().contains("{namespace: ml, name: default}"), "{told:?}");
    }
    let all = findings(&sharing(Some(("ml/default", 2))));
    assert!(all.iter().any(|one| one.about == "sameNode" && one.level == Level::Ok), "{all:#?}");
    assert!(only_problem(&sharing(Some(("ml/default", 1)))).contains("on 1 of 2 nodes -> kubectl -n"));
    let mut hidden = sharing(None);
    hidden.node_daemon = Seen::Hidden("forbidden".to_owned());
    assert_eq!(exit_code(&findings(&hidden)), 3);
}

#[test]
fn without_the_role_no_namespace_is_told_that_its_pods_may_find_their_peers() {
    let mut cluster = well();
    cluster.role = Seen::Missing;
    assert!(only_problem(&cluster).contains("permissions: ClusterRole tensorlane-peer is missing"));
    assert_eq!(findings(&cluster).iter().filter(|one| one.about == "permissions").count(), 1);
}

#[test]
fn a_label_that_asks_for_daemons_of_the_nodes_networks_is_told_before_a_node_does_not_come_up() {
    let daemon = |name: &str, host: bool, said: Value| {
        json!({"metadata": {"name": name}, "spec": {"template": {
            "metadata": {"annotations": said}, "spec": {"hostNetwork": host, "containers": []},
        }}})
    };
    let mut cluster = well();
    let items = [
        daemon("cni", true, json!({})),
        daemon("exporter", false, json!({})),
        daemon("proxy", true, json!({"tensorlane.dev/inject": "disabled"})),
    ];
    one(&mut cluster).daemons = there(json!({"items": items}));
    let text = crate::findings::text(&findings(&cluster));
    assert!(text.contains("whose pods are refused: cni\n"), "{text}");
    one(&mut cluster).object = there(json!({"metadata": {"name": "ml"}}));
    let text = crate::findings::text(&findings(&cluster));
    assert!(!text.contains("cni"), "{text}");
}
