//! Layouts as Python writes and reads them: a short name of a dtype, a shape, strides in elements.

use std::ffi::CStr;

use pyo3::prelude::*;
use tensorlane_proto::{DType, Descriptor, Device, Layout, Metadata, Shape};

use crate::errors;

/// A contiguous tensor in host memory.
pub(crate) fn descriptor(
    py: Python<'_>,
    dtype: &str,
    shape: &[u64],
    metadata: Vec<(String, String)>,
) -> PyResult<Descriptor> {
    let refused = |why: String| errors::refuse(py, "INVALID_ARGUMENT", &why);
    let dtype: DType = dtype.parse().map_err(|error| refused(format!("{error}")))?;
    let shape = Shape::new(shape).map_err(|error| refused(error.to_string()))?;
    let layout = Layout::contiguous(dtype, shape).map_err(|error| refused(error.to_string()))?;
    let metadata = Metadata::new(metadata).map_err(|error| refused(error.to_string()))?;
    Ok(Descriptor { layout, device: Device::Host, metadata })
}

/// Shape and strides in elements, as Python's interfaces have them. Both fit: a layout is bounded by 256 TiB.
pub(crate) fn dimensions(layout: &Layout) -> (Vec<i64>, Vec<i64>) {
    let shape = layout.shape().iter().map(|&size| size as i64).collect();
    (shape, layout.effective_strides().to_vec())
}

/// Format of a dtype in the buffer protocol; none for those that it does not know.
pub(crate) fn format(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::U8 => c"B",
        DType::U16 => c"H",
        DType::U32 => c"I",
        DType::U64 => c"L",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 => c"l",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::C64 => c"Zf",
        DType::C128 => c"Zd",
        _ => return None,
    })
}

/// Format of an element's bits as an unsigned number, or its own for 16 bytes; none if it has no whole bytes.
pub(crate) fn storage(dtype: DType) -> Option<&'static CStr> {
    match dtype.size()? {
        1 => Some(c"B"),
        2 => Some(c"H"),
        4 => Some(c"I"),
        8 => Some(c"L"),
        _ => format(dtype),
    }
}

/// Metadata as Python takes it.
pub(crate) fn owned(metadata: &Metadata) -> Vec<(String, String)> {
    metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
