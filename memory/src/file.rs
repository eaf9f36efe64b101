//! Bytes between views and files. The kernel copies them itself: there is no buffer between, and no slice of shared memory.
//!
//! A file that somebody writes meanwhile gives a mixture of its states; whoever reads it has to look at it again.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};

use crate::OutOfBounds;
use crate::view::{View, WriteView};

impl WriteView {
    /// Reads `len` bytes to `offset`, from those of a file that begin at `at`.
    ///
    /// # Errors
    /// `InvalidInput` where they do not lie inside of the view, of which nothing is written then. `UnexpectedEof` where the file ends
    /// before, and those of the system: some of the bytes may be written.
    pub fn read_from(&mut self, offset: u64, len: u64, file: impl AsFd, at: u64) -> io::Result<()> {
        OutOfBounds::check(offset, len, self.len() as u64).map_err(outside)?;
        let file = file.as_fd();
        // Both lie below the length of a map, which is a usize.
        let (start, len) = (self.as_mut_ptr().wrapping_add(offset as usize), len as usize);
        let mut done = 0;
        while done < len {
            let place = at.checked_add(done as u64).and_then(|place| libc::off_t::try_from(place).ok());
            let place = place.ok_or(ErrorKind::InvalidInput)?;
            // SAFETY: the range was just proven to lie inside of the view, and `done` is below its length. The map is for writing
            // and lives as long as this borrow. The kernel alone writes there, and safe code has no reference into the map.
            let read = unsafe { libc::pread(file.as_raw_fd(), start.add(done).cast(), len - done, place) };
            match moved(read)? {
                Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
                read => done += read.unwrap_or(0),
            }
        }
        Ok(())
    }
}

impl View {
    /// Writes `len` bytes from `offset` on to a file, a pipe or a socket, where it stands.
    ///
    /// # Errors
    /// `InvalidInput` where they do not lie inside of the view, of which nothing is written then; those of the system, after some of
    /// the bytes.
    pub fn write_to(&self, offset: u64, len: u64, file: impl AsFd) -> io::Result<()> {
        OutOfBounds::check(offset, len, self.len() as u64).map_err(outside)?;
        let file = file.as_fd();
        // Both lie below the length of a map, which is a usize.
        let (start, len) = (self.as_ptr().wrapping_add(offset as usize), len as usize);
        let mut done = 0;
        while done < len {
            // SAFETY: the range was just proven to lie inside of the view, and `done` is below its length. The map lives as long as
            // this borrow. The kernel alone reads there, so that another process that writes makes a mixture and nothing else.
            let written = unsafe { libc::write(file.as_raw_fd(), start.add(done).cast(), len - done) };
            match moved(written)? {
                Some(0) => return Err(ErrorKind::WriteZero.into()),
                written => done += written.unwrap_or(0),
            }
        }
        Ok(())
    }
}

/// Bytes that a call has moved; none where a signal came before the first one.
fn moved(returned: libc::ssize_t) -> io::Result<Option<usize>> {
    let Ok(bytes) = usize::try_from(returned) else {
        let error = io::Error::last_os_error();
        return if error.kind() == ErrorKind::Interrupted { Ok(None) } else { Err(error) };
    };
    Ok(Some(bytes))
}

fn outside(error: OutOfBounds) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, error)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::mapping::Mapping;
    use crate::segment::Unsealed;
    use crate::testing::without_children;
    use crate::{Fallocate, PAGE};

    /// Bytes to write, in a map of their own.
    fn room(bytes: u64) -> WriteView {
        let unsealed = Unsealed::create(bytes, &Fallocate).unwrap();
        let writer = Mapping::writer(unsealed.writer_fd().unwrap().as_fd(), bytes).unwrap();
        WriteView::new(Arc::new(writer), 0, bytes).unwrap()
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn bytes_of_a_file_lie_where_they_were_to_be_and_nowhere_else() {
        let mut room = room(PAGE);
        room.read_from(2, 3, file(b"0123456789"), 4).unwrap();
        room.read_from(PAGE, 0, file(b""), 0).unwrap();
        assert_eq!(room.as_view().to_vec()[..7], *b"\0\x00456\0\0");
    }

    #[test]
    fn a_file_that_ends_before_is_an_error_of_its_own() {
        let mut room = room(PAGE);
        let cut = room.read_from(0, 11, file(b"0123456789"), 0).unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::UnexpectedEof);
        let behind = room.read_from(0, 1, file(b"0123456789"), 10).unwrap_err();
        assert_eq!(behind.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_file_is_neither_read_nor_written_beyond_a_view() {
        let (mut room, from) = (room(PAGE), file(&[7; 2 * PAGE as usize]));
        for (offset, len) in [(0, PAGE + 1), (PAGE, 1), (1, PAGE), (u64::MAX, 2), (2, u64::MAX)] {
            let kind = room.read_from(offset, len, &from, 0).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::InvalidInput, "{len} at {offset}");
            let kind = room.as_view().write_to(offset, len, &from).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::InvalidInput, "{len} at {offset}");
        }
        assert_eq!(room.read_from(0, 1, &from, u64::MAX).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(room.as_view().to_vec().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_descriptor_that_cannot_be_read_or_written_says_so() {
        let _no_copies = without_children();
        let mut room = room(PAGE);
        let (reads, writes) = io::pipe().unwrap();
        assert!(room.read_from(0, 1, &reads, 0).is_err(), "a pipe has no offsets");
        assert!(room.as_view().write_to(0, 1, File::open("/dev/null").unwrap()).is_err());
        drop(reads);
        assert_eq!(room.as_view().write_to(0, 1, &writes).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn all_bytes_come_through_a_pipe_that_takes_them_piece_by_piece() {
        let _no_copies = without_children();
        // More than a pipe holds, so that it takes several writes.
        let bytes = 300 * PAGE;
        let pattern: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let mut room = room(bytes);
        room.read_from(0, bytes, file(&pattern), 0).unwrap();
        let (mut reads, writes) = io::pipe().unwrap();
        let view = room.as_view();
        let came = thread::scope(|scope| {
            let writing = scope.spawn(move || view.write_to(1, bytes - 1, writes));
            let mut came = Vec::new();
            reads.read_to_end(&mut came).unwrap();
            writing.join().unwrap().unwrap();
            came
        });
        assert!(came == pattern[1..]);
    }
}
