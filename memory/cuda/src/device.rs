//! GPUs: which there are, what each can, and one that is open.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Result;
use crate::api::{
    Context, EXPORTS_POSIX, HAS_VMM, MINIMUM, NON_BLOCKING, ON_DEVICE, PINNED, POSIX, Properties, RawStream,
};
use crate::driver::Driver;
use crate::refusal::Refusal;
use crate::segment::{DeviceSegment, ImportedSegment};
use crate::uuid::GpuUuid;

/// Driver and GPUs of a machine, as a probe found them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Version of CUDA that the driver speaks: 1000 for each major version and 10 for each minor one.
    pub driver: u32,
    /// The GPUs, by index.
    pub devices: Vec<Probed>,
}

/// GPU of a machine, and whether memory was shared on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Index in this process.
    pub index: u32,
    /// The name that means the same everywhere.
    pub uuid: GpuUuid,
    /// Name that the driver gives it.
    pub name: String,
    /// Size of its memory in bytes.
    pub bytes: u64,
    /// Success if an allocation could be exported as a descriptor and imported again, or the reason why not.
    pub shares: Result<()>,
}

/// Version of CUDA that the driver of this process speaks, as in [`Probe::driver`].
///
/// # Errors
/// There is no driver that works.
pub fn driver_version() -> Result<u32> {
    Driver::get()?.version()
}

/// Finds out by doing what this process has: opens the driver, and on each GPU makes, exports, imports and maps one small
/// allocation, which is given back at once.
///
/// # Errors
/// There is no driver that works, or no GPU.
pub fn probe() -> Result<Probe> {
    let driver = Driver::get()?;
    let count = driver.count()?;
    if count == 0 {
        return Err(Refusal::NoDevice);
    }
    let devices = (0..count).map(probe_one).collect::<Result<Vec<_>>>()?;
    Ok(Probe { driver: driver.version()?, devices })
}

fn probe_one(index: u32) -> Result<Probed> {
    let driver = Driver::get()?;
    let ordinal = driver.ordinal(index)?;
    let mut name = [0 as c_char; 128];
    // SAFETY: at most as many bytes are written as are said, the last of them 0.
    let named = unsafe { (driver.api.device_name)(name.as_mut_ptr(), 127, ordinal) };
    driver.done("call a GPU by its name", named)?;
    // SAFETY: the last byte is 0 whatever was written before it.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let bytes = driver.memory(ordinal)?;
    let shares = Device::open(index).and_then(|device| try_sharing(&device));
    Ok(Probed { index, uuid: driver.uuid(ordinal)?, name, bytes, shares })
}

fn try_sharing(device: &Device) -> Result<()> {
    let made = DeviceSegment::create(device, 1)?;
    made.copy_from_host(0, &[0x5a])?;
    let imported = ImportedSegment::import(device, made.export()?, made.bytes())?;
    let mut seen = [0];
    imported.copy_to_host(0, &mut seen)?;
    let what = "show what was written through an imported descriptor";
    if seen == [0x5a] { Ok(()) } else { Err(Refusal::NotShareable { uuid: device.uuid(), what }) }
}

/// A GPU that is open in this process. Clones are the same. Costs the memory of a context, some hundred MiB of the GPU's,
/// unless the process has one there already.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    driver: &'static Driver,
    index: u32,
    ordinal: c_int,
    uuid: GpuUuid,
    context: Context,
    /// For copies that were given no stream; none before the first of them.
    stream: Mutex<Option<RawStream>>,
}

// SAFETY: contexts and streams of the driver are handles that any thread may use; which context is current is said by each
// thread for itself, and `Current` does so around every call.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The device's context is the current one of the thread that made this, for as long as this lives there.
pub(crate) struct Current<'a>(&'a Inner, PhantomData<*const ()>);

// === impl Device ===

impl Device {
    /// Opens the GPU of that index.
    ///
    /// # Errors
    /// There is none, or it cannot share memory.
    pub fn open(index: u32) -> Result<Self> {
        let driver = Driver::get()?;
        let ordinal = driver.ordinal(index)?;
        let uuid = driver.uuid(ordinal)?;
        let lacks = |what| Err(Refusal::NotShareable { uuid, what });
        if driver.attribute(HAS_VMM, ordinal)? == 0 {
            return lacks("map memory apart from making it (virtual memory management)");
        }
        if driver.attribute(EXPORTS_POSIX, ordinal)? == 0 {
            return lacks("export memory as a file descriptor");
        }
        let mut context: Context = std::ptr::null_mut();
        // SAFETY: one handle is written. It is given back when the device is dropped.
        let retained = unsafe { (driver.api.context_retain)(&raw mut context, ordinal) };
        driver.done("open a context", retained)?;
        let stream = Mutex::new(None);
        Ok(Self(Arc::new(Inner { driver, index, ordinal, uuid, context, stream })))
    }

    /// Opens the GPU of that name.
    ///
    /// # Errors
    /// This process does not reach it, or it cannot share memory.
    pub fn find(uuid: GpuUuid) -> Result<Self> {
        let driver = Driver::get()?;
        let seen = (0..driver.count()?)
            .map(|index| driver.uuid(driver.ordinal(index)?))
            .collect::<Result<Vec<_>>>()?;
        match (0..).zip(&seen).find(|(_, other)| **other == uuid) {
            Some((index, _)) => Self::open(index),
            None => Err(Refusal::NoSuchDevice { uuid, seen }),
        }
    }

    /// Index in this process.
    pub fn index(&self) -> u32 {
        self.0.index
    }

    /// The name that means the same everywhere.
    pub fn uuid(&self) -> GpuUuid {
        self.0.uuid
    }

    /// Size of its memory in bytes.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn memory(&self) -> Result<u64> {
        self.driver().memory(self.ordinal())
    }

    /// # Errors
    /// [`Refusal::Forked`] in a child of the process that opened it.
    pub fn check_process(&self) -> Result<()> {
        self.driver().check_process()
    }

    /// Waits until the device has done all work that this process had given it before, on whatever stream.
    ///
    /// # Errors
    /// The driver refuses, or work on the device has failed.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: it takes no pointer, and the context is current.
        let waited = unsafe { (self.driver().api.context_wait)() };
        self.driver().done("wait for work on the GPU", waited)
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    pub(crate) fn ordinal(&self) -> c_int {
        self.0.ordinal
    }

    /// Makes its context the calling thread's current one.
    pub(crate) fn enter(&self) -> Result<Current<'_>> {
        self.0.enter()
    }

    /// Properties of memory on it that can be exported.
    pub(crate) fn properties(&self) -> Properties {
        Properties {
            kind: PINNED,
            handles: POSIX,
            location: crate::api::Location { kind: ON_DEVICE, id: self.0.ordinal },
            windows: std::ptr::null_mut(),
            flags: [0; 8],
        }
    }

    /// Bytes of which every allocation is a multiple.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn granularity(&self) -> Result<u64> {
        let _current = self.enter()?;
        let (mut bytes, properties) = (0, self.properties());
        // SAFETY: one size is written, and the properties outlive the call.
        let said = unsafe { (self.driver().api.granularity)(&raw mut bytes, &raw const properties, MINIMUM) };
        self.driver().done("say its granularity", said)?;
        Ok(bytes as u64)
    }

    /// Runs `copy` on the device's own stream and waits until it is done.
    pub(crate) fn copying(&self, step: &'static str, copy: impl FnOnce(RawStream) -> u32) -> Result<()> {
        let _current = self.enter()?;
        let driver = self.driver();
        let mut own = self.0.stream.lock();
        let stream = match *own {
            Some(stream) => stream,
            None => {
                let mut stream: RawStream = std::ptr::null_mut();
                // SAFETY: one handle is written, for the current context. It is given back with the device.
                let made = unsafe { (driver.api.stream_create)(&raw mut stream, NON_BLOCKING) };
                driver.done("make a stream", made)?;
                *own = Some(stream);
                stream
            }
        };
        let begun = copy(stream);
        // Also where the copy was refused: nothing of it may be under way when its memory is given back.
        // SAFETY: the stream is ours and open.
        let waited = unsafe { (driver.api.stream_wait)(stream) };
        driver.done(step, begun)?;
        driver.done(step, waited)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("index", &self.0.index).field("uuid", &self.0.uuid).finish()
    }
}

// === impl Inner ===

impl Inner {
    fn enter(&self) -> Result<Current<'_>> {
        self.driver.check_process()?;
        // SAFETY: the context is open for as long as `self` lives.
        let pushed = unsafe { (self.driver.api.context_push)(self.context) };
        self.driver.done("enter a context", pushed)?;
        Ok(Current(self, PhantomData))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child it is the parent's.
        if self.driver.check_process().is_err() {
            return;
        }
        if let Some(stream) = self.stream.get_mut().take()
            && let Ok(_current) = self.enter()
        {
            // SAFETY: the stream is ours, and nobody uses it any more. A refusal leaves it to the end of the context.
            let _ = unsafe { (self.driver.api.stream_destroy)(stream) };
        }
        // SAFETY: it was retained once, when this was made. There is nothing to do about a refusal.
        let _ = unsafe { (self.driver.api.context_release)(self.ordinal) };
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped: Context = std::ptr::null_mut();
        // SAFETY: it takes away what `enter` put there, on the same thread.
        let _ = unsafe { (self.0.driver.api.context_pop)(&raw mut popped) };
    }
}
