//! The places of the lanes of one connection: one for each number and direction, taken by whoever proved last that the lane
//! is there.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use super::Lanes;
use super::key::LaneName;
use super::quic::Cut;
use super::room::Taken;
use super::wire::LaneEnd;
use crate::peer::shared::Shared;

/// Handle that a lane is held by: it can be ended from outside of its thread.
pub(super) enum CancelHandle {
    Socket(TcpStream),
    /// A stream ends when this is dropped.
    Stream(Cut),
}

impl CancelHandle {
    /// Ends the lane.
    pub(super) fn cut(self) {
        match self {
            Self::Socket(socket) => {
                // An error means that it is closed already.
                let _ = socket.shutdown(Shutdown::Both);
            }
            Self::Stream(cut) => drop(cut),
        }
    }
}

/// Lanes that are bound. Locked before what is known of their opening.
#[derive(Default)]
pub(super) struct Up {
    places: HashMap<LaneName, Place>,
    /// Lanes that a thread is busy dialing, with their room, unless they take that of the one before.
    dialing: Vec<(LaneName, Option<Taken>)>,
    next: u64,
    pub(super) ended: bool,
}

struct Place {
    id: u64,
    cord: Option<CancelHandle>,
    room: Taken,
    /// Reason for which it was cut, if somebody else than its thread knows.
    end: Option<LaneEnd>,
}

/// The place of a lane that is bound. It is given up when this is dropped.
pub(super) struct Bound<'a> {
    lanes: &'a Lanes,
    pub(super) name: LaneName,
    pub(super) id: u64,
    pub(super) reads: bool,
    end: LaneEnd,
}

impl Up {
    /// The room of a lane that was being dialed; it is not any more.
    fn dialed(&mut self, name: LaneName) -> Option<Taken> {
        let at = self.dialing.iter().position(|(dialing, _)| *dialing == name)?;
        self.dialing.swap_remove(at).1
    }
}

impl Lanes {
    /// Returns whether a lane is to be dialed now: none where one is at it, or where there is no room for it.
    pub(super) fn begins_to_dial(&self, shared: &Shared, name: LaneName) -> bool {
        let mut up = self.up.lock();
        if up.ended || up.dialing.iter().any(|(dialing, _)| *dialing == name) {
            return false;
        }
        let room = if up.places.contains_key(&name) { None } else { shared.lane_room.take() };
        if room.is_none() && !up.places.contains_key(&name) {
            drop(up);
            shared.counters.lanes_refused.add(if name.serves { "serve" } else { "read" });
            self.missed(name);
            return false;
        }
        up.dialing.push((name, room));
        true
    }

    /// Returns whether none that we read on is up or coming, and there is room for none.
    pub(super) fn are_shut_out(&self) -> bool {
        let (Some(shared), Some(link)) = (self.shared.upgrade(), self.link.upgrade()) else { return false };
        if !shared.lane_room.is_full() {
            return false;
        }
        let up = self.up.lock();
        let mut names = up.places.keys().chain(up.dialing.iter().map(|(name, _)| name));
        !names.any(|name| link.dialed != name.serves)
    }

    /// A lane that we dialed did not come to be.
    pub(super) fn missed(&self, name: LaneName) {
        self.up.lock().dialed(name);
        if !name.serves {
            self.opening.lock().failed(name.number, Instant::now());
        }
    }

    /// Gives a lane its place; whoever had it before has lost the other end. None where the connection has ended, or there
    /// are as many lanes as there may be.
    pub(super) fn admit(&self, name: LaneName, cord: CancelHandle) -> Option<Bound<'_>> {
        let (shared, dialed) = (self.shared.upgrade()?, self.link.upgrade()?.dialed);
        // Whoever dials serves, or reads.
        let reads = dialed != name.serves;
        if usize::from(name.number) >= self.count {
            return None;
        }
        let mut up = self.up.lock();
        let mut room = up.dialed(name);
        if up.ended {
            return None;
        }
        if let Some(before) = up.places.remove(&name) {
            room.get_or_insert(before.room);
            if let Some(cord) = before.cord {
                // Closed already, or its thread finds out now.
                cord.cut();
            }
        }
        let Some(room) = room.or_else(|| shared.lane_room.take()) else {
            shared.counters.lanes_refused.add(if reads { "read" } else { "serve" });
            if reads {
                self.opening.lock().failed(name.number, Instant::now());
            }
            return None;
        };
        let id = up.next;
        up.next += 1;
        up.places.insert(name, Place { id, cord: Some(cord), room, end: None });
        if reads {
            self.opening.lock().came(name.number, Instant::now());
        }
        drop(up);
        // Whoever does not say how it ends has lost the other end.
        Some(Bound { lanes: self, name, id, reads, end: LaneEnd::Closed })
    }

    /// Ends a lane that is bound.
    pub(super) fn cut(&self, id: u64, end: LaneEnd) {
        let mut up = self.up.lock();
        let Some(place) = up.places.values_mut().find(|place| place.id == id) else { return };
        place.end.get_or_insert(end);
        if let Some(cord) = place.cord.take() {
            cord.cut();
        }
    }

    /// Ends those that we read on, as lanes on which nothing moves.
    pub(super) fn cut_readers(&self) {
        let Some(link) = self.link.upgrade() else { return };
        let mut up = self.up.lock();
        for (_, place) in up.places.iter_mut().filter(|(name, _)| link.dialed != name.serves) {
            place.end.get_or_insert(LaneEnd::Progress);
            if let Some(cord) = place.cord.take() {
                cord.cut();
            }
        }
    }

    /// Returns whether any is bound.
    pub(super) fn is_used(&self) -> bool {
        !self.up.lock().places.is_empty()
    }

    /// Ends all of them, and takes no more.
    pub(super) fn cut_all(&self) {
        let mut up = self.up.lock();
        up.ended = true;
        for place in up.places.values_mut() {
            if let Some(cord) = place.cord.take() {
                cord.cut();
            }
        }
    }

    /// A lane has brought something: what went wrong before is of the past.
    pub(super) fn delivered(&self) {
        self.opening.lock().delivered();
    }
}

impl Bound<'_> {
    pub(super) fn number(&self) -> u8 {
        self.name.number
    }

    pub(super) fn reads(&self) -> bool {
        self.reads
    }

    /// The lane is over.
    pub(super) fn ended(mut self, end: LaneEnd) {
        self.end = end;
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let Some(shared) = self.lanes.shared.upgrade() else { return };
        let mut up = self.lanes.up.lock();
        let is_ours = up.places.get(&self.name).is_some_and(|place| place.id == self.id);
        let known = if is_ours { up.places.remove(&self.name).and_then(|place| place.end) } else { None };
        let end = known.as_ref().unwrap_or(&self.end);
        shared.counters.lanes_closed.add(if up.ended { LaneEnd::Ended.label() } else { end.label() });
        if !self.reads || !is_ours {
            return;
        }
        let mut opening = self.lanes.opening.lock();
        if end.is_failure() {
            opening.failed(self.name.number, Instant::now());
        } else {
            opening.went(self.name.number);
        }
        drop((opening, up));
        shared.scheduler.wake();
    }
}
