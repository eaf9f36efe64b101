//! The places of the lanes of one connection: one for each number and direction, taken by whoever proved last that the lane
//! is there.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use super::Lanes;
use super::key::LaneName;
use super::quic::Cut;
use super::wire::LaneEnd;

/// What a lane is held by: it can be ended from outside of its thread.
pub(super) enum Cord {
    Socket(TcpStream),
    /// A stream ends when this is dropped.
    Stream(Cut),
}

impl Cord {
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
    /// Lanes that the other end wants us to dial, and that a thread is busy with.
    pub(super) dialing: Vec<LaneName>,
    next: u64,
    pub(super) ended: bool,
}

struct Place {
    id: u64,
    cord: Option<Cord>,
    /// Why it was cut, where somebody else than its thread knows.
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

impl Lanes {
    /// A lane that we dialed did not come to be.
    pub(super) fn missed(&self, name: LaneName) {
        self.up.lock().dialing.retain(|dialing| *dialing != name);
        if !name.serves {
            self.opening.lock().failed(name.number, Instant::now());
        }
    }

    /// Gives a lane its place; whoever had it before has lost the other end. None where the connection has ended.
    pub(super) fn admit(&self, name: LaneName, cord: Cord) -> Option<Bound<'_>> {
        let dialed = self.link.upgrade()?.dialed;
        // Whoever dials serves, or reads.
        let reads = dialed != name.serves;
        if usize::from(name.number) >= self.count {
            return None;
        }
        let mut up = self.up.lock();
        up.dialing.retain(|dialing| *dialing != name);
        if up.ended {
            return None;
        }
        let id = up.next;
        up.next += 1;
        let place = Place { id, cord: Some(cord), end: None };
        if let Some(cord) = up.places.insert(name, place).and_then(|before| before.cord) {
            // Closed already, or its thread finds out now.
            cord.cut();
        }
        if reads {
            self.opening.lock().came(name.number);
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

    /// Whether any is bound.
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
        shared.steward.wake();
    }
}
