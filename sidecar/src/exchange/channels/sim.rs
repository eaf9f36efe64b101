//! Both ends of channels between peers, for the simulation of peers (`peer::sim`): the table, the credit and the attachments are the
//! real ones, rings are told again in short. Knows no connection: whoever drives it says what came, and carries what is to go.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tensorlane_fuzz::Dice;
use tensorlane_memory::ring::Policy;
use tensorlane_proto::allowed::AllowedPeers;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{SessionId, TensorName};

use super::attachment::{Attachment, Standing};
use super::credit::{Arrivals, Window};
use super::relay::{over, session};
use super::table::{Effect, Party, Spec, Table};
use super::{shape_of, spec_message};
use crate::peer::PeerKey;

/// Bytes of a slot, and of the longest message.
const SLOT_BYTES: u64 = 64;

/// Frame of an attachment on its way to the peer that reads.
pub(crate) enum ToReader {
    /// Message, or a piece of one.
    Message(v1::PeerChannelMessage),
    /// End of the channel.
    End(v1::PeerChannelEnd),
}

/// Step of a reader.
pub(crate) enum ReadStep {
    /// A message was read: credit for its owner, if that waits for readers.
    Message(Option<v1::PeerChannelCredit>),
    /// No message is here.
    Nothing,
    /// No message is here, and none will be.
    Over,
}

/// Channels of one life of a peer, and the peers that read them.
#[derive(Default)]
pub(crate) struct OwnedChannels {
    table: Table<u64, ()>,
    rings: BTreeMap<u64, SimRing>,
    relays: BTreeMap<u64, SimRelay>,
    last: u64,
}

/// Ring of a channel, by how far it is written: messages follow from the channel and their sequence.
struct SimRing {
    epoch: u64,
    policy: Policy,
    slots: u64,
    next: u64,
    end: Option<v1::PeerChannelOutcome>,
}

/// Attachment of a peer.
struct SimRelay {
    channel: u64,
    reader: u64,
    session: SessionId,
    peer: PeerKey,
    message: v1::PeerChannelAttached,
    attachment: Attachment,
    /// Next message that it reads.
    next: u64,
    /// The end was sent in this turn.
    has_ended: bool,
}

/// Channel of another peer that is read here, by one reader.
pub(crate) struct SimReplica {
    arrivals: Arrivals,
    drops: bool,
    slots: usize,
    epoch: u64,
    attachment: u64,
    part: Vec<u8>,
    landed: VecDeque<(u64, Vec<u8>)>,
    given_back: u64,
    delivery: Delivery,
    /// Set once nothing more comes: whether the writer has finished.
    end: Option<bool>,
}

/// View of one reader, held against what it may see. Errors say what is broken.
#[derive(Debug)]
pub(crate) struct Delivery {
    drops: bool,
    places: usize,
    next: u64,
    is_over: bool,
}

/// Bytes of a message.
fn content(epoch: u64, sequence: u64) -> Vec<u8> {
    let mut dice = Dice(epoch.rotate_left(32) ^ sequence);
    let length = dice.roll(SLOT_BYTES + 1) as usize;
    dice.bytes(length)
}

// === impl OwnedChannels ===

impl OwnedChannels {
    /// Makes a channel, of a writer of its own. Returns its number; none where its name is taken.
    pub(crate) fn create(&mut self, epoch: u64, name: &str, policy: Policy, slots: u32) -> Option<u64> {
        let (name, allowed) = (TensorName::new(name).expect("a name"), AllowedPeers::All);
        let (slot_bytes, growth, evicts, readers_max) = (SLOT_BYTES, 0, false, 4);
        let spec = Spec { name, slots, slot_bytes, growth, readers_max, policy, evicts, allowed, epoch };
        let writer = Party { session: SessionId(epoch), client: Arc::from("writer") };
        let (channel, _) = self.table.create(writer, epoch, spec, epoch).ok()?;
        let ring = SimRing { epoch, policy, slots: slots.into(), next: 0, end: None };
        self.rings.insert(channel, ring);
        Some(channel)
    }

    /// Channels that are written.
    pub(crate) fn open(&self) -> Vec<u64> {
        self.rings.iter().filter(|(_, ring)| ring.end.is_none()).map(|(channel, _)| *channel).collect()
    }

    /// Attachments to a channel.
    pub(crate) fn relays_of(&self, channel: u64) -> Vec<u64> {
        self.relays.iter().filter(|(_, relay)| relay.channel == channel).map(|(number, _)| *number).collect()
    }

    /// Writes a message, if there is room for it. Returns whether there was.
    pub(crate) fn write(&mut self, channel: u64) -> bool {
        let readers = self.relays.values().filter(|relay| relay.channel == channel);
        let given_back = readers.map(|relay| relay.attachment.window.received()).min();
        let ring = self.rings.get_mut(&channel).expect("a channel that is written has a ring");
        let waits = given_back.is_some_and(|given_back| ring.next - given_back >= ring.slots);
        let is_room = ring.policy.drops() || !waits;
        ring.next += u64::from(is_room);
        is_room
    }

    /// Ends a channel. Returns its epoch and how many messages were written to it.
    pub(crate) fn end(&mut self, channel: u64, outcome: v1::PeerChannelOutcome) -> (u64, u64) {
        let ring = self.rings.get_mut(&channel).expect("a channel that is written has a ring");
        ring.end = Some(outcome);
        let (epoch, written) = (ring.epoch, ring.next);
        let effects = self.table.end_channel(SessionId(epoch), channel);
        assert_eq!(effects, [Effect::EndRing(epoch)], "every reader had its answer");
        self.forget_rings();
        (epoch, written)
    }

    /// Attaches a peer, or goes on with its attachment. Returns the answer, and the turn.
    pub(crate) fn attach(
        &mut self,
        peer: &PeerKey,
        asked: &v1::PeerChannelAttach,
        now: Instant,
    ) -> Result<(v1::PeerChannelAttached, u64), Failure> {
        if let Some(resume) = &asked.resume {
            return self.resume(peer, resume, now);
        }
        let name = TensorName::new(&asked.name).expect("a name");
        let rings = &self.rings;
        let is_open = |epoch: &u64| rings.values().any(|ring| ring.epoch == *epoch && ring.end.is_none());
        let found = self.table.find_open(&name, is_open);
        let channel = found.ok_or_else(|| Failure::new(Reason::NotFound, "no such channel"))?;
        self.last += 1;
        let (number, session) = (self.last, session(self.last));
        let party = Party { session, client: Arc::from(peer.name.as_str()) };
        let added = self.table.add_reader(channel, party, number)?;
        assert!(self.table.ready(added.writer, added.reader), "a reader that was added is asked for");
        let ring = &self.rings[&channel];
        let first = match asked.from() {
            v1::ChannelFrom::Oldest => ring.oldest(),
            v1::ChannelFrom::Next => ring.next,
        };
        let spec = &self.table.channel(channel).expect("it was found").spec;
        let message = v1::PeerChannelAttached {
            spec: Some(spec_message(spec)),
            first,
            missed: 0,
            writer: "writer".to_owned(),
            epoch: spec.epoch,
            attachment: number,
        };
        let attachment = Attachment::new(Window::new(spec.policy, spec.slots, first), asked.resumes);
        let relay = SimRelay {
            channel,
            reader: added.reader,
            session,
            peer: peer.clone(),
            message: message.clone(),
            attachment,
            next: first,
            has_ended: false,
        };
        self.relays.insert(number, relay);
        Ok((message, 1))
    }

    fn resume(
        &mut self,
        peer: &PeerKey,
        resume: &v1::PeerChannelResume,
        now: Instant,
    ) -> Result<(v1::PeerChannelAttached, u64), Failure> {
        self.expire(now);
        let relay = self.relays.get_mut(&resume.attachment).filter(|relay| relay.peer == *peer);
        let relay = relay.ok_or_else(over)?;
        let turn = relay.attachment.resume(resume.next, now).expect("a reader goes on with what it has");
        (relay.next, relay.has_ended) = (resume.next, false);
        Ok((v1::PeerChannelAttached { first: resume.next, ..relay.message.clone() }, turn))
    }

    /// Frames that an attachment sends in a turn: as much as the peer has room for. The end is to be confirmed until then.
    pub(crate) fn pump(
        &mut self,
        attachment: u64,
        turn: u64,
        until: Instant,
        dice: &mut Dice,
    ) -> Vec<ToReader> {
        let mut frames = Vec::new();
        let relay = self.relays.get_mut(&attachment).filter(|relay| relay.attachment.is_on(turn));
        let Some(relay) = relay else { return frames };
        let ring = &self.rings[&relay.channel];
        while let Some(sequence) = ring.read(relay.next)
            && relay.attachment.window.may_begin(false)
        {
            relay.attachment.window.begin(sequence, false, false);
            pieces(ring.epoch, sequence, &mut relay.attachment.window, dice, &mut frames);
            relay.next = sequence + 1;
        }
        if let Some(outcome) = ring.end.filter(|_| ring.read(relay.next).is_none() && !relay.has_ended) {
            relay.has_ended = true;
            relay.attachment.finished(turn, until);
            let written = if ring.policy.drops() { ring.next } else { 0 };
            frames.push(ToReader::End(v1::PeerChannelEnd { outcome: outcome.into(), written }));
        }
        frames
    }

    /// The peer has more room.
    pub(crate) fn credit(&mut self, attachment: u64, turn: u64, credit: &v1::PeerChannelCredit) {
        if let Some(relay) = self.relays.get_mut(&attachment) {
            let taken = relay.attachment.credit(turn, credit);
            assert_eq!(taken, Ok(()), "a credit for what was not sent: {credit:?}");
        }
    }

    /// The connection of a turn is lost; the peer is waited for until then.
    pub(crate) fn lost(&mut self, attachment: u64, turn: u64, until: Instant) {
        self.relays.get_mut(&attachment).into_iter().for_each(|relay| relay.attachment.lost(turn, until));
        self.settle();
    }

    /// The peer has left in a turn.
    pub(crate) fn left(&mut self, attachment: u64, turn: u64) {
        self.relays.get_mut(&attachment).into_iter().for_each(|relay| relay.attachment.left(turn));
        self.settle();
    }

    /// A life of a peer is over.
    pub(crate) fn peer_over(&mut self, peer: &PeerKey) {
        let its = self.relays.values_mut().filter(|relay| relay.peer == *peer);
        its.for_each(|relay| relay.attachment.close());
        self.settle();
    }

    /// Time passes.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.relays.values_mut().for_each(|relay| _ = relay.attachment.expire(now));
        self.settle();
    }

    /// Takes out attachments that are over.
    fn settle(&mut self) {
        let is_over = |relay: &SimRelay| relay.attachment.standing() == Standing::Over;
        let gone: Vec<u64> =
            self.relays.iter().filter(|(_, relay)| is_over(relay)).map(|(number, _)| *number).collect();
        for number in gone {
            let Some(relay) = self.relays.remove(&number) else { continue };
            for effect in self.table.end_reader(relay.session, relay.reader, false) {
                if let Effect::TellGone { writer, reader, .. } = effect {
                    self.table.forget(writer, reader);
                }
            }
        }
        self.forget_rings();
    }

    fn forget_rings(&mut self) {
        let table = &self.table;
        self.rings.retain(|channel, _| table.channel(*channel).is_some());
    }

    /// Checks that no more is on its way than a ring has places for.
    pub(crate) fn check(&self) {
        for relay in self.relays.values() {
            let ring = &self.rings[&relay.channel];
            let received = relay.attachment.window.received();
            assert!(
                ring.policy.drops() || relay.next - received <= ring.slots,
                "messages {received} to {} are on their way to {} places",
                relay.next,
                ring.slots
            );
        }
    }

    /// Checks that nothing is left.
    pub(crate) fn assert_empty(&self) {
        let left = self.table.channels().count();
        let (relays, rings) = (self.relays.len(), self.rings.len());
        assert_eq!((left, relays, rings), (0, 0, 0), "channels, attachments and rings are left");
    }
}

/// Appends the frames of a message, in pieces of any length.
fn pieces(epoch: u64, sequence: u64, window: &mut Window, dice: &mut Dice, frames: &mut Vec<ToReader>) {
    let (data, mut at) = (content(epoch, sequence), 0);
    loop {
        let left = data.len() - at;
        let length = if dice.one_in(3) { left.min(1 + dice.below(left)) } else { left };
        assert!(window.may_send(length as u64), "a few bytes have no room");
        window.send(length as u64);
        frames.push(ToReader::Message(v1::PeerChannelMessage {
            sequence,
            bytes: data.len() as u64,
            offset: at as u64,
            data: Bytes::copy_from_slice(&data[at..at + length]),
            ..Default::default()
        }));
        at += length;
        if at == data.len() {
            return;
        }
    }
}

// === impl SimRing ===

impl SimRing {
    /// The oldest message that is there.
    fn oldest(&self) -> u64 {
        self.next.saturating_sub(self.slots)
    }

    /// The message that a reader gets which wants that one next.
    fn read(&self, from: u64) -> Option<u64> {
        if from >= self.next {
            return None;
        }
        match self.policy {
            Policy::Block => {
                assert!(from >= self.oldest(), "message {from} was written over before it had landed");
                Some(from)
            }
            Policy::DropOldest => Some(from.max(self.oldest())),
            Policy::Latest => Some(self.next - 1),
        }
    }
}

// === impl SimReplica ===

impl SimReplica {
    /// A channel that the owner has attached us to, and its first credit.
    pub(crate) fn new(message: &v1::PeerChannelAttached) -> (Self, v1::PeerChannelCredit) {
        let spec = message.spec.clone().unwrap_or_default();
        let (Spec { policy, slots, slot_bytes, .. }, _) = shape_of(&spec).expect("an owner has made it");
        let (first, places) = (message.first, slots as usize);
        let mut arrivals = Arrivals::new(policy, slots, slot_bytes, first);
        let credit = arrivals.grant(first);
        let replica = Self {
            arrivals,
            drops: policy.drops(),
            slots: places,
            epoch: message.epoch,
            attachment: message.attachment,
            part: Vec::new(),
            landed: VecDeque::new(),
            given_back: first,
            delivery: Delivery::new(policy, places, first),
            end: None,
        };
        (replica, credit)
    }

    /// The channel that it is of, unlike any other.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A message came, or a piece of one. Returns credit, if the owner is to be told.
    pub(crate) fn message(&mut self, message: &v1::PeerChannelMessage) -> Option<v1::PeerChannelCredit> {
        let step = self.arrivals.take(message).expect("an owner sends what there is room for");
        self.part.extend_from_slice(&message.data);
        if step.last {
            self.landed.push_back((message.sequence, std::mem::take(&mut self.part)));
            if self.drops && self.landed.len() > self.slots {
                self.landed.pop_front();
            }
            holds(self.delivery.keeps(self.landed.len()));
        }
        let room = if self.drops { self.arrivals.messages_landed() } else { self.arrivals.given_back() };
        step.tell.then(|| self.arrivals.grant(room))
    }

    /// A reader takes the next message.
    pub(crate) fn read(&mut self) -> ReadStep {
        let Some((sequence, bytes)) = self.landed.pop_front() else {
            return if self.end.is_some() { ReadStep::Over } else { ReadStep::Nothing };
        };
        holds(self.delivery.message(sequence, &bytes, &content(self.epoch, sequence)));
        self.given_back = sequence + 1;
        ReadStep::Message((!self.drops).then(|| self.arrivals.grant(self.given_back)))
    }

    /// The connection is lost. Returns what another one is to begin with.
    pub(crate) fn resume(&mut self) -> v1::PeerChannelResume {
        self.part.clear();
        v1::PeerChannelResume { attachment: self.attachment, next: self.arrivals.resume() }
    }

    /// The owner goes on. Returns the first credit of the turn.
    pub(crate) fn go_on(&mut self) -> v1::PeerChannelCredit {
        let room = if self.drops { self.arrivals.messages_landed() } else { self.given_back };
        self.arrivals.grant(room)
    }

    /// Nothing more comes; `finished` says whether the writer has said so.
    pub(crate) fn end(&mut self, finished: bool) {
        self.end.get_or_insert(finished);
    }

    /// The reader has heard of the end, of a channel to which so much was written if it was finished. Returns whether it was.
    pub(crate) fn over(mut self, written: Option<u64>) -> bool {
        let finished = self.end == Some(true);
        holds(self.delivery.end(written.filter(|_| finished)));
        finished
    }
}

fn holds(checked: Result<(), String>) {
    checked.unwrap_or_else(|broken| panic!("{broken}"));
}

// === impl Delivery ===

impl Delivery {
    /// A reader that gets this message first, with room for so many.
    pub(crate) fn new(policy: Policy, places: usize, first: u64) -> Self {
        Self { drops: policy.drops(), places, next: first, is_over: false }
    }

    /// A message was read; `written` is what was written.
    pub(crate) fn message(&mut self, sequence: u64, bytes: &[u8], written: &[u8]) -> Result<(), String> {
        let next = self.next;
        if self.is_over {
            return Err(format!("message {sequence} comes behind the end"));
        }
        if sequence < next {
            return Err(format!("message {sequence} comes again, or too late: {next} is next"));
        }
        if sequence > next && !self.drops {
            return Err(format!("message {sequence} comes in place of {next}, and nothing may be dropped"));
        }
        if bytes != written {
            return Err(format!("message {sequence} has other bytes than were written"));
        }
        self.next = sequence + 1;
        Ok(())
    }

    /// So many messages are kept for it.
    pub(crate) fn keeps(&self, messages: usize) -> Result<(), String> {
        let places = self.places;
        if messages > places {
            Err(format!("{messages} messages are kept in {places} places"))
        } else {
            Ok(())
        }
    }

    /// The reader has heard of the end; `written` says how many messages there are, where the writer has finished.
    pub(crate) fn end(&mut self, written: Option<u64>) -> Result<(), String> {
        let next = self.next;
        if std::mem::replace(&mut self.is_over, true) {
            return Err("it ends twice".to_owned());
        }
        match written {
            Some(written) if next > written => Err(format!("{next} messages came of {written}")),
            Some(written) if next < written && !self.drops => {
                Err(format!("it is finished after {next} messages of {written}, and nothing may be dropped"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// History of a reader: messages with whether their bytes are right, and the end with how many there are.
    fn checked(policy: Policy, messages: &[(u64, bool)], end: Option<u64>) -> Result<(), String> {
        let mut delivery = Delivery::new(policy, 2, 3);
        for (sequence, is_right) in messages {
            delivery.message(*sequence, &[7], &[if *is_right { 7 } else { 8 }])?;
        }
        delivery.end(end)
    }

    #[test]
    fn a_history_that_holds_is_taken() {
        assert_eq!(checked(Policy::Block, &[(3, true), (4, true)], Some(5)), Ok(()));
        assert_eq!(checked(Policy::Block, &[(3, true)], None), Ok(()), "told that it is lost");
        assert_eq!(checked(Policy::DropOldest, &[(5, true), (9, true)], Some(12)), Ok(()));
    }

    #[test]
    fn a_history_that_is_broken_is_caught() {
        let all = [
            checked(Policy::Block, &[(3, true), (3, true)], Some(4)),
            checked(Policy::Block, &[(3, true), (5, true)], Some(6)),
            checked(Policy::Block, &[(3, false)], Some(4)),
            checked(Policy::Block, &[(3, true)], Some(5)),
            checked(Policy::Block, &[(3, true), (4, true)], Some(4)),
            checked(Policy::Latest, &[(7, true), (6, true)], Some(9)),
            checked(Policy::Latest, &[(9, true)], Some(9)),
        ];
        let told: Vec<String> = all.into_iter().map(|checked| checked.expect_err("it is broken")).collect();
        for (told, word) in told.iter().zip([
            "again",
            "in place of 4",
            "other bytes",
            "finished",
            "5 messages",
            "again",
            "of 9",
        ]) {
            assert!(told.contains(word), "{told}");
        }
        let mut delivery = Delivery::new(Policy::Block, 2, 0);
        assert!(delivery.keeps(2).is_ok() && delivery.keeps(3).is_err(), "more than there are places");
        delivery.end(Some(0)).unwrap();
        assert!(delivery.end(Some(0)).is_err() && delivery.message(0, &[], &[]).is_err(), "behind the end");
    }

    #[test]
    #[should_panic(expected = "comes in place of 0")]
    fn a_message_that_a_simulated_reader_never_gets_ends_the_run() {
        let mut channels = OwnedChannels::default();
        let channel = channels.create(1, "c", Policy::Block, 4).unwrap();
        let peer = PeerKey { name: "a".parse().unwrap(), incarnation: tensorlane_proto::Incarnation(1) };
        let asked = v1::PeerChannelAttach { name: "c".to_owned(), resumes: true, ..Default::default() };
        let (message, turn) = channels.attach(&peer, &asked, Instant::now()).unwrap();
        let (mut replica, credit) = SimReplica::new(&message);
        channels.credit(message.attachment, turn, &credit);
        assert!(channels.write(channel) && channels.write(channel));
        for frame in channels.pump(message.attachment, turn, Instant::now(), &mut Dice(1)) {
            let ToReader::Message(frame) = frame else { panic!("it is not finished") };
            replica.message(&frame);
        }
        replica.landed.pop_front();
        replica.read();
    }
}
