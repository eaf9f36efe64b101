//! Metrics that a scrape shows: states that are asked for when somebody looks, not counted along the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use prometheus::IntCounter;
use tensorlane_memory::ring::Policy;

use crate::exchange::Exchange;
use crate::metrics::label::{
    AuthRefusal, Carrier, Dialed, Direction, FallBack, Foreign, FrameFault, GpuState, HolderLost, Label,
    LaneEnd, NodeEvent, NodeRefusal, OrphanEnd, PanicScope, PeerCut, PeerState, SeatSide, TableKind, Wait,
    Way,
};
use crate::metrics::{ArenaBytes, Live, Metrics};
use crate::output_budget::OutputBudget;
use crate::peer::{Counters, Peers};
use crate::session::{Requests, SessionServer};
use crate::threads::Threads;

/// Tells the metrics whom to ask.
pub(super) fn register(
    metrics: &Metrics,
    exchange: &Arc<Exchange>,
    sessions: &Arc<SessionServer>,
    peers: Option<&Arc<Peers>>,
    unread: &OutputBudget,
    threads: &Threads,
) {
    let threads = threads.clone();
    metrics.on_scrape(Box::new(move |metrics| {
        for scope in PanicScope::ALL {
            catch_up(metrics.threads.panics.at((*scope,)), threads.panics(*scope));
        }
    }));
    let unread = unread.clone();
    let (weak, sessions) = (Arc::downgrade(exchange), Arc::downgrade(sessions));
    let seen = Mutex::new(Seen::default());
    metrics.on_scrape(Box::new(move |metrics| {
        if let Some(exchange) = weak.upgrade() {
            show_store(metrics, &exchange, &mut seen.lock());
        }
        metrics.sessions.unread.set(i64::try_from(unread.bytes()).unwrap_or(i64::MAX));
        if let Some(sessions) = sessions.upgrade() {
            metrics
                .sessions
                .open
                .at((Carrier::Socket,))
                .set(i64::try_from(sessions.open()).unwrap_or(i64::MAX));
        }
    }));
    if let Some(peers) = peers {
        let weak = Arc::downgrade(peers);
        metrics.on_scrape(Box::new(move |metrics| {
            if let Some(peers) = weak.upgrade() {
                show_peers(metrics, &peers);
            }
        }));
    }
}

/// Tells the metrics of the budget of requests.
pub(super) fn register_requests(metrics: &Metrics, requests: Requests) {
    metrics.on_scrape(Box::new(move |metrics| {
        let (bytes, limit) = requests.bytes();
        metrics.tables.show(TableKind::Requests, bytes, limit);
    }));
}

/// Counts of the store that were shown before: the metric gets what came since.
#[derive(Default)]
struct Seen {
    freed: Vec<(u64, u64)>,
}

fn show_store(metrics: &Metrics, exchange: &Exchange, seen: &mut Seen) {
    let store = exchange.store();
    let usage = store.arena().usage();
    metrics.arena.show(&ArenaBytes {
        size: usage.total,
        free: usage.free,
        reserved: usage.reserved,
        sealed: usage.sealed,
        held: usage.held,
        retired: usage.retired,
        inherited: usage.inherited,
        populated: usage.populated,
    });
    let foreign = store.arena().foreign();
    for (state, bytes) in [
        (Foreign::Mapped, foreign.mapped),
        (Foreign::Used, foreign.used),
        (Foreign::Orphaned, foreign.orphaned),
    ] {
        metrics.peers.foreign.at((state,)).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
    catch_up(metrics.peers.orphans.at((OrphanEnd::Copied,)), foreign.copied);
    catch_up(metrics.peers.orphans.at((OrphanEnd::Dropped,)), foreign.dropped);
    catch_up(&metrics.arena.populate_failures, usage.populate_failures);
    catch_up(&metrics.arena.cold_populates, usage.cold_populates);
    metrics
        .arena
        .waiters
        .at((Wait::Room,))
        .set(i64::try_from(exchange.waiting_for_room()).unwrap_or(i64::MAX));
    let (waiting, bytes) = exchange.waiting_for_names();
    metrics.arena.waiters.at((Wait::Name,)).set(i64::try_from(waiting).unwrap_or(i64::MAX));
    metrics.arena.waiting_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    let channels = exchange.channel_totals();
    metrics.channels.live.set(i64::try_from(channels.channels).unwrap_or(i64::MAX));
    metrics.channels.readers.set(i64::try_from(channels.readers).unwrap_or(i64::MAX));
    catch_up(&metrics.channels.messages, channels.written);
    catch_up(&metrics.channels.evicted, channels.evicted);
    catch_up(&metrics.channels.resumed, channels.resumed);
    for policy in Policy::ALL {
        catch_up(metrics.channels.dropped.at((policy,)), channels.dropped[policy as usize]);
    }
    let pipes = exchange.pipe_totals();
    metrics.pipes.live.set(i64::try_from(pipes.pipes).unwrap_or(i64::MAX));
    metrics.pipes.listeners.set(i64::try_from(pipes.listeners).unwrap_or(i64::MAX));
    metrics.pipes.unread.set(i64::try_from(pipes.unread).unwrap_or(i64::MAX));
    catch_up(&metrics.pipes.messages, pipes.messages);
    catch_up(&metrics.pipes.resumed, pipes.resumed);
    metrics.sets.show(&exchange.set_totals());
    let held = store.gpu_held();
    let states = [
        (GpuState::Live, held.live),
        (GpuState::Orphaned, held.orphaned),
        (GpuState::Borrowed, held.borrowed),
    ];
    metrics.arena.show_gpu(held.tensors, states);
    let (queued, moving) = exchange.staging();
    metrics.staging.show(queued, moving);
    metrics.ledger.journal.set(i64::try_from(store.journal_bytes()).unwrap_or(i64::MAX));
    let tables = store.tables();
    metrics.tables.show(TableKind::Metadata, tables.metadata, tables.metadata_max);
    metrics.tables.show(TableKind::Ledger, tables.ledger, tables.ledger_max);
    let (totals, _) = store.totals();
    let (tensors, copies) = (totals.tensors as u64, totals.copies as u64);
    metrics.ledger.show(&Live {
        tensors: tensors.saturating_sub(copies),
        copies,
        leases: totals.leases,
        names: totals.names as u64,
        tickets: totals.tickets as u64,
    });
    let freed = store.freed();
    seen.freed.resize(freed.len(), (0, 0));
    for ((cause, tensors, bytes), shown) in freed.into_iter().zip(&mut seen.freed) {
        metrics.ledger.freed_tensors.at((cause,)).inc_by(tensors - shown.0);
        metrics.ledger.freed_bytes.at((cause,)).inc_by(bytes - shown.1);
        *shown = (tensors, bytes);
    }
}

fn show_peers(metrics: &Metrics, peers: &Peers) {
    let views = peers.status();
    let count = |state: PeerState| views.iter().filter(|v| v.state.as_str() == state.as_str()).count() as u64;
    let states: Vec<_> = PeerState::ALL.iter().map(|s| (*s, count(*s))).collect();
    metrics.peers.show(&states);
    let counters = peers.counters();
    catch_up(metrics.peers.bytes.at((Direction::In,)), counters.bytes_in.load(Ordering::Relaxed));
    catch_up(metrics.peers.bytes.at((Direction::Out,)), counters.bytes_out.load(Ordering::Relaxed));
    for fault in FrameFault::ALL {
        catch_up(metrics.peers.rejected_frames.at((*fault,)), counters.frames_refused.count(fault.as_str()));
    }
    for cut in PeerCut::ALL {
        catch_up(metrics.peers.cut.at((*cut,)), counters.closed.count(cut.as_str()));
    }
    for refusal in AuthRefusal::ALL {
        catch_up(metrics.peers.refused.at((*refusal,)), counters.auth_refused.count(refusal.as_str()));
    }
    for side in SeatSide::ALL {
        catch_up(metrics.peers.no_seats.at((*side,)), counters.no_seats.count(side.as_str()));
    }
    show_lanes(metrics, counters);
    let (receive, send, datagram) = peers.quic().unwrap_or_default();
    for (direction, bytes) in [(Direction::In, receive), (Direction::Out, send)] {
        metrics.peers.quic_windows.at((direction,)).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
    metrics.peers.quic_datagram.set(datagram.into());
    show_node(metrics, counters);
    metrics.peers.show_lent(peers.lent());
    metrics.peers.show_lent_gpu(peers.lent_gpu_bytes());
    let (bytes, limit) = peers.row_list_bytes();
    metrics.tables.show(TableKind::RowLists, bytes, limit);
}

fn show_lanes(metrics: &Metrics, counters: &Counters) {
    for way in Way::ALL {
        catch_up(metrics.peers.pulls.at((*way,)), counters.pulls.count(way.as_str()));
    }
    for (direction, word) in [(Direction::In, "read"), (Direction::Out, "serve")] {
        catch_up(metrics.peers.opened_lanes.at((direction,)), counters.lanes_opened.count(word));
        catch_up(metrics.peers.refused_lanes.at((direction,)), counters.lanes_refused.count(word));
    }
    for end in LaneEnd::ALL {
        catch_up(metrics.peers.ended_lanes.at((*end,)), counters.lanes_closed.count(end.as_str()));
    }
    for dialed in Dialed::ALL {
        catch_up(metrics.peers.quic_connections.at((*dialed,)), counters.quic_opened.count(dialed.as_str()));
    }
    catch_up(&metrics.peers.quic_migrations, counters.quic_migrations.load(Ordering::Relaxed));
    for reason in FallBack::ALL {
        catch_up(metrics.peers.fallbacks.at((*reason,)), counters.fallbacks.count(reason.as_str()));
    }
    catch_up(&metrics.peers.forged_granules, counters.forged.load(Ordering::Relaxed));
    catch_up(metrics.peers.relayed.at((Direction::In,)), counters.relayed_in.load(Ordering::Relaxed));
    catch_up(metrics.peers.relayed.at((Direction::Out,)), counters.relayed_out.load(Ordering::Relaxed));
    for reason in HolderLost::ALL {
        catch_up(metrics.peers.lost_holders.at((*reason,)), counters.holders_lost.count(reason.as_str()));
    }
}

fn show_node(metrics: &Metrics, counters: &Counters) {
    let met = counters.node_opened.all().iter().map(|(_, count)| count).sum();
    catch_up(metrics.peers.node_meetings.at((NodeEvent::Met,)), met);
    for event in NodeEvent::ALL.iter().filter(|event| **event != NodeEvent::Met) {
        catch_up(metrics.peers.node_meetings.at((*event,)), counters.node_closed.count(event.as_str()));
    }
    for refusal in NodeRefusal::ALL {
        catch_up(metrics.peers.node_refused.at((*refusal,)), counters.node_refused.count(refusal.as_str()));
    }
}

/// Brings a counter to a total that is counted elsewhere and only grows.
fn catch_up(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
