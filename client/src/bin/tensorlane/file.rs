//! The header of a safetensors file: read, proven and written. The bytes behind it are not this module's business.
//!
//! ```text
//!  u64 little-endian: length of the header | JSON: { __metadata__, name: { dtype, shape, data_offsets } } | bytes
//! ```
//!
//! The format's own library decides whether a header is one, and in which order tensors are written. If it refuses a
//! header, [`fault`] says which key and which offset are wrong.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use anyhow::{Context, Result, bail, ensure};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::IntoDeserializer;
use serde::de::value::Error as Unknown;
use serde::ser::{Serialize, SerializeMap, Serializer};
use tensorlane_proto::{DType, Layout, Shape};

use crate::fault;
use crate::source::Source;

/// Longest header, in bytes: that of the format's own library. Reading one takes some times as much memory.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Key of the file's own metadata.
pub(crate) const METADATA: &str = "__metadata__";

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    /// Offset of its bytes from the start of the file.
    pub(crate) offset: u64,
}

/// Contents of a file's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// In the order of their bytes.
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Header {
    /// Reads and proves the header of a file.
    pub(crate) fn read(source: &Source) -> Result<Self> {
        let whole = source.bytes();
        let context = || format!("{} is not a safetensors file", source.path().display());
        let mut length = [0; 8];
        ensure!(whole > 0, "{}: it is empty; whoever writes it has not begun, or has failed", context());
        ensure!(whole >= 8, "{}: it has {whole} bytes, too few for any; it was cut", context());
        source.read(&mut length, 0)?;
        let length = u64::from_le_bytes(length);
        // The number itself would say nothing: in another kind of file these bytes are something else.
        ensure!(
            length <= whole - 8,
            "{}: it does not begin with the length of a header that fits into it; it is of another format, or was cut",
            context()
        );
        ensure!(
            length <= HEADER_BYTES_MAX,
            "{}: its header would have {length} bytes, and the format has {HEADER_BYTES_MAX} at most; it is of another \
             format, or its tensors belong into several files",
            context()
        );
        // At most a hundred megabytes.
        let mut json = vec![0; length as usize];
        source.read(&mut json, 8)?;
        Self::parse(&json, whole).with_context(context)
    }

    /// Proves a header that stands behind the 8 bytes of its length, in a file of `whole` bytes.
    pub(crate) fn parse(json: &[u8], whole: u64) -> Result<Self> {
        let start = 8 + json.len() as u64;
        let held = whole.saturating_sub(start);
        let known = match serde_json::from_slice::<Metadata>(json) {
            Ok(known) if known.data_len() as u64 == held => known,
            Ok(_) => bail!(fault::find(json, held, "its tensors do not cover its bytes")),
            Err(error) => bail!(fault::find(json, held, &error.to_string())),
        };
        let entry = |name: String| {
            let info = known.info(&name).with_context(|| format!("tensor {name:?}"))?;
            let layout = layout(info).with_context(|| format!("tensor {name:?}"))?;
            Ok(Entry { layout, offset: start + info.data_offsets.0 as u64, name })
        };
        let mut entries = known.offset_keys().into_iter().map(entry).collect::<Result<Vec<Entry>>>()?;
        // Of tensors without bytes many may begin at one offset.
        entries.sort_by(|one, other| {
            let of = |entry: &Entry| (entry.offset, entry.layout.bytes());
            of(one).cmp(&of(other)).then_with(|| one.name.cmp(&other.name))
        });
        let metadata = known.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Self { entries, metadata })
    }

    /// The beginning of a file that holds these tensors one behind the other, up to their bytes. Tensors [in
    /// order](order) make the file that the format's own library would write.
    pub(crate) fn write(tensors: &[(&str, &Layout)], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>> {
        let mut names = HashSet::new();
        let mut infos = Vec::with_capacity(tensors.len());
        let mut at = 0;
        for &(name, layout) in tensors {
            let info = info(layout, at).with_context(|| name.to_owned())?;
            if !names.insert(name) || name == METADATA {
                bail!("two tensors of the file would have the name {name:?}; get them into two files");
            }
            at = info.data_offsets.1;
            infos.push((name, info));
        }
        let mut json = serde_json::to_vec(&Written { metadata, infos: &infos })?;
        // Bytes of every type are aligned then: the file begins with 8 more, and the largest elements have 8.
        json.resize(json.len().next_multiple_of(8), b' ');
        ensure!(
            json.len() as u64 <= HEADER_BYTES_MAX,
            "its header would have {} bytes, more than the {HEADER_BYTES_MAX} of the format; get the tensors into several files",
            json.len()
        );
        Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
    }
}

/// Sort key of a tensor in a file: those with the largest elements come first, then by name.
pub(crate) fn order<'a>(name: &'a str, layout: &Layout) -> (Reverse<Option<Dtype>>, &'a str) {
    (Reverse(dtype(layout.dtype())), name)
}

/// The type in the words of the format's own library, which sort by alignment; none if it has no such type.
fn dtype(of: DType) -> Option<Dtype> {
    use serde::Deserialize;
    let name: serde::de::value::StrDeserializer<'_, Unknown> = of.safetensors_name()?.into_deserializer();
    Dtype::deserialize(name).ok()
}

fn layout(of: &TensorInfo) -> Result<Layout> {
    let shape: Vec<u64> = of.shape.iter().map(|&size| size as u64).collect();
    let dtype = DType::from_safetensors(&of.dtype.to_string())?;
    let (begin, end) = of.data_offsets;
    Ok(Layout::new(dtype, Shape::new(&shape)?, None, Some((end - begin) as u64))?)
}

/// Describes a tensor for the header; its bytes begin at `at`, from the end of the header.
fn info(layout: &Layout, at: usize) -> Result<TensorInfo> {
    let Some(dtype) = dtype(layout.dtype()) else {
        bail!("a safetensors file cannot hold elements of type {}", layout.dtype());
    };
    let bits = u128::from(layout.elements()) * u128::from(layout.dtype().bits());
    ensure!(
        bits.is_multiple_of(8),
        "a safetensors file cannot hold {layout}: its {bits} bits are no whole number of bytes"
    );
    let shape = layout.shape().iter().map(|&size| usize::try_from(size)).collect::<Result<_, _>>()?;
    let end = usize::try_from(layout.bytes()).ok().and_then(|bytes| at.checked_add(bytes));
    Ok(TensorInfo { dtype, shape, data_offsets: (at, end.context("the file would be too large")?) })
}

/// The JSON of a header, in the order of the format's own library.
struct Written<'a> {
    metadata: &'a BTreeMap<String, String>,
    infos: &'a [(&'a str, TensorInfo)],
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for (name, info) in self.infos {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;
