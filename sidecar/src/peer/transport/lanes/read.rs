//! The reader's end of a lane: takes pieces from the pool, asks for them, and puts what comes where it belongs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_proto::{Failure, Reason};

use super::Lanes;
use super::pool::{Next, Piece};
use super::transfer::{Landed, Transfer};
use super::wire::{Answer, LaneEnd, Wire};
use crate::peer::link::Link;
use crate::peer::remote::Todo;
use crate::peer::shared::{Shared, count_in};

/// Pieces that are asked for at a time, so that the owner has the next one before it has sent the last.
const DEPTH: usize = 2;

/// One lane on which we read.
pub(super) struct Reader<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) link: &'a Arc<Link>,
    pub(super) lanes: &'a Lanes,
    /// Unlike any other lane of the connection.
    pub(super) id: u64,
    /// Its number, which it may share with lanes before and after it.
    pub(super) number: u8,
}

/// A piece that was asked for.
struct Asked {
    piece: Piece,
    at: Instant,
}

impl Reader<'_> {
    /// Until the lane ends.
    pub(super) fn run(&self, wire: &mut dyn Wire) -> LaneEnd {
        let mut asked = VecDeque::with_capacity(DEPTH);
        self.lanes.pool.enter(self.id);
        let end = self.rounds(wire, &mut asked);
        for Asked { piece, .. } in asked {
            piece.transfer.release(&piece.reserved);
        }
        self.lanes.pool.leave(self.id);
        if let LaneEnd::Idle = end {
            // Where it cannot be said, the other end finds out.
            let _ = wire.leave();
        }
        end
    }

    fn rounds(&self, wire: &mut dyn Wire, asked: &mut VecDeque<Asked>) -> LaneEnd {
        let mut last = Instant::now();
        loop {
            while asked.len() < DEPTH {
                match self.lanes.pool.next(self.id, asked.is_empty()) {
                    Next::Ask(piece) => {
                        let sent = wire.ask(piece.transfer.call, &piece.reserved.range());
                        asked.push_back(Asked { piece, at: Instant::now() });
                        if let Err(end) = sent {
                            return end;
                        }
                    }
                    Next::Nothing => break,
                    Next::Idle => return LaneEnd::Idle,
                    Next::Ended => return LaneEnd::Ended,
                }
            }
            let Some(Asked { piece, at }) = asked.pop_front() else { continue };
            let mut answer = Answer::new(piece.transfer, piece.reserved);
            let begun = at.max(last);
            if let Err(end) = wire.receive(&mut answer) {
                self.give_back(answer);
                return end;
            }
            last = Instant::now();
            if let Err(end) = self.came(answer, last.saturating_duration_since(begun)) {
                return end;
            }
        }
    }

    /// An answer came whole.
    fn came(&self, mut answer: Answer, took: Duration) -> Result<(), LaneEnd> {
        if let Some(failure) = answer.refused.take() {
            return self.refused(answer, failure);
        }
        let (range, transfer) = (answer.range(), Arc::clone(&answer.transfer));
        let bytes = range.end - range.start;
        // Pings may stand behind what lanes carry; whoever sends this lives.
        self.link.hear();
        count_in(self.shared, self.link, bytes);
        self.lanes.pool.came(self.id, bytes, took);
        self.lanes.delivered();
        transfer.came(self.number, bytes);
        let brought = answer.into_brought(self.id);
        match brought.map_or(Landed::More, |brought| transfer.landed(brought)) {
            Landed::Altered(range, _) => {
                fail_altered(self.shared, self.link, &transfer);
                Err(LaneEnd::Altered(range))
            }
            landed => {
                self.lanes.settle(self.shared, self.link, &transfer, landed);
                Ok(())
            }
        }
    }

    /// The owner has no such pull on this connection. Where we still have it, its end of the connection knows more than ours:
    /// whether the call fails is said on the control connection, this one or the next.
    fn refused(&self, answer: Answer, failure: Failure) -> Result<(), LaneEnd> {
        let (range, is_over) = (answer.range(), answer.transfer.is_over());
        self.lanes.pool.dropped(self.id, range.end - range.start);
        self.give_back(answer);
        if is_over { Ok(()) } else { Err(LaneEnd::Refused(failure)) }
    }

    fn give_back(&self, answer: Answer) {
        self.shared.perform(Todo::one(answer.give_back()));
        self.lanes.pool.stir();
    }
}

/// A call whose bytes are not what the owner sent fails.
pub(super) fn fail_altered(shared: &Shared, link: &Link, transfer: &Transfer) {
    let message = format!("{} sent other bytes than came over a plain lane", link.peer.name);
    let todo = {
        let mut state = link.peer.state.lock();
        state.withdraw(transfer.call, Failure::new(Reason::ChecksumMismatch, message))
    };
    shared.perform(todo);
}
