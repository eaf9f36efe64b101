use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use prometheus::proto::MetricFamily;
use tensorlane_memory::ring::Policy;
use tensorlane_proto::failure::Reason;
use tensorlane_proto::ledger::Cause;
use tensorlane_proto::negotiate::{Transport, Why};

use super::label::*;
use super::*;

const MODULES: [&str; 15] = [
    "arena",
    "call",
    "channel",
    "directory",
    "get",
    "gpu",
    "ledger",
    "peer",
    "pipe",
    "put",
    "route",
    "session",
    "set",
    "sidecar",
    "transfer",
];
const UNITS: [&str; 42] = [
    "maps",
    "addresses",
    "attachments",
    "sets",
    "commits",
    "snapshots",
    "read",
    "written",
    "calls",
    "channels",
    "readers",
    "pipes",
    "listeners",
    "messages",
    "files",
    "rows",
    "migrations",
    "pulls",
    "lanes",
    "keys",
    "bytes",
    "seconds",
    "items",
    "requests",
    "tensors",
    "leases",
    "names",
    "tickets",
    "sessions",
    "frames",
    "peers",
    "connections",
    "reads",
    "writes",
    "fallbacks",
    "holders",
    "granules",
    "mismatches",
    "failures",
    "populates",
    "panics",
    "info",
];

fn use_all<K: Labels, V: Vector>(family: &Family<K, V>) {
    K::all().into_iter().for_each(|key| _ = family.at(key));
}

/// Every series there can ever be.
fn everything() -> Vec<MetricFamily> {
    let registry = Registry::new();
    let metrics = Metrics::new(&registry).unwrap();
    use_all(&metrics.calls.items);
    use_all(&metrics.calls.seconds);
    use_all(&metrics.moves.put_bytes);
    use_all(&metrics.moves.put_seconds);
    use_all(&metrics.moves.get_bytes);
    use_all(&metrics.moves.get_seconds);
    use_all(&metrics.moves.fallbacks);
    use_all(&metrics.channels.dropped);
    registry.gather()
}

#[test]
fn every_name_follows_the_grammar_and_every_help_says_what_is_not_counted() {
    let families = everything();
    assert_eq!(families.len(), 92);
    for family in families {
        let name = family.name().to_owned();
        let words: Vec<_> = name.split('_').collect();
        assert_eq!(words[0], "tensorlane", "{name}");
        assert!(MODULES.contains(&words[1]), "{name}");
        let is_counter = family.get_field_type() == prometheus::proto::MetricType::COUNTER;
        assert_eq!(words.last() == Some(&"total"), is_counter, "{name}");
        let unit = words[words.len() - 1 - usize::from(is_counter)];
        assert!(UNITS.contains(&unit), "{name}: {unit} is no unit");
        assert!(family.help().contains("Not counted: "), "{name}");
    }
}

#[test]
fn labels_have_bounded_values_and_the_series_can_be_counted() {
    let mut words = BTreeSet::from([env!("CARGO_PKG_VERSION")]);
    fn of<L: Label>(words: &mut BTreeSet<&str>) {
        words.extend(L::ALL.iter().map(|label| label.as_str()));
    }
    of::<Verb>(&mut words);
    of::<Outcome>(&mut words);
    of::<Moved>(&mut words);
    of::<Transport>(&mut words);
    of::<Why>(&mut words);
    of::<Cause>(&mut words);
    of::<Policy>(&mut words);
    of::<ArenaState>(&mut words);
    of::<GpuState>(&mut words);
    of::<Kind>(&mut words);
    of::<Wait>(&mut words);
    of::<TableKind>(&mut words);
    of::<Carrier>(&mut words);
    of::<FrameFault>(&mut words);
    of::<PeerState>(&mut words);
    of::<PanicScope>(&mut words);
    of::<PeerCut>(&mut words);
    of::<SessionCut>(&mut words);
    of::<GrpcCut>(&mut words);
    of::<AuthRefusal>(&mut words);
    of::<LeftOut>(&mut words);
    of::<LaneEnd>(&mut words);
    of::<Way>(&mut words);
    of::<Dialed>(&mut words);
    of::<SeatSide>(&mut words);
    of::<FallBack>(&mut words);
    of::<HolderLost>(&mut words);
    of::<NodeEvent>(&mut words);
    of::<NodeRefusal>(&mut words);
    of::<Foreign>(&mut words);
    of::<OrphanEnd>(&mut words);
    of::<StagingState>(&mut words);
    of::<StagingEnd>(&mut words);
    of::<Direction>(&mut words);
    of::<ChecksumPlace>(&mut words);
    let mut series = 0;
    for family in everything() {
        for metric in family.get_metric() {
            series += 1;
            for label in metric.get_label() {
                assert!(words.contains(label.value()), "{} has {}", family.name(), label.value());
            }
        }
    }
    let largest = <(Verb, Outcome)>::COUNT + <(Transport, Transport, Why)>::COUNT;
    assert!(series > largest && series < largest + 320, "{series} series");
}

#[test]
fn what_is_counted_is_rendered() {
    let metrics = Metrics::new(&Registry::new()).unwrap();
    let ms = Duration::from_millis(1);
    metrics.calls.ended(Verb::Acquire, Err(Reason::NotFound), ms);
    metrics.moves.got(Transport::Tcp, Moved::Done, 4096, ms);
    metrics.moves.fallbacks.at((Transport::Shm, Transport::Tcp, Why::OtherNode)).inc();
    metrics.ledger.freed(Cause::HolderGone, 100);
    metrics.peers.show(&[(PeerState::Connected, 2)]);
    let text = metrics.render().unwrap();
    for line in [
        "tensorlane_call_items_total{result=\"NOT_FOUND\",verb=\"acquire\"} 1",
        "tensorlane_call_duration_seconds_count{verb=\"acquire\"} 1",
        "tensorlane_get_bytes_total{result=\"done\",transport=\"tcp\"} 4096",
        "tensorlane_route_fallbacks_total{from=\"shm\",reason=\"other_node\",to=\"tcp\"} 1",
        "tensorlane_ledger_freed_bytes_total{cause=\"holder_gone\"} 100",
        "tensorlane_ledger_freed_tensors_total{cause=\"evicted\"} 0",
        "tensorlane_peer_known_peers{state=\"connected\"} 2",
        "tensorlane_sidecar_build_info{version=\"0.1.0\"} 1",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("verb=\"put\""), "a series that never happened appears");
}

#[test]
fn states_are_asked_for_when_somebody_looks() {
    let metrics = Metrics::new(&Registry::new()).unwrap();
    let arena = Arc::new(Mutex::new(ArenaBytes::default()));
    let seen = Arc::clone(&arena);
    metrics.on_scrape(Box::new(move |metrics| metrics.arena.show(&seen.lock())));
    *arena.lock() = ArenaBytes { size: 100, free: 60, sealed: 40, ..ArenaBytes::default() };
    assert!(metrics.render().unwrap().contains("tensorlane_arena_bytes{state=\"sealed\"} 40"));
    *arena.lock() = ArenaBytes { size: 100, free: 100, ..ArenaBytes::default() };
    assert!(metrics.render().unwrap().contains("tensorlane_arena_bytes{state=\"sealed\"} 0"));
}

#[test]
fn a_registry_takes_the_metrics_of_one_sidecar_only() {
    let registry = Registry::new();
    assert!(Metrics::new(&registry).is_ok());
    assert!(Metrics::new(&registry).is_err());
}
