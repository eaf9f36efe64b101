//! Connections of the simulated peers: made, cut, noticed to be cut; and the bytes on them. Between connections order is
//! anybody's guess, on one it is kept.

use std::sync::Arc;
use std::time::Duration;

use tensorlane_proto::frame::PeerKind;
use tensorlane_proto::ledger::{Event, Holder, Millis};

use super::node::{Node, name};
use super::owner::{Asker, Served};
use super::wire::{End, Frame, Side, Wire};
use super::world::{GRACE, Happening, MS, PROGRESS, World};
use crate::peer::remote::Patience;

impl World {
    pub(super) fn dial(&mut self, pair: (usize, usize), within: u64) {
        if self.dialing.insert(pair) {
            self.soon(within, Happening::Dial { pair });
        }
    }

    pub(super) fn connect(&mut self, pair: (usize, usize)) {
        self.dialing.remove(&pair);
        let present = self.pairs.get(&pair).and_then(|wire| self.wires.get(wire));
        if present.is_some_and(|wire| !wire.cut && !wire.sides.iter().any(|side| side.over)) {
            return;
        }
        if !self.ending && self.dice.one_in(5) {
            let patience =
                Patience { progress: Duration::from_micros(PROGRESS), grace: Duration::from_micros(GRACE) };
            for (here, there) in [pair, (pair.1, pair.0)] {
                let now = self.instant();
                let state = &mut self.nodes[here].other(there).state;
                let attempt = state.dial.begun + 1;
                let effects = state.dial_failed(attempt, "nobody answers", patience, now);
                self.perform(here, effects);
            }
            return self.dial(pair, 150 * MS);
        }
        let number = self.next_wire;
        self.next_wire += 1;
        let side = |node: usize| Side::new(node, self.nodes[node].life);
        let (sides, begun) = ([side(pair.0), side(pair.1)], self.instant());
        self.wires.insert(number, Wire { sides, begun, cut: false });
        self.pairs.insert(pair, number);
        for side in 0..2 {
            self.soon(30 * MS, Happening::Adopt { wire: number, side });
        }
    }

    /// The life at a side of a wire, if it is still the one that made it and has not seen its end.
    pub(super) fn present(&self, wire: u64, side: usize) -> Option<usize> {
        let side = &self.wires.get(&wire)?.sides[side];
        (!side.over && self.nodes[side.node].life == side.life).then_some(side.node)
    }

    pub(super) fn adopt(&mut self, wire: u64, side: usize) {
        let Some(node) = self.present(wire, side) else { return };
        let wired = &self.wires[&wire];
        let (far, begun) = (&wired.sides[1 - side], wired.begun);
        let (other, life) = (far.node, far.life);
        let offer = Arc::clone(&self.nodes[other].offer);
        let end = End { wire, name: name(other), incarnation: life, begun, offer };
        if self.nodes[node].other(other).state.is_late(life, begun) {
            self.seen.late += 1;
            self.wires.get_mut(&wire).expect("it was there").sides[side].over = true;
            return self.cut(wire, 5 * MS);
        }
        let (millis, now) = (self.millis(), self.instant());
        let (replaced, old_life, away) = {
            let state = &self.nodes[node].other(other).state;
            let old_life = state.incarnation.filter(|old| *old != life);
            (state.link.as_ref().map(|link| link.wire), old_life, state.away(now))
        };
        let asker = Asker { peer: other, life, wire };
        if let Some(old) = old_life {
            self.replaced(node, other);
            self.streams_over(node, other, old);
        } else if let Some(away) = away {
            if away >= Duration::from_micros(GRACE) {
                self.nodes[node].end_forgotten(millis, asker);
            }
            let holder = Holder::Peer(self.nodes[node].slot(other, life));
            let back = self.nodes[node].book.apply(millis, Event::HolderBack { holder });
            back.expect("a holder may always come back");
        }
        let effects = self.nodes[node].other(other).state.adopt(&Arc::new(end));
        let here = &mut self.wires.get_mut(&wire).expect("it was there").sides[side];
        here.up = true;
        let early = std::mem::take(&mut here.early);
        self.perform(node, effects);
        if let Some(old) = replaced {
            let side = self.wires[&old].side_of(node);
            self.cut(old, 5 * MS);
            self.notice(old, side);
        }
        let forget = self.now + GRACE;
        self.at(forget, Happening::Forget { wire, side });
        if !early.is_empty() {
            self.arrive(wire, side, &early);
        }
    }

    /// Another life of a peer: the leases of the old one end with it.
    pub(super) fn replaced(&mut self, node: usize, other: usize) {
        let millis = self.millis();
        if let Some((_, slot)) = self.nodes[node].other(other).slot.take() {
            let holder = Holder::Peer(slot);
            self.nodes[node]
                .book
                .apply(millis, Event::HolderGone { holder })
                .expect("a holder may always go");
        }
    }

    /// Told that a connection was up for as long as the grace: what was not asked for again on it will not be.
    pub(super) fn forget(&mut self, wire: u64, side: usize) {
        let Some(node) = self.present(wire, side) else { return };
        let far = &self.wires[&wire].sides[1 - side];
        let asker = Asker { peer: far.node, life: far.life, wire };
        let link = &self.nodes[node].other(asker.peer).state.link;
        if link.as_ref().is_some_and(|link| link.wire == wire) {
            let millis = self.millis();
            self.nodes[node].end_forgotten(millis, asker);
        }
    }

    /// Cuts a connection; its ends notice within so long.
    pub(super) fn cut(&mut self, wire: u64, within: u64) {
        let Some(cut) = self.wires.get_mut(&wire) else { return };
        cut.cut = true;
        for side in 0..2 {
            self.soon(within, Happening::Notice { wire, side });
        }
    }

    pub(super) fn notice(&mut self, wire: u64, side: usize) {
        let Some(node) = self.present(wire, side) else { return };
        let ended = self.wires.get_mut(&wire).expect("it is present");
        ended.cut = true;
        let here = &mut ended.sides[side];
        here.over = true;
        here.sending.clear();
        let was_up = here.up;
        let (far, begun) = (&ended.sides[1 - side], ended.begun);
        let (other, life) = (far.node, far.life);
        let pair = (node.min(other), node.max(other));
        if was_up {
            self.streams_lost(node, wire);
            self.pipes_lost(node, wire);
            let end = End {
                wire,
                name: name(other),
                incarnation: life,
                begun,
                offer: Arc::clone(&self.nodes[other].offer),
            };
            let (now, millis) = (self.instant(), self.millis());
            let (present, effects) = self.nodes[node].other(other).state.link_ended(&end, "it was cut", now);
            if present {
                let holder = Holder::Peer(self.nodes[node].slot(other, life));
                let until = millis.after(Millis(GRACE / MS));
                let away = self.nodes[node].book.apply(millis, Event::HolderAway { holder, until });
                away.expect("there are few holders");
            }
            self.perform(node, effects);
        }
        self.dial(pair, 150 * MS);
    }

    /// Sends bytes; they arrive in order, in pieces, unless the connection is cut before.
    pub(super) fn send(&mut self, wire: u64, from: usize, bytes: &[u8]) {
        let Some(carrier) = self.wires.get(&wire).filter(|wire| !wire.cut) else { return };
        let mut last = carrier.sides[1 - from].last.max(self.now);
        let mut rest = bytes;
        while !rest.is_empty() {
            let whole = !self.dice.one_in(4);
            let length = if whole { rest.len() } else { 1 + self.dice.roll(rest.len() as u64) as usize };
            let (piece, later) = rest.split_at(length);
            let slow = self.dice.one_in(10);
            last += 1 + self.dice.roll(if slow { 20 * MS } else { MS });
            self.at(last, Happening::Arrive { wire, side: 1 - from, bytes: piece.to_vec() });
            rest = later;
        }
        self.wires.get_mut(&wire).expect("it is there").sides[1 - from].last = last;
    }

    pub(super) fn arrive(&mut self, wire: u64, side: usize, bytes: &[u8]) {
        let Some(node) = self.present(wire, side) else { return };
        let arrived = self.wires.get_mut(&wire).expect("it is present");
        if arrived.cut {
            return;
        }
        if !arrived.sides[side].up {
            arrived.sides[side].early.extend_from_slice(bytes);
            return;
        }
        let asker = Asker { peer: arrived.sides[1 - side].node, life: arrived.sides[1 - side].life, wire };
        for frame in arrived.sides[side].take(bytes) {
            self.seen.note(bytes.len() as u64);
            self.frame(node, side, asker, frame);
        }
    }

    pub(super) fn frame(&mut self, node: usize, side: usize, from: Asker, frame: Frame) {
        use PeerKind::{ChannelAttach, ChannelCredit, ChannelEnd, ChannelMessage, PipeCall, PipeConnect};
        let (now, seen) = (self.millis(), &mut self.seen);
        let here = &mut self.nodes[node];
        match frame {
            Frame::Message {
                kind: kind @ (ChannelAttach | ChannelMessage | ChannelCredit | ChannelEnd),
                header,
                body,
            } => self.stream_frame(node, from, (kind, header), &body),
            Frame::Message { kind: kind @ (PipeConnect | PipeCall), header, body } => {
                self.pipe_frame(node, from, (kind, header), &body);
            }
            Frame::Chunk { header, offset, bytes } => {
                let effects = here.chunk(from.peer, from.wire, header, offset, &bytes);
                self.perform(node, effects);
            }
            Frame::Message { kind, header, body } if header.is_reply() => {
                let effects = here.answer(from.peer, from.wire, (kind, header), &body, seen);
                self.perform(node, effects);
            }
            Frame::Message { kind, header, body } => {
                let served = here.question(now, from, (kind, header), &body, seen);
                self.served(from.wire, side, served);
            }
        }
    }

    pub(super) fn served(&mut self, wire: u64, side: usize, served: Served) {
        let Served { frames, sending, cancelled } = served;
        frames.iter().for_each(|frame| self.send(wire, side, frame));
        let here = &mut self.wires.get_mut(&wire).expect("it was asked on").sides[side];
        if let Some((call, end)) = cancelled {
            let before = here.sending.len();
            here.sending.retain(|sending| sending.call != call);
            if here.sending.len() < before {
                self.send(wire, side, &end);
            }
        }
        if let Some(sending) = sending {
            self.wires.get_mut(&wire).expect("it was asked on").sides[side].sending.push(sending);
            self.soon(3 * MS, Happening::Write { wire, side });
        }
    }

    /// Writes a chunk of one of those that wait.
    pub(super) fn write(&mut self, wire: u64, side: usize) {
        if self.present(wire, side).is_none() {
            return;
        }
        let here = &mut self.wires.get_mut(&wire).expect("it is present").sides[side];
        if here.sending.is_empty() {
            return;
        }
        let which = self.dice.roll(here.sending.len() as u64) as usize;
        let (frame, last) = here.sending[which].write(&mut self.dice);
        if last {
            here.sending.swap_remove(which);
        }
        let more = !here.sending.is_empty();
        self.send(wire, side, &frame);
        if more {
            self.soon(10 * MS, Happening::Write { wire, side });
        }
    }

    pub(super) fn cut_one(&mut self) {
        if self.ending {
            return;
        }
        let wires: Vec<u64> = self.pairs.values().copied().collect();
        if let Some(wire) = self.dice.pick(&wires) {
            self.seen.cuts += 1;
            let within = if self.dice.one_in(2) { 10 * MS } else { 900 * MS };
            self.cut(wire, within);
        }
        self.soon(600 * MS, Happening::Cut);
    }

    pub(super) fn restart_one(&mut self) {
        if self.ending {
            return;
        }
        self.seen.restarts += 1;
        let node = self.dice.roll(self.nodes.len() as u64) as usize;
        let new = Node::new(node, self.nodes.len(), &mut self.dice, &self.arena);
        let old = std::mem::replace(&mut self.nodes[node], new);
        self.dead.insert(old.life, (self.now, old.book.freed.clone()));
        let wires: Vec<u64> = self
            .wires
            .iter()
            .filter(|(_, wire)| wire.sides.iter().any(|side| side.node == node))
            .map(|(number, _)| *number)
            .collect();
        // The other ends notice soon, or only when the new life connects.
        let within = if self.dice.one_in(2) { 10 * MS } else { 900 * MS };
        wires.into_iter().for_each(|wire| self.cut(wire, within));
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.dial((node.min(other), node.max(other)), 100 * MS);
        }
        self.soon(1500 * MS, Happening::Restart);
    }
}
