//! Pulls whose bytes do not come on the control connection: when they begin, when they are whole, and when they come there
//! after all. The call is here, its bytes are with a [`Transfer`].

use std::sync::Arc;

use tensorlane_memory::Landing;

use super::{Carrier, Effects, State};
use crate::peer::calls::{Call, Kind};
use crate::peer::link::Link;
use crate::peer::paths::FallBack;
use crate::peer::standstill::FEW_BYTES;
use crate::peer::transport::Way;
use crate::peer::transport::lanes::Transfer;

impl State {
    /// A transfer has all bytes in this landing: its call is over, or will be when the head is here.
    pub(in crate::peer) fn whole(&mut self, transfer: &Arc<Transfer>, landing: Landing) -> Effects {
        let call = self.calls.get_mut(&transfer.call).map(|call| &mut call.kind);
        match call {
            Some(Kind::Pull(pull)) if pull.transfer.as_ref().is_some_and(|t| Arc::ptr_eq(t, transfer)) => {
                pull.landing = Some(landing);
                pull.landed = pull.bytes;
                pull.transfer = None;
                pull.paths.came(pull.way, transfer.travelled());
                self.finish_whole(transfer.call)
            }
            // It failed in the meantime, and its caller waits for the landing.
            _ => Effects::one(transfer.unwanted(landing)),
        }
    }

    /// The head of a pull came, whose bytes do not come on the control connection: has them brought by whoever brings them.
    pub(in crate::peer) fn opened(&mut self, number: u64, link: &Link) -> Effects {
        let Some(call) = self.calls.get_mut(&number) else { return Effects::default() };
        if call.withdrawn {
            // Its Cancel is on the way, and nothing else comes.
            return self.over(number, false).1;
        }
        let Kind::Pull(pull) = &mut call.kind else { return Effects::default() };
        if pull.is_whole() {
            return self.finish_whole(number);
        }
        self.bring(number, link)
    }

    /// A pull on lanes goes on another way, with what is missing; and why it does. None where that cannot be now.
    pub(in crate::peer) fn fall_back(
        &mut self,
        link: &Arc<Link>,
        transfer: &Arc<Transfer>,
        to: Way,
    ) -> Option<(FallBack, Effects)> {
        let call = self.calls.get_mut(&transfer.call).filter(|call| call.sent_on == Some(link.id))?;
        let Kind::Pull(pull) = &mut call.kind else { return None };
        if !pull.opened || !pull.transfer.as_ref().is_some_and(|t| Arc::ptr_eq(t, transfer)) {
            return None;
        }
        if to == Way::Stream {
            pull.go_on_with(transfer.reclaim()?);
        }
        pull.paths.came(pull.way, transfer.travelled());
        let why = if transfer.has_moved() { FallBack::LanesBroke } else { FallBack::NoLane };
        pull.paths.left(pull.way, why);
        pull.way = to;
        pull.opened = false;
        let mut effects = Effects::default();
        effects.frame(link, call.frame());
        Some((why, effects))
    }
}

impl<L: Carrier> State<L> {
    /// Notes of what is due on a control connection that it stood still. Bytes that came of a tensor that is coming on it, and of how
    /// many.
    pub(in crate::peer) fn stood_still(&mut self, link: u64) -> Option<(u64, u64)> {
        let mut due = None;
        for call in self.calls.values_mut().filter(|call| call.sent_on == Some(link)) {
            match &mut call.kind {
                Kind::Pull(pull) if pull.opened && pull.way == Way::Stream => {
                    due = Some((pull.landed, pull.bytes));
                }
                Kind::Small(small) if small.bytes() > FEW_BYTES => {
                    small.stood_still = true;
                    due = due.or(Some((0, small.bytes())));
                }
                _ => {}
            }
        }
        due
    }

    /// Ends a pull that has all its bytes, unless an answer is still due on the control connection.
    pub(in crate::peer) fn finish_whole(&mut self, number: u64) -> Effects<L> {
        let Some(call) = self.calls.get_mut(&number) else { return Effects::default() };
        let sent_on = call.sent_on;
        let Kind::Pull(pull) = &mut call.kind else { return Effects::default() };
        if sent_on.is_some() && !pull.opened {
            return Effects::default();
        }
        self.waiting.retain(|waiting| *waiting != number);
        let (call, mut effects) = self.over(number, true);
        effects.finish.extend(call.and_then(Call::pulled));
        effects
    }
}
