//! Streams that last: those of channels and pipes, which go on for as long as their client wants. How many there are, and the threads
//! on which they sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use tensorlane_proto::failure::{Failure, Reason};
use tokio::sync::oneshot;

use super::guests::Connection;
use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Most streams that last at a time. Each costs two tasks, a thread of 128 KiB of address space once it has to sleep, and up to two
/// pieces of a message beside what the budget of answers counts.
const LASTING_MAX: usize = 256;
/// Most of them on one connection: half of the calls that it may have, so that others get through.
const LASTING_OF_CONNECTION_MAX: usize = 64;
/// Most of them on one connection that write. Each may have filled its window while it waits for readers, and windows of four are that
/// of the connection: no other call would get a byte in.
const WRITING_OF_CONNECTION_MAX: usize = 3;
/// Stack of a thread that sleeps for a stream, in bytes of address space.
const STACK_BYTES: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// All streams that last; clones are the same ones.
#[derive(Clone, Default)]
pub(super) struct LastingStreams(Arc<AtomicUsize>);

/// A stream that lasts, until this is dropped.
pub(super) struct LastingStream {
    all: Arc<AtomicUsize>,
    connection: Option<Arc<Connection>>,
    writes: bool,
}

/// Thread of one stream, started when it first has to sleep: so no task and no worker does. One sleep at a time.
pub(super) struct Sleeper {
    threads: Threads,
    thread: Option<mpsc::Sender<Job>>,
}

// === impl LastingStreams ===

impl LastingStreams {
    /// Counts a stream in, and whether its client `writes`.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the limit.
    pub(super) fn enter(
        &self,
        connection: Option<Arc<Connection>>,
        writes: bool,
    ) -> Result<LastingStream, Failure> {
        if !take(&self.0, LASTING_MAX) {
            return Err(limit(
                &format!("{LASTING_MAX} streams of channels and pipes are open at this sidecar already"),
                LASTING_MAX,
            ));
        }
        let mut stream = LastingStream { all: Arc::clone(&self.0), connection: None, writes: false };
        let Some(connection) = connection else { return Ok(stream) };
        if !take(&connection.lasting, LASTING_OF_CONNECTION_MAX) {
            let most = LASTING_OF_CONNECTION_MAX;
            return Err(limit(
                &format!("this connection has {most} streams of channels and pipes already"),
                most,
            ));
        }
        let may_write = !writes || take(&connection.writing, WRITING_OF_CONNECTION_MAX);
        (stream.writes, stream.connection) = (writes && may_write, Some(connection));
        if !may_write {
            let most = WRITING_OF_CONNECTION_MAX;
            let what =
                format!("this connection has {most} streams that write already (use another connection)");
            return Err(limit(&what, most));
        }
        Ok(stream)
    }
}

fn take(count: &AtomicUsize, most: usize) -> bool {
    let more = |taken| (taken < most).then_some(taken + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

fn limit(what: &str, most: usize) -> Failure {
    let message = format!("{what}, the most there may be; end some first");
    Failure::new(Reason::LimitExceeded, message).with("most", most)
}

impl Drop for LastingStream {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        if let Some(connection) = &self.connection {
            connection.lasting.fetch_sub(1, Ordering::Relaxed);
            connection.writing.fetch_sub(usize::from(self.writes), Ordering::Relaxed);
        }
    }
}

// === impl Sleeper ===

impl Sleeper {
    pub(super) fn new(threads: &Threads) -> Self {
        Self { threads: threads.clone(), thread: None }
    }

    /// Runs work that sleeps on the thread of the stream. Where the caller gives up, it goes on until it is told to end.
    ///
    /// # Errors
    /// There is no thread to be had, or the work broke off.
    pub(super) async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (send, done) = oneshot::channel();
        let thread = match &mut self.thread {
            Some(thread) => thread,
            None => self.thread.insert(start(&self.threads)?),
        };
        // Where the thread has ended, `send` is dropped with the job.
        let _ = thread.send(Box::new(move || drop(send.send(work()))));
        done.await.map_err(|_| Failure::new(Reason::Internal, "this stream broke off inside the sidecar"))
    }
}

fn start(threads: &Threads) -> Result<mpsc::Sender<Job>, Failure> {
    let (thread, jobs) = mpsc::channel::<Job>();
    // It ends when its stream drops the sender.
    let run = move || jobs.iter().for_each(|job| job());
    match threads.start_small(STACK_BYTES, "tl-grpc-sleep", PanicScope::Call, run) {
        Ok(_) => Ok(thread),
        Err(error) => {
            let message =
                format!("no thread for a stream of a channel: {error}; end other streams, or retry later");
            Err(Failure::new(Reason::LimitExceeded, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_last_have_a_limit_and_give_their_places_back() {
        let streams = LastingStreams::default();
        let all: Vec<LastingStream> = (0..LASTING_MAX).map(|_| streams.enter(None, true).unwrap()).collect();
        let refused = streams.enter(None, true).map(drop).unwrap_err();
        assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("256")));
        drop(all);
        assert!(streams.enter(None, true).is_ok());
        assert_eq!(streams.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_sleep_that_panics_fails_and_so_do_those_behind_it() {
        let threads = Threads::default();
        let mut sleeper = Sleeper::new(&threads);
        assert_eq!(sleeper.run(|| 7).await, Ok(7));
        let failure = sleeper.run(|| panic!("part of the test")).await.unwrap_err();
        assert_eq!(failure.reason, Reason::Internal);
        assert!(sleeper.run(|| 7).await.is_err());
        drop(sleeper);
        // It is counted once the thread has unwound, and its call hears of it before.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while threads.panics(PanicScope::Call) == 0 && std::time::Instant::now() < deadline {
            tokio::task::yield_now().await;
        }
        assert_eq!(threads.panics(PanicScope::Call), 1);
    }
}
