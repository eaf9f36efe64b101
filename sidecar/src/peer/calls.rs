//! Calls that we made and that are not over. A call knows how it is written, and what it becomes when it ends; on which
//! connection it is, is for `remote`.

use std::time::Instant;

use tensorlane_memory::Landing;
use tensorlane_proto::frame::{self, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor, Failure, Incarnation, Selection};

use super::api::{PullFailed, Pulled};

/// Takes the outcome of a pull. Runs on a reader thread: must not block.
pub type PullDone = Box<dyn FnOnce(Result<Pulled, PullFailed>) + Send>;
/// Takes the outcome of a pull of small tensors. Runs on a reader thread: must not block.
pub type SmallDone = Box<dyn FnOnce(Result<Vec<v1::PulledSmall>, Failure>) + Send>;
/// Takes the outcome of an inquiry. Runs on a reader thread: must not block.
pub type InquireDone = Box<dyn FnOnce(Result<v1::Inquired, Failure>) + Send>;

/// What is left to do when a call is over, outside of every lock.
pub(super) type Finish = Box<dyn FnOnce() + Send>;

/// The beginning of the answer to a pull.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Head {
    pub(super) descriptor: Descriptor,
    pub(super) crc32c: Option<u32>,
}

/// A pull and how far it is.
pub(super) struct PullCall {
    pub(super) id: u64,
    pub(super) selection: Selection,
    pub(super) bytes: u64,
    /// `None` while the reader thread writes into it.
    pub(super) landing: Option<Landing>,
    /// Packed bytes that are in the landing.
    pub(super) landed: u64,
    pub(super) head: Option<Head>,
    pub(super) done: Option<PullDone>,
    /// It failed while the reader thread had the landing: told as soon as that is back.
    pub(super) failed: Option<Failure>,
}

/// What was asked.
pub(super) enum Kind {
    Pull(Box<PullCall>),
    Small { ids: Vec<u64>, done: Option<SmallDone> },
    Inquire { message: v1::Inquire, done: Option<InquireDone> },
}

/// A call of ours.
pub(super) struct Call {
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) begun: Instant,
    pub(super) deadline: Instant,
    /// The only incarnation that can answer; learned when it is first sent, if the caller did not say.
    pub(super) expected: Option<Incarnation>,
    /// The connection that it is on.
    pub(super) sent_on: Option<u64>,
    /// It was on a connection at some time, so the owner may hold a lease for it.
    pub(super) sent_before: bool,
    /// The caller has its outcome; we wait for the owner's last frame only.
    pub(super) withdrawn: bool,
    /// The number of the last attempt to connect that began before it.
    pub(super) attempt: u64,
}

impl Call {
    pub(super) fn new(kind: Kind, deadline: Instant, number: u64, expected: Option<Incarnation>) -> Self {
        Self {
            number,
            kind,
            begun: Instant::now(),
            deadline,
            expected,
            sent_on: None,
            sent_before: false,
            withdrawn: false,
            attempt: 0,
        }
    }

    /// The frame that asks, for what is still missing.
    pub(super) fn frame(&self) -> Vec<u8> {
        match &self.kind {
            Kind::Pull(pull) => {
                let selection = (pull.selection != Selection::All).then(|| (&pull.selection).into());
                let message = v1::Pull { id: pull.id, selection, from: pull.landed, bytes: pull.bytes };
                frame::encode(PeerKind::Pull.into(), 0, self.number, &message)
            }
            Kind::Small { ids, .. } => {
                let message = v1::PullMany { ids: ids.clone() };
                frame::encode(PeerKind::PullMany.into(), 0, self.number, &message)
            }
            Kind::Inquire { message, .. } => frame::encode(PeerKind::Inquire.into(), 0, self.number, message),
        }
    }

    /// The kind of frame that answers it.
    pub(super) fn answer(&self) -> PeerKind {
        match self.kind {
            Kind::Pull(_) => PeerKind::Pull,
            Kind::Small { .. } => PeerKind::PullMany,
            Kind::Inquire { .. } => PeerKind::Inquire,
        }
    }

    /// The outcome is this failure. `None`: it was told before, or will be when the reader thread is done with the
    /// landing.
    pub(super) fn fail(&mut self, failure: Failure) -> Option<Finish> {
        match &mut self.kind {
            Kind::Pull(pull) => {
                let Some(landing) = pull.landing.take() else {
                    if pull.done.is_some() {
                        pull.failed.get_or_insert(failure);
                    }
                    return None;
                };
                let done = pull.done.take()?;
                Some(Box::new(move || done(Err(PullFailed { landing, failure }))))
            }
            Kind::Small { done, .. } => {
                let done = done.take()?;
                Some(Box::new(move || done(Err(failure))))
            }
            Kind::Inquire { done, .. } => {
                let done = done.take()?;
                Some(Box::new(move || done(Err(failure))))
            }
        }
    }

    /// All bytes are in the landing.
    pub(super) fn pulled(self) -> Option<Finish> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let Kind::Pull(pull) = self.kind else { return None };
        let PullCall { landing: Some(landing), head: Some(head), done: Some(done), .. } = *pull else {
            return None;
        };
        let Head { descriptor, crc32c } = head;
        Some(Box::new(move || done(Ok(Pulled { landing, descriptor, crc32c, seconds }))))
    }
}

impl PullCall {
    /// Takes the landing back from the reader thread; tells a failure that came meanwhile.
    pub(super) fn give_back(&mut self, landing: Landing, landed: u64) -> Option<Finish> {
        self.landed = landed;
        let Some(failure) = self.failed.take() else {
            self.landing = Some(landing);
            return None;
        };
        let done = self.done.take()?;
        Some(Box::new(move || done(Err(PullFailed { landing, failure }))))
    }
}
