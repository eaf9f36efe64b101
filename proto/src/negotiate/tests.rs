use proptest::prelude::*;

use super::*;
use crate::identity::{Incarnation, PeerName};

fn offer(name: &str, node: &str) -> Offer {
    let at = |transport| TransportOffer::new(transport).at("10.0.0.1:7000");
    Offer {
        peer: PeerName::new(name).unwrap(),
        incarnation: Incarnation(1),
        versions: VersionRange { min: 1, max: 3 },
        transports: Transport::ALL.into_iter().map(at).collect(),
        node: Some(NodeToken(node.into())),
        gpus: vec![[7; 16]],
        require: Require::NONE,
    }
}

fn open() -> Policy {
    Policy { allow: TransportSet::ALL, ..Policy::default() }
}

fn proven() -> Measured {
    Measured { same_node: SameNode::Proven, ..Measured::default() }
}

fn gpu() -> What {
    What { device: Device::Cuda { index: 0, uuid: Some([7; 16]) }, ..What::default() }
}

/// The answer for two peers, as text.
fn answer(a: &Offer, b: &Offer, what: &What, policy: &Policy, measured: &Measured) -> String {
    match negotiate(a, b, what, policy, measured) {
        Ok(route) => route.to_string(),
        Err(none) => none.to_string(),
    }
}

fn between_nodes(what: &What, policy: &Policy, measured: &Measured) -> String {
    answer(&offer("a", "n1"), &offer("b", "n2"), what, policy, measured)
}

fn on_a_node(what: &What, policy: &Policy, measured: &Measured) -> String {
    answer(&offer("a", "n1"), &offer("b", "n1"), what, policy, measured)
}

#[test]
fn inside_one_sidecar_the_route_is_local() {
    let a = offer("a", "n1");
    let route = negotiate(&a, &a, &What::default(), &Policy::default(), &Measured::default()).unwrap();
    assert_eq!((route.to_string().as_str(), route.zero_copy, route.version), ("local", true, 3));
}

#[test]
fn a_restarted_sidecar_is_another_peer() {
    let (a, mut b) = (offer("a", "n1"), offer("a", "n1"));
    b.incarnation = Incarnation(2);
    assert_eq!(
        answer(&a, &b, &What::default(), &open(), &Measured::default()),
        "tcp, not shm: node_unproven"
    );
}

#[test]
fn a_node_is_shared_only_where_a_handshake_has_proven_it() {
    let what = What::default();
    assert_eq!(on_a_node(&what, &open(), &proven()), "shm");
    assert_eq!(on_a_node(&what, &open(), &Measured::default()), "tcp, not shm: node_unproven");
    assert_eq!(between_nodes(&what, &open(), &Measured::default()), "tcp, not shm: other_node");
    // Tokens are hints: a proof outweighs two that differ, and a refutation two that agree.
    assert_eq!(between_nodes(&what, &open(), &proven()), "shm");
    let refuted = Measured { same_node: SameNode::Refuted, ..Measured::default() };
    assert_eq!(on_a_node(&what, &open(), &refuted), "tcp, not shm: other_node");
}

#[test]
fn sharing_a_node_has_to_be_allowed() {
    assert_eq!(on_a_node(&What::default(), &Policy::default(), &proven()), "tcp, not shm: policy");
    // Where it would not help to allow it, the policy is not blamed.
    let measured = Measured::default();
    assert_eq!(between_nodes(&What::default(), &Policy::default(), &measured), "tcp, not shm: other_node");
}

#[test]
fn a_transport_that_failed_lately_is_passed_over_visibly() {
    let measured = Measured { cooling: TransportSet::EMPTY.with(Transport::Shm), ..proven() };
    assert_eq!(on_a_node(&What::default(), &open(), &measured), "tcp, not shm: cooldown");
    for why in [Why::LentFull, Why::SegmentRefused] {
        let known = Measured { unshared: Some(why), ..measured };
        assert_eq!(on_a_node(&What::default(), &open(), &known), format!("tcp, not shm: {why}"));
    }
    let measured = Measured { cooling: TransportSet::ALL, unshared: Some(Why::LentFull), ..proven() };
    let none =
        negotiate(&offer("a", "n"), &offer("b", "n"), &What::default(), &open(), &measured).unwrap_err();
    assert_eq!(none.to_string(), "no route: not shm: lent_full, not tcp: cooldown, not quic: cooldown");
    assert!(none.is_transient());
}

#[test]
fn what_is_not_offered_by_both_is_not_taken() {
    let (a, mut b) = (offer("a", "n1"), offer("b", "n1"));
    b.transports.retain(|offer| offer.transport == Transport::Quic);
    assert_eq!(
        answer(&a, &b, &What::default(), &open(), &proven()),
        "quic, not shm: not_offered, not tcp: not_offered"
    );
}

#[test]
fn one_address_between_two_peers_is_enough() {
    let (mut a, mut b) = (offer("a", "n1"), offer("b", "n2"));
    a.transports.iter_mut().for_each(|offer| offer.addresses.clear());
    assert_eq!(
        answer(&a, &b, &What::default(), &Policy::default(), &Measured::default()),
        "tcp, not shm: other_node"
    );
    b.transports.iter_mut().for_each(|offer| offer.addresses.clear());
    assert_eq!(
        answer(&a, &b, &What::default(), &Policy::default(), &Measured::default()),
        "no route: not shm: other_node, not tcp: no_address, not quic: no_address"
    );
}

#[test]
fn a_transport_whose_addresses_are_of_another_family_has_none() {
    let measured = Measured { unreached: TransportSet::EMPTY.with(Transport::Quic), ..Measured::default() };
    let prefers = Policy { prefer: Some(Transport::Quic), ..Policy::default() };
    assert_eq!(
        between_nodes(&What::default(), &prefers, &measured),
        "tcp, not shm: other_node, not quic: no_address"
    );
}

#[test]
fn zero_copy_is_met_on_the_node_but_not_by_a_row_list() {
    let what = What { require: Require::ZERO_COPY, ..What::default() };
    assert_eq!(on_a_node(&what, &open(), &proven()), "shm");
    assert_eq!(
        between_nodes(&what, &open(), &Measured::default()),
        "no route: not shm: other_node, not tcp: not_zero_copy, not quic: not_zero_copy"
    );
    let ranges = What { selection: SelectionKind::Ranges, ..what };
    assert_eq!(on_a_node(&ranges, &open(), &proven()), "shm");
    let rows = What { selection: SelectionKind::Rows, ..what };
    let a = offer("a", "n1");
    assert_eq!(answer(&a, &a, &rows, &open(), &proven()), "no route: not local: not_zero_copy");
    let rows = What { require: Require::NONE, ..rows };
    assert!(!negotiate(&a, &a, &rows, &open(), &proven()).unwrap().zero_copy);
}

#[test]
fn the_same_node_is_met_only_by_what_stays_there() {
    let what = What { require: Require::SAME_NODE, ..What::default() };
    assert_eq!(on_a_node(&what, &open(), &proven()), "shm");
    assert_eq!(
        on_a_node(&what, &Policy::default(), &proven()),
        "no route: not shm: policy, not tcp: not_same_node, not quic: not_same_node"
    );
}

#[test]
fn encryption_is_met_by_tls_by_quic_and_by_what_leaves_no_node() {
    let what = What { require: Require::ENCRYPTED, ..What::default() };
    let plain = Policy { encryption: Encryption::None, ..open() };
    assert_eq!(on_a_node(&what, &plain, &proven()), "shm");
    assert_eq!(between_nodes(&what, &open(), &Measured::default()), "tcp, not shm: other_node");
    assert_eq!(
        between_nodes(&what, &plain, &Measured::default()),
        "quic, not shm: other_node, not tcp: not_encrypted"
    );
}

#[test]
fn a_gpu_is_shared_by_those_who_reach_it() {
    assert_eq!(on_a_node(&gpu(), &open(), &proven()), "cuda_ipc");
    let a = offer("a", "n1");
    assert_eq!(answer(&a, &a, &gpu(), &open(), &Measured::default()), "cuda_ipc");
    let (mut b, mut c) = (offer("b", "n1"), offer("c", "n1"));
    b.gpus.clear();
    assert_eq!(
        answer(&a, &b, &gpu(), &open(), &proven()),
        "no route: not cuda_ipc: no_gpu_process, not tcp: not_supported, not quic: not_supported"
    );
    b.gpus.push([8; 16]);
    assert!(answer(&a, &b, &gpu(), &open(), &proven()).starts_with("no route: not cuda_ipc: other_gpu"));
    let any = What { device: Device::Cuda { index: 0, uuid: None }, ..What::default() };
    assert!(answer(&a, &b, &any, &open(), &proven()).starts_with("no route: not cuda_ipc: other_gpu"));
    b.gpus.push([7; 16]);
    assert_eq!(answer(&a, &b, &any, &open(), &proven()), "cuda_ipc", "there is one that both reach");
    let failed = Measured {
        cooling: TransportSet::EMPTY.with(Transport::Shm),
        unshared: Some(Why::LentFull),
        ..proven()
    };
    assert!(answer(&a, &b, &any, &open(), &failed).starts_with("no route: not cuda_ipc: lent_full"));
    b.gpus.clear();
    c.gpus.clear();
    b.transports.iter_mut().chain(&mut c.transports).for_each(|offer| offer.gpu_memory = true);
    assert_eq!(answer(&b, &c, &gpu(), &open(), &proven()), "tcp, not cuda_ipc: no_gpu_process");
}

#[test]
fn peers_without_a_common_version_have_no_route() {
    let (a, mut b) = (offer("a", "n1"), offer("b", "n2"));
    b.versions = VersionRange { min: 4, max: 9 };
    let none = negotiate(&a, &b, &What::default(), &open(), &Measured::default()).unwrap_err();
    assert!(none.refusals.iter().all(|refusal| refusal.why == Why::NoCommonVersion));
    b.versions = VersionRange { min: 2, max: 9 };
    assert_eq!(negotiate(&a, &b, &What::default(), &open(), &Measured::default()).unwrap().version, 3);
}

fn speeds(tcp: f64, quic: f64, current: Option<Transport>) -> Measured {
    Measured { tcp_goodput: Some(tcp), quic_goodput: Some(quic), current, ..Measured::default() }
}

#[test]
fn the_faster_network_is_taken_and_kept_until_the_other_is_clearly_faster() {
    let chosen = |measured: Measured| {
        let (a, b) = (offer("a", "n1"), offer("b", "n2"));
        negotiate(&a, &b, &What::default(), &open(), &measured).unwrap().transport
    };
    assert_eq!(chosen(Measured::default()), Transport::Tcp);
    assert_eq!(chosen(speeds(1.0, 1.1, None)), Transport::Tcp);
    assert_eq!(chosen(speeds(1.0, 1.3, None)), Transport::Quic);
    assert_eq!(chosen(speeds(1.0, 1.3, Some(Transport::Tcp))), Transport::Quic);
    assert_eq!(chosen(speeds(1.0, 1.1, Some(Transport::Quic))), Transport::Quic);
    assert_eq!(chosen(speeds(1.1, 1.0, Some(Transport::Quic))), Transport::Quic);
    assert_eq!(chosen(speeds(1.3, 1.0, Some(Transport::Quic))), Transport::Tcp);
    let half = Measured { current: Some(Transport::Quic), tcp_goodput: Some(9.0), ..Measured::default() };
    assert_eq!(chosen(half), Transport::Quic);
}

#[test]
fn one_that_is_tried_to_be_compared_is_taken_before_the_other_which_is_not_called_slower() {
    let tried = Measured { current: Some(Transport::Quic), ..Measured::default() };
    assert_eq!(
        between_nodes(&What::default(), &open(), &tried),
        "quic, not shm: other_node, not tcp: not_compared"
    );
}

#[test]
fn what_one_of_two_peers_requires_holds_for_both() {
    let (a, b) = (offer("a", "n1"), Offer { require: Require::SAME_NODE, ..offer("b", "n2") });
    for (ours, theirs) in [(&a, &b), (&b, &a)] {
        let none = negotiate(ours, theirs, &What::default(), &open(), &Measured::default()).unwrap_err();
        let tcp = none.refusals.iter().find(|refusal| refusal.transport == Transport::Tcp).unwrap();
        assert_eq!(tcp.why, Why::NotSameNode);
    }
}

#[test]
fn one_that_requires_encryption_makes_the_lanes_of_a_pair_encrypted_whatever_the_other_allows() {
    let plain = Policy { encryption: Encryption::None, ..open() };
    let (a, b) = (offer("a", "n1"), Offer { require: Require::ENCRYPTED, ..offer("b", "n2") });
    for (ours, theirs) in [(&a, &b), (&b, &a)] {
        let route = negotiate(ours, theirs, &What::default(), &plain, &Measured::default()).unwrap();
        assert_eq!(route.transport, Transport::Tcp);
    }
    let what = What { require: Require::ENCRYPTED, ..What::default() };
    let route = negotiate(&a, &offer("c", "n2"), &what, &plain, &Measured::default()).unwrap();
    assert_eq!(route.transport, Transport::Quic, "the two would speak in the clear");
}

#[test]
fn a_slower_network_says_so_and_a_policy_ends_the_question() {
    let measured = speeds(1.0, 2.0, None);
    assert_eq!(
        between_nodes(&What::default(), &open(), &measured),
        "quic, not shm: other_node, not tcp: slower"
    );
    let prefer = |transport| Policy { prefer: Some(transport), ..open() };
    assert_eq!(
        between_nodes(&What::default(), &prefer(Transport::Tcp), &measured),
        "tcp, not shm: other_node"
    );
    assert_eq!(
        between_nodes(&What::default(), &prefer(Transport::Quic), &speeds(2.0, 1.0, None)),
        "quic, not shm: other_node"
    );
}

#[test]
fn words_are_read_back() {
    for transport in Transport::ALL {
        assert_eq!(transport.as_str().parse(), Ok(transport));
    }
    let both = Require::ZERO_COPY.and(Require::ENCRYPTED);
    assert_eq!(both.to_string(), "zero_copy,encrypted");
    assert_eq!("encrypted,zero_copy".parse(), Ok(both));
    assert_eq!("".parse(), Ok(Require::NONE));
    assert!("fast".parse::<Require>().is_err());
    assert_eq!(TransportSet::ALL.iter().collect::<TransportSet>(), TransportSet::ALL);
    assert_eq!(Transport::ALL.into_iter().collect::<TransportSet>(), TransportSet::ALL);
}

/// Standing of every transport between two peers, as text.
fn standings(a: &Offer, b: &Offer, what: &What, policy: &Policy, measured: &Measured) -> Vec<String> {
    candidates(a, b, what, policy, measured).iter().map(ToString::to_string).collect()
}

#[test]
fn every_transport_says_why_it_is_not_the_one_that_is_taken() {
    let (a, b, host) = (offer("a", "n1"), offer("b", "n1"), What::default());
    let all = |policy: &Policy, measured: &Measured| standings(&a, &b, &host, policy, measured);
    let cuda = "cuda_ipc: fits, gpu_memory";
    assert_eq!(
        all(&open(), &proven()),
        ["shm: taken", cuda, "tcp: fits, better_taken", "quic: fits, better_taken"]
    );
    let networks = |policy: &Policy, measured: Measured| all(policy, &measured)[2..].join("; ");
    assert_eq!(networks(&open(), Measured::default()), "tcp: taken; quic: fits, not_compared");
    let half = Measured { tcp_goodput: Some(9.0), current: Some(Transport::Tcp), ..Measured::default() };
    assert_eq!(networks(&open(), half), "tcp: taken; quic: fits, not_compared");
    assert_eq!(networks(&open(), speeds(2.0, 1.0, None)), "tcp: taken; quic: fits, slower");
    assert_eq!(networks(&open(), speeds(1.0, 1.1, None)), "tcp: taken; quic: fits, not_faster");
    assert_eq!(networks(&open(), speeds(1.0, 2.0, None)), "tcp: fits, slower; quic: taken");
    let prefer = |transport| Policy { prefer: Some(transport), ..open() };
    let faster = speeds(1.0, 2.0, None);
    assert_eq!(networks(&prefer(Transport::Tcp), faster), "tcp: taken; quic: fits, not_preferred");
    let plain = Policy { encryption: Encryption::None, ..prefer(Transport::Tcp) };
    let secret = What { require: Require::ENCRYPTED, ..host };
    assert_eq!(
        standings(&a, &b, &secret, &plain, &Measured::default())[2..],
        ["tcp: refused, not_encrypted", "quic: taken"]
    );
    let cooling = Measured { cooling: TransportSet::EMPTY.with(Transport::Quic), ..Measured::default() };
    assert_eq!(networks(&open(), cooling), "tcp: taken; quic: refused, cooldown");
}

#[test]
fn a_transport_for_memory_of_another_kind_says_what_it_lacks() {
    let (a, b, c) = (offer("a", "n1"), offer("b", "n1"), offer("c", "n2"));
    let (host, usual, unknown) = (What::default(), Policy::default(), Measured::default());
    assert_eq!(standings(&a, &c, &host, &open(), &unknown)[1], "cuda_ipc: refused, other_node");
    assert_eq!(standings(&a, &b, &host, &usual, &unknown)[1], "cuda_ipc: refused, policy");
    assert_eq!(
        standings(&a, &b, &gpu(), &open(), &proven())[..2],
        ["shm: refused, not_supported", "cuda_ipc: taken"]
    );
    assert_eq!(standings(&a, &a, &host, &open(), &unknown), ["local: taken", "cuda_ipc: fits, gpu_memory"]);
}

#[test]
fn what_was_measured_stands_beside_its_transport() {
    let (a, b) = (offer("a", "n1"), offer("b", "n2"));
    let all = candidates(&a, &b, &What::default(), &open(), &speeds(2.0, 1.0, None));
    let goodputs: Vec<_> = all.iter().map(|one| one.goodput).collect();
    assert_eq!(goodputs, [None, None, Some(2.0), Some(1.0)]);
}

fn arbitrary_offer() -> impl Strategy<Value = Offer> {
    let transports = prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 5);
    let node = prop::option::of(prop::sample::select(vec!["n1", "n2"]));
    let gpu = (any::<bool>(), arbitrary_require());
    (prop::sample::select(vec!["a", "b"]), 0u128..2, 0u16..3, 0u16..3, transports, node, gpu).prop_map(
        |(peer, incarnation, min, span, transports, node, (gpu, require))| Offer {
            peer: PeerName::new(peer).unwrap(),
            incarnation: Incarnation(incarnation),
            versions: VersionRange { min, max: min + span },
            transports: Transport::ALL
                .into_iter()
                .zip(transports)
                .filter(|(_, (offered, ..))| *offered)
                .map(|(transport, (_, address, gpu_memory))| TransportOffer {
                    addresses: if address { vec!["h:1".into()] } else { vec![] },
                    gpu_memory,
                    ..TransportOffer::new(transport)
                })
                .collect(),
            node: node.map(|token| NodeToken(token.into())),
            gpus: if gpu { vec![[7; 16]] } else { vec![] },
            require,
        },
    )
}

fn subset() -> impl Strategy<Value = TransportSet> {
    prop::collection::vec(prop::sample::select(Transport::ALL.to_vec()), 0..8)
        .prop_map(|list| list.into_iter().collect())
}

fn network() -> impl Strategy<Value = Option<Transport>> {
    prop::option::of(prop::sample::select(vec![Transport::Tcp, Transport::Quic]))
}

fn arbitrary_require() -> impl Strategy<Value = Require> {
    any::<(bool, bool, bool)>().prop_map(|(zero_copy, same_node, encrypted)| Require {
        zero_copy,
        same_node,
        encrypted,
    })
}

fn arbitrary_what() -> impl Strategy<Value = What> {
    let device = prop_oneof![
        Just(Device::Host),
        Just(Device::Cuda { index: 0, uuid: None }),
        Just(Device::Cuda { index: 0, uuid: Some([7; 16]) })
    ];
    let selection =
        prop::sample::select(vec![SelectionKind::All, SelectionKind::Ranges, SelectionKind::Rows]);
    (device, selection, arbitrary_require()).prop_map(|(device, selection, require)| What {
        bytes: 1,
        device,
        selection,
        require,
    })
}

fn arbitrary_policy() -> impl Strategy<Value = Policy> {
    let encryption = prop::sample::select(vec![Encryption::Tls, Encryption::None]);
    (subset(), encryption, network()).prop_map(|(allow, encryption, prefer)| Policy {
        allow,
        encryption,
        prefer,
    })
}

fn arbitrary_measured() -> impl Strategy<Value = Measured> {
    let same = prop::sample::select(vec![SameNode::Unknown, SameNode::Proven, SameNode::Refuted]);
    let speed = || prop::option::of(prop::sample::select(vec![0.0, 1.0, 1.1, 1.2, 2.0, f64::NAN]));
    (same, subset(), subset(), subset(), speed(), speed(), network()).prop_map(
        |(same_node, cooling, absent, unreached, tcp_goodput, quic_goodput, current)| Measured {
            same_node,
            cooling,
            unshared: None,
            absent,
            unreached,
            tcp_goodput,
            quic_goodput,
            current,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn both_ends_come_to_the_same_answer(
        ours in arbitrary_offer(), theirs in arbitrary_offer(), what in arbitrary_what(),
        policy in arbitrary_policy(), measured in arbitrary_measured(),
    ) {
        prop_assert_eq!(
            negotiate(&ours, &theirs, &what, &policy, &measured),
            negotiate(&theirs, &ours, &what, &policy, &measured)
        );
    }

    #[test]
    fn a_route_is_offered_allowed_and_meets_what_was_required(
        ours in arbitrary_offer(), theirs in arbitrary_offer(), what in arbitrary_what(),
        policy in arbitrary_policy(), measured in arbitrary_measured(),
    ) {
        match negotiate(&ours, &theirs, &what, &policy, &measured) {
            Ok(route) => {
                let transport = route.transport;
                prop_assert!(ours.transport(transport).is_some() && theirs.transport(transport).is_some());
                prop_assert!(policy.allow.contains(transport) && !measured.cooling.contains(transport));
                let of_routes = ours.require.and(theirs.require);
                prop_assert!(!what.require.zero_copy || route.zero_copy);
                prop_assert!(!of_routes.zero_copy || !matches!(transport, Transport::Tcp | Transport::Quic));
                prop_assert!(!what.require.and(of_routes).same_node || transport.stays_on_node());
                let plain = transport == Transport::Tcp && policy.encryption == Encryption::None;
                prop_assert!(!what.require.encrypted || of_routes.encrypted || !plain);
                prop_assert!(route.refusals.iter().all(|refusal| refusal.transport != transport));
                let shared = transport == Transport::Shm && measured.same_node != SameNode::Proven;
                prop_assert!(!shared);
            }
            Err(none) => {
                // The other way round: nobody is sent away by a comparison, and everybody is told something.
                prop_assert!(!none.refusals.is_empty());
                let compares = |refusal: &Refusal| matches!(refusal.why, Why::Slower | Why::NotCompared);
                prop_assert!(!none.refusals.iter().any(compares));
            }
        }
    }

    #[test]
    fn how_every_transport_stands_agrees_with_the_choice(
        ours in arbitrary_offer(), theirs in arbitrary_offer(), what in arbitrary_what(),
        policy in arbitrary_policy(), measured in arbitrary_measured(),
    ) {
        let route = negotiate(&ours, &theirs, &what, &policy, &measured);
        let all = candidates(&ours, &theirs, &what, &policy, &measured);
        let shown = |all: &[Candidate]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        prop_assert_eq!(shown(&all), shown(&candidates(&theirs, &ours, &what, &policy, &measured)));
        prop_assert_eq!(all.len(), if ours.is_same_peer(&theirs) { 2 } else { 4 });
        let taken: Vec<_> = all.iter().filter(|one| one.standing == Standing::Taken).collect();
        prop_assert_eq!(taken.len(), usize::from(route.is_ok()));
        prop_assert_eq!(taken.first().map(|one| one.transport), route.as_ref().ok().map(|r| r.transport));
        let refusals = route.map_or_else(|none| none.refusals, |route| route.refusals);
        for refusal in refusals {
            let one = all.iter().find(|one| one.transport == refusal.transport).unwrap();
            match refusal.why {
                Why::Slower | Why::NotCompared => {
                    prop_assert!(matches!(one.standing, Standing::Fits(_)), "{}", one);
                }
                why => prop_assert_eq!(one.standing, Standing::Refused(why)),
            }
        }
        // What fits would be taken if nothing else were allowed, and what is refused would not be.
        let of_this_memory = |one: &Candidate| one.standing != Standing::Fits(Passed::GpuMemory);
        for one in all.into_iter().filter(of_this_memory) {
            let alone = TransportSet::EMPTY.with(one.transport);
            let allow = policy.allow.iter().filter(|&allowed| alone.contains(allowed)).collect();
            let alone = negotiate(&ours, &theirs, &what, &Policy { allow, prefer: None, ..policy }, &measured);
            let refused = matches!(one.standing, Standing::Refused(_));
            prop_assert_eq!(alone.ok().map(|route| route.transport), (!refused).then_some(one.transport));
        }
    }
}
