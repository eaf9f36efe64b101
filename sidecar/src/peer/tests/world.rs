//! A world for tests: a peer table in memory, and owners that serve from an arena.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_memory::{Arena, ArenaOptions, Block, Landing, Purpose};
use tensorlane_proto::encoded::{self, PulledSmall};
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::SameNode;
use tensorlane_proto::{
    DType, Descriptor, Failure, Fingerprint, Incarnation, Layout, PeerName, Reason, Selection, Shape,
    Transport,
};

use super::keys;
use crate::backoff::Backoff;
use crate::cancel::Cancel;
use crate::hashes;
use crate::identity::Identity;
use crate::output_budget::OutputBudget;
use crate::peer::{
    Asked, AskedLoan, Counters, Found, Holders, Known, KnownPeer, LanesConfig, LostHolder, MapFailed,
    MapOrder, Mapped, Me, NodeConfig, PartialTensor, Paths, PeerKey, Peers, PeersConfig, PullFailed,
    PullOrder, Pulled, RelayRequest, RelaySource, RelayToken, Resolver, Serve, Served, SetDone, SmallAnswer,
    SmallBytes, SmallTensor, Sought, Source, TellAttached, TellFound, TellProven, WatchDone,
};
use crate::sums::Sums;
use crate::threads::Threads;

/// Longer than any thread of a busy machine stands still.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

pub(crate) fn name(text: &str) -> PeerName {
    PeerName::new(text).unwrap()
}

/// The peer table, shared by all peers of a test.
#[derive(Default)]
pub(crate) struct Table {
    entries: Mutex<Vec<KnownPeer>>,
    pub(crate) refreshes: AtomicUsize,
}

impl Table {
    pub(crate) fn list(&self, peer: &str, address: SocketAddr, fingerprint: Fingerprint) {
        self.list_at(peer, &address.to_string(), fingerprint);
    }

    /// Lists a peer whose address is a name.
    pub(crate) fn list_at(&self, peer: &str, address: &str, fingerprint: Fingerprint) {
        let mut entries = self.entries.lock();
        entries.retain(|entry| entry.name.as_str() != peer);
        entries.push(KnownPeer {
            name: name(peer),
            addresses: vec![address.to_owned()],
            fingerprints: vec![fingerprint],
            node: None,
            awaits_ip: false,
        });
    }

    /// Lists a pod that Kubernetes has told no IP of.
    pub(crate) fn list_without_ip(&self, peer: &str, fingerprint: Fingerprint) {
        self.list_at(peer, "", fingerprint);
        for entry in self.entries.lock().iter_mut().filter(|entry| entry.name.as_str() == peer) {
            (entry.addresses, entry.awaits_ip) = (Vec::new(), true);
        }
    }

    /// Lists a peer with one more key, or with this one alone.
    pub(crate) fn rekey(&self, peer: &str, fingerprint: Fingerprint, alone: bool) {
        for entry in self.entries.lock().iter_mut().filter(|entry| entry.name.as_str() == peer) {
            if alone {
                entry.fingerprints.clear();
            }
            entry.fingerprints.push(fingerprint);
        }
    }

    /// Says which node a peer is on.
    pub(crate) fn place(&self, peer: &str, node: &str) {
        for entry in self.entries.lock().iter_mut().filter(|entry| entry.name.as_str() == peer) {
            entry.node = Some(node.to_owned());
        }
    }

    pub(crate) fn unlist(&self, peer: &str) {
        self.entries.lock().retain(|entry| entry.name.as_str() != peer);
    }

    /// Lists nobody from one moment to the next.
    pub(crate) fn clear(&self) {
        self.entries.lock().clear();
    }
}

impl Known for Table {
    fn all(&self) -> Vec<KnownPeer> {
        self.entries.lock().clone()
    }
    fn peer(&self, name: &PeerName) -> Option<KnownPeer> {
        self.entries.lock().iter().find(|entry| entry.name == *name).cloned()
    }
    fn claimants(&self, fingerprint: &Fingerprint) -> Vec<PeerName> {
        let entries = self.entries.lock();
        let claims = entries.iter().filter(|entry| entry.fingerprints.contains(fingerprint));
        claims.map(|entry| entry.name.clone()).collect()
    }
    fn count(&self) -> usize {
        self.entries.lock().len()
    }
    fn at(&self, address: IpAddr) -> Vec<PeerName> {
        let is_at = |entry: &&KnownPeer| {
            let listed = |one: &String| one.parse().is_ok_and(|listed: SocketAddr| listed.ip() == address);
            entry.addresses.iter().any(listed)
        };
        self.entries.lock().iter().filter(is_at).map(|entry| entry.name.clone()).collect()
    }
    fn refresh(&self) {
        self.refreshes.fetch_add(1, Ordering::SeqCst);
    }
    fn own_lack(&self) -> Option<String> {
        None
    }
    fn outage(&self) -> Option<String> {
        None
    }
}

pub(crate) fn arena(bytes: u64) -> Arc<Arena> {
    let options = ArenaOptions { ready_bytes: 0, pull_share: 0.0, ..ArenaOptions::new(bytes) };
    Arena::start(options, Arc::new(|| {})).unwrap()
}

pub(crate) fn block(arena: &Arena, bytes: u64) -> Block {
    arena.allocate_or_grow(Purpose::Pull, bytes).unwrap()
}

/// Word i is i times an odd constant and a seed: any shift, loss or repeat is seen.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    for (i, word) in bytes.chunks_mut(8).enumerate() {
        let value = (i as u64).wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        let length = word.len();
        word.copy_from_slice(&value[..length]);
    }
}

pub(crate) fn sealed(arena: &Arena, bytes: u64, seed: u64) -> Block {
    let block = block(arena, bytes);
    let mut landing = block.landing().unwrap();
    fill(landing.chunk_mut(0..bytes).unwrap(), seed);
    drop(landing);
    block.mark_sealed().unwrap();
    block
}

/// Answers a held inquiry.
type Reply = Box<dyn FnOnce(v1::Inquired) + Send>;

/// An owner: tensors of bytes, `rows` rows each, and the leases on them.
pub(crate) struct Twin {
    pub(crate) tensors: Mutex<HashMap<u64, (Block, Layout)>>,
    /// Known parts of their checksums.
    pub(crate) sums: Mutex<HashMap<u64, Arc<Sums>>>,
    pub(crate) leases: Mutex<HashMap<u64, i64>>,
    pub(crate) events: Mutex<Vec<String>>,
    pub(crate) opens: AtomicU64,
    /// Nothing new is opened, when set.
    pub(crate) draining: AtomicBool,
    /// Inquiries are kept here instead of answered, when set.
    pub(crate) hold_inquiries: AtomicBool,
    pub(crate) held: Mutex<Vec<Reply>>,
    /// Answers to the next inquiries, each by one; nothing is known beyond.
    pub(crate) answers: Mutex<VecDeque<v1::DescribeResult>>,
    /// Raised when the asker of a held one is gone.
    pub(crate) asking: Mutex<Vec<Cancel>>,
    /// Holders that a reader is given to, best first.
    pub(crate) holders: Mutex<HashMap<PeerName, Vec<PeerKey>>>,
    /// Other peers that have all of it.
    pub(crate) spares: Mutex<Vec<PeerKey>>,
    /// A reader is given to whoever it lost, when set: to the first one always.
    pub(crate) again: AtomicBool,
    /// Tensors of others on their way here, by their ids.
    pub(crate) growths: Mutex<HashMap<u64, Arc<PartialTensor>>>,
    /// Set if what is on its way is given also to whom only a copy does, as peers do that know of no such wish.
    pub(crate) whole_too: AtomicBool,
    /// Heads say no checksum; it is made when it is asked for.
    pub(crate) unsummed: AtomicBool,
    /// Neither the checksum nor hashes are made.
    pub(crate) unprovable: AtomicBool,
    /// Hashes are kept here instead of said, when set.
    pub(crate) hold_proofs: AtomicBool,
    pub(crate) held_proofs: Mutex<Vec<(u64, Range<u64>, TellProven)>>,
    /// Hashes are said of fewer granules than were asked for, when set.
    pub(crate) short_proofs: AtomicBool,
    /// Holders that were lost, as they were last said, and those of whom a reader said that they had sent something else.
    pub(crate) lost: Mutex<Vec<LostHolder>>,
    pub(crate) blamed: Mutex<Vec<LostHolder>>,
    /// Readers that are done, and whether they have the tensor.
    pub(crate) left: Mutex<Vec<(PeerName, bool)>>,
    /// Owners of the tensors that were lent.
    pub(crate) lent: Mutex<Vec<PeerName>>,
    /// Answers to calls about sets, which the test gives.
    pub(crate) sets: Mutex<Vec<(v1::SetCall, SetDone)>>,
    /// Tickets that were redeemed.
    pub(crate) redeemed: Mutex<Vec<v1::PeerRedeem>>,
    /// Answers to watches, which the test gives.
    pub(crate) watches: Mutex<Vec<(v1::WatchRequest, Cancel, WatchDone)>>,
}

/// Token that readers of every tensor show.
pub(crate) const PASS: RelayToken = [9; 16];

impl Twin {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            tensors: Mutex::default(),
            sums: Mutex::default(),
            leases: Mutex::default(),
            events: Mutex::default(),
            opens: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            hold_inquiries: AtomicBool::new(false),
            held: Mutex::default(),
            answers: Mutex::default(),
            asking: Mutex::default(),
            holders: Mutex::default(),
            spares: Mutex::default(),
            again: AtomicBool::new(false),
            growths: Mutex::default(),
            whole_too: AtomicBool::new(false),
            unsummed: AtomicBool::new(false),
            unprovable: AtomicBool::new(false),
            hold_proofs: AtomicBool::new(false),
            held_proofs: Mutex::default(),
            short_proofs: AtomicBool::new(false),
            lost: Mutex::default(),
            blamed: Mutex::default(),
            left: Mutex::default(),
            lent: Mutex::default(),
            sets: Mutex::default(),
            redeemed: Mutex::default(),
            watches: Mutex::default(),
        })
    }

    pub(crate) fn add(&self, id: u64, block: Block, rows: u64) {
        let bytes = block.len();
        let layout =
            Layout::contiguous(DType::U8, Shape::new(&[rows, bytes / rows.max(1)]).unwrap()).unwrap();
        self.tensors.lock().insert(id, (block, layout));
        self.sums.lock().remove(&id);
    }

    fn bytes(&self, id: u64) -> Vec<u8> {
        let block = self.tensors.lock()[&id].0.clone();
        block.chunk(0..block.len()).unwrap().to_vec()
    }

    /// Says the hashes that were kept, and all others from now on.
    pub(crate) fn tell_proofs(&self) {
        self.hold_proofs.store(false, Ordering::SeqCst);
        let held = std::mem::take(&mut *self.held_proofs.lock());
        for (id, granules, reply) in held {
            let all = hashes::of_granules(&self.bytes(id));
            reply(Ok(all[granules.start as usize..granules.end as usize].concat()));
        }
    }

    /// Number of bytes of a tensor.
    pub(crate) fn bytes_of(&self, id: u64) -> u64 {
        self.tensors.lock()[&id].0.len()
    }

    pub(crate) fn leased(&self) -> i64 {
        self.leases.lock().values().sum()
    }

    /// The first holder of a reader that is not lost.
    fn holder(&self, reader: &PeerKey, lost: &[LostHolder]) -> Vec<PeerKey> {
        let holders = self.holders.lock();
        let all = holders.get(&reader.name).into_iter().flatten();
        let again = self.again.load(Ordering::SeqCst);
        all.filter(|holder| again || lost.iter().all(|lost| lost.peer != **holder)).take(1).cloned().collect()
    }

    fn event(&self, what: &str, peer: &PeerKey) {
        self.events.lock().push(format!("{what} {} {}", peer.name, peer.incarnation.0));
    }
}

impl Serve for Twin {
    fn open(&self, from: &PeerKey, asked: &Asked) -> Result<Served, Failure> {
        let Asked { id, ref selection, resumed, spreads, ref lost, .. } = *asked;
        if self.draining.load(Ordering::SeqCst) && !resumed {
            return Err(Failure::new(Reason::Draining, "nothing new"));
        }
        let (block, layout) = self
            .tensors
            .lock()
            .get(&id)
            .cloned()
            .ok_or_else(|| Failure::new(Reason::NotFound, format!("no tensor {id}")))?;
        let resolved = selection.resolve(&layout)?;
        let whole = *selection == Selection::All && !self.unsummed.load(Ordering::SeqCst);
        let peers = spreads.then(|| self.holder(from, lost));
        let holders = peers.map(|peers| Holders { pass: PASS, peers, spares: self.spares.lock().clone() });
        self.blamed.lock().extend(lost.iter().filter(|_| !spreads).cloned());
        let crc32c = whole.then(|| crc32c::crc32c(block.chunk(0..block.len()).unwrap()));
        let bytes = block.len();
        let source = Source::new(block, resolved.runs()).unwrap();
        let source = match selection {
            Selection::All => {
                let mut sums = self.sums.lock();
                source.summed(Arc::clone(sums.entry(id).or_insert_with(|| Arc::new(Sums::new(bytes)))))
            }
            _ => source,
        };
        *self.leases.lock().entry(id).or_default() += 1;
        self.opens.fetch_add(1, Ordering::SeqCst);
        Ok(Served {
            descriptor: Descriptor::host(resolved.packed_layout()),
            crc32c,
            source,
            holders,
            staged: None,
        })
    }
    fn map(&self, from: &PeerKey, id: u64, bytes: u64) -> Result<Served, Failure> {
        let asked = asked_whole(id, bytes);
        let served = self.open(from, &asked)?;
        match served.descriptor.layout.bytes() == bytes {
            true => Ok(served),
            false => {
                self.done(from, id);
                Err(Failure::new(Reason::LayoutMismatch, "it has other bytes"))
            }
        }
    }
    fn relay(&self, from: &PeerKey, asked: &RelayRequest) -> Result<RelaySource, Failure> {
        let RelayRequest { id, bytes, pass, whole, .. } = *asked;
        if let Some(growth) = self.growths.lock().get(&id).cloned() {
            if whole && !self.whole_too.load(Ordering::SeqCst) {
                return Err(Failure::new(Reason::NotFound, "it is on its way here"));
            }
            let layout = Layout::contiguous(DType::U8, Shape::new(&[bytes]).unwrap()).unwrap();
            let (descriptor, source) = (Descriptor::host(layout), Source::growing(growth, pass));
            return Ok(RelaySource {
                served: Served { descriptor, crc32c: None, source, holders: None, staged: None },
                leased: None,
            });
        }
        if pass != PASS {
            return Err(Failure::new(Reason::NotFound, "another pass"));
        }
        let asked = asked_whole(id, bytes);
        Ok(RelaySource { served: self.open(from, &asked)?, leased: Some(id) })
    }
    fn lend(&self, from: &PeerKey, asked: &AskedLoan) -> Result<RelaySource, Failure> {
        let AskedLoan { ref owner, id, bytes } = *asked;
        self.lent.lock().push(owner.name.clone());
        Ok(RelaySource { served: self.map(from, id, bytes)?, leased: Some(id) })
    }
    fn seek(&self, from: &PeerKey, id: u64, sought: Sought, reply: TellFound) {
        match sought {
            Sought::Holders(lost) => {
                let (peers, spares) = (self.holder(from, &lost), self.spares.lock().clone());
                // Others that ask have lost nobody.
                if !lost.is_empty() {
                    *self.lost.lock() = lost;
                }
                reply(Ok(Found { peers, spares, crc32c: None }));
            }
            Sought::Proof if self.unprovable.load(Ordering::SeqCst) => {
                reply(Err(Failure::new(Reason::LimitExceeded, "no worker is free")));
            }
            Sought::Proof => {
                let sum = crc32c::crc32c(&self.bytes(id));
                reply(Ok(Found { crc32c: Some(sum), ..Found::default() }));
            }
        }
    }
    fn prove(&self, id: u64, granules: Range<u64>, reply: TellProven) {
        if self.unprovable.load(Ordering::SeqCst) {
            return reply(Err(Failure::new(Reason::LimitExceeded, "no worker is free")));
        }
        if self.hold_proofs.load(Ordering::SeqCst) {
            return self.held_proofs.lock().push((id, granules, reply));
        }
        let all = hashes::of_granules(&self.bytes(id));
        let end = granules.end as usize - usize::from(self.short_proofs.load(Ordering::SeqCst));
        let asked = all.get(granules.start as usize..end);
        reply(asked.map(<[_]>::concat).ok_or_else(|| Failure::new(Reason::InvalidArgument, "not so many")));
    }
    fn left(&self, from: &PeerKey, _: u64, holds: bool) {
        self.left.lock().push((from.name.clone(), holds));
    }
    fn channel(&self, _: &PeerKey, _: &v1::PeerChannelAttach, _: Cancel, reply: TellAttached) {
        reply(Err(Failure::new(Reason::NotFound, "no channels here")));
    }
    fn set_call(&self, _: &PeerKey, call: v1::SetCall, _: Cancel, reply: SetDone) {
        self.sets.lock().push((call, reply));
    }
    fn redeem(&self, _: &PeerKey, asked: &v1::PeerRedeem) -> Result<u64, Failure> {
        self.redeemed.lock().push(asked.clone());
        let id = asked.ticket.parse().map_err(|_| Failure::new(Reason::NotFound, "no such ticket"))?;
        *self.leases.lock().entry(id).or_default() += 1;
        Ok(id)
    }
    fn watch(&self, _: &PeerKey, asked: v1::WatchRequest, gone: Cancel, reply: WatchDone) {
        self.watches.lock().push((asked, gone, reply));
    }
    fn done(&self, _: &PeerKey, id: u64) {
        *self.leases.lock().entry(id).or_default() -= 1;
    }
    fn small(&self, _: &PeerKey, asked: &v1::PullMany, answer: &mut SmallAnswer) {
        let tensors = self.tensors.lock();
        for id in &asked.ids {
            let Some((block, layout)) = tensors.get(id) else {
                answer.failed(&Failure::new(Reason::NotFound, "no such tensor"));
                continue;
            };
            let descriptor = encoded::descriptor(&Descriptor::host(layout.clone()));
            let bytes = SmallBytes::Lie(block.owned_chunk(0..block.len()).unwrap());
            answer.tensor(SmallTensor { descriptor: &descriptor, bytes, crc32c: None });
        }
    }
    fn inquire(
        &self,
        _: &PeerKey,
        inquire: v1::Inquire,
        gone: Cancel,
        reply: Box<dyn FnOnce(v1::Inquired) + Send>,
    ) {
        if self.hold_inquiries.load(Ordering::SeqCst) {
            self.asking.lock().push(gone);
            self.held.lock().push(reply);
            return;
        }
        let answer = self.answers.lock().pop_front().unwrap_or_default();
        let results = inquire.targets.iter().map(|_| answer.clone()).collect();
        reply(v1::Inquired { results });
    }
    fn peer_lost(&self, peer: &PeerKey) {
        self.event("lost", peer);
    }
    fn peer_back(&self, peer: &PeerKey) {
        self.event("back", peer);
    }
    fn peer_over(&self, old: &PeerKey) {
        self.event("over", old);
    }
}

/// A question for all of a tensor.
fn asked_whole(id: u64, bytes: u64) -> Asked {
    let (selection, lost) = (Selection::All, Vec::new());
    Asked { id, selection, bytes, stored: None, resumed: false, spreads: false, lost }
}

/// A question for small tensors of which nothing else is said.
pub(crate) fn many(ids: &[u64]) -> v1::PullMany {
    v1::PullMany { ids: ids.to_vec(), stored: Vec::new() }
}

/// Peer of a test.
pub(crate) struct One {
    pub(crate) peers: Arc<Peers>,
    pub(crate) twin: Arc<Twin>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) identity: Identity,
    /// Transport by which its pulls are ordered.
    pub(crate) transport: Transport,
    key: PeerKey,
}

/// Message that a map tells when it is over.
pub(crate) type ToldMap = mpsc::Receiver<Result<Mapped, MapFailed>>;

/// Message that a pull tells when it is over.
pub(crate) type Told = mpsc::Receiver<Result<Pulled, PullFailed>>;

/// Message of a pull from which others are served: the checksum that the owner says, and who sent what.
type ToldOn = mpsc::Receiver<Result<(Option<u32>, Paths), Failure>>;

pub(crate) struct Start<'a> {
    pub(crate) name: &'a str,
    pub(crate) exchange: &'a str,
    pub(crate) incarnation: u128,
    pub(crate) identity: Identity,
    pub(crate) progress: Duration,
    pub(crate) grace: Duration,
    pub(crate) handshake: Duration,
    pub(crate) arena: u64,
    /// Address at which others are told to find it; its own if nothing is said.
    pub(crate) listed: Option<SocketAddr>,
    /// True if it looks where its own addresses lead.
    pub(crate) looks: bool,
    /// None, so that a test sees one connection unless it asks for more.
    pub(crate) lanes: LanesConfig,
    /// The directory that the sidecars of its node share, if any.
    pub(crate) node: Option<std::path::PathBuf>,
    /// Bytes that each neighbour may have of its memory; the usual part if nothing is said.
    pub(crate) lent_max: Option<u64>,
    /// An arena of its own making.
    pub(crate) memory: Option<Arc<Arena>>,
    /// Wire that is put before the sockets of others in it.
    pub(crate) between: Option<crate::peer::transport::shm::Between>,
    /// The newest version of the protocol that it speaks.
    pub(crate) version: u32,
    /// Offer of what it says that it can speak.
    pub(crate) offer: v1::Offer,
    /// Number of peers that may be connected.
    pub(crate) peers_max: usize,
    /// Bytes of answers that may wait for peers to read them.
    pub(crate) unread: u64,
    pub(crate) threads: Threads,
    /// Resolver with which it looks up names of hosts, if not with the system.
    pub(crate) resolver: Option<Resolver>,
}

impl<'a> Start<'a> {
    pub(crate) fn new(name: &'a str) -> Self {
        Self {
            name,
            exchange: "default",
            incarnation: 1,
            identity: keys::identity(),
            progress: PATIENCE / 3,
            grace: PATIENCE / 3,
            handshake: PATIENCE / 3,
            arena: 256 << 20,
            listed: None,
            looks: false,
            lanes: LanesConfig { count: 0, ..LanesConfig::default() },
            node: None,
            lent_max: None,
            memory: None,
            between: None,
            version: tensorlane_proto::frame::PEER_VERSION,
            offer: v1::Offer::default(),
            peers_max: 256,
            unread: 128 << 20,
            threads: Threads::default(),
            resolver: None,
        }
    }

    /// Starts it, and lists it in the table.
    pub(crate) fn start(self, table: &Arc<Table>) -> One {
        let keys = keys::keys(&self.identity);
        let fingerprint = keys.fingerprint;
        if let Some(listed) = self.listed {
            // Before it dials anybody, who would not know its key yet.
            table.list(self.name, listed, fingerprint);
        }
        let (twin, arena) = (Twin::new(), self.memory.unwrap_or_else(|| arena(self.arena)));
        let (between, lent_max) = (self.between, self.lent_max);
        let node = self.node.map(|directory| {
            let usual = NodeConfig::new(directory, Arc::clone(&arena));
            NodeConfig { between, lent_max: lent_max.unwrap_or(usual.lent_max), ..usual }
        });
        let config = PeersConfig {
            progress: self.progress,
            grace: self.grace,
            handshake: self.handshake,
            backoff: Backoff::new(Duration::from_millis(5), Duration::from_millis(50)),
            lanes: self.lanes,
            version: self.version,
            node,
            peers_max: self.peers_max,
            unread: OutputBudget::new(self.unread),
            resolver: self.resolver.unwrap_or_else(|| Resolver::new(self.threads.clone())),
            threads: self.threads,
            own_addresses: self.looks.then(Vec::new),
            ..PeersConfig::new("127.0.0.1:0".parse().unwrap())
        };
        let me = Me {
            exchange: self.exchange.parse().unwrap(),
            peer: name(self.name),
            incarnation: Incarnation(self.incarnation),
            offer: self.offer,
        };
        let serve: Arc<dyn Serve> = Arc::clone(&twin) as _;
        let peers =
            Peers::start(config, keys, Arc::clone(table) as _, me, serve, Arc::new(Counters::default()))
                .unwrap();
        if self.listed.is_none() {
            table.list(self.name, peers.bound_address(), fingerprint);
        }
        let transport = if self.lanes.quic > 0 { Transport::Quic } else { Transport::Tcp };
        let key = PeerKey { name: name(self.name), incarnation: Incarnation(self.incarnation) };
        One { peers, twin, arena, fingerprint, identity: self.identity, transport, key }
    }
}

impl One {
    pub(crate) fn landing(&self, bytes: u64) -> (Block, Landing) {
        let block = block(&self.arena, bytes);
        let landing = block.landing().unwrap();
        (block, landing)
    }

    /// Begins a pull; its outcome comes through the channel.
    pub(crate) fn pull(
        &self,
        from: &str,
        expected: Option<u128>,
        id: u64,
        selection: Selection,
        bytes: u64,
    ) -> (Told, crate::peer::CallHandle, Block) {
        self.pull_until(from, expected, id, selection, bytes, Instant::now() + PATIENCE)
    }

    pub(crate) fn pull_until(
        &self,
        from: &str,
        expected: Option<u128>,
        id: u64,
        selection: Selection,
        bytes: u64,
        deadline: Instant,
    ) -> (Told, crate::peer::CallHandle, Block) {
        let (block, landing) = self.landing(bytes);
        let order = PullOrder { selection, deadline, ..self.order(id, landing) };
        let (told, handle) = self.begin(from, expected, order);
        (told, handle, block)
    }

    /// Order of what is asked for if nothing else is said: all of a tensor, for ourselves.
    fn order(&self, id: u64, landing: Landing) -> PullOrder {
        PullOrder {
            id,
            selection: Selection::All,
            bytes: landing.len(),
            stored: None,
            landing,
            deadline: Instant::now() + PATIENCE,
            transport: self.transport,
            growth: None,
        }
    }

    fn begin(&self, from: &str, expected: Option<u128>, order: PullOrder) -> (Told, crate::peer::CallHandle) {
        let (tell, told) = mpsc::channel();
        let handle = self.peers.pull(&name(from), expected.map(Incarnation), order, move |outcome| {
            let _ = tell.send(outcome);
        });
        (told, handle)
    }

    /// Begins a pull of all of a tensor by a transport.
    pub(crate) fn pull_by(
        &self,
        from: &str,
        id: u64,
        bytes: u64,
        transport: Transport,
    ) -> (Told, crate::peer::CallHandle, Block) {
        let (block, landing) = self.landing(bytes);
        let order = PullOrder { transport, ..self.order(id, landing) };
        let (told, handle) = self.begin(from, None, order);
        (told, handle, block)
    }

    /// Begins a pull of all of a tensor, from which others are served meanwhile.
    pub(crate) fn pull_on(
        &self,
        from: &str,
        id: u64,
        bytes: u64,
    ) -> (ToldOn, crate::peer::CallHandle, Block) {
        let (block, landing) = self.landing(bytes);
        let (tell, told) = mpsc::channel();
        // Holders are waited for during a part of the time that is left: tests of who sends what are not to end that.
        let (deadline, growth) = (Instant::now() + PATIENCE * 3, PartialTensor::new());
        self.twin.growths.lock().insert(id, Arc::clone(&growth));
        let order = PullOrder { deadline, growth: Some(Arc::clone(&growth)), ..self.order(id, landing) };
        let sealed = block.clone();
        let handle = self.peers.pull(&name(from), None, order, move |outcome| match outcome {
            Ok(Pulled { landing, crc32c, paths, pull_guard, .. }) => {
                drop(landing);
                sealed.mark_sealed().unwrap();
                growth.whole(sealed);
                pull_guard.expect("what others are served from has a pull_guard").holds();
                let _ = tell.send(Ok((crc32c, paths)));
            }
            Err(failed) => {
                growth.gone();
                drop((failed.landing, sealed));
                let _ = tell.send(Err(failed.failure));
            }
        });
        (told, handle, block)
    }

    /// Itself in its life.
    pub(crate) fn key(&self) -> PeerKey {
        self.key.clone()
    }

    /// Begins a map; its outcome comes through the channel.
    pub(crate) fn map(&self, from: &str, id: u64, bytes: u64) -> (ToldMap, crate::peer::CallHandle) {
        self.map_until(from, id, bytes, Instant::now() + PATIENCE)
    }

    pub(crate) fn map_until(
        &self,
        from: &str,
        id: u64,
        bytes: u64,
        deadline: Instant,
    ) -> (ToldMap, crate::peer::CallHandle) {
        let (tell, told) = mpsc::channel();
        let order = MapOrder { id, owner: None, bytes, gpus: Vec::new(), deadline };
        let handle = self.peers.map(&name(from), None, order, move |outcome| {
            let _ = tell.send(outcome);
        });
        (told, handle)
    }

    /// Begins to map the copy that a neighbour has of another peer's tensor.
    pub(crate) fn copy(
        &self,
        from: &str,
        owner: &str,
        id: u64,
        bytes: u64,
    ) -> mpsc::Receiver<Result<Mapped, MapFailed>> {
        let (tell, told) = mpsc::channel();
        let owner = Some(PeerKey { name: name(owner), incarnation: Incarnation(9) });
        let deadline = Instant::now() + PATIENCE;
        let order = MapOrder { id, owner, bytes, gpus: Vec::new(), deadline };
        self.peers.map(&name(from), None, order, move |outcome| {
            let _ = tell.send(outcome);
        });
        told
    }

    /// Maps a tensor.
    pub(crate) fn mapped(&self, from: &str, id: u64, bytes: u64) -> Result<Block, MapFailed> {
        let outcome = self.map(from, id, bytes).0.recv_timeout(PATIENCE).expect("every map has an outcome");
        outcome.map(|mapped| {
            assert_eq!(mapped.descriptor.layout.bytes(), bytes);
            mapped.block
        })
    }

    /// Returns whether memory of a peer can be mapped.
    pub(crate) fn shares(&self, with: &str) -> bool {
        self.peers.measured(&name(with), 0, false).same_node == SameNode::Proven
    }

    /// Pulls all of a tensor and returns its bytes.
    pub(crate) fn get(&self, from: &str, id: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        let (told, _, block) = self.pull(from, None, id, Selection::All, bytes);
        match told.recv_timeout(PATIENCE).expect("every pull has an outcome") {
            Ok(pulled) => {
                assert_eq!(pulled.descriptor.layout.bytes(), bytes);
                drop(pulled.landing);
                block.mark_sealed().unwrap();
                let got = block.chunk(0..bytes).unwrap().to_vec();
                if let Some(crc32c) = pulled.crc32c {
                    assert_eq!(crc32c, crc32c::crc32c(&got));
                }
                Ok(got)
            }
            Err(failed) => Err(failed.failure),
        }
    }

    pub(crate) fn small(&self, from: &str, ids: &[u64]) -> Result<Vec<PulledSmall>, Failure> {
        let (tell, told) = mpsc::channel();
        self.peers.pull_small(&name(from), None, many(ids), Instant::now() + PATIENCE, move |outcome| {
            let _ = tell.send(outcome);
        });
        told.recv_timeout(PATIENCE).expect("every call has an outcome")
    }

    /// Asks for `targets` things, until the deadline.
    pub(crate) fn inquire(
        &self,
        of: &str,
        targets: usize,
        deadline: Instant,
    ) -> (mpsc::Receiver<Result<v1::Inquired, Failure>>, crate::peer::CallHandle) {
        let (tell, told) = mpsc::channel();
        let message = v1::Inquire {
            targets: vec![v1::Target::default(); targets],
            wait_ms: 1000,
            ..v1::Inquire::default()
        };
        let handle = self.peers.inquire(&name(of), None, message, deadline, move |outcome| {
            let _ = tell.send(outcome);
        });
        (told, handle)
    }

    pub(crate) fn own_bytes(&self, id: u64) -> Vec<u8> {
        let tensors = self.twin.tensors.lock();
        let (block, _) = &tensors[&id];
        block.chunk(0..block.len()).unwrap().to_vec()
    }

    /// Checks that the arena's books balance and that nothing but its own tensors, which are let go, was in it: no pull
    /// that ended keeps room, however far it had come. Outcomes and blocks must have been dropped.
    pub(crate) fn assert_free(&self) {
        self.twin.tensors.lock().clear();
        until("the arena is free", || {
            let usage = self.arena.usage();
            assert!(usage.balances(), "{usage:?}");
            usage.free == usage.total
        });
    }

    /// Connections that are up, by the counters.
    pub(crate) fn links(&self) -> u64 {
        let closed = self.peers.counters().closed.all();
        self.ever_up() - closed.iter().map(|(_, count)| count).sum::<u64>()
    }

    /// Connections that were ever up, by the counters.
    pub(crate) fn ever_up(&self) -> u64 {
        self.peers.counters().opened.all().iter().map(|(_, count)| count).sum()
    }

    /// An attempt may fail on a machine that stands still; the next one does not.
    pub(crate) fn connect(&self, to: &str) {
        until("it is connected", || self.peers.ensure(&name(to), Instant::now() + PATIENCE).is_ok());
    }
}

/// Connects two peers as they do by themselves: whoever's it is dials. Were the other one to need a connection first, both would
/// dial, and one connection would take the place of the other in the middle of a test.
pub(crate) fn connect(one: &One, other: &One) {
    let (dials, dialed) = if one.fingerprint < other.fingerprint { (one, other) } else { (other, one) };
    until("they are connected", || {
        let _ = dials.peers.ensure(&dialed.key.name, Instant::now() + PATIENCE);
        dials.peers.is_connected(&dialed.key.name) && dialed.peers.is_connected(&dials.key.name)
    });
}

/// Tensor bytes that came to it.
pub(crate) fn bytes_in(one: &One) -> u64 {
    one.peers.counters().bytes_in.load(Ordering::SeqCst)
}

/// Two peers with a connection between them, which `a` dialed.
pub(crate) fn two() -> (Arc<Table>, One, One) {
    let table = Arc::new(Table::default());
    let b = Start::new("b").start(&table);
    let a = Start { listed: Some(nowhere()), ..Start::new("a") }.start(&table);
    a.connect("b");
    until("b knows of it", || b.peers.is_connected(&name("a")));
    (table, a, b)
}

/// An address that nobody listens on.
pub(crate) fn nowhere() -> SocketAddr {
    "127.0.0.1:1".parse().unwrap()
}
