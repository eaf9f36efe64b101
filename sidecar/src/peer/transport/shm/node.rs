//! The sidecar at its node: its socket in the shared directory, whoever calls there, and the leases of what was mapped
//! on their way back to their owners. One for all connections; every thread of it is joined by `Peers::stop`.

use std::collections::{BTreeMap, HashMap};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_memory::{Arena, Lease};
use tensorlane_proto::{Failure, Incarnation, PeerName, Reason};

use super::bind::{self, Unproven};
use super::directory::{Bound, name_of};
use super::place::SocketName;
use crate::metrics::label::PanicScope;
use crate::peer::link::Ended;
use crate::peer::remote::{Effects, Peer};
use crate::peer::shared::Shared;

/// Callers of whom nobody knows yet who they are. Each costs a thread, until the deadline of handshakes. Beyond them the oldest
/// gives way: a process of another pod has no number here and no user of its own by which to tell callers apart.
const STRANGERS_MAX: usize = 32;
/// Name of the thread that gives leases of maps back. No other one would.
const LEASES: &str = "tl-node-leases";
/// Numbers under which the arena knows other sidecars as holders of witnesses: far from those of sessions.
const FIRST_HOLDER: u64 = 1 << 63;

/// Configuration of memory shared with other pods of the node.
#[derive(Clone)]
pub struct NodeConfig {
    /// The directory that the sidecars of the node share.
    pub directory: PathBuf,
    /// The arena whose segments are lent, and that maps those of others.
    pub arena: Arc<Arena>,
    /// Most bytes of it that one peer, with its clients, may keep at a time, also by connections that have ended.
    pub lent_max: u64,
    /// Most bytes of GPU memory that one peer may have leased at a time.
    pub gpu_lent_max: u64,
    /// Wire that is put before the sockets of others.
    #[cfg(test)]
    pub(in crate::peer) between: Option<Between>,
}

/// Takes the end of a socket and gives what is to be in its place.
#[cfg(test)]
pub(in crate::peer) type Between = Arc<dyn Fn(UnixStream) -> UnixStream + Send + Sync>;

impl NodeConfig {
    /// A directory, and the arena whose memory is shared there: three quarters of it with one peer.
    pub fn new(directory: PathBuf, arena: Arc<Arena>) -> Self {
        let lent_max = arena.usage().total / 4 * 3;
        Self {
            directory,
            arena,
            lent_max,
            gpu_lent_max: u64::MAX,
            #[cfg(test)]
            between: None,
        }
    }

    /// Node with other bounds for each peer: bytes of the arena and of GPU memory.
    #[must_use]
    pub fn lending(self, lent_max: u64, gpu_lent_max: u64) -> Self {
        Self { lent_max, gpu_lent_max, ..self }
    }

    /// The socket of another sidecar was connected: what is said there is said here.
    pub(super) fn reached(&self, socket: UnixStream) -> UnixStream {
        #[cfg(test)]
        if let Some(between) = &self.between {
            return between(socket);
        }
        socket
    }
}

impl std::fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeConfig").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Reason for which there was no socket of ours in the directory when we last looked, so that it is said once and not
/// twice a second.
#[derive(Debug, Default)]
struct Unbound(Option<String>);

impl Unbound {
    /// Returns whether it is another error than the one before.
    fn is_news(&mut self, error: &std::io::Error) -> bool {
        let error = error.to_string();
        let is_news = self.0.as_ref() != Some(&error);
        self.0 = Some(error);
        is_news
    }
}

/// A map that nobody needs any more: its owner's lease may end.
struct Returned {
    peer: Arc<Peer>,
    incarnation: Incarnation,
    call: u64,
    id: u64,
}

/// Caller that has not said who it is, until this is dropped.
struct Stranger {
    node: Arc<Node>,
    number: u64,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.node.strangers.lock().remove(&self.number);
    }
}

/// The sidecar at its node.
pub(in crate::peer) struct Node {
    config: NodeConfig,
    name: String,
    bound: Mutex<Option<Arc<Bound>>>,
    unbound: Mutex<Unbound>,
    /// By number, which is the order of coming.
    strangers: Mutex<BTreeMap<u64, UnixStream>>,
    numbers: AtomicU64,
    /// Numbers under which each peer may have witnesses: that of its connection, and those of the ones before it.
    holders: Mutex<HashMap<PeerName, Vec<u64>>>,
    /// None once we stop.
    returns: Mutex<Option<Sender<Returned>>>,
    returned: Mutex<Option<Receiver<Returned>>>,
}

impl Node {
    pub(in crate::peer) fn new(config: NodeConfig, fingerprint: &tensorlane_proto::Fingerprint) -> Self {
        let (returns, returned) = channel();
        Self {
            config,
            name: name_of(fingerprint),
            bound: Mutex::new(None),
            unbound: Mutex::default(),
            strangers: Mutex::default(),
            numbers: AtomicU64::new(FIRST_HOLDER),
            holders: Mutex::default(),
            returns: Mutex::new(Some(returns)),
            returned: Mutex::new(Some(returned)),
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.config.directory
    }

    pub(super) fn config(&self) -> &NodeConfig {
        &self.config
    }

    pub(in crate::peer) fn arena(&self) -> &Arc<Arena> {
        &self.config.arena
    }

    /// A number for the other end of a connection, as a holder of witnesses.
    pub(super) fn next_holder(&self, peer: &PeerName) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.forget_holders();
        self.holders.lock().entry(peer.clone()).or_default().push(number);
        number
    }

    /// Forgets holders that have no witness, but for the newest of each peer, whose connection may be up.
    fn forget_holders(&self) {
        for numbers in self.holders.lock().values_mut() {
            let newest = numbers.last().copied();
            numbers.retain(|number| Some(*number) == newest || self.arena().has_witness(*number));
        }
    }

    /// Bytes that witnesses of a peer keep from being used again: of blocks whose connection has ended, and of segments on their way out.
    pub(in crate::peer) fn kept(&self, peer: &PeerName) -> u64 {
        let numbers = self.holders.lock().get(peer).cloned().unwrap_or_default();
        self.arena().kept_by(&numbers)
    }

    /// Peers that have, or may have, witnesses.
    pub(in crate::peer) fn holders(&self) -> Vec<PeerName> {
        self.forget_holders();
        self.holders.lock().keys().cloned().collect()
    }

    /// Checks that a peer may keep so many bytes of this one's memory.
    pub(super) fn check_lent(&self, peer: &PeerName, bytes: u64) -> Result<(), Failure> {
        let most = self.config.lent_max;
        if bytes <= most {
            return Ok(());
        }
        let message = format!(
            "{peer} would keep {bytes} bytes of this peer's memory, and one peer may keep {most}: it lets go of some, or \
             limits.lentBytes is raised here"
        );
        Err(Failure::new(Reason::LimitExceeded, message))
    }

    /// Returns whether a peer may have so many bytes of GPU memory leased.
    pub(super) fn may_lend_gpu(&self, bytes: u64) -> bool {
        bytes <= self.config.gpu_lent_max
    }

    /// Name of our socket, if there is one.
    pub(in crate::peer) fn socket(&self) -> Option<SocketName> {
        self.bound.lock().as_ref().map(|bound| bound.socket.clone())
    }

    /// Listens, as far as that can be had now, and starts the thread that gives leases back.
    pub(in crate::peer) fn start(self: &Arc<Self>, shared: &Arc<Shared>) {
        if let Some(returned) = self.returned.lock().take() {
            let on_thread = Arc::clone(shared);
            let work = move || give_back(&on_thread, &returned);
            if !shared.spawn_for(PanicScope::Process, LEASES, work) && !shared.is_stopping() {
                shared.config.threads.missing(LEASES);
            }
        }
        self.bind(shared);
    }

    /// Now and then: whether our socket is still in the directory. Where it is not, nothing is shared any more until it is
    /// there again: whoever took the directory away has taken back what it stands for.
    pub(in crate::peer) fn tend(self: &Arc<Self>, shared: &Arc<Shared>) {
        let bound = self.bound.lock().clone();
        match bound {
            Some(bound) if bound.is_there() => {}
            Some(_) => {
                tracing::warn!(directory = %self.directory().display(), "our socket is gone from the node's directory");
                self.close();
                // They were told of another socket.
                for link in shared.peers().into_iter().filter_map(|peer| peer.state.lock().link.clone()) {
                    if let Some(shm) = link.ways.shm() {
                        shm.hang_up();
                    }
                }
            }
            None => self.bind(shared),
        }
        if let Some(socket) = self.socket() {
            end_untold(shared, &socket);
        }
    }

    /// Listens in the directory, if that can be had.
    fn bind(self: &Arc<Self>, shared: &Arc<Shared>) {
        let bound = match Bound::bind(self.directory(), &self.name) {
            Ok(bound) => Arc::new(bound),
            Err(error) => {
                if self.unbound.lock().is_news(&error) {
                    let directory = self.directory().display();
                    tracing::warn!(%directory, %error, "no socket in the node's directory: no memory is shared");
                }
                return;
            }
        };
        *self.unbound.lock() = Unbound::default();
        let (node, on_thread, listening) = (Arc::clone(self), Arc::clone(shared), Arc::clone(&bound));
        *self.bound.lock() = Some(bound);
        let listen = move || node.listen(&on_thread, &listening);
        let spawned = shared.spawn_for(PanicScope::Process, "tl-node-listen", listen);
        if spawned {
            tracing::info!(directory = %self.directory().display(), "memory may be shared with peers of this node");
        } else {
            self.close();
        }
    }

    /// No more callers.
    fn close(&self) {
        if let Some(bound) = self.bound.lock().take() {
            // Its thread returns from accepting, and the file goes with the last one who has it.
            let _ = rustix::net::shutdown(&bound.listener, rustix::net::Shutdown::Both);
        }
    }

    /// Stops: takes no more callers, and cuts whoever has not said who it is.
    pub(in crate::peer) fn stop(&self) {
        self.close();
        for stream in self.strangers.lock().values() {
            // Gone already, at worst.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.returns.lock().take();
    }

    fn listen(self: &Arc<Self>, shared: &Arc<Shared>, bound: &Arc<Bound>) {
        loop {
            match bound.listener.accept() {
                Ok((stream, _)) => self.called(shared, stream),
                Err(_) if shared.is_stopping() || !self.is_bound_to(bound) => return,
                // Out of descriptors, most likely: no use in trying again at once.
                Err(_) => shared.pause(Duration::from_millis(100)),
            }
        }
    }

    fn is_bound_to(&self, bound: &Arc<Bound>) -> bool {
        self.bound.lock().as_ref().is_some_and(|present| Arc::ptr_eq(present, bound))
    }

    fn called(self: &Arc<Self>, shared: &Arc<Shared>, stream: UnixStream) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        {
            let mut strangers = self.strangers.lock();
            let Ok(copy) = stream.try_clone() else { return };
            if strangers.len() >= STRANGERS_MAX
                && let Some((_, oldest)) = strangers.pop_first()
            {
                // Its thread hears of it; gone already, at worst.
                let _ = oldest.shutdown(Shutdown::Both);
                shared.counters.node_refused.add("too_many");
            }
            strangers.insert(number, copy);
        }
        let (stranger, on_thread) = (Stranger { node: Arc::clone(self), number }, Arc::clone(shared));
        // Without a thread nobody greets it, and the stranger is dropped.
        shared.spawn("tl-node", move || {
            let node = Arc::clone(&stranger.node);
            node.greet(&on_thread, stream, stranger);
        });
    }

    /// Finds out who calls, and talks with it until one of both ends.
    fn greet(&self, shared: &Arc<Shared>, stream: UnixStream, stranger: Stranger) {
        let until = Instant::now() + shared.config.handshake;
        shared.config.threads.point("greet");
        let met = bind::accept(shared, stream, until);
        drop(stranger);
        match met {
            Ok((link, socket)) => {
                if let Some(shm) = link.ways.shm() {
                    shm.met(shared, &link, socket, Some(until));
                }
            }
            // Somebody looked whether we live.
            Err(Unproven::Socket(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
            Err(unproven) => {
                let unproven = unproven.after(shared.config.handshake);
                shared.counters.node_refused.add(unproven.label());
                tracing::debug!(%unproven, "a call at the node's socket was refused");
            }
        }
    }

    /// Lease that goes with a map: dropped with it, it gives the owner's lease back.
    pub(in crate::peer) fn lease(
        &self,
        peer: &Arc<Peer>,
        incarnation: Incarnation,
        call: u64,
        id: u64,
    ) -> Lease {
        let returned = Returned { peer: Arc::clone(peer), incarnation, call, id };
        let held = Arc::clone(&peer.held);
        Box::new(Map { returns: self.returns.lock().clone(), returned: Some(returned), _held: held })
    }
}

/// A lease at an owner, for as long as something here maps the tensor. Dropped under whatever locks.
struct Map {
    returns: Option<Sender<Returned>>,
    returned: Option<Returned>,
    /// While this is held, the connection to the owner is in use.
    _held: Arc<()>,
}

impl Drop for Map {
    fn drop(&mut self) {
        if let (Some(returns), Some(returned)) = (&self.returns, self.returned.take()) {
            // Nobody takes it once we stop: then the end of the connection ends the lease.
            let _ = returns.send(returned);
        }
    }
}

/// Tells owners of maps that are not needed any more, until we stop and the last map is gone. Those of a moment are told
/// together: each word wakes a thread here and one there, beside whoever maps the next tensor meanwhile.
fn give_back(shared: &Arc<Shared>, returned: &Receiver<Returned>) {
    loop {
        let first = match returned.recv_timeout(STOP_LOOK) {
            Ok(first) => first,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) if !shared.is_stopping() => continue,
            Err(_) => return,
        };
        shared.pause(GATHER);
        for (peer, maps) in by_peer(std::iter::once(first).chain(returned.try_iter().take(TOGETHER_MAX - 1)))
        {
            let effects = {
                let mut state = peer.state.lock();
                let told = |effects: Effects, map: Returned| {
                    effects.and(state.unmapped(map.incarnation, map.call, map.id))
                };
                maps.into_iter().fold(Effects::default(), told)
            };
            shared.perform(effects);
        }
    }
}

/// Returns what there is to tell each peer.
fn by_peer(all: impl Iterator<Item = Returned>) -> Vec<(Arc<Peer>, Vec<Returned>)> {
    let mut peers: Vec<(Arc<Peer>, Vec<Returned>)> = Vec::new();
    for map in all {
        match peers.iter_mut().find(|(peer, _)| Arc::ptr_eq(peer, &map.peer)) {
            Some((_, maps)) => maps.push(map),
            None => peers.push((Arc::clone(&map.peer), vec![map])),
        }
    }
    peers
}

/// Time for which a map that is given back waits for others. Its owner has its room back that much later.
const GATHER: Duration = Duration::from_millis(1);
/// Most that are told together: each is some 30 bytes of a frame.
const TOGETHER_MAX: usize = 4096;
/// Time after which the thread that gives leases back looks again whether we stop: maps may outlive us.
const STOP_LOOK: Duration = Duration::from_millis(200);
/// Ends connections that were told of no socket, or of the one before: also those whose Hello was on its way when it changed.
fn end_untold(shared: &Shared, socket: &SocketName) {
    for link in shared.peers().into_iter().filter_map(|peer| peer.state.lock().link.clone()) {
        if link.told.as_ref() != Some(socket) {
            link.end_in_order(Ended::Moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_had_is_told_once_for_each_reason() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("node");
        let mut unbound = Unbound::default();
        let mut is_told = || unbound.is_news(&Bound::bind(&at, "0123456789abcdef.sock").unwrap_err());
        assert_eq!([is_told(), is_told(), is_told()], [true, false, false], "it is not there");
        std::fs::write(&at, "no directory").unwrap();
        assert_eq!([is_told(), is_told()], [true, false], "it is a file");
        std::fs::remove_file(&at).unwrap();
        assert_eq!([is_told(), is_told()], [true, false]);
    }
}
