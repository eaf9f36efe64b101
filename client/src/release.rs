//! Leases, channels and readers that ended and reservations that were given up, and were not yet said to the sidecar.
//!
//! Ending a lease costs no round trip and, most of the time, no system call: ids gather here and travel in the same
//! write as the next request. Where no request comes, the service thread sends them a moment later (service.rs). So a
//! guard's drop never waits for the socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use tensorlane_proto::frame::{SESSION_ITEMS_MAX, SessionKind, encode_into};
use tensorlane_proto::generated::{AbortRequest, ChannelDetachRequest, ReleaseRequest};

use crate::calls::Calls;
use crate::error::{Error, Result};

/// Leases to be given back, and the means to wake the thread that says so.
#[derive(Debug)]
pub(crate) struct Releases {
    pending: Mutex<Pending>,
    /// Number of those ever pushed, so that the service thread sees whether anything happens.
    pushes: AtomicU64,
    /// Set while the service thread is awake and will look here by itself.
    armed: AtomicBool,
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Pending {
    leases: ReleaseRequest,
    reservations: AbortRequest,
    /// Channels and readers that ended.
    detached: Vec<ChannelDetachRequest>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.leases.ids.is_empty()
            && self.leases.still_mapped.is_empty()
            && self.reservations.ids.is_empty()
            && self.detached.is_empty()
    }
}

impl Releases {
    pub(crate) fn new() -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::resources("no descriptor for the service thread", error))?;
        let (pending, pushes) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { pending, pushes, armed: AtomicBool::new(false), wake })
    }

    /// Notes that a lease ended. `still_mapped`: a forked child of this process may map the tensor still.
    pub(crate) fn push(&self, id: u64, still_mapped: bool) {
        let mut pending = self.pending.lock();
        if still_mapped {
            pending.leases.still_mapped.push(id);
        } else {
            pending.leases.ids.push(id);
        }
        drop(pending);
        self.pushed();
    }

    /// Notes that a reservation was given up.
    pub(crate) fn push_abort(&self, id: u64) {
        self.pending.lock().reservations.ids.push(id);
        self.pushed();
    }

    /// Notes that a channel or a reader ended.
    pub(crate) fn push_detach(&self, end: ChannelDetachRequest) {
        self.pending.lock().detached.push(end);
        self.pushed();
    }

    fn pushed(&self) {
        self.pushes.fetch_add(1, Ordering::Relaxed);
        if !self.armed.load(Ordering::Acquire) && !self.armed.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Appends the frames of all that is pending to `out`.
    pub(crate) fn drain_into(&self, out: &mut Vec<u8>, calls: &Calls) {
        let mut pending = self.pending.lock();
        if pending.is_empty() {
            return;
        }
        let Pending { leases, reservations, detached } = &mut *pending;
        let kind = SessionKind::Release.into();
        if leases.ids.len() + leases.still_mapped.len() <= SESSION_ITEMS_MAX {
            if !(leases.ids.is_empty() && leases.still_mapped.is_empty()) {
                encode_into(out, kind, 0, calls.number(), leases);
            }
        } else {
            for ids in leases.ids.chunks(SESSION_ITEMS_MAX) {
                let part = ReleaseRequest { ids: ids.to_vec(), still_mapped: Vec::new() };
                encode_into(out, kind, 0, calls.number(), &part);
            }
            for ids in leases.still_mapped.chunks(SESSION_ITEMS_MAX) {
                let part = ReleaseRequest { ids: Vec::new(), still_mapped: ids.to_vec() };
                encode_into(out, kind, 0, calls.number(), &part);
            }
        }
        for ids in reservations.ids.chunks(SESSION_ITEMS_MAX) {
            // Without a number the connection is lost, and with it the reservations are gone.
            let Ok(number) = calls.begin_unwanted() else { break };
            encode_into(out, SessionKind::Abort.into(), 0, number, &AbortRequest { ids: ids.to_vec() });
        }
        for end in detached.drain(..) {
            encode_into(out, SessionKind::ChannelDetach.into(), 0, calls.number(), &end);
        }
        leases.ids.clear();
        leases.still_mapped.clear();
        reservations.ids.clear();
    }

    /// True if nothing is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.lock().is_empty()
    }

    /// Number of those ever pushed.
    pub(crate) fn pushes(&self) -> u64 {
        self.pushes.load(Ordering::Relaxed)
    }

    /// The service thread goes to sleep: the next push must wake it. False if one came meanwhile.
    pub(crate) fn disarm(&self) -> bool {
        self.armed.store(false, Ordering::SeqCst);
        self.is_empty() || self.armed.swap(true, Ordering::SeqCst)
    }

    /// Wakes the service thread.
    pub(crate) fn wake(&self) {
        // Fails only where the counter is full, and then the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes the wake-ups that came.
    pub(crate) fn woken(&self) {
        // Fails only where there is none.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    /// Descriptor to poll for wake-ups.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tensorlane_proto::frame::{HEADER_BYTES, Header};

    use super::*;

    /// The bodies that leave, by kind.
    fn drained(releases: &Releases) -> Vec<(u16, Vec<u8>)> {
        let mut out = Vec::new();
        releases.drain_into(&mut out, &Calls::new());
        let mut frames = Vec::new();
        let mut rest = &out[..];
        while let Some((head, body)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let header = Header::decode(head, u32::MAX).unwrap();
            let (body, after) = body.split_at(header.length as usize);
            frames.push((header.kind, body.to_vec()));
            rest = after;
        }
        frames
    }

    #[test]
    fn leases_gather_and_leave_in_one_frame_and_reservations_in_another() {
        let releases = Releases::new().unwrap();
        releases.push(7, false);
        releases.push(8, true);
        releases.push_abort(5);
        releases.push(9, false);
        let frames = drained(&releases);
        assert_eq!(frames.len(), 2);
        let sent = ReleaseRequest::decode(&frames[0].1[..]).unwrap();
        assert_eq!((sent.ids, sent.still_mapped), (vec![7, 9], vec![8]));
        assert_eq!(AbortRequest::decode(&frames[1].1[..]).unwrap().ids, vec![5]);
        assert!(drained(&releases).is_empty());
    }

    #[test]
    fn a_push_wakes_the_sleeping_service_thread_once() {
        let releases = Releases::new().unwrap();
        let wakes = || {
            let mut count = [0u8; 8];
            rustix::io::read(releases.wake_fd(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        releases.push(1, false);
        releases.push(2, false);
        assert_eq!(wakes(), 1);
        assert!(!releases.disarm(), "it may not sleep over pending leases");
        drained(&releases);
        assert!(releases.disarm());
        releases.push(3, false);
        assert_eq!(wakes(), 1);
    }

    #[test]
    fn more_leases_than_a_request_may_hold_leave_in_several() {
        let releases = Releases::new().unwrap();
        (0..SESSION_ITEMS_MAX as u64 + 1).for_each(|id| releases.push(id, false));
        assert_eq!(drained(&releases).len(), 2);
    }
}
