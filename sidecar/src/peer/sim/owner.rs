//! Service of a simulated peer to others: `serving` without its threads. Its leases are the ledger's, and what is open
//! is `remote`'s.

use prost::Message;
use tensorlane_proto::frame::{self, CHUNK_BYTES_MAX, FAILED, HEADER_BYTES, Header, LAST, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Event, Holder, Millis, TensorId};
use tensorlane_proto::{DType, Descriptor, Failure, Incarnation, Layout, Reason, Shape};

use super::node::Node;
use super::wire::Sending;
use super::{Dice, Seen};
use crate::peer::remote::InboundPull;
use crate::peer::transport::Way;

/// Result of a question.
#[derive(Default)]
pub(super) struct Served {
    pub(super) frames: Vec<Vec<u8>>,
    /// Bytes that are to be written in turns.
    pub(super) sending: Option<Sending>,
    /// A pull whose bytes nobody wants any more; its last frame, if its bytes were not all written.
    pub(super) cancelled: Option<(u64, Vec<u8>)>,
}

/// Peer that asks, and the connection on which it does.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    pub(super) peer: usize,
    pub(super) life: Incarnation,
    pub(super) wire: u64,
}

fn failed(call: u64, failure: &Failure) -> Vec<u8> {
    frame::encode(PeerKind::Pull.into(), REPLY | FAILED, call, &v1::Failure::from(failure))
}

impl Node {
    /// A question came.
    pub(super) fn question(
        &mut self,
        now: Millis,
        from: Asker,
        (kind, header): (PeerKind, Header),
        body: &[u8],
        seen: &mut Seen,
    ) -> Served {
        let call = header.call;
        match kind {
            PeerKind::Ping => {
                let reply = frame::encode(PeerKind::Ping.into(), REPLY, call, &v1::Ping {});
                Served { frames: vec![reply], ..Served::default() }
            }
            PeerKind::Pull => self.opens(now, from, call, &v1::Pull::decode(body).expect("a pull"), seen),
            PeerKind::PullDone => {
                let done = v1::PullDone::decode(body).expect("a word that a pull is done");
                self.closes(now, from, call, Some(done.id));
                Served::default()
            }
            PeerKind::Cancel => {
                self.closes(now, from, call, None);
                let cancelled = Failure::new(Reason::Cancelled, "the reader withdrew the call");
                Served { cancelled: Some((call, failed(call, &cancelled))), ..Served::default() }
            }
            other => panic!("{other:?} is not asked here"),
        }
    }

    fn opens(&mut self, now: Millis, from: Asker, call: u64, asked: &v1::Pull, seen: &mut Seen) -> Served {
        let Asker { peer, life, wire } = from;
        let open = self.other(peer).state.open.get(&call).copied();
        assert!(open.is_none_or(|open| open.link != wire), "call {call} is asked twice on wire {wire}");
        seen.resumed += u64::from(open.is_some());
        let (id, by) = (TensorId(asked.id), Holder::Peer(self.slot(peer, life)));
        if let Err(refusal) = self.book.apply(now, Event::Lease { by, id }) {
            self.closes(now, from, call, None);
            let failure = Failure::new(Reason::NotFound, refusal.to_string());
            return Served { frames: vec![failed(call, &failure)], ..Served::default() };
        }
        let open = InboundPull {
            id: asked.id,
            link: wire,
            way: Way::Stream,
            mapped: None,
            leased: Some(asked.id),
            spreads: false,
            proven: false,
            hashing: false,
        };
        match self.other(peer).state.open_here(call, open) {
            Ok(before) => before.into_iter().for_each(|before| self.ends(now, by, before.id)),
            Err(()) => {
                self.ends(now, by, asked.id);
                return Served::default();
            }
        }
        let bytes = self.contents[&id].clone();
        assert_eq!(bytes.len() as u64, asked.bytes, "a reader expects another length");
        assert!(asked.from <= asked.bytes, "a pull goes on behind its end");
        let shape = Shape::new(&[asked.bytes]).expect("one dimension");
        let descriptor = Descriptor::host(Layout::contiguous(DType::U8, shape).expect("a row of bytes"));
        let head = v1::PullHead { descriptor: Some((&descriptor).into()), ..v1::PullHead::default() };
        let head = frame::encode(PeerKind::Pull.into(), REPLY, call, &head);
        Served { frames: vec![head], sending: Some(Sending { call, at: asked.from, bytes }), cancelled: None }
    }

    /// Ends the lease of an open pull.
    fn closes(&mut self, now: Millis, from: Asker, call: u64, id: Option<u64>) {
        if let Some(open) = self.other(from.peer).state.close(from.life, call, id) {
            let by = Holder::Peer(self.slot(from.peer, from.life));
            self.ends(now, by, open.id);
        }
    }

    fn ends(&mut self, now: Millis, by: Holder, id: u64) {
        // One that ended with the grace before is refused, as in the store.
        let _ = self.book.apply(now, Event::Release { by, id: TensorId(id), count: 1 });
    }

    /// Ends what was not asked for again on the present connection.
    pub(super) fn end_forgotten(&mut self, now: Millis, from: Asker) {
        for (call, open) in self.other(from.peer).state.forgotten(from.wire) {
            if let Some(open) = self.other(from.peer).state.close_forgotten(call, &open) {
                let by = Holder::Peer(self.slot(from.peer, from.life));
                self.ends(now, by, open.id);
            }
        }
    }
}

impl Sending {
    /// The next chunk; whether it was the last one.
    pub(super) fn write(&mut self, dice: &mut Dice) -> (Vec<u8>, bool) {
        let left = self.bytes.len() as u64 - self.at;
        let length = left.min(1 + dice.roll(150)).min(CHUNK_BYTES_MAX as u64);
        let (from, end) = (self.at, self.at + length);
        let last = end == self.bytes.len() as u64;
        let header = Header {
            length: 8 + length as u32,
            kind: PeerKind::Chunk.into(),
            flags: if last { LAST } else { 0 },
            call: self.call,
        };
        let mut frame = Vec::with_capacity(HEADER_BYTES + 8 + length as usize);
        frame.extend(header.encode());
        frame.extend(from.to_le_bytes());
        frame.extend(&self.bytes[from as usize..end as usize]);
        self.at = end;
        (frame, last)
    }
}
