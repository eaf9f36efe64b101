//! Rings that drop, within one process.

use super::*;

const DROPPING: [Policy; 2] = [Policy::DropOldest, Policy::Latest];

/// Answer to a read: the sequence of a message, or the number of messages that were dropped.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Message(u64),
    Gap(u64),
    Finished,
    Nothing,
}

fn told(reader: &mut RingReader) -> Told {
    match reader.read(Deadline::Now, &|| false) {
        Ok(Read::Message(message)) => Told::Message(message.sequence()),
        Ok(Read::Gap { dropped, .. }) => Told::Gap(dropped),
        Ok(Read::Finished) => Told::Finished,
        Err(ReadError::TimedOut) => Told::Nothing,
        other => panic!("{other:?}"),
    }
}

fn all(reader: &mut RingReader) -> Vec<Told> {
    let mut told_all = Vec::new();
    loop {
        let told = told(reader);
        let is_last = matches!(told, Told::Finished | Told::Nothing);
        told_all.push(told);
        if is_last {
            return told_all;
        }
    }
}

#[test]
fn a_slow_reader_of_drop_oldest_goes_on_at_the_oldest_that_is_there() {
    let mut world = World::of(Policy::DropOldest, 4, 64);
    let (mut reader, cursor) = world.reader(1, 1);
    world.write(b"0");
    assert_eq!(all(&mut reader), [Told::Message(0), Told::Nothing]);
    for _ in 1..=10 {
        world.write(b"x");
    }
    let four = [7, 8, 9, 10].map(Told::Message);
    let expected: Vec<Told> = [Told::Gap(6)].into_iter().chain(four).chain([Told::Nothing]).collect();
    assert_eq!(all(&mut reader), expected);
    let words = cursor.words();
    assert_eq!((words.load64(cursor::NEXT), words.load64(cursor::DROPPED)), (11, 6));
}

#[test]
fn a_slow_reader_of_latest_goes_on_at_the_newest() {
    let mut world = World::of(Policy::Latest, 4, 64);
    let (mut reader, _cursor) = world.reader(1, 1);
    for _ in 0..3 {
        world.write(b"x");
    }
    assert_eq!(all(&mut reader), [Told::Gap(2), Told::Message(2), Told::Nothing]);
    world.write(b"x");
    assert_eq!(all(&mut reader), [Told::Message(3), Told::Nothing]);
    world.write(b"x");
    world.writer.finish();
    assert_eq!(all(&mut reader), [Told::Message(4), Told::Finished]);
}

#[test]
fn what_a_reader_holds_stays_and_its_slot_is_passed_over() {
    for policy in DROPPING {
        let mut world = World::of(policy, 4, 64);
        let (mut holds, _holds) = world.reader(1, 2);
        let (mut reads, _reads) = world.reader(2, 1);
        world.write(b"first");
        let first = message(&mut holds);
        world.write(b"second");
        let second = message(&mut holds);
        assert_eq!(holds.read(Deadline::Now, &|| false).unwrap_err(), ReadError::HoldLimit { hold: 2 });
        for number in 2u64..10_000 {
            let published = world.write(&number.to_le_bytes());
            assert_eq!(published, Published { sequence: number, readers: 2, dropped: false });
        }
        assert_eq!((first.view().to_vec(), second.view().to_vec()), (b"first".to_vec(), b"second".to_vec()));
        // Two slots are left to the others.
        assert!(matches!(told(&mut reads), Told::Gap(dropped) if dropped >= 9_998));
        assert_eq!(message(&mut reads).view().len(), 8);
        drop((first, second));
        assert!(matches!(told(&mut holds), Told::Gap(_)));
    }
}

#[test]
fn a_message_without_a_slot_is_dropped_and_every_reader_is_told() {
    for policy in DROPPING {
        let mut world = World::of(policy, 2, 64);
        let (mut holds, _holds) = world.reader(1, 1);
        let (mut also, _also) = world.reader(3, 1);
        let (mut reads, _reads) = world.reader(2, 1);
        let held = hold_both(&mut world, &mut holds, &mut also);
        for sequence in 2..5 {
            assert_eq!(world.write(b"lost"), Published { sequence, readers: 3, dropped: true });
        }
        assert_eq!(told(&mut reads), Told::Nothing, "all slots are held, and nothing new is in them");
        drop(held);
        assert!(!world.write(b"on").dropped);
        assert_eq!(all(&mut reads), [Told::Gap(5), Told::Message(5), Told::Nothing]);
        assert_eq!(all(&mut holds), [Told::Gap(4), Told::Message(5), Told::Nothing]);
        assert_eq!(all(&mut also), [Told::Gap(3), Told::Message(5), Told::Nothing]);
        let held = hold_both(&mut world, &mut holds, &mut also);
        assert!(world.write(b"lost at the end").dropped);
        world.writer.finish();
        assert_eq!(all(&mut reads).last(), Some(&Told::Finished));
        drop(held);
        assert_eq!(all(&mut holds), [Told::Gap(2), Told::Finished]);
        assert_eq!(all(&mut also), [Told::Gap(1), Told::Finished]);
    }
}

/// Has two readers hold one of the next two messages each.
fn hold_both(world: &mut World, one: &mut RingReader, other: &mut RingReader) -> [Message; 2] {
    let first = message_after(world, one);
    drop(message(other));
    [first, message_after(world, other)]
}

fn message_after(world: &mut World, reader: &mut RingReader) -> Message {
    world.write(b"x");
    message(reader)
}

#[test]
fn a_slot_that_is_held_is_no_place_of_a_message_and_without_another_there_is_none() {
    for policy in DROPPING {
        let mut world = World::of(policy, 2, 64);
        let (mut holds, _holds) = world.reader(1, 1);
        let (mut also, _also) = world.reader(2, 1);
        let _first = message_after(&mut world, &mut holds);
        drop(message(&mut also));
        for sequence in 1..4u64 {
            let slot = world.writer.claim(Layout::Plain, Deadline::Now, &|| false).unwrap();
            let replaces = (sequence > 1).then(|| sequence - 1);
            assert_eq!(slot.placed(), Some(Placed { sequence, replaces }), "the other slot, again and again");
            slot.publish(1);
        }
        assert_eq!(told(&mut also), Told::Gap(2));
        let _last = message(&mut also);
        let slot = world.writer.claim(Layout::Plain, Deadline::Now, &|| false).unwrap();
        assert_eq!(slot.placed(), None);
        assert!(slot.publish(1).dropped);
    }
}

#[test]
fn a_late_reader_begins_with_the_next_message_or_with_the_oldest_that_is_there() {
    let mut world = World::of(Policy::DropOldest, 4, 64);
    for _ in 0..10 {
        world.write(b"x");
    }
    let (mut next, _next) = world.reader(1, 1);
    let (mut oldest, _oldest, first) = world.reader_from(2, 1, First::Oldest);
    assert_eq!(first, 6);
    world.write(b"x");
    assert_eq!(all(&mut next), [Told::Message(10), Told::Nothing]);
    assert_eq!(told(&mut oldest), Told::Gap(1));
    assert_eq!(told(&mut oldest), Told::Message(7));
}

#[test]
fn every_message_is_read_whole_or_told_as_dropped_however_slow_its_reader_is() {
    const MESSAGES: u64 = 200_000;
    for policy in DROPPING {
        let mut world = World::of(policy, 8, 256);
        let holds = [1, 3, 2];
        let readers = holds.map(|hold| (hold as usize, world.reader(hold.into(), hold)));
        thread::scope(|scope| {
            for (hold, (mut reader, _cursor)) in readers {
                scope.spawn(move || {
                    NO_NET.set(true);
                    let (mut next, mut got, mut held) = (0, 0, Vec::new());
                    loop {
                        match read(&mut reader) {
                            Read::Message(message) => {
                                assert_eq!(message.sequence(), next);
                                check(&message);
                                next += 1;
                                got += 1;
                                held.push(message);
                            }
                            Read::Gap { dropped, next: after } => {
                                next += dropped;
                                assert!(dropped > 0 && next == after);
                            }
                            Read::Finished => break,
                            end => panic!("{end:?}"),
                        }
                        if held.len() == hold {
                            held.iter().for_each(check);
                            held.clear();
                        }
                        if hold == 2 && got % 8 == 0 {
                            thread::yield_now();
                        }
                    }
                    assert_eq!(next, MESSAGES, "each one was read or told");
                    assert!(got > 0);
                });
            }
            for sequence in 0..MESSAGES {
                let length = (sequence % 32) as usize + 1;
                let words: Vec<u8> = sequence.to_le_bytes().repeat(length);
                assert_eq!(world.write(&words).sequence, sequence);
            }
            world.writer.finish();
        });
    }
}

/// Checks that every word of a message is its sequence.
fn check(message: &Message) {
    let bytes = message.view().to_vec();
    assert_eq!(bytes.len() as u64, (message.sequence() % 32 + 1) * 8);
    let is_its = |word: &[u8]| word == message.sequence().to_le_bytes();
    assert!(bytes.chunks(8).all(is_its), "message {} was overwritten", message.sequence());
}

#[test]
fn layouts_that_change_with_every_message_are_those_of_their_messages() {
    const MESSAGES: u64 = 50_000;
    for policy in DROPPING {
        let mut world = World::of(policy, 32, 64);
        let (mut reader, _cursor) = world.reader(1, 2);
        // From the second lap on a message lies in another slot than that of its number.
        let (mut holder, _other) = world.reader(2, 1);
        let _held = message_after(&mut world, &mut holder);
        let layout = |sequence: u64| match sequence % 3 {
            0 => Vec::new(),
            _ => sequence.to_le_bytes().repeat(1 + sequence as usize % 50),
        };
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                loop {
                    match read(&mut reader) {
                        Read::Message(message) => {
                            assert_eq!(message.layout().to_vec(), layout(message.sequence()));
                            next = message.sequence() + 1;
                        }
                        Read::Gap { next: after, .. } => next = after,
                        _ => break,
                    }
                }
                assert_eq!(next, MESSAGES);
            });
            for sequence in 1..MESSAGES {
                let layout = layout(sequence);
                let layout = if layout.is_empty() { Layout::Plain } else { Layout::New(&layout) };
                write(&mut world.writer, layout, b"x", Deadline::Now).unwrap();
            }
            world.writer.finish();
        });
    }
}

#[test]
fn a_reader_that_is_lost_holds_nothing() {
    let mut world = World::of(Policy::Latest, 2, 64);
    let (mut reader, cursor) = world.reader(1, 1);
    let (mut other, _other) = world.reader(2, 1);
    let _held = hold_both(&mut world, &mut reader, &mut other);
    assert!(world.write(b"x").dropped);
    lose_cursor(&cursor.words());
    assert_eq!(world.write(b"x"), Published { sequence: 3, readers: 1, dropped: false });
}

#[test]
fn a_reader_that_says_it_holds_every_slot_has_no_message_dropped() {
    for policy in DROPPING {
        let mut world = World::of(policy, 4, 64);
        let (_reader, liar) = world.reader(1, 1);
        let (mut honest, _honest) = world.reader(2, 1);
        let (liar, ring) = (liar.words(), world.ring.words());
        for sequence in 0..100 {
            for slot in 0..4u32 {
                let lies_there = ring.load64(world.shape.entry(u64::from(slot), entry::LAST));
                liar.store64(cursor::hold(slot), lies_there);
            }
            assert_eq!(world.write(b"x"), Published { sequence, readers: 2, dropped: false });
            assert_eq!(told(&mut honest), Told::Message(sequence));
        }
    }
}

#[test]
fn a_hold_of_what_does_not_lie_in_a_slot_keeps_none() {
    let mut world = World::of(Policy::Latest, 2, 64);
    let (_reader, liar) = world.reader(1, 1);
    let (liar, shape) = (liar.words(), world.shape);
    for sequence in 0..100u64 {
        // Places of messages that are long gone, or are to come, in both slots.
        for (index, position) in (0u32..).zip([sequence + 1_000, sequence + 1_001]) {
            liar.store64(cursor::hold(index), position + 1);
        }
        assert!(!world.write(b"x").dropped);
        assert_eq!(world.writer.head, sequence + 1, "no slot of {} was passed over", shape.slots());
    }
}

#[test]
fn a_reader_holds_fewer_messages_than_leave_the_writer_no_slot() {
    for policy in DROPPING {
        for (slots, most) in [(2, 1), (4, 3), (64, 7)] {
            assert_eq!(RingShape::of(policy, slots, 64).unwrap().most_held(), most);
        }
    }
}

#[test]
fn a_replica_has_the_sequences_of_what_it_replicates() {
    let mut world = World::of(Policy::DropOldest, 4, 64);
    let (mut reader, _cursor) = world.reader(1, 1);
    for sequence in [0, 5, 6] {
        let claimed = world.writer.claim(Layout::Plain, Deadline::Now, &|| false).unwrap().keep();
        world.writer.write_ahead(0, b"ab").unwrap();
        world.writer.write_ahead(2, b"cd").unwrap();
        assert_eq!(world.writer.kept(claimed).publish_as(sequence, 4).sequence, sequence);
    }
    world.writer.finish_at(9);
    world.writer.finish();
    assert_eq!(message(&mut reader).view().to_vec(), b"abcd");
    let rest = [Told::Gap(4), Told::Message(5), Told::Message(6), Told::Gap(2), Told::Finished];
    assert_eq!(all(&mut reader), rest);
}

#[test]
fn the_highest_sequences_that_there_are_come_as_any_others() {
    const LAST: u64 = u64::MAX - 1;
    for policy in DROPPING {
        let mut world = World::of(policy, 4, 64);
        let (mut reader, cursor) = world.reader(1, 1);
        let mut publish = |sequence| {
            let slot = world.writer.claim(Layout::Plain, Deadline::Now, &|| false).unwrap();
            assert_eq!(slot.publish_as(sequence, 1).sequence, sequence);
        };
        publish(LAST - 2);
        assert_eq!([told(&mut reader), told(&mut reader)], [Told::Gap(LAST - 2), Told::Message(LAST - 2)]);
        publish(LAST);
        assert_eq!([told(&mut reader), told(&mut reader)], [Told::Gap(1), Told::Message(LAST)]);
        world.writer.finish_at(u64::MAX);
        world.writer.finish();
        assert_eq!(told(&mut reader), Told::Finished);
        let words = cursor.words();
        assert_eq!((words.load64(cursor::NEXT), words.load64(cursor::DROPPED)), (u64::MAX, LAST - 1));
    }
}

#[test]
fn a_reader_that_resumes_counts_what_is_missed_and_not_what_was_read_before() {
    for policy in DROPPING {
        let mut world = World::of(policy, 4, 64);
        for _ in 0..4 {
            world.write(b"x");
        }
        let (mut reader, cursor, first) = world.reader_from(1, 1, First::Oldest);
        assert_eq!((first, reader.resume(3)), (0, 0));
        // Three that were read before are overwritten, and six that were not.
        for _ in 4..13 {
            world.write(b"x");
        }
        let (words, next) = (cursor.words(), if policy == Policy::Latest { 12 } else { 9 });
        assert_eq!([told(&mut reader), told(&mut reader)], [Told::Gap(next - 3), Told::Message(next)]);
        assert_eq!((words.load64(cursor::NEXT), words.load64(cursor::DROPPED)), (next + 1, next - 3));
        // All that is there was read before.
        let (mut ahead, _ahead, _) = world.reader_from(2, 1, First::Oldest);
        assert_eq!(ahead.resume(13), 0);
        assert_eq!(told(&mut ahead), Told::Nothing);
        // What comes next is not there any more.
        let (mut behind, cursor, first) = world.reader_from(3, 1, First::Oldest);
        assert_eq!((first, behind.resume(2)), (9, 7));
        world.write(b"x");
        assert_eq!(told(&mut ahead), Told::Message(13));
        let next = if policy == Policy::Latest { 13 } else { 10 };
        assert_eq!([told(&mut behind), told(&mut behind)], [Told::Gap(next - 9), Told::Message(next)]);
        assert_eq!(cursor.words().load64(cursor::DROPPED), 7 + next - 9);
    }
}

#[test]
fn a_reader_that_resumes_in_a_ring_that_blocks_counts_what_is_missed_and_is_waited_for_as_before() {
    let mut world = World::new(4, 64);
    for _ in 0..10 {
        world.write(b"x");
    }
    let (mut behind, cursor, first) = world.reader_from(1, 1, First::Oldest);
    assert_eq!((first, behind.resume(2)), (7, 5));
    assert_eq!(cursor.words().load64(cursor::DROPPED), 5);
    assert_eq!(message(&mut behind).sequence(), 7);
    drop(behind);
    let (mut ahead, cursor, first) = world.reader_from(2, 1, First::Oldest);
    assert_eq!((first, ahead.resume(9)), (7, 0));
    assert_eq!((cursor.words().load64(cursor::NEXT), cursor.words().load64(cursor::DROPPED)), (7, 0));
    for sequence in 7..10 {
        assert_eq!(message(&mut ahead).sequence(), sequence);
    }
    assert_eq!(world.write(b"x").readers, 1);
}

#[test]
fn readers_of_a_replica_stay_its_readers_when_it_is_asked_what_they_gave_back() {
    for policy in DROPPING {
        let mut world = World::of(policy, 4, 64);
        let (mut reader, _cursor) = world.reader(1, 1);
        let mut slot = world.writer.claim(Layout::Plain, Deadline::Now, &|| false).unwrap();
        slot.bytes(0, 4).unwrap().copy_from(0, b"held").unwrap();
        // Nine messages were dropped at the source: the reader is at sequence 10, and the ring at position 1.
        slot.publish_as(9, 4);
        assert_eq!(told(&mut reader), Told::Gap(9));
        let held = message(&mut reader);
        assert_eq!(world.writer.readers().given_back(), 1);
        for sequence in 10..30 {
            assert_eq!(world.write(b"else"), Published { sequence, readers: 1, dropped: false });
        }
        assert_eq!(held.view().to_vec(), b"held");
    }
}

#[test]
fn a_message_that_is_dropped_costs_no_allocation_either() {
    let mut world = World::of(Policy::Latest, 4, 64);
    let (mut reader, _cursor) = world.reader(1, 2);
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..1_000 {
        (0..7).for_each(|_| {
            world.write(b"message");
        });
        assert_eq!(told(&mut reader), Told::Gap(6));
        drop(message(&mut reader));
    }
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
}

#[test]
fn a_reader_of_another_policy_refuses_the_ring() {
    let world = World::of(Policy::Latest, 2, 64);
    let cursor = Memory::new(CURSOR_BYTES);
    for policy in [Policy::Block, Policy::DropOldest] {
        let other = RingShape::of(policy, 2, 64).unwrap();
        let refused = RingReader::open(world.ring.shared(), cursor.own(), other, 0, 1).unwrap_err();
        assert_eq!(refused, RingError::Header { slots: 2, slot_bytes: 64 });
    }
    let many = RingShape::of(Policy::Latest, 64, 64).unwrap();
    let refused = RingReader::open(world.ring.shared(), cursor.own(), many, 0, 8).unwrap_err();
    assert_eq!(refused, RingError::Hold { hold: 8, most: 7 });
}

proptest! {
    #[test]
    fn a_lying_ring_that_drops_is_damage_and_no_access_elsewhere(
        head in any::<u64>(), words in any::<[u64; 4]>(), written in any::<u64>(), length in any::<u32>(), state in any::<u32>(),
        latest in any::<bool>(),
    ) {
        let world = World::of(if latest { Policy::Latest } else { Policy::DropOldest }, 2, 64);
        let (mut reader, _cursor) = world.reader(1, 1);
        let liar = world.ring.words();
        let [position, bytes, layout, sequence] = words;
        for at in [head.wrapping_sub(1), 0] {
            let word = |word| world.shape.entry(at, word);
            liar.store64(word(entry::POSITION), if at == 0 { position } else { head });
            liar.store64(word(entry::BYTES), bytes);
            liar.store64(word(entry::LAYOUT), layout);
            liar.store64(word(entry::SEQUENCE), sequence);
            liar.store32(word(entry::LAYOUT_BYTES), length);
        }
        liar.store32(ring::STATE, state);
        liar.store64(ring::HEAD, head);
        liar.store64(ring::WRITTEN, written);
        for _ in 0..3 {
            if let Ok(Read::Message(message)) = reader.read(Deadline::Now, &|| false) {
                prop_assert!(message.view().len() <= 64);
            }
        }
    }

    #[test]
    fn a_lying_cursor_makes_its_writer_wait_for_nobody_and_drop_nothing(holds in proptest::collection::vec(any::<u64>(), 7)) {
        let mut world = World::of(Policy::Latest, 4, 64);
        let (_reader, cursor) = world.reader(1, 1);
        let liar = cursor.words();
        for (index, hold) in (0u32..).zip(holds) {
            liar.store64(cursor::hold(index), hold);
            let published = world.write(b"x");
            prop_assert_eq!((published.sequence, published.dropped), (u64::from(index), false));
        }
    }
}
