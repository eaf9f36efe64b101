//! DLPack's structures, as its C header has them. Only `raw.rs` reads and writes them.

use std::ffi::{CStr, c_void};

use tensorlane_proto::DType;

/// `kDLCPU`
pub(crate) const CPU: i32 = 1;
/// `kDLCUDA`
pub(crate) const CUDA: i32 = 2;
pub(crate) const READ_ONLY: u64 = 1;
pub(crate) const IS_COPIED: u64 = 2;
pub(crate) const VERSIONED_NAME: &CStr = c"dltensor_versioned";
pub(crate) const UNVERSIONED_NAME: &CStr = c"dltensor";
/// The versions of the structures that are read here have this number before the point.
pub(crate) const MAJOR: u32 = 1;
/// Dimensions of an array that is read, at most; more are a broken structure.
pub(crate) const RANK_MAX: usize = 64;

/// `DLDevice`
#[repr(C)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

/// `DLDataType`
#[repr(C)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

/// `DLTensor`
#[repr(C)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) ndim: i32,
    pub(crate) dtype: DataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

/// `DLManagedTensorVersioned`
#[repr(C)]
pub(crate) struct Versioned {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    pub(crate) flags: u64,
    pub(crate) tensor: DlTensor,
}

/// `DLManagedTensor`
#[repr(C)]
pub(crate) struct Unversioned {
    pub(crate) tensor: DlTensor,
    pub(crate) context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

/// Memory that a capsule shows, and what keeps it where it is.
pub(crate) struct Exported {
    pub(crate) address: u64,
    /// Kind of device and its index.
    pub(crate) device: (i32, i32),
    pub(crate) dtype: DataType,
    pub(crate) shape: Vec<i64>,
    /// In elements.
    pub(crate) strides: Vec<i64>,
    pub(crate) flags: u64,
    /// Dropped with the capsule, or by its taker, from whichever thread.
    #[expect(dead_code, reason = "it is held, and never looked at")]
    pub(crate) keeps: Box<dyn Send>,
}

/// An array that another library shows by a capsule.
pub(crate) struct Seen {
    pub(crate) address: u64,
    /// Kind of device and its index.
    pub(crate) device: (i32, i32),
    /// Code, bits and lanes of an element.
    pub(crate) dtype: (u8, u8, u16),
    pub(crate) shape: Vec<i64>,
    /// In elements; none where they lie row-major and without gaps.
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) read_only: bool,
}

/// Elements of this type, or their bits as unsigned numbers.
pub(crate) fn data_type(dtype: DType, bits: bool) -> DataType {
    let (code, size, lanes) = dtype.dlpack();
    // 1 is unsigned.
    DataType { code: if bits { 1 } else { code }, bits: size, lanes }
}
