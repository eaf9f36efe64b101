//! Names of element types in torch's words, as `meta.json` has them.

use crate::dtype::DType;

/// Types that torch names, with their names behind `torch.`.
const NAMED: [(DType, &str); 16] = [
    (DType::Bool, "bool"),
    (DType::U8, "uint8"),
    (DType::U16, "uint16"),
    (DType::U32, "uint32"),
    (DType::U64, "uint64"),
    (DType::I8, "int8"),
    (DType::I16, "int16"),
    (DType::I32, "int32"),
    (DType::I64, "int64"),
    (DType::F16, "float16"),
    (DType::BF16, "bfloat16"),
    (DType::F32, "float32"),
    (DType::F64, "float64"),
    (DType::C32, "complex32"),
    (DType::C64, "complex64"),
    (DType::C128, "complex128"),
];

/// `torch.float32`. None where tensordict has no name: its files then hold bytes.
#[must_use]
pub fn torch_name(dtype: DType) -> Option<String> {
    let (_, name) = NAMED.iter().find(|(named, _)| *named == dtype)?;
    Some(format!("torch.{name}"))
}

/// The type of `torch.float32`; none where tensordict has no such name.
#[must_use]
pub fn torch_dtype(name: &str) -> Option<DType> {
    let name = name.strip_prefix("torch.")?;
    NAMED.iter().find(|(_, named)| *named == name).map(|(dtype, _)| *dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back_and_others_are_none() {
        for (dtype, _) in NAMED {
            assert_eq!(torch_dtype(&torch_name(dtype).unwrap()), Some(dtype));
        }
        assert_eq!(torch_dtype("torch.float8_e4m3fn"), None);
        assert_eq!(torch_dtype("float32"), None);
        assert_eq!(torch_name(DType::F8E4M3), None);
    }
}
