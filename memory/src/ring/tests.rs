//! A ring as its writer, its readers and its sidecar map it, within one process.

use std::alloc::{GlobalAlloc, Layout as Allocation, System};
use std::cell::Cell;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::region::{NO_NET, Shared};
use super::shape::entry;
use super::*;
use crate::segment::{Fallocate, Sealed, Unsealed};
use crate::testing::until;

mod acknowledging;
mod dropping;
mod dying;
mod evicting;
mod growing;

/// Counts what a thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all of it is the system's allocator; the count is no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Allocation) -> *mut u8 {
        // A thread that is ending has no count any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Allocation) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A segment, its one writer's map, and the maps of readers.
struct Memory {
    sealed: Sealed,
    writer: Arc<Mapping>,
}

impl Memory {
    fn new(bytes: u64) -> Self {
        let unsealed = Unsealed::create(bytes, &Fallocate).unwrap();
        let fd = unsealed.writer_fd().unwrap();
        let writer = Arc::new(Mapping::writer(fd.as_fd(), unsealed.bytes()).unwrap());
        Self { sealed: unsealed.seal().unwrap(), writer }
    }

    fn own(&self) -> Place {
        Place { mapping: Arc::clone(&self.writer), offset: 0 }
    }

    fn shared(&self) -> Place {
        let bytes = self.sealed.bytes();
        let mapping = Mapping::reader(self.sealed.reader_fd().as_fd(), bytes).unwrap();
        Place { mapping: Arc::new(mapping), offset: 0 }
    }

    /// The words as whoever writes there: the owner, its sidecar, or a liar.
    fn words(&self) -> Own {
        Own::of_mapping(Arc::clone(&self.writer), 0, self.sealed.bytes()).unwrap()
    }
}

struct World {
    shape: RingShape,
    ring: Memory,
    writer: RingWriter,
}

impl World {
    fn new(slots: u32, slot_bytes: u64) -> Self {
        Self::of(Policy::Block, slots, slot_bytes)
    }

    fn of(policy: Policy, slots: u32, slot_bytes: u64) -> Self {
        Self::shaped(RingShape::of(policy, slots, slot_bytes).unwrap())
    }

    fn shaped(shape: RingShape) -> Self {
        let ring = Memory::new(shape.bytes());
        clear_ring(&ring.words(), shape);
        let writer = RingWriter::open(ring.own(), shape).unwrap();
        Self { shape, ring, writer }
    }

    /// A reader with its cursor, attached under that number.
    fn reader(&self, id: u64, hold: u32) -> (RingReader, Memory) {
        let (reader, cursor, _) = self.reader_from(id, hold, First::Next);
        (reader, cursor)
    }

    /// A reader with its cursor, and the sequence that it begins with.
    fn reader_from(&self, id: u64, hold: u32, from: First) -> (RingReader, Memory, u64) {
        let cursor = Memory::new(CURSOR_BYTES);
        clear_cursor(&cursor.words());
        let first = self.writer.readers().attach(id, cursor.shared(), from).unwrap();
        let reader = RingReader::open(self.ring.shared(), cursor.own(), self.shape, first, hold).unwrap();
        (reader, cursor, first)
    }

    fn write(&mut self, bytes: &[u8]) -> Published {
        write(&mut self.writer, Layout::Plain, bytes, Deadline::Never).unwrap()
    }
}

fn write(
    writer: &mut RingWriter,
    layout: Layout<'_>,
    bytes: &[u8],
    deadline: Deadline,
) -> Result<Published, ClaimError> {
    let mut slot = writer.claim(layout, deadline, &|| false)?;
    slot.bytes(0, bytes.len() as u64).unwrap().copy_from(0, bytes).unwrap();
    Ok(slot.publish(bytes.len() as u64))
}

fn read(reader: &mut RingReader) -> Read {
    reader.read(Deadline::Never, &|| false).unwrap()
}

fn message(reader: &mut RingReader) -> Message {
    match read(reader) {
        Read::Message(message) => message,
        end => panic!("a message, not {end:?}"),
    }
}

fn soon() -> Deadline {
    Deadline::At(Instant::now() + Duration::from_millis(20))
}

fn wants(ring: &Memory) -> bool {
    ring.words().load32(ring::WANTS) != 0
}

#[test]
fn every_message_comes_to_every_reader_in_order() {
    const MESSAGES: u64 = 30_000;
    let mut world = World::new(8, 256);
    let readers = [world.reader(1, 1), world.reader(2, 3)];
    let bytes_of = |sequence: u64| vec![sequence as u8; (sequence % 257) as usize];
    thread::scope(|scope| {
        for (mut reader, _cursor) in readers {
            scope.spawn(move || {
                NO_NET.set(true);
                for sequence in 0..MESSAGES {
                    let message = message(&mut reader);
                    assert_eq!(message.sequence(), sequence);
                    assert_eq!(message.view().to_vec(), bytes_of(sequence));
                }
                assert!(matches!(read(&mut reader), Read::Finished));
            });
        }
        NO_NET.set(true);
        for sequence in 0..MESSAGES {
            let published = world.write(&bytes_of(sequence));
            assert_eq!(published, Published { sequence, readers: 2, dropped: false });
        }
        world.writer.finish();
    });
}

#[test]
fn a_full_ring_names_who_holds_it_and_goes_on_when_that_is_given_back() {
    let mut world = World::new(4, 64);
    let (mut fast, _fast) = world.reader(1, 4);
    let (mut slow, _slow) = world.reader(7, 1);
    for _ in 0..4 {
        world.write(b"x");
        drop(message(&mut fast));
    }
    let first = message(&mut slow);
    for deadline in [Deadline::Now, soon()] {
        let blocked = write(&mut world.writer, Layout::Plain, b"y", deadline).unwrap_err();
        assert!(matches!(blocked, ClaimError::Blocked { reader: 7, sequence: 0, .. }), "{blocked}");
    }
    assert_eq!(
        world.writer.claim(Layout::Plain, Deadline::Never, &|| true).unwrap_err(),
        ClaimError::Stopped
    );
    drop(first);
    write(&mut world.writer, Layout::Plain, b"y", Deadline::Now).unwrap();
}

#[test]
fn a_slot_that_is_dropped_leaves_nothing() {
    let mut world = World::new(2, 64);
    let (mut reader, _cursor) = world.reader(1, 1);
    drop(world.writer.claim(Layout::New(b"layout"), Deadline::Now, &|| false).unwrap());
    assert_eq!(reader.read(Deadline::Now, &|| false).unwrap_err(), ReadError::TimedOut);
    write(&mut world.writer, Layout::Same, b"x", Deadline::Now).unwrap();
    let message = message(&mut reader);
    assert_eq!((message.sequence(), &message.layout()[..]), (0, &b"layout"[..]));
}

#[test]
fn a_slot_tells_which_message_lay_in_it_before() {
    let evicting = RingShape::with(Policy::Block, true, 3, 64).unwrap();
    let shapes = Policy::ALL.map(|policy| RingShape::of(policy, 3, 64).unwrap());
    for shape in shapes.into_iter().chain([evicting]) {
        let mut world = World::shaped(shape);
        let (mut reader, _cursor) = world.reader(1, 1);
        for sequence in 0..10u64 {
            drop(world.writer.claim(Layout::Plain, Deadline::Now, &|| false).unwrap());
            let slot = world.writer.claim(Layout::Plain, Deadline::Now, &|| false).unwrap();
            assert_eq!(
                slot.placed(),
                Some(Placed { sequence, replaces: sequence.checked_sub(3) }),
                "{shape:?}"
            );
            slot.publish(1);
            drop(message(&mut reader));
        }
    }
}

#[test]
fn messages_are_given_back_in_any_order_and_held_up_to_the_limit() {
    let mut world = World::new(4, 64);
    let (mut reader, cursor) = world.reader(1, 3);
    let next = || cursor.words().load64(cursor::NEXT);
    (0..4).for_each(|_| {
        world.write(b"x");
    });
    let (a, b, c) = (message(&mut reader), message(&mut reader), message(&mut reader));
    assert_eq!(reader.read(Deadline::Never, &|| false).unwrap_err(), ReadError::HoldLimit { hold: 3 });
    drop(b);
    assert_eq!(next(), 0, "the first one is held");
    drop(a);
    assert_eq!(next(), 2);
    drop(message(&mut reader));
    assert_eq!(next(), 2);
    drop(c);
    assert_eq!(next(), 4);
    let (ring, own) = (world.ring.shared(), cursor.own());
    let refused = RingReader::open(ring, own, world.shape, 0, 5).unwrap_err();
    assert_eq!(refused, RingError::Hold { hold: 5, most: 4 });
}

#[test]
fn a_finished_ring_ends_for_a_reader_that_holds_all_it_may() {
    let mut world = World::new(2, 64);
    let (mut reader, _cursor) = world.reader(1, 1);
    world.write(b"last");
    let held = message(&mut reader);
    world.writer.finish();
    assert!(matches!(read(&mut reader), Read::Finished));
    drop(held);
}

#[test]
fn layouts_are_kept_for_as_long_as_somebody_may_read_them() {
    let mut world = World::new(64, 64);
    let (mut reader, _cursor) = world.reader(1, 64);
    let layout = |number: u8| vec![number; 100];
    for number in 0..8 {
        write(&mut world.writer, Layout::New(&layout(number)), &[number], Deadline::Now).unwrap();
    }
    let blocked = write(&mut world.writer, Layout::New(&layout(8)), b"", Deadline::Now).unwrap_err();
    assert!(matches!(blocked, ClaimError::Blocked { reader: 1, sequence: 0, .. }), "{blocked}");
    write(&mut world.writer, Layout::Same, &[7], Deadline::Now).unwrap();
    write(&mut world.writer, Layout::Plain, &[9], Deadline::Now).unwrap();
    for number in [0, 1, 2, 3, 4, 5, 6, 7, 7] {
        let message = message(&mut reader);
        assert_eq!((message.layout().to_vec(), message.view().to_vec()), (layout(number), vec![number]));
    }
    assert!(message(&mut reader).layout().is_empty());
    write(&mut world.writer, Layout::New(&layout(8)), b"", Deadline::Now).unwrap();
    assert_eq!(message(&mut reader).layout().to_vec(), layout(8));
    let long = vec![0; LAYOUT_BYTES as usize + 1];
    let refused = write(&mut world.writer, Layout::New(&long), b"", Deadline::Now).unwrap_err();
    assert_eq!(refused, ClaimError::Layout { bytes: LAYOUT_BYTES + 1 });
}

#[test]
fn the_oldest_message_of_a_late_reader_is_one_that_is_whole() {
    let mut world = World::new(16, 64);
    let oldest = |world: &World| {
        let cursor = Memory::new(CURSOR_BYTES);
        clear_cursor(&cursor.words());
        let first = world.writer.readers().attach(9, cursor.shared(), First::Oldest).unwrap();
        world.writer.readers().detach(9);
        first
    };
    assert_eq!(oldest(&world), 0);
    (0..10).for_each(|_| {
        world.write(b"x");
    });
    assert_eq!(oldest(&world), 0);
    (0..10).for_each(|_| {
        world.write(b"x");
    });
    assert_eq!(oldest(&world), 5, "the next message takes the slot of message 4");
    for number in 0..9 {
        write(&mut world.writer, Layout::New(&[number]), b"x", Deadline::Now).unwrap();
    }
    assert_eq!(oldest(&world), 21, "the layout of message 20 was written over");
}

#[test]
fn a_reader_that_its_sidecar_has_ended_says_so_and_not_that_it_was_closed() {
    for policy in Policy::ALL {
        let world = World::of(policy, 4, 64);
        let (mut reader, cursor) = world.reader(1, 1);
        lose_cursor(&cursor.words());
        assert_eq!(reader.read(Deadline::Never, &|| false).unwrap_err(), ReadError::Ended);
        reader.closer().close();
        assert_eq!(reader.read(Deadline::Never, &|| false).unwrap_err(), ReadError::Closed);
    }
}

#[test]
fn a_sleeping_reader_is_woken_by_a_message_a_mark_and_a_close() {
    let mut world = World::new(2, 64);
    let (mut reader, cursor) = world.reader(1, 1);
    let asleep = || cursor.words().load32(cursor::ASLEEP) != 0;
    thread::scope(|scope| {
        let read_one = scope.spawn(|| {
            NO_NET.set(true);
            drop(message(&mut reader));
        });
        until("the reader sleeps", asleep);
        world.write(b"x");
        read_one.join().unwrap();
    });
    let closer = reader.closer();
    thread::scope(|scope| {
        let reads = scope.spawn(|| reader.read(Deadline::Never, &|| false).unwrap_err());
        until("the reader sleeps", asleep);
        closer.close();
        assert_eq!(reads.join().unwrap(), ReadError::Closed);
    });
    world.write(b"still attached");
    assert_eq!(world.writer.readers().len(), 1);
    drop((reader, closer));
    assert_eq!(world.write(b"x").readers, 0);
    let (mut reader, cursor) = world.reader(2, 1);
    thread::scope(|scope| {
        let reads = scope.spawn(|| {
            NO_NET.set(true);
            read(&mut reader)
        });
        until("the reader sleeps", || cursor.words().load32(cursor::ASLEEP) != 0);
        lose_ring(&world.ring.words());
        assert!(matches!(reads.join().unwrap(), Read::Lost));
    });
}

#[test]
fn a_sleeping_writer_is_woken_by_a_give_back_and_by_a_reader_that_is_gone() {
    let mut world = World::new(2, 64);
    let (mut reader, _held) = world.reader(1, 1);
    let (_idle, idle) = world.reader(2, 1);
    (0..2).for_each(|_| {
        world.write(b"x");
    });
    let World { ring, writer, .. } = &mut world;
    thread::scope(|scope| {
        let writes = scope.spawn(|| {
            NO_NET.set(true);
            write(writer, Layout::Plain, b"y", Deadline::Never).unwrap()
        });
        until("the writer sleeps", || wants(ring));
        drop(message(&mut reader));
        lose_cursor(&idle.words());
        assert_eq!(writes.join().unwrap(), Published { sequence: 2, readers: 1, dropped: false });
    });
}

#[test]
fn a_message_costs_no_allocation() {
    let mut world = World::new(4, 64);
    let (mut reader, _cursor) = world.reader(1, 2);
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..1_000 {
        write(&mut world.writer, Layout::Plain, b"message", Deadline::Never).unwrap();
        drop(message(&mut reader));
    }
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
    drop(vec![0u8; 10]);
    assert_eq!(ALLOCATIONS.with(Cell::get), before + 1, "the count counts");
}

#[test]
fn counters_wrap() {
    let mut world = World::new(2, 64);
    let (mut reader, cursor) = world.reader(1, 1);
    world.ring.words().store32(ring::EVENTS, u32::MAX - 2);
    cursor.words().store32(cursor::EVENTS, u32::MAX - 2);
    thread::scope(|scope| {
        scope.spawn(move || (0..1_000).for_each(|_| drop(message(&mut reader))));
        (0..1_000).for_each(|_| {
            world.write(b"x");
        });
    });
}

proptest! {
    #[test]
    fn a_lying_cursor_is_left_out_and_never_waited_for(words in proptest::collection::vec(any::<u64>(), 1..20)) {
        let mut world = World::new(2, 64);
        let (_reader, cursor) = world.reader(1, 1);
        let liar = cursor.words();
        for word in words {
            liar.store64(cursor::NEXT, word);
            // A word that could be true is believed until it cannot be; then it is blocked or left out.
            let _ = write(&mut world.writer, Layout::New(b"l"), b"x", Deadline::Now);
        }
        liar.store64(cursor::NEXT, u64::MAX);
        write(&mut world.writer, Layout::Plain, b"x", Deadline::Now).unwrap();
        prop_assert!(world.writer.readers().is_empty());
    }

    #[test]
    fn a_lying_ring_is_damage_and_no_access_elsewhere(
        head in any::<u64>(), sequence in any::<u64>(), bytes in any::<u64>(), layout in any::<u64>(), length in any::<u32>(),
        state in any::<u32>(),
    ) {
        let world = World::new(2, 64);
        let (mut reader, _cursor) = world.reader(1, 1);
        let liar = world.ring.words();
        liar.store64(world.shape.entry(0, entry::POSITION), sequence);
        liar.store64(world.shape.entry(0, entry::BYTES), bytes);
        liar.store64(world.shape.entry(0, entry::LAYOUT), layout);
        liar.store32(world.shape.entry(0, entry::LAYOUT_BYTES), length);
        liar.store32(ring::STATE, state);
        liar.store64(ring::HEAD, head);
        if let Ok(Read::Message(message)) = reader.read(Deadline::Now, &|| false) {
            prop_assert!(message.view().len() <= 64);
        }
        // And with an entry that says it is the right one.
        liar.store64(world.shape.entry(0, entry::POSITION), 1);
        liar.store64(ring::HEAD, 1);
        if let Ok(Read::Message(message)) = reader.read(Deadline::Now, &|| false) {
            prop_assert!(message.view().len() <= 64);
        }
    }
}

#[test]
fn a_ring_of_another_shape_or_out_of_its_map_is_refused() {
    let world = World::new(2, 64);
    let cursor = Memory::new(CURSOR_BYTES);
    let other = RingShape::new(2, 32).unwrap();
    let refused = RingReader::open(world.ring.shared(), cursor.own(), other, 0, 1).unwrap_err();
    assert_eq!(refused, RingError::Header { slots: 2, slot_bytes: 32 });
    let large = RingShape::new(1_000, 4_096).unwrap();
    assert!(matches!(
        RingReader::open(world.ring.shared(), cursor.own(), large, 0, 1),
        Err(RingError::OutOfBounds(_))
    ));
    let odd = Place { offset: 32, ..world.ring.own() };
    assert!(
        Shared::of_mapping(odd.mapping, odd.offset, 64)
            .is_err_and(|e| e == RingError::Misaligned { offset: 32 })
    );
    assert_eq!(RingWriter::open(world.ring.shared(), world.shape).unwrap_err(), RingError::ReadOnly);
}
