//! The arena as its users see it, with real segments of a few pages.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::accounting::Shortage;
use crate::block::BlockError;
use crate::mapping::Mapping;
use crate::testing::{spawned, until};
use crate::view::{View, WriteView};

mod balance;
mod growth;
mod populating;
mod room;

const KI: u64 = 1 << 10;

fn options(bytes: u64, segment_bytes: u64) -> ArenaOptions {
    ArenaOptions { segment_bytes, ready_bytes: 0, pull_share: 0.0, ..ArenaOptions::new(bytes) }
}

fn quiet() -> Arc<dyn Fn() + Send + Sync> {
    Arc::new(|| ())
}

fn start(options: ArenaOptions) -> Arc<Arena> {
    Arena::start(options, quiet()).unwrap()
}

fn grow(arena: &Arena, owner: Owner, purpose: Purpose, bytes: u64) -> Arc<SegmentHandle> {
    let fresh = arena.admit(owner, purpose, bytes).unwrap().populate().unwrap();
    arena.adopt(fresh).unwrap()
}

fn put(arena: &Arena, session: u64, bytes: u64) -> Result<Block, NoRoom> {
    let owner = Owner::Session(session);
    match arena.allocate(owner, Purpose::Put, bytes) {
        Err(NoRoom::Grow) => {
            grow(arena, owner, Purpose::Put, bytes);
            arena.allocate(owner, Purpose::Put, bytes)
        }
        done => done,
    }
}

fn all_is_free(arena: &Arena) {
    until("all is free", || {
        let usage = arena.usage();
        assert!(usage.balances(), "{usage:?}");
        usage.free == usage.total
    });
}

#[test]
fn a_session_writes_in_place_and_a_reader_sees_it_without_a_copy() {
    let arena = start(options(KI << 10, 256 * KI));
    let fresh = arena.admit(Owner::Session(1), Purpose::Put, 100).unwrap().populate().unwrap();
    assert_eq!(fresh.bytes(), 256 * KI);
    let writer = Arc::new(Mapping::writer(fresh.writer_fd().unwrap().as_fd(), fresh.bytes()).unwrap());
    let segment = arena.adopt(fresh).unwrap();
    let block = arena.allocate(Owner::Session(1), Purpose::Put, 100).unwrap();
    assert_eq!((block.segment_id(), block.len(), block.offset() % 64), (segment.id(), 100, 0));
    WriteView::new(writer, block.offset(), 100).unwrap().copy_from(0, &[42; 100]).unwrap();
    assert_eq!(block.chunk(0..1), Err(BlockError::NotSealed));
    block.mark_sealed().unwrap();
    assert_eq!(arena.usage().sealed, 128);
    let reader = Arc::new(Mapping::reader(segment.reader_fd(), segment.bytes()).unwrap());
    assert_eq!(View::new(reader, block.offset(), 100).unwrap().to_vec(), [42; 100]);
    assert_eq!(block.chunk(90..100).unwrap(), [42; 10]);
    assert!(block.landing().is_none(), "a session's segment is not ours to write");
    assert!(matches!(arena.allocate(Owner::Session(2), Purpose::Put, 100), Err(NoRoom::Grow)));
}

#[test]
fn a_block_returns_its_bytes_when_its_last_handle_is_dropped() {
    let rooms = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&rooms);
    let on_room = Arc::new(move || {
        told.fetch_add(1, Ordering::SeqCst);
    });
    let arena = Arena::start(options(KI << 10, 64 * KI), on_room).unwrap();
    let block = put(&arena, 1, 1000).unwrap();
    assert_eq!(rooms.load(Ordering::SeqCst), 1, "there is room in the new segment");
    let other = block.clone();
    assert_eq!((arena.usage().reserved, arena.usage().held), (1024, 64 * KI - 1024));
    drop(block);
    assert_eq!((arena.usage().reserved, rooms.load(Ordering::SeqCst)), (1024, 1));
    drop(other);
    assert_eq!((arena.usage().reserved, arena.usage().held), (0, 64 * KI));
    assert_eq!(rooms.load(Ordering::SeqCst), 2);
    let again = put(&arena, 1, 1000).unwrap();
    assert_eq!(again.offset(), 0, "the same place is used again");
    assert_eq!(arena.usage().cold_populates, 1);
}

#[test]
fn no_bytes_are_a_block_without_a_segment() {
    let arena = start(options(64 * KI, 64 * KI));
    let block = arena.allocate(Owner::Sidecar, Purpose::Put, 0).unwrap();
    assert!(block.is_empty() && block.segment().is_none() && block.segment_id() == 0);
    assert!(block.landing().unwrap().chunk_mut(0..0).unwrap().is_empty());
    block.mark_sealed().unwrap();
    assert!(block.chunk(0..0).unwrap().is_empty());
    assert!(block.chunk(0..1).is_err());
    block.mark_retired();
    drop(block);
    all_is_free(&arena);
}

#[test]
fn what_can_never_fit_is_refused_at_once_and_what_does_not_fit_now_says_why() {
    let arena = start(ArenaOptions { pull_share: 0.25, ..options(KI << 10, 256 * KI) });
    let (owner, most) = (Owner::Session(1), 768 * KI);
    assert_eq!(arena.most(Purpose::Put), most);
    for asked in [most + 1, u64::MAX] {
        let refused = arena.allocate(owner, Purpose::Put, asked).unwrap_err();
        assert_eq!(refused, NoRoom::Never { asked, most });
        assert_eq!(arena.admit(owner, Purpose::Put, asked).unwrap_err(), refused);
    }
    let block = put(&arena, 1, 700 * KI).unwrap();
    let full = arena.allocate(owner, Purpose::Put, 600 * KI).unwrap_err();
    let NoRoom::Full(shortage) = full else { panic!("{full:?}") };
    assert_eq!((shortage.asked, shortage.reserved, shortage.free), (600 * KI, 700 * KI, 324 * KI));
    // What is kept for pulls is there for them, and for them alone.
    let pulled = arena.allocate_or_grow(Purpose::Pull, 256 * KI).unwrap();
    let again = arena.allocate_or_grow(Purpose::Pull, 256 * KI).unwrap_err();
    assert!(matches!(again, GrowError::NoRoom(NoRoom::Full(_))));
    drop((block, pulled));
    arena.session_ended(1);
    all_is_free(&arena);
}

#[test]
fn a_landing_is_the_one_writer_until_it_is_dropped_and_none_is_after_the_seal() {
    let arena = start(options(KI << 10, 256 * KI));
    let block = arena.allocate_or_grow(Purpose::Pull, 100).unwrap();
    let mut landing = block.landing().unwrap();
    assert!(block.landing().is_none());
    landing.write(0, &[7; 60]).unwrap();
    landing.chunk_mut(60..100).unwrap().fill(8);
    assert!(landing.write(60, &[0; 41]).is_err());
    assert!(landing.chunk_mut(0..101).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "a caller's mistake")]
    let reversed = landing.chunk_mut(2..1).is_err();
    assert!(reversed);
    assert_eq!(block.mark_sealed(), Err(BlockError::Landing));
    assert_eq!(block.chunk(0..1), Err(BlockError::NotSealed));
    drop(landing);
    block.mark_sealed().unwrap();
    assert_eq!(block.mark_sealed(), Err(BlockError::Sealed));
    assert!(block.landing().is_none());
    let mut bytes = [0; 50];
    block.copy_to(50, &mut bytes).unwrap();
    assert_eq!((&bytes[..10], &bytes[10..]), (&[7u8; 10][..], &[8u8; 40][..]));
    assert!(block.copy_to(51, &mut bytes).is_err());
    let chunk = block.owned_chunk(0..60).unwrap();
    drop(block);
    assert_eq!(chunk.as_ref(), [7; 60]);
    assert_eq!(arena.usage().sealed, 128, "a chunk keeps its block");
    drop(chunk);
    all_is_free(&arena);
}

#[test]
fn the_classes_of_a_block_only_go_forward() {
    let arena = start(options(64 * KI, 64 * KI));
    let block = put(&arena, 1, 64).unwrap();
    let classes = || {
        let usage = arena.usage();
        (usage.reserved, usage.sealed, usage.retired)
    };
    assert_eq!(classes(), (64, 0, 0));
    block.mark_sealed().unwrap();
    assert_eq!(classes(), (0, 64, 0));
    block.mark_retired();
    block.mark_retired();
    assert_eq!(classes(), (0, 0, 64));
    drop(block);
    assert_eq!(classes(), (0, 0, 0));
    let aborted = put(&arena, 1, 64).unwrap();
    aborted.mark_retired();
    aborted.mark_sealed().unwrap();
    assert_eq!(classes(), (0, 0, 64));
}

#[test]
fn the_segments_of_a_session_that_ended_are_retired_until_every_witness_is_at_its_end() {
    let arena = start(ArenaOptions { take_over: false, ..options(KI << 10, 64 * KI) });
    let block = put(&arena, 1, 1000).unwrap();
    block.mark_sealed().unwrap();
    let idle = grow(&arena, Owner::Session(1), Purpose::Put, 64 * KI);
    let of_writer = arena.witness(block.segment_id(), 1).unwrap();
    let of_reader = arena.witness(block.segment_id(), 2).unwrap();
    let idle_writer = arena.witness(idle.id(), 1).unwrap();
    drop(idle);
    arena.session_ended(1);
    assert!(matches!(arena.allocate(Owner::Session(1), Purpose::Put, 10), Err(NoRoom::Grow)));
    let usage = arena.usage();
    assert_eq!((usage.sealed, usage.held, usage.retired), (1024, 0, 2 * 64 * KI - 1024));
    drop(idle_writer);
    until("the idle one is gone", || arena.usage().retired == 64 * KI - 1024);
    drop(of_writer);
    until("the writer's witness ended", || !arena.is_witnessed(block.segment_id(), 1));
    let segment = block.segment_id();
    drop(block);
    assert_eq!(arena.usage().retired, 64 * KI, "a reader still maps it");
    assert!(arena.witness(segment, 3).is_err(), "nobody new gets what is going");
    drop(of_reader);
    all_is_free(&arena);
    assert_eq!(arena.usage().populated, 0);
}

#[test]
fn a_segment_that_waits_only_to_be_unmapped_is_told_however_late_its_last_block_goes() {
    let (tells, told) = std::sync::mpsc::channel();
    let on_lingering = Arc::new(move || tells.send(()).unwrap());
    let arena = start(ArenaOptions { on_lingering, ..options(8 << 20, 1 << 20) });
    let block = put(&arena, 1, 1000).unwrap();
    let of_reader = arena.witness(block.segment_id(), 2).unwrap();
    let segment = block.segment_id();
    arena.session_ended(1);
    assert!(told.try_recv().is_err() && arena.lingering().is_empty());
    drop(block);
    told.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
    assert_eq!(arena.lingering(), [(2, segment)]);
    drop(of_reader);
    all_is_free(&arena);
    assert!(told.try_recv().is_err(), "nobody is asked for what is gone");
}

#[test]
fn the_sidecar_takes_over_what_nobody_else_can_write_any_more() {
    let arena = start(options(128 * KI, 128 * KI));
    let block = put(&arena, 1, 1000).unwrap();
    let segment = block.segment().unwrap();
    let witness = arena.witness(segment.id(), 1).unwrap();
    arena.session_ended(1);
    drop(block);
    assert_eq!((arena.usage().retired, segment.owner()), (128 * KI, Owner::Session(1)));
    assert!(matches!(arena.allocate(Owner::Sidecar, Purpose::Put, 10), Err(NoRoom::Full(_))));
    drop(witness);
    until("it is free", || arena.usage().free == 128 * KI);
    assert_eq!((arena.usage().populated, segment.owner()), (128 * KI, Owner::Sidecar));
    let block = arena.allocate(Owner::Sidecar, Purpose::Put, 10).unwrap();
    assert_eq!(block.segment_id(), segment.id());
    block.landing().unwrap().write(0, b"the sidecar").unwrap_err();
    block.landing().unwrap().write(0, b"the sideca").unwrap();
    drop((block, segment));
    // It makes way for a session like any idle segment of the sidecar.
    assert_ne!(put(&arena, 2, 128 * KI).unwrap().segment_id(), 1);
    arena.session_ended(2);
    all_is_free(&arena);
}

#[test]
fn an_idle_segment_of_the_sidecar_serves_pulls_after_puts_and_puts_within_their_share() {
    let arena = start(ArenaOptions { pull_share: 0.5, ..options(128 * KI, 64 * KI) });
    let pulled = [(); 2].map(|()| arena.allocate_or_grow(Purpose::Pull, 64 * KI).unwrap());
    drop(pulled);
    let put = arena.allocate(Owner::Sidecar, Purpose::Put, 64 * KI).unwrap();
    assert!(matches!(arena.allocate(Owner::Sidecar, Purpose::Put, 64 * KI), Err(NoRoom::Full(_))));
    drop(put);
    let pulled = [(); 2].map(|()| arena.allocate(Owner::Sidecar, Purpose::Pull, 64 * KI).unwrap());
    assert_eq!(arena.usage().cold_populates, 2);
    drop(pulled);
    all_is_free(&arena);
}

#[test]
fn blocks_that_a_dead_reader_may_map_wait_for_its_witness() {
    let arena = start(options(KI << 10, 64 * KI));
    let block = arena.allocate_or_grow(Purpose::Put, 64).unwrap();
    let segment = block.segment_id();
    let witness = arena.witness(segment, 7).unwrap();
    let second = arena.witness(segment, 7).unwrap();
    block.mark_retired();
    arena.pin_until_witness_ends(segment, 7, vec![block]);
    drop(witness);
    until("one of two is left", || arena.watcher().watching() == 1);
    assert_eq!(arena.usage().retired, 64);
    drop(second);
    until("the block is back", || arena.usage().retired == 0);
    let late = arena.allocate(Owner::Sidecar, Purpose::Put, 64).unwrap();
    arena.pin_until_witness_ends(segment, 7, vec![late]);
    all_is_free(&arena);
}

#[test]
fn idle_segments_are_taken_from_sessions_and_every_one_that_maps_them_is_told() {
    let arena = start(options(256 * KI, 64 * KI));
    let busy = put(&arena, 1, 10).unwrap();
    drop(put(&arena, 2, 64 * KI).unwrap());
    drop(put(&arena, 3, 128 * KI).unwrap());
    let (of_2, of_3) = (3 - 1, 3);
    let witnesses =
        [arena.witness(of_2, 2), arena.witness(of_2, 9), arena.witness(of_3, 3)].map(Result::unwrap);
    assert!(matches!(arena.allocate(Owner::Session(4), Purpose::Put, 60 * KI), Err(NoRoom::Full(_))));
    assert_eq!(arena.reclaim_held(60 * KI), vec![(2, of_2), (9, of_2)], "the smallest that is enough");
    assert_eq!((arena.usage().retired, arena.usage().held), (64 * KI, 64 * KI - 64 + 128 * KI));
    assert_eq!(arena.reclaim_held(KI << 10), vec![(3, of_3)], "the busy one stays");
    drop(witnesses);
    until("what was taken is free", || arena.usage().free == 192 * KI);
    drop(busy);
    arena.session_ended(1);
    all_is_free(&arena);
}

#[test]
fn idle_segments_of_the_sidecar_make_way_or_are_reclaimed_where_they_are_mapped() {
    let arena = start(options(128 * KI, 64 * KI));
    drop(arena.allocate_or_grow(Purpose::Put, 10).unwrap());
    let mapped = arena.allocate_or_grow(Purpose::Pull, 10).unwrap();
    let witness = arena.witness(mapped.segment_id(), 5).unwrap();
    let segment = mapped.segment_id();
    drop(mapped);
    assert_eq!(arena.usage().free, 128 * KI);
    let block = put(&arena, 1, 64 * KI).unwrap();
    let full = arena.allocate(Owner::Session(2), Purpose::Put, 64 * KI);
    assert!(matches!(full, Err(NoRoom::Full(Shortage { free, .. })) if free == 64 * KI));
    assert_eq!(arena.reclaim_held(64 * KI), vec![(5, segment)]);
    drop(witness);
    until("it is unmapped", || arena.usage().free == 64 * KI);
    drop(put(&arena, 2, 64 * KI).unwrap());
    drop(block);
    arena.session_ended(1);
    arena.session_ended(2);
    all_is_free(&arena);
}

#[test]
fn what_is_given_up_on_the_way_gives_its_room_back() {
    let arena = start(options(128 * KI, 64 * KI));
    let grant = arena.admit(Owner::Session(1), Purpose::Put, 128 * KI).unwrap();
    assert_eq!((arena.usage().reserved, grant.is_ready()), (128 * KI, false));
    assert!(matches!(arena.admit(Owner::Sidecar, Purpose::Pull, 1), Err(NoRoom::Full(_))));
    drop(grant);
    all_is_free(&arena);
    let fresh = arena.admit(Owner::Session(1), Purpose::Put, 1).unwrap().populate().unwrap();
    let witness = arena.witness(fresh.segment_id(), 1).unwrap();
    drop(fresh);
    assert_eq!(arena.usage().retired, 64 * KI, "its writer may have mapped it");
    drop(witness);
    all_is_free(&arena);
}

#[test]
fn who_made_a_segment_has_its_block_before_anyone_can_reclaim_it() {
    let arena = start(options(128 * KI, 64 * KI));
    let fresh = arena.admit(Owner::Session(1), Purpose::Put, 1).unwrap().populate().unwrap();
    let block = arena.adopt_for(fresh, 1).unwrap();
    assert_eq!(arena.reclaim_held(u64::MAX), [], "nothing is idle");
    drop(block);
    let fresh = arena.admit(Owner::Session(1), Purpose::Put, 1).unwrap().populate().unwrap();
    let too_large = arena.adopt_for(fresh, 65 * KI);
    assert!(matches!(too_large, Err(AdoptError::TooSmall { .. })), "{too_large:?}");
    arena.session_ended(1);
    all_is_free(&arena);
}

#[test]
fn a_segment_whose_session_ended_meanwhile_is_not_adopted() {
    let arena = start(options(128 * KI, 64 * KI));
    let fresh = arena.admit(Owner::Session(1), Purpose::Put, 1).unwrap().populate().unwrap();
    let grant = arena.admit(Owner::Session(1), Purpose::Put, 1).unwrap();
    arena.session_ended(1);
    assert!(matches!(arena.adopt(fresh), Err(AdoptError::OwnerGone { .. })));
    assert!(matches!(arena.adopt(grant.populate().unwrap()), Err(AdoptError::OwnerGone { .. })));
    all_is_free(&arena);
}

#[test]
fn a_witness_of_no_segment_is_refused() {
    let arena = start(options(64 * KI, 64 * KI));
    assert_eq!(arena.witness(1, 1).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn what_a_dead_incarnation_left_mapped_is_charged_until_it_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("witnesses");
    let with_dir = || ArenaOptions { witness_dir: Some(path.clone()), ..options(256 * KI, 64 * KI) };
    let (first, second) = {
        let dead = start(with_dir());
        let block = put(&dead, 1, 100).unwrap();
        put(&dead, 2, 128 * KI).unwrap();
        drop(dead.witness(2, 2).unwrap());
        until("its name is gone", || std::fs::read_dir(&path).unwrap().count() == 0);
        (dead.witness(block.segment_id(), 1).unwrap(), dead.witness(block.segment_id(), 3).unwrap())
    };
    let rooms = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&rooms);
    let on_room = Arc::new(move || {
        told.fetch_add(1, Ordering::SeqCst);
    });
    let arena = Arena::start(with_dir(), on_room).unwrap();
    let usage = arena.usage();
    assert_eq!((usage.inherited, usage.retired, usage.free), (64 * KI, 64 * KI, 192 * KI));
    assert!(matches!(arena.allocate(Owner::Sidecar, Purpose::Pull, 256 * KI), Err(NoRoom::Full(_))));
    // A newcomer's names do not collide with the old ones.
    let block = put(&arena, 1, 100).unwrap();
    let own = arena.witness(block.segment_id(), 1).unwrap();
    let before = rooms.load(Ordering::SeqCst);
    drop(first);
    until("one is told", || arena.watcher().watching() == 2);
    assert_eq!((arena.usage().inherited, rooms.load(Ordering::SeqCst)), (64 * KI, before));
    drop(second);
    until("its bytes are back", || arena.usage().inherited == 0);
    until("that is told", || rooms.load(Ordering::SeqCst) == before + 1);
    drop((block, own));
    arena.session_ended(1);
    all_is_free(&arena);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn more_than_the_arena_can_be_inherited_and_leaves_no_room_until_enough_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let with_dir =
        |bytes| ArenaOptions { witness_dir: Some(dir.path().to_owned()), ..options(bytes, 64 * KI) };
    let witnesses: Vec<_> = {
        let dead = start(with_dir(256 * KI));
        (1..=3)
            .map(|session| dead.witness(put(&dead, session, 1).unwrap().segment_id(), session).unwrap())
            .collect()
    };
    let arena = start(with_dir(128 * KI));
    let mut witnesses = witnesses.into_iter();
    assert_eq!((arena.usage().free, arena.usage().populated), (0, 192 * KI));
    drop(witnesses.next());
    until("one is gone", || arena.usage().populated == 128 * KI);
    assert_eq!(arena.usage().free, 0);
    drop(witnesses.next());
    until("two are gone", || arena.usage().free == 64 * KI);
    drop(witnesses);
    all_is_free(&arena);
}

#[test]
fn a_reader_killed_by_sigkill_gives_back_what_it_mapped() {
    let arena = start(options(64 * KI, 64 * KI));
    let block = put(&arena, 1, 100).unwrap();
    let witness = arena.witness(block.segment_id(), 1).unwrap();
    // `cat` waits for an input that never comes, with the witness as its output.
    let mut reader = spawned(
        std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::from(witness)),
    );
    arena.session_ended(1);
    arena.pin_until_witness_ends(block.segment_id(), 1, vec![block]);
    assert_eq!(arena.usage().free, 0);
    reader.kill().unwrap();
    reader.wait().unwrap();
    all_is_free(&arena);
}

#[test]
fn after_the_stop_nothing_is_given_and_what_lives_stays_readable() {
    let arena = start(ArenaOptions { ready_bytes: 64 * KI, ..options(256 * KI, 64 * KI) });
    let block = arena.allocate_or_grow(Purpose::Pull, 4).unwrap();
    block.landing().unwrap().write(0, b"data").unwrap();
    block.mark_sealed().unwrap();
    arena.stop();
    arena.stop();
    assert!(matches!(arena.allocate(Owner::Sidecar, Purpose::Pull, 4), Err(NoRoom::Stopped)));
    assert!(matches!(arena.admit(Owner::Sidecar, Purpose::Pull, 4), Err(NoRoom::Stopped)));
    drop(arena);
    assert_eq!(block.chunk(0..4).unwrap(), b"data");
}

#[test]
fn an_arena_can_be_dropped_on_a_thread_of_its_own() {
    let holds: Arc<Mutex<Option<Arc<Arena>>>> = Arc::default();
    let held = Arc::clone(&holds);
    let arena = Arena::start(options(64 * KI, 64 * KI), Arc::new(move || drop(held.lock().take()))).unwrap();
    let block = put(&arena, 1, 10).unwrap();
    let witness = arena.witness(block.segment_id(), 1).unwrap();
    arena.session_ended(1);
    drop(block);
    let weak = Arc::downgrade(&arena);
    *holds.lock() = Some(arena);
    drop(witness);
    until("the arena is gone", || weak.strong_count() == 0);
}

#[test]
fn wrong_options_are_refused_with_their_values() {
    let start = |options| Arena::start(options, quiet()).err().unwrap();
    assert!(matches!(start(options(4095, 4096)), ArenaError::TooSmall { bytes: 4095 }));
    let share = ArenaOptions { pull_share: 1.5, ..options(64 * KI, 4096) };
    assert!(matches!(start(share), ArenaError::PullShare { .. }));
    let file = tempfile::NamedTempFile::new().unwrap();
    let no_dir = ArenaOptions { witness_dir: Some(file.path().join("x")), ..options(64 * KI, 4096) };
    assert!(matches!(start(no_dir), ArenaError::WitnessDir { .. }));
}
