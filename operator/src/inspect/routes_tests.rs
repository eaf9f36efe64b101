use serde_json::json;

use super::*;

fn peer(name: &str, transports: &[&str]) -> TensorPeer {
    let offered: Vec<_> =
        transports.iter().map(|word| json!({"transport": word, "addresses": ["10.0.0.1:9421"]})).collect();
    serde_json::from_value(json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer", "metadata": {"name": name},
        "spec": {"exchange": "default", "podUID": "u"},
        "status": {
            "incarnation": format!("{:032x}", 7),
            "offer": {"versionMin": 1, "versionMax": 1, "transports": offered},
        },
    }))
    .unwrap()
}

fn spec(spec: Value) -> ExchangeSpec {
    serde_json::from_value(spec).unwrap()
}

/// The routes between peers of one exchange whose pods require nothing.
fn pairs(peers: &[TensorPeer], spec: ExchangeSpec) -> Vec<PairRoute> {
    between(peers, spec, &Requires::default())
}

fn between(peers: &[TensorPeer], spec: ExchangeSpec, requires: &Requires) -> Vec<PairRoute> {
    matrices(&[TensorExchange::new("default", spec)], peers, requires).remove(0).pairs
}

fn shown(pairs: &[PairRoute]) -> Vec<String> {
    let one = |pair: &PairRoute| {
        format!("{}-{} {} ({})", pair.a, pair.b, pair.transport.unwrap_or("none"), pair.refusals.join(", "))
    };
    pairs.iter().map(one).collect()
}

#[test]
fn every_pair_has_its_way_and_says_why_not_a_better_one() {
    let peers = [peer("b", &["tcp"]), peer("a", &["tcp"]), peer("c", &["quic"])];
    let all = pairs(&peers, ExchangeSpec::default());
    let told = shown(&all);
    assert_eq!(told[0], "a-b tcp (not shm: no_socket_dir)");
    assert!(told[1].starts_with("a-c none") && told[1].contains("not tcp: not_offered"), "{told:?}");
    assert_eq!(told.len(), 3);
}

#[test]
fn what_an_exchange_prefers_is_taken_where_both_can_be_had() {
    let both = [peer("a", &["tcp", "quic"]), peer("b", &["tcp", "quic"])];
    let taken = |peers: &[TensorPeer], prefer: &str| {
        pairs(peers, spec(json!({"prefer": prefer}))).remove(0).transport.unwrap_or("none")
    };
    assert_eq!(["measured", "tcp", "quic"].map(|word| taken(&both, word)), ["tcp", "tcp", "quic"]);
    // The order of the transports says nothing.
    let listed = spec(json!({"transports": ["quic", "tcp"]}));
    assert_eq!(pairs(&both, listed).remove(0).transport, Some("tcp"));
    assert_eq!(taken(&[peer("a", &["tcp", "quic"]), peer("b", &["tcp"])], "quic"), "tcp");
}

#[test]
fn an_exchange_that_requires_or_forbids_is_heard() {
    let peers = [peer("a", &["tcp"]), peer("b", &["tcp"])];
    let same_node = shown(&pairs(&peers, spec(json!({"require": ["same_node"]}))));
    assert!(
        same_node[0].contains("none") && same_node[0].contains("not tcp: not_same_node"),
        "{same_node:?}"
    );
    let no_tcp = shown(&pairs(&peers, spec(json!({"transports": ["quic"]}))));
    assert!(no_tcp[0].contains("not tcp: policy"), "{no_tcp:?}");
    let tcp = shown(&pairs(&peers, spec(json!({"transports": ["tcp"]}))));
    assert_eq!(tcp, ["a-b tcp (not shm: policy)"], "the exchange itself leaves it out");
    let encrypted = shown(&pairs(&peers, spec(json!({"require": ["encrypted"], "sameNode": "claim"}))));
    assert_eq!(encrypted, ["a-b tcp (not shm: not_offered)"]);
}

#[test]
fn what_a_pod_requires_holds_for_every_pair_of_it() {
    let peers = [peer("a", &["tcp"]), peer("b", &["tcp"]), peer("c", &["tcp"])];
    let of = BTreeMap::from([((String::new(), "b".to_owned()), Require::SAME_NODE)]);
    let requires = Requires { of, wrong: Vec::new() };
    let told = shown(&between(&peers, ExchangeSpec::default(), &requires));
    assert!(told[0].starts_with("a-b none") && told[0].contains("not tcp: not_same_node"), "{told:?}");
    assert!(told[1].starts_with("a-c tcp") && told[2].starts_with("b-c none"), "{told:?}");
}

#[test]
fn a_pod_that_requires_encryption_has_it_where_its_exchange_lets_lanes_be_plain() {
    let peers = [peer("a", &["tcp"]), peer("b", &["tcp"])];
    let plain = || spec(json!({"transports": ["tcp"], "security": {"encryption": "none"}}));
    let of = BTreeMap::from([((String::new(), "b".to_owned()), Require::ENCRYPTED)]);
    let told = shown(&between(&peers, plain(), &Requires { of, wrong: Vec::new() }));
    assert!(told[0].starts_with("a-b tcp"), "{told:?}");
}

#[test]
fn what_pods_require_is_read_as_the_planner_reads_it() {
    let pod = |name: &str, said: &str| PodSaid {
        namespace: "ml".to_owned(),
        name: name.to_owned(),
        annotations: BTreeMap::from([("tensorlane.dev/require".to_owned(), said.to_owned())]),
    };
    let silent = PodSaid { name: "silent".to_owned(), ..PodSaid::default() };
    let pods = vec![pod("a", "none"), pod("b", "zero_copy, encrypted"), pod("c", "speed"), silent];
    let Requires { of, wrong } = requires(pods);
    let both = Require::ZERO_COPY.and(Require::ENCRYPTED);
    assert_eq!(of, BTreeMap::from([(("ml".to_owned(), "b".to_owned()), both)]));
    assert!(wrong.len() == 1 && wrong[0].starts_with("pod ml/c: tensorlane.dev/require: "), "{wrong:?}");
}

#[test]
fn exchanges_of_one_name_in_two_namespaces_are_two() {
    let in_namespace = |namespace: &str, name: &str| {
        let mut peer = peer(name, &["tcp"]);
        peer.metadata.namespace = Some(namespace.to_owned());
        peer
    };
    let exchange = |namespace: &str| {
        let mut exchange = TensorExchange::new("default", ExchangeSpec::default());
        exchange.metadata.namespace = Some(namespace.to_owned());
        exchange
    };
    let peers =
        [in_namespace("rl", "a"), in_namespace("ml", "a"), in_namespace("ml", "b"), in_namespace("rl", "c")];
    // What the pod a of one namespace requires does not hold for the other one.
    let of = BTreeMap::from([(("rl".to_owned(), "a".to_owned()), Require::SAME_NODE)]);
    let all = matrices(&[exchange("rl"), exchange("ml")], &peers, &Requires { of, wrong: Vec::new() });
    assert_eq!((all[0].namespace.as_str(), all[1].namespace.as_str()), ("ml", "rl"));
    assert!(shown(&all[0].pairs)[0].starts_with("a-b tcp"), "{all:?}");
    assert!(shown(&all[1].pairs)[0].starts_with("a-c none"), "{all:?}");
    let rows = json(&all);
    let row = &rows[1];
    assert_eq!(
        (&row["namespace"], &row["exchange"], &row["a"], &row["b"]),
        (&json!("rl"), &json!("default"), &json!("a"), &json!("c"))
    );
}

#[test]
fn a_peer_that_has_not_published_is_named() {
    let mut silent = peer("b", &["tcp"]);
    silent.status = None;
    let told = shown(&pairs(&[peer("a", &["tcp"]), silent], ExchangeSpec::default()));
    assert_eq!(told, ["a-b none (b has not published what it speaks)"]);
}
