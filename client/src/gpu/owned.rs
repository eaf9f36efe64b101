//! Allocations of this process whose tensors live: kept until the sidecar says that they do not any more.

use std::collections::HashMap;

use parking_lot::Mutex;
use tensorlane_cuda::DeviceSegment;

use super::idle::Room;
use super::{idle, release};

/// The allocations of one session, by the session's number of each.
#[derive(Debug, Default)]
pub(crate) struct Owned(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    numbers: u64,
    segments: HashMap<u64, DeviceSegment>,
    ended: bool,
}

impl Owned {
    /// Keeps an allocation under a number of its own. In a session that has ended it is given back at once.
    pub(crate) fn keep(&self, segment: DeviceSegment) -> u64 {
        let mut state = self.0.lock();
        state.numbers += 1;
        let number = state.numbers;
        if !state.ended {
            state.segments.insert(number, segment);
        }
        number
    }

    /// Nobody keeps the tensor any more, and if it is `reusable` nobody maps it. A number that is not known is one whose put was refused.
    pub(crate) fn freed(&self, number: u64, reusable: bool) {
        let segment = self.0.lock().segments.remove(&number);
        if let Some(segment) = segment {
            let device = segment.device().clone();
            // Every write was waited for before the put. Where somebody may map it still it goes back to the driver.
            release::soon(&device, move || {
                if reusable {
                    idle::keep(Room { segment, memory: None });
                }
            });
        }
    }

    /// The session has ended: what lives on does so by descriptors of the sidecar, and nobody would say when not.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        state.ended = true;
        let segments = std::mem::take(&mut state.segments);
        drop(state);
        drop(segments);
    }
}
