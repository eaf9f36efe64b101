use proptest::prelude::*;
use tensorlane_proto::negotiate::{
    Offer, Policy, TransportOffer, TransportSet, VersionRange, What, negotiate,
};
use tensorlane_proto::{Incarnation, PeerName};

use super::*;

const MIB: u64 = 1 << 20;

fn offer(name: &str) -> Offer {
    let at = |transport| TransportOffer::new(transport).at("10.0.0.7:9421");
    Offer {
        peer: PeerName::new(name).unwrap(),
        incarnation: Incarnation(1),
        versions: VersionRange { min: 1, max: 2 },
        transports: [Transport::Tcp, Transport::Quic].into_iter().map(at).collect(),
        node: None,
        gpus: Vec::new(),
    }
}

/// What the next pull takes.
fn chosen(goodput: &mut Goodput, now: Instant) -> Transport {
    let what = What { bytes: 64 * MIB, ..What::default() };
    let measured = goodput.for_pull(now, true);
    let route = negotiate(&offer("a"), &offer("b"), &what, &Policy::default(), &measured).unwrap();
    let same = negotiate(&offer("b"), &offer("a"), &what, &Policy::default(), &measured).unwrap();
    assert_eq!(route.transport, same.transport);
    route.transport
}

/// Pulls over a link where the two bring so many bytes a second; how often `quic` was taken.
fn pulls(goodput: &mut Goodput, count: usize, now: Instant, tcp: f64, quic: f64) -> usize {
    let one = |_: usize| {
        let transport = chosen(goodput, now);
        let begun = goodput.began(transport);
        let rate = if transport == Transport::Quic { quic } else { tcp };
        goodput.ended(begun, Outcome::Came(64 * MIB, 64.0 * MIB as f64 / rate));
        usize::from(transport == Transport::Quic)
    };
    (0..count).map(one).sum()
}

#[test]
fn a_link_on_which_quic_becomes_the_faster_one_changes_over_and_back() {
    let (mut goodput, now) = (Goodput::default(), Instant::now());
    assert!(pulls(&mut goodput, 100, now, 1e9, 4e8) <= 6, "tcp is faster: quic is tried now and then");
    assert_eq!(goodput.in_use, Transport::Tcp);
    // Segments are lost now. The rate of tcp has fallen: the next trial comes soon.
    assert!(pulls(&mut goodput, 100, now, 5e7, 4e8) >= 50);
    assert_eq!(goodput.in_use, Transport::Quic);
    pulls(&mut goodput, 2000, now, 1e9, 4e8);
    assert_eq!(goodput.in_use, Transport::Tcp);
}

#[test]
fn what_fails_is_left_alone_for_ever_longer_and_the_other_one_is_in_use() {
    let (mut goodput, mut now) = (Goodput::default(), Instant::now());
    pulls(&mut goodput, 40, now, 1e8, 1e9);
    assert_eq!(goodput.in_use, Transport::Quic);
    for wait in [5, 10, 20, 40, 80, 160, 300, 300].map(Duration::from_secs) {
        goodput.failed(Transport::Quic, now);
        let early = now + wait - Duration::from_millis(1);
        assert_eq!(pulls(&mut goodput, 50, early, 1e8, 1e9), 0, "{wait:?}");
        now += wait;
        assert_eq!(chosen(&mut goodput, now), Transport::Quic, "it is tried again after {wait:?}");
    }
}

/// One pull after the other of which nothing is learned.
fn unknown(goodput: &mut Goodput, transport: Transport, count: usize) {
    for _ in 0..count {
        let begun = goodput.began(transport);
        goodput.ended(begun, Outcome::Unknown);
    }
}

#[test]
fn a_trial_waits_for_a_connection_and_not_the_other_way_round() {
    let (mut goodput, now) = (Goodput::default(), Instant::now());
    unknown(&mut goodput, Transport::Tcp, 100);
    assert!(goodput.is_trial_due(now) && goodput.idle() == Transport::Quic);
    assert_eq!(goodput.for_pull(now, false).current, Some(Transport::Tcp));
    assert_eq!(goodput.measured(now).current, Some(Transport::Tcp), "who only looks takes no trial");
    assert_eq!(goodput.for_pull(now, true).current, Some(Transport::Quic));
    assert_eq!(
        goodput.for_pull(now, true).current,
        Some(Transport::Tcp),
        "it is one pull at a time that tries"
    );
}

#[test]
fn pulls_that_run_side_by_side_say_nothing_of_what_either_brings() {
    // Each of eight has an eighth of the link, and one that is alone on the other transport would have more.
    let (mut goodput, now) = (Goodput::default(), Instant::now());
    for _ in 0..100 {
        let begun: Vec<Begun> = (0..8)
            .map(|_| {
                let transport = chosen(&mut goodput, now);
                goodput.began(transport)
            })
            .collect();
        for (at, pull) in begun.into_iter().enumerate() {
            goodput.ended(pull, Outcome::Came(64 * MIB, 1.0 + at as f64));
        }
        let known = goodput.measured(now);
        assert_eq!((known.current, known.tcp_goodput), (Some(Transport::Tcp), None));
    }
}

#[test]
fn a_transport_that_brings_next_to_nothing_is_left_although_no_pull_ever_ends_well() {
    let (mut goodput, now) = (Goodput::default(), Instant::now());
    pulls(&mut goodput, 60, now, 1e8, 1e9);
    assert_eq!(goodput.in_use, Transport::Quic);
    // Now everything by quic takes until its deadline.
    let mut short = 0;
    while goodput.in_use == Transport::Quic {
        let transport = chosen(&mut goodput, now);
        let begun = goodput.began(transport);
        let outcome = match transport {
            Transport::Quic => Outcome::FellShort(64 * MIB, 30.0),
            _ => Outcome::Came(64 * MIB, 0.6),
        };
        goodput.ended(begun, outcome);
        short += usize::from(transport == Transport::Quic);
        assert!(short < 40, "{goodput:?}");
    }
}

proptest! {
    #[test]
    fn the_faster_one_is_found_and_trials_are_few(tcp in 1e6..1e10, factor in 0.02..50.0_f64) {
        let quic = tcp * factor;
        let (mut goodput, now) = (Goodput::default(), Instant::now());
        let count = pulls(&mut goodput, 5000, now, tcp, quic);
        if factor > 1.25 {
            prop_assert_eq!(goodput.in_use, Transport::Quic);
            prop_assert!(count >= 4940, "{}", count);
        } else if factor < 1.15 {
            // Between these two what is in use stays.
            prop_assert_eq!(goodput.in_use, Transport::Tcp);
            prop_assert!(count <= 24, "{}", count);
        }
    }

    #[test]
    fn rates_that_differ_by_less_than_the_advantage_never_change_what_is_in_use(
        rates in prop::collection::vec((1e9..1.09e9_f64, 1e9..1.09e9_f64), 1..200),
    ) {
        let (mut goodput, now) = (Goodput::default(), Instant::now());
        for (tcp, quic) in rates {
            pulls(&mut goodput, 20, now, tcp, quic);
            prop_assert_eq!(goodput.in_use, Transport::Tcp);
        }
    }

    #[test]
    fn what_cools_is_never_taken_and_a_rate_is_always_a_number(
        events in prop::collection::vec((0..5_u8, any::<bool>(), 0..u64::MAX, 0.0..1e4_f64), 0..300),
    ) {
        let (mut goodput, mut now) = (Goodput::default(), Instant::now());
        let mut under_way = Vec::new();
        for (kind, is_quic, bytes, seconds) in events {
            let transport = if is_quic { Transport::Quic } else { Transport::Tcp };
            match kind {
                0 => under_way.push(goodput.began(transport)),
                1 | 2 => {
                    let came = if kind == 1 { Outcome::Came(bytes, seconds) } else { Outcome::FellShort(bytes, seconds) };
                    if let Some(pull) = under_way.pop() {
                        goodput.ended(pull, came);
                    }
                }
                3 => goodput.failed(transport, now),
                _ => now += Duration::from_secs_f64(seconds),
            }
            let measured = goodput.for_pull(now, bytes % 2 == 0);
            for rate in [measured.tcp_goodput, measured.quic_goodput].into_iter().flatten() {
                prop_assert!(rate.is_finite() && rate >= 0.0);
            }
            if measured.cooling != TransportSet::EMPTY.with(Transport::Tcp).with(Transport::Quic) {
                prop_assert!(!measured.cooling.contains(chosen(&mut goodput, now)));
            }
        }
    }
}
