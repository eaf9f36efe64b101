//! Pulls that come from other holders than the owner: which of them is asked, and when the next one is.

use std::sync::Arc;

use tensorlane_proto::Failure;
use tensorlane_proto::frame::{self, HOLDERS_MAX, LOST_MAX, PeerKind};
use tensorlane_proto::generated as v1;

use super::{State, Todo};
use crate::peer::aid::{self, Aid, Asker, HOLDERS_SINCE, Wish};
use crate::peer::api::PeerKey;
use crate::peer::calls::{Head, Kind, PullCall};
use crate::peer::link::{Ended, Link};
use crate::peer::peers::CallHandle;
use crate::peer::transport::Way;

impl State {
    /// The head of a pull is here, or its holder is lost and the owner has said who else there is: has its bytes brought by
    /// the next holder, or by the owner.
    pub(super) fn bring(&mut self, number: u64, link: &Link) -> Todo {
        let mut todo = Todo { wake: true, ..Todo::default() };
        let Some(call) = self.calls.get_mut(&number) else { return todo };
        let deadline = call.deadline;
        let Kind::Pull(pull) = &mut call.kind else { return todo };
        if pull.aid.is_some() {
            // The connection with the owner is another one; the holder goes on.
            return todo;
        }
        let lost = |holder: &PeerKey| pull.lost.contains(holder);
        let next = pull.holders.drain(..).find(|holder| !lost(holder));
        let wish = next.zip(pull.pass).and_then(|(holder, pass)| {
            let transfer = pull.transfer(number, deadline)?;
            pull.turns += 1;
            let asker = Asker::new(&link.peer, number, pull.turns, holder);
            pull.aid = Some(Aid { asker: Arc::clone(&asker), handle: None });
            let (id, bytes, transport) = (pull.id, pull.bytes, pull.transport);
            let encrypted = !link.ways.is_plain(pull.way);
            let owner = link.key();
            Some(Wish { asker, owner, id, bytes, pass, transfer, transport, encrypted, deadline })
        });
        let Some(wish) = wish else {
            if let Some(way) = link.ways.of(pull.way) {
                way.bring(number, deadline, pull);
            }
            return todo;
        };
        if let Some(frame) = pull.ask_proof(number, link.id)
            && let Some(present) = self.link.as_ref().filter(|present| present.id == link.id)
        {
            todo.frame(present, frame);
        }
        todo.aids.push(wish);
        todo
    }

    /// A holder was asked; whether it is still the one that is wanted.
    pub(in crate::peer) fn aided(&mut self, asker: &Arc<Asker>, handle: CallHandle) -> bool {
        let Some(Kind::Pull(pull)) = self.calls.get_mut(&asker.call).map(|call| &mut call.kind) else {
            return false;
        };
        match &mut pull.aid {
            Some(aid) if Arc::ptr_eq(&aid.asker, asker) => {
                aid.handle = Some(handle);
                true
            }
            _ => false,
        }
    }

    /// A holder does not do. None where it was let go before.
    pub(in crate::peer) fn aid_lost(&mut self, asker: &Asker) -> Option<Todo> {
        let call = self.calls.get_mut(&asker.call)?;
        let (sent_on, withdrawn) = (call.sent_on, call.withdrawn);
        let Kind::Pull(pull) = &mut call.kind else { return None };
        if pull.aid.as_ref().is_none_or(|aid| aid.asker.turn != asker.turn) {
            return None;
        }
        let mut todo = Todo::one(pull.end_aid());
        if let Some(transfer) = &pull.transfer {
            // Of what came from it, sums may never come.
            transfer.forget_sums();
        }
        if pull.lost.len() < LOST_MAX {
            pull.lost.push(asker.holder.clone());
        }
        let present = self.link.clone().filter(|link| sent_on == Some(link.id) && pull.opened && !withdrawn);
        // Else the next head says who there is.
        let Some(link) = present else { return Some(todo) };
        if pull.lost.len() < LOST_MAX {
            pull.seeking = true;
            let lost = pull.lost.iter().map(aid::life).collect();
            let seek = v1::Seek { id: pull.id, lost, proof: false };
            todo.frame(&link, frame::encode(PeerKind::Seek.into(), 0, asker.call, &seek));
            return Some(todo);
        }
        Some(todo.and(self.bring(asker.call, &link)))
    }

    /// The owner has answered a Seek, or failed to prove the bytes.
    pub(in crate::peer) fn sought(
        &mut self,
        number: u64,
        link: &Link,
        sought: Result<v1::Sought, Failure>,
    ) -> Todo {
        let call = self.calls.get_mut(&number).filter(|call| call.sent_on == Some(link.id));
        let Some(Kind::Pull(pull)) = call.map(|call| &mut call.kind) else { return Todo::default() };
        let v1::Sought { holders, crc32c } = match sought {
            Ok(sought) => sought,
            Err(failure) => return self.withdraw(number, failure),
        };
        if crc32c.is_some() {
            pull.proof = crc32c;
            return if pull.is_whole() { self.finish_whole(number) } else { Todo::default() };
        }
        if !std::mem::take(&mut pull.seeking) || pull.is_whole() {
            return Todo::default();
        }
        pull.hold(&holders);
        self.bring(number, link)
    }

    /// Whether the owner has to say what the bytes of a pull sum to.
    pub(in crate::peer) fn is_unproven(&self, number: u64) -> bool {
        let call = self.calls.get(&number).map(|call| &call.kind);
        matches!(call, Some(Kind::Pull(pull)) if pull.is_whole() && pull.is_unproven())
    }

    /// The other end of a connection has what was asked of it as a holder.
    pub(in crate::peer) fn aid_opened(
        &mut self,
        number: u64,
        link: &Link,
        head: &Head,
    ) -> Result<Option<Todo>, Ended> {
        let answered = self.calls.get_mut(&number).filter(|call| call.sent_on == Some(link.id));
        let Some(call) = answered else { return Ok(None) };
        let Kind::Aid(aid) = &mut call.kind else { return Ok(None) };
        let wrong = frame::FrameError::Malformed(PeerKind::Pull.into());
        if aid.opened || head.descriptor.layout.bytes() != aid.bytes() {
            return Err(wrong.into());
        }
        aid.opened = true;
        if call.withdrawn {
            return Ok(Some(self.over(number, false).1));
        }
        let mut todo = Todo { wake: true, ..Todo::default() };
        todo.over.push((call.deadline, number));
        call.deadline = aid.deadline();
        todo.expected.push((call.deadline, number, Arc::clone(&link.peer)));
        if let Some(lanes) = link.ways.lanes_of(aid.way) {
            lanes.want(aid.wanted(number));
        }
        Ok(Some(todo))
    }
}

impl PullCall {
    /// Lets the holder go. What is returned is to be done without locks.
    pub(in crate::peer) fn end_aid(&mut self) -> Option<crate::peer::calls::Finish> {
        let handle = self.aid.take()?.handle?;
        Some(Box::new(move || handle.cancel()))
    }

    /// The owner says who has the bytes.
    pub(in crate::peer) fn hold(&mut self, holders: &[v1::Life]) {
        self.holders = holders.iter().take(HOLDERS_MAX).filter_map(aid::key).collect();
    }

    /// Whether all bytes are here.
    pub(in crate::peer) fn is_whole(&self) -> bool {
        self.landing.is_some() && self.landed == self.bytes
    }

    /// Whether bytes came from somebody who is not believed, and the owner has not said what they must sum to.
    pub(in crate::peer) fn is_unproven(&self) -> bool {
        let summed = self.head.as_ref().is_some_and(|head| head.crc32c.is_some());
        !summed && self.proof.is_none() && self.paths.senders().are_others()
    }

    /// The frame that asks the owner for the checksum, where it has not been asked for on this connection.
    pub(in crate::peer) fn ask_proof(&mut self, number: u64, link: u64) -> Option<Vec<u8>> {
        let summed = self.head.as_ref().is_none_or(|head| head.crc32c.is_some());
        if summed || self.proof.is_some() || self.proof_asked == Some(link) {
            return None;
        }
        self.proof_asked = Some(link);
        let seek = v1::Seek { id: self.id, lost: Vec::new(), proof: true };
        Some(frame::encode(PeerKind::Seek.into(), 0, number, &seek))
    }

    /// Whether the owner is asked for other holders on a connection: all of a tensor, on lanes, to be passed on here too.
    pub(in crate::peer) fn spreads(&self) -> bool {
        let on_lanes = matches!(self.way, Way::Lanes | Way::Quic);
        on_lanes && self.growth.is_some() && self.version >= HOLDERS_SINCE
    }
}
