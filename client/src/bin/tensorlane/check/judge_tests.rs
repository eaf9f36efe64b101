use tensorlane_operator::findings::{self, Level, exit_code};
use tensorlane_proto::generated as v1;

use super::*;

fn route(transport: i32, refusals: &[(v1::Transport, &str)]) -> Option<v1::Moved> {
    let refusals = refusals
        .iter()
        .map(|(transport, why)| v1::Refusal { transport: (*transport).into(), why: (*why).to_owned() })
        .collect();
    Some(v1::Moved { transport, refusals, ..v1::Moved::default() })
}

fn peer(name: &str, state: &str, error: &str) -> PeerStatus {
    let by_tcp = route(v1::Transport::Tcp.into(), &[(v1::Transport::Shm, "policy")]);
    PeerStatus {
        name: name.to_owned(),
        state: state.to_owned(),
        last_error: error.to_owned(),
        route: by_tcp,
        ..PeerStatus::default()
    }
}

/// A pod in which all is well, with one other peer.
fn well() -> Facts {
    let arena =
        v1::ArenaStatus { total: 1 << 30, free: 1 << 29, largest_put: 1 << 28, ..v1::ArenaStatus::default() };
    let status = Status {
        version: "0.1.7".to_owned(),
        exchange: "default".to_owned(),
        peer: "a".to_owned(),
        arena: Some(arena),
        ..Status::default()
    };
    Facts {
        in_kubernetes: true,
        directory: "/run/tensorlane".into(),
        access: Access::Answers,
        version: "0.1.0",
        status: Some(status),
        peers: Ok(vec![peer("a", "self", ""), peer("b", "connected", "")]),
        memory: Some((2 << 30, 1 << 28)),
    }
}

fn told(facts: &Facts) -> String {
    findings::text(&findings(facts))
}

#[test]
fn a_connected_peer_to_which_large_packets_are_lost_is_a_problem_and_what_stood_still_or_no_quic_a_note() {
    let mut facts = well();
    let still =
        "nothing moved for 2s on the TCP lanes, 0 of 9 bytes had come; packets of full size may be lost";
    facts.peers = Ok(vec![peer("a", "self", ""), peer("b", "connected", still)]);
    let text = told(&facts);
    assert_eq!(exit_code(&findings(&facts)), 1, "{text}");
    assert!(text.contains("b is connected, but nothing moved") && text.contains("MTU"), "{text}");
    for noted in ["quic to 10.0.0.7:9421 does not come up", "nothing moved for 30s on the control connection"]
    {
        facts.peers = Ok(vec![peer("a", "self", ""), peer("b", "connected", noted)]);
        assert_eq!(exit_code(&findings(&facts)), 0);
        assert!(told(&facts).contains(noted) && !told(&facts).contains("MTU"));
    }
}

#[test]
fn a_pod_that_is_well_has_no_problem_and_says_which_way_bytes_go() {
    let all = findings(&well());
    assert_eq!(exit_code(&all), 0, "{all:#?}");
    let text = told(&well());
    for part in [
        "a sidecar answers",
        "0.1.7",
        "512.0 MiB of 1.0 GiB free",
        "1 of 1 connected",
        "1 by tcp, not shm: policy",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn without_a_sidecar_nothing_else_is_asked() {
    for (access, part) in [
        (Access::NoDirectory, "kubectl tensorlane explain"),
        (Access::NoSocket, "--previous"),
        (Access::NoAnswer("too many".to_owned()), "does not answer: too many"),
        (Access::NoAnswer("Permission denied (os error 13)".to_owned()), "SELinux level"),
    ] {
        let facts = Facts { access, status: None, ..well() };
        let all = findings(&facts);
        assert_eq!((all.len(), exit_code(&all)), (1, 1));
        assert!(told(&facts).contains(part), "{part} is not in {}", told(&facts));
    }
}

#[test]
fn each_thing_that_is_wrong_is_found_with_what_to_do() {
    type Break = fn(&mut Facts);
    let cases: [(Break, &str); 14] = [
        (
            |f| {
                let refused = "at h:1: it refused us: WRONG_EXCHANGE: peer b is of the exchange \"ml\", and peer a of \
                               \"default\": set `exchange` alike on both";
                f.peers = Ok(vec![peer("b", "unreachable", refused)]);
            },
            "-> it belongs to another exchange: set tensorlane.dev/exchange alike",
        ),
        (
            |f| {
                let lack = "this peer is not in its peers file /p.yaml, so others refuse it: add the line `- {name: a}`";
                f.peers = Ok(vec![peer("a", "self", lack), peer("b", "idle", "")]);
            },
            "add the line `- {name: a}`\n",
        ),
        (
            |f| {
                let ended = "b at h:1: it ended the connection without an answer, as a peer does that does not list our key";
                f.peers = Ok(vec![peer("b", "unreachable", ended)]);
            },
            "a key is not pinned",
        ),
        (|f| f.version = "0.2.0", "same minor version"),
        (|f| f.status.as_mut().unwrap().waiting = 2, "2 puts wait for room"),
        (|f| f.status.as_mut().unwrap().arena.as_mut().unwrap().largest_put = 0, "arena-size larger"),
        (|f| f.memory = Some((1 << 30, 1 << 28)), "raise the container's memory limit"),
        (
            |f| f.memory = Some((300 << 20, 1 << 28)),
            "limit 300.0 MiB, arena 1.0 GiB and 256.0 MiB beside it: the next put may end the sidecar",
        ),
        (|f| f.peers = Ok(vec![peer("b", "unreachable", "b at h:1: Connection refused")]), "NetworkPolicy"),
        (
            |f| {
                f.peers = Ok(vec![peer(
                    "b",
                    "unreachable",
                    "the key sha256:1 belongs to no peer of this exchange",
                )]);
            },
            "a key is not pinned",
        ),
        (
            |f| f.peers = Ok(vec![peer("b", "unreachable", "it belongs to the exchange \"x\"")]),
            "another exchange",
        ),
        (
            |f| f.peers = Ok(vec![peer("b", "unreachable", "b has no address in the directory")]),
            "not published yet",
        ),
        (
            |f| f.peers = Ok(vec![peer("b", "unreachable", "its TensorPeer has no IP of its pod yet")]),
            "kubectl describe pod b",
        ),
        (
            |f| {
                let mut strict = peer("b", "connected", "");
                strict.route = route(0, &[(v1::Transport::Tcp, "not_same_node")]);
                f.peers = Ok(vec![strict]);
            },
            "no way to 1 connected: not tcp: not_same_node",
        ),
    ];
    for (break_it, part) in cases {
        let mut facts = well();
        break_it(&mut facts);
        let all = findings(&facts);
        assert_eq!(all.iter().filter(|one| one.level == Level::Problem).count(), 1, "{part}: {all:#?}");
        assert!(told(&facts).contains(part), "{part} is not in {}", told(&facts));
        assert!(all.iter().all(|one| one.level != Level::Problem || one.remedy.is_some()));
    }
}

#[test]
fn what_tables_of_peers_lack_is_a_problem_only_where_it_keeps_somebody_away() {
    let lack = "this peer is not in its peers file /p.yaml, so others refuse it: add the line `- {name: a}`";
    let stranger = "a key that no listed peer has was refused here once";
    for (own, other, code) in [(lack, "idle", 1), (lack, "connected", 0), (stranger, "idle", 0)] {
        let facts = Facts { peers: Ok(vec![peer("a", "self", own), peer("b", other, "")]), ..well() };
        assert_eq!(exit_code(&findings(&facts)), code, "{}", told(&facts));
        assert!(told(&facts).contains(own) && !told(&facts).contains("none refused"), "{}", told(&facts));
    }
    let alone = Facts { peers: Ok(vec![peer("a", "self", lack)]), ..well() };
    assert!(told(&alone).contains(lack), "{}", told(&alone));
    let idle = Facts { peers: Ok(vec![peer("a", "self", ""), peer("b", "idle", "")]), ..well() };
    assert!(told(&idle).contains("0 of 1 connected, 1 not yet, none refused"), "{}", told(&idle));
}

#[test]
fn an_own_address_that_leads_elsewhere_is_a_problem_although_all_are_connected_and_one_without_an_answer_a_note()
 {
    let elsewhere =
        "the address h:1 that others are told for this peer does not lead back to it: b answers there";
    let nobody = "nobody answers this peer at h:1, its address for others (Connection refused)";
    for (own, in_kubernetes, code, part) in [
        (elsewhere, true, 1, "-> another pod has the address of this one"),
        (elsewhere, false, 1, "-> correct `peers.advertise` (TENSORLANE_PEERS_ADVERTISE) of this sidecar"),
        (nobody, false, 0, nobody),
    ] {
        let peers = Ok(vec![peer("a", "self", own), peer("b", "connected", "")]);
        let facts = Facts { in_kubernetes, peers, ..well() };
        assert_eq!(exit_code(&findings(&facts)), code, "{}", told(&facts));
        assert!(told(&facts).contains(own) && told(&facts).contains(part), "{}", told(&facts));
    }
}

#[test]
fn an_api_server_that_lists_no_peers_is_a_problem_although_all_are_connected() {
    let outage = "the API server has not listed peers for 1h, and what was known stays: 401: the token is not accepted";
    for (in_kubernetes, part) in
        [(true, "is its service account still there?"), (false, "`peers.kubeconfig`")]
    {
        let peers = Ok(vec![peer("a", "self", outage), peer("b", "connected", "")]);
        let facts = Facts { in_kubernetes, peers, ..well() };
        assert_eq!(exit_code(&findings(&facts)), 1, "{}", told(&facts));
        assert!(told(&facts).contains("401") && told(&facts).contains(part), "{}", told(&facts));
    }
}

#[test]
fn neighbours_that_share_no_memory_are_told_how() {
    for (why, in_kubernetes, part) in [
        (
            "no_socket_dir",
            false,
            "-> memory is shared on a machine once `node.directory` (TENSORLANE_NODE_DIRECTORY)",
        ),
        ("node_unproven", false, "-> the directory of `node.directory`"),
        (
            "no_socket_dir",
            true,
            "-> memory is shared between pods of a node once the exchange says `sameNode`",
        ),
        ("policy", false, "1 by tcp, not shm: policy\n"),
    ] {
        let mut other = peer("b", "connected", "");
        other.route = route(v1::Transport::Tcp.into(), &[(v1::Transport::Shm, why)]);
        let facts = Facts { in_kubernetes, peers: Ok(vec![other]), ..well() };
        assert!(told(&facts).contains(part) && exit_code(&findings(&facts)) == 0, "{}", told(&facts));
        assert_eq!(told(&facts).contains("->"), why != "policy", "{}", told(&facts));
    }
}

#[test]
fn a_peer_alone_is_worth_knowing_and_no_problem() {
    let alone = Facts { peers: Ok(vec![peer("a", "self", "")]), ..well() };
    assert!(told(&alone).contains("no other peer of exchange default"));
    assert_eq!(exit_code(&findings(&alone)), 0);
    let silent = Facts { peers: Err("DEADLINE_EXCEEDED".to_owned()), ..well() };
    assert_eq!(exit_code(&findings(&silent)), 3);
}

#[test]
fn outside_of_kubernetes_nothing_of_kubernetes_is_advised() {
    type Break = fn(&mut Facts);
    let cases: [(Break, &str); 8] = [
        (|f| f.access = Access::NoDirectory, "TENSORLANE_SOCKETS"),
        (|f| f.access = Access::NoSocket, "standard error"),
        (|f| f.version = "0.2.0", "start the sidecar anew"),
        (|f| f.status.as_mut().unwrap().waiting = 2, "make `arena.size` (TENSORLANE_ARENA_SIZE) larger"),
        (|f| f.peers = Ok(vec![peer("a", "self", "")]), "`peers.file` (TENSORLANE_PEERS_FILE) names others"),
        (|f| f.peers = Ok(vec![peer("b", "unreachable", "b at h:1: Connection refused")]), "a firewall"),
        (
            |f| f.peers = Ok(vec![peer("b", "unreachable", "b has no address in the directory")]),
            "give b an address",
        ),
        (
            |f| f.peers = Ok(vec![peer("b", "unreachable", "the key belongs to no peer of this exchange")]),
            "the peers files of both",
        ),
    ];
    for (break_it, part) in cases {
        let mut facts = Facts { in_kubernetes: false, memory: None, ..well() };
        break_it(&mut facts);
        let told = told(&facts);
        assert!(told.contains(part), "{part} is not in {told}");
        for theirs in ["kubectl", "NetworkPolicy", "pod", "tensorlane.dev", "TensorPeer"] {
            assert!(!told.contains(theirs), "{theirs} is in {told}");
        }
    }
}
