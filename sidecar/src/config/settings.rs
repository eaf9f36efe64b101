//! The table of settings. A setting is a row here and a field of [`Config`]; everything else follows from the row.

use std::path::PathBuf;
use std::time::Duration;

use tensorlane_proto::crd::GpuMode;
use tensorlane_proto::frame::LANES_MAX;
use tensorlane_proto::identity::{ExchangeName, PeerName};
use tensorlane_proto::negotiate::{Encryption, Require};

use super::values::{
    GI, KI, MI, addresses, bytes, bytes_text, count, count_or_none, duration, duration_or_off, encryption,
    host_port, log_format, log_level, loopback, namespace, on_or_off, parsed, path, peers_directory, prefer,
    require, socket_address_or_off, sockets_directory, transports,
};
use super::{
    Admin, Arena, Config, Deadlines, Gc, Gpu, Grpc, IdentityConfig, Limits, Log, LogFormat, Node, Peers,
    PeersDirectory, Routes, Security, Sets, Sockets, State,
};

/// A setting.
#[derive(Debug)]
pub(super) struct Setting {
    /// Place of the setting in the YAML: section and name, camelCase.
    pub(super) path: &'static str,
    /// Value that holds if nobody says anything.
    pub(super) default: Fallback,
    /// Values that may be said, in a few words.
    pub(super) accepts: &'static str,
    /// Purpose of the setting and what it costs.
    pub(super) doc: &'static str,
    /// Reads a text into its field, or says what is wrong with it.
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
}

/// Value that holds if nobody says anything.
#[derive(Debug)]
pub(super) enum Fallback {
    /// Value as if this text were in the file.
    Text(&'static str),
    /// Absent value, which means something.
    Absent,
    /// The text follows from the host's name and the settings in the rows above.
    Computed(fn(&Config, host_name: &str) -> String),
}

use Fallback::{Absent, Computed, Text};

const BYTES: &str = "bytes in multiples of 4Ki, such as 512Mi or 8Gi";
const DURATION: &str = "a duration up to a day, such as 500ms, 10s or 2m";
const HOST_PORT: &str = "HOST:PORT, such as 10.0.0.7:9421 or [fd00::7]:9421";

macro_rules! setting {
    ($path:literal, $default:expr, $accepts:expr, $doc:literal, $($field:ident).+ = $parse:expr) => {
        Setting {
            path: $path,
            default: $default,
            accepts: $accepts,
            doc: $doc,
            set: |config, text| {
                let parse: fn(&str) -> Result<_, String> = $parse;
                config.$($field).+ = parse(text)?;
                Ok(())
            },
        }
    };
}

/// Every setting, in the order of the printed configuration.
pub(super) static SETTINGS: &[Setting] = &[
    setting!(
        "exchange",
        Text("default"),
        "a name: a-z, 0-9, '-' and '.'",
        "The exchange that this peer belongs to; peers of another one are refused.",
        exchange = parsed
    ),
    setting!(
        "peer",
        Computed(|_, host| host.to_lowercase()),
        "a name: a-z, 0-9, '-' and '.'",
        "The name of this peer in its exchange; the host's name by default, which is the pod's.",
        peer = parsed
    ),
    setting!(
        "transports",
        Absent,
        "some of shm, cuda_ipc, tcp and quic, with commas between them",
        "The transports between peers that may be used. Absent: all of this release that need no permission.",
        routes.transports = |text| transports(text).map(Some)
    ),
    setting!(
        "require",
        Text("none"),
        "some of zero_copy, same_node and encrypted, with commas between them, or none",
        "What every route between this peer and another must be, besides what a call requires; what has no such route fails.",
        routes.require = require
    ),
    setting!(
        "encryption",
        Text("required"),
        "required or none",
        "Whether lanes are encrypted; none, at both ends, lets bytes of large tensors travel in the clear. Everything else is always encrypted.",
        routes.encryption = encryption
    ),
    setting!(
        "prefer",
        Text("measured"),
        "measured, tcp or quic",
        "Which of tcp and quic brings large tensors where both may be used; measured: the one that brings more to and from a peer, found out by trying the other now and then.",
        routes.prefer = prefer
    ),
    setting!(
        "sockets.directory",
        Text("/run/tensorlane"),
        "an absolute path of at most 94 bytes",
        "Where session.sock and grpc.sock are made; only this pod's containers may see it.",
        sockets.directory = sockets_directory
    ),
    setting!(
        "grpc.listen",
        Absent,
        "a loopback IP address and a port, such as 127.0.0.1:9422",
        "gRPC over TCP besides the Unix socket, for clients that know no Unix sockets; absent: none.",
        grpc.listen = |text| loopback(text).map(Some)
    ),
    setting!(
        "arena.size",
        Text("1Gi"),
        "bytes in multiples of 4Ki, at least 16Mi, such as 8Gi",
        "Bytes that tensors may take. They are populated and charged to this container, which needs arena.base besides.",
        arena.size = |text| bytes(text, 16 * MI)
    ),
    setting!(
        "arena.segment",
        Computed(|config, _| bytes_text(segment(config.arena.size))),
        "bytes in multiples of 4Ki, from 1Mi to arena.size",
        "Bytes of an ordinary segment: larger ones take fewer descriptors and maps, smaller ones waste less at their ends. A quarter of the arena, at most 64Mi, by default.",
        arena.segment = |text| bytes(text, MI)
    ),
    setting!(
        "arena.ready",
        Computed(|config, _| bytes_text(ready(config.arena.size))),
        "bytes in multiples of 4Ki, at most arena.size",
        "Bytes to keep populated ahead of use: a put that finds fewer writes at a tenth of the speed. A quarter of the arena, at most 1Gi, by default.",
        arena.ready = |text| bytes(text, 0)
    ),
    setting!(
        "arena.base",
        Text("256Mi"),
        BYTES,
        "Bytes that the sidecar needs beside the arena; arena.size and this together must fit into the container's memory limit.",
        arena.base = |text| bytes(text, 0)
    ),
    setting!(
        "state.directory",
        Text("/var/lib/tensorlane"),
        "an absolute path",
        "A directory that only the sidecar sees, for its identity key and what must outlive a restart of the container.",
        state.directory = path
    ),
    setting!(
        "peers.listen",
        Absent,
        HOST_PORT,
        "Where other peers connect; port 0 takes any free one. Absent: no peers at all.",
        peers.listen = |text| host_port(text, true).map(Some)
    ),
    setting!(
        "peers.advertise",
        Absent,
        "up to 8, with commas: HOST:PORT, or an IP address alone, for the port of peers.listen",
        "The addresses that other peers are told, where they are not that of peers.listen.",
        peers.advertise = |text| addresses(text).map(Some)
    ),
    setting!(
        "peers.file",
        Absent,
        "an absolute path",
        "The YAML file that lists the peers; it is read again when it changes.",
        peers.file = |text| path(text).map(Some)
    ),
    setting!(
        "peers.directory",
        Computed(|config, _| (if config.peers.file.is_some() { "file" } else { "none" }).to_owned()),
        "none, file or kubernetes",
        "Where the table of peers comes from: peers.file, or the TensorPeer objects of the exchange. file where peers.file is given, else none, by default.",
        peers.directory = peers_directory
    ),
    setting!(
        "peers.namespace",
        Absent,
        "the name of a namespace: a-z, 0-9 and '-', at most 63",
        "The namespace of the TensorPeer objects, for peers.directory kubernetes. Absent: the one of the pod.",
        peers.namespace = |text| namespace(text).map(Some)
    ),
    setting!(
        "peers.kubeconfig",
        Absent,
        "an absolute path",
        "How the API server is reached from outside a pod, for peers.directory kubernetes. Absent: as pods do.",
        peers.kubeconfig = |text| path(text).map(Some)
    ),
    setting!(
        "peers.max",
        Text("256"),
        "a number from 1 to 10000",
        "Peers that may be connected at once; each costs a thread or two and about 1Mi of arena.base.",
        peers.max = |text| count(text, 10_000)
    ),
    setting!(
        "peers.lanes",
        Computed(|config, _| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            lanes(cores, config.routes.may_be_plain()).to_string()
        }),
        "a number from 0 to 8",
        "Connections of their own for the bytes of large tensors, in each direction of a pair of peers; each costs a thread and up to half a Mi of arena.base while it is used. As many as cores, from 2 to 4, by default, and 4 with encryption none; 0 for none.",
        peers.lanes = |text| count_or_none(text, LANES_MAX)
    ),
    setting!(
        "peers.fanOut",
        Text("1"),
        "a number from 0 to 8",
        "Readers of a large tensor that one peer serves at a time, while others that have it or are getting it can: 1 makes chains, more make trees, 0 lets the owner serve all.",
        peers.fan_out = |text| count_or_none(text, 8)
    ),
    setting!(
        "peers.fanOutFrom",
        Text("32Mi"),
        "bytes in multiples of 4Ki, from 8Mi to 1Ti",
        "Bytes from which on readers get a tensor from each other.",
        peers.fan_out_from = |text| bytes(text, 8 * MI)
    ),
    setting!(
        "identity.rotateEvery",
        Computed(|config, _| (if config.peers.directory == PeersDirectory::Kubernetes {
            "24h"
        } else {
            "off"
        })
        .to_owned()),
        "a duration up to a day, such as 12h, or off",
        "The age at which the identity key is changed while the sidecar runs, up to a tenth earlier by chance. 24h in Kubernetes, else off, by default.",
        identity.rotate_every = duration_or_off
    ),
    setting!(
        "identity.overlap",
        Text("2m"),
        DURATION,
        "How long two keys stand for this peer: half of it from when the peer table lists the new one until it is used, half of it after.",
        identity.overlap = duration
    ),
    setting!(
        "gpu.mode",
        Text("auto"),
        "auto, none, broker or legacy_ipc",
        "How tensors on GPUs are shared; auto is whatever this release can do, none takes none.",
        gpu.mode = parsed
    ),
    setting!(
        "security.neighbours",
        Text("on"),
        "on or off",
        "Whether copies that other pods of the node have of a third peer's tensors are mapped, whose pods are trusted with their bytes then; off brings a copy of its own.",
        security.neighbours = on_or_off
    ),
    setting!(
        "node.directory",
        Absent,
        "an absolute path",
        "Where the sidecars of this node find each other to share memory. Absent: they share none.",
        node.directory = |text| path(text).map(Some)
    ),
    setting!(
        "sets.root",
        Absent,
        "an absolute path",
        "The directory in which mutable sets on files lie, each in one of its own. One sidecar at a time has it. Absent: no sets on files.",
        sets.root = |text| path(text).map(Some)
    ),
    setting!(
        "admin.listen",
        Text("127.0.0.1:9420"),
        "an IP address and a port, such as 0.0.0.0:9420 or [::]:9420, or off",
        "Where /metrics, /livez, /readyz and /startupz are served. They are not secret, but not for everyone either.",
        admin.listen = socket_address_or_off
    ),
    setting!(
        "limits.sessions",
        Text("256"),
        "a number from 1 to 65536",
        "Sessions at once; each costs a thread and three descriptors.",
        limits.sessions = |text| count(text, 65_536)
    ),
    setting!(
        "limits.tensors",
        Text("1000000"),
        "a number from 1 to 100000000",
        "Live tensors, reservations and copies included; each costs about 300 bytes of arena.base.",
        limits.tensors = |text| count(text, 100_000_000)
    ),
    setting!(
        "limits.leasesPerSession",
        Text("1000000"),
        "a number from 1 to 100000000",
        "Leases of one session; each costs about 50 bytes of arena.base.",
        limits.leases_per_session = |text| count(text, 100_000_000)
    ),
    setting!(
        "limits.names",
        Text("1000000"),
        "a number from 1 to 100000000",
        "Names; each costs its own bytes (at most 512) and about 100 more of arena.base.",
        limits.names = |text| count(text, 100_000_000)
    ),
    setting!(
        "limits.tickets",
        Text("100000"),
        "a number from 1 to 100000000",
        "Live tickets; each costs about 150 bytes of arena.base.",
        limits.tickets = |text| count(text, 100_000_000)
    ),
    setting!(
        "limits.pendingRequests",
        Text("1024"),
        "a number from 1 to 65536",
        "Requests of one session that wait or run at once; the next one is refused.",
        limits.pending_requests = |text| count(text, 65_536)
    ),
    setting!(
        "limits.setFiles",
        Text("1024"),
        "a number from 1 to 1000000",
        "Files of sets that are kept open, each for one descriptor; those used longest ago are closed.",
        limits.set_files = |text| count(text, 1_000_000)
    ),
    setting!(
        "limits.setJournalBytes",
        Text("256Mi"),
        "bytes in multiples of 4Ki, at least 64Ki",
        "Bytes of the journal of a set on files with the durability disk, on the disk below sets.root; no commit to it has more, and no heap is taken for it.",
        limits.set_journal_bytes = |text| bytes(text, 64 << 10)
    ),
    setting!(
        "limits.strangers",
        Text("64"),
        "a number from 1 to 4096",
        "Connections that have not said who they are, on the session socket and from peers each; one address has a quarter of the latter, and listed addresses a quarter more. Each costs a thread and up to 1Mi of arena.base.",
        limits.strangers = |text| count(text, 4_096)
    ),
    setting!(
        "limits.lanes",
        Text("256"),
        "a number from 1 to 65536",
        "Lanes of all peers together, both directions and those on QUIC included; each costs a thread, two descriptors and up to half a Mi of arena.base while it is up. Beyond it bytes come on the lanes that are up, or on the control connection.",
        limits.lanes = |text| count(text, 65_536)
    ),
    setting!(
        "limits.unreadBytes",
        Computed(|config, _| bytes_text(unread(config.arena.base))),
        "bytes in multiples of 4Ki, at least 16Mi",
        "Bytes of answers that wait for sessions and peers to read them, all together, half of arena.base by default, at most 128Mi; beyond it the connection with the most is closed. Buffers of calls over gRPC count too; there streams that stand still are ended first.",
        limits.unread_bytes = |text| bytes(text, 16 * MI)
    ),
    setting!(
        "limits.lentBytes",
        Computed(|config, _| bytes_text(lent(config.arena.size))),
        "bytes in multiples of 4Ki",
        "Bytes of tensors that one peer of the node and its clients may map or keep, also after its connection ended; beyond it that peer gets bytes by TCP. Three quarters of the arena by default; 0: none.",
        limits.lent_bytes = |text| bytes(text, 0)
    ),
    setting!(
        "limits.gpuLentBytes",
        Text("128Gi"),
        "bytes in multiples of 4Ki",
        "Bytes of GPU memory that one peer of the node may have leased at a time; beyond it that peer gets copies. 0: none.",
        limits.gpu_lent_bytes = |text| bytes(text, 0)
    ),
    setting!(
        "gc.ticketTtl",
        Text("60s"),
        DURATION,
        "The life of a ticket that was not given one.",
        gc.ticket_ttl = duration
    ),
    setting!(
        "gc.leaseGrace",
        Text("10s"),
        DURATION,
        "How long the leases of a lost gRPC session or peer stay, so that it may come back.",
        gc.lease_grace = duration
    ),
    setting!(
        "gc.copyIdle",
        Text("30s"),
        DURATION,
        "How long a copy of another peer's tensor stays without a lease.",
        gc.copy_idle = duration
    ),
    setting!(
        "deadlines.default",
        Text("30s"),
        DURATION,
        "How long a call may take that does not say; over gRPC also how long a stream may stand still, and a client take no byte.",
        deadlines.default = duration
    ),
    setting!(
        "deadlines.map",
        Text("5s"),
        DURATION,
        "How long a writer may take to acknowledge its map of a new segment; then the segment is destroyed.",
        deadlines.map = duration
    ),
    setting!(
        "deadlines.progress",
        Text("2s"),
        DURATION,
        "How long a peer connection may move no byte while some are due; then it is closed.",
        deadlines.progress = duration
    ),
    setting!(
        "deadlines.drain",
        Text("5s"),
        DURATION,
        "How long transfers that are under way may go on after SIGTERM, while nothing new begins; the pod ends later by as much as they take.",
        deadlines.drain = duration
    ),
    setting!(
        "log.level",
        Text("info"),
        "error, warn, info, debug or trace, then module=level after commas, such as info,tensorlane_sidecar::peer=debug",
        "How much is logged.",
        log.level = log_level
    ),
    setting!(
        "log.format",
        Text("json"),
        "json or text",
        "The shape of a line of the log.",
        log.format = log_format
    ),
];

/// As many lanes as cores, for one core encrypts for one lane; two at least, for a cloud gives one flow a part of the link;
/// four at most, which fill 100 Gb/s, and of which a pair costs 4 MiB where both ends pull at once. Plain ones take little of a
/// core each, and a kernel that paces connections brings more on four.
fn lanes(cores: usize, plain: bool) -> usize {
    if plain { 4 } else { cores.clamp(2, 4) }
}

/// A quarter of the arena, at most 64 MiB, in whole pages: in a small arena, too, several sessions have room for one.
fn segment(size: u64) -> u64 {
    // At least what is accepted: a size that was mistaken is told once.
    ((size / 4).min(64 * MI) / (4 * KI) * (4 * KI)).max(MI)
}

/// A quarter of the arena, at most 1 GiB, in whole pages: what a burst takes while the populator catches up.
fn ready(size: u64) -> u64 {
    (size / 4).min(GI) / (4 * KI) * (4 * KI)
}

/// Half of the base, at most 128 MiB, in whole pages, and at least what is accepted.
fn unread(base: u64) -> u64 {
    (base / 2 / (4 * KI) * (4 * KI)).clamp(16 * MI, 128 * MI)
}

/// Three quarters of the arena, in whole pages: the rest is for everybody else.
fn lent(size: u64) -> u64 {
    size / (16 * KI) * (12 * KI)
}

/// Configuration that the table starts from: every field is set by its row before anyone sees it.
pub(super) fn blank() -> Config {
    let zero = Duration::ZERO;
    Config {
        exchange: ExchangeName::new("default").expect("seven small letters are a name"),
        peer: PeerName::new("here").expect("four small letters are a name"),
        routes: Routes {
            transports: None,
            require: Require::NONE,
            encryption: Encryption::Tls,
            prefer: None,
        },
        sockets: Sockets { directory: PathBuf::new() },
        grpc: Grpc { listen: None },
        arena: Arena { size: 0, segment: 0, ready: 0, base: 0 },
        state: State { directory: PathBuf::new() },
        peers: Peers {
            listen: None,
            advertise: None,
            file: None,
            directory: PeersDirectory::None,
            namespace: None,
            kubeconfig: None,
            max: 0,
            lanes: 0,
            fan_out: 0,
            fan_out_from: 0,
        },
        identity: IdentityConfig { rotate_every: None, overlap: zero },
        gpu: Gpu { mode: GpuMode::Auto },
        security: Security { neighbours: true },
        node: Node { directory: None },
        sets: Sets { root: None },
        admin: Admin { listen: None },
        limits: Limits {
            sessions: 0,
            tensors: 0,
            leases_per_session: 0,
            names: 0,
            tickets: 0,
            pending_requests: 0,
            set_files: 0,
            set_journal_bytes: 0,
            strangers: 0,
            lanes: 0,
            unread_bytes: 0,
            lent_bytes: 0,
            gpu_lent_bytes: 0,
        },
        gc: Gc { ticket_ttl: zero, lease_grace: zero, copy_idle: zero },
        deadlines: Deadlines { default: zero, map: zero, progress: zero, drain: zero },
        log: Log { level: String::new(), format: LogFormat::Json },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_answers_have_half_of_the_base_within_what_is_accepted() {
        let of_mib = |base: u64| unread(base * MI) / MI;
        assert_eq!([0, 16, 64, 256, 1_024].map(of_mib), [16, 16, 32, 128, 128]);
        assert_eq!(unread(64 * MI + 4 * KI) % (4 * KI), 0);
    }

    #[test]
    fn encrypted_lanes_are_as_many_as_cores_within_bounds_and_plain_ones_are_four() {
        assert_eq!([1, 2, 3, 4, 64].map(|cores| lanes(cores, false)), [2, 2, 3, 4, 4]);
        assert_eq!([1, 64].map(|cores| lanes(cores, true)), [4, 4]);
    }
}
