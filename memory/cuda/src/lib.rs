//! GPU memory that is shared between processes by file descriptor, over the driver of CUDA.
//!
//! ```text
//!   exporter                                               importer
//!   DeviceSegment: created, mapped for writing             ImportedSegment: imported, checked, mapped for reading
//!        |  export                                               ^  import
//!        '------------- a descriptor, through whoever ------------'
//! ```
//!
//! The driver's library is opened when it is first asked for, and nothing of CUDA is needed to build or to start: where it is
//! missing, too old, a stub, or refuses, that is a [`Refusal`], which says why. The process never ends because of it.
//!
//! The driver is called through a table of functions of our own (`api.rs`), in which its codes are numbers. In `cudarc`
//! they are a Rust `enum`, and a newer driver may answer with one that is not in it; and a function that the library lacks is a panic
//! there. Of `cudarc` come the search for the library and the names of types and attributes.
//!
//! A forked child has no GPU: everything here that was made before the fork refuses with [`Refusal::Forked`], and drops
//! nothing, for it is the parent's.
//!
//! Non-goals: kernels, streams of their own for users, memory that was not made here (`cudaMalloc` and its handles).

mod api;
mod device;
mod driver;
mod host;
mod refusal;
mod segment;
mod uuid;

pub use device::{Device, Probe, Probed, driver_version, probe};
pub use driver::start;
pub use host::PinnedMapping;
pub use refusal::{Code, Refusal};
pub use segment::{DeviceSegment, ImportedSegment, Stream};
pub use uuid::GpuUuid;

/// The result of what may be refused.
pub type Result<T> = std::result::Result<T, Refusal>;
