//! Allocations: one that this process makes and exports, and one of another process that it maps for reading.
//!
//! The driver keeps an allocation for as long as a handle, a map or an exported descriptor of it is left, of whatever process. So
//! nobody's death takes memory away from those who map it.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::Result;
use crate::api::{
    Access, DEVICE_MEMORY, DEVICE_ORDINAL, Handle, Location, MEMORY_TYPE, ON_DEVICE, OUT_OF_MEMORY, POSIX,
    Pointer, Properties, READ, READ_WRITE, RawStream, SUCCESS,
};
use crate::device::Device;
use crate::refusal::Refusal;

/// A stream of work on a GPU, of its primary context. By default the one that waits for all others that do not opt out.
#[derive(Clone, Copy, Debug)]
pub struct Stream(RawStream);

/// Memory of a GPU that this process made: mapped for writing, and exported as a descriptor.
pub struct DeviceSegment {
    // In the order of dropping: the map, then the handle.
    pub(crate) range: Range,
    handle: OwnedHandle,
}

/// Memory of a GPU that another process made: mapped for reading. Writing it is an error of the GPU.
pub struct ImportedSegment {
    pub(crate) range: Range,
}

/// A handle of an allocation.
struct OwnedHandle {
    device: Device,
    handle: Handle,
}

/// Addresses, and what is mapped there.
pub(crate) struct Range {
    device: Device,
    start: Pointer,
    bytes: usize,
    mapped: bool,
}

// === impl Stream ===

impl Stream {
    /// A stream of the caller's.
    ///
    /// # Safety
    /// It is a stream (`CUstream`, `cudaStream_t`) of the device's primary context that stays open until the call that it is given
    /// to has returned.
    pub unsafe fn from_raw(stream: u64) -> Self {
        Self(stream as RawStream)
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self(std::ptr::null_mut())
    }
}

// === impl DeviceSegment ===

impl DeviceSegment {
    /// An allocation of at least so many bytes, rounded up to the device's granularity.
    ///
    /// # Errors
    /// [`Refusal::Size`] for none or too many, [`Refusal::OutOfMemory`], or what the driver refused. Nothing stays.
    pub fn create(device: &Device, bytes: u64) -> Result<Self> {
        let bytes = rounded(bytes, device.granularity()?)?;
        let handle = OwnedHandle::create(device, bytes)?;
        let mut range = Range::reserve(device, bytes)?;
        range.map(&handle).map_err(|refused| refused.into_refusal("map memory"))?;
        range.allow(READ_WRITE)?;
        Ok(Self { range, handle })
    }

    /// Length in bytes, a multiple of the granularity.
    pub fn bytes(&self) -> u64 {
        self.range.bytes as u64
    }

    /// Address on the device, in this process.
    pub fn pointer(&self) -> u64 {
        self.range.start
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.range.device
    }

    /// A descriptor of the allocation, close-on-exec, for other processes to import.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn export(&self) -> Result<OwnedFd> {
        let (driver, _current) = (self.device().driver(), self.device().enter()?);
        let mut fd: c_int = -1;
        // SAFETY: the handle is ours and open; one int is written.
        let exported = unsafe { (driver.api.export)(&raw mut fd, self.handle.handle, POSIX, 0) };
        driver.done("export memory", exported)?;
        // SAFETY: the driver just made this descriptor for us, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).map_err(|_| Refusal::NotShareable {
            uuid: self.device().uuid(),
            what: "export a descriptor that is closed at exec",
        })?;
        Ok(fd)
    }

    /// Copies bytes of the host to `offset`, and waits until they are there.
    ///
    /// # Errors
    /// They reach out of it, or the driver refuses.
    pub fn copy_from_host(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = self.range.at(offset, bytes.len() as u64)?;
        let copy = self.device().driver().api.to_device;
        // SAFETY: the part lies in our map, and the bytes outlive the copy, which is waited for.
        let copy = |stream| unsafe { copy(to, bytes.as_ptr().cast::<c_void>(), bytes.len(), stream) };
        self.device().copying("copy to the GPU", copy)
    }

    /// Copies `bytes` at an address of this process on the same GPU to `offset`, on `stream` and behind what is on it, and waits until
    /// they are there.
    ///
    /// # Errors
    /// [`Refusal::NotDeviceMemory`] for any other address, [`Refusal::OutOfBounds`], or what the driver refuses.
    pub fn copy_from_device(&self, offset: u64, pointer: u64, bytes: u64, stream: Stream) -> Result<()> {
        let to = self.range.at(offset, bytes)?;
        check_pointer(self.device(), pointer, bytes)?;
        copy_on_device(self.device(), to, pointer, bytes, stream)
    }

    /// Copies bytes at `offset` to the host.
    ///
    /// # Errors
    /// They reach out of it, or the driver refuses.
    pub fn copy_to_host(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.range.copy_to_host(offset, to)
    }

    /// Waits for all that is on `stream` now, such as kernels that write here.
    ///
    /// # Errors
    /// The driver refuses, or something on the stream went wrong.
    pub fn wait(&self, stream: Stream) -> Result<()> {
        let (driver, _current) = (self.device().driver(), self.device().enter()?);
        // SAFETY: the stream is open, by its maker's word.
        driver.done("wait for a stream", unsafe { (driver.api.stream_wait)(stream.0) })
    }

    /// Copies `bytes` at `offset` to an address of this process on the same GPU, on `stream` and behind what is on it, and waits until
    /// they are there.
    ///
    /// # Errors
    /// [`Refusal::NotDeviceMemory`] for any other address, [`Refusal::OutOfBounds`], or what the driver refuses.
    pub fn copy_to_device(&self, offset: u64, pointer: u64, bytes: u64, stream: Stream) -> Result<()> {
        self.range.copy_to_device(offset, pointer, bytes, stream)
    }
}

impl fmt::Debug for DeviceSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSegment").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

// === impl ImportedSegment ===

impl ImportedSegment {
    /// Imports a descriptor of memory that is said to be on `device` and to have `bytes`, and maps it for reading. Whatever
    /// is wrong with it is found before it is mapped.
    ///
    /// # Errors
    /// [`Refusal::NotImportable`] for what is no memory of a GPU that this process reaches, [`Refusal::WrongDevice`],
    /// [`Refusal::WrongSize`], or what the driver refuses. The descriptor is closed in any case.
    pub fn import(device: &Device, memory: OwnedFd, bytes: u64) -> Result<Self> {
        let granularity = device.granularity()?;
        if bytes == 0 || !bytes.is_multiple_of(granularity) {
            return Err(Refusal::Size { bytes });
        }
        let length = usize::try_from(bytes).map_err(|_| Refusal::Size { bytes })?;
        let handle = OwnedHandle::import(device, &memory)?;
        // The handle holds the memory by itself.
        drop(memory);
        handle.check_device()?;
        let mut range = Range::reserve(device, length)?;
        range
            .map(&handle)
            .map_err(|refused| Refusal::WrongSize { said: bytes, code: device.driver().code(refused.0) })?;
        range.allow(READ)?;
        Ok(Self { range })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.bytes as u64
    }

    /// Address on the device, in this process.
    pub fn pointer(&self) -> u64 {
        self.range.start
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.range.device
    }

    /// Copies bytes at `offset` to the host.
    ///
    /// # Errors
    /// They reach out of it, or the driver refuses.
    pub fn copy_to_host(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.range.copy_to_host(offset, to)
    }

    /// Copies `bytes` at `offset` to an address of this process on the same GPU, on `stream` and behind what is on it, and waits until
    /// they are there.
    ///
    /// # Errors
    /// [`Refusal::NotDeviceMemory`] for any other address, [`Refusal::OutOfBounds`], or what the driver refuses.
    pub fn copy_to_device(&self, offset: u64, pointer: u64, bytes: u64, stream: Stream) -> Result<()> {
        self.range.copy_to_device(offset, pointer, bytes, stream)
    }
}

impl fmt::Debug for ImportedSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedSegment").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

// === impl OwnedHandle ===

impl OwnedHandle {
    fn create(device: &Device, bytes: usize) -> Result<Self> {
        let (driver, _current) = (device.driver(), device.enter()?);
        let (mut handle, properties) = (0, device.properties());
        // SAFETY: one handle is written; the properties outlive the call.
        match unsafe { (driver.api.create)(&raw mut handle, bytes, &raw const properties, 0) } {
            OUT_OF_MEMORY => Err(Refusal::OutOfMemory { bytes: bytes as u64, uuid: device.uuid() }),
            number => {
                driver.done("make memory", number)?;
                Ok(Self { device: device.clone(), handle })
            }
        }
    }

    fn import(device: &Device, memory: &OwnedFd) -> Result<Self> {
        let (driver, _current) = (device.driver(), device.enter()?);
        let mut handle = 0;
        // The driver's interface has the number of the descriptor where a pointer would be.
        let os = std::ptr::without_provenance_mut::<c_void>(memory.as_raw_fd() as usize);
        // SAFETY: the descriptor is open for the length of the call; one handle is written.
        match unsafe { (driver.api.import)(&raw mut handle, os, POSIX) } {
            SUCCESS => Ok(Self { device: device.clone(), handle }),
            number => Err(Refusal::NotImportable { uuid: device.uuid(), code: driver.code(number) }),
        }
    }

    /// # Errors
    /// The memory is not on the device of this value.
    fn check_device(&self) -> Result<()> {
        let (driver, _current) = (self.device.driver(), self.device.enter()?);
        let mut properties =
            Properties { handles: 0, location: Location::default(), ..self.device.properties() };
        // SAFETY: the handle is open, and the properties are as large as the driver's.
        let told = unsafe { (driver.api.properties)(&raw mut properties, self.handle) };
        driver.done("describe memory", told)?;
        let Location { kind, id } = properties.location;
        if kind == ON_DEVICE && id == self.device.ordinal() {
            return Ok(());
        }
        Err(Refusal::WrongDevice { said: self.device.uuid(), actual: id })
    }
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        // In a forked child it is the parent's.
        if let Ok(_current) = self.device.enter() {
            // SAFETY: the handle is ours. There is nothing to do about a refusal.
            let _ = unsafe { (self.device.driver().api.release)(self.handle) };
        }
    }
}

/// A map that the driver refused, and its code.
struct Refused(c_uint, Device);

impl Refused {
    fn into_refusal(self, step: &'static str) -> Refusal {
        Refusal::Driver { step, code: self.1.driver().code(self.0) }
    }
}

// === impl Range ===

impl Range {
    fn reserve(device: &Device, bytes: usize) -> Result<Self> {
        let (driver, _current) = (device.driver(), device.enter()?);
        let mut start: Pointer = 0;
        // SAFETY: one address is written. Any alignment and any place will do.
        let reserved = unsafe { (driver.api.reserve)(&raw mut start, bytes, 0, 0, 0) };
        driver.done("reserve addresses", reserved)?;
        Ok(Self { device: device.clone(), start, bytes, mapped: false })
    }

    fn map(&mut self, handle: &OwnedHandle) -> std::result::Result<(), Refused> {
        let refused = |number| Refused(number, self.device.clone());
        // A context that cannot be entered was left or belongs to a parent; the steps before would have failed.
        let _current = self.device.enter().map_err(|_| refused(c_uint::MAX))?;
        // SAFETY: the addresses are ours and nothing is mapped there; the handle is open.
        match unsafe { (self.device.driver().api.map)(self.start, self.bytes, 0, handle.handle, 0) } {
            SUCCESS => self.mapped = true,
            number => return Err(refused(number)),
        }
        Ok(())
    }

    fn allow(&self, flags: c_uint) -> Result<()> {
        let (driver, _current) = (self.device.driver(), self.device.enter()?);
        let access = Access { location: Location { kind: ON_DEVICE, id: self.device.ordinal() }, flags };
        // SAFETY: the range is mapped whole; one description is read.
        let set = unsafe { (driver.api.set_access)(self.start, self.bytes, &raw const access, 1) };
        driver.done("give access to memory", set)
    }

    /// The address of a part.
    pub(crate) fn at(&self, offset: u64, bytes: u64) -> Result<Pointer> {
        let within = self.bytes as u64;
        match offset.checked_add(bytes) {
            Some(end) if end <= within => Ok(self.start + offset),
            _ => Err(Refusal::OutOfBounds { offset, bytes, within }),
        }
    }

    fn copy_to_device(&self, offset: u64, pointer: u64, bytes: u64, stream: Stream) -> Result<()> {
        let from = self.at(offset, bytes)?;
        check_pointer(&self.device, pointer, bytes)?;
        copy_on_device(&self.device, pointer, from, bytes, stream)
    }

    fn copy_to_host(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let from = self.at(offset, to.len() as u64)?;
        let copy = self.device.driver().api.to_host;
        // SAFETY: the part lies in our map, and the copy into `to` is waited for.
        let copy = |stream| unsafe { copy(to.as_mut_ptr().cast::<c_void>(), from, to.len(), stream) };
        self.device.copying("copy to the host", copy)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // In a forked child it is the parent's.
        let Ok(_current) = self.device.enter() else { return };
        let api = &self.device.driver().api;
        if self.mapped {
            // SAFETY: exactly what was mapped; every copy from and to it was waited for, and whoever has begun other work there waits
            // for the device before it is dropped.
            let _ = unsafe { (api.unmap)(self.start, self.bytes) };
        }
        // SAFETY: exactly what was reserved, with nothing mapped. There is nothing to do about a refusal.
        let _ = unsafe { (api.free_address)(self.start, self.bytes) };
    }
}

/// Copies on the device, on `stream` and behind what is on it, and waits until the bytes are there. Both parts lie in its memory: one in
/// a map of ours, the other as [`check_pointer`] found.
fn copy_on_device(device: &Device, to: Pointer, from: Pointer, bytes: u64, stream: Stream) -> Result<()> {
    let (driver, _current) = (device.driver(), device.enter()?);
    // SAFETY: both parts lie in memory of the device, as the callers have checked; the stream is open, by its maker's word.
    let begun = unsafe { (driver.api.on_device)(to, from, bytes as usize, stream.0) };
    // SAFETY: as above. Also where the copy was refused, so that nothing is under way after this.
    let waited = unsafe { (driver.api.stream_wait)(stream.0) };
    driver.done("copy on the GPU", begun)?;
    driver.done("copy on the GPU", waited)
}

/// # Errors
/// The part is not whole in memory of the device.
fn check_pointer(device: &Device, pointer: u64, bytes: u64) -> Result<()> {
    let (driver, _current) = (device.driver(), device.enter()?);
    let ordinal = c_uint::try_from(device.ordinal()).ok();
    let range_at = |address| {
        let attribute = |which: c_int| {
            let mut value: c_uint = 0;
            // SAFETY: both attributes that are asked for are one int. The driver knows its addresses, whatever this one is.
            let told = unsafe { (driver.api.pointer_attribute)((&raw mut value).cast(), which, address) };
            (told == SUCCESS).then_some(value)
        };
        if attribute(MEMORY_TYPE) != Some(DEVICE_MEMORY) || attribute(DEVICE_ORDINAL) != ordinal {
            return None;
        }
        let (mut base, mut length): (Pointer, usize) = (0, 0);
        // SAFETY: an address and a size are written.
        let told = unsafe { (driver.api.address_range)(&raw mut base, &raw mut length, address) };
        (told == SUCCESS).then_some((base, length as u64))
    };
    if is_covered(pointer, bytes, range_at) {
        Ok(())
    } else {
        Err(Refusal::NotDeviceMemory { pointer, bytes, uuid: device.uuid() })
    }
}

/// Returns whether memory of the device lies at each of `bytes` addresses from `pointer` on. `range_at` gives start and length of the
/// allocation around an address. One tensor may lie in several that adjoin: PyTorch's expandable segments are mapped in
/// pieces of 2 or 20 MiB.
fn is_covered(pointer: u64, bytes: u64, range_at: impl Fn(u64) -> Option<(u64, u64)>) -> bool {
    let Some(end) = pointer.checked_add(bytes) else { return false };
    let mut next = pointer;
    loop {
        let after = range_at(next).and_then(|(base, length)| base.checked_add(length));
        match after {
            Some(after) if after >= end => return true,
            Some(after) if after > next => next = after,
            _ => return false,
        }
    }
}

/// A length that the device takes.
fn rounded(bytes: u64, granularity: u64) -> Result<usize> {
    let rounded = bytes.checked_next_multiple_of(granularity).filter(|rounded| *rounded > 0);
    let rounded = rounded.filter(|rounded| i64::try_from(*rounded).is_ok());
    rounded.and_then(|rounded| usize::try_from(rounded).ok()).ok_or(Refusal::Size { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_may_lie_in_several_allocations_that_adjoin_and_in_no_gap() {
        let ranges = [(100, 20), (120, 20), (140, 5), (150, 10)];
        let range_at =
            |address| ranges.into_iter().find(|(base, length)| (*base..base + length).contains(&address));
        for (pointer, bytes) in [(100, 20), (105, 0), (110, 10), (119, 2), (100, 45), (130, 15), (150, 10)] {
            assert!(is_covered(pointer, bytes, range_at), "{bytes} at {pointer}");
        }
        for (pointer, bytes) in [(99, 1), (100, 46), (144, 2), (145, 1), (155, 6), (u64::MAX, 1)] {
            assert!(!is_covered(pointer, bytes, range_at), "{bytes} at {pointer}");
        }
        assert!(!is_covered(100, 50, |_| Some((100, 10))), "a driver that stands still");
    }

    #[test]
    fn a_length_is_rounded_up_to_the_granularity_or_refused() {
        assert_eq!(rounded(1, 2 << 20), Ok(2 << 20));
        assert_eq!(rounded(2 << 20, 2 << 20), Ok(2 << 20));
        assert_eq!(rounded((2 << 20) + 1, 2 << 20), Ok(4 << 20));
        for bytes in [0, u64::MAX, 1 << 63] {
            assert_eq!(rounded(bytes, 2 << 20), Err(Refusal::Size { bytes }));
        }
        assert_eq!(rounded(1, 0), Err(Refusal::Size { bytes: 1 }), "a driver that says 0");
    }
}
