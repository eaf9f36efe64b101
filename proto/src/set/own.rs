//! `.tensorlane/set.json` in a directory of tensordict: true types of leaves, and the identity of a mutable set.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::dtype::{torch_dtype, torch_name};
use super::meta::TensorMeta;
use crate::dtype::DType;
use crate::layout::{Layout, Shape};

/// Directory of what tensordict does not see.
pub const OWN_DIRECTORY: &str = ".tensorlane";
/// File in it that has an [`OwnMeta`].
pub const OWN_META: &str = "set.json";

/// Content of `.tensorlane/set.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnMeta {
    /// True types of files that hold bytes to tensordict.
    #[serde(default)]
    pub leaves: Vec<OwnLeaf>,
    /// The mutable set that lies in the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutable: Option<OwnSet>,
}

/// A leaf whose type tensordict has no name for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnLeaf {
    /// Keys from the root.
    pub path: Vec<String>,
    /// Short name of its type, such as `f8_e4m3`.
    pub dtype: String,
    /// Shape in elements of that type.
    pub shape: Vec<u64>,
}

/// Identity of a mutable set, and what of it `meta.json` does not say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnSet {
    /// 128 random bits, as 32 hexadecimal digits.
    pub id: String,
    /// Name of the set.
    pub name: String,
    /// Name that the directory had: a copy or a renamed one is not this set.
    pub directory: String,
    /// Patterns of peers that may write.
    #[serde(default)]
    pub writers: Vec<String>,
    /// `none`, `process` or `disk`.
    pub durability: String,
    /// Digest, in hexadecimal digits, of the layout whose leaves and rows the notes beside it name by their numbers. None where the
    /// release that wrote it noted none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
}

/// True types of the leaves of a directory, by their keys.
#[derive(Debug)]
pub struct TrueTypes<'a>(HashMap<&'a [String], &'a OwnLeaf>);

impl OwnMeta {
    /// True types by the keys of their leaves. Made once for all leaves: there may be as many.
    #[must_use]
    pub fn true_types(&self) -> TrueTypes<'_> {
        let mut types = HashMap::with_capacity(self.leaves.len());
        for own in &self.leaves {
            types.entry(own.path.as_slice()).or_insert(own);
        }
        TrueTypes(types)
    }

    /// Description of a tensor for tensordict. One whose type it has no name for becomes bytes, and is noted here.
    pub fn described(&mut self, path: &[String], layout: &Layout, bytes_shape: Vec<u64>) -> TensorMeta {
        let shape = layout.shape().to_vec();
        if let Some(dtype) = torch_name(layout.dtype()) {
            return TensorMeta { shape, dtype };
        }
        let as_bytes = if layout.dtype().bits() == 8 { shape.clone() } else { bytes_shape };
        self.leaves.push(OwnLeaf { path: path.to_vec(), dtype: layout.dtype().name().to_owned(), shape });
        TensorMeta { shape: as_bytes, dtype: "torch.uint8".to_owned() }
    }
}

impl TrueTypes<'_> {
    /// Layout of the tensor at a path: the true one where it is noted here and the bytes are still those.
    ///
    /// # Errors
    /// Text that says which type or shape no tensor has.
    pub fn layout(&self, path: &[String], meta: &TensorMeta) -> Result<Layout, String> {
        let written = torch_dtype(&meta.dtype)
            .ok_or_else(|| format!("{:?} is no type that tensordict writes", meta.dtype))?;
        let layout = |dtype, shape: &[u64]| {
            let shape = Shape::new(shape).map_err(|error| error.to_string())?;
            Layout::contiguous(dtype, shape).map_err(|error| error.to_string())
        };
        let plain = layout(written, &meta.shape)?;
        let Some(own) = self.0.get(path) else { return Ok(plain) };
        let dtype: DType =
            own.dtype.parse().map_err(|error| format!("{OWN_DIRECTORY}/{OWN_META}: {error}"))?;
        let own = layout(dtype, &own.shape)?;
        // With another size or type, somebody wrote another tensor in its place since.
        if own.bytes() == plain.bytes() && written == DType::U8 { Ok(own) } else { Ok(plain) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_true_type_is_found_by_all_keys_of_its_leaf_and_the_first_of_two_is_meant() {
        let own = |path: &[&str], dtype: &str| OwnLeaf {
            path: path.iter().map(|key| (*key).to_owned()).collect(),
            dtype: dtype.to_owned(),
            shape: vec![4],
        };
        let leaves = vec![own(&["a", "b"], "f8_e4m3"), own(&["a", "b"], "f8_e5m2"), own(&["c"], "f64")];
        let meta = OwnMeta { leaves, mutable: None };
        let types = meta.true_types();
        let bytes = TensorMeta { shape: vec![4], dtype: "torch.uint8".to_owned() };
        let name = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(|key| (*key).to_owned()).collect();
            types.layout(&path, &bytes).map(|layout| layout.dtype().name())
        };
        assert_eq!(name(&["a", "b"]), Ok("f8_e4m3"));
        assert_eq!(name(&["a"]), Ok("u8"));
        assert_eq!(name(&["b"]), Ok("u8"));
        assert_eq!(name(&["a/b"]), Ok("u8"));
        assert_eq!(name(&["c"]), Ok("u8"), "it has other bytes");
    }

    #[test]
    fn types_and_shapes_that_no_tensor_has_are_refused_also_where_they_are_the_true_ones() {
        let own = |dtype: &str, shape: &[u64]| OwnLeaf {
            path: vec!["a".to_owned()],
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
        };
        for (leaf, shape) in [
            (own("f8_e4m3", &[1 << 40, 1 << 40]), vec![4]),
            (own("f8_e9m9", &[4]), vec![4]),
            (own("f8_e4m3", &[4]), vec![u64::MAX, 2]),
            (own("f8_e4m3", &[4]), vec![1; 65]),
        ] {
            let meta = OwnMeta { leaves: vec![leaf], mutable: None };
            let bytes = TensorMeta { shape, dtype: "torch.uint8".to_owned() };
            assert!(meta.true_types().layout(&["a".to_owned()], &bytes).is_err(), "{meta:?}");
        }
    }
}
