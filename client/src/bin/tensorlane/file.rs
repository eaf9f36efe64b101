//! The header of a safetensors file: read, proven and written. The bytes behind it are not this module's business.
//!
//! ```text
//!  u64 little-endian: length of the header | JSON: { name: { dtype, shape, data_offsets }, __metadata__ } | bytes
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tensorlane_proto::{DType, Layout, Shape};

/// Longest header: that of the format's own library.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Key of the file's own metadata.
const METADATA: &str = "__metadata__";

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    /// Where its bytes begin, from the start of the file.
    pub(crate) offset: u64,
}

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// In the order of their bytes.
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Raw {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Opens a file that is to be put. Nothing but a plain file can be one: of a pipe the end would be waited for.
pub(crate) fn open(path: &Path) -> Result<File> {
    let cannot = || format!("cannot open {}", path.display());
    let kind = fs::metadata(path).with_context(cannot)?;
    ensure!(
        !kind.is_dir(),
        "{} is a directory; put takes one safetensors file: name one that is in it",
        path.display()
    );
    ensure!(
        kind.is_file(),
        "{} is no plain file; write what it brings into one, and put that",
        path.display()
    );
    File::open(path).with_context(cannot)
}

impl Header {
    /// Reads and proves the header of an open file.
    pub(crate) fn read(file: &File, path: &Path) -> Result<Self> {
        let whole = file.metadata()?.len();
        let context = || format!("{} is not a safetensors file", path.display());
        let mut length = [0; 8];
        ensure!(whole > 0, "{}: it is empty; whoever writes it has not begun, or has failed", context());
        ensure!(whole >= 8, "{}: it has {whole} bytes, too few for any; it was cut", context());
        file.read_exact_at(&mut length, 0).with_context(context)?;
        let length = u64::from_le_bytes(length);
        // The number itself would say nothing: in another kind of file these bytes are something else.
        ensure!(
            length <= HEADER_BYTES_MAX && length <= whole - 8,
            "{}: it does not begin with the length of a header that fits into it; it is of another format, or was cut",
            context()
        );
        // At most a hundred megabytes.
        let mut json = vec![0; length as usize];
        file.read_exact_at(&mut json, 8)?;
        Self::parse(&json, 8 + length, whole).with_context(context)
    }

    /// Proves a header whose bytes begin at `start` of a file of `whole` bytes.
    fn parse(json: &[u8], start: u64, whole: u64) -> Result<Self> {
        let raw: BTreeMap<String, serde_json::Value> = serde_json::from_slice(json)
            .context("its header is not the JSON of that format; it is of another format, or was damaged: write it anew")?;
        let mut entries = Vec::with_capacity(raw.len());
        let mut metadata = BTreeMap::new();
        for (name, value) in raw {
            if name == METADATA {
                metadata = serde_json::from_value(value).context("its metadata are not texts")?;
                continue;
            }
            let raw = serde_json::from_value(value).with_context(|| format!("tensor {name:?}"))?;
            entries.push(entry(&name, &raw, start, whole).with_context(|| format!("tensor {name:?}"))?);
        }
        entries.sort_by_key(|entry| entry.offset);
        Ok(Self { entries, metadata })
    }

    /// The header of a file with these tensors, one behind the other, and where each begins.
    pub(crate) fn write(
        tensors: &[(String, Layout)],
        metadata: &BTreeMap<String, String>,
    ) -> Result<(Vec<u8>, Vec<u64>)> {
        let mut fields = serde_json::Map::new();
        if !metadata.is_empty() {
            fields.insert(METADATA.into(), serde_json::to_value(metadata)?);
        }
        let mut ends = Vec::with_capacity(tensors.len());
        let mut at = 0;
        for (name, layout) in tensors {
            let Some(dtype) = layout.dtype().safetensors_name() else {
                bail!("{name}: a safetensors file cannot hold elements of type {}", layout.dtype());
            };
            let end = at + layout.bytes();
            let raw = Raw { dtype: dtype.into(), shape: layout.shape().to_vec(), data_offsets: (at, end) };
            if fields.insert(name.clone(), serde_json::to_value(raw)?).is_some() || name == METADATA {
                bail!("two tensors of the file would have the name {name:?}; get them into two files");
            }
            ends.push(at);
            at = end;
        }
        let mut json = serde_json::to_vec(&fields)?;
        // The format wants the bytes to begin at a multiple of 8.
        json.resize(json.len().next_multiple_of(8), b' ');
        let start = 8 + json.len() as u64;
        let header = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
        Ok((header, ends.into_iter().map(|offset| start + offset).collect()))
    }
}

fn entry(name: &str, raw: &Raw, start: u64, whole: u64) -> Result<Entry> {
    let (begin, end) = raw.data_offsets;
    let inside = begin <= end && start.checked_add(end).is_some_and(|end| end <= whole);
    ensure!(
        inside,
        "its bytes {begin} to {end} are not inside the file; it was cut, or is still being written"
    );
    let layout =
        Layout::new(DType::from_safetensors(&raw.dtype)?, Shape::new(&raw.shape)?, None, Some(end - begin))?;
    Ok(Entry { name: name.to_owned(), layout, offset: start + begin })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dtype: DType, dims: &[u64]) -> Layout {
        Layout::contiguous(dtype, Shape::new(dims).unwrap()).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let tensors =
            vec![("b".to_owned(), layout(DType::BF16, &[2, 3])), ("a".to_owned(), layout(DType::F32, &[]))];
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let (header, offsets) = Header::write(&tensors, &metadata).unwrap();
        assert_eq!(header.len() % 8, 0);
        let read = Header::parse(&header[8..], header.len() as u64, header.len() as u64 + 16).unwrap();
        assert_eq!(read.metadata, metadata);
        let names: Vec<&str> = read.entries.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(offsets, [header.len() as u64, header.len() as u64 + 12]);
    }

    #[test]
    fn headers_that_lie_are_refused() {
        for (json, what) in [
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}}"#, "too few bytes"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, "backwards"),
            (r#"{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}"#, "beyond the file"),
            (r#"{"a":{"dtype":"F32","shape":[18446744073709551615,3],"data_offsets":[0,8]}}"#, "overflow"),
            (r#"{"a":{"dtype":"XYZ","shape":[2],"data_offsets":[0,8]}}"#, "no such type"),
            (r#"{"a":{"dtype":"F32"}}"#, "no shape"),
            ("[]", "no object"),
            ("", "nothing"),
        ] {
            assert!(Header::parse(json.as_bytes(), 100, 108).is_err(), "{what}");
        }
    }

    #[test]
    fn a_type_that_the_format_lacks_and_a_name_twice_cannot_be_written() {
        let none = BTreeMap::new();
        assert!(Header::write(&[("a".into(), layout(DType::I4, &[2]))], &none).is_err());
        let twice = [("a".into(), layout(DType::U8, &[2])), ("a".into(), layout(DType::U8, &[2]))];
        assert!(Header::write(&twice, &none).is_err());
    }
}
