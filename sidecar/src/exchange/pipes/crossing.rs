//! A pipe to another peer, on one connection after the other: what the peer may not have heard. Pure; `C` is a call.
//!
//! ```text
//!   on ──lost──> away ──resumed──> on: says again reads, calls and the end, in this order     over <── heard, or away for too long
//! ```
//! A call is kept until it is answered. Of reads and ends no answer tells: they are said again, and are nothing where they were heard.

use std::collections::{BTreeMap, VecDeque};

use tensorlane_proto::generated as v1;

use super::table::{Ended, UNREAD_MAX};

/// See the module.
pub(super) struct Crossing<C> {
    leg: Leg,
    /// Number of the last call.
    last: u64,
    calls: BTreeMap<u64, C>,
    /// Messages that were read. What is lost of them is unread at the peer, so it is among the last [`UNREAD_MAX`].
    reads: VecDeque<u64>,
    finished: bool,
    ended: Option<Ended>,
}

/// Way of what is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leg {
    On,
    Away,
    Over,
}

/// Word that is to be said again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word<C> {
    /// Read of a message, or that nothing more is written.
    End(v1::PeerPipeEnd),
    /// A call, with its number.
    Call(u64, C),
    /// The last word: it is to be known that it was heard.
    Close(v1::PeerPipeEnd),
}

impl<C: Clone> Crossing<C> {
    /// A pipe that was opened just now.
    pub(super) fn new() -> Self {
        let (calls, reads) = (BTreeMap::new(), VecDeque::new());
        Self { leg: Leg::On, last: 0, calls, reads, finished: false, ended: None }
    }

    /// Returns whether it has a connection.
    pub(super) fn is_on(&self) -> bool {
        self.leg == Leg::On
    }

    /// Takes in a call, and gives its number; none where the pipe has ended. It is to be sent if there is a connection.
    pub(super) fn enter(&mut self, call: C) -> Option<u64> {
        if self.leg == Leg::Over || self.ended.is_some() {
            return None;
        }
        self.last += 1;
        self.calls.insert(self.last, call);
        Some(self.last)
    }

    /// A call has its outcome.
    pub(super) fn leave(&mut self, number: u64) {
        self.calls.remove(&number);
    }

    /// Notes what is said of a read or of the end of writing. Returns whether it is to be said now.
    pub(super) fn note(&mut self, end: &v1::PeerPipeEnd) -> bool {
        if end.read > 0 {
            if self.reads.len() >= UNREAD_MAX {
                self.reads.pop_front();
            }
            self.reads.push_back(end.read);
        }
        self.finished |= end.finished;
        self.is_on()
    }

    /// Ends it here. Gives the calls that nobody answers; with a connection the peer does, and [`Self::last_word`] is to be said.
    pub(super) fn close(&mut self, how: Ended) -> Vec<C> {
        self.ended.get_or_insert(how);
        if self.is_on() { Vec::new() } else { self.take_calls() }
    }

    /// Words of an end that is no more.
    pub(super) fn last_word(&self) -> v1::PeerPipeEnd {
        v1::PeerPipeEnd {
            finished: self.finished,
            closed: self.ended == Some(Ended::Closed),
            lost: self.ended == Some(Ended::Lost),
            ..v1::PeerPipeEnd::default()
        }
    }

    /// The peer has heard the last word.
    pub(super) fn heard(&mut self) {
        self.leg = Leg::Over;
    }

    /// The connection is lost. Gives the calls that are not asked again, if the peer is to be waited for; none where it is not.
    pub(super) fn lost(&mut self) -> Option<Vec<C>> {
        if !self.is_on() {
            return None;
        }
        self.leg = Leg::Away;
        Some(if self.ended.is_some() { self.take_calls() } else { Vec::new() })
    }

    /// The pipe goes on over another connection. Gives what is to be said there before anything else.
    pub(super) fn resumed(&mut self) -> Vec<Word<C>> {
        self.leg = Leg::On;
        let reads = self.reads.iter().map(|read| v1::PeerPipeEnd { read: *read, ..Default::default() });
        let mut words: Vec<_> = reads.map(Word::End).collect();
        words.extend(self.calls.iter().map(|(number, call)| Word::Call(*number, call.clone())));
        let last = v1::PeerPipeEnd { resumed: true, ..self.last_word() };
        words.push(if self.ended.is_some() { Word::Close(last) } else { Word::End(last) });
        words
    }

    /// Nobody waits for the peer any more. Gives the calls that nobody answers.
    pub(super) fn over(&mut self) -> Vec<C> {
        self.leg = Leg::Over;
        self.take_calls()
    }

    fn take_calls(&mut self) -> Vec<C> {
        std::mem::take(&mut self.calls).into_values().collect()
    }
}

#[cfg(test)]
mod tests;
