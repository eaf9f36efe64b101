//! Pages that are exchanged under a map.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::segment::{Fallocate, Sealed, Unsealed};
use crate::testing::{in_child, until};
use crate::view::View;

const BYTES: u64 = 256 << 10;

fn unsealed(byte: u8, bytes: u64) -> Unsealed {
    let segment = Unsealed::create(bytes, &Fallocate).unwrap();
    let written = rustix::io::pwrite(segment.writer_fd().unwrap(), &vec![byte; bytes as usize], 0).unwrap();
    assert_eq!(written as u64, bytes);
    segment
}

fn sealed(byte: u8) -> Sealed {
    unsealed(byte, BYTES).seal().unwrap()
}

fn shown(map: &Arc<Mapping>) -> Vec<u8> {
    View::new(Arc::clone(map), 0, map.bytes()).unwrap().to_vec()
}

#[test]
fn a_map_shows_the_pages_of_the_other_segment_at_the_same_address() {
    let [before, after] = [sealed(7), sealed(8)];
    let map = Arc::new(Mapping::reader(before.reader_fd(), BYTES).unwrap());
    let (at, view) = (map.as_ptr(), View::new(Arc::clone(&map), 4096, 64).unwrap());
    map.exchange(after.reader_fd()).unwrap();
    assert_eq!((map.as_ptr(), map.bytes()), (at, BYTES));
    assert_eq!((shown(&map), view.to_vec()), (vec![8; BYTES as usize], vec![8; 64]));
    // They are of the other file, and not a copy that was made then.
    drop(before);
    map.populate();
    // What is not its own it leaves alone.
    for (offset, bytes) in [(4096, 4096), (BYTES - 4096, 1 << 40), (BYTES + 4096, 1), (u64::MAX, u64::MAX)] {
        map.populate_part(offset, bytes);
    }
    assert_eq!(shown(&map), vec![8; BYTES as usize]);
}

#[test]
fn who_reads_while_pages_are_exchanged_meets_no_fault_and_no_other_byte() {
    let copies = [sealed(7), sealed(7)];
    let map = Arc::new(Mapping::reader(copies[0].reader_fd(), BYTES).unwrap());
    let (over, rounds) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    std::thread::scope(|scope| {
        for rounds in &rounds {
            scope.spawn(|| {
                let view = View::new(Arc::clone(&map), 0, BYTES).unwrap();
                let mut bytes = vec![0; BYTES as usize];
                while !over.load(Ordering::Relaxed) {
                    view.copy_to(&mut bytes).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == 7));
                    assert_eq!(view.touch_pages(), 7 * BYTES / crate::PAGE);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let exchanged = std::panic::catch_unwind(|| {
            until("both have read often while pages were exchanged", || {
                copies.iter().for_each(|copy| map.exchange(copy.reader_fd()).unwrap());
                rounds.iter().all(|rounds| rounds.load(Ordering::Relaxed) > 200)
            });
        });
        over.store(true, Ordering::Relaxed);
        exchanged.unwrap();
    });
}

#[test]
fn what_is_no_segment_of_that_size_is_not_put_under_a_map_nor_anything_under_one_for_writing() {
    let (segment, open, short) = (sealed(7), unsealed(8, BYTES), unsealed(8, BYTES / 2).seal().unwrap());
    let map = Arc::new(Mapping::reader(segment.reader_fd(), BYTES).unwrap());
    let writer = open.writer_fd().unwrap();
    assert!(matches!(map.exchange(writer.as_fd()), Err(MapError::SealsMissing { .. })));
    assert!(matches!(map.exchange(short.reader_fd()), Err(MapError::Short { .. })));
    let writing = Mapping::writer(writer.as_fd(), BYTES).unwrap();
    assert!(matches!(writing.exchange(segment.reader_fd()), Err(MapError::Writable)));
    assert_eq!(shown(&map), vec![7; BYTES as usize]);
}

#[test]
fn a_hole_that_a_failed_exchange_left_is_filled_and_a_map_that_is_there_is_not_mapped_over() {
    let [before, after] = [sealed(7), sealed(8)];
    let map = Mapping::reader(before.reader_fd(), BYTES).unwrap();
    // SAFETY: the first byte of a map that lives, in which nobody writes.
    let first = || unsafe { map.as_ptr().as_ptr().read_volatile() };
    assert_eq!((map.fill(after.reader_fd()), first()), (Err(Errno::EXIST), 7));
    assert!(in_child(|| {
        // SAFETY: exactly our map, in a child that has one thread; nobody reads there before it is filled.
        unsafe { rustix::mm::munmap(map.as_ptr().as_ptr().cast(), map.len) }.is_ok()
            && map.fill(after.reader_fd()).is_ok()
            && first() == 8
    }));
    assert_eq!(first(), 7);
}

#[test]
fn a_forked_child_has_a_map_of_its_own() {
    let [before, after] = [sealed(7), sealed(8)];
    let map = Mapping::reader(before.reader_fd(), BYTES).unwrap();
    // SAFETY: the first byte of a map that lives, in which nobody writes.
    let first = || unsafe { map.as_ptr().as_ptr().read_volatile() };
    assert!(in_child(|| map.exchange(after.reader_fd()).is_ok() && first() == 8));
    assert_eq!(first(), 7);
}
