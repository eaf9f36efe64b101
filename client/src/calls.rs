//! Callers that wait for replies, and the one of them that reads the socket.
//!
//! There is no reading thread: waking one costs as much as the whole call. Of the threads that wait, one *leads*: it
//! reads frames, its own reply and those of the others, which it hands to them. With its own reply in hand it passes the
//! lead on. This module only keeps the account; it opens, reads and writes nothing.
//!
//! ```text
//!            begin              reply read by the leader
//!  (nothing) -----> Waiting -------------------------------> Ready ----> taken
//!                      |
//!                      | given up (deadline, withdrawn)   reply read after all
//!                      '-------------------> GivenUp -------------------------> settled (its leases released)
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::late::Late;
use crate::reader::Frame;

/// Calls of one connection.
#[derive(Debug)]
pub(crate) struct Calls {
    next: AtomicU64,
    state: Mutex<State>,
    lost: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    led: bool,
    lost: Option<Error>,
    /// Set once a caller was told of the loss.
    told: bool,
    slots: BTreeMap<u64, Slot>,
}

#[derive(Debug)]
enum Slot {
    Waiting(Thread),
    Ready(Frame),
    GivenUp(Late),
}

/// Next step of a waiting thread.
#[derive(Debug)]
pub(crate) enum Turn {
    /// End of the call: its reply is here.
    Done(Frame),
    /// Nobody reads: the thread must, and call [`Calls::step_down`] afterwards.
    Lead,
    /// Another thread reads and will unpark it.
    Follow,
}

/// Fate of a frame that was handed in.
#[derive(Debug)]
pub(crate) enum Delivered {
    /// Reply that its caller has.
    Taken,
    /// Reply whose caller gave up; what it holds must be given back.
    Late(Late, Frame),
    /// No such call was ever made.
    Unknown,
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self { next: AtomicU64::new(1), state: Mutex::default(), lost: AtomicBool::new(false) }
    }

    /// A number that no other frame of this connection has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens a call for the calling thread.
    pub(crate) fn begin(&self) -> Result<u64> {
        let number = self.number();
        self.open(number, Slot::Waiting(thread::current()))?;
        Ok(number)
    }

    /// Opens a call whose reply nobody wants.
    pub(crate) fn begin_unwanted(&self) -> Result<u64> {
        let number = self.number();
        self.open(number, Slot::GivenUp(Late::Nothing))?;
        Ok(number)
    }

    fn open(&self, number: u64, slot: Slot) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        state.slots.insert(number, slot);
        Ok(())
    }

    /// Decides what the caller of `number` does now.
    pub(crate) fn turn(&self, number: u64) -> Result<Turn> {
        let mut state = self.state.lock();
        if let Some(Slot::Ready(_)) = state.slots.get(&number)
            && let Some(Slot::Ready(frame)) = state.slots.remove(&number)
        {
            return Ok(Turn::Done(frame));
        }
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        if state.led {
            return Ok(Turn::Follow);
        }
        state.led = true;
        Ok(Turn::Lead)
    }

    /// Takes the lead for a thread that waits for no reply of its own, if nobody leads.
    pub(crate) fn try_lead(&self) -> bool {
        let mut state = self.state.lock();
        !std::mem::replace(&mut state.led, true)
    }

    /// Ends the lead. With `done` the leader's own call is over; another waiting thread is told to lead.
    pub(crate) fn step_down(&self, done: Option<u64>) {
        let mut state = self.state.lock();
        state.led = false;
        if let Some(number) = done {
            state.slots.remove(&number);
        }
        state.call_a_leader();
    }

    /// Hands a reply to its caller.
    pub(crate) fn deliver(&self, frame: Frame) -> Delivered {
        let mut state = self.state.lock();
        let number = frame.header.call;
        match state.slots.get_mut(&number) {
            Some(slot @ Slot::Waiting(_)) => {
                if let Slot::Waiting(thread) = std::mem::replace(slot, Slot::Ready(frame)) {
                    thread.unpark();
                }
                Delivered::Taken
            }
            Some(Slot::GivenUp(late)) => {
                let late = *late;
                state.slots.remove(&number);
                Delivered::Late(late, frame)
            }
            Some(Slot::Ready(_)) | None => Delivered::Unknown,
        }
    }

    /// The caller waits no longer. Returns the reply if it came at the last moment.
    pub(crate) fn give_up(&self, number: u64, late: Late) -> Option<Frame> {
        let mut state = self.state.lock();
        let reply = match state.slots.remove(&number) {
            Some(Slot::Ready(frame)) => Some(frame),
            Some(_) => {
                state.slots.insert(number, Slot::GivenUp(late));
                None
            }
            None => None,
        };
        state.call_a_leader();
        reply
    }

    /// Forgets a call that was never sent.
    pub(crate) fn forget(&self, number: u64) {
        self.state.lock().slots.remove(&number);
    }

    /// Ends every call with `error`, and all that come later. Only the first error counts.
    pub(crate) fn lose(&self, error: &Error) {
        let mut state = self.state.lock();
        if state.lost.is_none() {
            state.lost = Some(error.clone());
            self.lost.store(true, Ordering::Release);
        }
        state.slots.retain(|_, slot| !matches!(slot, Slot::GivenUp(_)));
        for slot in state.slots.values() {
            if let Slot::Waiting(thread) = slot {
                thread.unpark();
            }
        }
    }

    /// Notes that a caller was told of the loss.
    pub(crate) fn loss_was_told(&self) {
        let mut state = self.state.lock();
        state.told |= state.lost.is_some();
    }

    /// The loss, where no caller was told of it; it counts as told then.
    pub(crate) fn untold_loss(&self) -> Option<Error> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.told, true) { None } else { state.lost.clone() }
    }

    /// Returns whether the connection is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Returns whether replies are due that nobody waits for, and nobody reads.
    pub(crate) fn needs_a_reader(&self) -> bool {
        let state = self.state.lock();
        !state.led
            && state.lost.is_none()
            && state.slots.values().any(|slot| matches!(slot, Slot::GivenUp(_)))
    }
}

impl State {
    fn call_a_leader(&self) {
        if self.led {
            return;
        }
        // This thread comes back by itself, for whatever else it waits for.
        let own = thread::current().id();
        let waiting = self.slots.values().find_map(|slot| match slot {
            Slot::Waiting(thread) if thread.id() != own => Some(thread),
            _ => None,
        });
        if let Some(thread) = waiting {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::frame::{Header, REPLY};

    use super::*;

    fn reply(call: u64) -> Frame {
        Frame {
            header: Header { length: 0, kind: 20, flags: REPLY, call },
            body: bytes::Bytes::new(),
            descriptor: None,
        }
    }

    #[test]
    fn one_of_those_who_wait_leads_and_the_others_follow() {
        let calls = Calls::new();
        let (first, second) = (calls.begin().unwrap(), calls.begin().unwrap());
        assert!(matches!(calls.turn(first), Ok(Turn::Lead)));
        assert!(matches!(calls.turn(second), Ok(Turn::Follow)));
        assert!(matches!(calls.deliver(reply(second)), Delivered::Taken));
        assert!(matches!(calls.turn(second), Ok(Turn::Done(_))));
        calls.step_down(Some(first));
    }

    #[test]
    fn the_lead_passes_on_to_another_thread_when_the_leader_has_its_reply() {
        let calls = Calls::new();
        // This thread waits for another reply as well, and comes back for it by itself.
        let (first, _own) = (calls.begin().unwrap(), calls.begin().unwrap());
        assert!(matches!(calls.turn(first), Ok(Turn::Lead)));
        thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let calls = &calls;
            let other = scope.spawn(move || {
                let second = calls.begin().unwrap();
                assert!(matches!(calls.turn(second), Ok(Turn::Follow)));
                tell.send(()).unwrap();
                while !matches!(calls.turn(second), Ok(Turn::Lead)) {
                    thread::park();
                }
            });
            told.recv().unwrap();
            calls.step_down(Some(first));
            other.join().unwrap();
        });
    }

    #[test]
    fn a_reply_after_its_caller_gave_up_is_late_and_one_of_no_call_is_unknown() {
        let calls = Calls::new();
        let call = calls.begin().unwrap();
        assert!(calls.give_up(call, Late::Acquired).is_none());
        assert!(calls.needs_a_reader());
        assert!(matches!(calls.deliver(reply(call)), Delivered::Late(Late::Acquired, _)));
        assert!(!calls.needs_a_reader());
        assert!(matches!(calls.deliver(reply(call)), Delivered::Unknown));
    }

    #[test]
    fn a_reply_that_came_at_the_last_moment_is_returned_to_who_gives_up() {
        let calls = Calls::new();
        let call = calls.begin().unwrap();
        calls.deliver(reply(call));
        assert!(calls.give_up(call, Late::Acquired).is_some());
    }

    #[test]
    fn a_lost_connection_ends_calls_in_flight_and_later_ones_with_the_first_error() {
        let calls = Calls::new();
        let call = calls.begin().unwrap();
        calls.lose(&Error::lost("first"));
        calls.lose(&Error::lost("second"));
        assert!(matches!(calls.turn(call), Err(Error::SessionLost { why }) if &*why == "first"));
        assert!(calls.begin().is_err());
    }

    #[test]
    fn a_loss_is_told_once() {
        let calls = Calls::new();
        calls.loss_was_told();
        calls.lose(&Error::lost("first"));
        assert!(matches!(calls.untold_loss(), Some(Error::SessionLost { .. })));
        assert!(calls.untold_loss().is_none());
        let calls = Calls::new();
        calls.lose(&Error::lost("first"));
        calls.loss_was_told();
        assert!(calls.untold_loss().is_none());
    }
}
