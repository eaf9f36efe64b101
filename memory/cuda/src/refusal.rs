//! Why GPU memory cannot be had, as a value.

use std::fmt;
use std::ops::RangeInclusive;

use crate::uuid::GpuUuid;

/// Codes of the driver about a stream that is being captured: `CUDA_ERROR_STREAM_CAPTURE_*` and `CUDA_ERROR_CAPTURED_EVENT`.
const CAPTURE: RangeInclusive<u32> = 900..=908;

/// Answer of the driver, with its own name for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The number.
    pub number: u32,
    /// The driver's name of it, or empty.
    pub name: String,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "error {}", self.number),
            name => write!(f, "error {}, {name}", self.number),
        }
    }
}

/// Why GPU memory cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No library of the driver is found.
    #[error("no driver library (libcuda.so.1) is found; is this a container with a GPU?")]
    NoLibrary,
    /// A library is found that is there for linking only.
    #[error(
        "the driver library that is found first is a stub for linking; take its folder out of LD_LIBRARY_PATH"
    )]
    StubLibrary,
    /// The library lacks a function.
    #[error("the driver library has no {name}; a driver from R470 on is needed")]
    MissingSymbol {
        /// The function.
        name: &'static str,
    },
    /// The library does not find its kernel driver, or one that fits it.
    #[error("the driver does not start: {code}")]
    NoDriver {
        /// Answer of the library.
        code: Code,
    },
    /// No GPU at all.
    #[error("the driver sees no GPU; is one given to this container?")]
    NoDevice,
    /// No GPU of that number.
    #[error("there is no GPU {index}; the driver sees {count}")]
    NoSuchIndex {
        /// The number.
        index: u32,
        /// Number of GPUs that the driver sees.
        count: u32,
    },
    /// GPU that this process does not reach.
    #[error("this process does not reach the GPU {uuid}; it sees {seen:?}")]
    NoSuchDevice {
        /// The GPU.
        uuid: GpuUuid,
        /// GPUs that this process reaches.
        seen: Vec<GpuUuid>,
    },
    /// The GPU or its driver cannot share memory by descriptor.
    #[error("the GPU {uuid} cannot {what}")]
    NotShareable {
        /// The GPU.
        uuid: GpuUuid,
        /// Operation that it cannot do.
        what: &'static str,
    },
    /// Use of what was made before a fork, which is the parent's.
    #[error(
        "GPU memory of a forked process is its parent's; open the device in the child, if the parent had not used it"
    )]
    Forked,
    /// A length that no memory has.
    #[error("{bytes} bytes of GPU memory cannot be had")]
    Size {
        /// The length.
        bytes: u64,
    },
    /// The GPU's memory is used up.
    #[error("{bytes} bytes of memory of the GPU {uuid} are not free")]
    OutOfMemory {
        /// Bytes that were asked for, rounded up.
        bytes: u64,
        /// The GPU.
        uuid: GpuUuid,
    },
    /// The descriptor is none of GPU memory, or of a GPU that this process does not reach.
    #[error("the descriptor cannot be imported as memory of the GPU {uuid}: {code}")]
    NotImportable {
        /// The GPU that was named with it.
        uuid: GpuUuid,
        /// Answer of the driver.
        code: Code,
    },
    /// The memory is on another GPU than was said.
    #[error(
        "the memory is said to be on the GPU {said}, and is on device {actual} of this process; nothing was mapped"
    )]
    WrongDevice {
        /// The GPU that was named with it.
        said: GpuUuid,
        /// The number of the device that it is on.
        actual: i32,
    },
    /// The memory is shorter than was said.
    #[error("the memory is not as long as the {said} bytes that were said: {code}; nothing was mapped")]
    WrongSize {
        /// The length that was named with it.
        said: u64,
        /// Answer of the driver.
        code: Code,
    },
    /// An address that is none of this GPU's memory, or memory that ends before what was asked for.
    #[error("{bytes} bytes at {pointer:#x} are not memory of the GPU {uuid}")]
    NotDeviceMemory {
        /// The address.
        pointer: u64,
        /// The length.
        bytes: u64,
        /// The GPU.
        uuid: GpuUuid,
    },
    /// A part that reaches out of the memory.
    #[error("{bytes} bytes at {offset} reach out of memory of {within}")]
    OutOfBounds {
        /// Offset at which the part begins.
        offset: u64,
        /// Length of the part.
        bytes: u64,
        /// The length of the memory.
        within: u64,
    },
    /// The driver refused a step.
    #[error("the driver does not {step}: {code}")]
    Driver {
        /// The step.
        step: &'static str,
        /// Answer of the driver.
        code: Code,
    },
}

impl Refusal {
    /// A stable word for programs and tables.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NoLibrary => "no_library",
            Self::StubLibrary => "stub_library",
            Self::MissingSymbol { .. } => "missing_symbol",
            Self::NoDriver { .. } => "no_driver",
            Self::NoDevice => "no_device",
            Self::NoSuchIndex { .. } => "no_such_index",
            Self::NoSuchDevice { .. } => "no_such_device",
            Self::NotShareable { .. } => "not_shareable",
            Self::Forked => "forked",
            Self::Size { .. } => "size",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::NotImportable { .. } => "not_importable",
            Self::WrongDevice { .. } => "wrong_device",
            Self::WrongSize { .. } => "wrong_size",
            Self::NotDeviceMemory { .. } => "not_device_memory",
            Self::OutOfBounds { .. } => "out_of_bounds",
            Self::Driver { .. } => "driver",
        }
    }

    /// Returns whether the driver refused because work of the device is being captured as a graph.
    pub fn is_of_capture(&self) -> bool {
        matches!(self, Self::Driver { code, .. } if CAPTURE.contains(&code.number))
    }
}
