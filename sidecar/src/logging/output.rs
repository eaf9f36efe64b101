//! Output of the log: standard error, for which nobody waits long.
//!
//! A container's standard error is a pipe, and whoever reads it may stand still. Writing would then stop each thread that
//! has something to say, the clock and the accept loops among them, while probes say that all is well. So a line is
//! written where there is room for it, and dropped and counted where there was none for [`PATIENCE`].

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Time that the first line waits for room. Later ones do not wait at all until there is some again: more patience
/// costs all threads that log as much, one after another.
const PATIENCE: Duration = Duration::from_millis(100);

/// Bytes of one write. A pipe that says that it can be written to has room for as many without waiting: POSIX has at
/// least 512, Linux a page.
const PIECE: usize = 4096;

/// Makes the line that tells how many were dropped.
pub(super) type Notice = fn(u64) -> String;

/// Standard error, or what stands for it, written to without waiting long.
#[derive(Debug)]
pub(super) struct Output<F> {
    to: F,
    notice: Notice,
    /// Lines that were dropped since the last one that was written.
    dropped: u64,
    /// The last line was cut within, so the next one has to begin a new line.
    cut: bool,
}

// === impl Output ===

impl<F: AsFd + Write> Output<F> {
    pub(super) fn new(to: F, notice: Notice) -> Self {
        Self { to, notice, dropped: 0, cut: false }
    }

    /// Writes a line whole, or drops what there is no room for.
    fn line(&mut self, line: &[u8]) {
        let mut text = Vec::new();
        if self.cut {
            text.push(b'\n');
        }
        if self.dropped > 0 {
            text.extend_from_slice((self.notice)(self.dropped).as_bytes());
            text.push(b'\n');
        }
        text.extend_from_slice(line);
        let mut patience = if self.dropped > 0 { Duration::ZERO } else { PATIENCE };
        for (index, piece) in text.chunks(PIECE).enumerate() {
            if !self.has_room(patience) {
                self.dropped += 1;
                self.cut |= index > 0;
                return;
            }
            // Whoever closed the other end reads nothing more: the line is nobody's loss.
            _ = self.to.write_all(piece);
            patience = PATIENCE;
        }
        (self.dropped, self.cut) = (0, false);
    }

    fn has_room(&self, within: Duration) -> bool {
        let mut asked = [PollFd::new(&self.to, PollFlags::OUT)];
        let within = Timespec::try_from(within).ok();
        loop {
            match poll(&mut asked, within.as_ref()) {
                Err(Errno::INTR) => {}
                // What cannot be asked about is written to.
                answer => return answer != Ok(0),
            }
        }
    }
}

impl<F: AsFd + Write> Write for Output<F> {
    /// Takes a whole line, as a subscriber writes it; never fails and never waits for whoever reads.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read};

    use super::*;

    fn notice(dropped: u64) -> String {
        format!("{dropped} dropped")
    }

    /// A pipe that is full, and its output.
    fn full() -> (PipeReader, Output<io::PipeWriter>, usize) {
        let (reader, writer) = io::pipe().unwrap();
        let mut output = Output::new(writer, notice);
        let mut filled = 0;
        while output.has_room(Duration::ZERO) {
            filled += output.to.write(&[b'.'; PIECE]).unwrap();
        }
        (reader, output, filled)
    }

    fn read(reader: &mut PipeReader, bytes: usize) -> String {
        let mut text = vec![0; bytes];
        reader.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn lines_for_which_there_is_no_room_are_dropped_and_told_of_by_the_next_one() {
        let (mut reader, mut output, filled) = full();
        for _ in 0..1000 {
            output.write_all(b"lost\n").unwrap();
        }
        assert_eq!(output.dropped, 1000);
        read(&mut reader, filled);
        output.write_all(b"next\n").unwrap();
        output.write_all(b"last\n").unwrap();
        let expected = "1000 dropped\nnext\nlast\n";
        assert_eq!(read(&mut reader, expected.len()), expected);
    }

    #[test]
    fn a_line_that_is_cut_within_ends_before_the_next_one() {
        let (mut reader, mut output, filled) = full();
        read(&mut reader, PIECE);
        let long = [b'x'; 4 * PIECE];
        output.write_all(&long).unwrap();
        assert_eq!((output.dropped, output.cut), (1, true));
        read(&mut reader, filled - PIECE);
        output.write_all(b"next\n").unwrap();
        let expected = format!("{}\n1 dropped\nnext\n", "x".repeat(PIECE));
        assert_eq!(read(&mut reader, expected.len()), expected);
    }

    #[test]
    fn output_that_nobody_reads_any_more_takes_everything() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut output = Output::new(writer, notice);
        output.write_all(b"line\n").unwrap();
        assert_eq!(output.dropped, 0);
    }
}
