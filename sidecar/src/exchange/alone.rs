//! An exchange of a small arena, without peers, for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::Registry;
use tensorlane_memory::{Arena, ArenaOptions, Block, Purpose};
use tensorlane_proto::failure::Failure;
use tensorlane_proto::identity::{Fingerprint, Incarnation};
use tensorlane_proto::ledger::Limits;

use super::{Exchange, ExchangeSettings, FanoutSettings, RoutePolicy};
use crate::cancel::Cancel;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::store::{AllocRequest, Claimant, Me, Store, StoreSettings};
use crate::workers::Workers;

/// Longer than any test takes: nothing ends because of the time.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Exchange on its own, with what it shares with the rest of a sidecar.
pub(crate) fn alone() -> (Arc<Exchange>, Workers, Arc<Metrics>) {
    alone_as("here")
}

/// Exchange on its own, of a peer of this name.
pub(crate) fn alone_as(peer: &str) -> (Arc<Exchange>, Workers, Arc<Metrics>) {
    let options = ArenaOptions { segment_bytes: 4 << 20, ready_bytes: 0, ..ArenaOptions::new(8 << 20) };
    let arena = Arena::start(options, Arc::new(|| {})).unwrap();
    let me =
        Me { exchange: "lab".parse().unwrap(), peer: peer.parse().unwrap(), incarnation: Incarnation(1) };
    let settings = StoreSettings {
        limits: Limits::default(),
        ticket_ttl: MINUTE,
        lease_grace: MINUTE,
        metadata_bytes: 1 << 20,
    };
    let store = Store::new(me, settings, arena, Clock::start());
    let settings = ExchangeSettings {
        deadline: MINUTE,
        deadline_max: MINUTE,
        fingerprint: Fingerprint([7; 32]),
        routes: RoutePolicy::default(),
        fanout: FanoutSettings::default(),
        waiting_bytes: 32 << 20,
    };
    let (workers, metrics) = (Workers::default(), Arc::new(Metrics::new(&Registry::new()).unwrap()));
    (Exchange::new(store, workers.clone(), Arc::clone(&metrics), settings), workers, metrics)
}

/// Memory of its arena, once there is room for it.
pub(crate) fn allocate(exchange: &Exchange, bytes: u64, patience: Duration) -> Result<Block, Failure> {
    exchange.store.allocate(&AllocRequest {
        writer: None,
        claimant: &Claimant::Holder(None),
        purpose: Purpose::Put,
        bytes,
        deadline: Instant::now() + patience,
        cancel: &Cancel::default(),
    })
}

#[test]
fn a_call_that_panics_is_answered_and_counted() {
    let (exchange, workers, _) = alone();
    let (tell, told) = std::sync::mpsc::channel();
    let done = Box::new(move |outcome: Result<(), _>| tell.send(outcome).unwrap());
    exchange.on_worker(done, |_| panic!("part of the test"));
    let failure = told.recv_timeout(MINUTE).unwrap().unwrap_err();
    assert_eq!(failure.reason, tensorlane_proto::Reason::Internal, "{failure}");
    workers.stop();
    assert_eq!(exchange.threads().panics(crate::metrics::label::PanicScope::Call), 1);
}
