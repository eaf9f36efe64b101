//! A writer that dies between any two of its stores. Its sidecar says so in the ring; readers get what was published, whole.

use super::super::region::STORES_LEFT;
use super::*;

/// Points of each kind of ring at which its writer dies.
const POINTS: u64 = 300;
/// Messages of one layout.
const SAME_LAYOUT: u64 = 5;

fn bytes_of(sequence: u64) -> Vec<u8> {
    vec![sequence as u8; 1 + (sequence * 7 % 60) as usize]
}

fn layout_of(sequence: u64) -> Vec<u8> {
    vec![(sequence / SAME_LAYOUT) as u8; 9]
}

/// Writes a message with so many stores left, and returns how many are left then. None is the death of the writer, in this message or
/// right behind it.
fn write_with(writer: &mut RingWriter, sequence: u64, left: u64) -> u64 {
    let (bytes, new) = (bytes_of(sequence), layout_of(sequence));
    let layout = if sequence.is_multiple_of(SAME_LAYOUT) { Layout::New(&new) } else { Layout::Same };
    STORES_LEFT.set(Some(left));
    let mut slot = writer.claim(layout, Deadline::Now, &|| false).unwrap();
    if STORES_LEFT.get() != Some(0) {
        slot.bytes(0, bytes.len() as u64).unwrap().copy_from(0, &bytes).unwrap();
    }
    slot.publish(bytes.len() as u64);
    STORES_LEFT.take().unwrap()
}

/// Reads what is there, from a sequence on; the next sequence, and whether the writer is lost. Each message is whole, or was told as
/// dropped.
fn read_on(reader: &mut RingReader, mut next: u64) -> (u64, bool) {
    loop {
        match reader.read(Deadline::Now, &|| false) {
            Ok(Read::Message(message)) => {
                assert_eq!(message.sequence(), next);
                assert_eq!(message.view().to_vec(), bytes_of(next));
                assert_eq!(message.layout().to_vec(), layout_of(next));
                next += 1;
            }
            Ok(Read::Gap { dropped, next: after }) => {
                next += dropped;
                assert_eq!(next, after);
            }
            Ok(Read::Lost) => return (next, true),
            Err(ReadError::TimedOut) => return (next, false),
            other => panic!("{other:?}"),
        }
    }
}

/// A writer that dies behind so many stores, with a reader that looks once in so many messages.
fn die(shape: RingShape, point: u64, look_every: u64) {
    let mut world = World::shaped(shape);
    let (mut reader, _cursor) = world.reader(1, 1);
    let (mut left, mut written, mut next) = (point, 0, 0);
    loop {
        left = write_with(&mut world.writer, written, left);
        if left == 0 {
            break;
        }
        written += 1;
        if written.is_multiple_of(look_every) {
            next = read_on(&mut reader, next).0;
            assert_eq!(next, written);
        }
    }
    lose_ring(&world.ring.words());
    let (end, is_lost) = read_on(&mut reader, next);
    assert!(is_lost, "point {point} of {shape:?}");
    // The message under way was published whole, or not at all.
    assert!(end == written || end == written + 1, "{end} of {written} at point {point} of {shape:?}");
}

#[test]
fn a_writer_that_dies_at_any_of_a_thousand_points_leaves_whole_messages_and_no_half_one() {
    let shapes = Policy::ALL.map(|policy| RingShape::of(policy, 4, 64).unwrap());
    let evicting = RingShape::with(Policy::Block, true, 4, 64).unwrap();
    for shape in shapes.into_iter().chain([evicting]) {
        // Writers of rings that drop go over what was not read.
        let look_every = if shape.policy().drops() { 6 } else { 3 };
        (0..POINTS).for_each(|point| die(shape, point, look_every));
    }
}
