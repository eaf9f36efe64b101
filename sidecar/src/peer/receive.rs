//! Input of one connection: answers to our calls here, questions to `serving`. Runs on the reader thread.
//!
//! The bytes of a chunk are copied from the opened record into the landing, once. The landing is taken from its call for
//! as long as there are bytes to write and given back before the thread waits for the socket, so that a call can end at
//! any time.

use std::sync::Arc;

use bytes::Bytes;
use prost::{DecodeError, Message};
use tensorlane_memory::Landing;
use tensorlane_proto::encoded::{Alike, PulledMany};
use tensorlane_proto::frame::{self, FAILED, FrameError, Header, LAST, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::wire;

use super::calls::{Finish, Head, Kind, Place, SmallCall};
use super::channels;
use super::gpus;
use super::link::{Ended, Link};
use super::parse::{Body, Flow, Sink, decode};
use super::partial::RelayToken;
use super::paths::Travelled;
use super::pipe_calls;
use super::questions;
use super::relay;
use super::remote::Effects;
use super::serving;
use super::sets;
use super::shared::{Shared, count_in};
use super::transport::Way;

/// Target of the bytes of the present chunk.
enum Target {
    /// Into the landing of the call, from packed byte `at` on.
    Landing(Landing),
    /// Nowhere: nobody wants them any more.
    Nowhere,
    /// The landing is with its call, while we wait for the socket.
    Away,
}

struct InChunk {
    call: u64,
    at: u64,
    length: u64,
    last: bool,
    target: Target,
}

/// Takes the frames of one connection.
pub(super) struct Receiver<'a> {
    shared: &'a Arc<Shared>,
    link: &'a Arc<Link>,
    chunk: Option<InChunk>,
}

/// By a panic, too, the landing goes back to its call, which would never end without it.
impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        self.pause();
    }
}

fn malformed(header: Header) -> Ended {
    FrameError::Malformed(header.kind).into()
}

fn out_of_place(kind: PeerKind) -> Ended {
    FrameError::OutOfPlace(kind.into()).into()
}

/// Checks that all descriptors can be read. Most are like the one before, and what they say is looked at where it is
/// used.
fn check_descriptors(message: &PulledMany) -> Result<(), DecodeError> {
    let mut alike = Alike::default();
    let mut sent = message.tensors.iter().filter_map(|tensor| tensor.descriptor.clone());
    sent.try_for_each(|sent| alike.read(sent, |sent| v1::Descriptor::decode(&sent[..]).map(drop)))
}

impl<'a> Receiver<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, link: &'a Arc<Link>) -> Self {
        Self { shared, link, chunk: None }
    }

    /// Before the thread waits for the socket: the landing goes back to its call.
    pub(super) fn pause(&mut self) {
        let Some(chunk) = &mut self.chunk else { return };
        if let Target::Landing(landing) = std::mem::replace(&mut chunk.target, Target::Away) {
            let (call, at) = (chunk.call, chunk.at);
            let finish = self.give_back(call, landing, at);
            self.shared.perform(Effects::one(finish));
        }
    }

    fn give_back(&self, call: u64, landing: Landing, landed: u64) -> Option<Finish> {
        let mut state = self.link.peer.state.lock();
        // A call that is being written into stays in the table until its landing is back.
        match state.calls.get_mut(&call).map(|call| &mut call.kind) {
            Some(Kind::Pull(pull)) => pull.give_back(landing, landed),
            _ => None,
        }
    }

    /// Takes the landing again, if the call still wants it.
    fn take_landing(&self, call: u64) -> Target {
        let mut state = self.link.peer.state.lock();
        match state.answered(call, PeerKind::Pull, self.link.id).map(|call| &mut call.kind) {
            Some(Kind::Pull(pull)) => pull.landing.take().map_or(Target::Nowhere, Target::Landing),
            _ => Target::Nowhere,
        }
    }

    fn answer(&self, kind: PeerKind, header: Header, body: Body<'_>) -> Result<(), Ended> {
        if kind == PeerKind::Ping && !header.is_failed() {
            let effects = self.link.peer.state.lock().lives(header.call, self.link.id);
            self.shared.perform(effects);
            return Ok(());
        }
        if kind == PeerKind::Seek {
            return self.sought(header, &body);
        }
        if kind == PeerKind::Proofs {
            return self.proven(header, &body);
        }
        if kind == PeerKind::PipeCall {
            return pipe_calls::answered(self.link, header, &body);
        }
        let mut state = self.link.peer.state.lock();
        if kind == PeerKind::Redeem && !state.calls.contains_key(&header.call) {
            // It was asked again for the sake of its lease, and has its answer.
            return Ok(());
        }
        if state.answered(header.call, kind, self.link.id).is_none() {
            return Err(out_of_place(kind));
        }
        if header.is_failed() {
            let failure = wire::failure(decode(header, &body[..])?);
            let refused = state.refused_by_owner(header.call, &failure);
            if let Some(effects) = refused.or_else(|| state.not_lent(header.call, &failure)) {
                drop(state);
                self.shared.perform(effects);
                return Ok(());
            }
            let (call, mut effects) = state.over(header.call, false);
            drop(state);
            effects.finish.extend(call.and_then(|mut call| call.fail(failure)));
            self.shared.perform(effects);
            return Ok(());
        }
        drop(state);
        match kind {
            PeerKind::Pull => self.pull_head(header, &body),
            PeerKind::PullMany => self.pulled_many(header, body.into()),
            PeerKind::Inquire => self.inquired(header, &body),
            PeerKind::ChannelAttach => channels::attached(self.shared, self.link, header, &body),
            PeerKind::SetCall => sets::answered(self.shared, self.link, header, &body),
            PeerKind::Redeem => questions::redeemed(self.shared, self.link, header, &body),
            PeerKind::Watch => questions::watched(self.shared, self.link, header, &body),
            PeerKind::PipeConnect => pipe_calls::connected(self.shared, self.link, header, &body),
            _ => Err(out_of_place(kind)),
        }
    }

    /// The owner says more of a pull. Of one that is over it may come late.
    fn sought(&self, header: Header, body: &[u8]) -> Result<(), Ended> {
        let sought = match header.is_failed() {
            true => Err(wire::failure(decode(header, body)?)),
            false => Ok(decode(header, body)?),
        };
        let effects = self.link.peer.state.lock().sought(header.call, self.link, sought);
        self.shared.perform(effects);
        Ok(())
    }

    /// The owner says what granules of a pull hash to.
    fn proven(&self, header: Header, body: &[u8]) -> Result<(), Ended> {
        let proven = match header.is_failed() {
            true => Err(wire::failure(decode(header, body)?)),
            false => Ok(decode(header, body)?),
        };
        let (effects, forged) = self.link.peer.state.lock().proven(header.call, self.link, proven)?;
        self.shared.perform(effects);
        relay::forged(self.shared, forged);
        Ok(())
    }

    fn pull_head(&self, header: Header, body: &[u8]) -> Result<(), Ended> {
        let message: v1::PullHead = decode(header, body)?;
        let descriptor =
            message.descriptor.and_then(|d| wire::descriptor(d).ok()).ok_or_else(|| malformed(header))?;
        let head = Head { descriptor, crc32c: message.crc32c, staged: message.staged };
        let mut state = self.link.peer.state.lock();
        if state.is_map(header.call) {
            let place = message.place.map(|p| Place { segment: p.segment, offset: p.offset, bytes: p.bytes });
            self.shared.counters.pulls.add(Way::Shm.as_str());
            let effects = match message.gpu_allocation_bytes {
                0 => state.map_opened(header.call, self.link, head, place)?,
                bytes => state.map_opened_on_gpu(header.call, self.link, head, bytes)?,
            };
            drop(state);
            self.shared.perform(effects);
            self.link.ways.tend();
            return Ok(());
        }
        if let Some(effects) = state.relay_opened(header.call, self.link, &head)? {
            drop(state);
            self.shared.perform(effects);
            return Ok(());
        }
        let call = state.answered(header.call, PeerKind::Pull, self.link.id);
        let Some(Kind::Pull(pull)) = call.map(|call| &mut call.kind) else {
            return Err(out_of_place(PeerKind::Pull));
        };
        if pull.opened {
            return Err(out_of_place(PeerKind::Pull));
        }
        // Of the same incarnation and id as before, so of the same bytes; and it is of as many as were asked for.
        if pull.head.as_ref().is_some_and(|before| *before != head)
            || head.descriptor.layout.bytes() != pull.bytes
        {
            return Err(malformed(header));
        }
        pull.head = Some(head);
        pull.opened = true;
        // Who did not ask for holders has its reasons.
        if let Ok(pass) = RelayToken::try_from(&message.pass[..])
            && pull.spreads()
        {
            pull.pass = Some(pass);
            pull.hold(&message.holders, &message.spares);
            if let Some(growth) = &pull.growth {
                growth.admit(pass);
            }
        }
        let way = pull.way;
        if let Some(missed) = pull.missed.take() {
            self.shared.counters.fallbacks.add(missed.as_str());
        }
        self.shared.counters.pulls.add(way.as_str());
        if way == Way::Stream {
            return Ok(());
        }
        let effects = state.opened(header.call, self.link);
        drop(state);
        self.shared.perform(effects);
        if self.link.ways.tend().is_some() {
            self.shared.scheduler.wake();
        }
        Ok(())
    }

    /// A word about lanes.
    fn lanes(&self, kind: PeerKind, header: Header, body: &[u8]) -> Result<(), Ended> {
        let wrong = || out_of_place(kind);
        match kind {
            PeerKind::Lanes if header.call == 0 && header.flags == 0 => {
                let wanted: v1::Lanes = decode(header, body)?;
                let ways = &self.link.ways;
                let quic = wanted.way == i32::from(v1::Way::Quic);
                let lanes = if quic { ways.quic() } else { ways.lanes() };
                Ok(lanes.ok_or_else(wrong)?.wanted(self.shared, self.link, &wanted)?)
            }
            PeerKind::Sum if header.call != 0 && header.flags == 0 => {
                let lanes = self.link.ways.lanes().ok_or_else(wrong)?;
                Ok(lanes.sum(self.shared, self.link, header.call, body)?)
            }
            _ => Err(wrong()),
        }
    }

    /// The bytes of the tensors stay where they were collected, until they are landed.
    fn pulled_many(&self, header: Header, body: Bytes) -> Result<(), Ended> {
        let message: PulledMany = decode(header, body)?;
        check_descriptors(&message).map_err(|_| malformed(header))?;
        let mut state = self.link.peer.state.lock();
        match state.answered(header.call, PeerKind::PullMany, self.link.id).map(|call| &call.kind) {
            Some(Kind::Small(small)) if small.asked.ids.len() == message.tensors.len() => {}
            Some(_) => return Err(malformed(header)),
            None => return Err(out_of_place(PeerKind::PullMany)),
        }
        let (call, mut effects) = state.over(header.call, false);
        drop(state);
        self.count_in(message.tensors.iter().map(|tensor| tensor.data.len() as u64).sum());
        if let Some(Kind::Small(SmallCall { done: Some(done), .. })) = call.map(|call| call.kind) {
            effects.finish.push(Box::new(move || done(Ok(message.tensors))));
        }
        self.shared.perform(effects);
        Ok(())
    }

    fn inquired(&self, header: Header, body: &[u8]) -> Result<(), Ended> {
        let message: v1::Inquired = decode(header, body)?;
        let mut state = self.link.peer.state.lock();
        match state.answered(header.call, PeerKind::Inquire, self.link.id).map(|call| &call.kind) {
            Some(Kind::Inquire { question, .. }) if question.targets() == message.results.len() => {}
            Some(_) => return Err(malformed(header)),
            None => return Err(out_of_place(PeerKind::Inquire)),
        }
        let (call, mut effects) = state.over(header.call, false);
        drop(state);
        if let Some(Kind::Inquire { done: Some(done), .. }) = call.map(|call| call.kind) {
            effects.finish.push(Box::new(move || done(Ok(message))));
        }
        self.shared.perform(effects);
        Ok(())
    }

    fn count_in(&self, bytes: u64) {
        count_in(self.shared, self.link, bytes);
    }
}

impl Sink for Receiver<'_> {
    type Error = Ended;

    fn message(&mut self, kind: PeerKind, header: Header, body: Body<'_>) -> Result<Flow, Ended> {
        if header.is_last() || (header.is_failed() && !header.is_reply()) {
            return Err(malformed(header));
        }
        if kind == PeerKind::Hello && header.is_failed() {
            return Err(Ended::Refused(wire::failure(decode(header, &body[..])?)));
        }
        if !matches!(kind, PeerKind::Ping | PeerKind::Goodbye | PeerKind::Gpus) {
            self.link.was_used();
        }
        if header.is_reply() {
            return self.answer(kind, header, body).map(|()| Flow::Go);
        }
        match kind {
            PeerKind::Goodbye => {
                let v1::Goodbye { idle } = decode(header, &body[..])?;
                return Err(if idle { Ended::Yielded } else { Ended::Goodbye });
            }
            PeerKind::Ping => {
                let reply = frame::encode(PeerKind::Ping.into(), REPLY, header.call, &v1::Ping {});
                self.link.submit(reply);
            }
            PeerKind::Lanes | PeerKind::Sum => self.lanes(kind, header, &body)?,
            PeerKind::ChannelMessage | PeerKind::ChannelCredit | PeerKind::ChannelEnd => {
                channels::frame(self.link, kind, header, body)?;
            }
            PeerKind::PipeCall => pipe_calls::call(self.shared, self.link, header, body)?,
            PeerKind::Gpus => gpus::heard(self.link, header, &body)?,
            PeerKind::Hello | PeerKind::Chunk | PeerKind::LaneHello | PeerKind::Ask => {
                return Err(out_of_place(kind));
            }
            _ => serving::question(self.shared, self.link, kind, header, &body)?,
        }
        Ok(Flow::Go)
    }

    fn chunk(&mut self, header: Header, offset: u64, length: usize) -> Result<(), Ended> {
        if header.flags & (REPLY | FAILED) != 0 {
            return Err(malformed(header));
        }
        let last = header.flags & LAST != 0;
        let mut state = self.link.peer.state.lock();
        let call = state.answered(header.call, PeerKind::Pull, self.link.id);
        let Some(Kind::Pull(pull)) = call.map(|call| &mut call.kind) else {
            return Err(out_of_place(PeerKind::Chunk));
        };
        if !pull.opened || pull.way != Way::Stream {
            return Err(out_of_place(PeerKind::Chunk));
        }
        // In order, without overlaps, with those gaps alone that were asked for, and the last one exactly at the end.
        let most = pull.ahead.gap_end(pull.bytes);
        let end = offset.checked_add(length as u64).filter(|end| *end <= most && offset == pull.landed);
        let end = end.ok_or_else(|| malformed(header))?;
        if last != pull.ahead.is_end(end, pull.bytes) || (length == 0 && !last) {
            return Err(malformed(header));
        }
        let target = pull.landing.take().map_or(Target::Nowhere, Target::Landing);
        drop(state);
        self.chunk = Some(InChunk { call: header.call, at: offset, length: length as u64, last, target });
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let away = self.chunk.as_ref().filter(|chunk| matches!(chunk.target, Target::Away));
        let taken = away.map(|chunk| self.take_landing(chunk.call));
        let Some(chunk) = &mut self.chunk else { return Err(out_of_place(PeerKind::Chunk)) };
        if let Some(taken) = taken {
            chunk.target = taken;
        }
        self.shared.config.threads.point("chunk");
        let end = chunk.at + bytes.len() as u64;
        if let Target::Landing(landing) = &mut chunk.target {
            let room = landing.chunk_mut(chunk.at..end);
            room.expect("a landing is as long as its pull, and a chunk ends inside it")
                .copy_from_slice(bytes);
        }
        chunk.at = end;
        Ok(())
    }

    fn chunk_end(&mut self) -> Result<Flow, Ended> {
        let Some(mut chunk) = self.chunk.take() else { return Ok(Flow::Go) };
        let landing = match std::mem::replace(&mut chunk.target, Target::Away) {
            Target::Landing(landing) => Some(landing),
            _ => None,
        };
        self.count_in(chunk.length);
        let mut effects = Effects::default();
        let mut state = self.link.peer.state.lock();
        if let Some(Kind::Pull(pull)) =
            state.answered(chunk.call, PeerKind::Pull, self.link.id).map(|call| &mut call.kind)
        {
            pull.paths.came(Way::Stream, Travelled::on_none(chunk.length));
            match landing {
                Some(landing) => effects.finish.extend(pull.give_back(landing, chunk.at)),
                None => pull.has_come(chunk.at),
            }
        }
        if chunk.last {
            let (call, more) = state.over(chunk.call, true);
            effects = effects.and(more);
            effects.finish.extend(call.and_then(super::calls::Call::pulled));
        }
        drop(state);
        self.shared.perform(effects);
        Ok(Flow::Go)
    }
}
