//! Pulls that come from other holders than the owner: which of them is asked, and when the next one is.

use std::sync::Arc;
use std::time::Instant;

use tensorlane_proto::frame::{self, FrameError, HASH_BYTES, HOLDERS_MAX, LOST_MAX, PROOFS_SINCE, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Incarnation};

use super::{Effects, Peer, State};
use crate::peer::api::{LostHolder, PeerKey};
use crate::peer::calls::{Head, Kind, PullCall};
use crate::peer::link::{Ended, Link};
use crate::peer::lost::{self, HolderLost};
use crate::peer::peers::CallHandle;
use crate::peer::relay::{self, RelayFetch, RelayOrder, RelaySession};
use crate::peer::transport::Way;
use crate::peer::transport::lanes::{Forged, Landed};

impl State {
    /// The head of a pull is here, or its holder is lost and the owner has said who else there is: has its bytes brought by
    /// the next holder, or by the owner.
    pub(super) fn bring(&mut self, number: u64, link: &Link) -> Effects {
        let mut effects = Effects { wake: true, ..Effects::default() };
        let Some(call) = self.calls.get_mut(&number) else { return effects };
        let deadline = call.deadline;
        let Kind::Pull(pull) = &mut call.kind else { return effects };
        pull.encrypted = !link.ways.is_plain(pull.way);
        // The connection with the owner is another one; the holder goes on if that is what the owner knows. Else others may
        // wait for us by its word, and one of them be who we wait for.
        let goes_on = pull.relay.as_ref().is_some_and(|relay| pull.holders.contains(&relay.asker.holder));
        let mut wish = None;
        if goes_on {
            pull.holders.clear();
        } else {
            effects.finish.extend(pull.end_aid());
            let owner = (&link.peer, link.incarnation);
            let next = pull.next_holder();
            wish = next.and_then(|holder| pull.wish(number, deadline, owner, (holder, false)));
            if wish.is_none()
                && let Some(way) = link.ways.of(pull.way)
            {
                way.bring(number, deadline, pull);
            }
        }
        // What others send must be proven: now, or once the owner is lost and cannot say it.
        if let Some(frame) = pull.ask_proofs(number, link.id)
            && let Some(present) = self.link.as_ref().filter(|present| present.id == link.id)
        {
            effects.frame(present, frame);
        }
        effects.relays.extend(wish);
        effects
    }

    /// A holder was asked; whether it is still the one that is wanted.
    pub(in crate::peer) fn relayed(&mut self, asker: &Arc<RelaySession>, handle: CallHandle) -> bool {
        let Some(Kind::Pull(pull)) = self.calls.get_mut(&asker.call).map(|call| &mut call.kind) else {
            return false;
        };
        match &mut pull.relay {
            Some(relay) if Arc::ptr_eq(&relay.asker, asker) => {
                relay.handle = Some(handle);
                true
            }
            _ => false,
        }
    }

    /// A holder does not do. None where it was let go before.
    pub(in crate::peer) fn relay_lost(&mut self, asker: &RelaySession, why: HolderLost) -> Option<Effects> {
        let call = self.calls.get_mut(&asker.call)?;
        let (sent_on, withdrawn, is_away) = (call.sent_on, call.withdrawn, self.link.is_none());
        let Kind::Pull(pull) = &mut call.kind else { return None };
        let whole =
            pull.relay.as_ref().filter(|relay| relay.asker.turn == asker.turn).map(|relay| relay.whole);
        let Some(whole) = whole else {
            // It was let go before; but whoever forged is never asked again.
            if why == HolderLost::Altered {
                pull.lost.retain(|lost| lost.peer != asker.holder);
                if pull.lost.len() < LOST_MAX {
                    pull.lost.push(LostHolder { peer: asker.holder.clone(), why: Some(why) });
                }
            }
            return None;
        };
        let mut effects = Effects::one(pull.end_aid());
        if pull.is_whole() {
            // Only the head is missing once more: nobody is to bring anything.
            return Some(effects);
        }
        if let Some(transfer) = &pull.transfer {
            // Of what came from it, sums may never come.
            transfer.forget_sums();
        }
        let again = why == HolderLost::Replaced && !std::mem::replace(&mut pull.asked_again, true);
        if pull.lost.len() < LOST_MAX && !again {
            pull.lost.push(LostHolder { peer: asker.holder.clone(), why: Some(why) });
        }
        let present = self.link.clone().filter(|link| sent_on == Some(link.id) && pull.opened && !withdrawn);
        let Some(link) = present else {
            if !is_away && pull.orphaned.is_none() {
                // The next head says who there is.
                return Some(effects);
            }
            // It is there, on another connection; and if it was getting the tensor, it may be still.
            if again && let Some(wish) = call.ask(asker.holder.clone(), whole) {
                effects.relays.push(wish);
                return Some(effects);
            }
            return Some(effects.and(self.fail_over(asker.call)));
        };
        if again {
            // It is there, on another connection.
            pull.holders = vec![asker.holder.clone()];
            return Some(effects.and(self.bring(asker.call, &link)));
        }
        let lost = pull.lost.iter().map(lost::life).collect();
        let seek = v1::Seek { id: pull.id, lost, proof: false };
        effects.frame(&link, frame::encode(PeerKind::Seek.into(), 0, asker.call, &seek));
        pull.seeking = pull.asks_on();
        if pull.seeking {
            return Some(effects);
        }
        // The owner comes to the same end, and is not waited for.
        Some(effects.and(self.bring(asker.call, &link)))
    }

    /// The owner has answered a Seek.
    pub(in crate::peer) fn sought(
        &mut self,
        number: u64,
        link: &Link,
        sought: Result<v1::Sought, Failure>,
    ) -> Effects {
        let call = self.calls.get_mut(&number).filter(|call| call.sent_on == Some(link.id));
        let Some(Kind::Pull(pull)) = call.map(|call| &mut call.kind) else { return Effects::default() };
        let v1::Sought { holders, spares, .. } = sought.unwrap_or_default();
        if !std::mem::take(&mut pull.seeking) || pull.is_whole() {
            return Effects::default();
        }
        pull.hold(&holders, &spares);
        self.bring(number, link)
    }

    /// The owner has said what granules of a pull hash to, or does not say it; and what was forged. Of a pull that is over, or
    /// comes another way by now, it may come late.
    pub(in crate::peer) fn proven(
        &mut self,
        number: u64,
        link: &Link,
        proven: Result<v1::PeerProven, Failure>,
    ) -> Result<(Effects, Vec<Forged>), Ended> {
        let late = || Ok((Effects::default(), Vec::new()));
        let call = self.calls.get_mut(&number).filter(|call| call.sent_on == Some(link.id));
        let Some(Kind::Pull(pull)) = call.map(|call| &mut call.kind) else { return late() };
        if pull.proofs_asked.take_if(|asked| *asked == link.id).is_none() {
            return late();
        }
        let Some(transfer) = pull.transfer.clone() else { return late() };
        let mut effects = Effects { wake: true, ..Effects::default() };
        let landed = match proven {
            Ok(v1::PeerProven { hashes }) => {
                let Some(asked) = transfer.to_be_said() else { return late() };
                if hashes.len() as u64 != (asked.end - asked.start) * HASH_BYTES as u64 {
                    return Err(FrameError::Malformed(PeerKind::Proofs.into()).into());
                }
                let landed = transfer.said(&hashes);
                if let Some(frame) = pull.ask_proofs(number, link.id)
                    && let Some(present) = self.link.as_ref().filter(|present| present.id == link.id)
                {
                    effects.frame(present, frame);
                }
                landed
            }
            Err(failure) => {
                // The owner's own bytes need none, and nobody else may send any.
                tracing::info!(owner = %link.peer.name, %failure, "a tensor is not proven by its owner, and had from it alone");
                pull.unprovable = true;
                (pull.holders, pull.spares) = (Vec::new(), Vec::new());
                let landed = transfer.refused();
                if pull.relay.is_some() {
                    effects = effects.and(self.bring(number, link));
                }
                landed
            }
        };
        Ok(match landed {
            Landed::Whole(landing) => (effects.and(self.whole(&transfer, landing)), Vec::new()),
            Landed::Forged(forged) => (effects, forged),
            // No piece has come.
            Landed::More | Landed::Told(_) | Landed::Altered(..) => (effects, Vec::new()),
        })
    }

    /// The other end of a connection has what was asked of it as a holder.
    pub(in crate::peer) fn relay_opened(
        &mut self,
        number: u64,
        link: &Link,
        head: &Head,
    ) -> Result<Option<Effects>, Ended> {
        let answered = self.calls.get_mut(&number).filter(|call| call.sent_on == Some(link.id));
        let Some(call) = answered else { return Ok(None) };
        let Kind::Relay(relay) = &mut call.kind else { return Ok(None) };
        let wrong = FrameError::Malformed(PeerKind::Pull.into());
        if relay.opened || head.descriptor.layout.bytes() != relay.bytes() {
            return Err(wrong.into());
        }
        relay.opened = true;
        if call.withdrawn {
            return Ok(Some(self.over(number, false).1));
        }
        let mut effects = Effects { wake: true, ..Effects::default() };
        effects.over.push((call.deadline, number));
        call.deadline = relay.deadline();
        effects.expected.push((call.deadline, number, Arc::clone(&link.peer)));
        if let Some(lanes) = link.ways.lanes_of(relay.way) {
            lanes.want(relay.wanted(number));
        }
        Ok(Some(effects))
    }
}

impl PullCall {
    /// Lets the holder go. What is returned is to be done without locks.
    pub(in crate::peer) fn end_aid(&mut self) -> Option<crate::peer::calls::Finish> {
        let handle = self.relay.take()?.handle?;
        Some(Box::new(move || handle.cancel()))
    }

    /// The holder to be asked now, of those that the owner has named.
    fn next_holder(&mut self) -> Option<PeerKey> {
        let named = std::mem::take(&mut self.holders);
        let next = named.into_iter().find(|holder| !self.has_lost(holder));
        next.filter(|_| self.asks_on())
    }

    /// Returns whether a holder is among those that did not do.
    pub(super) fn has_lost(&self, holder: &PeerKey) -> bool {
        self.lost.iter().any(|lost| lost.peer == *holder)
    }

    /// Has the bytes brought by a holder, who is not the owner; `whole`: only if it has all of them.
    pub(super) fn wish(
        &mut self,
        number: u64,
        deadline: Instant,
        (owner, incarnation): (&Arc<Peer>, Incarnation),
        (holder, whole): (PeerKey, bool),
    ) -> Option<RelayOrder> {
        let pass = self.pass.filter(|_| !self.unprovable)?;
        let transfer = self.transfer(number, deadline)?;
        // Of what came before, from whomever, sums may never come.
        transfer.forget_sums();
        self.turns += 1;
        let asker = RelaySession::new(owner, number, self.turns, holder);
        self.relay = Some(RelayFetch { asker: Arc::clone(&asker), handle: None, whole });
        let (id, bytes, transport) = (self.id, self.bytes, self.transport);
        let encrypted = self.encrypted;
        let owner = PeerKey { name: owner.name.clone(), incarnation };
        Some(RelayOrder { asker, owner, id, bytes, pass, transfer, transport, encrypted, whole, deadline })
    }

    /// Returns whether it may have another holder.
    fn asks_on(&self) -> bool {
        // Those that refuse and are named again are not among the lost.
        lost::asks_on(&self.lost) && self.turns < LOST_MAX as u32
    }

    /// The owner says who has the bytes, and who else has all of them.
    pub(in crate::peer) fn hold(&mut self, holders: &[v1::Life], spares: &[v1::Life]) {
        let keys = |lives: &[v1::Life]| lives.iter().take(HOLDERS_MAX).filter_map(relay::key).collect();
        (self.holders, self.spares) = (keys(holders), keys(spares));
        // One that had let it go is getting it by now, the owner says.
        let named = &self.holders;
        let again = |lost: &LostHolder| lost.why == Some(HolderLost::Refused) && named.contains(&lost.peer);
        self.lost.retain(|lost| !again(lost));
    }

    /// Returns whether all bytes are here.
    pub(in crate::peer) fn is_whole(&self) -> bool {
        self.landing.is_some() && self.landed == self.bytes
    }

    /// The frame that asks the owner for the next hashes, where others have sent something, or may; one at a time on a connection.
    fn ask_proofs(&mut self, number: u64, link: u64) -> Option<Vec<u8>> {
        let has_others = self.turns > 0 || !self.spares.is_empty();
        if !has_others || self.unprovable || self.proofs_asked == Some(link) {
            return None;
        }
        let granules = self.transfer.as_ref()?.to_be_said()?;
        self.proofs_asked = Some(link);
        let count = (granules.end - granules.start) as u32;
        let asked = v1::PeerProofs { id: self.id, first: granules.start, count };
        Some(frame::encode(PeerKind::Proofs.into(), 0, number, &asked))
    }

    /// Returns whether the owner is asked for other holders on a connection: all of a tensor, on lanes, to be passed on
    /// here too. One of an earlier version proves nothing, and sends all of it.
    pub(in crate::peer) fn spreads(&self) -> bool {
        let on_lanes = matches!(self.way, Way::Lanes | Way::Quic);
        on_lanes && self.growth.is_some() && self.version >= PROOFS_SINCE
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tensorlane_memory::Block;
    use tensorlane_proto::{DType, Descriptor, Incarnation, Layout, Selection, Shape, Transport};

    use super::*;
    use crate::peer::calls::Call;
    use crate::peer::tests::world::{One, PASS, name, two};
    use crate::peer::transport::lanes::GRANULE;

    /// A pull of tensor 7 that was not asked for yet, and its block.
    fn pull_of(reader: &One) -> (Block, PullCall) {
        let (block, landing) = reader.landing(4 * GRANULE);
        let wanted = (7, Selection::All, 4 * GRANULE);
        (block, PullCall::new(wanted, Transport::Tcp, landing, None, Box::new(|_| {})))
    }

    #[test]
    fn what_came_without_its_sum_is_asked_of_the_holder_that_is_named_next() {
        let (_table, a, _b) = two();
        let peer = a.peers.shared.known_peer(&name("b")).unwrap();
        let mut state = peer.state.lock();
        let link = state.link.clone().unwrap();
        let (_block, mut pull) = pull_of(&a);
        (pull.pass, pull.way) = (Some(PASS), Way::Lanes);
        pull.holders = vec![PeerKey { name: name("c"), incarnation: Incarnation(1) }];
        let deadline = Instant::now() + Duration::from_secs(60);
        let transfer = pull.transfer(1, deadline).unwrap();
        transfer.write_unsummed_for_test();
        assert_eq!(transfer.untaken(), 3 * GRANULE);
        state.calls.insert(1, Call::new(Kind::Pull(Box::new(pull)), deadline, 1, None));
        let effects = state.bring(1, &link);
        assert_eq!(effects.relays.len(), 1, "the holder is to be asked");
        assert_eq!(transfer.untaken(), 4 * GRANULE);
        state.calls.clear();
    }

    #[test]
    fn a_holder_whose_connection_was_replaced_is_asked_once_more_and_is_not_lost() {
        let (_table, a, _b) = two();
        let peer = a.peers.shared.known_peer(&name("b")).unwrap();
        let mut state = peer.state.lock();
        let link = state.link.clone().unwrap();
        let (_block, mut pull) = pull_of(&a);
        (pull.pass, pull.way, pull.opened) = (Some(PASS), Way::Lanes, true);
        let holder = PeerKey { name: name("c"), incarnation: Incarnation(1) };
        pull.holders = vec![holder.clone()];
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut call = Call::new(Kind::Pull(Box::new(pull)), deadline, 1, None);
        call.sent_on = Some(link.id);
        state.calls.insert(1, call);
        let first = state.bring(1, &link).relays.remove(0).asker;
        let mut effects = state.relay_lost(&first, HolderLost::Replaced).unwrap();
        assert!(effects.send.is_none(), "the owner is not asked for another one");
        let second = effects.relays.remove(0).asker;
        assert_eq!(second.holder, holder);
        let effects = state.relay_lost(&second, HolderLost::Replaced).unwrap();
        assert!(effects.relays.is_empty() && effects.send.is_some(), "now it is");
        let Kind::Pull(pull) = &state.calls[&1].kind else { panic!("it is a pull") };
        assert_eq!(pull.lost, [LostHolder { peer: holder, why: Some(HolderLost::Replaced) }]);
        state.calls.clear();
    }

    #[test]
    fn what_a_holder_goes_on_with_is_to_be_proven_on_the_new_connection_with_the_owner_too() {
        let (_table, a, _b) = two();
        let peer = a.peers.shared.known_peer(&name("b")).unwrap();
        let mut state = peer.state.lock();
        let link = state.link.clone().unwrap();
        let (_block, mut pull) = pull_of(&a);
        (pull.pass, pull.way, pull.opened) = (Some(PASS), Way::Lanes, true);
        let layout = Layout::contiguous(DType::U8, Shape::new(&[4 * GRANULE]).unwrap()).unwrap();
        pull.head = Some(Head { descriptor: Descriptor::host(layout), crc32c: None, staged: false });
        let holder = PeerKey { name: name("c"), incarnation: Incarnation(1) };
        pull.holders = vec![holder.clone()];
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut call = Call::new(Kind::Pull(Box::new(pull)), deadline, 1, None);
        call.sent_on = Some(link.id);
        state.calls.insert(1, call);
        let frames = |effects: &Effects| effects.send.as_ref().map_or(0, |(_, frames)| frames.len());
        let first = state.bring(1, &link);
        assert_eq!((first.relays.len(), frames(&first)), (1, 1));
        let Some(Kind::Pull(pull)) = state.calls.get_mut(&1).map(|call| &mut call.kind) else { panic!() };
        // As if that had been on the connection before this one.
        (pull.holders, pull.proofs_asked) = (vec![holder], Some(link.id + 1));
        let second = state.bring(1, &link);
        assert_eq!((second.relays.len(), frames(&second)), (0, 1), "it goes on, and the proof is asked for");
        state.calls.clear();
    }

    #[test]
    fn what_is_asked_of_a_holder_ends_with_its_connection_and_says_whether_another_one_took_its_place() {
        for (is_present, expected) in [(true, HolderLost::Unreachable), (false, HolderLost::Replaced)] {
            let (_table, a, _b) = two();
            let peer = a.peers.shared.known_peer(&name("b")).unwrap();
            let mut state = peer.state.lock();
            let link = state.link.clone().unwrap();
            let (_block, landing) = a.landing(4 * GRANULE);
            let deadline = Instant::now() + Duration::from_secs(60);
            let holder = PeerKey { name: name("b"), incarnation: link.incarnation };
            let asker = RelaySession::new(&peer, 1, 1, holder.clone());
            let transfer = crate::peer::transport::lanes::Transfer::growing(1, landing, 0, deadline, None);
            let (bytes, transport) = (4 * GRANULE, Transport::Tcp);
            let (encrypted, whole) = (false, false);
            let wish = RelayOrder {
                asker,
                owner: holder,
                id: 7,
                bytes,
                pass: PASS,
                transfer,
                transport,
                encrypted,
                whole,
                deadline,
            };
            let (tell, told) = std::sync::mpsc::channel();
            let call = relay::RelayCall::for_test(wish, Box::new(move |why| tell.send(why).unwrap()));
            let mut call = Call::new(Kind::Relay(Box::new(call)), deadline, 9, None);
            call.sent_on = Some(link.id);
            state.calls.insert(9, call);
            state.on_link += 1;
            if !is_present {
                state.link = None;
            }
            let (_, effects) = state.link_ended(&link, "it broke", Instant::now());
            state.link = Some(Arc::clone(&link));
            drop(state);
            effects.finish.into_iter().for_each(|tell| tell());
            assert_eq!(told.try_recv(), Ok(expected));
        }
    }
}
