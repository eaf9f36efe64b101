//! Rings whose messages may be larger than a slot, within one process.

use super::super::region::STORES_LEFT;
use super::*;
use crate::view::WriteView;

/// Largest message of these rings, whose slots have 64 bytes.
const MOST: u64 = 4_096;

fn growing(policy: Policy, slots: u32) -> World {
    World::shaped(RingShape::of(policy, slots, 64).unwrap().growing(MOST).unwrap())
}

/// Publishes a message in an extent of that number; the slot that it has.
fn publish_elsewhere(world: &mut World, number: u64, bytes: u64) -> (Option<u64>, Published) {
    let slot = world.writer.claim(Layout::Plain, Deadline::Now, &|| false).unwrap();
    (slot.index(), slot.publish_elsewhere(number, bytes))
}

#[test]
fn a_message_larger_than_a_slot_says_its_extent_and_is_read_there() {
    for policy in Policy::ALL {
        let mut world = growing(policy, 4);
        let (mut reader, _cursor) = world.reader(1, 1);
        let elsewhere = Memory::new(MOST);
        let bytes: Vec<u8> = (0..MOST).map(|at| (at % 251) as u8).collect();
        WriteView::new(elsewhere.own().mapping, 0, MOST).unwrap().copy_from(0, &bytes).unwrap();
        for round in 0..3 {
            world.write(b"small");
            let small = message(&mut reader);
            assert_eq!((small.view().to_vec(), small.extent()), (b"small".to_vec(), None));
            drop(small);
            publish_elsewhere(&mut world, 70 + round, MOST);
            let mut large = message(&mut reader);
            assert_eq!(large.extent(), Some(Extent { number: 70 + round, bytes: MOST }));
            assert_eq!((large.bytes(), large.view().len()), (MOST, 0), "it is not found yet");
            large.found_at(elsewhere.shared()).unwrap();
            assert!(large.view().to_vec() == bytes);
        }
    }
}

#[test]
fn a_slot_has_the_same_index_again_once_every_reader_is_past_its_message() {
    let mut world = growing(Policy::Block, 2);
    let (mut reader, _cursor) = world.reader(1, 2);
    assert_eq!(publish_elsewhere(&mut world, 1, 65).0, Some(0));
    assert_eq!(publish_elsewhere(&mut world, 2, 65).0, Some(1));
    let first = message(&mut reader);
    let claimed = world.writer.claim(Layout::Plain, Deadline::Now, &|| false).map(|slot| slot.index());
    assert!(matches!(claimed, Err(ClaimError::Blocked { sequence: 0, .. })), "{claimed:?}");
    drop(first);
    assert_eq!(publish_elsewhere(&mut world, 3, 65).0, Some(0));
}

#[test]
fn a_large_message_that_is_dropped_has_no_slot_and_what_is_held_keeps_its_own() {
    for policy in [Policy::DropOldest, Policy::Latest] {
        let mut world = growing(policy, 2);
        let (mut one, _one) = world.reader(1, 1);
        let (mut other, _other) = world.reader(2, 1);
        publish_elsewhere(&mut world, 1, 65);
        let first = message(&mut one);
        publish_elsewhere(&mut world, 2, 65);
        // One holds the first message, and the other one the second.
        let second = loop {
            match read(&mut other) {
                Read::Message(message) if message.sequence() == 1 => break message,
                _ => {}
            }
        };
        let (index, published) = publish_elsewhere(&mut world, 3, 65);
        assert_eq!((index, published.dropped), (None, true), "{policy}");
        let extents = [&first, &second].map(|held| held.extent().unwrap().number);
        assert_eq!(extents, [1, 2], "{policy}");
    }
}

#[test]
fn more_bytes_than_the_largest_message_are_damage_and_an_extent_that_is_too_short_is_refused() {
    let mut world = growing(Policy::Block, 2);
    let (mut reader, _cursor) = world.reader(1, 1);
    publish_elsewhere(&mut world, 1, u64::MAX);
    let mut cut = message(&mut reader);
    assert_eq!(cut.bytes(), MOST, "the writer's word is cut");
    let short = Memory::new(MOST);
    let beyond = Place { offset: 64, ..short.shared() };
    assert!(cut.found_at(beyond).is_err());
    assert!(cut.view().is_empty());
    drop(cut);
    publish_elsewhere(&mut world, 2, 65);
    let liar = world.ring.words();
    liar.store64(world.shape.entry(1, entry::BYTES), MOST + 1);
    let damaged = reader.read(Deadline::Now, &|| false).unwrap_err();
    assert!(matches!(damaged, ReadError::Damaged { sequence: 1, .. }), "{damaged}");
}

#[test]
fn a_writer_that_dies_while_it_publishes_an_extent_leaves_whole_messages_and_no_half_one() {
    let shape = RingShape::new(4, 64).unwrap().growing(MOST).unwrap();
    // More stores than a message has.
    for stores in 0..16 {
        let mut world = World::shaped(shape);
        let (mut reader, _cursor) = world.reader(1, 1);
        publish_elsewhere(&mut world, 1, 65);
        STORES_LEFT.set(Some(stores));
        publish_elsewhere(&mut world, 2, 66);
        STORES_LEFT.set(None);
        lose_ring(&world.ring.words());
        assert_eq!(message(&mut reader).extent(), Some(Extent { number: 1, bytes: 65 }));
        match read(&mut reader) {
            Read::Message(message) => {
                assert_eq!(message.extent(), Some(Extent { number: 2, bytes: 66 }), "after {stores}");
            }
            end => assert!(matches!(end, Read::Lost), "{end:?} after {stores}"),
        }
    }
}
