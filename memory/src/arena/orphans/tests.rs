//! Two arenas of one process stand for two sidecars; the one that is stopped is as dead as a process: its pipes are closed.

use std::os::fd::{AsFd, OwnedFd};

use super::*;
use crate::mapping::Mapping;
use crate::testing::{until, without_children};
use crate::{ArenaOptions, Block, Foreign, ForeignUsage, NoRoom, Purpose};

const KI: u64 = 1 << 10;
/// The number that stands for the other sidecar at the owner.
const READER: u64 = 1 << 63;
const SEGMENT: u64 = 64 * KI;

fn options() -> ArenaOptions {
    ArenaOptions { segment_bytes: SEGMENT, ready_bytes: 0, pull_share: 0.0, ..ArenaOptions::new(256 * KI) }
}

fn arena() -> Arc<Arena> {
    Arena::start(options(), Arc::new(|| ())).unwrap()
}

fn put(arena: &Arena, byte: u8) -> Block {
    let block = arena.allocate_or_grow(Purpose::Pull, 8 * KI).unwrap();
    block.landing().unwrap().chunk_mut(0..8 * KI).unwrap().fill(byte);
    block.mark_sealed().unwrap();
    block
}

/// A segment of an owner with tensors of these bytes, as its reader has them.
fn lent(owner: &Arena, reader: &Arena, bytes: &[u8]) -> (Foreign, Vec<Block>) {
    let tensors: Vec<Block> = bytes.iter().map(|byte| put(owner, *byte)).collect();
    let segment = tensors[0].segment().unwrap();
    let witness = owner.witness(segment.id(), READER).unwrap();
    let memory = segment.reader_fd().try_clone_to_owned().unwrap();
    let foreign = reader.import(memory, witness, segment.bytes()).unwrap();
    let taken = tensors.iter().map(|block| foreign.block(block.offset(), block.len(), Box::new(())).unwrap());
    let taken = taken.collect();
    (foreign, taken)
}

fn dies(owner: Arc<Arena>) {
    owner.stop();
    drop(owner);
}

fn start_of(block: &Block) -> *const u8 {
    block.chunk(0..1).unwrap().as_ptr()
}

fn holds(block: &Block, byte: u8) -> bool {
    block.chunk(0..block.len()).unwrap().iter().all(|found| *found == byte)
}

fn all_is_free(arena: &Arena) {
    until("all is free", || {
        let usage = arena.usage();
        assert!(usage.balances(), "{usage:?}");
        usage.free == usage.total && arena.foreign().mapped == 0
    });
}

fn number(foreign: &Foreign) -> u32 {
    foreign.id()
}

#[test]
fn the_tensors_of_a_dead_owner_are_ours_under_the_same_number_and_at_the_same_addresses() {
    let _no_copies = without_children();
    let (owner, reader) = (arena(), arena());
    let (foreign, blocks) = lent(&owner, &reader, &[7, 9]);
    let (segment, before) = (number(&foreign), blocks.iter().map(start_of).collect::<Vec<_>>());
    assert!(reader.orphans().is_empty(), "its owner lives");
    dies(owner);
    assert_eq!(reader.orphans(), [(segment, SEGMENT)]);
    let taken = reader.take_in(segment).unwrap().unwrap();
    assert!(taken.sessions.is_empty() && taken.segment.id() == segment && !taken.segment.is_foreign());
    assert_eq!(blocks.iter().map(start_of).collect::<Vec<_>>(), before);
    assert!(holds(&blocks[0], 7) && holds(&blocks[1], 9) && blocks.iter().all(|block| !block.is_foreign()));
    let usage = reader.usage();
    assert!(usage.balances() && (usage.sealed, usage.retired) == (16 * KI, 48 * KI), "{usage:?}");
    assert_eq!(reader.foreign(), ForeignUsage { copied: SEGMENT, ..ForeignUsage::default() });
    assert!(reader.orphans().is_empty() && reader.take_in(segment).unwrap().is_none(), "once");
    drop((taken, foreign));
    blocks[0].mark_retired();
    assert_eq!((reader.usage().sealed, reader.usage().retired), (8 * KI, 56 * KI));
    drop(blocks);
    all_is_free(&reader);
}

/// Does what a client does when the segment is announced anew.
fn exchanges(map: &Mapping, given: (OwnedFd, OwnedFd), witness: &mut OwnedFd) {
    map.exchange(given.0.as_fd()).unwrap();
    *witness = given.1;
}

#[test]
fn the_pages_of_a_dead_owner_are_shown_until_every_client_maps_the_copy() {
    let _no_copies = without_children();
    let (owner, reader) = (arena(), arena());
    let (foreign, blocks) = lent(&owner, &reader, &[7]);
    let segment = number(&foreign);
    let handle = blocks[0].segment().unwrap();
    let mut clients = [1, 2].map(|session| {
        let (memory, witness) = reader.hand_out(&handle, session).unwrap();
        (Mapping::reader(memory.as_fd(), SEGMENT).unwrap(), witness)
    });
    let forked = clients[1].1.try_clone().unwrap();
    dies(owner);
    assert_eq!(reader.orphans(), [(segment, SEGMENT)]);
    assert_eq!(reader.take_in(segment).unwrap().unwrap().sessions, [1, 2]);
    let shown = ForeignUsage { mapped: SEGMENT, used: 0, orphaned: SEGMENT, copied: SEGMENT, dropped: 0 };
    assert_eq!(reader.foreign(), shown);
    assert!(reader.lingering().is_empty(), "nobody is asked to unmap what is to be exchanged");
    for (session, (map, witness)) in [1, 2].into_iter().zip(&mut clients) {
        exchanges(map, reader.hand_out(&handle, session).unwrap(), witness);
    }
    until("one maps the owner's pages, by a child of it", || {
        reader.outdated().iter().flat_map(|one| one.sessions.clone()).collect::<Vec<_>>() == [2]
    });
    assert_eq!(reader.foreign(), shown);
    drop(forked);
    until("nobody does", || reader.foreign().mapped == 0 && reader.outdated().is_empty());
    drop((foreign, blocks, handle));
    until("they are asked to unmap the copy", || {
        let mut lingering = reader.lingering();
        lingering.sort_unstable();
        lingering == [(1, segment), (2, segment)]
    });
    assert_eq!(reader.usage().retired, SEGMENT);
    drop(clients);
    all_is_free(&reader);
}

#[test]
fn a_client_that_goes_on_mapping_a_dead_owners_pages_is_asked_to_unmap_them_when_the_tensor_is_gone() {
    let _no_copies = without_children();
    let (owner, reader) = (arena(), arena());
    let (foreign, blocks) = lent(&owner, &reader, &[7]);
    let (segment, witness) = (number(&foreign), reader.witness(number(&foreign), 1).unwrap());
    dies(owner);
    assert_eq!(reader.orphans().len(), 1);
    reader.take_in(segment).unwrap().unwrap();
    drop((foreign, blocks));
    until("the copy is gone, and it is asked to", || {
        reader.usage().free == reader.usage().total && reader.lingering() == [(1, segment)]
    });
    assert_eq!(reader.foreign().orphaned, SEGMENT);
    drop(witness);
    all_is_free(&reader);
}

#[test]
fn without_room_everything_stays_as_it_was_and_the_next_try_may_find_some() {
    let _no_copies = without_children();
    let (owner, reader) = (arena(), arena());
    let (foreign, blocks) = lent(&owner, &reader, &[7]);
    let full = reader.allocate_or_grow(Purpose::Pull, 256 * KI).unwrap();
    dies(owner);
    let (orphans, usage) = (reader.orphans(), reader.usage());
    assert!(matches!(reader.take_in(number(&foreign)), Err(GrowError::NoRoom(NoRoom::Full(_)))));
    assert_eq!((reader.orphans(), reader.usage()), (orphans, usage));
    assert!(blocks[0].is_foreign() && holds(&blocks[0], 7) && reader.foreign().orphaned == SEGMENT);
    drop(full);
    reader.take_in(number(&foreign)).unwrap().unwrap();
    assert!(holds(&blocks[0], 7) && !blocks[0].is_foreign());
    drop((foreign, blocks));
    all_is_free(&reader);
}

#[test]
fn an_owner_that_was_lost_and_lives_costs_nobody_a_copy_and_what_nobody_uses_is_dropped() {
    let _no_copies = without_children();
    let (owner, reader) = (arena(), arena());
    let (foreign, blocks) = lent(&owner, &reader, &[7]);
    foreign.orphan();
    assert!(reader.orphans().is_empty() && reader.foreign().orphaned == SEGMENT);
    drop(blocks);
    dies(owner);
    assert!(reader.orphans().is_empty(), "nobody uses it");
    assert!(reader.take_in(number(&foreign)).unwrap().is_none());
    drop(foreign);
    until("it is dropped", || {
        reader.foreign() == ForeignUsage { dropped: SEGMENT, ..ForeignUsage::default() }
    });
    all_is_free(&reader);
}

#[test]
fn what_was_taken_in_is_inherited_as_our_own_by_the_next_incarnation() {
    let _no_copies = without_children();
    let dir = tempfile::tempdir().unwrap();
    let named = || ArenaOptions { witness_dir: Some(dir.path().to_owned()), ..options() };
    let (owner, reader) = (arena(), Arena::start(named(), Arc::new(|| ())).unwrap());
    let (foreign, blocks) = lent(&owner, &reader, &[7]);
    dies(owner);
    assert_eq!(reader.orphans().len(), 1);
    let taken = reader.take_in(number(&foreign)).unwrap().unwrap();
    let (memory, witness) = reader.hand_out(&taken.segment, 1).unwrap();
    let map = Mapping::reader(memory.as_fd(), SEGMENT).unwrap();
    drop((taken, foreign, blocks, memory));
    reader.stop();
    drop(reader);
    let next = Arena::start(named(), Arc::new(|| ())).unwrap();
    assert_eq!(next.usage().inherited, SEGMENT);
    drop((map, witness));
    all_is_free(&next);
}
