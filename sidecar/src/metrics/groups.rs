//! The metrics themselves, in groups by module: name, labels, and what is not counted.

use std::time::Duration;

use prometheus::{IntCounter, IntGauge, IntGaugeVec};
use tensorlane_memory::ring::Policy;
use tensorlane_proto::PeerName;
use tensorlane_proto::failure::Reason;
use tensorlane_proto::ledger::Cause;
use tensorlane_proto::negotiate::{Transport, Why};

use super::family::{Counters, Gauges, Histograms, Maker};
use super::label::{
    ArenaState, AuthRefusal, Carrier, ChecksumPlace, Dialed, Direction, FallBack, Foreign, FrameFault,
    GpuState, GrpcCut, HolderLost, Kind, Label, LaneEnd, Moved, NodeEvent, NodeRefusal, OrphanEnd, Outcome,
    PanicScope, PeerCut, PeerState, SeatSide, SessionCut, Verb, Wait, Way,
};

/// Peers of the node of which is shown by name what they have of our memory: each is a series.
const LENT_SHOWN: usize = 8;

/// Requests of workloads.
pub struct Calls {
    /// Items of requests by verb and result.
    pub items: Counters<(Verb, Outcome)>,
    /// Seconds of requests by verb.
    pub seconds: Histograms<(Verb,)>,
}

/// Threads of the process.
pub struct Threads {
    /// Panics, by what they ended.
    pub panics: Counters<(PanicScope,)>,
}

/// Bytes of tensors.
pub struct Moves {
    /// Bytes put.
    pub put_bytes: Counters<(Transport, Moved)>,
    /// Seconds of puts.
    pub put_seconds: Histograms<(Transport, Moved)>,
    /// Bytes got.
    pub get_bytes: Counters<(Transport, Moved)>,
    /// Seconds of gets.
    pub get_seconds: Histograms<(Transport, Moved)>,
    /// Transfers on a worse transport than the best, by the better one, the taken one and the reason.
    pub fallbacks: Counters<(Transport, Transport, Why)>,
    /// Bytes that were not what they were.
    pub checksum_mismatches: Counters<(ChecksumPlace,)>,
    /// Tensors of peers elsewhere that were mapped from a copy of this node.
    pub neighbours: IntCounter,
}

/// The memory.
pub struct Arena {
    bytes: Gauges<(ArenaState,)>,
    size: IntGauge,
    inherited: IntGauge,
    populated: IntGauge,
    /// Pages that could not be had.
    pub populate_failures: IntCounter,
    /// Blocks that were given out before their pages existed.
    pub cold_populates: IntCounter,
    /// Requests that wait.
    pub waiters: Gauges<(Wait,)>,
    /// Bytes taken by requests that look names up or wait for them.
    pub waiting_bytes: IntGauge,
    gpu_tensors: IntGauge,
    gpu_bytes: Gauges<(GpuState,)>,
}

/// Metrics of what lives, and of what ended.
pub struct Ledger {
    tensors: Gauges<(Kind,)>,
    leases: IntGauge,
    names: IntGauge,
    tickets: IntGauge,
    /// Bytes of the changes of names that are remembered.
    pub journal: IntGauge,
    /// Tensors and reservations that ended, by what ended them.
    pub freed_tensors: Counters<(Cause,)>,
    /// Bytes of those tensors and reservations.
    pub freed_bytes: Counters<(Cause,)>,
}

/// Metrics of channels.
pub struct Channels {
    /// Channels.
    pub live: IntGauge,
    /// Readers of them.
    pub readers: IntGauge,
    /// Messages that were written.
    pub messages: IntCounter,
    /// Messages that readers were told of as dropped, by the policy of their channel.
    pub dropped: Counters<(Policy,)>,
    /// Readers that were evicted.
    pub evicted: IntCounter,
    /// Attachments between peers that went on after a connection was lost.
    pub resumed: IntCounter,
}

/// Metrics of pipes.
pub struct Pipes {
    /// Pipes.
    pub live: IntGauge,
    /// Listeners.
    pub listeners: IntGauge,
    /// Messages that are not read.
    pub unread: IntGauge,
    /// Messages that were read.
    pub messages: IntCounter,
    /// Pipes that went on over another connection.
    pub resumed: IntCounter,
}

/// Workloads.
pub struct Sessions {
    /// Open sessions.
    pub open: Gauges<(Carrier,)>,
    /// Sessions that began.
    pub opened: Counters<(Carrier,)>,
    /// Sessions that were one too many.
    pub refused: IntCounter,
    /// Frames that closed their session.
    pub rejected_frames: Counters<(FrameFault,)>,
    /// Sessions closed because their client did not do its part.
    pub cut: Counters<(SessionCut,)>,
    /// gRPC connections for which there was no room.
    pub cut_connections: Counters<(GrpcCut,)>,
    /// Bytes of answers that wait to be read.
    pub unread: IntGauge,
}

/// Other peers.
pub struct Peers {
    connections: Gauges<(PeerState,)>,
    /// Connections refused before their first frame.
    pub refused: Counters<(AuthRefusal,)>,
    /// Connections for which there was no seat, by the side that had none.
    pub no_seats: Counters<(SeatSide,)>,
    /// Frames that closed their connection.
    pub rejected_frames: Counters<(FrameFault,)>,
    /// Connections that had been up and were closed from here.
    pub cut: Counters<(PeerCut,)>,
    /// Bytes of tensors to and from peers.
    pub bytes: Counters<(Direction,)>,
    /// Pulls that were begun, by the way of their bytes.
    pub pulls: Counters<(Way,)>,
    /// Lanes that came up, by the direction of their bytes.
    pub opened_lanes: Counters<(Direction,)>,
    /// Lanes that there was no room for, by the direction of their bytes.
    pub refused_lanes: Counters<(Direction,)>,
    /// Lanes that ended.
    pub ended_lanes: Counters<(LaneEnd,)>,
    /// Pulls that did not come in the best way.
    pub fallbacks: Counters<(FallBack,)>,
    /// Bytes of tensors of third peers, from and to others than their owners.
    pub relayed: Counters<(Direction,)>,
    /// Holders that pulls did not go on from.
    pub lost_holders: Counters<(HolderLost,)>,
    /// Granules that holders sent and that are not their owners'.
    pub forged_granules: IntCounter,
    /// QUIC connections that came up, by who dialed.
    pub quic_connections: Counters<(Dialed,)>,
    /// QUIC connections that went on from another address.
    pub quic_migrations: IntCounter,
    /// Bytes that may be under way on QUIC connections.
    pub quic_windows: Gauges<(Direction,)>,
    /// Bytes of a datagram on the QUIC connection where they are fewest.
    pub quic_datagram: IntGauge,
    /// Meetings at the node's socket: how they began and how they ended.
    pub node_meetings: Counters<(NodeEvent,)>,
    /// Calls there that came to nothing.
    pub node_refused: Counters<(NodeRefusal,)>,
    /// Bytes of other pods' memory that this pod maps.
    pub foreign: Gauges<(Foreign,)>,
    lent: IntGaugeVec,
    lent_gpu: IntGauge,
    /// Outcomes of other pods' memory whose owner was gone or lost, in bytes.
    pub orphans: Counters<(OrphanEnd,)>,
}

/// The bytes of the arena at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaBytes {
    /// All; the next five together.
    pub size: u64,
    /// Can be given to anyone.
    pub free: u64,
    /// Belongs to reservations.
    pub reserved: u64,
    /// Belongs to sealed tensors.
    pub sealed: u64,
    /// Idle in segments of live sessions.
    pub held: u64,
    /// Freed, but some process may still map it.
    pub retired: u64,
    /// Of `retired`: from an earlier incarnation.
    pub inherited: u64,
    /// Bytes whose pages exist.
    pub populated: u64,
}

/// Counts of what lives at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Tensors and reservations of this peer.
    pub tensors: u64,
    /// Copies of other peers' tensors.
    pub copies: u64,
    /// Leases of all holders.
    pub leases: u64,
    /// Names.
    pub names: u64,
    /// Tickets.
    pub tickets: u64,
}

impl Calls {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Calls {
            items: make.counters(
                "call_items_total",
                &["verb", "result"],
                "Items of requests of workloads. Not counted: items of requests that could not be read.",
            )?,
            seconds: make.histograms(
                "call_duration_seconds",
                &["verb"],
                "Seconds from a request's last byte to its reply. Not counted: the time on the socket; single items.",
            )?,
        })
    }

    /// Notes that one request with one item has ended.
    pub fn ended(&self, verb: Verb, result: Result<(), Reason>, elapsed: Duration) {
        self.items.at((verb, result.into())).inc();
        self.seconds.at((verb,)).observe(elapsed.as_secs_f64());
    }
}

impl Threads {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Threads {
            panics: make.all_counters(
                "sidecar_panics_total",
                &["ended"],
                "Panics in threads and tasks, by what they ended. Not counted: panics in the libraries of HTTP and gRPC.",
            )?,
        })
    }
}

impl Moves {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let by = ["transport", "result"];
        Ok(Moves {
            put_bytes: make.counters(
                "put_bytes_total",
                &by,
                "Bytes of tensors put by workloads. Not counted: copies of other peers' tensors.",
            )?,
            put_seconds: make.histograms(
                "put_duration_seconds",
                &by,
                "Seconds of a put, the wait for room included. Not counted: the time a workload takes to write in place.",
            )?,
            get_bytes: make.counters(
                "get_bytes_total",
                &by,
                "Bytes of tensors that were got or mapped. Not counted: headers, and bytes sent twice.",
            )?,
            get_seconds: make.histograms(
                "get_duration_seconds",
                &by,
                "Seconds until all bytes of a tensor can be read. Not counted: the wait for a name.",
            )?,
            fallbacks: make.counters(
                "route_fallbacks_total",
                &["from", "to", "reason"],
                "Transfers that took a worse transport. Not counted: transfers that failed because a requirement was not met.",
            )?,
            checksum_mismatches: make.all_counters(
                "transfer_checksum_mismatches_total",
                &["place"],
                "Tensors whose bytes did not match their checksum. Not counted: tensors without one.",
            )?,
            neighbours: make.counter(
                "transfer_neighbour_tensors_total",
                "Tensors of peers elsewhere that were mapped from the copy of another pod of the node. Not counted: tensors that \
                 such a pod owns.",
            )?,
        })
    }

    /// A put has ended: this many bytes were taken in.
    pub fn put(&self, transport: Transport, moved: Moved, bytes: u64, elapsed: Duration) {
        self.put_bytes.at((transport, moved)).inc_by(bytes);
        self.put_seconds.at((transport, moved)).observe(elapsed.as_secs_f64());
    }

    /// A get or an acquire has ended: this many bytes can be read.
    pub fn got(&self, transport: Transport, moved: Moved, bytes: u64, elapsed: Duration) {
        self.get_bytes.at((transport, moved)).inc_by(bytes);
        self.get_seconds.at((transport, moved)).observe(elapsed.as_secs_f64());
    }
}

impl Arena {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Arena {
            bytes: make.gauges(
                "arena_bytes",
                &["state"],
                "Bytes of the arena by state; together its size. Not counted: memory beside the arena.",
            )?,
            size: make
                .gauge("arena_size_bytes", "The arena's size. Not counted: memory beside the arena.")?,
            inherited: make.gauge(
                "arena_inherited_bytes",
                "Bytes still mapped from an earlier incarnation. Not counted: retired bytes of this one.",
            )?,
            populated: make
                .gauge("arena_populated_bytes", "Bytes whose pages exist. Not counted: inherited bytes.")?,
            populate_failures: make.counter(
                "arena_populate_failures_total",
                "Segments that could not be populated. Not counted: attempts not made for want of room.",
            )?,
            cold_populates: make.counter(
                "arena_cold_populates_total",
                "Segments that were populated while a request waited. Not counted: those populated ahead.",
            )?,
            waiters: make.gauges(
                "sidecar_waiting_requests",
                &["for"],
                "Requests that wait, by what for. Not counted: transfers on their way.",
            )?,
            waiting_bytes: make.gauge(
                "sidecar_waiting_bytes",
                "Bytes taken by requests that look names up or wait for them. Not counted: what waits for room.",
            )?,
            gpu_tensors: make.gauge(
                "gpu_held_tensors",
                "Tensors whose GPU memory is held. Not counted: those that are freed and still mapped.",
            )?,
            gpu_bytes: make.gauges(
                "gpu_held_bytes",
                &["state"],
                "Bytes of GPU memory that is held, as those who put it said, by whose it is: of sessions that live, of those that have ended, of peers of the node that lend it. Not counted: the arena's bytes.",
            )?,
        })
    }

    /// Sets the gauges to a moment.
    pub fn show(&self, now: &ArenaBytes) {
        let states = [
            (ArenaState::Free, now.free),
            (ArenaState::Reserved, now.reserved),
            (ArenaState::Sealed, now.sealed),
            (ArenaState::Held, now.held),
            (ArenaState::Retired, now.retired),
        ];
        states.into_iter().for_each(|(state, bytes)| set(self.bytes.at((state,)), bytes));
        set(&self.size, now.size);
        set(&self.inherited, now.inherited);
        set(&self.populated, now.populated);
    }

    /// Sets the gauges of GPU memory, which is none of the arena's.
    pub fn show_gpu(&self, tensors: u64, states: [(GpuState, u64); 3]) {
        set(&self.gpu_tensors, tensors);
        for (state, bytes) in states {
            set(self.gpu_bytes.at((state,)), bytes);
        }
    }
}

impl Ledger {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Ledger {
            tensors: make.gauges(
                "ledger_live_tensors",
                &["kind"],
                "Tensors and reservations. Not counted: freed ones whose block is still mapped.",
            )?,
            leases: make.gauge("ledger_live_leases", "Leases of all holders. Not counted: names and tickets.")?,
            names: make.gauge("ledger_live_names", "Names of this peer. Not counted: those of other peers.")?,
            tickets: make.gauge("ledger_live_tickets", "Tickets. Not counted: spent and expired ones.")?,
            journal: make.gauge("ledger_journal_bytes", "Changes of names that are remembered. Not counted: forgotten ones.")?,
            freed_tensors: make.all_counters(
                "ledger_freed_tensors_total",
                &["cause"],
                "Tensors and reservations that ended, by cause. Not counted: the reuse of their blocks, which may come later.",
            )?,
            freed_bytes: make.all_counters(
                "ledger_freed_bytes_total",
                &["cause"],
                "Bytes of tensors and reservations that ended, by cause. Not counted: padding between blocks.",
            )?,
        })
    }

    /// Sets the gauges to a moment.
    pub fn show(&self, now: &Live) {
        set(self.tensors.at((Kind::Own,)), now.tensors);
        set(self.tensors.at((Kind::Copy,)), now.copies);
        set(&self.leases, now.leases);
        set(&self.names, now.names);
        set(&self.tickets, now.tickets);
    }

    /// A tensor of so many bytes has ended.
    pub fn freed(&self, cause: Cause, bytes: u64) {
        self.freed_tensors.at((cause,)).inc();
        self.freed_bytes.at((cause,)).inc_by(bytes);
    }
}

impl Pipes {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Pipes {
            live: make.gauge(
                "pipe_live_pipes",
                "Pipes of which at least one end is open. Not counted: listeners.",
            )?,
            listeners: make.gauge("pipe_live_listeners", "Listeners that pipes can be connected to. Not counted: their pipes.")?,
            unread: make.gauge(
                "pipe_unread_messages",
                "Messages that were written to pipes and are not read. Not counted: those whose writers gave up.",
            )?,
            messages: make.counter(
                "pipe_messages_total",
                "Messages of pipes that were read by the other end. Not counted: those that are not read.",
            )?,
            resumed: make.counter(
                "pipe_resumed_pipes_total",
                "Pipes between this peer and another one, of either, that went on after the connection was lost. Not counted: those that ended since it did not come back in time.",
            )?,
        })
    }
}

impl Channels {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Channels {
            live: make.gauge(
                "channel_live_channels",
                "Channels, those that are still drained included. Not counted: channels of other peers.",
            )?,
            readers: make.gauge(
                "channel_live_readers",
                "Readers attached to channels of this peer. Not counted: those that wait for a channel.",
            )?,
            messages: make.counter(
                "channel_messages_total",
                "Messages written to channels of this peer, as their writers' rings say. Not counted: those written after the last look at a ring that ended.",
            )?,
            dropped: make.counters(
                "channel_dropped_messages_total",
                &["policy"],
                "Messages that readers here were told of as dropped, once for each reader; under block, by a way that was lost. Not counted: messages that a reader has not come to.",
            )?,
            evicted: make.counter(
                "channel_evicted_readers_total",
                "Readers that writers of this peer have evicted; another peer that reads is one. Not counted: readers that a policy drops messages of.",
            )?,
            resumed: make.counter(
                "channel_resumed_attachments_total",
                "Attachments to channels between this peer and another one, of either, that went on after the connection was lost. Not counted: those that ended since it did not come back in time.",
            )?,
        })
    }
}

impl Sessions {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Sessions {
            open: make.gauges(
                "session_open_sessions",
                &["carrier"],
                "Sessions now. Not counted: lost ones in their grace; gRPC calls outside a session.",
            )?,
            opened: make.all_counters(
                "session_opened_sessions_total",
                &["carrier"],
                "Sessions that began. Not counted: connections that ended before their first frame.",
            )?,
            refused: make.counter(
                "session_refused_sessions_total",
                "Sessions refused because there were too many. Not counted: sessions cut for a bad frame.",
            )?,
            rejected_frames: make.all_counters(
                "session_rejected_frames_total",
                &["reason"],
                "Frames that closed their session. Not counted: requests answered with an error.",
            )?,
            cut: make.all_counters(
                "session_cut_sessions_total",
                &["reason"],
                "Sessions on the socket closed because their client did not do its part. Not counted: those cut for a bad frame.",
            )?,
            cut_connections: make.all_counters(
                "session_cut_connections_total",
                &["reason"],
                "gRPC connections closed for want of room. Not counted: those that end by themselves.",
            )?,
            unread: make.gauge(
                "sidecar_unread_bytes",
                "Bytes of answers that wait for sessions and peers to read them. Not counted: chunks of tensors; gRPC; what the kernel keeps.",
            )?,
        })
    }
}

impl Peers {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Peers {
            connections: make.gauges(
                "peer_known_peers",
                &["state"],
                "Peers of the table by how this one stands with them. Not counted: this peer itself.",
            )?,
            refused: make.all_counters(
                "peer_refused_connections_total",
                &["reason"],
                "Connections refused before their first frame. Not counted: connections that the network refused.",
            )?,
            no_seats: make.all_counters(
                "peer_seatless_connections_total",
                &["side"],
                "Connections that found no seat, by the side that had none. Not counted: calls that wait for one.",
            )?,
            rejected_frames: make.all_counters(
                "peer_rejected_frames_total",
                &["reason"],
                "Frames that closed their connection. Not counted: requests answered with an error.",
            )?,
            cut: make.all_counters(
                "peer_cut_connections_total",
                &["reason"],
                "Connections that had been up and were closed from here. Not counted: those closed for a bad frame, or replaced.",
            )?,
            bytes: make.all_counters(
                "peer_bytes_total",
                &["direction"],
                "Bytes of tensors to and from peers. Not counted: frame headers, TLS, control frames.",
            )?,
            pulls: make.all_counters(
                "peer_pulls_total",
                &["way"],
                "Pulls that other peers began to serve, by the way of their bytes. Not counted: small tensors that share a frame.",
            )?,
            opened_lanes: make.all_counters(
                "peer_opened_lanes_total",
                &["direction"],
                "Lanes that came up, by the direction of their bytes. Not counted: those that were refused.",
            )?,
            refused_lanes: make.all_counters(
                "peer_refused_lanes_total",
                &["direction"],
                "Lanes that were not opened, or not let in, because there were limits.lanes already. Not counted: those that did not prove whose they are.",
            )?,
            ended_lanes: make.all_counters(
                "peer_ended_lanes_total",
                &["reason"],
                "Lanes that ended, by reason. Not counted: those that never came up.",
            )?,
            fallbacks: make.all_counters(
                "peer_fallbacks_total",
                &["reason"],
                "Pulls that did not come, or did not go on, in the best way. Not counted: lanes that broke while others went on.",
            )?,
            relayed: make.all_counters(
                "peer_relayed_bytes_total",
                &["direction"],
                "Bytes of tensors that came from, or went to, others than their owners. Not counted: bytes from owners to readers.",
            )?,
            lost_holders: make.all_counters(
                "peer_lost_holders_total",
                &["reason"],
                "Holders, not owners, that a pull did not go on from, by reason. Not counted: owners, and holders that served to the end.",
            )?,
            forged_granules: make.counter(
                "peer_forged_granules_total",
                "Granules of 1 MiB that a holder sent and that are not what their owner has: found, and brought again. Not counted: bytes that are dropped with their lane.",
            )?,
            quic_connections: make.all_counters(
                "peer_quic_connections_total",
                &["dialed"],
                "QUIC connections that came up, by who dialed. Not counted: the streams of them.",
            )?,
            quic_migrations: make.counter(
                "peer_quic_migrations_total",
                "QUIC connections whose other end was found at another address. Not counted: moves that begin and end between two checks, half a second apart.",
            )?,
            quic_windows: make.gauges(
                "peer_quic_window_bytes",
                &["direction"],
                "Bytes that QUIC connections may fill, of all of them: with what came and was not read, and with what was sent and may have to be sent again. Not counted: the arena, buffers of sockets.",
            )?,
            quic_datagram: make.gauge(
                "peer_quic_datagram_bytes",
                "Bytes of a datagram that are known to come through, of the QUIC connection where they are fewest; 0 without one. Not counted: headers of IP and UDP.",
            )?,
            node_meetings: make.all_counters(
                "peer_node_connections_total",
                &["event"],
                "Connections over the node's socket that came up (met), and why others ended. Not counted: those that were refused.",
            )?,
            node_refused: make.all_counters(
                "peer_refused_node_connections_total",
                &["reason"],
                "Calls at sockets of the node's directory, ours or of others, that came to nothing. Not counted: peers that tell of no socket.",
            )?,
            foreign: make.gauges(
                "peer_foreign_bytes",
                &["state"],
                "Memory of other pods of the node that this pod maps: whole segments, tensors of them in use, segments whose owner is gone or is not at its socket any more. Not counted: the arena.",
            )?,
            lent: make.of_peers(
                "peer_lent_bytes",
                "Memory of this pod that a peer of the node keeps, by its name, also by connections that have ended: tensors that it maps, and segments that it does not unmap; the eight peers with most. Not counted: what peers get by other ways.",
            )?,
            lent_gpu: make.gauge(
                "peer_lent_gpu_bytes",
                "GPU memory of this pod that peers of the node have leased, of all together, each allocation once for each peer. Not counted: what they keep after their connection ended.",
            )?,
            orphans: make.all_counters(
                "peer_orphaned_bytes_total",
                &["end"],
                "Memory of other pods of the node whose owner was gone, or was lost at its socket, in whole segments, by what became of it: copied into the arena, or dropped by the last who mapped it. Not counted: what is mapped still.",
            )?,
        })
    }

    /// Shows what each peer of the node has of our memory, in bytes, of those that have most.
    pub fn show_lent(&self, mut lent: Vec<(PeerName, u64)>) {
        lent.retain(|(_, bytes)| *bytes > 0);
        lent.sort_unstable_by(|(one, has), (other, had)| had.cmp(has).then_with(|| one.cmp(other)));
        self.lent.reset();
        for (peer, bytes) in lent.iter().take(LENT_SHOWN) {
            set(&self.lent.with_label_values(&[peer.as_str()]), *bytes);
        }
    }

    /// Shows what peers of the node have of our GPU memory, in bytes.
    pub fn show_lent_gpu(&self, bytes: u64) {
        set(&self.lent_gpu, bytes);
    }

    /// Sets the gauges to a moment: how many peers are in each state. States not named are empty.
    pub fn show(&self, now: &[(PeerState, u64)]) {
        for &state in PeerState::ALL {
            let peers = now.iter().filter(|(other, _)| *other == state).map(|(_, peers)| peers).sum();
            set(self.connections.at((state,)), peers);
        }
    }
}

/// Sets a gauge, to the largest number that it has where the value is larger.
pub(super) fn set(gauge: &IntGauge, value: u64) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}
