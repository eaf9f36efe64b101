//! The reader's end of a lane: takes pieces from the pool, asks for them, and puts what comes where it belongs.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tensorlane_proto::{Failure, Reason};

use super::Lanes;
use super::pool::{Next, Piece, Wanted};
use super::transfer::{Landed, OnLane};
use super::wire::{Answer, LaneEnd, Wire};
use crate::peer::link::Link;
use crate::peer::lost::HolderLost;
use crate::peer::relay::{self, RelaySession};
use crate::peer::shared::{Shared, count_in};

/// Pieces that are asked for at a time, so that the owner has the next one before it has sent the last. More where the way
/// is known to be so long that it would have none.
const DEPTH: usize = 2;

/// A lane on which we read.
pub(super) struct Reader<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) link: &'a Arc<Link>,
    pub(super) lanes: &'a Lanes,
    /// Unlike any other lane of the connection.
    pub(super) id: u64,
    /// Number of the lane, which it may share with lanes before and after it.
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
        let rounds = || self.rounds(wire, &mut asked);
        let end = self.shared.caught("lane reads", rounds).unwrap_or_else(LaneEnd::broke_off);
        let mut stalled = Vec::new();
        for Asked { piece, .. } in asked {
            piece.release();
            stalled.push(piece.wanted);
        }
        if let LaneEnd::Progress = end {
            // Another holder may be well.
            stalled.iter().for_each(|wanted| self.lose(wanted, HolderLost::Stalled));
        }
        self.lanes.pool.leave(self.id);
        if let LaneEnd::Idle = end {
            // Where it cannot be said, the other end finds out.
            let _ = wire.leave();
        }
        end
    }

    /// Returns whether more is to be asked for.
    fn is_short(&self, asked: &VecDeque<Asked>) -> bool {
        let bytes = |Asked { piece, .. }: &Asked| piece.reserved.range().end - piece.reserved.range().start;
        asked.len() < DEPTH || asked.iter().map(bytes).sum::<u64>() < self.lanes.ahead()
    }

    fn rounds(&self, wire: &mut dyn Wire, asked: &mut VecDeque<Asked>) -> LaneEnd {
        let mut last = Instant::now();
        loop {
            while self.is_short(asked) {
                match self.lanes.pool.next(self.id, asked.is_empty()) {
                    Next::Ask(piece) => {
                        let sent = wire.ask(piece.wanted.call, &piece.reserved.range());
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
            let mut answer = Answer::new(piece, &self.lanes.moved);
            let begun = at.max(last);
            self.shared.config.threads.point("lane answer");
            if let Err(end) = wire.receive(&mut answer) {
                let wanted = answer.wanted.clone();
                self.give_back(answer);
                if let LaneEnd::Progress = end {
                    self.lose(&wanted, HolderLost::Stalled);
                }
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
        if answer.later {
            self.later(answer);
            return Ok(());
        }
        let (range, wanted) = (answer.range(), answer.wanted.clone());
        let transfer = &wanted.transfer;
        let bytes = range.end - range.start;
        // Pings may stand behind what lanes carry; whoever sends this lives.
        self.link.hear();
        count_in(self.shared, self.link, bytes);
        self.lanes.pool.came(self.id, bytes, took);
        self.lanes.moved.note();
        self.lanes.delivered();
        let holder = wanted.asker.as_ref().map(|asker| &asker.holder);
        let lane = OnLane { number: self.number, is_plain: self.lanes.is_plain() };
        transfer.came(lane, bytes, &self.link.peer.name, holder);
        if let Some(asker) = &wanted.asker {
            asker.fed(bytes);
            self.shared.counters.relayed_in.fetch_add(bytes, Ordering::Relaxed);
        }
        let brought = answer.into_brought(self.id);
        match brought.map_or(Landed::More, |brought| transfer.landed(brought)) {
            Landed::Altered(range, _) => {
                altered(self.shared, self.link, &wanted, &range);
                Err(LaneEnd::Altered(range))
            }
            landed => {
                self.lanes.settle(self.shared, self.link, &wanted, landed);
                self.keep_pace(&wanted);
                Ok(())
            }
        }
    }

    /// A holder that is too slow for the deadline is let go while there is time for another one, if there is another one.
    fn keep_pace(&self, wanted: &Wanted) {
        let Wanted { transfer, asker, .. } = wanted;
        let is_slow = |asker: &Arc<RelaySession>| asker.is_too_slow(transfer.to_come(), transfer.deadline);
        if !transfer.is_over() && asker.as_ref().is_some_and(is_slow) {
            self.lose_for_another(wanted, HolderLost::Slow);
        }
    }

    /// The owner has no such pull on this connection. Where we still have it, its end of the connection knows more than ours:
    /// whether the call fails is said on the control connection, this one or the next.
    fn refused(&self, answer: Answer, failure: Failure) -> Result<(), LaneEnd> {
        let (range, wanted) = (answer.range(), answer.wanted.clone());
        self.lanes.pool.dropped(self.id, range.end - range.start);
        self.give_back(answer);
        if wanted.asker.is_some() {
            // It has nothing for us any more; its connection is well.
            self.lose(&wanted, HolderLost::Refused);
            return Ok(());
        }
        if wanted.transfer.is_over() { Ok(()) } else { Err(LaneEnd::Refused(failure)) }
    }

    /// A holder has not got that far itself. It lives, so it is asked again; but not for ever, if there is another one.
    fn later(&self, answer: Answer) {
        let (range, wanted) = (answer.range(), answer.wanted.clone());
        self.link.hear();
        self.lanes.moved.note();
        self.lanes.pool.dropped(self.id, range.end - range.start);
        wanted.transfer.moves();
        if let Some(asker) = &wanted.asker {
            asker.falls_behind(Instant::now());
        }
        self.give_back(answer);
        self.keep_pace(&wanted);
        if wanted
            .asker
            .as_ref()
            .is_some_and(|asker| asker.is_starved(wanted.transfer.allowance(Instant::now())))
        {
            self.lose_for_another(&wanted, HolderLost::Starved);
        }
    }

    /// Loses a holder that lives, if another one might do better: whoever has no other keeps it until the deadline.
    fn lose_for_another(&self, wanted: &Wanted, why: HolderLost) {
        if wanted.asker.as_ref().is_some_and(|asker| asker.owner.state.lock().has_another(asker)) {
            self.lose(wanted, why);
        }
    }

    /// A pull is not brought by this holder any more.
    fn lose(&self, wanted: &Wanted, why: HolderLost) {
        if let Some(asker) = &wanted.asker {
            self.lanes.pool.remove(wanted.call);
            relay::lose(self.shared, asker, why);
        }
    }

    fn give_back(&self, answer: Answer) {
        answer.give_back();
        self.lanes.pool.stir();
    }
}

/// A call whose bytes are not what the owner sent fails. Those of another holder are asked for again, elsewhere.
pub(super) fn altered(shared: &Shared, link: &Link, wanted: &Wanted, range: &Range<u64>) {
    let transfer = &wanted.transfer;
    if let Some(asker) = &wanted.asker {
        transfer.discard(range);
        return relay::lose(shared, asker, HolderLost::Altered);
    }
    let message = format!("{} sent other bytes than came over a plain lane", link.peer.name);
    let effects = {
        let mut state = link.peer.state.lock();
        state.withdraw(transfer.call, Failure::new(Reason::ChecksumMismatch, message))
    };
    shared.perform(effects);
}
