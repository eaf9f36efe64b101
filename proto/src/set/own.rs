//! `.tensorlane/set.json` in a directory of tensordict: true types of leaves, and the identity of a mutable set.

use serde::{Deserialize, Serialize};

use super::dtype::{torch_dtype, torch_name};
use super::meta::TensorMeta;
use crate::dtype::DType;
use crate::layout::{Layout, Shape};

/// File of each level of a directory of tensordict, which has a [`Level`](super::Level).
pub const LEVEL_META: &str = "meta.json";
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
    /// `none` or `process`.
    pub durability: String,
}

impl OwnMeta {
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
        let Some(own) = self.leaves.iter().find(|own| own.path == path) else { return Ok(plain) };
        let dtype: DType =
            own.dtype.parse().map_err(|error| format!("{OWN_DIRECTORY}/{OWN_META}: {error}"))?;
        let own = layout(dtype, &own.shape)?;
        // With another size or type, somebody wrote another tensor in its place since.
        if own.bytes() == plain.bytes() && written == DType::U8 { Ok(own) } else { Ok(plain) }
    }
}
