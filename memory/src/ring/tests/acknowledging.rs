//! Readers that acknowledge, and go back to what they have not acknowledged, within one process.

use super::*;

/// A reader of a world that acknowledges.
fn acknowledging(world: &World) -> (RingReader, Memory) {
    let (reader, cursor) = world.reader(1, 1);
    (reader.acknowledging(), cursor)
}

fn sequences(reader: &mut RingReader, count: usize) -> Vec<u64> {
    (0..count).map(|_| message(reader).sequence()).collect()
}

fn blocks() -> [World; 2] {
    [false, true].map(|evicts| World::shaped(RingShape::with(Policy::Block, evicts, 4, 64).unwrap()))
}

#[test]
fn a_writer_that_waits_leaves_what_is_not_acknowledged_where_it_is() {
    for mut world in blocks() {
        let (mut reader, _cursor) = acknowledging(&world);
        for number in 0..4u8 {
            world.write(&[number]);
        }
        let begin = reader.mark();
        assert_eq!(sequences(&mut reader, 4), [0, 1, 2, 3]);
        let blocked = write(&mut world.writer, Layout::Plain, b"x", Deadline::Now).unwrap_err();
        assert!(matches!(blocked, ClaimError::Blocked { reader: 1, sequence: 0, .. }), "{blocked}");
        reader.closer().acknowledge(2);
        reader.closer().acknowledge(1);
        for number in 4..6u8 {
            write(&mut world.writer, Layout::Plain, &[number], Deadline::Now).unwrap();
        }
        assert!(write(&mut world.writer, Layout::Plain, b"x", Deadline::Now).is_err());
        reader.go_back(Mark { next: 2, ..begin });
        for number in 2..6u8 {
            let message = message(&mut reader);
            assert_eq!((message.sequence(), message.view().to_vec()), (u64::from(number), vec![number]));
        }
        assert_eq!(reader.mark().next, 6);
    }
}

#[test]
fn a_reader_that_goes_back_in_a_ring_that_drops_counts_what_is_gone_once() {
    let mut world = World::of(Policy::DropOldest, 4, 64);
    let (mut reader, cursor) = acknowledging(&world);
    (0..3).for_each(|_| _ = world.write(b"x"));
    let begin = reader.mark();
    assert_eq!(sequences(&mut reader, 3), [0, 1, 2]);
    (3..9).for_each(|_| _ = world.write(b"x"));
    assert!(matches!(read(&mut reader), Read::Gap { dropped: 2, next: 5 }));
    assert_eq!(message(&mut reader).sequence(), 5);
    reader.go_back(Mark { next: 2, ..begin });
    assert!(matches!(read(&mut reader), Read::Gap { dropped: 3, next: 5 }));
    assert_eq!(sequences(&mut reader, 4), [5, 6, 7, 8]);
    assert_eq!(cursor.words().load64(cursor::DROPPED), 3, "message 2 was read once, and did not arrive");
    assert_eq!(cursor.words().load64(cursor::NEXT), 0, "nothing is acknowledged");
}

#[test]
fn a_read_that_is_woken_asks_whether_it_is_to_stop() {
    let world = World::new(4, 64);
    let (mut reader, cursor) = acknowledging(&world);
    let (closer, stopped) = (reader.closer(), std::sync::atomic::AtomicBool::new(false));
    thread::scope(|scope| {
        let stop = || stopped.load(std::sync::atomic::Ordering::SeqCst);
        let reading = scope.spawn(move || reader.read(Deadline::Never, &stop).unwrap_err());
        until("it sleeps", || cursor.words().load32(cursor::ASLEEP) == 1);
        stopped.store(true, std::sync::atomic::Ordering::SeqCst);
        closer.wake();
        assert_eq!(reading.join().unwrap(), ReadError::Stopped);
    });
}
