//! Device on which the bytes of a tensor are.
//!
//! A device is named, never opened here: the index is the one that the workload that put the tensor sees, and only
//! the UUID means the same in every container.

use std::fmt;

/// The memory a tensor lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Device {
    /// Host memory: a segment that any process can map.
    #[default]
    Host,
    /// The memory of one CUDA GPU.
    Cuda {
        /// The index in the container of the workload that put the tensor.
        index: u32,
        /// The UUID of the GPU (16 bytes, as CUDA gives it), where known. Two peers share a GPU only if this agrees.
        uuid: Option<[u8; 16]>,
    },
}

impl Device {
    /// Returns whether the bytes lie in host memory.
    pub const fn is_host(&self) -> bool {
        matches!(self, Device::Host)
    }
}

/// `host` or `cuda:0`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Host => f.write_str("host"),
            Device::Cuda { index, .. } => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_prints_as_frameworks_name_it() {
        assert_eq!(Device::Host.to_string(), "host");
        assert_eq!(Device::Cuda { index: 3, uuid: None }.to_string(), "cuda:3");
    }
}
