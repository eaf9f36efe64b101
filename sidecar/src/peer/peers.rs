//! The endpoint: every peer of this sidecar, and what can be asked of them.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message;
use socket2::SockRef;
use tensorlane_proto::encoded::PulledSmall;
use tensorlane_proto::frame::{ITEMS_MAX, PEER_BODY_MAX};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Fingerprint, Incarnation, PeerName, Reason};

use super::api::{Keys, Known, MapFailed, MapOrder, Me, PeersConfig, PullFailed, PullOrder, Serve};
use super::calls::{InquireDone, Kind, MapCall, MapDone, PullCall, Question, SetDone, SmallCall, SmallDone};
use super::connect;
use super::counters::Counters;
use super::link::{Ended, Link};
use super::remote::Peer;
use super::shared::{Shared, World};
use super::transport::lanes::quic::QuicEndpoint;
use crate::metrics::label::PanicScope;

/// Time that connections may take to say what waits, and Goodbye, when we stop.
const FAREWELL: Duration = Duration::from_secs(2);

/// A call under way. Dropping it changes nothing.
#[derive(Clone)]
pub struct CallHandle {
    /// The peer's calls and the call; none for a call that was over at once.
    pub(super) call: Option<(Weak<Shared>, Arc<Peer>, u64)>,
}

impl CallHandle {
    /// Ends the call with CANCELLED, unless it is over. Its outcome is told as always.
    pub fn cancel(&self) {
        let Some((shared, peer, number)) = &self.call else { return };
        let Some(shared) = shared.upgrade() else { return };
        let effects =
            peer.state.lock().withdraw(*number, Failure::new(Reason::Cancelled, "the caller gave up"));
        shared.perform(effects);
    }
}

/// Hold of a connection, which gives way to no other one meanwhile.
#[derive(Debug)]
pub struct PeerHold {
    _held: Arc<()>,
}

/// All connections of this sidecar.
pub struct Peers {
    pub(super) shared: Arc<Shared>,
    listener: TcpListener,
    bound: SocketAddr,
    own_threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Peers {
    /// Listens, and begins to dial the peers that are ours to dial.
    ///
    /// # Errors
    /// Where the address cannot be listened on, or a thread not be started.
    pub fn start(
        config: PeersConfig,
        keys: Keys,
        known: Arc<dyn Known>,
        me: Me,
        serve: Arc<dyn Serve>,
        counters: Arc<Counters>,
    ) -> io::Result<Arc<Self>> {
        let (listener, datagrams) = connect::bind(config.listen, config.lanes.quic > 0)?;
        let bound = listener.local_addr()?;
        let idle = config.lanes.idle;
        let world = World { config, me, keys, known, serve, counters };
        let shared = Arc::new_cyclic(|own| Shared::new(world, Weak::clone(own)));
        let peers = Arc::new(Self {
            shared: Arc::clone(&shared),
            listener: listener.try_clone()?,
            bound,
            own_threads: Mutex::default(),
        });
        if let Some(socket) = datagrams {
            shared.open_door(&QuicEndpoint::open(socket, &shared.keys(), idle, &shared.config.threads)?);
        }
        if let Some(node) = &shared.node {
            node.start(&shared);
        }
        let scheduler = Arc::clone(&shared);
        let threads = shared.config.threads.clone();
        let mut own = vec![
            threads
                .start("tl-peer-clock", PanicScope::Process, move || scheduler.scheduler.run(&scheduler))?,
        ];
        let listen = move || connect::listen(&shared, &listener);
        match threads.start("tl-peer-listen", PanicScope::Process, listen) {
            Ok(listening) => own.push(listening),
            Err(error) => {
                *peers.own_threads.lock() = own;
                peers.stop();
                return Err(error);
            }
        }
        *peers.own_threads.lock() = own;
        Ok(peers)
    }

    /// Address on which it listens.
    pub fn bound_address(&self) -> SocketAddr {
        self.bound
    }

    /// Says Goodbye on every connection and ends every thread; calls that are not over fail with DRAINING. A second time
    /// it does nothing.
    pub fn stop(&self) {
        let shared = &self.shared;
        if !shared.begin_to_stop() {
            return;
        }
        if let Some(endpoint) = shared.endpoint() {
            endpoint.stop();
        }
        // A listener that was shut down accepts no more, and its thread returns.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        for thread in std::mem::take(&mut *self.own_threads.lock()) {
            let _ = thread.join();
        }
        let draining = Failure::new(Reason::Draining, "this sidecar is stopping");
        for peer in shared.peers() {
            let (link, effects) = {
                let mut state = peer.state.lock();
                (state.link.clone(), state.fail_all(&draining))
            };
            shared.perform(effects);
            if let Some(link) = link {
                link.channels.stop(&link);
                link.end_in_order(Ended::Stopped);
            }
            peer.changed.notify_all();
        }
        // Those that are away, and so have heard nothing of it.
        shared.serve.stopping();
        self.join_connections();
        if let Some(endpoint) = shared.endpoint() {
            endpoint.end();
        }
    }

    fn join_connections(&self) {
        let until = Instant::now() + FAREWELL;
        for thread in self.shared.take_threads() {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                for peer in self.shared.peers() {
                    let link = peer.state.lock().link.clone();
                    if let Some(link) = link {
                        link.end(Ended::Stopped);
                    }
                }
            }
            // A panic has been counted.
            let _ = thread.join();
        }
    }

    /// Fetches a tensor, or a part of it, of another peer into a landing. `expected`: the incarnation that owns it; another
    /// one means OWNER_LOST. `done` is told the outcome exactly once.
    pub fn pull(
        &self,
        peer: &PeerName,
        expected: Option<Incarnation>,
        order: PullOrder,
        done: impl FnOnce(Result<super::Pulled, PullFailed>) + Send + 'static,
    ) -> CallHandle {
        let PullOrder { id, selection, bytes, stored, landing, deadline, transport, growth } = order;
        let done = self.measuring(peer, transport, bytes, Box::new(done));
        if landing.len() != bytes {
            let message = format!("a landing of {} bytes cannot take {bytes}", landing.len());
            let failure = Failure::new(Reason::InvalidArgument, message);
            done(Err(PullFailed { landing, failure }));
            return CallHandle { call: None };
        }
        let mut call = PullCall::new((id, selection, bytes), transport, landing, growth, done);
        call.stored = stored;
        self.call(peer, expected, deadline, Kind::Pull(Box::new(call)))
    }

    /// Maps a tensor of a peer of this node, as a whole and where it lies. `expected`: as for a pull. `done` is told the
    /// outcome exactly once.
    pub fn map(
        &self,
        peer: &PeerName,
        expected: Option<Incarnation>,
        order: MapOrder,
        done: impl FnOnce(Result<super::Mapped, MapFailed>) + Send + 'static,
    ) -> CallHandle {
        let done: MapDone = Box::new(done);
        let MapOrder { id, owner, bytes, gpus, deadline } = order;
        let call = MapCall {
            id,
            owner,
            bytes,
            gpus,
            allocation: 0,
            at_node: false,
            opened: false,
            head: None,
            place: None,
            done: Some(done),
        };
        self.call(peer, expected, deadline, Kind::Map(Box::new(call)))
    }

    /// Fetches small tensors, at most 4,096, in one frame. Their answers (up to 64 KiB each) must fit into 4 MiB together;
    /// those that do not come back with LIMIT_EXCEEDED and are to be asked for again.
    pub fn pull_small(
        &self,
        peer: &PeerName,
        expected: Option<Incarnation>,
        asked: v1::PullMany,
        deadline: Instant,
        done: impl FnOnce(Result<Vec<PulledSmall>, Failure>) + Send + 'static,
    ) -> CallHandle {
        let done: SmallDone = Box::new(done);
        if asked.ids.len() > ITEMS_MAX {
            let message = format!("{} tensors in one request; {ITEMS_MAX} is the limit", asked.ids.len());
            done(Err(Failure::new(Reason::TooLarge, message)));
            return CallHandle { call: None };
        }
        self.call(
            peer,
            expected,
            deadline,
            Kind::Small(SmallCall { asked, stood_still: false, done: Some(done) }),
        )
    }

    /// Asks what a peer knows of tensors.
    pub fn inquire(
        &self,
        peer: &PeerName,
        expected: Option<Incarnation>,
        question: impl Into<Question>,
        deadline: Instant,
        done: impl FnOnce(Result<v1::Inquired, Failure>) + Send + 'static,
    ) -> CallHandle {
        let (question, done): (Question, InquireDone) = (question.into(), Box::new(done));
        if question.targets() > ITEMS_MAX {
            let message = format!("{} targets in one request; {ITEMS_MAX} is the limit", question.targets());
            done(Err(Failure::new(Reason::TooLarge, message)));
            return CallHandle { call: None };
        }
        self.call(peer, expected, deadline, Kind::Inquire { question, done: Some(done) })
    }

    /// Asks a peer for something about a mutable set of its own.
    pub fn set_call(
        &self,
        peer: &PeerName,
        expected: Option<Incarnation>,
        message: v1::SetCall,
        deadline: Instant,
        done: impl FnOnce(Result<v1::SetAnswer, Failure>) + Send + 'static,
    ) -> CallHandle {
        let (done, message): (SetDone, _) = (Box::new(done), Box::new(message));
        if message.encoded_len() > PEER_BODY_MAX as usize {
            let what = format!("the request has more than {PEER_BODY_MAX} bytes; ask for fewer rows at once");
            done(Err(Failure::new(Reason::TooLarge, what)));
            return CallHandle { call: None };
        }
        self.call(peer, expected, deadline, Kind::Set { message, done: Some(done) })
    }

    /// Turns a ticket of a peer into a lease of this one, of the tensor of that number. `expected`: the incarnation that made it.
    pub fn redeem(
        &self,
        peer: &PeerName,
        (id, expected): (u64, Incarnation),
        message: v1::PeerRedeem,
        deadline: Instant,
        done: impl FnOnce(Result<super::PullGuard, Failure>) + Send + 'static,
    ) -> CallHandle {
        let kind = Kind::Redeem { message, id, home: None, done: Some(Box::new(done)) };
        self.call(peer, Some(expected), deadline, kind)
    }

    /// Asks a peer for its names, or for changes of them.
    pub fn watch(
        &self,
        peer: &PeerName,
        message: v1::WatchRequest,
        deadline: Instant,
        done: impl FnOnce(Result<v1::WatchResponse, Failure>) + Send + 'static,
    ) -> CallHandle {
        self.call(peer, None, deadline, Kind::Watch { message, done: Some(Box::new(done)) })
    }

    fn call(
        &self,
        name: &PeerName,
        expected: Option<Incarnation>,
        deadline: Instant,
        kind: Kind,
    ) -> CallHandle {
        self.shared.call(name, expected, deadline, kind)
    }

    /// Waits for a connection to a peer; its incarnation. Asks the directory again where it does not list the peer.
    ///
    /// # Errors
    /// PEER_UNKNOWN; PEER_UNREACHABLE with the last error, after one failed attempt or at the deadline.
    pub fn ensure(&self, name: &PeerName, deadline: Instant) -> Result<Incarnation, Failure> {
        let limit = deadline.saturating_duration_since(Instant::now());
        let peer = self.shared.peer_of(name).or_else(|_| {
            self.shared.known.refresh();
            self.shared.peer_of(name)
        })?;
        let mut state = peer.state.lock();
        if let Some(link) = &state.link {
            return Ok(link.incarnation);
        }
        let before = state.dial.begun;
        state.waiters += 1;
        drop(state);
        self.shared.scheduler.wake();
        let mut state = peer.state.lock();
        let outcome = loop {
            if let Some(link) = &state.link {
                break Ok(link.incarnation);
            }
            if self.shared.is_stopping() {
                break Err(Failure::new(Reason::Draining, "this sidecar is stopping"));
            }
            if state.dial.last_failed > before {
                let error = if state.last_error.is_empty() { "an attempt failed" } else { &state.last_error };
                break Err(Failure::new(Reason::PeerUnreachable, error));
            }
            if peer.changed.wait_until(&mut state, deadline).timed_out() {
                break Err(state.unreached(name, limit));
            }
        };
        state.waiters -= 1;
        outcome
    }

    /// Waits for a connection to a peer, and for a moment until it is known whether it is on this node, if memory is shared
    /// there.
    ///
    /// # Errors
    /// As [`Peers::ensure`].
    pub fn meet(&self, name: &PeerName, deadline: Instant) -> Result<(), Failure> {
        self.ensure(name, deadline)?;
        let Some(peer) = self.shared.known_peer(name) else { return Ok(()) };
        let mut state = peer.state.lock();
        while state
            .link
            .as_ref()
            .and_then(|link| link.ways.shm())
            .is_some_and(super::transport::shm::Shm::is_pending)
            && !self.shared.is_stopping()
            && Instant::now() < deadline
        {
            // Not told of in every case: looked at again and again for that short time.
            peer.changed.wait_for(&mut state, Duration::from_millis(10));
        }
        Ok(())
    }

    /// From now on connections are made with these keys; those that are up stay.
    pub fn use_keys(&self, keys: &Keys) {
        self.shared.use_keys(keys);
    }

    /// Number of connections that were made with a key of ours.
    pub fn made_with(&self, ours: &Fingerprint) -> usize {
        self.links_with(ours).count()
    }

    /// Ends the connections that were made with a key of ours, in order. Calls on them go on, on the next connection.
    pub fn end_made_with(&self, ours: &Fingerprint) {
        self.shared.retire(*ours);
        for link in self.links_with(ours) {
            link.end_in_order(Ended::Rotated);
        }
        self.shared.scheduler.wake();
    }

    fn links_with(&self, ours: &Fingerprint) -> impl Iterator<Item = Arc<Link>> + use<> {
        let ours = *ours;
        let links = self.shared.peers().into_iter().filter_map(|peer| peer.state.lock().link.clone());
        links.filter(move |link| link.ours == ours)
    }

    /// Keeps the connection to a peer in use until it is dropped: for whoever has something there between two calls. None where
    /// there is no such peer.
    pub fn hold(&self, name: &PeerName) -> Option<PeerHold> {
        let peer = self.shared.peer_of(name).ok()?;
        Some(PeerHold { _held: Arc::clone(&peer.held) })
    }

    /// Rounds of its clock that are over: each looks at every peer.
    #[cfg(test)]
    pub(super) fn rounds(&self) -> u64 {
        self.shared.scheduler.rounds()
    }

    /// Returns whether an attempt to connect is under way.
    #[cfg(test)]
    pub(super) fn is_dialing(&self) -> bool {
        self.shared.peers().iter().any(|peer| peer.state.lock().dial.running)
    }

    /// Threads that run for it.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.shared.counts().0 + self.own_threads.lock().len()
    }

    #[cfg(test)]
    pub(super) fn strangers(&self) -> usize {
        self.shared.counts().1
    }

    /// Lanes that are up or being dialed.
    #[cfg(test)]
    pub(super) fn lanes(&self) -> usize {
        self.shared.lane_room.used()
    }

    #[cfg(test)]
    pub(super) fn rekey_every(&self, name: &PeerName, records: u64) {
        let link = self.shared.peer(name).state.lock().link.clone();
        link.expect("a test that changes keys is connected").outbox.rekey_every(records);
    }

    /// Counters of what happened.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop();
    }
}
