//! Operations that the kernel must refuse once a segment is sealed. Bare system calls try them in forked children, as
//! whoever runs the tests (root, if that is root) and as an ordinary user.

use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Arc;

use super::*;
use crate::testing::{exit_code_of, in_child};
use crate::view::{View, WriteView};

const BYTES: usize = 64 << 10;
const NOBODY: u32 = 65534;

/// Refuses everything beyond its allowance.
struct Allowance(u64);

impl Populate for Allowance {
    fn populate(&self, fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
        if offset + bytes > self.0 {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Fallocate.populate(fd, offset, bytes)
    }
}

fn sealed_with_writer() -> (Sealed, OwnedFd, Arc<Mapping>) {
    let unsealed = Unsealed::create(BYTES as u64, &Fallocate).unwrap();
    let writer_fd = unsealed.writer_fd().unwrap();
    let writer = Arc::new(Mapping::writer(writer_fd.as_fd(), BYTES as u64).unwrap());
    (unsealed.seal().unwrap(), writer_fd, writer)
}

/// Attempts that would change a segment, on a descriptor. True: it was refused.
type Attempt = (&'static str, fn(RawFd) -> bool);

const ATTEMPTS: &[Attempt] = &[
    ("pwrite", |fd| {
        // SAFETY: a system call on a descriptor, and on maps made right there below; no memory of ours is given up.
        unsafe { libc::pwrite(fd, [1u8].as_ptr().cast(), 1, 0) < 0 }
    }),
    ("mmap shared for writing", |fd| map(fd, libc::PROT_READ | libc::PROT_WRITE).is_none()),
    ("mprotect of a read-only map", |fd| {
        map(fd, libc::PROT_READ).is_none_or(|at| {
            // SAFETY: as above.
            unsafe { libc::mprotect(at, BYTES, libc::PROT_READ | libc::PROT_WRITE) != 0 }
        })
    }),
    // SAFETY: as above.
    ("truncate to less", |fd| unsafe { libc::ftruncate(fd, 0) } != 0),
    // SAFETY: as above.
    ("truncate to more", |fd| unsafe { libc::ftruncate(fd, 2 * BYTES as i64) } != 0),
    ("punch a hole", |fd| {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: as above.
        unsafe { libc::fallocate(fd, mode, 0, 4096) != 0 }
    }),
    ("MADV_REMOVE of a read-only map", |fd| {
        map(fd, libc::PROT_READ).is_none_or(|at| {
            // SAFETY: as above.
            unsafe { libc::madvise(at, BYTES, libc::MADV_REMOVE) != 0 }
        })
    }),
    // One that maps for writing do not stand against.
    // SAFETY: as above.
    ("add seals", |fd| unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) } != 0),
];

/// Operations that the seals of [`seals::BEFORE_WRITER`] refuse already.
const SIZES: [&str; 2] = ["truncate to less", "truncate to more"];

fn map(fd: RawFd, protection: i32) -> Option<*mut libc::c_void> {
    // SAFETY: a new map at an address of the kernel's choice; the child that makes it ends soon.
    let at = unsafe { libc::mmap(null_mut(), BYTES, protection, libc::MAP_SHARED, fd, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}

fn reopen_for_writing(fd: RawFd) -> Option<RawFd> {
    let path = format!("/proc/self/fd/{fd}\0");
    // SAFETY: the path ends with a zero byte and outlives the call.
    let opened = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDWR) };
    (opened >= 0).then_some(opened)
}

fn become_user(uid: u32) {
    // SAFETY: system calls without memory, in a child of one thread.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setgid(uid), 0);
        assert_eq!(libc::setuid(uid), 0);
        // Else /proc/self/fd belongs to root, and re-opening would fail for that reason alone.
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    }
}

/// The first attempt that was not refused, on the descriptor itself or on one re-opened for writing. Re-opening succeeds
/// for the owner, so that nothing but the seals refuses him, and for nobody else.
fn first_allowed(fd: RawFd, uid: Option<u32>) -> Option<String> {
    let code = exit_code_of(|| {
        if let Some(uid) = uid {
            become_user(uid);
        }
        let reopened = reopen_for_writing(fd);
        assert_eq!(reopened.is_some(), uid.is_none(), "re-opened by {uid:?}");
        for (way, fd) in [Some(fd), reopened].into_iter().enumerate() {
            let Some(fd) = fd else { continue };
            if let Some(at) = ATTEMPTS.iter().position(|(_, refused)| !refused(fd)) {
                return (1 + way * ATTEMPTS.len() + at) as i32;
            }
        }
        0
    });
    let at = usize::try_from(code).unwrap().checked_sub(1)?;
    let (way, attempt) = (at / ATTEMPTS.len(), at % ATTEMPTS.len());
    let way = ["as handed out", "re-opened for writing"].get(way).unwrap_or(&"the child died");
    Some(format!("{} ({way})", ATTEMPTS[attempt].0))
}

fn users() -> Vec<Option<u32>> {
    let root = rustix::process::geteuid().is_root();
    if root { vec![None, Some(NOBODY)] } else { vec![None] }
}

#[test]
fn nobody_changes_a_sealed_segment_through_a_readers_descriptor() {
    let (sealed, _, _) = sealed_with_writer();
    for user in users() {
        assert_eq!(first_allowed(sealed.reader_fd().as_raw_fd(), user), None, "user {user:?}");
    }
    assert_eq!(sealed.bytes(), BYTES as u64);
}

#[test]
fn nobody_changes_a_sealed_segment_through_the_writers_descriptor() {
    let (_sealed, writer_fd, _) = sealed_with_writer();
    for user in users() {
        assert_eq!(first_allowed(writer_fd.as_raw_fd(), user), None, "user {user:?}");
    }
}

#[test]
fn the_attempts_do_find_a_segment_that_is_not_sealed_yet() {
    let unsealed = Unsealed::create(BYTES as u64, &Fallocate).unwrap();
    let writer_fd = unsealed.writer_fd().unwrap();
    assert_eq!(first_allowed(writer_fd.as_raw_fd(), None).as_deref(), Some("pwrite (as handed out)"));
}

/// The attempts that the kernel allows on a re-opened descriptor, each on a new file.
fn allowed(file: impl Fn() -> OwnedFd) -> Vec<&'static str> {
    let allows = |refused: fn(RawFd) -> bool| {
        let fd = file();
        in_child(|| !refused(reopen_for_writing(fd.as_raw_fd()).expect("the owner may re-open it")))
    };
    // Whether this one is refused without a seal is a matter of the kernel's age: Linux 6.7 began to allow it.
    let dated = "MADV_REMOVE of a read-only map";
    let attempts = ATTEMPTS.iter().filter(|(name, _)| *name != dated);
    attempts.filter(|(_, refused)| allows(*refused)).map(|(name, _)| *name).collect()
}

#[test]
fn what_is_refused_is_refused_by_the_seals_alone() {
    let plain = allowed(|| {
        let fd = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, BYTES as u64).unwrap();
        fd
    });
    assert_eq!(plain.len(), ATTEMPTS.len() - 1, "{plain:?}");
    let unsealed = allowed(|| Unsealed::create(BYTES as u64, &Fallocate).unwrap().writer_fd().unwrap());
    let but_the_sizes: Vec<_> = plain.into_iter().filter(|name| !SIZES.contains(name)).collect();
    assert_eq!(unsealed, but_the_sizes);
}

#[test]
fn the_maps_of_the_writer_and_of_the_sidecar_go_on_writing_after_the_seal() {
    let (sealed, _, writer) = sealed_with_writer();
    let reader = Arc::new(Mapping::reader(sealed.reader_fd(), BYTES as u64).unwrap());
    let mut write = WriteView::new(writer, 4096, 5).unwrap();
    write.copy_from(0, b"bytes").unwrap();
    assert_eq!(View::new(reader, 4096, 5).unwrap().to_vec(), b"bytes");
}

#[test]
fn a_writer_cannot_punch_holes_through_its_own_map_after_the_seal() {
    let (_sealed, _, writer) = sealed_with_writer();
    // SAFETY: exactly the writer's map, in which nobody holds a reference.
    let removed = unsafe { libc::madvise(writer.as_ptr().as_ptr().cast(), BYTES, libc::MADV_REMOVE) };
    assert_eq!(removed, -1);
}

#[test]
fn a_readers_map_wants_all_seals_and_all_bytes() {
    let unsealed = Unsealed::create(BYTES as u64, &Fallocate).unwrap();
    let writer_fd = unsealed.writer_fd().unwrap();
    let refused = Mapping::reader(writer_fd.as_fd(), BYTES as u64).unwrap_err();
    assert!(matches!(refused, MapError::SealsMissing { missing } if missing == seals::BEFORE_READERS));
    let plain = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let refused = Mapping::writer(plain.as_fd(), 4096).unwrap_err();
    assert!(matches!(refused, MapError::SealsMissing { missing } if missing == seals::BEFORE_WRITER));
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(Mapping::reader(file.as_fd(), 4096).unwrap_err(), MapError::Kernel { .. }));

    let sealed = unsealed.seal().unwrap();
    let refused = Mapping::reader(sealed.reader_fd(), BYTES as u64 + 1).unwrap_err();
    assert!(matches!(refused, MapError::Short { expected, actual } if expected == actual + 1));
    assert!(matches!(Mapping::reader(sealed.reader_fd(), 0).unwrap_err(), MapError::Size { bytes: 0 }));
    assert!(Mapping::reader(sealed.reader_fd(), BYTES as u64).is_ok());
}

#[test]
fn views_stay_inside_their_mapping() {
    let (sealed, _, writer) = sealed_with_writer();
    let reader = Arc::new(Mapping::reader(sealed.reader_fd(), BYTES as u64).unwrap());
    let bytes = BYTES as u64;
    for (offset, len) in [(0, bytes + 1), (bytes, 1), (u64::MAX, 2), (1, u64::MAX)] {
        assert!(View::new(Arc::clone(&reader), offset, len).is_err(), "{len} at {offset}");
        assert!(WriteView::new(Arc::clone(&writer), offset, len).is_err(), "{len} at {offset}");
    }
    assert!(View::new(Arc::clone(&reader), bytes, 0).unwrap().to_vec().is_empty());
    assert_eq!(WriteView::new(Arc::clone(&reader), 0, 1).unwrap_err(), crate::view::WriteViewError::ReadOnly);
    let view = View::new(reader, 16, 16).unwrap();
    assert!(view.piece(8, 9).is_err());
    assert_eq!(view.piece(8, 8).unwrap().len(), 8);
    assert!(view.copy_to(&mut [0; 15]).is_err());
    assert!(view.copy_range_to(1, &mut [0; 16]).is_err());
    let mut write = WriteView::new(writer, 16, 16).unwrap();
    assert!(write.copy_from(1, &[0; 16]).is_err());
    write.copy_from(1, &[7; 15]).unwrap();
    assert_eq!(view.to_vec()[..2], [0, 7]);
    assert_eq!(write.as_view().to_vec(), view.to_vec());
}

#[test]
fn a_new_segment_is_populated_whole_and_rounded_up_to_pages() {
    let unsealed = Unsealed::create(4097, &Fallocate).unwrap();
    assert_eq!(unsealed.bytes(), 8192);
    let stat = rustix::fs::fstat(unsealed.writer_fd().unwrap()).unwrap();
    assert_eq!((stat.st_size, stat.st_blocks * 512), (8192, 8192));
    for bytes in [0, u64::MAX, i64::MAX as u64] {
        let refused = Unsealed::create(bytes, &Fallocate).unwrap_err();
        assert!(matches!(refused, SegmentError::Size { .. }), "{bytes}");
    }
}

#[test]
fn populating_that_fails_halfway_is_an_error_that_says_so() {
    let refused = Unsealed::create(3 * POPULATE_STEP, &Allowance(POPULATE_STEP)).unwrap_err();
    assert!(
        matches!(refused, SegmentError::Step { step: "populate the pages", bytes, .. } if bytes == 3 * POPULATE_STEP)
    );
}

#[test]
fn creating_stops_between_two_steps_when_it_is_cancelled() {
    struct CancelsItself(AtomicBool);
    impl Populate for CancelsItself {
        fn populate(&self, _: BorrowedFd<'_>, _: u64, _: u64) -> io::Result<()> {
            self.0.store(true, Ordering::Relaxed);
            Ok(())
        }
    }
    let twin = CancelsItself(AtomicBool::new(false));
    let refused = Unsealed::create_unless(2 * POPULATE_STEP, &twin, &twin.0).unwrap_err();
    assert!(matches!(refused, SegmentError::Cancelled { populated: POPULATE_STEP, .. }));
}

#[test]
fn a_limit_of_the_kernel_is_an_error_and_leaves_no_descriptor() {
    let code = exit_code_of(|| {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: system calls in a child of one thread; the signal would end it.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        }
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let refused = Unsealed::create(2 << 20, &Fallocate);
        assert!(matches!(refused, Err(SegmentError::Step { .. })));
        assert_eq!(open(), before);
        assert!(Unsealed::create(1 << 20, &Fallocate).is_ok());
        0
    });
    assert_eq!(code, 0);
}
