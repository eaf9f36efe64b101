//! Tensors that readers get from each other: what comes of it, and what it costs when a holder does not do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorlane_memory::Block;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Incarnation, Reason, Selection};

use super::transports::UNHURRIED;
use super::world::*;
use crate::peer::partial::Ready;
use crate::peer::transport::lanes::{GRANULE, Transfer};
use crate::peer::{
    CallHandle, HolderLost, LanesConfig, LostHolder, PartialTensor, Paths, PeerKey, PullFailed, PullOrder,
    Pulled,
};

mod alone;
mod forged;

const ID: u64 = 7;
const BYTES: u64 = 20 * GRANULE + 5;

/// No holder is let go because lanes come late on a busy machine, or stand still for a while there.
const PATIENT: LanesConfig = LanesConfig { patience: PATIENCE, ..UNHURRIED };

const WAYS: [(&str, LanesConfig); 3] = [
    ("TLS", LanesConfig { count: 2, ..PATIENT }),
    ("plain", LanesConfig { count: 2, plain: true, ..PATIENT }),
    ("QUIC", LanesConfig { quic: 2, ..PATIENT }),
];

/// An owner `a` with a tensor, and readers `b`, `c`, ...
struct World {
    owner: One,
    readers: Vec<One>,
    way: &'static str,
}

impl World {
    fn new(readers: usize, (way, lanes): (&'static str, LanesConfig)) -> Self {
        Self::of(readers, way, |_| Start { lanes, ..Start::new("x") })
    }

    /// Of peers that are started so, by their place.
    fn of(readers: usize, way: &'static str, start: impl Fn(usize) -> Start<'static>) -> Self {
        let world = Self::apart(readers, way, start);
        for (at, reader) in world.readers.iter().enumerate() {
            world.readers[..at].iter().chain([&world.owner]).for_each(|other| connect(reader, other));
        }
        world
    }

    /// Peers that are started so, by their place, and have not met yet.
    fn apart(readers: usize, way: &'static str, start: impl Fn(usize) -> Start<'static>) -> Self {
        let table = Arc::new(Table::default());
        let names = ["a", "b", "c", "d", "e"];
        let mut all: Vec<One> = (0..=readers)
            .map(|at| Start { name: names[at], incarnation: at as u128 + 1, ..start(at) }.start(&table))
            .collect();
        let readers = all.split_off(1);
        let owner = all.remove(0);
        owner.twin.add(ID, sealed(&owner.arena, BYTES, 3), 1);
        Self { owner, readers, way }
    }

    /// A reader is given to these, the first one first.
    fn give(&self, reader: usize, holders: &[usize]) {
        let keys: Vec<PeerKey> = holders.iter().map(|holder| self.readers[*holder].key()).collect();
        let reader = self.readers[reader].key().name;
        self.owner.twin.holders.lock().insert(reader, keys);
    }

    /// A reader that has got so many granules of the right bytes, and gets the others when it is told to.
    fn grows(&self, reader: usize, granules: u64) -> Growing {
        let one = &self.readers[reader];
        let (block, landing) = one.landing(BYTES);
        let growth = PartialTensor::new();
        growth.admit(PASS);
        one.twin.growths.lock().insert(ID, Arc::clone(&growth));
        let deadline = std::time::Instant::now() + PATIENCE;
        let transfer = Transfer::growing(1, landing, 0, deadline, Some(Arc::clone(&growth)));
        let growing = Growing { transfer, growth, block, content: self.owner.own_bytes(ID) };
        growing.grow(granules);
        growing
    }

    fn begin(&self, reader: usize) -> Pulling {
        let (told, handle, block) = self.readers[reader].pull_on("a", ID, BYTES);
        Pulling { told, handle, block }
    }

    /// The outcome of a pull that others are served from, as it is told.
    fn told(&self, reader: usize) -> Result<Pulled, PullFailed> {
        self.told_within(reader, PATIENCE)
    }

    /// The outcome of a pull that has so much time.
    fn told_within(&self, reader: usize, time: Duration) -> Result<Pulled, PullFailed> {
        let one = &self.readers[reader];
        let (_block, landing) = one.landing(BYTES);
        let (deadline, transport) = (std::time::Instant::now() + time, one.transport);
        let growth = Some(PartialTensor::new());
        let selection = Selection::All;
        let order =
            PullOrder { id: ID, selection, bytes: BYTES, stored: None, landing, deadline, transport, growth };
        let (tell, told) = std::sync::mpsc::channel();
        one.peers.pull(&name("a"), None, order, move |outcome| {
            let _ = tell.send(outcome);
        });
        told.recv_timeout(PATIENCE).expect("every pull has an outcome")
    }

    /// Number of times that a reader lost a holder for a reason.
    fn lost(&self, reader: usize, why: HolderLost) -> u64 {
        self.readers[reader].peers.counters().holders_lost.count(why.as_str())
    }

    fn sent(&self, one: &One) -> u64 {
        one.peers.counters().bytes_out.load(Ordering::SeqCst)
    }

    /// The owner sent so many bytes. It counts them after they have come.
    fn assert_owner_sent(&self, bytes: u64) {
        until("the owner has counted what it sent", || self.sent(&self.owner) >= bytes);
        assert_eq!(self.sent(&self.owner), bytes, "{}", self.way);
    }

    /// Returns whether the first granules of a pull of a reader are here, and nothing of them is waited for.
    fn has(&self, reader: usize, granules: u64) -> bool {
        let growth = self.readers[reader].twin.growths.lock()[&ID].clone();
        growth.wait(&(0..granules * GRANULE), &PASS, std::time::Instant::now()) == Ready::Now
    }

    /// Every reader has said that it is done, and that has come.
    fn await_leases(&self) {
        let all = || self.readers.iter().chain([&self.owner]);
        until(&format!("{}: all leases have ended", self.way), || all().all(|one| one.twin.leased() == 0));
    }

    /// All that is left are the tensor and its copies, which are let go.
    fn assert_over(self) {
        self.await_leases();
        for one in self.readers.iter().chain([&self.owner]) {
            one.twin.growths.lock().clear();
            one.assert_free();
        }
    }
}

struct Pulling {
    told: std::sync::mpsc::Receiver<Result<(Option<u32>, Paths), Failure>>,
    handle: CallHandle,
    block: Block,
}

impl Pulling {
    /// Senders and what they sent, if all that came is right.
    fn end(self, world: &World) -> Vec<(String, u64)> {
        let (_, paths) = self.told.recv_timeout(PATIENCE).expect("every pull has an outcome").unwrap();
        let bytes = self.block.chunk(0..BYTES).unwrap();
        assert!(bytes == world.owner.own_bytes(ID), "{}", world.way);
        let senders = Vec::<v1::Sender>::from(paths.senders());
        senders.into_iter().map(|sender| (sender.peer, sender.bytes)).collect()
    }
}

/// A tensor on its way to a holder, at the hand of the test.
struct Growing {
    transfer: Arc<Transfer>,
    growth: Arc<PartialTensor>,
    block: Block,
    content: Vec<u8>,
}

impl Growing {
    fn grow(&self, granules: u64) {
        for _ in 0..granules {
            if self.transfer.write_bytes_for_test(&self.content) {
                self.block.mark_sealed().unwrap();
                self.growth.whole(self.block.clone());
            }
        }
    }
}

#[test]
fn readers_that_come_together_form_a_chain_and_the_owner_sends_the_tensor_once() {
    for way in WAYS {
        let world = World::new(4, way);
        (1..4).for_each(|reader| world.give(reader, &[reader - 1]));
        let pulls: Vec<Pulling> = (0..4).map(|reader| world.begin(reader)).collect();
        let senders: Vec<_> = pulls.into_iter().map(|pull| pull.end(&world)).collect();
        let alone = |name: &str| vec![(name.to_owned(), BYTES)];
        let lost: Vec<_> = world.readers.iter().map(|one| one.peers.counters().holders_lost.all()).collect();
        assert_eq!(senders, [vec![], alone("b"), alone("c"), alone("d")], "{}: {lost:?}", world.way);
        world.assert_owner_sent(BYTES);
        let counters = world.readers[1].peers.counters();
        assert_eq!(counters.relayed_in.load(Ordering::SeqCst), BYTES);
        until("it has counted", || counters.relayed_out.load(Ordering::SeqCst) == BYTES);
        until("the owner knows who has it", || world.owner.twin.left.lock().len() == 4);
        assert!(world.owner.twin.left.lock().iter().all(|(_, holds)| *holds));
        world.assert_over();
    }
}

#[test]
fn readers_that_come_before_they_have_met_get_the_tensor_all_the_same() {
    for (way, lanes) in WAYS {
        let world = World::apart(4, way, |_| Start { lanes, ..Start::new("x") });
        (1..4).for_each(|reader| world.give(reader, &[reader - 1]));
        // Two may dial each other at once. What was under way on the connection that goes then comes again, or from elsewhere.
        let pulls: Vec<Pulling> = (0..4).map(|reader| world.begin(reader)).collect();
        for (pull, holder) in pulls.into_iter().zip(["", "b", "c", "d"]) {
            let senders = pull.end(&world);
            assert!(senders.iter().all(|(name, _)| [holder, "a"].contains(&&**name)), "{way}: {senders:?}");
            let came: u64 = senders.iter().map(|(_, bytes)| bytes).sum();
            assert!(senders.is_empty() || (BYTES..3 * BYTES).contains(&came), "{way}: {senders:?}");
        }
        until("the owner has counted what it sent", || world.sent(&world.owner) >= BYTES);
        assert!(world.sent(&world.owner) < 4 * 3 * BYTES, "{way}");
        // The word that a pull is over may be lost with a connection: then its lease ends a grace after there is another one.
        world.readers.iter().for_each(reach_owner);
        world.assert_over();
    }
}

#[test]
fn a_late_reader_is_served_by_a_holder_alone() {
    for way in WAYS {
        let world = World::new(2, way);
        assert!(world.begin(0).end(&world).is_empty());
        world.give(1, &[0]);
        assert_eq!(world.begin(1).end(&world), [("b".to_owned(), BYTES)]);
        world.assert_owner_sent(BYTES);
        world.assert_over();
    }
}

#[test]
fn a_copy_in_the_ledger_is_leased_for_a_late_reader_until_it_is_done() {
    let world = World::new(2, WAYS[0]);
    let holder = &world.readers[0];
    holder.twin.add(ID, sealed(&holder.arena, BYTES, 3), 1);
    world.give(1, &[0]);
    assert_eq!(world.begin(1).end(&world), [("b".to_owned(), BYTES)]);
    assert_eq!(world.sent(&world.owner), 0);
    assert_eq!(holder.twin.opens.load(Ordering::SeqCst), 1);
    world.assert_over();
}

#[test]
fn what_a_holder_had_is_kept_when_it_has_no_more_and_the_owner_sends_the_rest() {
    for way in WAYS {
        let world = World::new(2, way);
        world.give(1, &[0]);
        let growing = world.grows(0, 12);
        let pull = world.begin(1);
        // What came is counted before the sum of a plain piece is there, without which it would come again.
        until("all that the holder has is here", || world.has(1, 12));
        assert_eq!(bytes_in(&world.readers[1]), 12 * GRANULE);
        assert_eq!(world.sent(&world.owner), 0);
        growing.growth.gone();
        let rest = BYTES - 12 * GRANULE;
        let senders = pull.end(&world);
        world.assert_owner_sent(rest);
        assert_eq!(senders, [("b".to_owned(), 12 * GRANULE), ("a".to_owned(), rest)], "{}", world.way);
        assert_eq!(world.lost(1, HolderLost::Refused), 1);
        let said = LostHolder { peer: world.readers[0].key(), why: Some(HolderLost::Refused) };
        until("the owner knows why", || *world.owner.twin.lost.lock() == [said.clone()]);
        drop(growing);
        world.assert_over();
    }
}

#[test]
fn a_holder_that_dies_costs_what_was_under_way_and_the_next_one_goes_on() {
    for way in WAYS {
        let world = World::new(3, way);
        world.give(2, &[0, 1]);
        let (first, second) = (world.grows(0, 9), world.grows(1, 21));
        let pull = world.begin(2);
        // What came is counted before the sum of a plain piece is there, without which it would come again.
        until("all that the first has is here", || world.has(2, 9));
        assert_eq!(bytes_in(&world.readers[2]), 9 * GRANULE);
        world.readers[0].peers.stop();
        let senders = pull.end(&world);
        let rest = BYTES - 9 * GRANULE;
        let lost = &world.readers[2].peers.counters().holders_lost;
        let expected = [("b".to_owned(), 9 * GRANULE), ("c".to_owned(), rest)];
        assert_eq!(senders, expected, "{}: {:?}", world.way, lost.all());
        assert_eq!(world.sent(&world.owner), 0);
        assert_eq!(world.readers[2].peers.counters().holders_lost.count("unreachable"), 1);
        drop((first, second));
        world.assert_over();
    }
}

#[test]
fn a_reader_waits_for_a_holder_that_is_slow_and_lives() {
    let world = World::new(2, WAYS[0]);
    world.give(1, &[0]);
    let growing = world.grows(0, 1);
    let pull = world.begin(1);
    for step in 1..21 {
        until("what the holder has is here", || bytes_in(&world.readers[1]) == step * GRANULE);
        growing.grow(1);
    }
    assert_eq!(pull.end(&world), [("b".to_owned(), BYTES)]);
    assert_eq!(world.sent(&world.owner), 0);
    drop(growing);
    world.assert_over();
}

#[test]
fn a_holder_that_nobody_reaches_or_that_has_nothing_is_passed_over() {
    let world = World::new(3, WAYS[0]);
    // Nothing is there at b, and the life of c that the owner names is over.
    world.give(2, &[0, 1]);
    let another = PeerKey { incarnation: Incarnation(99), ..world.readers[1].key() };
    world.owner.twin.holders.lock().get_mut(&name("d")).unwrap()[1] = another;
    assert!(world.begin(2).end(&world).is_empty(), "the owner sent all");
    let lost = &world.readers[2].peers.counters().holders_lost;
    assert_eq!((lost.count("refused"), lost.count("unreachable")), (1, 1));
    world.assert_over();
}

#[test]
fn a_pull_tries_two_holders_and_then_the_owner() {
    let world = World::new(4, WAYS[0]);
    world.give(3, &[0, 1, 2]);
    // The lives of the first two are over.
    let over = |holder: &mut PeerKey| holder.incarnation = Incarnation(99);
    world.owner.twin.holders.lock().get_mut(&name("e")).unwrap()[..2].iter_mut().for_each(over);
    let growing = world.grows(2, 21);
    assert!(world.begin(3).end(&world).is_empty());
    assert_eq!((world.lost(3, HolderLost::Unreachable), world.lost(3, HolderLost::Refused)), (2, 0));
    until("the owner knows of both", || world.owner.twin.lost.lock().len() == 2);
    drop(growing);
    world.assert_over();
}

#[test]
fn a_pull_that_two_refuse_asks_the_next_one() {
    let world = World::new(4, WAYS[0]);
    world.give(3, &[0, 1, 2]);
    let growing = world.grows(2, 21);
    assert_eq!(world.begin(3).end(&world), [("d".to_owned(), BYTES)]);
    assert_eq!(world.lost(3, HolderLost::Refused), 2);
    assert_eq!(world.sent(&world.owner), 0);
    drop(growing);
    world.assert_over();
}

#[test]
fn a_holder_that_refused_and_is_named_again_is_asked_again_and_there_is_an_end() {
    let world = World::new(2, WAYS[0]);
    world.give(1, &[0]);
    world.owner.twin.again.store(true, Ordering::SeqCst);
    assert!(world.begin(1).end(&world).is_empty());
    assert_eq!(world.lost(1, HolderLost::Refused), tensorlane_proto::frame::LOST_MAX as u64);
    world.assert_over();
}

#[test]
fn a_holder_that_was_not_reached_is_not_tried_again_in_the_next_pull() {
    let world = World::new(2, WAYS[0]);
    let life = world.readers[0].key();
    let over = PeerKey { incarnation: Incarnation(99), ..life.clone() };
    world.owner.twin.holders.lock().insert(name("c"), vec![over.clone()]);
    assert!(world.begin(1).end(&world).is_empty());
    assert_eq!((world.lost(1, HolderLost::Unreachable), world.lost(1, HolderLost::Cooldown)), (1, 0));
    world.owner.twin.lost.lock().clear();
    assert!(world.begin(1).end(&world).is_empty());
    assert_eq!((world.lost(1, HolderLost::Unreachable), world.lost(1, HolderLost::Cooldown)), (1, 1));
    let said = LostHolder { peer: over, why: Some(HolderLost::Unreachable) };
    until("the owner is told all the same", || *world.owner.twin.lost.lock() == [said.clone()]);
    // Another life of it is another one.
    world.give(1, &[0]);
    let growing = world.grows(0, 21);
    assert_eq!(world.begin(1).end(&world), [("b".to_owned(), BYTES)]);
    drop(growing);
    world.assert_over();
}

#[test]
fn a_holder_that_a_hurried_pull_did_not_reach_is_asked_by_others() {
    let world = World::new(2, WAYS[0]);
    let over = PeerKey { incarnation: Incarnation(99), ..world.readers[0].key() };
    world.owner.twin.holders.lock().insert(name("c"), vec![over]);
    drop(world.told_within(1, Duration::from_secs(30)));
    assert!(world.begin(1).end(&world).is_empty());
    assert_eq!((world.lost(1, HolderLost::Unreachable), world.lost(1, HolderLost::Cooldown)), (2, 0));
    world.assert_over();
}

#[test]
fn the_owner_hears_that_the_tensor_is_here_once_it_is_proven_and_not_before() {
    let world = World::new(2, WAYS[0]);
    for (reader, is_right) in [(0, true), (1, false)] {
        let Ok(Pulled { pull_guard, .. }) = world.told(reader) else { panic!("it came") };
        let pull_guard = pull_guard.unwrap();
        assert_eq!(world.owner.twin.leased(), 1, "it is leased until then");
        assert_eq!(world.owner.twin.left.lock().len(), reader);
        if is_right {
            pull_guard.holds();
        } else {
            drop(pull_guard);
        }
        until("the owner heard it", || world.owner.twin.left.lock().len() > reader);
        world.await_leases();
    }
    let left = world.owner.twin.left.lock().clone();
    assert_eq!(left, [(name("b"), true), (name("c"), false)]);
    world.assert_over();
}

#[test]
fn what_the_owner_does_not_prove_comes_from_the_owner() {
    for way in WAYS {
        let world = World::new(2, way);
        world.owner.twin.unprovable.store(true, Ordering::SeqCst);
        world.give(1, &[0]);
        let growing = world.grows(0, 21);
        let pull = world.begin(1);
        pull.end(&world);
        // Of what the holder sent meanwhile nothing was used.
        world.assert_owner_sent(BYTES);
        drop(growing);
        world.assert_over();
    }
}

#[test]
fn whoever_shows_another_pass_gets_nothing() {
    let world = World::new(2, WAYS[0]);
    let growing = world.grows(0, 21);
    growing.growth.admit([1; 16]);
    world.give(1, &[0]);
    assert!(world.begin(1).end(&world).is_empty());
    assert_eq!(world.sent(&world.readers[0]), 0);
    drop(growing);
    world.assert_over();
}

#[test]
fn a_tensor_without_a_checksum_is_proven_like_any_other_where_others_send_it() {
    for way in WAYS {
        let world = World::new(2, way);
        world.owner.twin.unsummed.store(true, Ordering::SeqCst);
        world.give(1, &[0]);
        let growing = world.grows(0, 21);
        assert_eq!(world.begin(1).end(&world), [("b".to_owned(), BYTES)], "{}", world.way);
        drop(growing);
        world.assert_over();
    }
}

#[test]
fn peers_of_an_older_version_are_served_by_the_owner_and_pass_nothing_on() {
    for old in 0..3 {
        let version = |at: usize| if at == old { 2 } else { tensorlane_proto::frame::PEER_VERSION };
        let lanes = WAYS[0].1;
        let world = World::of(2, "TLS", |at| Start { lanes, version: version(at), ..Start::new("x") });
        world.give(1, &[0]);
        let growing = world.grows(0, 21);
        assert!(world.begin(1).end(&world).is_empty(), "{old} is old");
        // It is reached, and other pulls may ask it.
        let lost = (world.lost(1, HolderLost::Unreachable), world.lost(1, HolderLost::Cooldown));
        assert_eq!(lost, (0, u64::from(old == 1)), "{old} is old");
        world.assert_owner_sent(BYTES);
        drop(growing);
        world.assert_over();
    }
}

#[test]
fn a_reader_that_gives_up_leaves_nothing_at_owner_or_holder() {
    for way in WAYS {
        let world = World::new(2, way);
        let holder = &world.readers[0];
        holder.twin.add(ID, sealed(&holder.arena, BYTES, 3), 1);
        world.give(1, &[0]);
        let pull = world.begin(1);
        until("some of it is here", || bytes_in(&world.readers[1]) > 0);
        pull.handle.cancel();
        match pull.told.recv_timeout(PATIENCE).unwrap() {
            Err(failure) => assert_eq!(failure.reason, Reason::Cancelled),
            Ok(_) => assert_eq!(bytes_in(&world.readers[1]), BYTES, "it was quicker"),
        }
        drop(pull.block);
        world.assert_over();
    }
}

fn reach_owner(reader: &One) {
    until("the reader has reached the owner", || {
        let _ = reader.peers.ensure(&name("a"), std::time::Instant::now() + PATIENCE);
        reader.peers.is_connected(&name("a"))
    });
}

/// An owner behind a proxy, a holder that has got five granules, and a reader that has got those from it.
fn proxied() -> (World, super::proxy::Proxy, Growing, Pulling) {
    let table = Arc::new(Table::default());
    let start = |name| Start { lanes: WAYS[0].1, ..Start::new(name) };
    let (owner, holder) = (start("a").start(&table), start("b").start(&table));
    let proxy = super::proxy::Proxy::new(owner.peers.bound_address());
    table.list("a", proxy.address, owner.fingerprint);
    let reader = Start { listed: Some(nowhere()), ..start("c") }.start(&table);
    owner.twin.add(ID, sealed(&owner.arena, BYTES, 3), 1);
    reach_owner(&reader);
    let world = World { owner, readers: vec![holder, reader], way: "TLS" };
    world.give(1, &[0]);
    let growing = world.grows(0, 5);
    let pull = world.begin(1);
    until("some of it is here", || bytes_in(&world.readers[1]) == 5 * GRANULE);
    (world, proxy, growing, pull)
}

/// Connections that a reader has lost.
fn closed(reader: &One) -> u64 {
    reader.peers.counters().closed.all().iter().map(|(_, count)| count).sum()
}

#[test]
fn a_reader_that_is_back_and_is_not_given_to_its_holder_any_more_lets_it_go() {
    let (world, proxy, growing, pull) = proxied();
    // Nobody knows of it any more, so somebody may be given to it that the holder waits for.
    world.give(1, &[]);
    proxy.cut();
    let rest = BYTES - 5 * GRANULE;
    assert_eq!(pull.end(&world), [("b".to_owned(), 5 * GRANULE), ("a".to_owned(), rest)]);
    assert!(world.readers[1].peers.counters().holders_lost.all().is_empty(), "none was waited for in vain");
    // The proxy carries the word that the reader is done, too.
    world.await_leases();
    drop((growing, proxy));
    world.assert_over();
}

#[test]
fn a_connection_with_the_owner_that_is_lost_meanwhile_changes_nothing() {
    let (world, proxy, growing, pull) = proxied();
    let before = closed(&world.readers[1]);
    proxy.cut();
    until("the reader has lost the owner", || closed(&world.readers[1]) > before);
    growing.grow(16);
    assert_eq!(pull.end(&world), [("b".to_owned(), BYTES)]);
    assert_eq!(world.sent(&world.owner), 0);
    // Nothing waits for the owner any more, so nobody may dial it. It ends the lease after a grace, which this one has not.
    reach_owner(&world.readers[1]);
    // The proxy carries the word that the reader is done, too.
    world.await_leases();
    drop(growing);
    drop(proxy);
    world.assert_over();
}

#[test]
fn a_holder_that_falls_silent_is_left_after_a_while() {
    for (way, lanes) in &WAYS[..2] {
        let (progress, patience) = (Duration::from_secs(5), Duration::from_secs(8));
        let lanes = LanesConfig { progress, patience, ..*lanes };
        let table = Arc::new(Table::default());
        // It is the lanes that leave it, and not the end of their connection.
        let start = |name| Start { lanes, progress: 3 * PATIENCE, ..Start::new(name) };
        let owner = start("a").start(&table);
        let holder = start("b").start(&table);
        let proxy = super::proxy::Proxy::new(holder.peers.bound_address());
        table.list("b", proxy.address, holder.fingerprint);
        let reader = Start { listed: Some(nowhere()), ..start("c") }.start(&table);
        owner.twin.add(ID, sealed(&owner.arena, BYTES, 3), 1);
        ["a", "b"].into_iter().for_each(|other| reader.connect(other));
        let world = World { owner, readers: vec![holder, reader], way };
        world.give(1, &[0]);
        let growing = world.grows(0, 6);
        let pull = world.begin(1);
        // What came is counted before the sum of a plain piece is there, without which it would come again.
        until("all that the holder has is here", || world.has(1, 6));
        proxy.hold.store(true, Ordering::SeqCst);
        growing.grow(15);
        let senders = pull.end(&world);
        let rest = BYTES - 6 * GRANULE;
        assert_eq!(senders, [("b".to_owned(), 6 * GRANULE), ("a".to_owned(), rest)], "{way}");
        drop(growing);
        drop(proxy);
        world.assert_over();
    }
}
