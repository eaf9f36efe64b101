//! Peers whose addresses are names that nobody resolves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::Fingerprint;

use super::world::*;
use crate::identity::Identity;
use crate::peer::Resolver;
use crate::threads::Threads;

/// The system's resolver while no server of names answers: it says nothing until the test is over.
struct Hanging {
    resolver: Resolver,
    asked: Arc<AtomicUsize>,
    _release: mpsc::Sender<()>,
}

fn hanging() -> Hanging {
    let asked = Arc::new(AtomicUsize::new(0));
    let (release, released) = mpsc::channel::<()>();
    let (released, counts) = (Mutex::new(released), Arc::clone(&asked));
    let resolver = Resolver::with(Threads::default(), move |_| {
        counts.fetch_add(1, Ordering::SeqCst);
        // Only ever the end of the test.
        let _ = released.lock().recv();
        Err(std::io::ErrorKind::TimedOut.into())
    });
    Hanging { resolver, asked, _release: release }
}

/// A peer whose peer `far` is to be found by name only.
fn with_a_peer_by_name(hanging: &Hanging, handshake: Duration) -> (Arc<Table>, One) {
    let table = Arc::new(Table::default());
    let far: Identity = super::keys::identity();
    table.list_at("far", "far.invalid:9421", far.fingerprint);
    let resolver = Some(hanging.resolver.clone());
    let a = Start { resolver, handshake, listed: Some(nowhere()), ..Start::new("a") }.start(&table);
    (table, a)
}

#[test]
fn peers_stop_although_a_name_is_looked_up_without_an_end() {
    let hanging = hanging();
    let (_table, a) = with_a_peer_by_name(&hanging, PATIENCE * 10);
    let (told, _call, _block) = a.pull("far", None, 1, tensorlane_proto::Selection::All, 4096);
    until("it is looked up", || hanging.asked.load(Ordering::SeqCst) == 1);
    let (tell, stopped) = mpsc::channel();
    let peers = Arc::clone(&a.peers);
    let stopping = std::thread::spawn(move || {
        peers.stop();
        tell.send(()).unwrap();
    });
    stopped.recv_timeout(PATIENCE).expect("it stops");
    stopping.join().unwrap();
    assert!(told.recv_timeout(PATIENCE).unwrap().is_err());
}

#[test]
fn a_name_that_is_not_resolved_is_an_attempt_that_failed_and_holds_up_no_other_peer() {
    let hanging = hanging();
    let (table, a) = with_a_peer_by_name(&hanging, Duration::from_millis(50));
    let b = Start::new("b").start(&table);
    b.twin.add(1, sealed(&b.arena, 4096, 5), 1);
    let far = a.peers.ensure(&name("far"), Instant::now() + PATIENCE).unwrap_err();
    assert!(far.message.contains("far.invalid:9421 was not resolved in time"), "{far}");
    assert!(a.get("b", 1, 4096).is_ok());
    let again = a.peers.ensure(&name("far"), Instant::now() + PATIENCE).unwrap_err();
    assert!(again.message.contains("not resolved"), "{again}");
    assert_eq!(hanging.asked.load(Ordering::SeqCst), 1, "a name is looked up by one thread at a time");
}

#[test]
fn a_peer_whose_pod_has_no_ip_yet_is_waited_for_and_reached_once_it_has_one() {
    let table = Arc::new(Table::default());
    let b = Start { listed: Some(nowhere()), ..Start::new("b") }.start(&table);
    b.twin.add(1, sealed(&b.arena, 4096, 5), 1);
    table.list_without_ip("b", b.fingerprint);
    let a = Start { listed: Some(nowhere()), ..Start::new("a") }.start(&table);
    let too_soon = a.peers.ensure(&name("b"), Instant::now()).unwrap_err();
    assert!(too_soon.message.contains("b was not reached within"), "{too_soon}");
    let (told, _call, _block) = a.pull("b", None, 1, tensorlane_proto::Selection::All, 4096);
    until("it says why it waits", || {
        a.peers.status().iter().any(|view| view.last_error.contains("no IP of its pod"))
    });
    let too_late = a.peers.ensure(&name("b"), Instant::now()).unwrap_err();
    assert!(too_late.message.contains("no IP of its pod"), "{too_late}");
    assert!(told.try_recv().is_err(), "the call waits");
    table.list("b", b.peers.bound_address(), b.fingerprint);
    assert!(told.recv_timeout(PATIENCE).unwrap().is_ok());
}

#[test]
fn a_peer_whose_pod_has_no_ip_yet_is_not_waited_for_by_those_who_ask_all_for_a_name() {
    let table = Arc::new(Table::default());
    for (key, peer) in (1..).zip(["b", "c", "d"]) {
        table.list(peer, nowhere(), Fingerprint([key; 32]));
    }
    table.list_without_ip("b", Fingerprint([1; 32]));
    let a = Start { listed: Some(nowhere()), peers_max: 1, ..Start::new("a") }.start(&table);
    assert_eq!(a.peers.resting(), [name("c"), name("d")]);
}
