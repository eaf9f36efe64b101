//! The functions of the driver that we call, and its structures, as its C interface has them.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys;

use crate::Result;
use crate::refusal::Refusal;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Location {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) kind: c_uint,
    pub(crate) handles: c_uint,
    pub(crate) location: Location,
    pub(crate) windows: *mut c_void,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: c_uint,
}

// They are what the driver takes: as large as those of the headers, field by field.
const _: () = assert!(size_of::<Location>() == size_of::<sys::CUmemLocation>());
const _: () = assert!(size_of::<Properties>() == size_of::<sys::CUmemAllocationProp>());
const _: () = assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());

/// Memory of a device, of which the size does not change.
pub(crate) const PINNED: c_uint = 1;
/// On a device.
pub(crate) const ON_DEVICE: c_uint = 1;
/// Exported as a file descriptor.
pub(crate) const POSIX: c_uint = 1;
pub(crate) const READ: c_uint = 1;
pub(crate) const READ_WRITE: c_uint = 3;
/// A stream that does not wait for the default one.
pub(crate) const NON_BLOCKING: c_uint = 1;
/// The granularity that is needed; the recommended one is the same or more.
pub(crate) const MINIMUM: c_uint = 0;

pub(crate) const SUCCESS: c_uint = 0;
pub(crate) const OUT_OF_MEMORY: c_uint = 2;
pub(crate) const STUB_LIBRARY: c_uint = 34;
pub(crate) const NO_DEVICE: c_uint = 100;

pub(crate) const HAS_VMM: c_int =
    sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as c_int;
pub(crate) const EXPORTS_POSIX: c_int =
    sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as c_int;
pub(crate) const MEMORY_TYPE: c_int =
    sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_int;
pub(crate) const DEVICE_ORDINAL: c_int =
    sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_int;
/// `CU_MEMHOSTREGISTER_PORTABLE`: known in every context of the process.
pub(crate) const PORTABLE: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
pub(crate) const DEVICE_MEMORY: c_uint = 2;

pub(crate) type Context = sys::CUcontext;
pub(crate) type RawStream = sys::CUstream;
pub(crate) type Handle = c_ulonglong;
pub(crate) type Pointer = u64;

macro_rules! functions {
    ($($field:ident = $symbol:literal ( $($argument:ty),* );)+) => {
        /// The functions, found once.
        #[derive(Clone, Copy)]
        pub(crate) struct Api {
            $( pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_uint, )+
        }

        impl Api {
            /// Opens the driver's library and finds every function in it.
            pub(crate) fn load() -> Result<Self> {
                // SAFETY: opening the library runs its own beginnings and touches nothing of ours.
                if !unsafe { sys::is_culib_present() } {
                    return Err(Refusal::NoLibrary);
                }
                // SAFETY: it was found a moment ago. The library stays open until the process ends.
                let library = unsafe { sys::culib() };
                Ok(Self { $(
                    // SAFETY: the type is that of the driver's documented interface for this name, which never changes:
                    // where it had to, the driver has another name (`_v2`).
                    $field: *unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> c_uint>($symbol.as_bytes())
                    }.map_err(|_| Refusal::MissingSymbol { name: $symbol })?,
                )+ })
            }
        }
    };
}

functions! {
    init = "cuInit"(c_uint);
    version = "cuDriverGetVersion"(*mut c_int);
    error_name = "cuGetErrorName"(c_uint, *mut *const c_char);
    device_count = "cuDeviceGetCount"(*mut c_int);
    device = "cuDeviceGet"(*mut c_int, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_uuid = "cuDeviceGetUuid_v2"(*mut [u8; 16], c_int);
    device_memory = "cuDeviceTotalMem_v2"(*mut usize, c_int);
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain"(*mut Context, c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    context_push = "cuCtxPushCurrent_v2"(Context);
    context_pop = "cuCtxPopCurrent_v2"(*mut Context);
    context_wait = "cuCtxSynchronize"();
    granularity = "cuMemGetAllocationGranularity"(*mut usize, *const Properties, c_uint);
    create = "cuMemCreate"(*mut Handle, usize, *const Properties, c_ulonglong);
    release = "cuMemRelease"(Handle);
    export = "cuMemExportToShareableHandle"(*mut c_int, Handle, c_uint, c_ulonglong);
    import = "cuMemImportFromShareableHandle"(*mut Handle, *mut c_void, c_uint);
    properties = "cuMemGetAllocationPropertiesFromHandle"(*mut Properties, Handle);
    reserve = "cuMemAddressReserve"(*mut Pointer, usize, usize, Pointer, c_ulonglong);
    free_address = "cuMemAddressFree"(Pointer, usize);
    map = "cuMemMap"(Pointer, usize, usize, Handle, c_ulonglong);
    unmap = "cuMemUnmap"(Pointer, usize);
    set_access = "cuMemSetAccess"(Pointer, usize, *const Access, usize);
    pointer_attribute = "cuPointerGetAttribute"(*mut c_void, c_int, Pointer);
    address_range = "cuMemGetAddressRange_v2"(*mut Pointer, *mut usize, Pointer);
    stream_create = "cuStreamCreate"(*mut RawStream, c_uint);
    stream_destroy = "cuStreamDestroy_v2"(RawStream);
    stream_wait = "cuStreamSynchronize"(RawStream);
    to_device = "cuMemcpyHtoDAsync_v2"(Pointer, *const c_void, usize, RawStream);
    to_host = "cuMemcpyDtoHAsync_v2"(*mut c_void, Pointer, usize, RawStream);
    host_register = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister"(*mut c_void);
    on_device = "cuMemcpyDtoDAsync_v2"(Pointer, Pointer, usize, RawStream);
}
