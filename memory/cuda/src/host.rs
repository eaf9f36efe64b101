//! Copies between GPU memory and maps of segments in host memory, in chunks, two of them in flight; and maps that the driver knows,
//! so that such copies run at the speed of the bus.

use std::collections::{HashSet, VecDeque};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorlane_memory::{Mapping, View, WriteView};

use crate::Result;
use crate::api::{NON_BLOCKING, PORTABLE, RawStream, SUCCESS};
use crate::device::Device;
use crate::refusal::Refusal;
use crate::segment::{DeviceSegment, ImportedSegment};

/// Bytes of one copy. Each costs some ten microseconds; between two of them a copy can be given up.
const CHUNK: u64 = 8 << 20;
/// Bytes that are made known to the driver at a time: it takes some ten milliseconds for so many.
const PIECE: u64 = 256 << 20;

/// A map of host memory of which parts are known to the driver (page-locked), as they are copied to or from. Keeps the map.
pub struct PinnedMapping {
    device: Device,
    mapping: Arc<Mapping>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The pieces that are known, by number.
    pieces: HashSet<u64>,
    /// The driver has refused one: no other is tried.
    refused: bool,
}

// === impl PinnedMapping ===

impl PinnedMapping {
    /// A map of which nothing is known to the driver so far.
    pub fn new(device: &Device, mapping: Arc<Mapping>) -> Self {
        Self { device: device.clone(), mapping, state: Mutex::default() }
    }

    /// Makes the part around an offset of the map known. Where the driver refuses, copies there are as right, only slower.
    fn pin(&self, offset: u64) {
        let piece = offset / PIECE;
        let mut state = self.state.lock();
        if state.refused || state.pieces.contains(&piece) {
            return;
        }
        let start = piece * PIECE;
        let bytes = PIECE.min(self.mapping.bytes().saturating_sub(start));
        let Ok(_current) = self.device.enter() else { return };
        let register = self.device.driver().api.host_register;
        // SAFETY: the part lies in the map, which outlives what the driver knows of it: `drop` tells it before.
        match bytes > 0 && unsafe { register(self.at(start), bytes as usize, PORTABLE) } == SUCCESS {
            true => _ = state.pieces.insert(piece),
            false => state.refused = true,
        }
    }

    fn at(&self, offset: u64) -> *mut c_void {
        self.mapping.as_ptr().as_ptr().wrapping_add(offset as usize).cast()
    }
}

impl Drop for PinnedMapping {
    fn drop(&mut self) {
        // In a forked child it is the parent's.
        let Ok(_current) = self.device.enter() else { return };
        for piece in &self.state.get_mut().pieces {
            let start = self.mapping.as_ptr().as_ptr().wrapping_add((piece * PIECE) as usize);
            // SAFETY: exactly what was made known. There is nothing to do about a refusal.
            let _ = unsafe { (self.device.driver().api.host_unregister)(start.cast()) };
        }
    }
}

impl fmt::Debug for PinnedMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedMapping").field("bytes", &self.mapping.bytes()).finish_non_exhaustive()
    }
}

// === impl ImportedSegment ===

impl ImportedSegment {
    /// Copies as many bytes from `offset` on as `to` has, and waits until they are there. `goes_on` is told after each chunk how many
    /// are, and ends the copy by returning false. `pinned`: the map that `to` is a part of. Returns the bytes that are there.
    ///
    /// # Errors
    /// They reach out of it, or the driver refuses.
    pub fn copy_to_view(
        &self,
        offset: u64,
        to: &mut WriteView,
        pinned: Option<&PinnedMapping>,
        goes_on: impl FnMut(u64) -> bool,
    ) -> Result<u64> {
        let total = to.len() as u64;
        let from = self.range.at(offset, total)?;
        let (copy, base, start) =
            (self.device().driver().api.to_host, to.as_view().offset(), to.as_mut_ptr());
        let begin = |at: u64, bytes: u64, stream| {
            let to = start.wrapping_add(at as usize).cast::<c_void>();
            // SAFETY: both parts lie in their maps, which outlive the copy: it is waited for.
            unsafe { copy(to, from + at, bytes as usize, stream) }
        };
        in_chunks(self.device(), "copy to the host", (base, total), pinned, begin, goes_on)
    }
}

// === impl DeviceSegment ===

impl DeviceSegment {
    /// Copies all bytes of a view to `offset`, and waits until they are there.
    ///
    /// # Errors
    /// They reach out of it, or the driver refuses.
    pub fn copy_from_view(&self, offset: u64, from: &View) -> Result<()> {
        let total = from.len() as u64;
        let to = self.range.at(offset, total)?;
        let (copy, start) = (self.device().driver().api.to_device, from.as_ptr());
        let begin = |at: u64, bytes: u64, stream| {
            let from = start.wrapping_add(at as usize).cast::<c_void>();
            // SAFETY: both parts lie in their maps, which outlive the copy: it is waited for.
            unsafe { copy(to + at, from, bytes as usize, stream) }
        };
        in_chunks(self.device(), "copy to the GPU", (from.offset(), total), None, begin, |_| true).map(drop)
    }
}

/// Copies in chunks; `begin` begins one. `place`: where the host's part begins in its map, and its length.
fn in_chunks(
    device: &Device,
    step: &'static str,
    (base, total): (u64, u64),
    pinned: Option<&PinnedMapping>,
    mut begin: impl FnMut(u64, u64, RawStream) -> u32,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Result<u64> {
    let _current = device.enter()?;
    // In the order of dropping: whatever happens, both are waited for before anything that they copy goes.
    let streams = [OwnStream::new(device)?, OwnStream::new(device)?];
    let (mut begun, mut done, mut wanted, mut turn) = (0, 0, true, 0);
    let mut flying: VecDeque<(usize, u64)> = VecDeque::new();
    loop {
        while wanted && begun < total && flying.len() < streams.len() {
            let at = base + begun;
            // No chunk is in two pieces.
            let bytes = CHUNK.min(total - begun).min(PIECE - at % PIECE);
            if let Some(pinned) = pinned {
                pinned.pin(at);
            }
            device.driver().done(step, begin(begun, bytes, streams[turn].raw))?;
            begun += bytes;
            flying.push_back((turn, begun));
            turn = (turn + 1) % streams.len();
        }
        let Some((on, end)) = flying.pop_front() else { return Ok(done) };
        device.driver().done(step, streams[on].wait())?;
        done = end;
        wanted = wanted && goes_on(done);
    }
}

/// A stream of one copy. Dropped, it is waited for.
struct OwnStream<'a> {
    device: &'a Device,
    raw: RawStream,
}

// === impl OwnStream ===

impl<'a> OwnStream<'a> {
    /// The device's context is the current one for as long as it lives.
    fn new(device: &'a Device) -> Result<Self> {
        let mut raw: RawStream = std::ptr::null_mut();
        // SAFETY: one handle is written, for the current context.
        let made = unsafe { (device.driver().api.stream_create)(&raw mut raw, NON_BLOCKING) };
        device.driver().done("make a stream", made)?;
        Ok(Self { device, raw })
    }

    fn wait(&self) -> u32 {
        // SAFETY: the stream is ours and open.
        unsafe { (self.device.driver().api.stream_wait)(self.raw) }
    }
}

impl Drop for OwnStream<'_> {
    fn drop(&mut self) {
        self.wait();
        if self.device.driver().check_process() == Err(Refusal::Forked) {
            return;
        }
        // SAFETY: the stream is ours, and nobody uses it any more. There is nothing to do about a refusal.
        let _ = unsafe { (self.device.driver().api.stream_destroy)(self.raw) };
    }
}
