//! State that all threads of [`super::Peers`] share, and how connections change hands between them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use tensorlane_proto::frame::PEER_GPUS_SINCE;
use tensorlane_proto::{Failure, Fingerprint, Incarnation, PeerName, Reason};

use super::api::{Keys, Known, Me, PeerKey, PeersConfig, Serve};
use super::calls::{Call, Kind};
use super::claim::Proven;
use super::connect::Refused;
use super::counters::Counters;
use super::dial::{self, Candidate};
use super::gpus::{self, ReachableGpu};
use super::link::{Ended, Link};
use super::own_addresses::OwnAddresses;
use super::peers::CallHandle;
use super::refused_keys::RefusedKeys;
use super::relay;
use super::remote::{Effects, Patience, Peer};
use super::row_lists::RowLists;
use super::scheduler::Scheduler;
use super::seats::{LackingSide, NoSeat, Seating, Sitter, Taken, seating};
use super::serving;
use super::strangers::{Strangers, TooMany};
use super::transport::lanes::Room;
use super::transport::lanes::quic::QuicEndpoint;
use super::transport::shm::Node;
use crate::cancel::Cancel;
use crate::metrics::label::PanicScope;

/// Peers that the directory lists no more of which something is still known: which of their lives are over, and why they were lost.
/// Each costs about a kilobyte, and some hundred bytes for each tensor of ours that it had mapped. Of those that left before them a
/// get says that nobody knows them, and not that their tensors are lost.
pub(super) const LEFT_MAX: usize = 256;

/// State that all threads share.
pub(super) struct Shared {
    /// Itself, for what goes on after a call.
    own: Weak<Self>,
    pub(super) config: PeersConfig,
    pub(super) me: Me,
    keys: RwLock<Arc<Keys>>,
    /// The last key of ours that nothing is to be connected with any more.
    retired: Mutex<Option<Fingerprint>>,
    pub(super) known: Arc<dyn Known>,
    /// Holders of the keys that several peers claim.
    pub(super) proven: Proven,
    pub(super) serve: Arc<dyn Serve>,
    pub(super) counters: Arc<Counters>,
    pub(super) scheduler: Scheduler,
    peers: Mutex<HashMap<PeerName, Arc<Peer>>>,
    next_call: AtomicU64,
    next_link: AtomicU64,
    stopping: AtomicBool,
    paused: (Mutex<()>, Condvar),
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Sockets of connections that are not up yet, to be cut when we stop.
    unready: Mutex<HashMap<u64, (TcpStream, Arc<AtomicBool>)>>,
    /// Connections of which nobody knows yet whose they are.
    unknown: Mutex<Strangers>,
    /// Keys that were refused because nobody lists them.
    pub(super) refused_keys: RefusedKeys,
    /// Looks at where the addresses of this peer lead.
    pub(super) own_addresses: OwnAddresses,
    /// Peers that are about to be connected. Locked before what is known of any peer.
    coming: Mutex<Vec<PeerName>>,
    /// For the lanes of all peers together.
    pub(super) lane_room: Room,
    /// Lists of rows of all peers' pulls from here.
    pub(super) row_lists: Arc<RowLists>,
    /// Endpoint of QUIC, if there is one.
    endpoint: OnceLock<Arc<QuicEndpoint>>,
    /// The sidecar at its node, if memory is shared there.
    pub(super) node: Option<Arc<Node>>,
    /// GPUs that this side reaches, as it tells others.
    gpus: Mutex<Vec<ReachableGpu>>,
}

/// Identity of this sidecar and what is around it.
pub(super) struct World {
    pub(super) config: PeersConfig,
    pub(super) me: Me,
    pub(super) keys: Keys,
    pub(super) known: Arc<dyn Known>,
    pub(super) serve: Arc<dyn Serve>,
    pub(super) counters: Arc<Counters>,
}

/// A socket that [`Peers::stop`] may shut down, for as long as this lives.
pub(super) struct Registered {
    shared: Arc<Shared>,
    number: u64,
    /// Time at which the socket was connected, as far as is known.
    pub(super) begun: Instant,
    is_stranger: bool,
    /// Becomes true when it was cut: by [`Shared::cut`], or to make room for another one.
    was_cut: Arc<AtomicBool>,
}

/// A place among the peers that may be connected, from before its connection is up; then the connection has it.
pub(super) struct Seat<'a> {
    shared: &'a Shared,
    peer: PeerName,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut coming = self.shared.coming.lock();
        if let Some(at) = coming.iter().position(|coming| *coming == self.peer) {
            coming.swap_remove(at);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.unready.lock().remove(&self.number);
        if self.is_stranger {
            self.shared.unknown.lock().leave(self.number);
        }
    }
}

impl Registered {
    /// Number by which [`Shared::cut`] knows it.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Notes that it has begun a handshake: it gives way to nobody any more.
    pub(super) fn heard(&self) {
        self.shared.unknown.lock().heard(self.number);
    }

    /// Checks that it was not cut yet.
    ///
    /// # Errors
    /// ConnectionAborted, if it was.
    pub(super) fn check(&self) -> io::Result<()> {
        let is_over = self.was_cut.load(Ordering::Acquire) || self.shared.is_stopping();
        if is_over { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    /// Becomes true when it was cut here.
    pub(super) fn was_cut(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.was_cut)
    }
}

impl Shared {
    pub(super) fn new(world: World, own: Weak<Self>) -> Self {
        let World { config, me, keys, known, serve, counters } = world;
        let node = config.node.clone().map(|node| Arc::new(Node::new(node, &keys.fingerprint)));
        let (strangers, lanes) = (config.strangers_max, config.lanes.most);
        Self {
            own,
            config,
            me,
            keys: RwLock::new(Arc::new(prepare(&keys))),
            retired: Mutex::new(None),
            known,
            proven: Proven::default(),
            serve,
            counters,
            scheduler: Scheduler::default(),
            peers: Mutex::default(),
            // 0 is the call of frames that belong to none.
            next_call: AtomicU64::new(1),
            next_link: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            paused: Default::default(),
            threads: Mutex::default(),
            unready: Mutex::default(),
            unknown: Mutex::new(Strangers::new(strangers)),
            refused_keys: RefusedKeys::default(),
            own_addresses: OwnAddresses::default(),
            coming: Mutex::default(),
            lane_room: Room::new(lanes),
            row_lists: Arc::default(),
            endpoint: OnceLock::new(),
            node,
            gpus: Mutex::default(),
        }
    }

    /// From now on QUIC is spoken.
    pub(super) fn open_door(self: &Arc<Self>, endpoint: &Arc<QuicEndpoint>) {
        // Opened once, by whoever made this.
        let _ = self.endpoint.set(Arc::clone(endpoint));
        endpoint.listen(self);
    }

    /// Endpoint of QUIC.
    pub(super) fn endpoint(&self) -> Option<Arc<QuicEndpoint>> {
        self.endpoint.get().cloned()
    }

    /// The keys for a connection that begins now.
    pub(super) fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read())
    }

    /// From now on connections are made with other keys.
    pub(super) fn use_keys(&self, keys: &Keys) {
        *self.keys.write() = Arc::new(prepare(keys));
        if let Some(endpoint) = self.endpoint.get() {
            endpoint.use_keys(keys);
        }
    }

    /// Nothing is to be connected with this key any more. A handshake that is under way with it now comes up later, and
    /// is found by the scheduler.
    pub(super) fn retire(&self, ours: Fingerprint) {
        *self.retired.lock() = Some(ours);
    }

    pub(super) fn is_retired(&self, ours: &Fingerprint) -> bool {
        self.retired.lock().as_ref() == Some(ours)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits, but not when we stop.
    pub(super) fn pause(&self, time: Duration) {
        let mut guard = self.paused.0.lock();
        if !self.is_stopping() {
            self.paused.1.wait_for(&mut guard, time);
        }
    }

    pub(super) fn next_call(&self) -> u64 {
        self.next_call.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn next_link(&self) -> u64 {
        self.next_link.fetch_add(1, Ordering::Relaxed)
    }

    /// The peer of a name.
    pub(super) fn peer(&self, name: &PeerName) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(name) {
            return Arc::clone(peer);
        }
        let peer = Arc::new(Peer::new(name.clone()));
        peers.insert(name.clone(), Arc::clone(&peer));
        peer
    }

    /// The peer of a name, if there was reason to think of it.
    pub(super) fn known_peer(&self, name: &PeerName) -> Option<Arc<Peer>> {
        self.peers.lock().get(name).cloned()
    }

    /// Every peer there was reason to think of.
    pub(super) fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.lock().values().cloned().collect()
    }

    /// Forgets those that left the directory, down to so many: first those that never had a connection, and of the others those
    /// that lost theirs longest ago.
    pub(super) fn forget_left(&self, most: usize, is_listed: impl Fn(&PeerName) -> bool) {
        let now = Instant::now();
        let mut left = self.peers();
        left.retain(|peer| !is_listed(&peer.name));
        let mut count = left.len().saturating_sub(most);
        if count == 0 {
            return;
        }
        left.retain(|peer| peer.state.lock().may_be_forgotten(self.config.grace, now));
        left.sort_by_cached_key(|peer| peer.state.lock().lost);
        for peer in &left {
            if count == 0 {
                return;
            }
            // Some cannot go yet, for somebody has to do with them.
            count -= usize::from(self.forget(peer, now));
        }
    }

    /// Returns whether it is forgotten.
    fn forget(&self, peer: &Arc<Peer>, now: Instant) -> bool {
        // Meanwhile no connection of it comes up; one that does now is waited for by nobody here.
        let Some(_handover) = peer.handover.try_lock() else { return false };
        let may_be_forgotten = || peer.state.lock().may_be_forgotten(self.config.grace, now);
        if !may_be_forgotten() {
            return false;
        }
        let life = peer.state.lock().give_up_life();
        if let Some(incarnation) = life {
            self.serve.peer_over(&PeerKey { name: peer.name.clone(), incarnation });
        }
        let mut peers = self.peers.lock();
        // The map's and ours: whom nobody else holds nobody comes to hold while the map is locked.
        Arc::strong_count(peer) == 2 && may_be_forgotten() && peers.remove(&peer.name).is_some()
    }

    /// Does what a state change asked for. Called without locks.
    pub(super) fn perform(&self, effects: Effects) {
        let Effects { send, at_node, finish, over, gone, relays, expected, wake, told } = effects;
        if let Some((link, mut frames)) = send {
            let together = if frames.len() == 1 { frames.swap_remove(0) } else { frames.concat() };
            link.submit(together);
        }
        for (link, call, frame) in at_node {
            link.ask_at_node(call, frame);
        }
        drop(told);
        self.scheduler.forget(&over);
        gone.iter().for_each(Cancel::cancel);
        for (deadline, call, peer) in expected {
            self.scheduler.expect(deadline, call, &peer);
        }
        for finish in finish {
            // A panic there is of that call, and not of whoever performs this: the clock does, and threads of connections.
            let _ = self.config.threads.caught("call ends", PanicScope::Call, finish);
        }
        if let Some(own) = self.own.upgrade().filter(|_| !relays.is_empty()) {
            relays.into_iter().for_each(|wish| relay::begin(&own, wish));
        }
        if wake {
            self.scheduler.wake();
        }
    }

    /// Begins a call to a peer.
    pub(super) fn call(
        self: &Arc<Self>,
        name: &PeerName,
        expected: Option<Incarnation>,
        deadline: Instant,
        kind: Kind,
    ) -> CallHandle {
        let shared = self;
        let number = shared.next_call();
        let mut call = Call::new(kind, deadline, number, expected);
        let refused = match self.peer_of(name) {
            Ok(_) if shared.is_stopping() => Failure::new(Reason::Draining, "this sidecar is stopping"),
            Err(failure) => failure,
            Ok(peer) => {
                let place = || Some((Arc::downgrade(shared), Arc::clone(&peer)));
                match &mut call.kind {
                    Kind::Pull(pull) => pull.home = place(),
                    Kind::Redeem { home, .. } => *home = place(),
                    _ => {}
                }
                let (effects, needs_link) = {
                    let mut state = peer.state.lock();
                    // Under the lock: a deadline that is over already must find its call.
                    shared.scheduler.expect(deadline, number, &peer);
                    let effects = state.place(call);
                    (effects, state.needs_link())
                };
                shared.perform(effects);
                if needs_link {
                    shared.scheduler.wake();
                }
                return CallHandle { call: Some((Arc::downgrade(shared), peer, number)) };
            }
        };
        if let Some(finish) = call.fail(refused) {
            finish();
        }
        CallHandle { call: None }
    }

    /// The peer of a name, if the directory lists it or it is connected.
    pub(super) fn peer_of(&self, name: &PeerName) -> Result<Arc<Peer>, Failure> {
        if let Some(peer) = self.known_peer(name)
            && peer.state.lock().link.is_some()
        {
            return Ok(peer);
        }
        if *name == self.me.peer || self.known.peer(name).is_none() {
            let message = format!("the directory of {} lists no other peer {name}", self.me.exchange);
            return Err(Failure::new(Reason::PeerUnknown, message));
        }
        Ok(self.peer(name))
    }

    /// Starts a thread of one connection, that [`Peers::stop`] joins. False where there can be no more.
    pub(super) fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> bool {
        self.spawn_for(PanicScope::Connection, name, work)
    }

    /// Starts a thread of one connection on which so much depends.
    pub(super) fn spawn_for(
        &self,
        scope: PanicScope,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> bool {
        let mut threads = self.threads.lock();
        if self.is_stopping() {
            return false;
        }
        threads.retain(|thread| !thread.is_finished());
        match self.config.threads.start(name, scope, work) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                tracing::warn!(%error, thread = name, "a thread could not be started");
                return false;
            }
        }
        true
    }

    /// Work of one connection, which ends with it where it panics; then there is no result.
    pub(super) fn caught<T>(&self, name: &str, work: impl FnOnce() -> T) -> Option<T> {
        self.config.threads.caught(name, PanicScope::Connection, || {
            self.config.threads.point(name);
            work()
        })
    }

    /// From now on nothing is begun, and what was begun and is not up is cut. False the second time.
    pub(super) fn begin_to_stop(&self) -> bool {
        {
            let _nothing_is_spawned = self.threads.lock();
            if self.stopping.swap(true, Ordering::AcqRel) {
                return false;
            }
        }
        self.scheduler.stop();
        self.config.resolver.stop();
        {
            // Under the lock: whoever has looked at `stopping` and does not wait yet would not hear of it.
            let _all_wait = self.paused.0.lock();
            self.paused.1.notify_all();
        }
        if let Some(node) = &self.node {
            node.stop();
        }
        for (socket, _) in self.unready.lock().values() {
            // An error means that it is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        true
    }

    /// The threads that were spawned and not joined.
    pub(super) fn take_threads(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.threads.lock())
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.threads.lock().len(), self.unknown.lock().count())
    }

    /// Remembers the socket of a connection that is not up yet.
    pub(super) fn register(self: &Arc<Self>, socket: &TcpStream) -> io::Result<Registered> {
        let registered = self.registered(self.next_link(), false);
        self.remember(&registered, socket)?;
        Ok(registered)
    }

    fn registered(self: &Arc<Self>, number: u64, is_stranger: bool) -> Registered {
        let (shared, was_cut) = (Arc::clone(self), Arc::default());
        Registered { shared, number, begun: Instant::now(), is_stranger, was_cut }
    }

    fn remember(&self, registered: &Registered, socket: &TcpStream) -> io::Result<()> {
        let mut unready = self.unready.lock();
        if self.is_stopping() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        unready.insert(registered.number, (socket.try_clone()?, registered.was_cut()));
        Ok(())
    }

    /// Shuts down a socket of a connection that is not up yet, if it is none by now.
    pub(super) fn cut(&self, number: u64) {
        if let Some((socket, was_cut)) = self.unready.lock().get(&number) {
            was_cut.store(true, Ordering::Release);
            // An error means that it is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Room for one more connection of which nobody knows yet whose it is. A silent one may have to give way for it.
    pub(super) fn admit_unknown(self: &Arc<Self>, socket: &TcpStream, from: IpAddr) -> Option<Registered> {
        let guard = self.admit_stranger(from)?;
        self.remember(&guard, socket).ok()?;
        Some(guard)
    }

    /// Room for a connection that is not a socket of its own, and is cut by whoever owns that.
    pub(super) fn admit_stranger(self: &Arc<Self>, from: IpAddr) -> Option<Registered> {
        if self.is_stopping() {
            return None;
        }
        let number = self.next_link();
        let admitted = self.unknown.lock().admit(number, from, || self.is_listed(from));
        let too_many = |too_many: &TooMany| {
            self.counters.auth_refused.add(too_many.label());
            tracing::debug!(%from, reason = too_many.label(), "connection refused");
        };
        if let Some(silent) = admitted.inspect_err(too_many).ok()? {
            self.counters.auth_refused.add("gave_way");
            if let Some((socket, was_cut)) = self.unready.lock().get(&silent) {
                was_cut.store(true, Ordering::Release);
                // Its thread ends with it. One that is closed already has nothing to shut down.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
        Some(self.registered(number, true))
    }

    /// Returns whether the table of peers lists an address. Peers that are listed by a name of DNS are not found so.
    fn is_listed(&self, from: IpAddr) -> bool {
        !self.known.at(from.to_canonical()).is_empty()
    }

    /// A place for the connection of a peer that comes up now. `needed`: somebody waits for it, at either end, so that one that nobody
    /// uses gives way.
    ///
    /// # Errors
    /// All are taken by others.
    pub(super) fn seat(&self, peer: &Arc<Peer>, needed: bool) -> Result<Seat<'_>, Refused> {
        let mut coming = self.coming.lock();
        if !has_seat(&coming, peer) {
            let others = self.others(&coming, Some(peer));
            match others.seating(self, needed) {
                Seating::Free => {}
                Seating::GivesWay(at) => others.links[at].give_way(),
                Seating::Full(told) => return Err(Refused::NoSeat(told)),
            }
        }
        coming.push(peer.name.clone());
        Ok(Seat { shared: self, peer: peer.name.clone() })
    }

    /// Lack of a seat for whoever needs one now.
    pub(super) fn lacks_seat(&self) -> Option<NoSeat> {
        let coming = self.coming.lock();
        match self.others(&coming, None).seating(self, true) {
            Seating::Free | Seating::GivesWay(_) => None,
            Seating::Full(told) => Some(told),
        }
    }

    /// Lack of a seat for a connection from this address, as far as can be said of it: none where a peer that has a seat may be at the
    /// other end, or where nobody lists the address. A peer that is listed by a name may be at any address.
    pub(super) fn lacks_seat_for(&self, from: IpAddr) -> Option<NoSeat> {
        let listed = self.known.at(from.to_canonical());
        let is_seated =
            |coming: &[PeerName], name| self.known_peer(name).is_some_and(|peer| has_seat(coming, &peer));
        let may_be_let_in = {
            let coming = self.coming.lock();
            listed.is_empty() || listed.iter().any(|name| is_seated(&coming, name))
        };
        if may_be_let_in {
            return None;
        }
        self.lacks_seat().filter(|_| !self.seats_named_peer())
    }

    /// Returns whether a peer has a seat that is listed by a name of DNS: which addresses that has nobody knows here.
    fn seats_named_peer(&self) -> bool {
        let coming = self.coming.lock().clone();
        let is_named = |peer: &Arc<Peer>| {
            let listed = self.known.peer(&peer.name).map(|known| known.addresses).unwrap_or_default();
            listed.iter().any(|address| address.parse::<SocketAddr>().is_err())
        };
        self.peers().iter().any(|peer| has_seat(&coming, peer) && is_named(peer))
    }

    /// Returns whether there is a seat for every peer that is listed, so that all are connected ahead.
    pub(super) fn is_mesh(&self) -> bool {
        // This one is listed, too.
        self.known.count() <= self.config.peers_max.saturating_add(1)
    }

    /// Holders of seats, but for one peer.
    fn others(&self, coming: &[PeerName], but: Option<&Arc<Peer>>) -> Seated {
        let mut seated = Seated { coming: 0, leaving: 0, links: Vec::new(), used: Vec::new() };
        for other in self.peers().iter().filter(|other| but.is_none_or(|but| !Arc::ptr_eq(other, but))) {
            let state = other.state.lock();
            match &state.link {
                Some(link) if !link.gives_way() => {
                    seated.links.push(Arc::clone(link));
                    seated.used.push(state.is_used());
                    continue;
                }
                Some(_) => seated.leaving += 1,
                None => {}
            }
            seated.coming += usize::from(coming.contains(&other.name));
        }
        seated
    }

    /// Decides whether a new connection of a peer, which was begun then, may take the place of the one that is there,
    /// if any; `ours` and `theirs` are the keys that it was made with. The peer's `handover` is held; once it may, it
    /// may for as long as that is.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn may_replace(
        &self,
        peer: &Peer,
        (new, begun): (Candidate, Instant),
        ours: &Fingerprint,
        theirs: &Fingerprint,
    ) -> Result<(), Refused> {
        let state = peer.state.lock();
        if state.is_late(new.incarnation, begun) {
            return Err(Refused::Late);
        }
        let Some(old) = &state.link else { return Ok(()) };
        let young = old.since.elapsed() < self.config.handshake;
        let kept = Candidate { dialed: old.dialed, incarnation: old.incarnation };
        if dial::replaces(new, kept, young, ours, theirs) { Ok(()) } else { Err(Refused::Double) }
    }

    /// Gives a new connection its place, which it [may have](Self::may_replace). Tells `Serve` before anything is read from it.
    /// `handover` is that of its peer, held since that was decided. Its [`super::link::AdoptedLink`] is there already, and ends it
    /// whatever happens here.
    pub(super) fn adopt(self: &Arc<Self>, link: &Arc<Link>, handover: MutexGuard<'_, ()>) {
        let peer = &link.peer;
        // Whoever sees it finds it counted.
        self.counters.opened.add(if link.dialed { "us" } else { "them" });
        let (replaced, old_life, away) = {
            let state = peer.state.lock();
            let old_life = state.incarnation.filter(|old| *old != link.incarnation);
            (state.link.clone(), old_life, state.lost.map(|lost| lost.elapsed()))
        };
        if let Some(away) = away.filter(|_| old_life.is_none()) {
            if away >= self.config.grace {
                // They have ended, and must not be ended again once they are asked for anew.
                serving::end_forgotten(self, link);
            }
            self.serve.peer_back(&link.key());
        }
        peer.shunned.lock().is_back(link.incarnation);
        let effects = peer.state.lock().adopt(link);
        if let Some(incarnation) = old_life {
            // From now on nothing is entered that its connection still brings.
            self.serve.peer_over(&PeerKey { name: peer.name.clone(), incarnation });
        }
        drop(handover);
        tracing::info!(peer = %peer.name, incarnation = %link.incarnation, dialed = link.dialed, "peer connected");
        if let Some(old) = replaced {
            old.end_replaced(!self.is_mesh());
        }
        peer.changed.notify_all();
        self.say_gpus(link);
        self.perform(effects);
        self.config.threads.point("adopted");
        if self.is_stopping() {
            link.end_in_order(Ended::Stopped);
        }
    }

    /// Tells a peer that was just connected which GPUs are reached here, before anything is asked.
    fn say_gpus(&self, link: &Link) {
        // Whoever changes them has the lock, too, and tells every connection that is up.
        let gpus = self.gpus.lock();
        if link.version >= PEER_GPUS_SINCE && !gpus.is_empty() {
            link.submit(gpus::told(&gpus));
        }
    }

    /// Tells every peer the GPUs that this side reaches from now on.
    pub(super) fn tell_gpus(&self, reached: Vec<ReachableGpu>) {
        let mut gpus = self.gpus.lock();
        *gpus = reached;
        let links = self.peers().into_iter().filter_map(|peer| peer.state.lock().link.clone());
        let frame = gpus::told(&gpus);
        for link in links.filter(|link| link.version >= PEER_GPUS_SINCE) {
            link.submit(frame.clone());
        }
    }

    /// A connection has ended, and its threads with it. `gave_way`: for the sake of another one, since nobody seemed to use it.
    pub(super) fn link_ended(&self, link: &Arc<Link>, why: &str, gave_way: bool) {
        let peer = &link.peer;
        let (handover, is_mesh) = (peer.handover.lock(), self.is_mesh());
        let (present, lost, needed, effects, packed) = {
            let mut state = peer.state.lock();
            let (was_used, serves) = (state.is_used() || peer.is_held(), state.serves());
            let (present, effects) = state.link_ended(link, why, Instant::now());
            if present && gave_way {
                // Nobody was lost; whoever waits dials anew, and hears then what is wrong.
                state.last_error.clear();
            }
            // With seats for all, each is connected ahead, and nobody rests.
            let rests = present && gave_way && !was_used && !is_mesh;
            if rests {
                state.rest();
            }
            let lost = present && (!gave_way || serves);
            (present, lost, state.needs_link(), effects, state.packed.lost(link.id))
        };
        // Where the seat was given away and nothing is leased, there is nothing here that would wait for it.
        if lost {
            self.serve.peer_lost(&link.key());
        }
        drop(handover);
        // Whether their answer has come is not known: who still wants the rows asks again.
        packed.into_iter().for_each(|id| self.serve.done(&link.key(), id));
        self.perform(effects);
        if present {
            peer.changed.notify_all();
        }
        if present || needed {
            self.scheduler.wake();
        }
    }

    /// A peer will not have us: nobody waits for it.
    pub(super) fn refused(&self, peer: &Peer, why: &str) {
        let effects = peer.state.lock().refused(&Failure::new(Reason::PeerUnreachable, why));
        self.perform(effects);
    }

    /// A connection did not come up.
    pub(super) fn count_refusal(&self, refused: &Refused) {
        if let Some(label) = refused.label() {
            self.counters.auth_refused.add(label);
        }
        if let Refused::NoSeat(_) = refused {
            self.counters.no_seats.add(LackingSide::Ours.label());
        }
        if let Refused::Frame(error) = refused {
            self.counters.frames_refused.add(error.label());
        }
    }

    /// An attempt to connect is over, but not because it failed.
    pub(super) fn dial_ended(&self, peer: &Peer) {
        let needed = {
            let mut state = peer.state.lock();
            state.dial.end();
            // What waits for one, since the connection for whose sake this one was refused was lost meanwhile.
            state.needs_link()
        };
        self.scheduler.attempted(needed);
    }

    /// An attempt found no seat, at one end.
    pub(super) fn dial_found_no_seat(&self, peer: &Peer, side: LackingSide, told: NoSeat) {
        let needed = {
            let mut state = peer.state.lock();
            state.found_no_seat(side, told, Instant::now(), rand::random());
            state.needs_link()
        };
        self.counters.no_seats.add(side.label());
        peer.changed.notify_all();
        self.scheduler.attempted(needed);
    }

    pub(super) fn dial_failed(&self, peer: &Peer, attempt: u64, error: &str) {
        let patience = Patience { progress: self.config.progress, grace: self.config.grace };
        let (effects, needed) = {
            let mut state = peer.state.lock();
            state.dial.fail(attempt, Instant::now(), self.config.backoff, rand::random());
            let effects = state.dial_failed(attempt, error, patience, Instant::now());
            (effects, state.needs_link())
        };
        self.perform(effects);
        peer.changed.notify_all();
        self.scheduler.attempted(needed);
    }
}

/// Holders of seats.
struct Seated {
    coming: usize,
    leaving: usize,
    links: Vec<Arc<Link>>,
    /// Of each link whether what goes on with its peer needs it.
    used: Vec<bool>,
}

impl Seated {
    fn seating(&self, shared: &Shared, needed: bool) -> Seating {
        // One moment for all: they are compared.
        let now = Instant::now();
        let sitter = |(link, used): (&Arc<Link>, &bool)| link.sitter(shared, *used, now);
        let sitters: Vec<Sitter> = self.links.iter().zip(&self.used).map(sitter).collect();
        let (most, coming, leaving) = (shared.config.peers_max, self.coming, self.leaving);
        seating(Taken { most, coming, leaving, sitters: &sitters }, needed)
    }
}

fn has_seat(coming: &[PeerName], peer: &Peer) -> bool {
    coming.contains(&peer.name) || peer.state.lock().link.as_ref().is_some_and(|link| !link.gives_way())
}

/// Tensor bytes came from a peer.
pub(super) fn count_in(shared: &Shared, link: &Link, bytes: u64) {
    shared.counters.received(bytes);
    link.peer.bytes_in.fetch_add(bytes, Ordering::Relaxed);
}

/// Tensor bytes were sent to a peer.
pub(super) fn count_out(counters: &Counters, peer: &Peer, bytes: u64) {
    counters.sent(bytes);
    peer.bytes_out.fetch_add(bytes, Ordering::Relaxed);
}

/// Prepares what this module needs of the TLS configurations, whoever made them: keys that can be taken out for the
/// record layer, and no tickets, which it does not know.
fn prepare(keys: &Keys) -> Keys {
    let mut server = (*keys.server).clone();
    server.enable_secret_extraction = true;
    server.send_tls13_tickets = 0;
    server.max_early_data_size = 0;
    let mut client = (*keys.client).clone();
    client.enable_secret_extraction = true;
    client.enable_early_data = false;
    Keys {
        server: Arc::new(server),
        client: Arc::new(client),
        fingerprint: keys.fingerprint,
        fingerprint_of: keys.fingerprint_of,
    }
}
