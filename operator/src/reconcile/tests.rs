//! Tests of the actions in a namespace, from scenes as plain data.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tensorlane_proto::crd::{TensorExchange, TensorPeer};

use super::*;
use crate::certs::SecretPaths;
use crate::manifests::{Installation, PEER_POLICY, gap};

const NOW: &str = "2026-01-01T00:00:00Z";

fn pod(name: &str, uid: &str) -> PodFacts {
    PodFacts {
        name: name.to_owned(),
        uid: uid.to_owned(),
        exchange: "default".to_owned(),
        node: Some("n1".to_owned()),
        ips: vec!["10.0.0.7".to_owned()],
        sidecar_ready: true,
        ..PodFacts::default()
    }
}

fn exchange(name: &str) -> TensorExchange {
    serde_json::from_value(json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange",
        "metadata": {"name": name, "namespace": "ml", "generation": 1, "uid": format!("uid-of-{name}")}, "spec": {},
    }))
    .unwrap()
}

/// A peer as its pod's, which has said how it is reached.
fn peer(of: &PodFacts) -> TensorPeer {
    serde_json::from_value(json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer",
        "metadata": {
            "name": of.name, "namespace": "ml", "generation": 1,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": of.name, "uid": of.uid}],
        },
        "spec": {"exchange": of.exchange, "podUID": of.uid, "node": of.node, "podIPs": of.ips},
        "status": {"incarnation": "0".repeat(32), "fingerprints": [format!("sha256:{}", "0".repeat(64))]},
    }))
    .unwrap()
}

fn scene(exchanges: Vec<TensorExchange>, pods: Vec<PodFacts>, peers: Vec<TensorPeer>) -> Scene {
    Scene { namespace: "ml".to_owned(), exchanges, pods, peers, gap: None }
}

/// The scene after its actions were done, as an API server would do them.
fn done(mut scene: Scene, actions: &[Action]) -> Scene {
    for action in actions {
        match action.clone() {
            Action::MakeDefaultExchange => scene.exchanges.push(exchange("default")),
            Action::ApplyRoleBinding { .. } | Action::ReportExchange { .. } => {}
            Action::ApplyPeer { name, spec, forgets } => {
                let pod = scene.pods.iter().find(|pod| pod.name == name).unwrap();
                let old = scene.peers.iter().position(|peer| peer.metadata.name == Some(name.clone()));
                let status = old.map(|at| scene.peers.remove(at)).and_then(|peer| peer.status);
                let mut new = peer(pod);
                new.spec = spec;
                new.status = status.filter(|_| forgets.is_none());
                scene.peers.push(new);
            }
            Action::SetPeerCondition { name, condition } => {
                let peer =
                    scene.peers.iter_mut().find(|peer| peer.metadata.name == Some(name.clone())).unwrap();
                let status = peer.status.get_or_insert_default();
                status.conditions.retain(|old| old.type_ != condition.type_);
                status.conditions.push(condition);
            }
            Action::SetExchangeStatus { name, status } => {
                let found = scene.exchanges.iter_mut().find(|one| one.metadata.name == Some(name.clone()));
                found.unwrap().status = Some(status);
            }
        }
    }
    scene
}

/// The scene when nothing is left to do; the role binding is applied at every look, because it is not watched.
fn settled(mut scene: Scene) -> Scene {
    for _ in 0..5 {
        let actions = build(&scene, NOW);
        if actions.iter().all(|action| matches!(action, Action::ApplyRoleBinding { .. })) {
            return scene;
        }
        scene = done(scene, &actions);
    }
    panic!("it never settles: {:?}", build(&scene, NOW));
}

fn condition(status: Option<&Value>, kind: &str) -> (String, String) {
    let all = status.unwrap()["conditions"].as_array().unwrap().clone();
    let one = all.iter().find(|condition| condition["type"] == kind).unwrap();
    (one["status"].as_str().unwrap().to_owned(), one["reason"].as_str().unwrap().to_owned())
}

fn ready(scene: &Scene, name: &str) -> (String, String) {
    let peer = scene.peers.iter().find(|peer| peer.metadata.name.as_deref() == Some(name)).unwrap();
    condition(Some(&serde_json::to_value(&peer.status).unwrap()), "Ready")
}

#[test]
fn the_first_pod_gets_an_exchange_a_role_binding_and_a_peer() {
    let actions = build(&scene(vec![], vec![pod("a", "1")], vec![]), NOW);
    let Action::ApplyRoleBinding { owners } = &actions[1] else { panic!("{actions:?}") };
    assert_eq!((&actions[0], owners.len()), (&Action::MakeDefaultExchange, 1));
    let Action::ApplyPeer { name, spec, forgets: None } = &actions[2] else { panic!("{actions:?}") };
    assert_eq!((name.as_str(), spec.pod_uid.as_str(), spec.node.as_deref()), ("a", "1", Some("n1")));
}

#[test]
fn the_ips_of_a_pod_stand_in_its_peer_once_kubernetes_has_them_and_others_when_it_has_others() {
    let with =
        |ips: &[&str]| PodFacts { ips: ips.iter().map(|&ip| ip.to_owned()).collect(), ..pod("a", "1") };
    let written = |seen: &PodFacts, now: &PodFacts| {
        let actions = build(&scene(vec![exchange("default")], vec![now.clone()], vec![peer(seen)]), NOW);
        actions.into_iter().find_map(|action| match action {
            Action::ApplyPeer { spec, forgets, .. } => Some((spec.pod_ips.unwrap(), forgets)),
            _ => None,
        })
    };
    let ips = vec!["10.0.0.7".to_owned(), "fd00::7".to_owned()];
    assert_eq!(
        written(&with(&[]), &with(&["10.0.0.7", "fd00::7"])),
        Some((ips, None)),
        "nothing is forgotten"
    );
    assert_eq!(
        written(&with(&["10.0.0.7"]), &with(&["10.0.0.8"])),
        Some((vec!["10.0.0.8".to_owned()], None))
    );
    assert_eq!(written(&with(&["10.0.0.7"]), &with(&["10.0.0.7"])), None);
    let mut earlier = peer(&with(&[]));
    earlier.spec.pod_ips = None;
    let actions = build(&scene(vec![exchange("default")], vec![with(&[])], vec![earlier]), NOW);
    assert!(
        actions.iter().any(|action| matches!(action, Action::ApplyPeer { .. })),
        "an earlier operator wrote it"
    );
}

#[test]
fn what_kubernetes_says_of_a_pods_ips_is_taken() {
    let said = json!({
        "metadata": {"name": "a", "uid": "1", "labels": {"tensorlane.dev/injected": "true"}},
        "status": {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}]},
    });
    let pod: Pod = serde_json::from_value(said).unwrap();
    assert_eq!(PodFacts::of(&pod).unwrap().ips, ["10.0.0.7", "fd00::7"]);
}

#[test]
fn a_namespace_without_pods_and_exchanges_is_left_alone() {
    assert_eq!(build(&scene(vec![], vec![], vec![]), NOW), []);
}

#[test]
fn every_scene_settles_and_counts_its_peers() {
    let (a, b) = (pod("a", "1"), PodFacts { sidecar_ready: false, ..pod("b", "2") });
    let settled = settled(scene(vec![], vec![a.clone(), b.clone()], vec![peer(&a), peer(&b)]));
    assert_eq!(ready(&settled, "a"), ("True".to_owned(), "Published".to_owned()));
    assert_eq!(ready(&settled, "b"), ("False".to_owned(), "SidecarNotReady".to_owned()));
    let status = settled.exchanges[0].status.clone().unwrap();
    assert_eq!((status.peers, status.ready_peers, status.observed_generation), (Some(2), Some(1), Some(1)));
    let status = serde_json::to_value(status).unwrap();
    assert_eq!(condition(Some(&status), "Accepted").1, "Accepted");
    assert_eq!(condition(Some(&status), "Ready").1, "PeersNotReady");
}

#[test]
fn a_peer_that_has_published_is_not_ready_before_its_pod_has_an_ip() {
    let early = PodFacts { ips: vec![], ..pod("a", "1") };
    let before = settled(scene(vec![], vec![early.clone()], vec![peer(&early)]));
    assert_eq!(ready(&before, "a"), ("False".to_owned(), "NoPodIP".to_owned()));
    let after = settled(Scene { pods: vec![pod("a", "1")], ..before });
    assert_eq!(ready(&after, "a"), ("True".to_owned(), "Published".to_owned()));
}

#[test]
fn without_the_policy_nobody_gets_a_role_binding_and_the_exchange_says_why() {
    let unguarded = Scene {
        gap: gap(None, None, &Installation::default()),
        ..scene(vec![exchange("default")], vec![pod("a", "1")], vec![])
    };
    let binds = |action: &Action| matches!(action, Action::ApplyRoleBinding { .. });
    assert!(!build(&unguarded, NOW).iter().any(binds));
    let status = settled(unguarded).exchanges[0].status.clone();
    let (status, reason) = condition(Some(&serde_json::to_value(status).unwrap()), "Accepted");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "PolicyMissing"));
}

#[test]
fn a_weakened_policy_is_told_on_every_exchange_and_gives_no_further_permission() {
    let all = crate::manifests::objects(&Installation::default());
    let guards: Vec<&Value> = all.iter().filter(|object| object["metadata"]["name"] == PEER_POLICY).collect();
    let mut binding = guards[1].clone();
    binding["spec"]["validationActions"] = json!(["Audit"]);
    let weak = gap(Some(guards[0]), Some(&binding), &Installation::default());
    let scene = scene(vec![exchange("default"), exchange("big")], vec![pod("a", "1")], vec![]);
    let actions = build(&Scene { gap: weak, ..scene }, NOW);
    let told: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::ReportExchange { name, condition, .. } => {
                Some((name.as_str(), &condition.reason, &condition.message))
            }
            _ => None,
        })
        .collect();
    assert_eq!(told.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), ["default", "big"]);
    assert!(
        told.iter().all(|(_, reason, message)| *reason == "PolicyChanged" && message.contains("[\"Audit\"]"))
    );
    assert!(!actions.iter().any(|action| matches!(action, Action::ApplyRoleBinding { .. })));
}

#[test]
fn the_permission_belongs_to_every_exchange_of_the_namespace_and_none_controls_it() {
    let owners = |exchanges: Vec<TensorExchange>| {
        let actions = build(&scene(exchanges, vec![pod("a", "1")], vec![]), NOW);
        let of = |action: &Action| match action {
            Action::ApplyRoleBinding { owners } => Some(owners.clone()),
            _ => None,
        };
        actions.iter().find_map(of).unwrap()
    };
    let both = owners(vec![exchange("default"), exchange("big")]);
    let named: Vec<_> =
        both.iter().map(|one| (one.kind.as_str(), one.name.as_str(), one.uid.as_str())).collect();
    assert_eq!(
        named,
        [("TensorExchange", "big", "uid-of-big"), ("TensorExchange", "default", "uid-of-default")]
    );
    assert!(both.iter().all(|one| one.controller.is_none() && one.block_owner_deletion.is_none()));
    assert_eq!(both, owners(vec![exchange("big"), exchange("default")]), "in whatever order they are seen");
    let last = owners(vec![exchange("big")]);
    assert_eq!(last.len(), 1);
}

#[test]
fn pods_whose_last_exchange_was_deleted_keep_their_permission_until_they_have_gone_themselves() {
    let named = |name: &str, uid: &str| PodFacts { exchange: "big".to_owned(), ..pod(name, uid) };
    let owners = |exchanges: Vec<TensorExchange>, pods: Vec<PodFacts>| {
        let actions = build(&scene(exchanges, pods, vec![]), NOW);
        let of = |action: &Action| match action {
            Action::ApplyRoleBinding { owners } => Some(owners.clone()),
            _ => None,
        };
        actions.iter().find_map(of)
    };
    let (a, b) = (named("a", "1"), PodFacts { ending: true, ..named("b", "2") });
    let ended = PodFacts { ended: true, ..named("job", "3") };
    let kept = owners(vec![], vec![b.clone(), ended.clone(), a.clone()]).unwrap();
    let said: Vec<_> = kept
        .iter()
        .map(|one| (one.api_version.as_str(), one.kind.as_str(), one.name.as_str(), one.uid.as_str()))
        .collect();
    assert_eq!(said, [("v1", "Pod", "a", "1"), ("v1", "Pod", "b", "2")], "those that run, in any order");
    assert!(kept.iter().all(|one| one.controller.is_none() && one.block_owner_deletion.is_none()));
    let again = owners(vec![exchange("big")], vec![a]).unwrap();
    assert!(again.iter().all(|one| one.kind == "TensorExchange"), "it comes again: {again:?}");
    assert_eq!(owners(vec![], vec![ended]), None, "whoever has ended asks for nothing");
    let many = (0..2000).map(|number| named(&format!("p{number}"), &format!("{number:04}"))).collect();
    assert_eq!(owners(vec![], many).unwrap().len(), 500, "what it may take is bounded");
}

#[test]
fn what_this_release_cannot_do_is_said_once_and_taken_back_once_it_is_corrected() {
    let mut wrong = exchange("default");
    wrong.spec.transports = Some(vec![tensorlane_proto::crd::TransportKind::Quic]);
    let reports = |actions: &[Action]| {
        let of = |action: &Action| match action {
            Action::ReportExchange { condition, .. } => {
                Some((condition.reason.clone(), condition.message.clone()))
            }
            _ => None,
        };
        actions.iter().filter_map(of).collect::<Vec<_>>()
    };
    let before = scene(vec![wrong], vec![], vec![]);
    let told = reports(&build(&before, NOW));
    assert_eq!(told.len(), 1);
    assert!(told[0].0 == "Unsupported" && told[0].1.contains("transports: [quic]"), "{told:?}");
    let mut after = settled(before);
    let status = serde_json::to_value(&after.exchanges[0].status).unwrap();
    assert_eq!(condition(Some(&status), "Accepted"), ("False".to_owned(), "Unsupported".to_owned()));
    assert!(reports(&build(&after, NOW)).is_empty(), "what is said already is no news");
    after.exchanges[0].spec.transports = None;
    assert_eq!(reports(&build(&after, NOW)), [("Accepted".to_owned(), "pods may join".to_owned())]);
}

#[test]
fn a_new_exchange_that_is_accepted_is_no_news() {
    let actions = build(&scene(vec![exchange("default")], vec![], vec![]), NOW);
    let reported = actions.iter().any(|action| matches!(action, Action::ReportExchange { .. }));
    assert!(!reported, "{actions:?}");
}

#[test]
fn a_pod_that_comes_again_under_its_name_begins_anew() {
    let (old, new) = (pod("a-0", "1"), pod("a-0", "2"));
    let mut former = peer(&old);
    former.metadata.resource_version = Some("7".to_owned());
    let scene = scene(vec![exchange("default")], vec![new], vec![former]);
    let actions = build(&scene, NOW);
    let Action::ApplyPeer { forgets, spec, .. } = &actions[1] else { panic!("{actions:?}") };
    assert_eq!((spec.pod_uid.as_str(), forgets.as_deref()), ("2", Some("7")));
    let says = actions.iter().any(|action| matches!(action, Action::SetPeerCondition { .. }));
    assert!(!says, "what the former pod said is no news of this one");
    assert_eq!(ready(&settled(scene), "a-0").1, "NotPublished");
}

#[test]
fn a_lost_node_makes_its_peers_unready_and_nothing_else() {
    let (a, b) = (pod("a", "1"), pod("b", "2"));
    let before =
        settled(scene(vec![exchange("default")], vec![a.clone(), b.clone()], vec![peer(&a), peer(&b)]));
    let lost = Scene { pods: vec![PodFacts { node_lost: true, ..a }, b], ..before };
    let after = settled(lost);
    assert_eq!(ready(&after, "a").1, "NodeLost");
    assert_eq!(ready(&after, "b").1, "Published");
}

#[test]
fn a_pod_that_has_ended_counts_no_more_and_gets_no_new_peer() {
    let ended = PodFacts { ended: true, ..pod("job", "1") };
    let actions = build(&scene(vec![exchange("default")], vec![ended.clone()], vec![]), NOW);
    assert!(!actions.iter().any(|action| matches!(action, Action::ApplyPeer { .. })), "{actions:?}");
    let settled = settled(scene(vec![exchange("default")], vec![ended.clone()], vec![peer(&ended)]));
    assert_eq!(settled.exchanges[0].status.as_ref().unwrap().peers, Some(0));
    assert_eq!(ready(&settled, "job").1, "PodEnded");
}

#[test]
fn the_default_exchange_is_not_made_again_by_pods_that_go_away() {
    let makes = |pods| build(&scene(vec![], pods, vec![]), NOW).contains(&Action::MakeDefaultExchange);
    let going = PodFacts { ending: true, ..pod("a", "1") };
    assert!(!makes(vec![going.clone()]));
    assert!(makes(vec![going, pod("b", "2")]));
}

#[test]
fn a_peer_that_nothing_owns_and_whose_pod_is_gone_is_not_ready() {
    let gone = pod("a", "1");
    let mut orphan = peer(&gone);
    let owned = settled(scene(vec![], vec![], vec![orphan.clone()]));
    assert!(owned.peers[0].status.as_ref().unwrap().conditions.is_empty(), "a list of pods may be late");
    orphan.metadata.owner_references = None;
    let after = settled(scene(vec![], vec![], vec![orphan.clone()]));
    assert_eq!(ready(&after, "a").1, "PodGone");
    let lives = settled(scene(vec![exchange("default")], vec![gone], vec![orphan]));
    assert_eq!(ready(&lives, "a").1, "Published");
}

#[test]
fn the_time_of_a_condition_changes_with_its_status_only() {
    let a = pod("a", "1");
    let before = settled(scene(vec![exchange("default")], vec![a.clone()], vec![peer(&a)]));
    let ending = Scene { pods: vec![PodFacts { ending: true, ..a.clone() }], ..before.clone() };
    let time =
        |scene: &Scene| scene.peers[0].status.as_ref().unwrap().conditions[0].last_transition_time.clone();
    let later = done(ending.clone(), &build(&ending, "2026-01-01T01:00:00Z"));
    assert_ne!(time(&later), time(&before));
    let lost = Scene { pods: vec![PodFacts { node_lost: true, ..a }], ..later.clone() };
    let last = done(lost.clone(), &build(&lost, "2026-01-01T02:00:00Z"));
    assert_eq!(time(&last), time(&later), "another reason, the same status");
}

#[test]
fn a_node_is_lost_where_the_pod_is_unready_and_its_containers_are_not() {
    let facts = |ready: &str, containers: &str, gates: Value| {
        let pod: Pod = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "uid": "1", "labels": {"tensorlane.dev/injected": "true"}},
            "spec": {"containers": [], "readinessGates": gates},
            "status": {"conditions": [
                {"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": containers},
            ]},
        }))
        .unwrap();
        PodFacts::of(&pod).unwrap()
    };
    assert!(facts("False", "True", json!([])).node_lost);
    assert!(!facts("True", "True", json!([])).node_lost);
    assert!(!facts("False", "False", json!([])).node_lost);
    assert!(
        !facts("False", "True", json!([{"conditionType": "example.org/gate"}])).node_lost,
        "a gate is shut"
    );
}

#[test]
fn a_pod_without_our_label_is_none_of_ours() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "1"}});
    assert_eq!(PodFacts::of(&serde_json::from_value(pod).unwrap()), None);
}

/// Such a pod says by its labels alone that it belongs there, and the webhook was never shown it.
#[test]
fn a_pod_that_is_no_member_of_its_exchange_gets_no_peer_and_is_not_counted() {
    let of = |name: &str, uid: &str, account: &str| PodFacts {
        exchange: "training".to_owned(),
        account: account.to_owned(),
        ..pod(name, uid)
    };
    let mut training = exchange("training");
    training.spec = serde_json::from_value(json!({"members": {"serviceAccounts": ["trainer"]}})).unwrap();
    let pods = vec![of("in", "1", "trainer"), of("out", "2", "default")];
    let scene = Scene { namespace: "ml".to_owned(), exchanges: vec![training], pods, ..Scene::default() };
    let actions = build(&scene, NOW);
    let made = |name: &str| {
        let is_it = |action: &&Action| matches!(action, Action::ApplyPeer { name: made, .. } if made == name);
        actions.iter().any(|action| is_it(&action))
    };
    assert_eq!((made("in"), made("out")), (true, false), "{actions:?}");
    let counted = actions.iter().find_map(|action| match action {
        Action::SetExchangeStatus { status, .. } => status.peers,
        _ => None,
    });
    assert_eq!(counted, Some(1));
    // Members that are taken away are those of pods to come; whoever comes from another exchange is one of those.
    let peer_in = |exchange: &str| -> TensorPeer {
        serde_json::from_value(json!({
            "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer", "metadata": {"name": "out", "namespace": "ml"},
            "spec": {"exchange": exchange, "podUID": "2"},
        }))
        .unwrap()
    };
    let kept = |exchange: &str| {
        let scene = Scene { peers: vec![peer_in(exchange)], ..scene.clone() };
        build(&scene, NOW)
            .iter()
            .any(|action| matches!(action, Action::ApplyPeer { name, .. } if name == "out"))
    };
    assert!(kept("training") && !kept("default"));
}

#[test]
fn bundle_and_path_go_to_every_entry_and_gpu_namespaces_get_one_of_their_own() {
    let plain = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let path = SecretPaths::default().after(0, None).unwrap().announced(0).unwrap();
    let known = |bundle: Option<&str>, gpus: Option<&[&str]>| Webhooks {
        bundle: bundle.map(str::to_owned),
        path: Some(path.clone()),
        gpu_namespaces: gpus.map(|all| all.iter().map(|name| (*name).to_owned()).collect()),
    };
    let clients = |webhooks: &Webhooks| webhooks.clients("tensorlane", plain);
    let service = json!({"path": path.as_str()});
    let own = |name: &str| json!({"name": name, "clientConfig": {"caBundle": "CA", "service": service}});
    assert_eq!(
        clients(&known(Some("CA"), None)).unwrap()["webhooks"],
        json!([own("pods.tensorlane.dev"), own("namespaces.tensorlane.dev")])
    );
    let of_others = &clients(&known(None, Some(&["ml"]))).unwrap()["webhooks"][0]["clientConfig"];
    assert_eq!(*of_others, json!({"service": service}), "somebody else sees to the bundle");
    let unknown = Webhooks { path: None, ..known(Some("CA"), Some(&["ml"])) };
    let gpus = |webhooks: &Webhooks| webhooks.gpus("tensorlane", "system", plain);
    assert_eq!(
        (clients(&unknown), gpus(&unknown)),
        (None, None),
        "no path, no bundle: nobody calls the plain path"
    );
    assert_eq!(gpus(&known(Some("CA"), None)), None, "a new leader takes nothing away before it knows");
    assert_eq!(gpus(&known(Some("CA"), Some(&[]))).unwrap()["webhooks"], json!([]));
    let entries = gpus(&known(None, Some(&["ml"]))).unwrap()["webhooks"].clone();
    assert_eq!(entries.as_array().unwrap().len(), 1);
    assert_eq!(entries[0]["name"], "gpus.tensorlane.dev");
    assert_eq!(entries[0]["clientConfig"]["service"]["path"], path.as_str());
    assert!(entries[0]["clientConfig"].get("caBundle").is_none());
    assert_eq!(
        gpus(&known(Some("CA"), Some(&["ml"]))).unwrap()["webhooks"][0]["clientConfig"]["caBundle"],
        "CA"
    );
}
