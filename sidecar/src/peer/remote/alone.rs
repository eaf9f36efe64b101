//! Pulls whose owner is lost: what a holder brings goes on without it, and who else has all of the tensor is asked. That is for
//! what can be proven without another word of the owner; the rest waits for it.
//!
//! ```text
//!   owner lost ──> a holder brings it ─────────────────────────────────> goes on, until its deadline
//!             └──> nobody does ──(for a while, or for good)──> a spare is asked ──┘
//!                                                         └──> none is left: waits out the grace, or fails
//! ```
//! A pull that its owner does not go on with, since another life has taken its place or it let the tensor go, is an orphan: it is
//! on no connection with the owner any more, and ends with its holders.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_proto::Failure;

use super::{Carrier, Effects, State};
use crate::peer::api::PeerKey;
use crate::peer::calls::{Call, Kind, PullCall};
use crate::peer::relay::{RelayOrder, RelaySession};
use crate::peer::transport::Way;

impl Call {
    /// Returns whether it can come to its end without the owner, as far as is known.
    pub(super) fn continues_without_owner(&self) -> bool {
        matches!(&self.kind, Kind::Pull(pull) if pull.continues_without_owner())
    }

    /// Returns whether all of it is here, and nothing is missing but an answer of the owner that would say nothing new:
    /// the head once more.
    pub(super) fn is_complete(&self) -> bool {
        let Kind::Pull(pull) = &self.kind else { return false };
        !self.withdrawn && pull.is_whole() && pull.head.is_some()
    }

    /// The owner does not go on with it, for this reason: whether it goes on all the same. Whoever has to be asked for that is added
    /// to `relays`.
    pub(super) fn outlives_owner(
        &mut self,
        why: impl FnOnce() -> Failure,
        relays: &mut Vec<RelayOrder>,
    ) -> bool {
        if self.withdrawn || !self.continues_without_owner() {
            return false;
        }
        if matches!(&self.kind, Kind::Pull(pull) if pull.relay.is_none()) {
            let Some(wish) = self.ask_spare() else { return false };
            relays.push(wish);
        }
        if let Kind::Pull(pull) = &mut self.kind {
            pull.orphaned = Some(why());
        }
        true
    }

    /// Has what is missing brought by somebody who has all of it, whom the owner has named before it was lost. What is on its way
    /// there will not do: it may be waiting for us, and the owner cannot say whether it is.
    fn ask_spare(&mut self) -> Option<RelayOrder> {
        let Kind::Pull(pull) = &mut self.kind else { return None };
        let holder = pull.next_spare()?;
        self.ask(holder, true)
    }

    /// Has what is missing brought by a holder, without another word of the owner; `whole`: only if it has all of it.
    pub(super) fn ask(&mut self, holder: PeerKey, whole: bool) -> Option<RelayOrder> {
        let (number, deadline, incarnation) = (self.number, self.deadline, self.expected?);
        let Kind::Pull(pull) = &mut self.kind else { return None };
        let (_, owner) = pull.home.as_ref()?;
        let owner = Arc::clone(owner);
        pull.wish(number, deadline, (&owner, incarnation), (holder, whole))
    }

    /// Time that it waits for an owner that was lost then before it turns to others.
    fn patience(&self, lost: Instant, most: Duration) -> Duration {
        match &self.kind {
            Kind::Pull(pull) => pull.transfer.as_ref().map_or(most, |t| most.min(t.allowance(lost))),
            _ => most,
        }
    }
}

impl PullCall {
    fn continues_without_owner(&self) -> bool {
        let has_others = self.relay.is_some() || self.spares.iter().any(|spare| !self.has_lost(spare));
        has_others && self.is_provable() && self.way != Way::Stream && !self.is_whole()
    }

    /// Returns whether what others send can be proven without another word of the owner.
    pub(in crate::peer) fn is_provable(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.is_provable())
    }

    /// The next one that was not asked yet.
    fn next_spare(&mut self) -> Option<PeerKey> {
        let at = self.spares.iter().position(|spare| !self.has_lost(spare))?;
        Some(self.spares.remove(at))
    }
}

impl<L: Carrier> State<L> {
    /// The peer does not go on with a pull that was under way. None where that is the end of it.
    pub(in crate::peer) fn refused_by_owner(&mut self, number: u64, why: &Failure) -> Option<Effects<L>> {
        let call = self.calls.get_mut(&number)?;
        let mut effects = Effects::default();
        // It may have been asked for anew, and have come from elsewhere before this answer.
        let is_complete = call.is_complete();
        if !is_complete && !call.outlives_owner(|| why.clone(), &mut effects.relays) {
            return None;
        }
        call.sent_on = None;
        self.on_link -= 1;
        Some(effects.and(if is_complete { self.finish_whole(number) } else { self.pump() }))
    }

    /// The peer has been lost for a while: what nobody brings is asked of those who have it.
    pub(in crate::peer) fn turn_to_spares(&mut self, most: Duration, now: Instant) -> Effects<L> {
        let mut effects = Effects::default();
        let (None, Some(lost)) = (&self.link, self.lost) else { return effects };
        let away = now.saturating_duration_since(lost);
        for number in self.waiting.clone() {
            let call = self.calls.get_mut(&number);
            let Some(call) = call.filter(|call| call.sent_before && call.continues_without_owner()) else {
                continue;
            };
            let is_brought = matches!(&call.kind, Kind::Pull(pull) if pull.relay.is_some());
            if !is_brought && away >= call.patience(lost, most) {
                effects.relays.extend(call.ask_spare());
            }
        }
        effects
    }

    /// Returns whether anybody else would bring what a holder brings that lives: the owner where it is there, or a
    /// spare. If nobody, a slow holder is better than none.
    pub(in crate::peer) fn has_another(&self, asker: &RelaySession) -> bool {
        let Some(Kind::Pull(pull)) = self.calls.get(&asker.call).map(|call| &call.kind) else { return true };
        if self.link.is_some() && pull.orphaned.is_none() {
            return true;
        }
        let is_another = |spare: &PeerKey| *spare != asker.holder && !pull.has_lost(spare);
        pull.is_provable() && pull.spares.iter().any(is_another)
    }

    /// A pull whose owner is lost has lost its holder, too: the next one is asked, or it waits for the owner, or fails where
    /// that will not come.
    pub(super) fn fail_over(&mut self, number: u64) -> Effects<L> {
        let Some(call) = self.calls.get_mut(&number) else { return Effects::default() };
        if call.continues_without_owner()
            && let Some(wish) = call.ask_spare()
        {
            return Effects { relays: vec![wish], ..Effects::default() };
        }
        let orphaned = match &call.kind {
            Kind::Pull(pull) => pull.orphaned.clone(),
            _ => None,
        };
        orphaned.map_or_else(Effects::default, |failure| self.withdraw(number, failure))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use tensorlane_memory::Block;
    use tensorlane_proto::frame::HASH_BYTES;
    use tensorlane_proto::{DType, Descriptor, Incarnation, Layout, Reason, Selection, Shape, Transport};

    use super::*;
    use crate::peer::calls::Head;
    use crate::peer::lost::HolderLost;
    use crate::peer::remote::Patience;
    use crate::peer::tests::world::{One, PASS, name, two};
    use crate::peer::transport::lanes::{GRANULE, Landed};

    const SECOND: Duration = Duration::from_secs(1);

    fn key(text: &str) -> PeerKey {
        PeerKey { name: name(text), incarnation: Incarnation(1) }
    }

    /// A pull of `a` from `b`, which had begun to send it, with these spares. It is call 1.
    fn pull_of(reader: &One, spares: &[&str], is_provable: bool) -> (Block, Call) {
        let (block, landing) = reader.landing(4 * GRANULE);
        let layout = Layout::contiguous(DType::U8, Shape::new(&[4 * GRANULE]).unwrap()).unwrap();
        let wanted = (7, Selection::All, 4 * GRANULE);
        let mut pull = PullCall::new(wanted, Transport::Tcp, landing, None, Box::new(|_| {}));
        let owner = reader.peers.shared.known_peer(&name("b")).unwrap();
        (pull.pass, pull.way) = (Some(PASS), Way::Lanes);
        pull.spares = spares.iter().map(|spare| key(spare)).collect();
        pull.head = Some(Head { descriptor: Descriptor::host(layout), crc32c: None, staged: false });
        pull.home = Some((Arc::downgrade(&reader.peers.shared), owner));
        let deadline = Instant::now() + 60 * SECOND;
        let transfer = pull.transfer(1, deadline).unwrap();
        assert_eq!(transfer.to_be_said(), Some(0..4));
        if is_provable {
            assert!(matches!(transfer.said(&[0; 4 * HASH_BYTES]), Landed::More));
        }
        drop(transfer);
        let mut call = Call::new(Kind::Pull(Box::new(pull)), deadline, 1, Some(Incarnation(1)));
        call.sent_before = true;
        (block, call)
    }

    /// A call whose owner was lost three seconds ago.
    fn lost(reader: &One, call: Call, then: impl FnOnce(&mut State)) {
        let peer = reader.peers.shared.known_peer(&name("b")).unwrap();
        let mut state = peer.state.lock();
        let link = state.link.take();
        (state.lost, state.last_error) = (Instant::now().checked_sub(3 * SECOND), "it broke".into());
        state.calls.insert(1, call);
        state.waiting.push_back(1);
        then(&mut state);
        let left: Vec<Call> = state.calls.drain().map(|(_, call)| call).collect();
        state.waiting.clear();
        (state.link, state.lost) = (link, None);
        drop(state);
        drop(left);
    }

    fn asked(effects: &Effects) -> Vec<&PeerKey> {
        effects.relays.iter().map(|wish| &wish.asker.holder).collect()
    }

    #[test]
    fn those_that_have_all_are_asked_one_after_the_other_once_the_owner_was_lost_for_a_while() {
        let (_table, a, _b) = two();
        let (_block, call) = pull_of(&a, &["c", "d"], true);
        lost(&a, call, |state| {
            let now = Instant::now();
            assert!(state.turn_to_spares(5 * SECOND, now).relays.is_empty(), "it may be back at once");
            let effects = state.turn_to_spares(2 * SECOND, now);
            assert_eq!(asked(&effects), [&key("c")]);
            assert!(
                effects.relays[0].whole && effects.relays[0].encrypted,
                "a copy, and no plainer than from the owner"
            );
            assert!(state.turn_to_spares(2 * SECOND, now).relays.is_empty(), "one at a time");
            // Nobody gives it up meanwhile.
            let patience = Patience { progress: SECOND, grace: SECOND };
            drop(state.dial_failed(1, "refused", patience, now));
            drop(state.give_up_lost(SECOND, now));
            assert!(state.calls.contains_key(&1));
            let next = state.relay_lost(&effects.relays[0].asker, HolderLost::Refused).unwrap();
            assert_eq!(asked(&next), [&key("d")]);
            let none = state.relay_lost(&next.relays[0].asker, HolderLost::Unreachable).unwrap();
            assert!(
                none.relays.is_empty() && state.calls.contains_key(&1),
                "the owner may be back in its grace"
            );
            drop(state.give_up_lost(10 * SECOND, now));
            assert!(state.calls.contains_key(&1));
            drop(state.give_up_lost(SECOND, now));
            assert!(state.calls.is_empty());
        });
    }

    #[test]
    fn what_only_the_owner_can_prove_is_asked_of_nobody_else_and_waits_for_the_owner() {
        let (_table, a, _b) = two();
        let (_block, call) = pull_of(&a, &["c"], false);
        lost(&a, call, |state| {
            assert!(state.turn_to_spares(SECOND, Instant::now()).relays.is_empty());
            drop(state.give_up_lost(SECOND, Instant::now()));
            assert!(state.calls.is_empty());
        });
    }

    #[test]
    fn a_pull_with_little_time_left_turns_to_others_sooner() {
        let (_table, a, _b) = two();
        let (_block, call) = pull_of(&a, &["c"], true);
        lost(&a, call, |state| {
            let now = Instant::now();
            assert!(
                state.turn_to_spares(20 * SECOND, now).relays.is_empty(),
                "a quarter of a minute is longer"
            );
            let later = now + 14 * SECOND;
            assert_eq!(state.turn_to_spares(20 * SECOND, later).relays.len(), 1);
        });
    }

    #[test]
    fn a_holder_whose_connection_was_replaced_is_asked_once_more_while_the_owner_is_lost() {
        let (_table, a, _b) = two();
        let (_block, call) = pull_of(&a, &["c", "d"], true);
        lost(&a, call, |state| {
            let first = state.turn_to_spares(SECOND, Instant::now());
            let again = state.relay_lost(&first.relays[0].asker, HolderLost::Replaced).unwrap();
            assert_eq!(asked(&again), [&key("c")]);
            let next = state.relay_lost(&again.relays[0].asker, HolderLost::Replaced).unwrap();
            assert_eq!(asked(&next), [&key("d")]);
        });
    }

    #[test]
    fn a_holder_that_is_getting_it_is_not_asked_for_a_copy_when_its_connection_was_replaced() {
        let (_table, a, _b) = two();
        let (_block, call) = pull_of(&a, &["c"], true);
        lost(&a, call, |state| {
            let first = state.calls.get_mut(&1).unwrap().ask(key("g"), false).unwrap();
            let again = state.relay_lost(&first.asker, HolderLost::Replaced).unwrap();
            assert_eq!((asked(&again), again.relays[0].whole), (vec![&key("g")], false));
            let next = state.relay_lost(&again.relays[0].asker, HolderLost::Replaced).unwrap();
            assert_eq!((asked(&next), next.relays[0].whole), (vec![&key("c")], true));
            let again = state.relay_lost(&next.relays[0].asker, HolderLost::Unreachable).unwrap();
            assert!(asked(&again).is_empty(), "nobody is left");
        });
    }

    #[test]
    fn the_last_holder_of_a_lost_owner_has_nobody_in_its_place() {
        let (_table, a, _b) = two();
        let peer = a.peers.shared.known_peer(&name("b")).unwrap();
        let link = peer.state.lock().link.clone().unwrap();
        let (_block, call) = pull_of(&a, &["c", "d"], true);
        lost(&a, call, |state| {
            let first = state.turn_to_spares(SECOND, Instant::now()).relays.remove(0);
            assert!(state.has_another(&first.asker), "there is one more");
            let next = state.relay_lost(&first.asker, HolderLost::Slow).unwrap().relays.remove(0);
            assert!(!state.has_another(&next.asker));
            state.link = Some(link);
            assert!(state.has_another(&next.asker), "the owner is back");
            // But not for this one.
            let Some(Kind::Pull(pull)) = state.calls.get_mut(&1).map(|call| &mut call.kind) else { panic!() };
            pull.orphaned = Some(Failure::new(Reason::NotFound, "it is gone"));
            assert!(!state.has_another(&next.asker));
        });
    }

    /// Has all bytes of a call here; what it is told at its end: whether it has them.
    fn complete(call: &mut Call) -> Receiver<bool> {
        let Kind::Pull(pull) = &mut call.kind else { panic!("it is a pull") };
        let reclaimed = pull.transfer.take().and_then(|transfer| transfer.reclaim()).unwrap();
        pull.go_on_with(reclaimed);
        pull.landed = pull.bytes;
        let (tell, told) = channel();
        pull.done = Some(Box::new(move |outcome| tell.send(outcome.is_ok()).unwrap()));
        told
    }

    #[test]
    fn what_is_all_here_needs_no_head_once_more() {
        let (_table, a, _b) = two();
        let peer = a.peers.shared.known_peer(&name("b")).unwrap();
        let link = peer.state.lock().link.clone().unwrap();
        for is_refused in [true, false] {
            let (_block, mut call) = pull_of(&a, &[], true);
            let told = complete(&mut call);
            call.sent_on = Some(link.id);
            lost(&a, call, |state| {
                state.waiting.clear();
                state.on_link += 1;
                assert!(state.finish_whole(1).finish.is_empty(), "the head may be on its way");
                let why = Failure::new(Reason::Draining, "it goes away");
                let effects = match is_refused {
                    true => state.refused_by_owner(1, &why).unwrap(),
                    false => state.link_ended(&link, "it broke", Instant::now()).1,
                };
                effects.finish.into_iter().for_each(|tell| tell());
                assert_eq!(told.try_recv(), Ok(true));
                assert!(state.calls.is_empty() && state.waiting.is_empty() && state.on_link == 0);
            });
        }
    }

    #[test]
    fn what_the_owner_does_not_go_on_with_ends_with_its_last_holder() {
        let (_table, a, _b) = two();
        let (_block, call) = pull_of(&a, &["c"], true);
        lost(&a, call, |state| {
            state.waiting.clear();
            state.calls.get_mut(&1).unwrap().sent_on = Some(9);
            state.on_link += 1;
            let why = Failure::new(Reason::NotFound, "it is gone");
            let effects = state.refused_by_owner(1, &why).unwrap();
            assert_eq!((asked(&effects), state.on_link), (vec![&key("c")], 0));
            drop(state.relay_lost(&effects.relays[0].asker, HolderLost::Refused));
            assert!(state.calls.is_empty());
        });
        let (_block, call) = pull_of(&a, &[], true);
        lost(&a, call, |state| {
            let why = Failure::new(Reason::NotFound, "it is gone");
            assert!(state.refused_by_owner(1, &why).is_none(), "nobody else has it");
        });
    }
}
