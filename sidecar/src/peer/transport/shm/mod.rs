//! Way `shm`: the bytes stay where they are, and the reader maps them. Both ends prove by doing that they are on one node;
//! then segments pass over the node's socket as sealed, read-only descriptors. See docs/decisions/014-shm.md.
//!
//! ```text
//!   reader                                                          owner
//!     | Pull { way shm }                            (node's socket)  |  leased; the block is kept (`lent`)
//!     | PullHead { place: segment, offset }         (node's socket)  |
//!     | Want { segment }, once a segment             (node's socket)  |
//!     | Segment, memory, witness                     (node's socket)  |  only a segment with a block in `lent`
//!     |   ... mapped, handed on to clients ...                        |
//!     | PullDone                                          (control)   |  the block is let go
//! ```
//! What is asked at the node's socket is answered there or not at all: when the socket is lost, whatever was not answered is given
//! up on the control connection, and PullDone may overtake its Pull. With a peer of an earlier version, and where many calls are
//! under way, both go on the control connection.
//! When the connection ends without PullDone the block is kept until the witness ends: until nobody maps it any more.
//! Memory of ours that one peer keeps by all its connections is bounded (`limits.lentBytes`).

use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_memory::{Block, Foreign, Lease, Owner, Purpose};
use tensorlane_proto::negotiate::{SameNode, Why};
use tensorlane_proto::{Failure, PeerName, Reason};

use super::lanes::key::LaneKey;
use super::{Suits, Transport, Way};
use crate::peer::calls::PullCall;
use crate::peer::gpus::LentMemory;
use crate::peer::link::Link;
use crate::peer::outbox::Outbox;
use crate::peer::record_writer::OutgoingPull;
use crate::peer::send_error::SendError;
use crate::peer::shared::Shared;

mod at_node;
mod bind;
mod directory;
mod lent;
mod maps;
mod meeting;
mod node;
mod place;
mod wire;

use lent::Lent;
pub(in crate::peer) use maps::Found;
use maps::Maps;
use meeting::Meeting;
#[cfg(test)]
pub(in crate::peer) use node::Between;
pub(in crate::peer) use node::Node;
pub use node::NodeConfig;
pub(in crate::peer) use place::{Apart, SocketName};
use wire::{Heard, Message, MetSocket, NodeEnd};

/// Maps of one peer at a time. Each costs the owner some hundred bytes, and the tensor.
pub(in crate::peer) const MAPS_MAX: usize = 1 << 16;
/// The first version of the protocol in which maps are asked for at the node's socket.
pub(in crate::peer) const AT_NODE_SINCE: u32 = 6;

/// Time for which it is not looked at again what witnesses of a peer keep: that is to look at all witnesses.
const KEPT_LOOK: Duration = Duration::from_millis(100);

/// Facts that two ends have told each other in their Hellos.
pub(in crate::peer) struct NodeParams {
    pub(in crate::peer) node: Arc<Node>,
    pub(in crate::peer) key: LaneKey,
    pub(in crate::peer) theirs: SocketName,
    /// True if we dialed the control connection, and so call at the node's socket too.
    pub(in crate::peer) dials: bool,
}

/// The shared memory of one control connection.
pub(in crate::peer) struct Shm {
    node: Arc<Node>,
    key: LaneKey,
    theirs: SocketName,
    dials: bool,
    shared: Weak<Shared>,
    link: Weak<Link>,
    outbox: Arc<Outbox>,
    /// The other end, as a holder of witnesses of our segments.
    holder: u64,
    lent: Mutex<Lent>,
    /// Bytes that witnesses of the peer keep besides, as they were at a moment.
    kept: Mutex<(Option<Instant>, u64)>,
    /// The log says once a connection that no more is lent.
    said_full: AtomicBool,
    maps: Mutex<Maps<Foreign>>,
    meeting: Mutex<Meeting<MetSocket>>,
}

impl Shm {
    pub(in crate::peer) fn new(
        meets: NodeParams,
        shared: &Arc<Shared>,
        peer: &PeerName,
        link: &Weak<Link>,
        outbox: &Arc<Outbox>,
    ) -> Self {
        let NodeParams { node, key, theirs, dials } = meets;
        Self {
            holder: node.next_holder(peer),
            node,
            key,
            theirs,
            dials,
            shared: Arc::downgrade(shared),
            link: Weak::clone(link),
            outbox: Arc::clone(outbox),
            lent: Mutex::default(),
            kept: Mutex::default(),
            said_full: AtomicBool::new(false),
            maps: Mutex::default(),
            meeting: Mutex::new(Meeting::new(Instant::now())),
        }
    }

    /// The other end, as a holder of witnesses of our segments.
    pub(in crate::peer) fn holder(&self) -> u64 {
        self.holder
    }

    /// State of the proof: whether it is proven that both are on one node.
    pub(in crate::peer) fn same_node(&self) -> SameNode {
        self.meeting.lock().same_node()
    }

    /// Returns whether it is about to be known.
    pub(in crate::peer) fn is_pending(&self) -> bool {
        self.meeting.lock().is_pending(Instant::now())
    }

    /// Asks for a map; whether the socket has taken the question.
    pub(in crate::peer) fn ask(&self, frame: &[u8]) -> bool {
        let Some(socket) = self.meeting.lock().socket() else { return false };
        match socket.send_frame(frame, false) {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::InvalidInput) => false,
            Err(_) => {
                self.hang_up();
                false
            }
        }
    }

    /// Keeps the block of a map, or its GPU memory, for as long as the other end may use it.
    pub(in crate::peer) fn keep(&self, bulk: &OutgoingPull) -> Result<(), SendError> {
        let mut lent = self.lent.lock();
        let kept = match &bulk.gpu {
            Some(memory) => lent.keep_gpu(bulk.call, memory),
            None => bulk.source.block().is_none_or(|block| lent.keep(bulk.call, block)),
        };
        if kept { Ok(()) } else { Err(SendError::Closed) }
    }

    /// Bytes that are lent on this connection.
    pub(in crate::peer) fn lent_bytes(&self) -> u64 {
        self.lent.lock().bytes_with(None)
    }

    /// Bytes of GPU memory that are lent on this connection.
    pub(in crate::peer) fn lent_gpu_bytes(&self) -> u64 {
        self.lent.lock().gpu_bytes_with(None)
    }

    /// Returns whether GPU memory may be lent to the peer: there is room for it in what that may have leased.
    pub(in crate::peer) fn may_lend_gpu(&self, peer: &PeerName, memory: &LentMemory) -> bool {
        let lent = self.lent.lock().gpu_bytes_with(Some(memory));
        let may = self.node.may_lend_gpu(lent);
        if !may && !self.said_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(%peer, lent, "limits.gpuLentBytes is reached: the peer gets copies of what lies on GPUs");
        }
        may
    }

    /// Checks that a block may be lent: there is room for it in what may be lent to the peer, by this connection and those before.
    ///
    /// # Errors
    /// The bound that is reached.
    pub(in crate::peer) fn check_lent(&self, peer: &PeerName, block: &Block) -> Result<(), Failure> {
        let lent = self.lent.lock().bytes_with(Some(block));
        let kept = {
            let (now, mut kept) = (Instant::now(), self.kept.lock());
            if kept.0.is_none_or(|since| now >= since + KEPT_LOOK) {
                *kept = (Some(now), self.node.kept(peer));
            }
            kept.1
        };
        self.node.check_lent(peer, lent + kept).inspect_err(|failure| {
            if !self.said_full.swap(true, Ordering::Relaxed) {
                tracing::warn!(%peer, %failure, "no more memory is lent to the peer: it gets bytes instead");
            }
        })
    }

    /// A call of ours needs the descriptor of its GPU memory. False where none can be had. Called under the lock of the peer's
    /// calls.
    pub(in crate::peer) fn want_gpu(&self, call: u64) -> bool {
        self.maps.lock().want_gpu(call)
    }

    /// A call of ours needs a segment. Called under the lock of the peer's calls.
    pub(in crate::peer) fn find(&self, call: u64, segment: u32) -> Found<Foreign> {
        self.maps.lock().find(call, segment)
    }

    /// Lease that goes with a map of ours, and gives its lease back.
    pub(in crate::peer) fn lease(&self, link: &Arc<Link>, call: u64, id: u64) -> Lease {
        self.node.lease(&link.peer, link.incarnation, call, id)
    }

    /// A block of no bytes, which lies nowhere.
    pub(in crate::peer) fn empty(&self) -> Option<Block> {
        let block = self.node.arena().allocate(Owner::Sidecar, Purpose::Pull, 0).ok()?;
        block.mark_sealed().ok()?;
        Some(block)
    }

    /// Nothing is shared on this connection any more, for now.
    pub(in crate::peer) fn hang_up(&self) {
        if let Some(socket) = self.meeting.lock().socket() {
            // Closed already, at worst.
            let _ = socket.stream().shutdown(Shutdown::Both);
        }
    }

    /// Both ends have met: talks on this thread until one of them ends. `welcome`: it called us, and waits for our word.
    fn met(&self, shared: &Arc<Shared>, link: &Arc<Link>, socket: MetSocket, welcome: Option<Instant>) {
        let socket = Arc::new(socket);
        if socket.stream().set_read_timeout(None).is_err() {
            self.meeting.lock().failed(Instant::now(), false);
            return;
        }
        // Before it is known that they have met: whoever knows asks for maps at once.
        self.maps.lock().open();
        let welcomed = {
            let mut meeting = self.meeting.lock();
            if !meeting.begin(&socket) {
                return;
            }
            // Whoever finds the socket says something at once, and this must come before it. It is one byte, and the first.
            welcome.map_or(Ok(()), |until| bind::welcome(socket.stream(), until))
        };
        shared.counters.node_opened.add(if self.dials { "us" } else { "them" });
        link.peer.changed.notify_all();
        tracing::info!(peer = %link.peer.name, "the peer is on this node: memory is shared");
        let broke_off = || Err(NodeEnd::Wrong("our thread has panicked"));
        let talk = || shared.caught("talk", || self.talk(shared, link, &socket)).unwrap_or_else(broke_off);
        let end = welcomed.map_err(NodeEnd::from).and_then(|()| talk());
        let end = end.err().unwrap_or(NodeEnd::Closed);
        self.disconnected(shared, link, &end);
    }

    fn talk(&self, shared: &Arc<Shared>, link: &Arc<Link>, socket: &MetSocket) -> Result<(), NodeEnd> {
        loop {
            match socket.receive()? {
                Heard::Want(segment) => self.lend(socket, segment)?,
                Heard::Segment { segment, bytes, memory, witness } => {
                    if !self.maps.lock().is_wanted(segment) {
                        return Err(NodeEnd::Wrong("it gave a segment that nobody asked for"));
                    }
                    let mapped = self.node.arena().import(memory, witness, bytes)?;
                    let calls = self.maps.lock().came(segment, mapped.clone());
                    for call in calls {
                        let effects = link.peer.state.lock().mapped(call, link, &mapped);
                        shared.perform(effects);
                    }
                }
                Heard::Gone(segment) => {
                    let calls = self.maps.lock().gone(segment);
                    give_up(shared, link, calls, "the owner does not give the segment", None);
                }
                Heard::Frame(frame) => at_node::take(shared, link, socket, &frame)?,
                Heard::WantGpu(call) => self.lend_gpu(socket, call)?,
                Heard::Gpu { call, memory } => {
                    if !self.maps.lock().gpu_answered(call) {
                        return Err(NodeEnd::Wrong("it gave memory of a GPU that nobody asked for"));
                    }
                    let effects = link.peer.state.lock().mapped_on_gpu(call, link, memory);
                    shared.perform(effects);
                }
                Heard::GpuGone(call) => {
                    if self.maps.lock().gpu_answered(call) {
                        give_up(shared, link, vec![call], "the owner does not give the memory", None);
                    }
                }
            }
        }
    }

    /// Gives a segment that a head has named to the other end.
    fn lend(&self, socket: &MetSocket, segment: u32) -> Result<(), NodeEnd> {
        let opened = {
            // Whoever ends the connection sees the witness, and keeps the blocks for it.
            let mut lent = self.lent.lock();
            let handle = lent.block_in(segment).and_then(Block::segment);
            let is_mapped = |segment| self.node.arena().is_witnessed(segment, self.holder);
            lent.forget_given(is_mapped);
            let handle = handle.filter(|_| lent.may_give(segment, is_mapped(segment)));
            handle.and_then(|handle| {
                let witness = self.node.arena().witness(segment, self.holder);
                let witness = witness.inspect_err(|error| tracing::warn!(%error, "no witness for a segment"));
                witness.ok().map(|witness| (handle, witness))
            })
        };
        let Some((handle, witness)) = opened else {
            return Ok(socket.send(Message::Gone { segment })?);
        };
        Ok(socket.give(segment, handle.bytes(), handle.reader_fd(), witness.as_fd())?)
    }

    /// Gives GPU memory that a head has lent to the other end.
    fn lend_gpu(&self, socket: &MetSocket, call: u64) -> Result<(), NodeEnd> {
        let memory = self.lent.lock().gpu(call);
        match memory {
            Some(memory) => socket.give_gpu(call, memory.as_fd())?,
            None => socket.send(Message::GpuGone { call })?,
        }
        Ok(())
    }

    /// The talk is over.
    fn disconnected(&self, shared: &Arc<Shared>, link: &Arc<Link>, end: &NodeEnd) {
        // From here on the socket takes nothing more: what it has taken is known, and given up below.
        self.hang_up();
        let (here, calls) = self.maps.lock().close();
        here.iter().for_each(Foreign::orphan);
        drop(here);
        // Before the two can meet again: what is asked then is answered.
        let unanswered = link.peer.state.lock().all_awaiting_node(link.id);
        for call in unanswered {
            let failure = Failure::new(Reason::PeerUnreachable, "the node's socket was lost");
            let effects = link.peer.state.lock().lost_at_node(call, link.id, failure);
            shared.perform(effects);
        }
        self.meeting.lock().end(Instant::now());
        shared.counters.node_closed.add(end.label());
        let (peer, refused) = (&link.peer.name, end.is_refusal().then_some(Why::SegmentRefused));
        match refused {
            Some(_) => {
                tracing::warn!(%peer, %end, "memory of the peer was refused: its tensors come another way");
            }
            None => tracing::info!(%peer, %end, "memory is not shared with the peer any more"),
        }
        give_up(shared, link, calls, &format!("the node's socket was lost: {end}"), refused);
        link.peer.changed.notify_all();
    }

    /// Calls at the other end's socket, on a thread of its own.
    fn call(&self, shared: &Arc<Shared>, link: &Arc<Link>) {
        let (on_thread, called) = (Arc::clone(shared), Arc::clone(link));
        let spawned = shared.spawn("tl-node", move || {
            let Some(shm) = called.ways.shm() else { return };
            let until = Instant::now() + on_thread.config.handshake;
            let dial = || match nodes_differ(&on_thread, &called.peer.name) {
                true => Err(bind::Unproven::OtherNode),
                false => bind::dial(shm, until),
            };
            match on_thread.caught("node call", dial) {
                Some(Ok(socket)) => shm.met(&on_thread, &called, socket, None),
                None => {
                    shm.meeting.lock().failed(Instant::now(), false);
                    called.peer.changed.notify_all();
                }
                Some(Err(unproven)) => {
                    let unproven = unproven.after(on_thread.config.handshake);
                    on_thread.counters.node_refused.add(unproven.label());
                    tracing::debug!(peer = %called.peer.name, %unproven, "no memory is shared with the peer");
                    shm.meeting.lock().failed(Instant::now(), unproven.is_other_node());
                    called.peer.changed.notify_all();
                }
            }
        });
        if !spawned {
            self.meeting.lock().failed(Instant::now(), false);
        }
    }
}

impl Transport for Shm {
    fn way(&self) -> Way {
        Way::Shm
    }

    /// Never by itself: a map is ordered as one, by whoever knows what to do with it.
    fn suits(&self, _bytes: u64) -> Suits {
        Suits::No
    }

    fn serve(&self, head: Vec<u8>, bulk: OutgoingPull) -> Result<(), SendError> {
        self.keep(&bulk)?;
        self.outbox.submit(head)
    }

    fn close(&self, call: u64, _end: Option<Vec<u8>>) -> Result<(), SendError> {
        let block = {
            let mut lent = self.lent.lock();
            lent.remove_gpu(call);
            lent.remove(call)
        };
        drop(block);
        Ok(())
    }

    /// A pull into a landing never comes this way; see [`Shm::find`].
    fn bring(&self, _call: u64, _deadline: Instant, _pull: &mut PullCall) {}

    fn tend(&self) -> Option<Instant> {
        let (asks, on_gpus) = {
            let mut maps = self.maps.lock();
            (maps.asks(), maps.asks_of_gpus())
        };
        let socket = self.meeting.lock().socket();
        if let Some(socket) = &socket {
            let ask = |want, again: &dyn Fn(&mut Maps<Foreign>)| match socket.send(want) {
                Ok(()) => {}
                // The other end reads slowly: it is asked at the next look.
                Err(error) if error.kind() == ErrorKind::WouldBlock => again(&mut self.maps.lock()),
                Err(_) => self.hang_up(),
            };
            for segment in asks {
                ask(Message::Want { segment }, &|maps| maps.ask_again(segment));
            }
            for call in on_gpus {
                ask(Message::WantGpu { call }, &|maps| maps.ask_gpu_again(call));
            }
        }
        let now = Instant::now();
        if !self.meeting.lock().is_time(now) {
            return None;
        }
        let idle = self.maps.lock().tidy(now, |segment| segment.blocks() == 0);
        drop(idle);
        let (shared, link) = (self.shared.upgrade()?, self.link.upgrade()?);
        if socket.is_some() || self.node.socket().is_none() {
            return None;
        }
        if !self.dials {
            let is_listed = directory::is_listed(self.node.directory(), &self.theirs);
            self.meeting.lock().looked(is_listed);
        } else if self.meeting.lock().is_due(now) {
            self.call(&shared, &link);
        }
        // Its time is that of the scheduler's rounds.
        None
    }

    fn end(&self) {
        self.meeting.lock().over();
        self.hang_up();
        let blocks = self.lent.lock().end();
        // Whoever read over this connection may still map them, and so may its clients, dead or alive.
        for (_, block) in blocks {
            self.node.arena().pin_until_witness_ends(block.segment_id(), self.holder, vec![block]);
        }
    }
}

/// Calls that wait for a segment that does not come. `why` is told of routes to the peer for a while, where it is known.
fn give_up(shared: &Arc<Shared>, link: &Arc<Link>, calls: Vec<u64>, told: &str, why: Option<Why>) {
    for call in calls {
        let failure = Failure::new(Reason::PeerUnreachable, told);
        let effects = link.peer.state.lock().not_mapped(call, link, failure, why);
        shared.perform(effects);
    }
}

/// Reason for which a peer is not to be met, by what both tell of their sockets and what the table says of their nodes.
pub(in crate::peer) fn apart(
    shared: &Shared,
    peer: &PeerName,
    ours: &SocketName,
    theirs: Option<&SocketName>,
) -> Option<Apart> {
    let Some(theirs) = theirs else { return Some(Apart::Untold) };
    if nodes_differ(shared, peer) {
        return Some(Apart::OtherNode);
    }
    ours.apart(theirs)
}

/// Returns whether the table of peers has another node for a peer than for this one. Where it does not know, it says no.
pub(super) fn nodes_differ(shared: &Shared, peer: &PeerName) -> bool {
    let node_of = |name| shared.known.peer(name).and_then(|known| known.node);
    let both = node_of(&shared.me.peer).zip(node_of(peer));
    both.is_some_and(|(ours, theirs)| ours != theirs)
}
