//! Streams that last: those of channels and pipes, which go on for as long as their client wants. How many there are, what begins and
//! ends them, and the threads on which they sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use tensorlane_proto::failure::{Failure, Reason};
use tokio::sync::oneshot;
use tonic::Status;

use super::bounds::Bounds;
use super::call::{Call, Cancelled};
use super::guests::Connection;
use super::status::{broke_off, status};
use crate::exchange::Exchange;
use crate::gate;
use crate::metrics::label::PanicScope;
use crate::session;
use crate::store::Program;
use crate::threads::Threads;

/// Longest name that a client gives itself, in bytes.
const CLIENT_BYTES_MAX: usize = 64;
/// Most streams that last at a time. Each costs two tasks, a thread of 128 KiB of address space once it has to sleep, and up to two
/// pieces of a message beside what the budget of answers counts; of a pipe also the descriptor of a message that goes out.
const LASTING_MAX: usize = 256;
/// Most of them on one connection: half of the calls that it may have, so that others get through.
const LASTING_OF_CONNECTION_MAX: usize = 64;
/// Most of them on one connection that write. Each may have filled its window while it waits for readers, and windows of four are that
/// of the connection: no other call would get a byte in.
const WRITING_OF_CONNECTION_MAX: usize = 3;
/// Stack of a thread that sleeps for a stream, in bytes of address space.
const STACK_BYTES: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Streams that last, all of a sidecar; clones are the same ones.
#[derive(Clone, Default)]
pub(super) struct LastingStreams(Arc<AtomicUsize>);

/// A stream that lasts, until this is dropped.
pub(super) struct LastingStream {
    all: Arc<AtomicUsize>,
    connection: Option<Arc<Connection>>,
    writes: bool,
}

/// A stream that has begun: who has opened it, and within which bounds.
pub(super) struct Begun {
    pub(super) exchange: Arc<Exchange>,
    pub(super) call: Call,
    pub(super) place: LastingStream,
    /// The program, by its user agent.
    pub(super) program: Arc<Program>,
    pub(super) bounds: Bounds,
    pub(super) connection: Option<Arc<Connection>>,
}

/// Answers to the client of a stream.
pub(super) type Answers<T> = tokio::sync::mpsc::Sender<Result<T, Status>>;

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
        let at_all = "streams of channels and pipes are open at this sidecar already";
        take(&self.0, LASTING_MAX, at_all)?;
        // What was taken so far is given back with it.
        let mut stream = LastingStream { all: Arc::clone(&self.0), connection: None, writes: false };
        let Some(connection) = connection else { return Ok(stream) };
        let of_connection = "streams of channels and pipes are on this connection already";
        take(&connection.lasting, LASTING_OF_CONNECTION_MAX, of_connection)?;
        let connection = stream.connection.insert(connection);
        if writes {
            let that_write = "streams that write are on this connection already (use another connection)";
            take(&connection.writing, WRITING_OF_CONNECTION_MAX, that_write)?;
            stream.writes = true;
        }
        Ok(stream)
    }
}

/// Counts one more, or says what there are `most` of.
fn take(count: &AtomicUsize, most: usize, what: &str) -> Result<(), Failure> {
    let more = |taken| (taken < most).then_some(taken + 1);
    match count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
        Ok(_) => Ok(()),
        Err(_) => {
            let message = format!("{most} {what}, the most there may be; end some first");
            Err(Failure::new(Reason::LimitExceeded, message).with("most", most))
        }
    }
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

// === impl Begun ===

impl Begun {
    /// Name of the client for those at the other end.
    pub(super) fn client(&self, given: &str) -> Result<Arc<str>, Failure> {
        if given.len() > CLIENT_BYTES_MAX {
            let message = format!(
                "the client's name has {} bytes, and {CLIENT_BYTES_MAX} are the most; shorten it",
                given.len()
            );
            return Err(Failure::new(Reason::InvalidArgument, message).with("most", CLIENT_BYTES_MAX));
        }
        Ok(client_name(given, &self.program.name))
    }
}

/// Name that a client gives itself, as people are shown it; without one that of its program.
fn client_name(given: &str, program: &str) -> Arc<str> {
    let names = [given, program].map(session::client_name);
    names.into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| "gRPC".into())
}

/// Starts the task of a stream. Where it panics its client is told so: an end without a word is one in order.
pub(super) fn start_task<T: Send + 'static>(
    threads: Threads,
    name: &'static str,
    answers: Answers<T>,
    work: impl Future<Output = ()> + Send + 'static,
) {
    tokio::spawn(async move {
        if threads.caught_task(name, PanicScope::Call, work).await.is_none() {
            let _ = answers.send(Err(status(&broke_off()))).await;
        }
    });
}

/// Goes on with a stream until its conversation is over, its client goes, it is cancelled or the server ends. How it ended is counted,
/// and told to a client that is there.
pub(super) async fn attend<T>(
    begun: Arc<Begun>,
    answers: Answers<T>,
    conversation: impl Future<Output = Result<(), Failure>>,
) {
    let cancel = begun.call.caller().cancel.clone();
    let cancelled = Cancelled::of(&cancel);
    // A drain waits for no stream.
    let ending = Cancelled::of(begun.exchange.gate().ending());
    begun.bounds.cancels(&cancel);
    let ended = {
        // It ends with what its client is told by, whichever is first.
        let mut conversation = std::pin::pin!(conversation);
        tokio::select! {
            biased;
            () = answers.closed() => return,
            failure = cancelled.wait() => Err(begun.bounds.spent().unwrap_or(failure)),
            _ = ending.wait() => Err(gate::draining()),
            ended = &mut conversation => ended,
        }
    };
    // Whatever the conversation has begun and nobody awaits.
    cancel.cancel();
    if let Some(Begun { call, place, .. }) = Arc::into_inner(begun) {
        call.end([ended.as_ref().copied().map_err(|failure| failure.reason)]);
        drop(place);
    }
    if let Err(failure) = ended {
        let _ = answers.send(Err(status(&failure))).await;
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

    #[test]
    fn a_client_is_named_without_control_characters() {
        assert_eq!(&*client_name("a\x1b[2Jb", "program"), "a[2Jb");
        assert_eq!(&*client_name("\x1b", "grpc-go/1"), "grpc-go/1");
        assert_eq!(&*client_name("", "\t"), "gRPC");
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
