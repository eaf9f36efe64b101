//! Frames on copies that sessions hear. The death of an owner is played by an arena that is stopped: its pipes are
//! closed.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use prometheus::Registry;
use tensorlane_memory::{ArenaOptions, Block, Foreign, Purpose, passing};
use tensorlane_proto::frame::{EXCHANGE_SINCE, HEADER_BYTES, Header, SESSION_BODY_MAX, SessionKind};
use tensorlane_proto::ledger::Limits;

use super::*;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::output_budget::OutputBudget;
use crate::session::{Around, SessionLink};
use crate::store::{Me, StoreSettings};
use crate::workers::Workers;

const SEGMENT: u64 = 1 << 20;
const TENSOR: u64 = 4096;

fn arena(bytes: u64) -> Arc<Arena> {
    let options = ArenaOptions { segment_bytes: SEGMENT, ready_bytes: 0, ..ArenaOptions::new(bytes) };
    Arena::start(options, Arc::new(|| {})).unwrap()
}

/// A session that maps a tensor of an owner on the node.
struct Scene {
    store: Arc<Store>,
    link: Arc<SessionLink>,
    owner: Arc<Arena>,
    _foreign: Foreign,
    block: Block,
    client: UnixStream,
    events: UnixStream,
    /// Descriptors that came with the frames.
    descriptors: Vec<OwnedFd>,
}

impl Scene {
    fn new(version: u32) -> Self {
        // Longer than any test takes: nothing here ends because of the time.
        let minute = Duration::from_secs(60);
        let me = Me {
            exchange: "lab".parse().unwrap(),
            peer: "here".parse().unwrap(),
            incarnation: tensorlane_proto::Incarnation(1),
        };
        let settings = StoreSettings {
            limits: Limits::default(),
            ticket_ttl: minute,
            lease_grace: minute,
            metadata_bytes: 1 << 20,
        };
        let store = Store::new(me, settings, arena(4 * SEGMENT), Clock::start());
        let (ours, client) = UnixStream::pair().unwrap();
        let (write_end, events) = UnixStream::pair().unwrap();
        let (drains, unread) = (Workers::default(), &OutputBudget::new(1 << 20));
        let metrics = Arc::new(Metrics::new(&Registry::new()).unwrap());
        let around = Around { client: "test".into(), version, drains, unread, metrics, map_deadline: minute };
        let link = SessionLink::new(SessionId(1), ours, write_end.into(), around);
        store.session_began(&link);
        for end in [&client, &events] {
            end.set_nonblocking(true).unwrap();
        }
        let owner = arena(4 * SEGMENT);
        let (foreign, block) = lent(&owner, &store.arena);
        Self { store, link, owner, _foreign: foreign, block, client, events, descriptors: Vec::new() }
    }

    /// Kinds of the frames that lie in the socket, and on the event pipe.
    fn came(&mut self) -> (Vec<SessionKind>, Vec<SessionKind>) {
        let events = kinds(&self.events, &mut self.descriptors);
        (kinds(&self.client, &mut self.descriptors), events)
    }

    fn look_until(&self, orphans: &mut Orphans, what: &str, condition: impl Fn(&Arena, &Orphans) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition(&self.store.arena, orphans) {
            assert!(Instant::now() < deadline, "waited in vain until {what}");
            self.store.look_after(orphans, &Threads::default());
            std::thread::yield_now();
        }
    }
}

fn kinds(socket: &UnixStream, descriptors: &mut Vec<OwnedFd>) -> Vec<SessionKind> {
    let (mut bytes, mut all) = ([0; 4096], Vec::new());
    loop {
        match passing::receive(socket.as_fd(), &mut bytes, descriptors) {
            Ok(read) => all.extend_from_slice(&bytes[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    let (mut rest, mut kinds) = (&all[..], Vec::new());
    while let Some((head, body)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::decode(head, SESSION_BODY_MAX).unwrap();
        kinds.push(SessionKind::try_from(header.kind).unwrap());
        rest = &body[header.length as usize..];
    }
    kinds
}

fn lent(owner: &Arena, reader: &Arena) -> (Foreign, Block) {
    let tensor = owner.allocate_or_grow(Purpose::Pull, TENSOR).unwrap();
    tensor.landing().unwrap().chunk_mut(0..TENSOR).unwrap().fill(7);
    tensor.mark_sealed().unwrap();
    let (memory, witness) = owner.hand_out(&tensor.segment().unwrap(), 1 << 63).unwrap();
    let foreign = reader.import(memory, witness, SEGMENT).unwrap();
    let block = foreign.block(tensor.offset(), TENSOR, Box::new(())).unwrap();
    (foreign, block)
}

#[test]
fn a_session_hears_once_of_a_copy_and_one_of_an_earlier_version_goes_on_with_the_pages_it_has() {
    use SessionKind::{Segment, SegmentExchanged};
    for (version, told) in [(EXCHANGE_SINCE, true), (EXCHANGE_SINCE - 1, false)] {
        let (mut scene, mut orphans) = (Scene::new(version), Orphans::default());
        scene.link.announce(std::iter::once(&scene.block), &*scene.store.arena).unwrap();
        assert_eq!(scene.came(), (vec![Segment], vec![]));
        scene.owner.stop();
        scene.look_until(&mut orphans, "it is copied", |arena, _| arena.foreign().copied == SEGMENT);
        // The round that copied it may have been ended by a look.
        assert!(orphans.end().is_none_or(|tried| tried.failed.is_none()));
        scene.store.tell_of_copies();
        let expected = if told { (vec![Segment], vec![SegmentExchanged]) } else { (vec![], vec![]) };
        assert_eq!(scene.came(), expected);
        assert_eq!(scene.store.arena.foreign().orphaned, SEGMENT, "nobody has let go of anything");
        assert_eq!(scene.block.chunk(0..TENSOR).unwrap(), [7; TENSOR as usize]);
        scene.store.arena.stop();
    }
}

#[test]
fn a_copy_that_panics_is_counted_and_tried_again_after_a_pause() {
    let (scene, mut orphans) = (Scene::new(EXCHANGE_SINCE), Orphans::default());
    let threads = Threads::default();
    threads.fail_at("tl-orphans");
    scene.owner.stop();
    let deadline = Instant::now() + Duration::from_secs(60);
    while orphans.failures == 0 {
        assert!(Instant::now() < deadline, "waited in vain for the panic");
        scene.store.look_after(&mut orphans, &threads);
        std::thread::yield_now();
    }
    assert!(threads.panics(PanicScope::Call) == 1 && orphans.paused_until.is_some());
    scene.look_until(&mut orphans, "it is copied", |arena, _| arena.foreign().copied == SEGMENT);
    orphans.stop();
    scene.store.arena.stop();
}

#[test]
fn the_pause_doubles_with_every_try_in_vain_up_to_a_minute() {
    let pauses = [0, 1, 2, 3, 4, 5, 6, u32::MAX].map(|failures| pause(failures).0);
    assert_eq!(pauses, [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]);
}

#[test]
fn a_try_without_room_changes_nothing_and_a_later_one_finds_it() {
    let (scene, mut orphans) = (Scene::new(EXCHANGE_SINCE), Orphans::default());
    let full = scene.store.arena.allocate_or_grow(Purpose::Pull, 4 * SEGMENT).unwrap();
    let usage = scene.store.arena.usage();
    scene.owner.stop();
    scene.look_until(&mut orphans, "it is tried", |_, orphans| orphans.failures > 0);
    let foreign = scene.store.arena.foreign();
    assert_eq!((foreign.copied, foreign.orphaned, scene.store.arena.usage()), (0, SEGMENT, usage));
    assert!(scene.block.is_foreign() && scene.block.chunk(0..TENSOR).unwrap() == [7; TENSOR as usize]);
    drop(full);
    scene.look_until(&mut orphans, "it is copied", |arena, _| arena.foreign().copied == SEGMENT);
    orphans.stop();
    scene.store.arena.stop();
}
