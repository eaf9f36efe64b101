//! Output of one connection, in one order: frames, and the chunks of pulls between them.
//!
//! Whoever has something to send and finds the pipe free seals and sends it on its own thread, without waiting for
//! the socket; so a small call needs no hand-over between threads. What the socket does not take at once, what comes
//! while the pipe is busy, and all chunks are left to the connection's writer thread. The only lock that is held
//! while a thread waits for the socket is the pipe's, only the writer thread ever waits, and everybody else only
//! tries that lock: nobody but the writer can be stopped by a slow peer, a reader thread least of all.
//!
//! Memory a connection: [`QUANTUM`] of plaintext as sealed records, [`BACKLOG_MAX`] of frames that wait (beyond it the
//! connection is closed, and earlier where the budget of the process is spent), as much of what answers are made of later (those to small
//! pulls are not even made above [`BACKLOG_LATE`]; these count in the same budget), [`SPARE_MAX`] buffers of a piece while channels are sent, and the socket's buffer.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorlane_proto::frame::CHANNEL_PIECE_MAX;

use super::gather_frame::GatherFrame;
use super::record::Sealer;
use super::record_writer::{OutgoingPull, RecordWriter};
use super::send_error::SendError;
use super::slowest::Taking;
use crate::output_budget::OutputShare;

/// Most tensor bytes of one chunk that is sent. A frame that comes in between waits for one of these, so it is a
/// quarter of what the protocol allows; the price is 24 bytes and a turn of the loop each.
const QUANTUM: usize = 256 << 10;
/// Bytes of waiting frames above which no further answers are made before these are sent.
pub(super) const BACKLOG_LATE: usize = 4 << 20;
/// Bytes of waiting frames, or of what waits to become some, above which the peer is held to be stuck, and the connection closed.
const BACKLOG_MAX: usize = 64 << 20;
/// Most buffers that are kept for frames of channels: one is filled while another one is sealed.
const SPARE_MAX: usize = 2;
/// Time that the other side may take to close after our Goodbye.
const FAREWELL: Duration = Duration::from_secs(1);

/// An answer that is made when there is room to send it.
type Late = Box<dyn FnOnce() -> GatherFrame + Send>;

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Ending {
    #[default]
    No,
    /// Send what waits (no more chunks), then end.
    InOrder,
    /// End.
    Now,
}

#[derive(Default)]
struct Inbox {
    frames: VecDeque<Vec<u8>>,
    frame_bytes: usize,
    /// Bytes of frames that were taken out and are not on their way.
    sending: usize,
    /// Streams of pieces that are being sent, and buffers of theirs that are sealed.
    streams: usize,
    spare: Vec<Vec<u8>>,
    /// Answers to be made, each with the bytes that it keeps until then.
    late: VecDeque<(usize, Late)>,
    late_bytes: usize,
    bulk: VecDeque<OutgoingPull>,
    /// The call whose chunk the writer is sealing, and the frame that ends it if it was cancelled meanwhile.
    current: Option<(u64, Option<Vec<u8>>)>,
    /// Records were left in the pipe.
    kick: bool,
    /// The other side asked for new keys.
    rekey: bool,
    ending: Ending,
}

impl Inbox {
    fn idle(&self) -> bool {
        let empty = self.frames.is_empty() && self.late.is_empty() && self.bulk.is_empty();
        empty && !self.kick && !self.rekey && self.ending == Ending::No
    }

    /// Keeps the buffer of a frame that was sealed, where a stream can use it again.
    fn keep(&mut self, mut frame: Vec<u8>) {
        if self.streams > 0 && self.spare.len() < SPARE_MAX {
            frame.clear();
            self.spare.push(frame);
        }
    }
}

/// Bytes in front of a piece in its frame that its buffer has room for from the beginning. A new layout makes one larger.
const PIECE_HEAD: usize = 1 << 10;
/// Capacities of buffers that are kept: those of frames with a whole piece.
const PIECE_FRAME: std::ops::Range<usize> = CHANNEL_PIECE_MAX..CHANNEL_PIECE_MAX + (64 << 10);

/// A stream of pieces on a connection: while there is one, their buffers are used again.
pub(super) struct Pieces(Arc<Outbox>);

/// Next work of the writer.
enum Work {
    Late(usize, Late),
    Send { frames: VecDeque<Vec<u8>>, bulk: Option<Box<OutgoingPull>>, rekey: bool },
    End { frames: VecDeque<Vec<u8>> },
    Stop,
}

/// The sending side of one connection.
pub(super) struct Outbox {
    socket: TcpStream,
    inbox: Mutex<Inbox>,
    wake: Condvar,
    /// Told when what waited is on its way, and at the end.
    room: Condvar,
    pipe: Mutex<RecordWriter>,
    /// Time for which nothing may arrive at the other end while the socket is full.
    progress: Duration,
    /// Tensor bytes that the socket took.
    bulk_bytes: AtomicU64,
    /// Told of them too.
    count: Count,
    /// Account of what waits here, in the budget of the process. Told outside of locks: closing a connection takes
    /// them.
    account: OutputShare,
}

/// Told how many more tensor bytes were sent.
pub(super) type Count = Box<dyn Fn(u64) + Send + Sync>;

impl Outbox {
    /// `progress`: how long nothing may arrive at the other end while the socket is full.
    pub(super) fn new(
        socket: TcpStream,
        sealer: Sealer,
        progress: Duration,
        account: OutputShare,
        count: Count,
    ) -> Self {
        Self {
            socket,
            inbox: Mutex::default(),
            wake: Condvar::new(),
            room: Condvar::new(),
            pipe: Mutex::new(RecordWriter::new(sealer)),
            progress,
            bulk_bytes: AtomicU64::new(0),
            count,
            account,
        }
    }

    /// Sends a frame: at once where the pipe is free and the socket takes it, else in its turn. Never waits.
    pub(super) fn submit(&self, frame: Vec<u8>) -> Result<(), SendError> {
        match self.send_now(frame.len(), |pipe| pipe.seal_frame(&frame))? {
            true => Ok(()),
            false => self.queue(frame),
        }
    }

    /// Begins a stream of pieces.
    pub(super) fn pieces(self: &Arc<Self>) -> Pieces {
        self.inbox.lock().streams += 1;
        Pieces(Arc::clone(self))
    }

    /// Sends a frame that is not put together yet: it is where it waits.
    pub(super) fn submit_gathered(&self, frame: GatherFrame) -> Result<(), SendError> {
        match self.send_now(frame.len(), |pipe| pipe.seal_gathered(&frame))? {
            true => Ok(()),
            false => self.queue(frame.together()),
        }
    }

    /// Seals a frame of so many bytes and gives the socket what it takes, where nothing is before it; whether it is on its way.
    fn send_now(
        &self,
        bytes: usize,
        seal: impl FnOnce(&mut RecordWriter) -> Result<(), rustls::Error>,
    ) -> Result<bool, SendError> {
        let Some(mut pipe) = self.pipe.try_lock() else { return Ok(false) };
        let (first, ending) = {
            let inbox = self.inbox.lock();
            (inbox.frames.is_empty(), inbox.ending)
        };
        if ending != Ending::No {
            return Err(SendError::Closed);
        }
        if !first || !pipe.is_empty() {
            return Ok(false);
        }
        seal(&mut pipe)?;
        pipe.offer(&self.socket)?;
        let left = !pipe.is_empty();
        drop(pipe);
        if left {
            {
                let mut inbox = self.inbox.lock();
                inbox.kick = true;
                inbox.sending += bytes;
            }
            self.wake.notify_one();
            self.account.add(bytes);
        }
        Ok(true)
    }

    fn queue(&self, frame: Vec<u8>) -> Result<(), SendError> {
        let mut inbox = self.inbox.lock();
        if inbox.ending != Ending::No {
            return Err(SendError::Closed);
        }
        if inbox.frame_bytes + frame.len() > BACKLOG_MAX {
            return Err(SendError::Backlog);
        }
        let bytes = frame.len();
        inbox.frame_bytes += bytes;
        inbox.frames.push_back(frame);
        drop(inbox);
        self.wake.notify_one();
        self.account.add(bytes);
        Ok(())
    }

    /// Sends a frame, and after it the chunks of a pull, in turns with those of other pulls.
    pub(super) fn submit_bulk(&self, head: Vec<u8>, bulk: OutgoingPull) -> Result<(), SendError> {
        let mut inbox = self.inbox.lock();
        if inbox.ending != Ending::No {
            return Err(SendError::Closed);
        }
        let bytes = head.len();
        inbox.frame_bytes += bytes;
        inbox.frames.push_back(head);
        inbox.bulk.push_back(bulk);
        drop(inbox);
        self.wake.notify_one();
        self.account.add(bytes);
        Ok(())
    }

    /// Waits until less than so many bytes of frames wait. Returns whether the connection goes on. For threads that may wait.
    pub(super) fn wait_for_room(&self, most: usize) -> bool {
        let mut inbox = self.inbox.lock();
        while inbox.ending == Ending::No && inbox.frame_bytes + inbox.sending >= most {
            self.room.wait(&mut inbox);
        }
        inbox.ending == Ending::No
    }

    /// Empty buffer for the frame of a piece.
    fn buffer(&self) -> Vec<u8> {
        let spare = self.inbox.lock().spare.pop();
        spare.unwrap_or_else(|| Vec::with_capacity(CHANNEL_PIECE_MAX + PIECE_HEAD))
    }

    /// Returns whether answers should be made later rather than now.
    pub(super) fn is_late(&self) -> bool {
        let inbox = self.inbox.lock();
        inbox.frame_bytes > BACKLOG_LATE || !inbox.late.is_empty()
    }

    /// Number of answers that wait to be made.
    pub(super) fn late(&self) -> usize {
        self.inbox.lock().late.len()
    }

    /// Makes an answer on the writer thread, once what waits has been sent. `bytes`: what it keeps until then, counted as a frame
    /// that waits.
    pub(super) fn submit_late(&self, bytes: usize, late: Late) -> Result<(), SendError> {
        let mut inbox = self.inbox.lock();
        if inbox.ending != Ending::No {
            return Err(SendError::Closed);
        }
        if inbox.late_bytes + bytes > BACKLOG_MAX {
            return Err(SendError::Backlog);
        }
        inbox.late_bytes += bytes;
        inbox.late.push_back((bytes, late));
        drop(inbox);
        self.wake.notify_one();
        self.account.add(bytes);
        Ok(())
    }

    /// Sends no more chunks of a pull; `end` is sent in their place unless the last one was sent already.
    pub(super) fn cancel_bulk(&self, call: u64, end: Vec<u8>) {
        let mut inbox = self.inbox.lock();
        if let Some((current, ending)) = &mut inbox.current
            && *current == call
        {
            *ending = Some(end);
            return;
        }
        let before = inbox.bulk.len();
        inbox.bulk.retain(|bulk| bulk.call != call);
        if inbox.bulk.len() < before {
            let bytes = end.len();
            inbox.frame_bytes += bytes;
            inbox.frames.push_back(end);
            drop(inbox);
            self.wake.notify_one();
            self.account.add(bytes);
        }
    }

    /// Announces new keys, because the other side asked for them.
    pub(super) fn update_keys(&self) {
        self.inbox.lock().rekey = true;
        self.wake.notify_one();
    }

    /// Ends the connection: in order (what waits is sent first, but no more chunks), or at once.
    pub(super) fn end(&self, in_order: bool) {
        {
            let mut inbox = self.inbox.lock();
            inbox.ending =
                if in_order && inbox.ending != Ending::Now { Ending::InOrder } else { Ending::Now };
            // Sources keep their blocks: they go now, not when the last holder of the connection does.
            inbox.bulk.clear();
            inbox.late.clear();
        }
        self.wake.notify_one();
        self.room.notify_all();
        if !in_order {
            // Wakes the reader, and the writer where it waits for the socket. An error means it is closed already.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }

    /// Tensor bytes that were sent.
    pub(super) fn bulk_bytes(&self) -> u64 {
        self.bulk_bytes.load(Ordering::Relaxed)
    }

    /// The writer thread: until the end, or an error.
    pub(super) fn write(&self) -> Result<(), SendError> {
        loop {
            {
                let mut inbox = self.inbox.lock();
                while inbox.idle() {
                    self.wake.wait(&mut inbox);
                }
            }
            let mut pipe = self.pipe.lock();
            match self.next_work() {
                Work::Late(bytes, late) => {
                    drop(pipe);
                    let answer = late();
                    self.account.take(bytes);
                    self.submit_gathered(answer)?;
                }
                Work::Send { frames, bulk, rekey } => {
                    if rekey {
                        pipe.update_keys()?;
                    }
                    pipe.seal_frames(&frames)?;
                    self.keep(frames);
                    let sent = bulk.map(|bulk| self.send_chunk(&mut pipe, *bulk)).transpose()?.unwrap_or(0);
                    self.flush(&mut pipe)?;
                    let sent_frames = std::mem::take(&mut self.inbox.lock().sending);
                    self.account.take(sent_frames);
                    self.room.notify_all();
                    self.bulk_bytes.fetch_add(sent, Ordering::Relaxed);
                    (self.count)(sent);
                }
                Work::End { frames } => {
                    pipe.seal_frames(&frames)?;
                    pipe.close_notify()?;
                    self.flush(&mut pipe)?;
                    drop(pipe);
                    return self.farewell();
                }
                Work::Stop => return Ok(()),
            }
        }
    }

    /// Keeps the buffers of frames that were sealed, as far as streams use them again.
    fn keep(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        // Any other frame is freed here, and not under the lock.
        for frame in frames.into_iter().filter(|frame| PIECE_FRAME.contains(&frame.capacity())) {
            self.inbox.lock().keep(frame);
        }
    }

    fn flush(&self, pipe: &mut RecordWriter) -> Result<(), SendError> {
        let taking = Taking::begin(pipe.bytes(), self.progress);
        pipe.flush(&self.socket, taking)
    }

    /// After the last word: waits for the other side to close, for a bounded time. Closing at once would reset the
    /// connection where the other side still writes, and the last word could be lost with it.
    fn farewell(&self) -> Result<(), SendError> {
        self.socket.shutdown(Shutdown::Write).map_err(SendError::Socket)?;
        let until = Instant::now() + FAREWELL;
        let mut inbox = self.inbox.lock();
        while inbox.ending != Ending::Now {
            if self.wake.wait_until(&mut inbox, until).timed_out() {
                drop(inbox);
                self.end(false);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes from the inbox while the pipe is held, so that nothing overtakes what was taken.
    fn next_work(&self) -> Work {
        let mut inbox = self.inbox.lock();
        inbox.kick = false;
        if inbox.ending == Ending::Now {
            return Work::Stop;
        }
        let frames = std::mem::take(&mut inbox.frames);
        inbox.sending += std::mem::take(&mut inbox.frame_bytes);
        if inbox.ending == Ending::InOrder {
            return Work::End { frames };
        }
        if frames.is_empty()
            && let Some((bytes, late)) = inbox.late.pop_front()
        {
            inbox.late_bytes -= bytes;
            return Work::Late(bytes, late);
        }
        let bulk = inbox.bulk.pop_front();
        inbox.current = bulk.as_ref().map(|bulk| (bulk.call, None));
        Work::Send { frames, bulk: bulk.map(Box::new), rekey: std::mem::take(&mut inbox.rekey) }
    }

    /// Seals one chunk; its pull goes to the end of the line unless that was its last.
    fn send_chunk(&self, pipe: &mut RecordWriter, mut bulk: OutgoingPull) -> Result<u64, SendError> {
        let (length, last) = bulk.next(QUANTUM as u64);
        pipe.seal_chunk(&mut bulk, length as usize, last)?;
        bulk.sent(length);
        let mut inbox = self.inbox.lock();
        let cancelled = inbox.current.take().and_then(|(_, end)| end);
        match cancelled {
            _ if last => {}
            Some(end) => {
                let bytes = end.len();
                inbox.frame_bytes += bytes;
                inbox.frames.push_back(end);
                drop(inbox);
                self.account.add(bytes);
            }
            None if inbox.ending == Ending::No => inbox.bulk.push_back(bulk),
            None => {}
        }
        Ok(length)
    }

    #[cfg(test)]
    pub(super) fn rekey_every(&self, records: u64) {
        self.pipe.lock().rekey_every(records);
    }
}

// === impl Pieces ===

impl Pieces {
    /// Sends a frame that `fill` writes into a buffer, which was another piece's before; waits while `most` bytes wait on the
    /// connection. Returns whether the connection goes on.
    pub(super) fn send(&self, most: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Result<bool, SendError> {
        let outbox = &*self.0;
        if !outbox.wait_for_room(most) {
            return Ok(false);
        }
        let mut frame = outbox.buffer();
        fill(&mut frame);
        // A whole piece is sealed and sent by the writer, while the next one is put together here.
        let is_whole = frame.len() >= PIECE_FRAME.start;
        match !is_whole && outbox.send_now(frame.len(), |pipe| pipe.seal_frame(&frame))? {
            true => outbox.keep([frame]),
            false => outbox.queue(frame)?,
        }
        Ok(true)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        let unused = {
            let mut inbox = self.0.inbox.lock();
            inbox.streams -= 1;
            if inbox.streams == 0 { std::mem::take(&mut inbox.spare) } else { Vec::new() }
        };
        drop(unused);
    }
}
