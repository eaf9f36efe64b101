//! Type of one element of a tensor.
//!
//! The types are those of safetensors 0.8 and DLPack 1.1. They stand in one table, with their names in every
//! place where they are named, so that the wire, the files and the frameworks cannot drift apart. Nothing here
//! computes with elements: to the exchange they are bits.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The DLPack type of an element: type code, bits, lanes (`DLDataType`). Lanes are always 1 here.
pub type DlpackType = (u8, u8, u16);

macro_rules! dtypes {
    ($( $(#[doc = $doc:literal])+ $variant:ident = $code:literal, $name:literal, $bits:literal,
        safetensors $safetensors:expr, dlpack $dlcode:literal; )+) => {
        /// The type of a tensor's elements. Sub-byte types are packed without gaps, the first element in the
        /// lowest bits of the first byte (the rule of DLPack).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum DType {
            $( $(#[doc = $doc])+ $variant = $code, )+
        }

        impl DType {
            /// Every type, in the order of the wire numbers.
            pub const ALL: &'static [DType] = &[$(DType::$variant),+];

            /// The bits of one element, 1 to 128.
            pub const fn bits(self) -> u32 {
                match self { $(DType::$variant => $bits,)+ }
            }

            /// The short lower-case name, as references and the command print it.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)+ }
            }

            /// The type with this number on the wire; `None` if this release does not know it.
            pub const fn from_code(code: u16) -> Option<DType> {
                match code { $($code => Some(DType::$variant),)+ _ => None }
            }

            /// The name in a safetensors header; `None` where safetensors 0.8 has no such type.
            pub const fn safetensors_name(self) -> Option<&'static str> {
                match self { $(DType::$variant => $safetensors,)+ }
            }

            /// The type code, bits and lanes that DLPack 1.1 gives this type. Every type has them.
            pub const fn dlpack(self) -> DlpackType {
                match self { $(DType::$variant => ($dlcode, $bits, 1),)+ }
            }

            fn by_name(name: &str) -> Option<DType> {
                match name { $($name => Some(DType::$variant),)+ _ => None }
            }
        }
    };
}

dtypes! {
    /// True or false, one byte an element.
    Bool = 1, "bool", 8, safetensors Some("BOOL"), dlpack 6;
    /// Unsigned, 8 bits.
    U8 = 2, "u8", 8, safetensors Some("U8"), dlpack 1;
    /// Unsigned, 16 bits.
    U16 = 3, "u16", 16, safetensors Some("U16"), dlpack 1;
    /// Unsigned, 32 bits.
    U32 = 4, "u32", 32, safetensors Some("U32"), dlpack 1;
    /// Unsigned, 64 bits.
    U64 = 5, "u64", 64, safetensors Some("U64"), dlpack 1;
    /// Signed, 8 bits.
    I8 = 6, "i8", 8, safetensors Some("I8"), dlpack 0;
    /// Signed, 16 bits.
    I16 = 7, "i16", 16, safetensors Some("I16"), dlpack 0;
    /// Signed, 32 bits.
    I32 = 8, "i32", 32, safetensors Some("I32"), dlpack 0;
    /// Signed, 64 bits.
    I64 = 9, "i64", 64, safetensors Some("I64"), dlpack 0;
    /// IEEE half precision.
    F16 = 10, "f16", 16, safetensors Some("F16"), dlpack 2;
    /// bfloat16: the upper half of an `f32`.
    BF16 = 11, "bf16", 16, safetensors Some("BF16"), dlpack 4;
    /// IEEE single precision.
    F32 = 12, "f32", 32, safetensors Some("F32"), dlpack 2;
    /// IEEE double precision.
    F64 = 13, "f64", 64, safetensors Some("F64"), dlpack 2;
    /// Complex of two `f16`.
    C32 = 14, "c32", 32, safetensors None, dlpack 5;
    /// Complex of two `f32`.
    C64 = 15, "c64", 64, safetensors Some("C64"), dlpack 5;
    /// Complex of two `f64`.
    C128 = 16, "c128", 128, safetensors None, dlpack 5;
    /// 8-bit float e4m3fn: finite, one NaN a sign (OCP; what safetensors and torch write for e4m3).
    F8E4M3 = 17, "f8_e4m3", 8, safetensors Some("F8_E4M3"), dlpack 10;
    /// 8-bit float e5m2, with infinities (OCP).
    F8E5M2 = 18, "f8_e5m2", 8, safetensors Some("F8_E5M2"), dlpack 12;
    /// 8-bit exponent e8m0fnu: a power of two, the scale of MX blocks.
    F8E8M0 = 19, "f8_e8m0", 8, safetensors Some("F8_E8M0"), dlpack 14;
    /// 8-bit float e4m3fnuz: finite, no negative zero.
    F8E4M3Fnuz = 20, "f8_e4m3fnuz", 8, safetensors Some("F8_E4M3FNUZ"), dlpack 11;
    /// 8-bit float e5m2fnuz: finite, no negative zero.
    F8E5M2Fnuz = 21, "f8_e5m2fnuz", 8, safetensors Some("F8_E5M2FNUZ"), dlpack 13;
    /// 8-bit float e3m4, with infinities.
    F8E3M4 = 22, "f8_e3m4", 8, safetensors None, dlpack 7;
    /// 8-bit float e4m3b11fnuz: bias 11, finite, no negative zero.
    F8E4M3B11Fnuz = 23, "f8_e4m3b11fnuz", 8, safetensors None, dlpack 9;
    /// 8-bit float e4m3 with infinities (IEEE style; plain `float8_e4m3` in DLPack and ml_dtypes).
    F8E4M3Ieee = 24, "f8_e4m3_ieee", 8, safetensors None, dlpack 8;
    /// 6-bit float e2m3 (MX).
    F6E2M3 = 25, "f6_e2m3", 6, safetensors Some("F6_E2M3"), dlpack 15;
    /// 6-bit float e3m2 (MX).
    F6E3M2 = 26, "f6_e3m2", 6, safetensors Some("F6_E3M2"), dlpack 16;
    /// 4-bit float e2m1 (MX).
    F4E2M1 = 27, "f4_e2m1", 4, safetensors Some("F4"), dlpack 17;
    /// Signed, 4 bits.
    I4 = 28, "i4", 4, safetensors None, dlpack 0;
    /// Unsigned, 4 bits.
    U4 = 29, "u4", 4, safetensors None, dlpack 1;
    /// Signed, 2 bits.
    I2 = 30, "i2", 2, safetensors None, dlpack 0;
    /// Unsigned, 2 bits.
    U2 = 31, "u2", 2, safetensors None, dlpack 1;
    /// Signed, 1 bit.
    I1 = 32, "i1", 1, safetensors None, dlpack 0;
    /// Unsigned, 1 bit.
    U1 = 33, "u1", 1, safetensors None, dlpack 1;
}

/// A type that this release does not know.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DTypeError {
    /// No type has this short name.
    #[error("unknown dtype {0:?}; the names are short and lower-case: f32, bf16, u8, f8_e4m3, i4, ...")]
    Name(String),
    /// No type has this number on the wire.
    #[error("unknown dtype number {0}; the sender may be of a newer release")]
    Code(u16),
    /// No type has this safetensors name.
    #[error("unknown safetensors dtype {0:?}")]
    Safetensors(String),
    /// No type is this DLPack type.
    #[error("unknown DLPack dtype (code {code}, {bits} bits, {lanes} lanes); vector types are not supported")]
    Dlpack {
        /// `DLDataType.code`
        code: u8,
        /// `DLDataType.bits`
        bits: u8,
        /// `DLDataType.lanes`
        lanes: u16,
    },
}

impl DType {
    /// The number on the wire, never reused. 0 is "not given" there.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Returns whether elements are smaller than a byte.
    pub const fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }

    /// The bytes of one element; `None` for sub-byte types.
    pub const fn size(self) -> Option<u64> {
        if self.is_sub_byte() { None } else { Some(self.bits() as u64 / 8) }
    }

    /// The type with this name in a safetensors header.
    ///
    /// # Errors
    /// [`DTypeError::Safetensors`] if there is none.
    pub fn from_safetensors(name: &str) -> Result<DType, DTypeError> {
        let found = DType::ALL.iter().find(|dtype| dtype.safetensors_name() == Some(name));
        found.copied().ok_or_else(|| DTypeError::Safetensors(name.to_owned()))
    }

    /// The type that DLPack describes by this code, these bits and lanes.
    ///
    /// # Errors
    /// [`DTypeError::Dlpack`] if there is none.
    pub fn from_dlpack(dlpack: DlpackType) -> Result<DType, DTypeError> {
        let (code, bits, lanes) = dlpack;
        let found = DType::ALL.iter().find(|dtype| dtype.dlpack() == dlpack);
        found.copied().ok_or(DTypeError::Dlpack { code, bits, lanes })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = DTypeError;

    fn from_str(name: &str) -> Result<DType, DTypeError> {
        DType::by_name(name).ok_or_else(|| DTypeError::Name(name.to_owned()))
    }
}

impl TryFrom<u16> for DType {
    type Error = DTypeError;

    fn try_from(code: u16) -> Result<DType, DTypeError> {
        DType::from_code(code).ok_or(DTypeError::Code(code))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_type_is_found_again_by_each_of_its_names() {
        for &dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
            assert_eq!(DType::from_dlpack(dtype.dlpack()), Ok(dtype));
            if let Some(name) = dtype.safetensors_name() {
                assert_eq!(DType::from_safetensors(name), Ok(dtype));
            }
        }
    }

    #[test]
    fn no_two_types_share_a_name() {
        let count = DType::ALL.len();
        assert_eq!(DType::ALL.iter().map(|d| d.name()).collect::<HashSet<_>>().len(), count);
        assert_eq!(DType::ALL.iter().map(|d| d.dlpack()).collect::<HashSet<_>>().len(), count);
    }

    #[test]
    fn the_wire_numbers_are_dense_and_start_at_one() {
        let codes: Vec<u16> = DType::ALL.iter().map(|d| d.code()).collect();
        assert_eq!(codes, (1..=33).collect::<Vec<u16>>());
        assert_eq!(DType::from_code(0), None);
    }

    #[test]
    fn the_types_of_safetensors_are_all_here() {
        let known = "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 \
                     BF16 I32 U32 F32 C64 F64 I64 U64";
        for name in known.split_whitespace() {
            assert!(DType::from_safetensors(name).is_ok(), "{name}");
        }
        assert_eq!(DType::ALL.iter().filter(|d| d.safetensors_name().is_some()).count(), 22);
    }

    #[test]
    fn names_that_are_not_exact_are_refused() {
        for name in ["", "F32", "f32 ", "float32", "f128"] {
            assert_eq!(name.parse::<DType>(), Err(DTypeError::Name(name.to_owned())));
        }
        assert_eq!(DType::from_dlpack((2, 32, 4)), Err(DTypeError::Dlpack { code: 2, bits: 32, lanes: 4 }));
    }
}
