//! Input and output of [`super::Peers`]: plain data, and the two traits of the world around it.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use tensorlane_memory::{Block, Landing};
use tensorlane_proto::frame::PEER_VERSION;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{
    Descriptor, ExchangeName, Failure, Fingerprint, Incarnation, PeerName, Reason, Selection, Transport,
};

use super::{
    BorrowedMemory, GpuId, HolderLost, LanesConfig, NodeConfig, PartialTensor, Paths, PullGuard, RelayToken,
    Resolver, ServedOnGpu, SmallAnswer, Source, TellAttached,
};
use crate::backoff::Backoff;
use crate::cancel::Cancel;
use crate::output_budget::OutputBudget;
use crate::threads::Threads;

/// Configuration of connections.
#[derive(Debug, Clone)]
pub struct PeersConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Time without movement, where some is due, until a connection is given up. Also the time that a lost peer is
    /// waited for by calls that were not sent yet.
    pub progress: Duration,
    /// Time that a lost peer's leases wait for it, and those that it does not ask for again after its return. Also the
    /// time that calls of ours that were under way wait for a lost peer.
    pub grace: Duration,
    /// Time that TCP, TLS and Hello may take together.
    pub handshake: Duration,
    /// Most peers that are connected at a time, besides those whose connections are just ending. Each costs two threads and the
    /// buffers of a connection. Where more are listed, a peer is connected when somebody needs it.
    pub peers_max: usize,
    /// Most connections at a time of which nobody knows yet whose they are. Each costs a thread and up to 1 MiB.
    pub strangers_max: usize,
    /// The budget of answers that wait to be read.
    pub unread: OutputBudget,
    /// First and longest wait between two attempts to reach a peer.
    pub backoff: Backoff,
    /// The newest version of the protocol that is spoken; an older one than this release's, to try how that goes.
    pub version: u32,
    /// Bytes of packed rows of mutable sets that one other peer may have and not have released.
    pub packed_max: u64,
    /// The lanes of each pair of peers.
    pub lanes: LanesConfig,
    /// Memory shared with other pods of the node; none without.
    pub node: Option<NodeConfig>,
    /// Addresses that others are told for this peer where no table lists it. With them it looks where its addresses lead; none: it
    /// does not look.
    pub own_addresses: Option<Vec<String>>,
    /// Starter of threads.
    pub threads: Threads,
    /// Source of the addresses of hosts.
    pub resolver: Resolver,
}

impl PeersConfig {
    /// The usual times: 10 s without progress (a sidecar sets its own), 256 peers, 64 strangers, 128 MiB of unread answers, 5 s to connect,
    /// 100 ms to 5 s between attempts, two lanes in TLS.
    pub fn new(listen: SocketAddr) -> Self {
        let threads = Threads::default();
        Self {
            listen,
            progress: Duration::from_secs(10),
            grace: Duration::from_secs(10),
            handshake: Duration::from_secs(5),
            peers_max: 256,
            strangers_max: 64,
            unread: OutputBudget::new(128 << 20),
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
            version: PEER_VERSION,
            packed_max: u64::MAX,
            lanes: LanesConfig::default(),
            node: None,
            own_addresses: None,
            resolver: Resolver::new(threads.clone()),
            threads,
        }
    }
}

/// Identity of this sidecar.
#[derive(Debug, Clone)]
pub struct Me {
    /// Exchange that this sidecar belongs to.
    pub exchange: ExchangeName,
    /// Name of this sidecar as a peer.
    pub peer: PeerName,
    /// Incarnation of this sidecar.
    pub incarnation: Incarnation,
    /// Offer of what it can speak.
    pub offer: v1::Offer,
}

/// The key of this sidecar, as TLS uses it.
#[derive(Clone)]
pub struct Keys {
    /// For connections that come in; must ask for a certificate.
    pub server: Arc<ServerConfig>,
    /// For connections that go out; must show one.
    pub client: Arc<ClientConfig>,
    /// The fingerprint of our own key.
    pub fingerprint: Fingerprint,
    /// The fingerprint of the key in a certificate; `None` where it has no readable one.
    pub fingerprint_of: fn(&CertificateDer<'_>) -> Option<Fingerprint>,
}

/// A peer as the directory knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPeer {
    /// Name of the peer.
    pub name: PeerName,
    /// Addresses on which it listens, host:port, best first.
    pub addresses: Vec<String>,
    /// The keys that stand for it: two while it changes its key.
    pub fingerprints: Vec<Fingerprint>,
    /// The node it is on, where the directory says.
    pub node: Option<String>,
    /// True until Kubernetes has told an IP of its pod: it is dialed once it has one.
    pub awaits_ip: bool,
}

/// The peer table: who is in the exchange, and by which key. Asked often; answers from memory.
pub trait Known: Send + Sync {
    /// Everyone, ourselves too if the directory lists us.
    fn all(&self) -> Vec<KnownPeer>;
    /// Number of those.
    fn count(&self) -> usize;
    /// Returns the peer of this name.
    fn peer(&self, name: &PeerName) -> Option<KnownPeer>;
    /// Peers that say that this key is theirs: nobody, one peer, or several where somebody copied it.
    fn claimants(&self, fingerprint: &Fingerprint) -> Vec<PeerName>;
    /// Peers that list this address: nobody, one peer, or several behind one. Those that are listed by a name of DNS are not found
    /// so. Cheap: asked for each connection that comes in.
    fn at(&self, address: IpAddr) -> Vec<PeerName>;
    /// Asks the source of the table again, because something is missing in it. Limits its own rate, may take a moment
    /// and may fail silently: the table is then what it was. Never called on a reader thread of a connection in use.
    fn refresh(&self);
    /// Reason for which others refuse us, as the table lists us, with what to do. None where nothing is known of that.
    fn own_lack(&self) -> Option<String>;
    /// Reason for which the table has been an old one for a while. None where its source answers.
    fn outage(&self) -> Option<String>;
}

/// A peer in one of its lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerKey {
    /// Name of the peer.
    pub name: PeerName,
    /// Incarnation that is meant.
    pub incarnation: Incarnation,
}

/// Answer that the owner of a tensor gives to a pull.
pub struct Served {
    /// Meaning of the packed bytes.
    pub descriptor: Descriptor,
    /// CRC-32C of the packed bytes, if known.
    pub crc32c: Option<u32>,
    /// The bytes.
    pub source: Source,
    /// Other holders of the bytes, if the reader asked for that and may know.
    pub holders: Option<Holders>,
    /// The copy in host memory that is leased, where the tensor lies in GPU memory.
    pub staged: Option<u64>,
}

/// Other holders of the bytes of a tensor, as its owner knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// Token that a reader shows to them.
    pub pass: RelayToken,
    /// The holders, best first. None: the owner itself.
    pub peers: Vec<PeerKey>,
    /// Others that have all of it, best first: who is asked where the owner is lost.
    pub spares: Vec<PeerKey>,
}

/// A holder that did not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostHolder {
    /// Holder, in one of its lives.
    pub peer: PeerKey,
    /// Reason; none if a reader of an earlier release does not say.
    pub why: Option<HolderLost>,
}

/// Information that a reader wants of the owner in the middle of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sought {
    /// Another holder than these, which did not do.
    Holders(Vec<LostHolder>),
    /// The CRC-32C of all bytes.
    Proof,
}

/// The answer: other holders, or the CRC-32C.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Peers that have the bytes now, best first. None: the owner itself.
    pub peers: Vec<PeerKey>,
    /// Others that have all of it, best first: who is asked where the owner is lost.
    pub spares: Vec<PeerKey>,
    /// Of all bytes, where it was asked for.
    pub crc32c: Option<u32>,
}

/// Takes the answer. May be called at any time on any thread.
pub type TellFound = Box<dyn FnOnce(Result<Found, Failure>) + Send>;

/// Takes the hashes of granules, one after the other. May be called at any time on any thread.
pub type TellProven = Box<dyn FnOnce(Result<Vec<u8>, Failure>) + Send>;

/// Copy of another peer's tensor, or of a part of it, for a reader that its owner has let in.
pub struct RelaySource {
    /// Tensor that is served.
    pub served: Served,
    /// The lease that [`Serve::done`] ends; none where the tensor is on its way here itself.
    pub leased: Option<u64>,
}

/// Request of a reader for another peer's tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayRequest {
    /// Owner of the tensor.
    pub owner: PeerKey,
    /// Id of the tensor at its owner.
    pub id: u64,
    /// Number of bytes that the reader expects.
    pub bytes: u64,
    /// Token that the reader shows.
    pub pass: RelayToken,
    /// Only a copy will do, and nothing that is on its way.
    pub whole: bool,
}

/// Request of a peer of this node to map another peer's tensor here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedLoan {
    /// Owner of the tensor.
    pub owner: PeerKey,
    /// Id of the tensor at its owner.
    pub id: u64,
    /// Number of bytes that the reader expects our copy to have.
    pub bytes: u64,
}

/// Request of a peer to pull from us.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The tensor's id here.
    pub id: u64,
    /// Part of the tensor that the peer wants.
    pub selection: Selection,
    /// Number of packed bytes that the peer expects.
    pub bytes: u64,
    /// The byte length of the whole tensor as its reference states it, where the peer says that.
    pub stored: Option<u64>,
    /// Set if it goes on with a pull that a lost connection interrupted, for which it still has its lease.
    pub resumed: bool,
    /// The reader takes the bytes from others, too.
    pub spreads: bool,
    /// Others that did not do.
    pub lost: Vec<LostHolder>,
}

/// Service of this sidecar to its peers. Called on reader threads (`small` sometimes on a writer thread): none of it
/// may block, and none may wait for a call of the same [`super::Peers`].
pub trait Serve: Send + Sync {
    /// Leases a tensor for a peer and gives the selected bytes. Every success is followed by
    /// one [`Serve::done`], or by the end of the peer's grace or incarnation, which end all its leases anyway.
    ///
    /// # Errors
    /// The refusal that the asker is told.
    fn open(&self, from: &PeerKey, asked: &Asked) -> Result<Served, Failure>;
    /// Leases all of a tensor as it lies, which the peer then maps: `bytes` counts the gaps of its strides.
    ///
    /// # Errors
    /// The refusal that the asker is told.
    fn map(&self, from: &PeerKey, id: u64, bytes: u64) -> Result<Served, Failure>;
    /// Leases a tensor that lies in the memory of one of these GPUs for a peer of this node, which then maps it there. None where
    /// it lies elsewhere: then [`Serve::map`] has it. Every success is followed by one [`Serve::done`], as for a map.
    ///
    /// # Errors
    /// The refusal that the asker is told.
    fn map_on_gpu(&self, _from: &PeerKey, _id: u64, _gpus: &[GpuId]) -> Result<Option<ServedOnGpu>, Failure> {
        Ok(None)
    }
    /// Ends one lease of `open` or `map`. May come after the grace has ended it already; it is nothing then.
    fn done(&self, from: &PeerKey, id: u64);
    /// Gives what is here of another peer's tensor. A lease that it says is ended by one [`Serve::done`].
    ///
    /// # Errors
    /// The refusal that the asker is told.
    fn relay(&self, from: &PeerKey, asked: &RelayRequest) -> Result<RelaySource, Failure>;
    /// A reader of a pull that spreads wants to know more.
    fn seek(&self, from: &PeerKey, id: u64, sought: Sought, reply: TellFound);
    /// A reader of a pull that spreads wants to know what granules of the packed bytes hash to of the tensor that it has leased. They
    /// may lie beyond its end.
    fn prove(&self, id: u64, granules: Range<u64>, reply: TellProven);
    /// A pull that spreads is over; whether the reader has the tensor now. Its lease ends by [`Serve::done`], as always.
    fn left(&self, from: &PeerKey, id: u64, holds: bool);
    /// Small tensors at once: `answer` gets an outcome for each id, in order. They hold no lease. `stored` is as in [`Asked`], of
    /// each or of none.
    fn small(&self, from: &PeerKey, asked: &v1::PullMany, answer: &mut SmallAnswer);
    /// Gives our copy of another peer's tensor, as it lies, to a peer of this node, which then maps it. A lease that it says is
    /// ended by one [`Serve::done`].
    ///
    /// # Errors
    /// The refusal that the asker is told.
    fn lend(&self, from: &PeerKey, asked: &AskedLoan) -> Result<RelaySource, Failure>;
    /// Tells what is known of tensors; `reply` may be called at any time on any thread. `gone` is raised when the asker
    /// does not want to know any more, or its connection has ended: then nothing should wait for it.
    fn inquire(
        &self,
        from: &PeerKey,
        inquire: v1::Inquire,
        gone: Cancel,
        reply: Box<dyn FnOnce(v1::Inquired) + Send>,
    );
    /// Attaches a peer to a channel of ours. `gone` as for an inquiry; `reply` may be called at any time on any thread. The source is
    /// ended once, whether it was pumped or not.
    fn channel(&self, from: &PeerKey, asked: &v1::PeerChannelAttach, gone: Cancel, reply: TellAttached);
    /// Answers a call about a mutable set; `reply` may be called at any time on any thread, and `gone` is as in
    /// [`Serve::inquire`].
    fn set_call(&self, _from: &PeerKey, _call: v1::SetCall, _gone: Cancel, reply: super::SetDone) {
        reply(Err(Failure::new(Reason::Unsupported, "this peer keeps no mutable sets")));
    }
    /// Turns a ticket into a lease of the peer; gives the number of the tensor. Every success is followed by one
    /// [`Serve::done`], or by the end of the peer.
    ///
    /// # Errors
    /// The refusal that the asker is told.
    fn redeem(&self, _from: &PeerKey, _asked: &v1::PeerRedeem) -> Result<u64, Failure> {
        Err(Failure::new(Reason::Unsupported, "this peer redeems no tickets"))
    }
    /// Tells names of ours, or changes of them. `gone` and `reply` are as in [`Serve::inquire`].
    fn watch(&self, _from: &PeerKey, _asked: v1::WatchRequest, _gone: Cancel, reply: super::WatchDone) {
        reply(Err(Failure::new(Reason::Unsupported, "this peer tells no names")));
    }
    /// Connects a peer to a listener of ours. `gone` and `reply` are as in [`Serve::inquire`].
    fn pipe_connect(
        &self,
        _from: &super::PipeAsker,
        _asked: v1::PeerPipeConnect,
        _gone: Cancel,
        reply: super::TellConnected,
    ) {
        reply(Err(Failure::new(Reason::NotFound, "nobody listens at this peer")));
    }
    /// Goes on with a pipe that the peer had opened on another connection, which may not have ended yet here.
    ///
    /// # Errors
    /// The refusal that the asker is told.
    fn pipe_resume(&self, _from: &super::PipeAsker, _pipe: u64) -> Result<v1::PeerPipeConnected, Failure> {
        Err(Failure::new(Reason::NotFound, "no pipes are here"))
    }
    /// Answers a call about a pipe that the peer has opened on this connection. `gone` and `reply` are as in [`Serve::inquire`]; the call
    /// is never an end.
    fn pipe_call(
        &self,
        _from: &super::PipeAsker,
        _call: v1::peer_pipe_call::Kind,
        _gone: Cancel,
        reply: super::PipeDone,
    ) {
        reply(Err(Failure::new(Reason::NotFound, "no pipes are here")));
    }
    /// Hears what a peer says of ends, and of what it has read.
    fn pipe_end(&self, _from: &super::PipeAsker, _end: &v1::PeerPipeEnd) {}
    /// Returns whether a pipe that was opened or goes on on the connection has not ended.
    fn has_pipes(&self, _from: &super::PipeAsker) -> bool {
        false
    }
    /// The connection has ended: its pipes have, too, or wait for the peer where they can go on.
    fn pipes_over(&self, _from: &super::PipeAsker) {}
    /// Called as this sidecar stops: no peer that is away is waited for any more.
    fn stopping(&self) {}
    /// The connection is lost: the grace for this peer's leases begins.
    fn peer_lost(&self, peer: &PeerKey);
    /// The peer is back in its incarnation: its leases stay.
    fn peer_back(&self, peer: &PeerKey);
    /// Told of an incarnation that will not come any more, or is not waited for any longer: its leases end, and nothing
    /// of it is remembered.
    fn peer_over(&self, old: &PeerKey);
}

/// A pull to be made.
#[derive(Debug)]
pub struct PullOrder {
    /// The tensor's id at its owner.
    pub id: u64,
    /// Part of the tensor to be pulled.
    pub selection: Selection,
    /// Number of packed bytes.
    pub bytes: u64,
    /// The byte length of the whole tensor as its reference states it: the owner refuses another one than its own.
    pub stored: Option<u64>,
    /// Landing of the bytes, of exactly that length.
    pub landing: Landing,
    /// Time at which to give up.
    pub deadline: Instant,
    /// `tcp` or `quic`, as the route says. The other one brings it where this one cannot.
    pub transport: Transport,
    /// All of a tensor, which others are served from as it comes. So it may come from others, too.
    pub growth: Option<Arc<PartialTensor>>,
}

/// A pull that was made: all bytes are in the landing.
#[derive(Debug)]
pub struct Pulled {
    /// Given back, full.
    pub landing: Landing,
    /// Meaning of the bytes, as the owner says.
    pub descriptor: Descriptor,
    /// CRC-32C of all of them where the owner has one; not compared yet.
    pub crc32c: Option<u32>,
    /// From the order to the last byte.
    pub seconds: f64,
    /// Transport that brought the last of them.
    pub transport: Transport,
    /// The ways that they came.
    pub paths: Paths,
    /// Of one that others are served from: the lease at the owner ends with it, and it says whether the tensor is here now.
    pub pull_guard: Option<PullGuard>,
    /// Set if the owner copied it out of GPU memory.
    pub staged: bool,
}

/// A pull that was not made. The bytes in the landing mean nothing.
#[derive(Debug)]
pub struct PullFailed {
    /// Given back.
    pub landing: Landing,
    /// Reason of the failure.
    pub failure: Failure,
}

/// A tensor of a peer of this node to be mapped, or its copy of another peer's.
#[derive(Debug, Clone)]
pub struct MapOrder {
    /// Id of the tensor at its owner.
    pub id: u64,
    /// The owner, where that is not the peer that is asked.
    pub owner: Option<PeerKey>,
    /// Number of bytes that it has as it lies.
    pub bytes: u64,
    /// GPUs that both reach, if it may come as memory of one of them.
    pub gpus: Vec<GpuId>,
    /// Time at which to give up.
    pub deadline: Instant,
}

/// A tensor that is mapped.
#[derive(Debug)]
pub struct Mapped {
    /// Bytes, in the memory of the peer that was asked. Gives the lease there back when its last handle is dropped. Nothing of a tensor
    /// in GPU memory.
    pub block: Block,
    /// The GPU memory that it lies in, for clients to map.
    pub gpu: Option<BorrowedMemory>,
    /// Meaning of the bytes as they lie, as the owner says.
    pub descriptor: Descriptor,
    /// CRC-32C of the bytes, if the owner has one.
    pub crc32c: Option<u32>,
    /// From the order to the map.
    pub seconds: f64,
    /// Set if the owner copied it out of GPU memory.
    pub staged: bool,
}

/// A map that was not made.
#[derive(Debug)]
pub enum MapFailed {
    /// The owner refused, or the call was over before it had an answer.
    Owner(Failure),
    /// The tensor cannot be had in this way; another may do.
    Way(Failure),
}

/// State of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// A connection is up.
    Connected,
    /// An attempt is under way.
    Connecting,
    /// The last attempt failed, or the connection was lost.
    Unreachable,
    /// Not connected, because nobody needs it: no connection was made, or its seat went to a peer that was needed.
    Idle,
    /// The directory lists it no more, and it has no connection.
    Left,
}

impl PeerState {
    /// The word in replies, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Connecting => "connecting",
            Self::Unreachable => "unreachable",
            Self::Idle => "idle",
            Self::Left => "left",
        }
    }
}

/// A peer, as seen from here.
#[derive(Debug, Clone)]
pub struct PeerView {
    /// Name of the peer.
    pub name: PeerName,
    /// State of the peer.
    pub state: PeerState,
    /// Incarnation of the peer that was known last.
    pub incarnation: Option<Incarnation>,
    /// Addresses on which it listens.
    pub addresses: Vec<String>,
    /// The node it is on, where the directory says.
    pub node: Option<String>,
    /// Tensor bytes received from it.
    pub bytes_in: u64,
    /// Tensor bytes sent to it.
    pub bytes_out: u64,
    /// Reason for which it was lost or could not be reached; empty when all is well.
    pub last_error: String,
    /// Set to true if the connection's lanes are plain, as both ends let them be; none where there is no connection.
    pub plain_lanes: Option<bool>,
}
