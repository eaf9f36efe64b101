//! Amount that may be under way on the connections of a pair: sees from time to time what moved, and tells quinn how
//! large its windows are to be. How large is decided in `window`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::{Connection, ConnectionStats, VarInt};

use super::window::Window;
use super::window_budget::{Taken, WindowBudget};
use super::{LANE_WINDOW, NARROW_WINDOW, WINDOW_MAX};
use crate::peer::transport::lanes::pieces::GRANULE;

/// Nothing is measured over less than this, nor over less than a round trip: what comes, comes in bursts.
const LEAST: Duration = Duration::from_millis(100);

/// The windows of both directions.
pub(super) struct Flow {
    receive: Window,
    send: Window,
    moved: Option<Moved>,
    /// The windows that quinn has.
    told: u64,
    told_send: u64,
    /// Bytes by which it was made smaller, and that the other end may send nevertheless.
    owed: u64,
    taken: Taken,
}

/// Bytes that had moved on a connection at a time, as datagrams.
#[derive(Debug, Clone, Copy)]
struct Moved {
    received: u64,
    sent: u64,
    at: Instant,
}

impl Flow {
    /// Of so many lanes in each direction.
    pub(super) fn new(lanes: usize, spare: &Arc<WindowBudget>) -> Self {
        let window = Window::new(lanes as u64 * LANE_WINDOW, WINDOW_MAX);
        let (told, told_send) = (NARROW_WINDOW.into(), WINDOW_MAX);
        let taken = spare.nothing();
        Self { receive: window, send: window, moved: None, told, told_send, owed: 0, taken }
    }

    /// Another connection, or none any more. What was learned of the link is kept.
    pub(super) fn begin(&mut self) {
        (self.told, self.told_send) = (NARROW_WINDOW.into(), WINDOW_MAX);
        (self.moved, self.owed) = (None, 0);
        self.taken.resize(0);
    }

    /// Looks what has moved. `expects`: pulls of ours are under way.
    pub(super) fn look(
        &mut self,
        connection: &Connection,
        stats: &ConnectionStats,
        at: Instant,
        expects: bool,
    ) {
        let now = Moved { received: stats.udp_rx.bytes, sent: stats.udp_tx.bytes, at };
        let Some(before) = self.moved else { return self.moved = Some(now) };
        let (took, round_trip) = (at.saturating_duration_since(before.at), stats.path.min_rtt);
        if took < round_trip.max(LEAST) {
            return;
        }
        self.moved = Some(now);
        let came = now.received.saturating_sub(before.received);
        self.owed = self.owed.saturating_sub(came);
        let next = |window: Window, bytes: u64| match bytes {
            // Questions and acknowledgements say nothing of what the link can do.
            0..GRANULE => window,
            _ => window.next(round_trip, bytes as f64 / took.as_secs_f64()),
        };
        self.receive = next(self.receive, if expects { came } else { 0 });
        self.send = next(self.send, now.sent.saturating_sub(before.sent));
        self.tell(connection, expects);
    }

    /// Lets the other end send as much as there is room for, once pulls of ours want it. It is not taken back when they are
    /// over: what the other end was allowed to send it may send at any time, and to allow it again would allow it twice.
    pub(super) fn tell(&mut self, connection: &Connection, expects: bool) {
        if std::mem::replace(&mut self.told_send, self.send.size()) != self.send.size() {
            connection.set_send_window(self.send.size());
        }
        if !expects {
            return;
        }
        let floor = self.receive.floor();
        let size = floor + self.taken.resize(self.receive.size() - floor);
        if size < self.told {
            self.owed += self.told - size;
        } else if self.owed > 0 || size == self.told {
            // What quinn adds now would come on top of what is owed.
            self.taken.resize(self.told.saturating_sub(floor));
            return;
        }
        self.told = size;
        connection.set_receive_window(VarInt::from_u64(size).unwrap_or(VarInt::MAX));
    }

    /// Bytes that a connection may fill of our memory, and of others' that we lend to it.
    pub(super) fn sizes(&self) -> (u64, u64) {
        (self.told, self.told_send)
    }

    /// Bytes that all lanes together should have asked for; nothing where it is not known.
    pub(super) fn ahead(&self) -> u64 {
        self.receive.need().min(self.told)
    }
}
