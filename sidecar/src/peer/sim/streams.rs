//! Channels between simulated peers: their writers, attachments over one connection after the other, and readers. Both ends are those
//! of `exchange/channels`; here is who says what to whom, as `peer/channels` does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;
use tensorlane_memory::ring::Policy;
use tensorlane_proto::frame::{self, FAILED, Header, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Incarnation, Reason, wire};

use super::node::name;
use super::owner::Asker;
use super::world::{GRACE, Happening, MS, World};
use crate::exchange::{OwnedChannels, ReadStep, SimReplica, ToReader};
use crate::peer::PeerKey;
use crate::peer::calls::{Call, Kind};
use crate::peer::channels::{AttachDone, AttachedThere, ChannelLine};

/// Channels that one life writes at a time, and readers that it has.
const CHANNELS: usize = 2;
const READERS: usize = 3;

/// Outcomes of attaches that `done` was told.
type AttachOutcomes = Arc<Mutex<Vec<(u64, Result<v1::PeerChannelAttached, Failure>)>>>;

/// Channels of one life: its own, and those that it reads.
#[derive(Default)]
pub(super) struct Streams {
    pub(super) owned: OwnedChannels,
    /// Attachments of others with their turns, by connection and call.
    sources: BTreeMap<(u64, u64), (u64, u64)>,
    /// Connection and call of the present turn of an attachment, with that turn.
    lines: BTreeMap<u64, (u64, u64, u64)>,
    readers: BTreeMap<u64, Reading>,
    last_reader: u64,
    /// Attaches without an outcome: the owner, and the reader that goes on, unless a new one begins.
    attaching: BTreeMap<u64, (usize, Option<u64>)>,
    outcomes: AttachOutcomes,
    /// Connections on which answers came.
    answered: BTreeMap<u64, u64>,
}

/// Reader of a channel of another peer.
struct Reading {
    owner: usize,
    /// The life of the owner.
    life: Incarnation,
    /// Connection and call on which messages come; none while it waits, and once it has ended.
    line: Option<(u64, u64)>,
    replica: SimReplica,
}

impl Streams {
    /// Returns whether a call attaches, and has no outcome.
    pub(super) fn is_attaching(&self, call: u64) -> bool {
        self.attaching.contains_key(&call)
    }

    /// Checks that nothing is left.
    pub(super) fn assert_empty(&self) {
        self.owned.assert_empty();
        assert_eq!((self.readers.len(), self.attaching.len()), (0, 0), "readers and attaches are left");
    }
}

impl World {
    /// Sends a frame of a peer on a connection.
    pub(super) fn say(
        &mut self,
        node: usize,
        wire: u64,
        (kind, flags, call): (PeerKind, u16, u64),
        message: &impl Message,
    ) {
        let side = self.wires[&wire].side_of(node);
        self.send(wire, side, &frame::encode(kind.into(), flags, call, message));
    }

    /// The life at the other end of a connection.
    pub(super) fn life_beyond(&self, node: usize, wire: u64) -> Incarnation {
        let wire = &self.wires[&wire];
        wire.sides[1 - wire.side_of(node)].life
    }

    /// Sessions of a peer write, end, attach to and leave channels.
    pub(super) fn stream_act(&mut self, node: usize) {
        let open = self.nodes[node].streams.owned.open();
        if self.ending {
            open.into_iter()
                .for_each(|channel| self.end_channel(node, channel, v1::PeerChannelOutcome::Finished));
            return;
        }
        match self.dice.roll(100) {
            0..12 if open.len() < CHANNELS => self.create_channel(node),
            12..62 => {
                if let Some(channel) = self.dice.pick(&open) {
                    self.write_to(node, channel);
                }
            }
            62..82 if self.nodes[node].streams.readers.len() < READERS => self.attach_somewhere(node),
            82..87 => self.leave_one(node),
            87..91 => {
                let finished = !self.dice.one_in(3);
                let outcome =
                    if finished { v1::PeerChannelOutcome::Finished } else { v1::PeerChannelOutcome::Lost };
                if let Some(channel) = self.dice.pick(&open) {
                    self.end_channel(node, channel, outcome);
                }
            }
            _ => {}
        }
        self.soon(40 * MS, Happening::Stream { node });
    }

    fn create_channel(&mut self, node: usize) {
        let policy = self.dice.pick(&[Policy::Block, Policy::Block, Policy::DropOldest, Policy::Latest]);
        let (policy, slots) = (policy.unwrap_or_default(), 2 + self.dice.roll(5) as u32);
        let called = ["c/1", "c/2"][self.dice.below(2)];
        self.written.channels += 1;
        let epoch = self.written.channels;
        // Where the name is taken there is one more of it already.
        let _ = self.nodes[node].streams.owned.create(epoch, called, policy, slots);
    }

    fn write_to(&mut self, node: usize, channel: u64) {
        for _ in 0..1 + self.dice.roll(3) {
            if !self.nodes[node].streams.owned.write(channel) {
                self.seen.held_up += 1;
                break;
            }
        }
        self.pump_channel(node, channel);
    }

    fn end_channel(&mut self, node: usize, channel: u64, outcome: v1::PeerChannelOutcome) {
        let (epoch, written) = self.nodes[node].streams.owned.end(channel, outcome);
        if outcome == v1::PeerChannelOutcome::Finished {
            self.written.finished.insert(epoch, written);
        }
        self.pump_channel(node, channel);
    }

    fn pump_channel(&mut self, node: usize, channel: u64) {
        let relays = self.nodes[node].streams.owned.relays_of(channel);
        relays.into_iter().for_each(|attachment| self.pump(node, attachment));
    }

    /// Sends what a reading peer has room for.
    fn pump(&mut self, node: usize, attachment: u64) {
        let until = self.instant() + Duration::from_micros(GRACE);
        let streams = &mut self.nodes[node].streams;
        let Some((wire, call, turn)) = streams.lines.get(&attachment).copied() else { return };
        for frame in streams.owned.pump(attachment, turn, until, &mut self.dice) {
            match frame {
                ToReader::Message(message) => {
                    self.say(node, wire, (PeerKind::ChannelMessage, 0, call), &message);
                }
                ToReader::End(end) => self.say(node, wire, (PeerKind::ChannelEnd, 0, call), &end),
            }
        }
    }

    fn attach_somewhere(&mut self, node: usize) {
        let owner = self.other_than(node);
        let message = v1::PeerChannelAttach {
            name: ["c/1", "c/2"][self.dice.below(2)].to_owned(),
            from: self.dice.roll(2) as i32,
            takes_gaps: true,
            resumes: true,
            ..Default::default()
        };
        let within = 50 * MS + self.dice.roll(1000 * MS);
        self.begin_attach(node, owner, None, message, within);
    }

    /// A peer other than one.
    pub(super) fn other_than(&mut self, node: usize) -> usize {
        let count = self.nodes.len();
        (node + 1 + self.dice.below(count - 1)) % count
    }

    /// Asks an owner to attach us, or to go on with a reader.
    fn begin_attach(
        &mut self,
        node: usize,
        owner: usize,
        reader: Option<u64>,
        message: v1::PeerChannelAttach,
        within: u64,
    ) {
        let deadline = self.instant() + Duration::from_micros(within);
        let here = &mut self.nodes[node];
        let (number, life, told) = (here.next_call, here.life, Arc::clone(&here.streams.outcomes));
        here.next_call += 1;
        let done: AttachDone = Box::new(move |outcome: Result<AttachedThere, Failure>| {
            told.lock().push((number, outcome.map(|there| there.message.clone())));
        });
        let expected =
            reader.and_then(|reader| here.streams.readers.get(&reader)).map(|reading| reading.life);
        here.streams.attaching.insert(number, (owner, reader));
        let call = Call::new(Kind::Channel { message, done: Some(done) }, deadline, number, expected);
        let effects = here.other(owner).state.place(call);
        self.at(self.now + within, Happening::Deadline { node, life, owner, call: number });
        self.perform(node, effects);
    }

    /// Tells the outcomes of attaches.
    pub(super) fn tell_attached(&mut self, node: usize) {
        let told = std::mem::take(&mut *self.nodes[node].streams.outcomes.lock());
        for (call, outcome) in told {
            self.attached(node, call, outcome);
        }
    }

    fn attached(&mut self, node: usize, call: u64, outcome: Result<v1::PeerChannelAttached, Failure>) {
        let streams = &mut self.nodes[node].streams;
        let (owner, reader) = streams.attaching.remove(&call).expect("an outcome is told once");
        let wire = streams.answered.remove(&call);
        let message = match outcome {
            Ok(message) => message,
            Err(failure) => return self.not_attached(node, reader, &failure),
        };
        let wire = wire.expect("an answer came on a connection");
        let Some(reader) = reader else { return self.begin_to_read(node, owner, (wire, call), &message) };
        let Some(reading) = self.nodes[node].streams.readers.get_mut(&reader) else {
            // Its reader has left meanwhile.
            return self.leave(node, wire, call);
        };
        reading.line = Some((wire, call));
        let credit = reading.replica.go_on();
        self.seen.channels_resumed += 1;
        self.say(node, wire, (PeerKind::ChannelCredit, 0, call), &credit);
    }

    fn begin_to_read(
        &mut self,
        node: usize,
        owner: usize,
        line: (u64, u64),
        message: &v1::PeerChannelAttached,
    ) {
        let life = self.life_beyond(node, line.0);
        let (replica, credit) = SimReplica::new(message);
        let streams = &mut self.nodes[node].streams;
        streams.last_reader += 1;
        let reader = streams.last_reader;
        streams.readers.insert(reader, Reading { owner, life, line: Some(line), replica });
        self.say(node, line.0, (PeerKind::ChannelCredit, 0, line.1), &credit);
        self.next_read(node, reader, 20 * MS);
    }

    fn not_attached(&mut self, node: usize, reader: Option<u64>, failure: &Failure) {
        use Reason::{
            Cancelled, ChannelEnded, DeadlineExceeded, LimitExceeded, NotFound, OwnerLost, PeerUnreachable,
        };
        let is_over = matches!(
            failure.reason,
            Cancelled | ChannelEnded | DeadlineExceeded | OwnerLost | PeerUnreachable
        );
        let is_refused = reader.is_none() && matches!(failure.reason, LimitExceeded | NotFound);
        assert!(is_over || is_refused, "an attach ended with {failure}");
        let streams = &mut self.nodes[node].streams;
        if let Some(reading) = reader.and_then(|reader| streams.readers.get_mut(&reader)) {
            reading.replica.end(false);
        }
    }

    /// Says that nobody reads.
    fn leave(&mut self, node: usize, wire: u64, call: u64) {
        let left = v1::PeerChannelEnd { outcome: v1::PeerChannelOutcome::Left.into(), written: 0 };
        self.say(node, wire, (PeerKind::ChannelEnd, 0, call), &left);
    }

    fn leave_one(&mut self, node: usize) {
        let readers: Vec<u64> = self.nodes[node].streams.readers.keys().copied().collect();
        let Some(reader) = self.dice.pick(&readers) else { return };
        let reading = self.nodes[node].streams.readers.remove(&reader).expect("it was there");
        if let Some((wire, call)) = reading.line {
            self.leave(node, wire, call);
        }
    }

    fn next_read(&mut self, node: usize, reader: u64, within: u64) {
        let life = self.nodes[node].life;
        self.soon(within, Happening::Consume { node, life, reader });
    }

    /// A reader reads on.
    pub(super) fn consume(&mut self, node: usize, life: Incarnation, reader: u64) {
        if self.nodes[node].life != life {
            return;
        }
        let streams = &mut self.nodes[node].streams;
        let Some(reading) = streams.readers.get_mut(&reader) else { return };
        match reading.replica.read() {
            ReadStep::Message(credit) => {
                let line = reading.line;
                self.seen.messages_read += 1;
                if let Some((credit, (wire, call))) = credit.zip(line) {
                    self.say(node, wire, (PeerKind::ChannelCredit, 0, call), &credit);
                }
                self.next_read(node, reader, 20 * MS);
            }
            ReadStep::Nothing => self.next_read(node, reader, 50 * MS),
            ReadStep::Over => {
                let reading = streams.readers.remove(&reader).expect("it was there");
                let written = self.written.finished.get(&reading.replica.epoch()).copied();
                let finished = reading.replica.over(written);
                self.seen.channels_finished += u64::from(finished);
                self.seen.channels_lost += u64::from(!finished);
            }
        }
    }

    /// A frame of channels came.
    pub(super) fn stream_frame(
        &mut self,
        node: usize,
        from: Asker,
        (kind, header): (PeerKind, Header),
        body: &[u8],
    ) {
        match kind {
            PeerKind::ChannelAttach if header.is_reply() => self.stream_answer(node, from, header, body),
            PeerKind::ChannelAttach => self.serve_attach(node, from, header.call, body),
            PeerKind::ChannelMessage => {
                let message = v1::PeerChannelMessage::decode(body).expect("a message of a channel");
                let Some(reading) = self.reading(node, from.wire, header.call) else { return };
                if let Some(credit) = reading.replica.message(&message) {
                    self.say(node, from.wire, (PeerKind::ChannelCredit, 0, header.call), &credit);
                }
            }
            PeerKind::ChannelCredit => {
                let credit = v1::PeerChannelCredit::decode(body).expect("a credit of a channel");
                let streams = &mut self.nodes[node].streams;
                let source = streams.sources.get(&(from.wire, header.call)).copied();
                if let Some((attachment, turn)) = source {
                    streams.owned.credit(attachment, turn, &credit);
                    self.pump(node, attachment);
                }
            }
            _ => {
                let end = v1::PeerChannelEnd::decode(body).expect("an end of a channel");
                self.channel_ended(node, from.wire, header.call, &end);
            }
        }
    }

    fn reading(&mut self, node: usize, wire: u64, call: u64) -> Option<&mut Reading> {
        let mut readers = self.nodes[node].streams.readers.values_mut();
        readers.find(|reading| reading.line == Some((wire, call)))
    }

    fn channel_ended(&mut self, node: usize, wire: u64, call: u64, end: &v1::PeerChannelEnd) {
        if end.outcome() == v1::PeerChannelOutcome::Left {
            let streams = &mut self.nodes[node].streams;
            if let Some((attachment, turn)) = streams.sources.remove(&(wire, call)) {
                streams.owned.left(attachment, turn);
            }
            return;
        }
        let Some(reading) = self.reading(node, wire, call) else { return };
        reading.line = None;
        reading.replica.end(end.outcome() == v1::PeerChannelOutcome::Finished);
        self.leave(node, wire, call);
    }

    fn stream_answer(&mut self, node: usize, from: Asker, header: Header, body: &[u8]) {
        let (call, wire) = (header.call, from.wire);
        let here = &mut self.nodes[node];
        let state = &mut here.other(from.peer).state;
        let asked = state.answered(call, PeerKind::ChannelAttach, wire);
        assert!(asked.is_some(), "an answer to attach {call} on wire {wire}, which is not on it");
        let (asked, mut effects) = state.over(call, false);
        if header.is_failed() {
            let failure = wire::failure(v1::Failure::decode(body).expect("a failure"));
            effects.finish.extend(asked.and_then(|mut asked| asked.fail(failure)));
            return self.perform(node, effects);
        }
        match asked.map(|asked| asked.kind) {
            Some(Kind::Channel { done: Some(done), .. }) => {
                let message = v1::PeerChannelAttached::decode(body).expect("an answer to an attach");
                here.streams.answered.insert(call, wire);
                let there = AttachedThere { message, line: ChannelLine::to_nobody() };
                effects.finish.push(Box::new(move || done(Ok(there))));
            }
            // Withdrawn meanwhile.
            _ => self.leave(node, wire, call),
        }
        self.perform(node, effects);
    }

    fn serve_attach(&mut self, node: usize, from: Asker, call: u64, body: &[u8]) {
        let asked = v1::PeerChannelAttach::decode(body).expect("an attach");
        let (key, now) = (PeerKey { name: name(from.peer), incarnation: from.life }, self.instant());
        let streams = &mut self.nodes[node].streams;
        match streams.owned.attach(&key, &asked, now) {
            Ok((message, turn)) => {
                streams.sources.insert((from.wire, call), (message.attachment, turn));
                streams.lines.insert(message.attachment, (from.wire, call, turn));
                self.say(node, from.wire, (PeerKind::ChannelAttach, REPLY, call), &message);
            }
            Err(failure) => {
                let failure = v1::Failure::from(&failure);
                self.say(node, from.wire, (PeerKind::ChannelAttach, REPLY | FAILED, call), &failure);
            }
        }
    }

    /// A connection has ended: attachments wait for another one, and readers ask for it.
    pub(super) fn streams_lost(&mut self, node: usize, wire: u64) {
        let until = self.instant() + Duration::from_micros(GRACE);
        let streams = &mut self.nodes[node].streams;
        let on_it = |of: &(u64, u64)| of.0 == wire;
        let sources: Vec<(u64, u64)> = streams.sources.keys().copied().filter(on_it).collect();
        for source in sources {
            if let Some((attachment, turn)) = streams.sources.remove(&source) {
                streams.owned.lost(attachment, turn, until);
            }
        }
        let mut waiting = Vec::new();
        for (reader, reading) in &mut streams.readers {
            if reading.line.take_if(|line| line.0 == wire).is_some() {
                waiting.push((*reader, reading.owner, reading.replica.resume()));
            }
        }
        for (reader, owner, resume) in waiting {
            let message = v1::PeerChannelAttach {
                takes_gaps: true,
                resumes: true,
                resume: Some(resume),
                ..Default::default()
            };
            self.begin_attach(node, owner, Some(reader), message, GRACE);
        }
    }

    /// A life of a peer is over, as its next one shows.
    pub(super) fn streams_over(&mut self, node: usize, other: usize, life: Incarnation) {
        let key = PeerKey { name: name(other), incarnation: life };
        self.nodes[node].streams.owned.peer_over(&key);
    }
}
