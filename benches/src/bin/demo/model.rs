//! A model from a file of safetensors.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};
use safetensors::SafeTensors;
use tensorlane_proto::{DType, Descriptor, Layout, Shape};

/// The tensors of a file, and their bytes.
#[derive(Debug)]
pub(crate) struct Model {
    file: Vec<u8>,
    pub(crate) tensors: Vec<ModelTensor>,
}

/// Tensor of the model.
#[derive(Debug)]
pub(crate) struct ModelTensor {
    /// Name in the file.
    pub(crate) name: String,
    pub(crate) descriptor: Descriptor,
    /// Of its bytes.
    pub(crate) crc32c: u32,
    place: Range<usize>,
}

impl Model {
    /// Reads a file whole.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(file).with_context(|| format!("{} is no file of safetensors", path.display()))
    }

    fn parse(file: Vec<u8>) -> Result<Self> {
        let parsed = SafeTensors::deserialize(&file)?;
        let mut tensors = Vec::new();
        for (name, view) in parsed.iter() {
            let dtype = DType::from_safetensors(&format!("{:?}", view.dtype()))?;
            let shape: Vec<u64> = view.shape().iter().map(|size| *size as u64).collect();
            let bytes = view.data();
            let layout = Layout::new(dtype, Shape::new(&shape)?, None, Some(bytes.len() as u64))?;
            // All data lies in the file that was read.
            let start = bytes.as_ptr().addr() - file.as_ptr().addr();
            tensors.push(ModelTensor {
                name: name.to_owned(),
                descriptor: Descriptor::host(layout),
                crc32c: crc32c::crc32c(bytes),
                place: start..start + bytes.len(),
            });
        }
        if tensors.is_empty() {
            bail!("there is no tensor in it");
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { file, tensors })
    }

    /// The bytes of one of its tensors.
    pub(crate) fn bytes(&self, tensor: &ModelTensor) -> &[u8] {
        &self.file[tensor.place.clone()]
    }

    /// Bytes of all tensors.
    pub(crate) fn total(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.descriptor.layout.bytes()).sum()
    }

    /// The largest matrix: the embeddings, in a language model.
    pub(crate) fn largest_matrix(&self) -> Option<&ModelTensor> {
        let matrices = self.tensors.iter().filter(|tensor| tensor.sizes().len() == 2);
        matrices.max_by_key(|tensor| tensor.descriptor.layout.bytes())
    }
}

impl ModelTensor {
    /// The sizes of its dimensions.
    pub(crate) fn sizes(&self) -> &[u64] {
        self.descriptor.layout.shape()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(data);
        file
    }

    #[test]
    fn tensors_keep_their_names_types_shapes_and_bytes() {
        let header = r#"{"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"a":{"dtype":"U8","shape":[],"data_offsets":[12,13]}}"#;
        let data: Vec<u8> = (0..13).collect();
        let model = Model::parse(file(header, &data)).unwrap();
        let [a, b] = &model.tensors[..] else { panic!("{model:?}") };
        assert_eq!((a.name.as_str(), a.sizes(), model.bytes(a)), ("a", &[][..], &[12][..]));
        assert_eq!((b.name.as_str(), b.sizes(), model.bytes(b)), ("b", &[2, 3][..], &data[..12]));
        assert_eq!(b.descriptor.layout.dtype(), DType::BF16);
        assert_eq!((model.total(), model.largest_matrix().unwrap().name.as_str()), (13, "b"));
        assert_eq!(b.crc32c, crc32c::crc32c(&data[..12]));
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        assert!(Model::parse(b"PK\x03\x04 not a model at all".to_vec()).is_err());
        assert!(Model::parse(file("{}", &[])).is_err());
    }
}
