//! The native half of the Python package: the client's calls, and tensors as memory that Python libraries map.
//!
//! Python decides what an array is and which library makes one (`python/tensorlane`); this crate makes calls and keeps
//! memory alive. Every call gives the interpreter's lock away while it waits.
//!
//! ```text
//!   tensorlane.Client ── Core ── tensorlane_client::Client      one connection a process
//!   tensorlane.Tensor ── Memory ── Arc<Tensor>                  buffer, DLPack: each view holds the Arc
//!   tensorlane.DeviceTensor ── OnDevice ── Arc<DeviceTensor>    DLPack of a GPU, likewise
//!   tensorlane.Stored ── Stored ── Lease
//!   tensorlane.Pipe ── PipeEnd ── Arc<tensorlane_client::pipe::Pipe>
//! ```
//!
//! Non-goals: numpy and torch, of which nothing here knows. Unsafe code is in `raw.rs` only.

mod channel;
mod client;
mod dlpack;
mod errors;
mod gpu;
mod held;
mod interrupt;
mod layout;
mod mutable;
mod pipe;
mod raw;
mod reference;
mod set;
mod stored;
mod watch;

use pyo3::prelude::*;

/// The classes that `tensorlane` is made of.
#[pymodule(gil_used = true)]
mod _tensorlane {
    #[pymodule_export]
    use crate::channel::{Reader, Writer};
    #[pymodule_export]
    use crate::client::Core;
    #[pymodule_export]
    use crate::gpu::{DeviceBlock, capsule_array, probe_gpus, release_idle};
    #[pymodule_export]
    use crate::held::{Acquired, OnDevice};
    #[pymodule_export]
    use crate::interrupt::Cancel;
    #[pymodule_export]
    use crate::mutable::Opened;
    #[pymodule_export]
    use crate::pipe::{PipeDescriptor, PipeEnd, PipeListener, PipeWriting};
    #[pymodule_export]
    use crate::raw::{Block, Memory, Raw};
    #[pymodule_export]
    use crate::reference::Reference;
    #[pymodule_export]
    use crate::stored::Stored;
    #[pymodule_export]
    use crate::watch::Watch;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name of it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
