//! Tensors that readers get from each other: what comes of it, and what it costs when a holder does not do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorlane_memory::Block;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

use super::transports::NONE;
use super::world::*;
use crate::peer::transport::lanes::{GRANULE, Transfer};
use crate::peer::{CallHandle, Growth, LanesConfig, Paths, PeerKey};

const ID: u64 = 7;
const BYTES: u64 = 20 * GRANULE + 5;

const WAYS: [(&str, LanesConfig); 3] = [
    ("TLS", LanesConfig { count: 2, ..NONE }),
    ("plain", LanesConfig { count: 2, plain: true, ..NONE }),
    ("QUIC", LanesConfig { quic: 2, ..NONE }),
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
        let table = Arc::new(Table::default());
        let names = ["a", "b", "c", "d", "e"];
        let mut all: Vec<One> = (0..=readers)
            .map(|at| Start { name: names[at], incarnation: at as u128 + 1, ..start(at) }.start(&table))
            .collect();
        let readers = all.split_off(1);
        let owner = all.remove(0);
        owner.twin.add(ID, sealed(&owner.arena, BYTES, 3), 1);
        readers.iter().for_each(|reader| reader.connect("a"));
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
        let growth = Growth::new();
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

    fn sent(&self, one: &One) -> u64 {
        one.peers.counters().bytes_out.load(Ordering::SeqCst)
    }

    /// All that is left are the tensor and its copies, which are let go.
    fn assert_over(self) {
        let Self { owner, readers, way } = self;
        let all: Vec<&One> = readers.iter().chain([&owner]).collect();
        until(&format!("{way}: all leases have ended"), || all.iter().all(|one| one.twin.leased() == 0));
        for one in all {
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
    /// Who sent what, if all that came is right.
    fn end(self, world: &World) -> Vec<(String, u64)> {
        let (crc32c, paths) = self.told.recv_timeout(PATIENCE).expect("every pull has an outcome").unwrap();
        let bytes = self.block.chunk(0..BYTES).unwrap();
        assert!(bytes == world.owner.own_bytes(ID), "{}", world.way);
        assert_eq!(crc32c, Some(crc32c::crc32c(bytes)), "{}: the owner says what it must be", world.way);
        let senders = Vec::<v1::Sender>::from(paths.senders());
        senders.into_iter().map(|sender| (sender.peer, sender.bytes)).collect()
    }
}

/// A tensor on its way to a holder, at the hand of the test.
struct Growing {
    transfer: Arc<Transfer>,
    growth: Arc<Growth>,
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
        assert_eq!(senders, [vec![], alone("b"), alone("c"), alone("d")], "{}", world.way);
        assert_eq!(world.sent(&world.owner), BYTES, "{}", world.way);
        let counters = world.readers[1].peers.counters();
        assert_eq!(counters.relayed_in.load(Ordering::SeqCst), BYTES);
        until("it has counted", || counters.relayed_out.load(Ordering::SeqCst) == BYTES);
        until("the owner knows who has it", || world.owner.twin.left.lock().len() == 4);
        assert!(world.owner.twin.left.lock().iter().all(|(_, holds)| *holds));
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
        assert_eq!(world.sent(&world.owner), BYTES);
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
        until("all that the holder has is here", || bytes_in(&world.readers[1]) == 12 * GRANULE);
        assert_eq!(world.sent(&world.owner), 0);
        growing.growth.gone();
        let rest = BYTES - 12 * GRANULE;
        let senders = pull.end(&world);
        assert_eq!(senders, [("b".to_owned(), 12 * GRANULE), ("a".to_owned(), rest)], "{}", world.way);
        assert_eq!(world.sent(&world.owner), rest);
        assert_eq!(world.readers[1].peers.counters().holders_lost.count("refused"), 1);
        drop(growing);
        world.assert_over();
    }
}

#[test]
fn a_holder_that_dies_costs_what_was_under_way_and_the_next_one_goes_on() {
    for way in WAYS {
        let world = World::new(3, way);
        world.give(2, &[0, 1]);
        ["b", "c"].into_iter().for_each(|holder| world.readers[2].connect(holder));
        let (first, second) = (world.grows(0, 9), world.grows(1, 21));
        let pull = world.begin(2);
        until("all that the first has is here", || bytes_in(&world.readers[2]) == 9 * GRANULE);
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
    let another = PeerKey { incarnation: tensorlane_proto::Incarnation(99), ..world.readers[1].key() };
    world.owner.twin.holders.lock().get_mut(&name("d")).unwrap()[1] = another;
    assert!(world.begin(2).end(&world).is_empty(), "the owner sent all");
    let lost = &world.readers[2].peers.counters().holders_lost;
    assert_eq!((lost.count("refused"), lost.count("unreachable")), (1, 1));
    world.assert_over();
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
fn of_a_tensor_without_a_checksum_the_owner_says_one_where_others_send_it() {
    for way in WAYS {
        let world = World::new(2, way);
        world.owner.twin.unsummed.store(true, Ordering::SeqCst);
        world.give(1, &[0]);
        let growing = world.grows(0, 21);
        assert_eq!(world.begin(1).end(&world), [("b".to_owned(), BYTES)], "{}", world.way);
        drop(growing);
        let first = world.begin(0);
        let (crc32c, _) = first.told.recv_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(crc32c, None, "from the owner it needs none");
        drop(first.block);
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
        assert_eq!(world.sent(&world.owner), BYTES);
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

#[test]
fn a_connection_with_the_owner_that_is_lost_meanwhile_changes_nothing() {
    let table = Arc::new(Table::default());
    let start = |name| Start { lanes: WAYS[0].1, ..Start::new(name) };
    let (owner, holder) = (start("a").start(&table), start("b").start(&table));
    let proxy = super::proxy::Proxy::new(owner.peers.bound_address());
    table.list("a", proxy.address, owner.fingerprint);
    let reader = Start { listed: Some(nowhere()), ..start("c") }.start(&table);
    owner.twin.add(ID, sealed(&owner.arena, BYTES, 3), 1);
    until("the reader has reached the owner", || {
        let _ = reader.peers.ensure(&name("a"), std::time::Instant::now() + PATIENCE);
        reader.peers.is_connected(&name("a"))
    });
    let world = World { owner, readers: vec![holder, reader], way: "TLS" };
    world.give(1, &[0]);
    let growing = world.grows(0, 5);
    let pull = world.begin(1);
    until("some of it is here", || bytes_in(&world.readers[1]) == 5 * GRANULE);
    let closed =
        || world.readers[1].peers.counters().closed.all().iter().map(|(_, count)| count).sum::<u64>();
    let before = closed();
    proxy.cut();
    until("the reader has lost the owner", || closed() > before);
    growing.grow(16);
    assert_eq!(pull.end(&world), [("b".to_owned(), BYTES)]);
    assert_eq!(world.sent(&world.owner), 0);
    drop(growing);
    drop(proxy);
    world.assert_over();
}

#[test]
fn a_holder_that_falls_silent_is_left_after_two_seconds() {
    for (way, lanes) in &WAYS[..2] {
        let patience = Duration::from_secs(1);
        let lanes = LanesConfig { patience, ..*lanes };
        let table = Arc::new(Table::default());
        let start = |name| Start { lanes, progress: Duration::from_secs(1), ..Start::new(name) };
        let owner = start("a").start(&table);
        let holder = start("b").start(&table);
        let proxy = super::proxy::Proxy::new(holder.peers.bound_address());
        table.list("b", proxy.address, holder.fingerprint);
        let reader = Start { listed: Some(nowhere()), ..start("c") }.start(&table);
        owner.twin.add(ID, sealed(&owner.arena, BYTES, 3), 1);
        reader.connect("a");
        let world = World { owner, readers: vec![holder, reader], way };
        world.give(1, &[0]);
        let growing = world.grows(0, 6);
        let pull = world.begin(1);
        until("all that the holder has is here", || bytes_in(&world.readers[1]) == 6 * GRANULE);
        proxy.hold.store(true, Ordering::SeqCst);
        growing.grow(15);
        let senders = pull.end(&world);
        assert_eq!(senders[0], ("b".to_owned(), 6 * GRANULE), "{way}");
        // The sums of plain pieces come over control: those that had not come are asked for again with their pieces.
        let (rest, again) = (BYTES - 6 * GRANULE, if lanes.plain { 4 * GRANULE } else { 0 });
        assert!(senders[1].0 == "a" && (rest..=rest + again).contains(&senders[1].1), "{way}: {senders:?}");
        drop(growing);
        drop(proxy);
        world.assert_over();
    }
}
