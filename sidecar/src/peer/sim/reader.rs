//! Questions of a simulated peer to others, and its use of the answers: `receive` without its threads.

use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use tensorlane_proto::frame::{Header, LAST, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::Transport;
use tensorlane_proto::{Selection, wire};

use super::node::{Get, Node};
use super::wire::End;
use super::{Dice, Seen};
use crate::peer::calls::{Call, Head, Kind, PullCall};
use crate::peer::remote::Effects;
use crate::peer::tests::world::block;

impl Node {
    /// Pulls a tensor of another peer; its number as a call.
    pub(super) fn pull(&mut self, get: Get, transport: Transport, deadline: Instant) -> (u64, Effects<End>) {
        let number = self.next_call;
        self.next_call += 1;
        let landing = block(&self.arena, get.put.bytes).landing().expect("a new block is not written yet");
        let (outcomes, bytes) = (Arc::clone(&self.outcomes), get.put.bytes);
        let done = Box::new(move |outcome: Result<crate::peer::Pulled, crate::peer::PullFailed>| {
            let told = match outcome {
                Ok(mut pulled) => Ok(pulled.landing.chunk_mut(0..bytes).expect("all of it").to_vec()),
                Err(failed) => Err(failed.failure),
            };
            outcomes.lock().push((number, told));
        });
        let wanted = (get.put.id.0, Selection::All, bytes);
        let pull = PullCall::new(wanted, transport, landing, None, done);
        let (owner, life) = (get.put.owner, get.put.life);
        self.gets.insert(number, get);
        let call = Call::new(Kind::Pull(Box::new(pull)), deadline, number, Some(life));
        (number, self.other(owner).state.place(call))
    }

    /// An answer came.
    pub(super) fn answer(
        &mut self,
        other: usize,
        wire: u64,
        (kind, header): (PeerKind, Header),
        body: &[u8],
        seen: &mut Seen,
    ) -> Effects<End> {
        let state = &mut self.other(other).state;
        if kind == PeerKind::Ping {
            seen.doubted += 1;
            return state.lives(header.call, wire);
        }
        let Some(call) = state.answered(header.call, kind, wire) else {
            panic!("an answer to call {} on wire {wire}, which is not on it", header.call)
        };
        if header.is_failed() {
            let failure = wire::failure(v1::Failure::decode(body).expect("a failure"));
            let (call, mut effects) = state.over(header.call, false);
            effects.finish.extend(call.and_then(|mut call| call.fail(failure)));
            return effects;
        }
        let Kind::Pull(pull) = &mut call.kind else { panic!("only pulls are asked here") };
        assert!(!pull.opened, "a second head of call {} on one connection", header.call);
        let message = v1::PullHead::decode(body).expect("a head");
        let descriptor = message.descriptor.and_then(|d| wire::descriptor(d).ok()).expect("a descriptor");
        assert_eq!(descriptor.layout.bytes(), pull.bytes);
        let head = Head { descriptor, crc32c: message.crc32c, staged: message.staged };
        assert!(pull.head.as_ref().is_none_or(|before| *before == head), "another head than before");
        (pull.head, pull.opened) = (Some(head), true);
        Effects::default()
    }

    /// A chunk came.
    pub(super) fn chunk(
        &mut self,
        other: usize,
        wire: u64,
        header: Header,
        offset: u64,
        bytes: &[u8],
    ) -> Effects<End> {
        let state = &mut self.other(other).state;
        let last = header.flags & LAST != 0;
        let Some(call) = state.answered(header.call, PeerKind::Pull, wire) else {
            panic!("a chunk of call {} on wire {wire}, which is not on it", header.call)
        };
        let Kind::Pull(pull) = &mut call.kind else { panic!("only pulls are asked here") };
        assert!(pull.opened, "a chunk before the head");
        assert_eq!(offset, pull.landed, "bytes that have landed are sent again, or some are left out");
        let end = offset + bytes.len() as u64;
        assert_eq!(last, end == pull.bytes, "the last chunk ends at {end} of {}", pull.bytes);
        let mut effects = Effects::default();
        match pull.landing.take() {
            Some(mut landing) => {
                landing.chunk_mut(offset..end).expect("inside the pull").copy_from_slice(bytes);
                effects.finish.extend(pull.give_back(landing, end));
            }
            None => pull.landed = end,
        }
        if last {
            let (call, more) = state.over(header.call, true);
            effects = effects.and(more);
            effects.finish.extend(call.and_then(Call::pulled));
        }
        effects
    }

    /// The number of a call of its own that is not answered.
    pub(super) fn some_get(&self, dice: &mut Dice) -> Option<u64> {
        let numbers: Vec<u64> = self.gets.keys().copied().collect();
        dice.pick(&numbers)
    }
}
