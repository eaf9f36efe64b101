//! Rings that block and evict, within one process.

use std::sync::mpsc;

use super::*;

const SHORT: Duration = Duration::from_millis(20);

fn evicting(slots: u32) -> World {
    World::shaped(RingShape::with(Policy::Block, true, slots, 64).unwrap())
}

/// Reads one message and lets it go.
fn sequence(reader: &mut RingReader) -> u64 {
    message(reader).sequence()
}

fn over(reader: &mut RingReader) -> ReadError {
    reader.read(Deadline::Now, &|| false).unwrap_err()
}

#[test]
fn every_message_comes_to_every_reader_that_is_not_evicted() {
    const MESSAGES: u64 = 20_000;
    let mut world = evicting(8);
    let readers = [world.reader(1, 1), world.reader(2, 3)];
    thread::scope(|scope| {
        for (mut reader, _cursor) in readers {
            scope.spawn(move || {
                NO_NET.set(true);
                for sequence in 0..MESSAGES {
                    let message = message(&mut reader);
                    assert_eq!(message.sequence(), sequence);
                    assert_eq!(message.view().to_vec(), sequence.to_le_bytes());
                }
                assert!(matches!(read(&mut reader), Read::Finished));
            });
        }
        for sequence in 0..MESSAGES {
            let published = world.write(&sequence.to_le_bytes());
            assert_eq!(published, Published { sequence, readers: 2, dropped: false });
        }
        world.writer.finish();
    });
}

#[test]
fn a_reader_that_is_evicted_keeps_what_it_holds_and_is_waited_for_no_longer() {
    let mut world = evicting(4);
    let (mut slow, cursor) = world.reader(7, 2);
    let (mut fast, _fast) = world.reader(1, 1);
    world.write(b"held");
    let held = message(&mut slow);
    assert_eq!(sequence(&mut fast), 0);
    // The slot that is held is passed over, and the first message that is not read is waited for.
    for expected in 1..=3 {
        world.write(b"x");
        assert_eq!(sequence(&mut fast), expected);
    }
    let blocked = write(&mut world.writer, Layout::Plain, b"y", soon()).unwrap_err();
    assert!(matches!(blocked, ClaimError::Blocked { reader: 7, sequence: 1, .. }), "{blocked}");
    assert!(world.writer.readers().evict(7));
    evict_cursor(&cursor.words());
    for expected in 4..10_000u64 {
        let published = world.write(&expected.to_le_bytes());
        assert_eq!(published, Published { sequence: expected, readers: 1, dropped: false });
        assert_eq!(sequence(&mut fast), expected);
    }
    assert_eq!((over(&mut slow), held.view().to_vec()), (ReadError::Evicted, b"held".to_vec()));
    assert!(!world.writer.readers().evict(7), "once");
    assert_eq!(world.writer.readers().len(), 1);
    drop((held, slow));
    assert_eq!(cursor.words().load32(cursor::STATE), CursorState::Detached as u32);
}

#[test]
fn a_reader_that_holds_the_writer_up_is_given_to_be_evicted_once_when_it_is_time() {
    let mut world = evicting(2);
    let (told, evicts) = mpsc::channel();
    world.writer.evict_after(SHORT, move |reader| told.send(reader).unwrap());
    let (mut slow, cursor) = world.reader(7, 1);
    (0..2).for_each(|_| {
        world.write(b"x");
    });
    let begun = Instant::now();
    let World { writer, .. } = &mut world;
    thread::scope(|scope| {
        let writes = scope.spawn(|| write(writer, Layout::Plain, b"y", Deadline::Never).unwrap());
        assert_eq!(evicts.recv(), Ok(7));
        assert!(begun.elapsed() >= SHORT);
        evict_cursor(&cursor.words());
        assert_eq!(writes.join().unwrap(), Published { sequence: 2, readers: 0, dropped: false });
    });
    assert!(evicts.try_recv().is_err(), "once");
    assert_eq!(over(&mut slow), ReadError::Evicted);
}

#[test]
fn a_reader_that_reads_on_in_time_is_not_evicted() {
    let mut world = evicting(2);
    world.writer.evict_after(Duration::from_secs(3_600), |_| panic!("evicted"));
    let (mut reader, _cursor) = world.reader(7, 1);
    for expected in 0..100 {
        world.write(b"x");
        let blocked = (expected > 0).then(|| write(&mut world.writer, Layout::Plain, b"y", Deadline::Now));
        assert!(!matches!(blocked, Some(Ok(_))), "both slots are unread");
        if expected > 0 {
            assert_eq!(sequence(&mut reader), expected - 1);
        }
    }
}

#[test]
fn a_writer_that_finds_every_slot_held_goes_on_when_one_is_let_go() {
    let mut world = evicting(2);
    let (mut first, gone) = world.reader(1, 1);
    let (mut second, _second) = world.reader(2, 1);
    world.write(b"a");
    let a = message(&mut first);
    assert_eq!(sequence(&mut second), 0);
    world.write(b"b");
    let b = message(&mut second);
    // What the first one has not read is waited for first.
    let blocked = write(&mut world.writer, Layout::Plain, b"c", Deadline::Now).unwrap_err();
    assert!(matches!(blocked, ClaimError::Blocked { reader: 1, sequence: 1, .. }), "{blocked}");
    evict_cursor(&gone.words());
    // Every slot is held now. The one that may let go is named, and not the one that was evicted.
    let blocked = write(&mut world.writer, Layout::Plain, b"c", Deadline::Now).unwrap_err();
    assert!(matches!(blocked, ClaimError::Blocked { reader: 2, sequence: 1, .. }), "{blocked}");
    let World { ring, writer, .. } = &mut world;
    thread::scope(|scope| {
        let writes = scope.spawn(|| {
            NO_NET.set(true);
            write(writer, Layout::Plain, b"c", Deadline::Never).unwrap()
        });
        until("the writer sleeps", || wants(ring));
        drop(b);
        assert_eq!(writes.join().unwrap().sequence, 2);
    });
    assert_eq!((a.view().to_vec(), sequence(&mut second)), (b"a".to_vec(), 2));
}

#[test]
fn layouts_that_change_with_every_message_are_those_of_their_messages() {
    let mut world = evicting(16);
    let (mut reader, _cursor) = world.reader(1, 1);
    let layout = |number: u64| [number as u8; 8];
    for number in 0..200u64 {
        write(&mut world.writer, Layout::New(&layout(number)), b"x", Deadline::Now).unwrap();
        if number >= 7 {
            let message = message(&mut reader);
            assert_eq!((message.sequence(), &message.layout()[..]), (number - 7, &layout(number - 7)[..]));
        }
    }
    write(&mut world.writer, Layout::New(&layout(200)), b"x", Deadline::Now).unwrap();
    let blocked = write(&mut world.writer, Layout::New(&layout(201)), b"x", Deadline::Now).unwrap_err();
    assert!(matches!(blocked, ClaimError::Blocked { reader: 1, sequence: 193, .. }), "{blocked}");
}

#[test]
fn a_late_reader_of_the_oldest_gets_what_is_there_without_a_gap() {
    let mut world = evicting(4);
    let (mut reader, _cursor) = world.reader(1, 1);
    for expected in 0..10 {
        world.write(b"x");
        assert_eq!(sequence(&mut reader), expected);
    }
    let (mut late, _late, first) = world.reader_from(2, 1, First::Oldest);
    assert!((6..10).contains(&first), "{first}");
    for expected in first..10 {
        assert_eq!(sequence(&mut late), expected);
    }
}

#[test]
fn as_many_messages_are_held_as_leave_the_writer_a_slot() {
    for (slots, most) in [(2, 1), (4, 3), (64, 7)] {
        assert_eq!(RingShape::with(Policy::Block, true, slots, 64).unwrap().most_held(), most);
    }
    let world = evicting(2);
    let cursor = Memory::new(CURSOR_BYTES);
    let plain = RingShape::new(2, 64).unwrap();
    let refused = RingReader::open(world.ring.shared(), cursor.own(), plain, 0, 1).unwrap_err();
    assert_eq!(refused, RingError::Header { slots: 2, slot_bytes: 64 }, "a reader that knows no evictions");
}

proptest! {
    #[test]
    fn a_lying_cursor_is_left_out_or_named_and_never_read_out_of_bounds(
        words in proptest::collection::vec(any::<u64>(), 1..20), holds in proptest::collection::vec(any::<u64>(), 7),
    ) {
        let mut world = evicting(4);
        let (_reader, liar) = world.reader(1, 1);
        let (mut honest, _honest) = world.reader(2, 1);
        for (at, hold) in (0..).zip(&holds) {
            liar.words().store64(cursor::hold(at), *hold);
        }
        for word in words {
            liar.words().store64(cursor::NEXT, word);
            if write(&mut world.writer, Layout::Plain, b"x", Deadline::Now).is_ok() {
                drop(message(&mut honest));
            }
        }
        lose_cursor(&liar.words());
        world.write(b"on");
        prop_assert_eq!(message(&mut honest).view().to_vec(), b"on");
    }
}

#[test]
fn a_reader_that_takes_its_eviction_back_and_says_that_it_holds_every_slot_stops_nobody() {
    let mut world = evicting(4);
    let (_reader, liar) = world.reader(7, 1);
    let (mut honest, _honest) = world.reader(1, 1);
    for expected in 0..4 {
        world.write(b"x");
        assert_eq!(sequence(&mut honest), expected);
    }
    let blocked = write(&mut world.writer, Layout::Plain, b"y", Deadline::Now).unwrap_err();
    assert!(matches!(blocked, ClaimError::Blocked { reader: 7, sequence: 0, .. }), "{blocked}");
    assert!(world.writer.readers().evict(7));
    let (liar, ring) = (liar.words(), world.ring.words());
    for expected in 4..100 {
        evict_cursor(&liar);
        liar.store32(cursor::STATE, CursorState::Attached as u32);
        for slot in 0..4u32 {
            let lies_there = ring.load64(world.shape.entry(u64::from(slot), entry::LAST));
            liar.store64(cursor::hold(slot), lies_there);
        }
        let published = write(&mut world.writer, Layout::Plain, b"x", Deadline::Now).unwrap();
        assert_eq!(published, Published { sequence: expected, readers: 1, dropped: false });
        assert_eq!(sequence(&mut honest), expected);
    }
}

#[test]
fn a_reader_that_was_passed_over_is_evicted_before_its_cursor_says_so() {
    let mut world = evicting(2);
    let (mut slow, _cursor) = world.reader(7, 1);
    world.write(b"x");
    assert!(world.writer.readers().evict(7));
    (0..3).for_each(|_| {
        world.write(b"y");
    });
    assert_eq!(over(&mut slow), ReadError::Evicted, "and no gap, which such a channel has not");
    world.writer.finish();
    assert_eq!(over(&mut slow), ReadError::Evicted);
}

#[test]
fn a_reader_at_its_limit_that_was_passed_over_is_evicted_and_not_told_to_let_go() {
    let mut world = evicting(4);
    let (mut slow, _cursor) = world.reader(7, 1);
    world.write(b"x");
    let held = message(&mut slow);
    world.write(b"y");
    assert_eq!(over(&mut slow), ReadError::HoldLimit { hold: 1 }, "what comes next is there");
    assert!(world.writer.readers().evict(7));
    assert_eq!(over(&mut slow), ReadError::HoldLimit { hold: 1 }, "nothing was written since");
    (0..8).for_each(|_| {
        world.write(b"z");
    });
    assert_eq!(over(&mut slow), ReadError::Evicted);
    assert_eq!(held.view().to_vec(), b"x");
}

#[test]
fn an_eviction_is_an_event_for_a_reader_that_has_looked_and_does_not_sleep_yet() {
    let mut world = evicting(2);
    let (mut reader, cursor) = world.reader(7, 1);
    let seen = world.ring.words().load32(ring::EVENTS);
    evict(&cursor.words(), &world.ring.words());
    assert_ne!(
        world.ring.words().load32(ring::EVENTS),
        seen,
        "the kernel puts nobody to sleep who saw the one before"
    );
    // The writer counts on from there.
    world.write(b"x");
    assert_eq!(over(&mut reader), ReadError::Evicted);
}
