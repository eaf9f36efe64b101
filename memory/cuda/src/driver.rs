//! The driver of this process: opened once, and never after a fork.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::OnceLock;

use tensorlane_memory::fork::{ProcessToken, is_same_process};

use crate::Result;
use crate::api::{Api, NO_DEVICE, STUB_LIBRARY, SUCCESS};
use crate::refusal::{Code, Refusal};
use crate::uuid::GpuUuid;

/// Starts the driver in this process, if it was not before. No GPU is opened: that costs none of its memory.
///
/// # Errors
/// There is no driver that works, or it was started before this process was forked.
pub fn start() -> Result<()> {
    Driver::get().map(drop)
}

/// The driver, started.
pub(crate) struct Driver {
    pub(crate) api: Api,
    started_in: ProcessToken,
}

impl Driver {
    /// The driver of this process, started with the first call. What it answered then it answers for good.
    pub(crate) fn get() -> Result<&'static Self> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        let driver = DRIVER.get_or_init(Self::start).as_ref().map_err(Clone::clone)?;
        driver.check_process()?;
        Ok(driver)
    }

    fn start() -> Result<Self> {
        let api = Api::load()?;
        let driver = Self { api, started_in: ProcessToken::current() };
        // SAFETY: it takes no pointer.
        match unsafe { (api.init)(0) } {
            SUCCESS => Ok(driver),
            STUB_LIBRARY => Err(Refusal::StubLibrary),
            NO_DEVICE => Err(Refusal::NoDevice),
            number => Err(Refusal::NoDriver { code: driver.code(number) }),
        }
    }

    /// # Errors
    /// The driver was started before this process was forked.
    pub(crate) fn check_process(&self) -> Result<()> {
        if is_same_process(self.started_in) { Ok(()) } else { Err(Refusal::Forked) }
    }

    /// Turns the number that a step of the driver ended with into a result.
    pub(crate) fn done(&self, step: &'static str, number: c_uint) -> Result<()> {
        match number {
            SUCCESS => Ok(()),
            number => Err(Refusal::Driver { step, code: self.code(number) }),
        }
    }

    /// A code with the driver's name of it.
    pub(crate) fn code(&self, number: c_uint) -> Code {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the pointer is written, if at all, with that of a text of the library, which is never freed.
        let known = unsafe { (self.api.error_name)(number, &raw mut name) };
        let name = if known == SUCCESS && !name.is_null() {
            // SAFETY: the driver's names are texts of C that live as long as the library.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            String::new()
        };
        Code { number, name }
    }

    /// The number of GPUs.
    pub(crate) fn count(&self) -> Result<u32> {
        let mut count: c_int = 0;
        // SAFETY: one int is written.
        self.done("count its GPUs", unsafe { (self.api.device_count)(&raw mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The driver's version: 1000 for each major one and 10 for each minor one.
    pub(crate) fn version(&self) -> Result<u32> {
        let mut version: c_int = 0;
        // SAFETY: one int is written.
        self.done("say its version", unsafe { (self.api.version)(&raw mut version) })?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// The driver's number of a GPU.
    pub(crate) fn ordinal(&self, index: u32) -> Result<c_int> {
        let count = self.count()?;
        let wanted = c_int::try_from(index).ok().filter(|_| index < count);
        let wanted = wanted.ok_or(Refusal::NoSuchIndex { index, count })?;
        let mut ordinal: c_int = 0;
        // SAFETY: one int is written.
        self.done("find a GPU", unsafe { (self.api.device)(&raw mut ordinal, wanted) })?;
        Ok(ordinal)
    }

    pub(crate) fn uuid(&self, ordinal: c_int) -> Result<GpuUuid> {
        let mut uuid = [0; 16];
        // SAFETY: 16 bytes are written.
        self.done("name a GPU", unsafe { (self.api.device_uuid)(&raw mut uuid, ordinal) })?;
        Ok(GpuUuid(uuid))
    }

    /// Bytes of memory of a GPU.
    pub(crate) fn memory(&self, ordinal: c_int) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: one size is written.
        self.done("measure a GPU", unsafe { (self.api.device_memory)(&raw mut bytes, ordinal) })?;
        Ok(bytes as u64)
    }

    pub(crate) fn attribute(&self, which: c_int, ordinal: c_int) -> Result<c_int> {
        let mut value: c_int = 0;
        // SAFETY: one int is written.
        self.done("describe a GPU", unsafe { (self.api.device_attribute)(&raw mut value, which, ordinal) })?;
        Ok(value)
    }
}
