//! Tensors as memory for other libraries: the buffer protocol and DLPack. The only unsafe code of this crate.
//!
//! Views hold what they show: a [`Shown`] goes with each view and is dropped with it, from whichever thread and
//! without the interpreter's lock. Nothing here makes a Rust reference into shared memory.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};
use tensorlane_client::gpu::Stream;
use tensorlane_client::{Error, OwnView, Reservation, Tensor};

use crate::dlpack::{
    CPU, DataType, Device, DlTensor, Exported, IS_COPIED, MAJOR, RANK_MAX, READ_ONLY, Seen, UNVERSIONED_NAME,
    Unversioned, VERSIONED_NAME, Versioned, data_type,
};
use crate::errors;
use crate::held::{Acquired, Held, OnDevice};
use crate::layout::{dimensions, format, owned, storage};

/// Tensors from here on are mapped a second time where a library may write them; below, a copy costs less.
const MAP_FROM: usize = 128 << 10;

/// Place of tensors without bytes.
static NOWHERE: Line = Line([0; 64]);

/// A line of the cache, to align copies as numerical libraries like them.
#[repr(align(64))]
#[derive(Clone)]
struct Line([u8; 64]);

/// A leased tensor. Views of it hold the lease beyond it.
#[pyclass(subclass, frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Memory {
    held: Mutex<Option<Held>>,
}

#[pymethods]
impl Memory {
    #[new]
    fn new(acquired: &Acquired) -> PyResult<Self> {
        Ok(Self { held: Mutex::new(Some(acquired.take()?)) })
    }

    /// Gives the tensor up. Arrays that were made of it keep it until the last of them is gone.
    fn release(&self) {
        self.held.lock().take();
    }

    /// Returns whether the tensor was given up.
    #[getter]
    fn released(&self) -> bool {
        self.held.lock().is_none()
    }

    #[getter]
    fn _layout(&self) -> PyResult<(&'static str, Vec<i64>, Vec<i64>, u64)> {
        let held = self.held()?;
        let layout = &held.descriptor().layout;
        let (shape, strides) = dimensions(layout);
        Ok((layout.dtype().name(), shape, strides, layout.packed_bytes()))
    }

    #[getter]
    fn _metadata(&self) -> PyResult<Vec<(String, String)>> {
        Ok(owned(&self.held()?.descriptor().metadata))
    }

    #[getter]
    fn _route(&self) -> PyResult<String> {
        Ok(self.held()?.route())
    }

    /// The bits of the elements, without a word of what they mean.
    fn _raw(&self) -> PyResult<Raw> {
        Ok(Raw(self.on_host()?))
    }

    /// The tensor where it lies in memory of a GPU.
    fn _on_device(&self) -> PyResult<OnDevice> {
        self.held()?.on_device()
    }

    /// The elements, copied row-major and without gaps.
    fn _bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let tensor = self.on_host()?;
        let bytes = py.detach(|| tensor.to_vec());
        Ok(PyBytes::new(py, &bytes))
    }

    /// A DLPack capsule. `shared` shows the very bytes, to be read only; else they are the taker's own, to be written.
    /// `marked` says in it that they are not to be written. Bits stand for elements where `bits` asks for that, and few bytes are
    /// mapped, too, where `mapped` does.
    #[pyo3(signature = (versioned, own, marked, bits, mapped = false))]
    fn _capsule<'py>(
        &self,
        py: Python<'py>,
        versioned: bool,
        own: Own,
        marked: bool,
        bits: bool,
        mapped: bool,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let tensor = self.on_host()?;
        let map_from = if mapped { 0 } else { MAP_FROM };
        let shown =
            py.detach(|| Shown::new(tensor, own, map_from)).map_err(|error| errors::raise(py, &error))?;
        capsule(py, shown.exported(marked, bits), versioned)
    }

    /// # Safety
    /// Called by Python, with a buffer to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let tensor = slf.get().on_host()?;
        let dtype = tensor.descriptor().layout.dtype();
        let format = format(dtype).ok_or_else(|| {
            PyBufferError::new_err(format!("no buffer has elements of {dtype}; use .numpy() or .torch()"))
        })?;
        // SAFETY: Python's promise, handed on.
        unsafe { fill(view, flags, slf.into_any(), tensor, format) }
    }

    /// # Safety
    /// Called by Python, with a buffer that was filled above.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python's promise, handed on.
        unsafe { empty(view) };
    }
}

impl Memory {
    fn held(&self) -> PyResult<Held> {
        let released = || PyBufferError::new_err("this tensor was released; get it again");
        self.held.lock().clone().ok_or_else(released)
    }

    pub(crate) fn on_host(&self) -> PyResult<Arc<Tensor>> {
        self.held()?.on_host()
    }
}

/// A tensor's bits as unsigned numbers, for types of elements that buffers do not know.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Raw(Arc<Tensor>);

#[pymethods]
impl Raw {
    /// # Safety
    /// Called by Python, with a buffer to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let tensor = Arc::clone(&slf.get().0);
        let dtype = tensor.descriptor().layout.dtype();
        let format = storage(dtype)
            .ok_or_else(|| PyBufferError::new_err(format!("elements of {dtype} have no whole bytes")))?;
        // SAFETY: Python's promise, handed on.
        unsafe { fill(view, flags, slf.into_any(), tensor, format) }
    }

    /// # Safety
    /// Called by Python, with a buffer that was filled above.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python's promise, handed on.
        unsafe { empty(view) };
    }
}

/// Room for a tensor, as a buffer of bytes to write. Sealed when no view of it is left.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Block {
    /// Locked without the interpreter's lock while bytes are copied, and so perhaps by another thread in the instant of a fork.
    reservation: Mutex<Option<Reservation>>,
    views: AtomicUsize,
    process: u32,
}

#[pymethods]
impl Block {
    /// # Safety
    /// Called by Python, with a buffer to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let block = slf.get();
        block.check(slf.py())?;
        let mut reservation = block.reservation.lock();
        let write = reservation.as_mut().ok_or_else(ended)?.write();
        let (start, len) = write.map_or((nowhere(), 0), |write| (write.as_mut_ptr(), write.len()));
        // SAFETY: Python gives a buffer to fill. The bytes are mapped for writing and lie where they are while the reservation
        // does, which is not taken while a view is counted; `obj` keeps the block alive as long.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                start.cast::<c_void>(),
                len as ffi::Py_ssize_t,
                0,
                flags,
            )
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        block.views.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Writes bytes at an offset, with all cores.
    fn copy_from(&self, py: Python<'_>, offset: u64, bytes: PyBuffer<u8>) -> PyResult<()> {
        self.check(py)?;
        let copied = with_bytes(py, &[bytes], |bytes| {
            let mut reservation = self.reservation.lock();
            let to = reservation.as_mut()?;
            Some(bytes.iter().try_for_each(|from| to.copy_from(offset, from)))
        })?;
        copied.ok_or_else(ended)?.map_err(|error| errors::raise(py, &error))
    }

    /// # Safety
    /// Called by Python, once for each buffer that was filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Block {
    pub(crate) fn new(reservation: Reservation) -> Self {
        let (reservation, process) = (Mutex::new(Some(reservation)), std::process::id());
        Self { reservation, views: AtomicUsize::new(0), process }
    }

    /// Refuses a forked child, before it would wait for the lock. Views that it inherited stay.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(errors::raise(py, &Error::Forked)),
        }
    }

    /// The reservation, of which no view is left.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Reservation> {
        self.check(py)?;
        let mut reservation = self.reservation.lock();
        match self.views.load(Ordering::Acquire) {
            0 => reservation.take().ok_or_else(|| PyBufferError::new_err("this block was sealed before")),
            views => Err(PyBufferError::new_err(format!(
                "{views} arrays still write this block; drop them before it is sealed"
            ))),
        }
    }
}

fn ended() -> PyErr {
    PyBufferError::new_err("this block was sealed or given up; reserve another one")
}

/// Runs `work` with the bytes of buffers, without the interpreter's lock.
pub(crate) fn with_bytes<R: Send>(
    py: Python<'_>,
    buffers: &[PyBuffer<u8>],
    work: impl FnOnce(&[&[u8]]) -> R + Send,
) -> PyResult<R> {
    if !buffers.iter().all(|buffer| buffer.is_c_contiguous()) {
        return Err(PyBufferError::new_err("a buffer is not contiguous; copy it first"));
    }
    let of = |buffer: &PyBuffer<u8>| {
        let len = buffer.len_bytes();
        let start = if len == 0 { nowhere() } else { buffer.buf_ptr().cast::<u8>() };
        // SAFETY: the buffer is contiguous, holds so many bytes and is exported until `buffers` are dropped, after this call. A
        // caller that writes the array from another thread meanwhile stores a mixture, as it does with numpy; nothing depends on
        // the values.
        unsafe { std::slice::from_raw_parts(start, len) }
    };
    let bytes: Vec<&[u8]> = buffers.iter().map(of).collect();
    Ok(py.detach(|| work(&bytes)))
}

/// Owner of the bytes of a view: the taker, or everybody.
#[derive(Clone, Copy, PartialEq, Eq, FromPyObject)]
pub(crate) struct Own(bool);

/// Bytes, and what keeps them where they are.
enum Bytes {
    Shared,
    Mapped(OwnView),
    Copied(Vec<Line>),
}

/// Bytes that a view shows, and all that it holds.
struct Shown {
    // In the order of dropping: a private map ends before the lease.
    bytes: Bytes,
    tensor: Arc<Tensor>,
    shape: Vec<i64>,
    /// In elements.
    strides: Vec<i64>,
}

// SAFETY: a tensor is shared by threads, maps and copies are owned.
unsafe impl Send for Shown {}

impl Shown {
    fn new(tensor: Arc<Tensor>, Own(own): Own, map_from: usize) -> tensorlane_client::Result<Self> {
        let layout = &tensor.descriptor().layout;
        let (shape, strides) = dimensions(layout);
        let bytes = match own {
            false => Bytes::Shared,
            true if tensor.len() >= map_from => tensor.own()?.map_or(Bytes::Shared, Bytes::Mapped),
            true => Bytes::Copied(copied(&tensor)),
        };
        if let Bytes::Mapped(own) = &bytes {
            own.map().populate();
        }
        let strides = match bytes {
            Bytes::Copied(_) => dimensions(&layout.packed()).1,
            _ => strides,
        };
        Ok(Self { bytes, tensor, shape, strides })
    }

    /// Export for a capsule. `marked` says there that nobody is to write.
    fn exported(self, marked: bool, bits: bool) -> Exported {
        let dtype = data_type(self.tensor.descriptor().layout.dtype(), bits);
        let is_shared = matches!(self.bytes, Bytes::Shared);
        Exported {
            address: self.start() as u64,
            device: (CPU, 0),
            dtype,
            shape: self.shape.clone(),
            strides: self.strides.clone(),
            flags: if marked || is_shared { READ_ONLY } else { IS_COPIED },
            keeps: Box::new(self),
        }
    }

    fn start(&self) -> *mut u8 {
        match &self.bytes {
            Bytes::Shared => self.tensor.view().map_or(nowhere(), |view| view.as_ptr().cast_mut()),
            Bytes::Mapped(own) => own.map().as_ptr(),
            Bytes::Copied(lines) if lines.is_empty() => nowhere(),
            Bytes::Copied(lines) => lines.as_ptr().cast::<u8>().cast_mut(),
        }
    }
}

fn nowhere() -> *mut u8 {
    NOWHERE.0.as_ptr().cast_mut()
}

/// The elements, row-major, at an address that is a multiple of 64.
fn copied(tensor: &Tensor) -> Vec<Line> {
    let len = tensor.packed_len();
    let mut lines = vec![Line([0; 64]); len.div_ceil(64)];
    // SAFETY: the lines have no gaps between them and at least `len` bytes, and are borrowed alone.
    let bytes = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), len) };
    tensor.copy_to(bytes).expect("the length is that of the elements");
    lines
}

/// Things that go with a filled buffer.
struct Filled {
    shown: Shown,
    /// In bytes.
    strides: Vec<i64>,
}

/// Fills a buffer with the very bytes of a tensor, to be read.
///
/// # Safety
/// `view` is a buffer of Python's to be filled.
unsafe fn fill(
    view: *mut ffi::Py_buffer,
    flags: c_int,
    exporter: Bound<'_, PyAny>,
    tensor: Arc<Tensor>,
    format: &'static CStr,
) -> PyResult<()> {
    let asks = |flag: c_int| flags & flag == flag;
    let refused = |why: &'static str| Err(PyBufferError::new_err(why));
    let layout = tensor.descriptor().layout.clone();
    if asks(ffi::PyBUF_WRITABLE) {
        return refused("tensors are shared and cannot be written; use .torch(), or a copy");
    }
    let columns_first = asks(ffi::PyBUF_F_CONTIGUOUS) && layout.shape().rank() > 1;
    // Each of them has the bits of strides, too.
    let dense =
        [ffi::PyBUF_C_CONTIGUOUS, ffi::PyBUF_F_CONTIGUOUS, ffi::PyBUF_ANY_CONTIGUOUS].into_iter().any(asks);
    if columns_first || !(layout.is_contiguous() || (asks(ffi::PyBUF_STRIDES) && !dense)) {
        return refused("the elements do not lie in the order that is asked for; use .numpy()");
    }
    let itemsize = layout.dtype().size().unwrap_or(1) as i64;
    let shown = Shown::new(tensor, Own(false), MAP_FROM)
        .map_err(|error| PyBufferError::new_err(error.to_string()))?;
    let strides = shown.strides.iter().map(|stride| stride * itemsize).collect();
    let filled = Box::new(Filled { shown, strides });
    let or_null = |asked: bool, values: &[i64]| {
        if asked && !values.is_empty() { values.as_ptr().cast_mut().cast() } else { ptr::null_mut() }
    };
    // SAFETY: Python gives a buffer to fill. All pointers are into `filled`, which lives behind `internal` until the buffer is
    // released, and into the tensor, which it holds. Nobody writes through `buf`: the buffer is read-only.
    unsafe {
        (*view).buf = filled.shown.start().cast::<c_void>();
        (*view).len = layout.packed_bytes() as ffi::Py_ssize_t;
        (*view).readonly = 1;
        (*view).itemsize = itemsize as ffi::Py_ssize_t;
        (*view).format = if asks(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
        (*view).ndim = filled.shown.shape.len() as c_int;
        (*view).shape = or_null(asks(ffi::PyBUF_ND), &filled.shown.shape);
        (*view).strides = or_null(asks(ffi::PyBUF_STRIDES), &filled.strides);
        (*view).suboffsets = ptr::null_mut();
        (*view).internal = Box::into_raw(filled).cast::<c_void>();
        (*view).obj = exporter.into_ptr();
    }
    Ok(())
}

/// Lets go of what a buffer shows.
///
/// # Safety
/// `view` was filled by [`fill`] and is released now, once.
unsafe fn empty(view: *mut ffi::Py_buffer) {
    // SAFETY: `internal` is the box that `fill` put there, and Python releases a buffer once.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Filled>()) });
}

/// A capsule that holds what it shows until its taker deletes it, or it is dropped untaken.
pub(crate) fn capsule(py: Python<'_>, exported: Exported, versioned: bool) -> PyResult<Bound<'_, PyCapsule>> {
    // On the heap, where its vectors stay.
    let exported = Box::new(exported);
    let (flags, Exported { device: (kind, id), dtype: DataType { code, bits, lanes }, .. }) =
        (exported.flags, &*exported);
    let tensor = DlTensor {
        data: exported.address as *mut c_void,
        device: Device { kind: *kind, id: *id },
        ndim: exported.shape.len() as i32,
        dtype: DataType { code: *code, bits: *bits, lanes: *lanes },
        shape: exported.shape.as_ptr().cast_mut(),
        strides: exported.strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    let context = Box::into_raw(exported).cast();
    let (pointer, name, destructor): (*mut c_void, _, ffi::PyCapsule_Destructor) = if versioned {
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut Versioned));
        let managed = Versioned { major: 1, minor: 1, context, deleter, flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), VERSIONED_NAME, drop_versioned)
    } else {
        let deleter = Some(delete_unversioned as unsafe extern "C" fn(*mut Unversioned));
        (
            Box::into_raw(Box::new(Unversioned { tensor, context, deleter })).cast(),
            UNVERSIONED_NAME,
            drop_unversioned,
        )
    };
    let pointer = NonNull::new(pointer).expect("a box is somewhere");
    // SAFETY: the pointer is to the struct that the name stands for, and lives until its deleter is called: by the destructor,
    // or by the taker, which renames the capsule first.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, name, Some(destructor)) }
}

/// # Safety
/// Called once, by the taker or by the destructor of a capsule that nobody took.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: both boxes are those that `capsule` made.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.context.cast::<Exported>()) });
}

/// # Safety
/// As [`delete_versioned`].
unsafe extern "C" fn delete_unversioned(managed: *mut Unversioned) {
    // SAFETY: both boxes are those that `capsule` made.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.context.cast::<Exported>()) });
}

/// # Safety
/// Called by Python with a capsule of ours that ends.
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python's promise. A capsule that was taken has another name, and then its content is the taker's.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        }
    }
}

/// # Safety
/// As [`drop_versioned`].
unsafe extern "C" fn drop_unversioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `drop_versioned`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNVERSIONED_NAME.as_ptr()) == 1 {
            delete_unversioned(ffi::PyCapsule_GetPointer(capsule, UNVERSIONED_NAME.as_ptr()).cast());
        }
    }
}

/// Reads what a capsule of another library shows. The capsule keeps it, and is not taken.
pub(crate) fn seen(capsule: &Bound<'_, PyCapsule>) -> PyResult<Seen> {
    let broken = |why: &str| PyBufferError::new_err(format!("this DLPack capsule {why}"));
    let at = |name: &'static CStr| {
        // SAFETY: it is a capsule. One of another name, as of one that was taken before, gives no pointer.
        let valid = unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } == 1;
        // SAFETY: as above; the name is that of the capsule.
        valid.then(|| unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) })
    };
    // SAFETY: a capsule of that name holds this structure, by DLPack's rule, and keeps it until it is taken. It is only read, with
    // the interpreter's lock held. Its version stands at the same place in all of them.
    let (tensor, flags) = unsafe {
        if let Some(managed) = at(VERSIONED_NAME) {
            let managed = managed.cast::<Versioned>();
            if (*managed).major != MAJOR {
                return Err(broken(&format!("is of version {}, and {MAJOR} is read", (*managed).major)));
            }
            (&raw const (*managed).tensor, (*managed).flags)
        } else if let Some(managed) = at(UNVERSIONED_NAME) {
            (&raw const (*managed.cast::<Unversioned>()).tensor, 0)
        } else {
            return Err(broken("was taken before, or is none"));
        }
    };
    // SAFETY: as above.
    let tensor = unsafe { &*tensor };
    let rank = usize::try_from(tensor.ndim).ok().filter(|rank| *rank <= RANK_MAX);
    let rank = rank.ok_or_else(|| broken(&format!("has {} dimensions", tensor.ndim)))?;
    let values = |start: *mut i64| {
        // SAFETY: where it is not null it has as many numbers as there are dimensions, by DLPack's rule.
        (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start, rank) }.to_vec())
    };
    let shape = if rank == 0 { Some(Vec::new()) } else { values(tensor.shape) };
    let DataType { code, bits, lanes } = tensor.dtype;
    Ok(Seen {
        address: (tensor.data as u64).wrapping_add(tensor.byte_offset),
        device: (tensor.device.kind, tensor.device.id),
        dtype: (code, bits, lanes),
        shape: shape.ok_or_else(|| broken("has no shape"))?,
        strides: if rank == 0 { None } else { values(tensor.strides) },
        read_only: flags & READ_ONLY != 0,
    })
}

/// A stream of a library of this process, by its handle.
pub(crate) fn stream(handle: u64) -> Stream {
    // SAFETY: whoever made the array says so of its stream, in the interfaces by which arrays are shown; the array is held by the
    // caller, and with it the stream, until the call has returned.
    unsafe { Stream::from_raw(handle) }
}
