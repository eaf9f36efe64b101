//! Two arenas of one process stand for two sidecars: the kernel does not know the difference.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::testing::{exit_code_of, until};
use crate::{ArenaOptions, Purpose, passing};

const KI: u64 = 1 << 10;
/// The number that stands for the other sidecar at the owner.
const READER: u64 = 1 << 63;

fn arena() -> Arc<Arena> {
    let options = ArenaOptions {
        segment_bytes: 64 * KI,
        ready_bytes: 0,
        pull_share: 0.0,
        ..ArenaOptions::new(256 * KI)
    };
    Arena::start(options, Arc::new(|| ())).unwrap()
}

fn put(arena: &Arena, byte: u8) -> Block {
    let block = arena.allocate_or_grow(Purpose::Pull, 8 * KI).unwrap();
    block.landing().unwrap().chunk_mut(0..8 * KI).unwrap().fill(byte);
    block.mark_sealed().unwrap();
    block
}

/// Descriptors that the owner sends over the node's socket.
fn lend(owner: &Arena, block: &Block) -> (OwnedFd, OwnedFd) {
    let segment = block.segment().unwrap();
    let witness = owner.witness(segment.id(), READER).unwrap();
    (segment.reader_fd().try_clone_to_owned().unwrap(), witness)
}

fn import(owner: &Arena, reader: &Arena, block: &Block) -> Foreign {
    let (memory, witness) = lend(owner, block);
    reader.import(memory, witness, block.segment().unwrap().bytes()).unwrap()
}

fn no_lease() -> Lease {
    Box::new(())
}

/// Counts when it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_foreign_block_shows_the_owners_bytes_and_takes_nothing_of_our_arena() {
    let (owner, reader) = (arena(), arena());
    let tensor = put(&owner, 7);
    let foreign = import(&owner, &reader, &tensor);
    let before = reader.usage();
    let block = foreign.block(tensor.offset(), tensor.len(), no_lease()).unwrap();
    assert!(block.is_foreign() && block.is_sealed() && block.landing().is_none());
    assert_eq!(block.chunk(0..8 * KI).unwrap(), [7; 8 << 10]);
    block.mark_retired();
    assert_eq!(reader.usage(), before);
    assert_eq!(reader.foreign(), ForeignUsage { mapped: 64 * KI, used: 8 * KI, ..ForeignUsage::default() });
    assert!(foreign.block(60 * KI, 8 * KI, no_lease()).is_err(), "outside of the segment");
    assert!(foreign.block(u64::MAX, 8, no_lease()).is_err());
}

#[test]
fn the_lease_goes_back_with_the_last_handle_and_the_segment_with_the_last_block() {
    let (owner, reader) = (arena(), arena());
    let tensor = put(&owner, 7);
    let segment = tensor.segment_id();
    let foreign = import(&owner, &reader, &tensor);
    let returned = Arc::new(AtomicUsize::new(0));
    let block = foreign.block(tensor.offset(), 8, Box::new(Counted(Arc::clone(&returned)))).unwrap();
    let again = block.clone();
    drop((foreign, block));
    assert_eq!((returned.load(Ordering::SeqCst), again.chunk(0..1).unwrap()[0]), (0, 7));
    assert!(owner.is_witnessed(segment, READER));
    drop(again);
    assert_eq!(returned.load(Ordering::SeqCst), 1);
    until("the owner sees that nobody maps it", || !owner.is_witnessed(segment, READER));
    until("so do the books of the reader", || reader.foreign() == ForeignUsage::default());
}

#[test]
fn the_owner_does_not_reuse_a_block_while_a_client_of_the_other_sidecar_may_map_it() {
    let (owner, reader) = (arena(), arena());
    let tensor = put(&owner, 7);
    let (segment, offset) = (tensor.segment_id(), tensor.offset());
    let foreign = import(&owner, &reader, &tensor);
    let client = reader.witness(foreign.id(), 1).unwrap();
    // The reading sidecar dies: what it had is closed, what its client has is not.
    assert_eq!((owner.kept_by(&[READER]), owner.has_witness(READER)), (0, true));
    owner.pin_until_witness_ends(segment, READER, vec![tensor.clone(), tensor]);
    assert_eq!((owner.kept_by(&[READER, 1]), owner.kept_by(&[1])), (8 * KI, 0), "once");
    drop(foreign);
    reader.stop();
    drop(reader);
    assert!(owner.is_witnessed(segment, READER), "the client's carrier has the owner's witness inside");
    assert_ne!(put(&owner, 8).offset(), offset);
    drop(client);
    until("the block is free again", || put(&owner, 9).offset() == offset);
    assert_eq!((owner.kept_by(&[READER]), owner.has_witness(READER)), (0, false));
    assert!(!owner.is_witnessed(segment, READER));
}

#[test]
fn a_carrier_ends_for_us_when_the_last_process_that_has_it_ends() {
    let (owner, reader) = (arena(), arena());
    let tensor = put(&owner, 7);
    let foreign = import(&owner, &reader, &tensor);
    let block = foreign.block(tensor.offset(), 8, no_lease()).unwrap();
    let client = reader.witness(foreign.id(), 1).unwrap();
    let copy = client.try_clone().unwrap();
    drop(client);
    assert!(reader.is_witnessed(foreign.id(), 1));
    reader.pin_until_witness_ends(foreign.id(), 1, vec![block]);
    assert_eq!(foreign.blocks(), 1);
    drop(copy);
    until("the pin is gone", || foreign.blocks() == 0);
    assert!(!reader.is_witnessed(foreign.id(), 1));
    assert!(owner.is_witnessed(tensor.segment_id(), READER), "our own map is still there");
}

#[test]
fn clients_are_asked_to_unmap_what_is_of_no_use_any_more_and_an_orphan_is_counted_until_they_did() {
    let (owner, reader) = (arena(), arena());
    let tensor = put(&owner, 7);
    let foreign = import(&owner, &reader, &tensor);
    let (id, client) = (foreign.id(), reader.witness(foreign.id(), 1).unwrap());
    assert!(reader.lingering().is_empty() && !reader.waits_for_unmapping());
    foreign.orphan();
    drop(foreign);
    until("our own map is gone", || reader.lingering() == [(1, id)]);
    assert!(reader.waits_for_unmapping());
    assert_eq!(reader.foreign().orphaned, 64 * KI);
    assert!(reader.witness(id, 2).is_err(), "it is not handed to anyone new");
    drop(client);
    let dropped = ForeignUsage { dropped: 64 * KI, ..ForeignUsage::default() };
    until("nobody maps it", || reader.foreign() == dropped);
    assert!(!reader.waits_for_unmapping());
}

#[test]
fn what_is_no_sealed_segment_with_a_pipe_is_refused() {
    let (owner, reader) = (arena(), arena());
    let tensor = put(&owner, 7);
    let (memory, witness) = lend(&owner, &tensor);
    let other = || passing::pipe().unwrap().1;
    assert!(matches!(reader.import(other(), other(), 4096), Err(ImportError::Map(_))));
    let longer = reader.import(memory.try_clone().unwrap(), witness.try_clone().unwrap(), 128 * KI);
    assert!(matches!(longer, Err(ImportError::Map(MapError::Short { .. }))));
    let unsealed = rustix::fs::memfd_create("none", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    assert!(matches!(
        reader.import(unsealed, other(), 4096),
        Err(ImportError::Map(MapError::SealsMissing { .. }))
    ));
    let no_pipe = memory.try_clone().unwrap();
    assert!(matches!(reader.import(memory, no_pipe, 64 * KI), Err(ImportError::Witness)));
    assert_eq!(reader.foreign(), ForeignUsage::default());
}

/// A sealed file of memory, of which so many bytes are populated.
fn memory(flags: rustix::fs::MemfdFlags, bytes: u64, populated: u64) -> OwnedFd {
    use rustix::fs::{FallocateFlags, MemfdFlags};
    let fd =
        rustix::fs::memfd_create("own", flags | MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    if populated > 0 {
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, populated).unwrap();
    }
    crate::seals::add(&fd, crate::seals::FOR_READERS).unwrap();
    fd
}

#[test]
fn memory_with_a_hole_or_of_another_size_or_kind_is_refused_before_anybody_is_charged_for_it() {
    let reader = arena();
    let flags = rustix::fs::MemfdFlags::empty();
    let refused = |memory: OwnedFd, bytes| {
        let imported = reader.import(memory, passing::pipe().unwrap().1, bytes);
        matches!(imported, Err(ImportError::Part { .. }))
    };
    assert!(refused(memory(flags, 64 * KI, 0), 64 * KI));
    let hole = memory(flags, 1 << 30, 1 << 20);
    assert!(refused(hole.try_clone().unwrap(), 1 << 30));
    assert_eq!(rustix::fs::fstat(&hole).unwrap().st_blocks * 512, 1 << 20, "nobody has given it pages");
    assert!(refused(memory(flags, 64 * KI, 60 * KI), 64 * KI));
    assert!(refused(memory(flags, 128 * KI, 128 * KI), 64 * KI), "longer than was said");
    // Where no huge pages are set aside none can be made; a file of them without pages can.
    let huge = rustix::fs::memfd_create(
        "huge",
        rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::ALLOW_SEALING,
    );
    if let Ok(huge) = huge
        && rustix::fs::ftruncate(&huge, 2 << 20).is_ok()
        && crate::seals::add(&huge, crate::seals::FOR_READERS).is_ok()
    {
        let imported = reader.import(huge, passing::pipe().unwrap().1, 2 << 20);
        assert!(matches!(imported, Err(ImportError::Part { .. } | ImportError::Map(_))));
    }
    assert_eq!(reader.foreign(), ForeignUsage::default());
    let endless = reader.import(memory(flags, 64 * KI, 64 * KI), passing::pipe().unwrap().1, u64::MAX);
    assert!(matches!(endless, Err(ImportError::TooMuch { mapped: 0, .. })));
    let whole = reader.import(memory(flags, 64 * KI, 64 * KI), passing::pipe().unwrap().1, 64 * KI);
    assert_eq!(whole.unwrap().bytes(), 64 * KI);
}

/// Returns whether all is refused that a reader in another pod may try. `fd` is the descriptor that
/// came, or one re-opened for writing.
fn refused(fd: BorrowedFd<'_>) -> bool {
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::io::pwrite(fd, &[1], 0).is_err()
        && rustix::fs::ftruncate(fd, 0).is_err()
        && rustix::fs::ftruncate(fd, 1 << 20).is_err()
        && rustix::fs::fallocate(fd, hole, 0, 4096).is_err()
        && Mapping::writer(fd, 4096).is_err()
}

#[test]
fn the_kernel_refuses_a_reader_who_writes_maps_for_writing_truncates_or_punches_holes() {
    let (owner, reader) = (arena(), arena());
    let tensor = put(&owner, 7);
    let foreign = import(&owner, &reader, &tensor);
    let fd = foreign.segment.reader_fd();
    let code = exit_code_of(|| {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mode = rustix::fs::Mode::empty();
        // As the same user, or root: the open succeeds, and is of no use.
        let Ok(again) = rustix::fs::open(path, rustix::fs::OFlags::RDWR, mode) else { return 1 };
        if !refused(fd) {
            return 2;
        }
        if refused(again.as_fd()) { 0 } else { 3 }
    });
    assert_eq!(code, 0);
    assert_eq!(tensor.chunk(0..8 * KI).unwrap(), [7; 8 << 10]);
}
