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
        let (mut holds, _holds) = world.reader(1, 2);
        let (mut reads, _reads) = world.reader(2, 1);
        let held: Vec<Message> = (0..2)
            .map(|_| {
                world.write(b"held");
                message(&mut holds)
            })
            .collect();
        for sequence in 2..5 {
            assert_eq!(world.write(b"lost"), Published { sequence, readers: 2, dropped: true });
        }
        assert_eq!(told(&mut reads), Told::Nothing, "all slots are held, and nothing new is in them");
        drop(held);
        assert!(!world.write(b"on").dropped);
        assert_eq!(all(&mut reads), [Told::Gap(5), Told::Message(5), Told::Nothing]);
        assert_eq!(all(&mut holds), [Told::Gap(3), Told::Message(5), Told::Nothing]);
        let held = [message_after(&mut world, &mut holds), message_after(&mut world, &mut holds)];
        assert!(world.write(b"lost at the end").dropped);
        world.writer.finish();
        assert_eq!(all(&mut reads).last(), Some(&Told::Finished));
        drop(held);
        assert_eq!(all(&mut holds), [Told::Gap(1), Told::Finished]);
    }
}

fn message_after(world: &mut World, reader: &mut RingReader) -> Message {
    world.write(b"x");
    message(reader)
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
    let (mut reader, cursor) = world.reader(1, 2);
    let _held = [message_after(&mut world, &mut reader), message_after(&mut world, &mut reader)];
    assert!(world.write(b"x").dropped);
    lose_cursor(&cursor.words());
    assert_eq!(world.write(b"x"), Published { sequence: 3, readers: 0, dropped: false });
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
    fn a_lying_cursor_makes_its_writer_drop_and_never_wait(holds in proptest::collection::vec(any::<u64>(), 7)) {
        let mut world = World::of(Policy::Latest, 4, 64);
        let (_reader, cursor) = world.reader(1, 1);
        let liar = cursor.words();
        for (index, hold) in (0u32..).zip(holds) {
            liar.store64(cursor::hold(index), hold);
            prop_assert_eq!(world.write(b"x").sequence, u64::from(index));
        }
    }
}
