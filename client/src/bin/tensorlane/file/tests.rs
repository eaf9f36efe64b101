//! Headers that the format's own library takes and refuses, beside what is made of them here.

use std::collections::HashMap;

use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use tensorlane_fuzz::{Target, fuzz};
use tensorlane_memory::heap::MeteringAllocator;

use super::*;

fn layout(dtype: DType, dims: &[u64]) -> Layout {
    Layout::contiguous(dtype, Shape::new(dims).unwrap()).unwrap()
}

fn file(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![7; data]].concat()
}

fn parsed(file: &[u8]) -> Result<Header> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    Header::parse(&file[8..8 + length], file.len() as u64)
}

/// Why a file is refused, here and by the format's own library.
fn refused(header: &str, data: usize) -> String {
    let file = file(header, data);
    assert!(SafeTensors::deserialize(&file).is_err(), "{header}");
    format!("{:#}", parsed(&file).unwrap_err())
}

#[test]
fn each_fault_is_told_with_its_key_and_offset() {
    for (header, data, told) in [
        (
            r#"{"embed":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"head":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#,
            16,
            r#"tensor "head": its bytes 0 to 16 begin inside of those of "embed", which are 0 to 16"#,
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}"#,
            24,
            r#"tensor "b": its bytes 8 to 24 begin inside of those of "a", which are 0 to 16"#,
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[32,48]}}"#,
            48,
            r#"bytes 16 to 32, before those of "b", belong to no tensor"#,
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#,
            32,
            r#"bytes 16 to 32, behind those of "a", belong to no tensor"#,
        ),
        (r#"{}"#, 3, "bytes 0 to 3 belong to no tensor"),
        (
            "{\"odd\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}\0\0",
            16,
            "filled up with 2 zero bytes behind the JSON, from byte 65 of the file on",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}}"#,
            7,
            "bytes 0 to 7 are 7; F32 of shape [2] has 8",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
            8,
            r#""a": its bytes begin at 8 and end before, at 0"#,
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}"#,
            8,
            "0 to 36 are not inside the file, which holds 8",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[18446744073709551615,3],"data_offsets":[0,8]}}"#,
            8,
            r#"tensor "a": a shape of [18446744073709551615, 3] is larger"#,
        ),
        (
            r#"{"x":{"dtype":"F4","shape":[3,3],"data_offsets":[0,5]}}"#,
            5,
            r#"tensor "x": F4 of shape [3, 3] has 36 bits"#,
        ),
        (
            r#"{"a":{"dtype":"XYZ","shape":[2],"data_offsets":[0,8]}}"#,
            8,
            r#"tensor "a": unknown variant `XYZ`"#,
        ),
        (r#"{"a":{"dtype":"F32"}}"#, 8, r#"tensor "a": missing field `shape`"#),
        (
            r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}"#,
            8,
            r#"tensor "a": invalid value: integer `-1`"#,
        ),
        (r#"{"__metadata__":{"alpha":null}}"#, 0, r#"its __metadata__ has null at the key "alpha""#),
        (r#"{"__metadata__":{"alpha":8.0}}"#, 0, r#"its __metadata__ has a number at the key "alpha""#),
        (
            r#"{"__metadata__":{"config":{"alpha":"8"}}}"#,
            0,
            r#"its __metadata__ has an object at the key "config""#,
        ),
        (r#"{"__metadata__":[]}"#, 0, "its __metadata__ is a list"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#, 0, "duplicate field `__metadata__`"),
        ("[]", 0, "its header is a list, and not an object"),
        ("", 0, "its header is not the JSON of that format"),
    ] {
        let said = refused(header, data);
        assert!(said.contains(told), "{header}: {said}");
    }
}

#[test]
fn a_name_of_a_fault_shows_its_control_characters() {
    let said = refused(r#"{"\u001b[2J":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}}"#, 7);
    assert!(said.contains(r#"tensor "\u{1b}[2J""#), "{said}");
}

#[test]
fn metadata_may_be_null_as_a_whole_or_empty() {
    for header in [r#"{"__metadata__":null}"#, r#"{"__metadata__":{}}"#, "  {}\t\r\n"] {
        assert_eq!(
            parsed(&file(header, 0)).unwrap(),
            Header { entries: Vec::new(), metadata: BTreeMap::new() }
        );
    }
}

#[test]
fn what_the_format_lacks_cannot_be_written() {
    let none = BTreeMap::new();
    let told = |tensors: &[(&str, &Layout)]| format!("{:#}", Header::write(tensors, &none).unwrap_err());
    assert!(told(&[("a", &layout(DType::I4, &[2]))]).contains("cannot hold elements of type i4"));
    assert!(
        told(&[("a", &layout(DType::F4E2M1, &[3, 3]))]).contains("its 36 bits are no whole number of bytes")
    );
    let bytes = layout(DType::U8, &[2]);
    assert!(told(&[("a", &bytes), ("a", &bytes)]).contains("would have the name \"a\""));
    assert!(told(&[(METADATA, &bytes)]).contains("__metadata__"));
}

/// Bytes of memory for each byte of JSON: a map of one entry in seven bytes has a node with room for eleven. Where a header is
/// refused it is read again, to say why.
const JSON_TIMES: usize = 512;

#[test]
fn mutated_headers_are_those_of_a_file_or_refused_within_their_memory() {
    let whole = r#"{"__metadata__":{"a":"b"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
    let two = r#"{"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}"#;
    let corpus = [whole, two].map(|header| file(header, 16)).into();
    let meter = MeteringAllocator::peak_of;
    let target = Target { name: "safetensors", corpus, times: JSON_TIMES, spare: 64 << 10, meter };
    fuzz(target, |bytes| {
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return false };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        // Whoever reads the file has looked at that.
        let Some(json) = rest.get(..length) else { return false };
        let Ok(header) = Header::parse(json, bytes.len() as u64) else { return false };
        let held = (bytes.len() - 8 - length) as u64;
        assert_eq!(header.entries.iter().map(|entry| entry.layout.bytes()).sum::<u64>(), held);
        let tensors: Vec<_> =
            header.entries.iter().map(|entry| (entry.name.as_str(), &entry.layout)).collect();
        let written = Header::write(&tensors, &header.metadata).unwrap();
        let again = Header::parse(&written[8..], written.len() as u64 + held).unwrap();
        let named = |header: &Header| -> Vec<_> {
            header.entries.iter().map(|entry| (entry.name.clone(), entry.layout.clone())).collect()
        };
        assert_eq!((named(&again), again.metadata), (named(&header), header.metadata));
        true
    });
}

/// A type of the format, and its name there.
fn dtypes() -> impl Strategy<Value = DType> {
    let known: Vec<DType> =
        DType::ALL.iter().copied().filter(|one| one.safetensors_name().is_some()).collect();
    prop::sample::select(known)
}

/// Tensors by name, with shapes that fill whole bytes.
fn tensors() -> impl Strategy<Value = BTreeMap<String, (DType, Vec<u64>)>> {
    let shape = prop::collection::vec(0..5_u64, 0..4);
    let whole = |(dtype, mut shape): (DType, Vec<u64>)| {
        if dtype.is_sub_byte() {
            shape.push(4);
        }
        (dtype, shape)
    };
    prop::collection::btree_map("[a-z./\u{e9}]{0,6}", (dtypes(), shape).prop_map(whole), 0..6)
}

/// A number that is right, or nearly, or not at all.
fn number(right: u64) -> impl Strategy<Value = i64> {
    let right = i64::try_from(right).unwrap();
    prop_oneof![8 => Just(right), 1 => right - 9..right + 9, 1 => any::<i64>()]
}

/// A header as somebody may write it who is wrong now and then.
fn headers() -> impl Strategy<Value = (String, usize)> {
    let tensor = |(dtype, shape): (DType, Vec<u64>)| {
        let bytes = layout(dtype, &shape).bytes();
        (Just(dtype), Just(shape), number(bytes), number(0))
    };
    let metadata = prop_oneof![
        6 => Just(""), 1 => Just(r#""__metadata__":null"#), 1 => Just(r#""__metadata__":{"a":"b"}"#),
        1 => Just(r#""__metadata__":{"a":1}"#), 1 => Just(r#""__metadata__":{},"__metadata__":{}"#),
    ];
    let pad = prop_oneof![6 => Just(""), 1 => Just("  \n"), 1 => Just("\0"), 1 => Just("x")];
    let tensors = prop::collection::vec(
        ("[a-c]", (dtypes(), prop::collection::vec(0..4_u64, 0..3)).prop_flat_map(tensor)),
        0..4,
    );
    (tensors, metadata, pad, number(0)).prop_map(|(tensors, metadata, pad, behind)| {
        let mut at = 0_i64;
        let mut fields = vec![metadata.to_owned()];
        for (name, (dtype, shape, bytes, gap)) in tensors {
            let (begin, end) = (at.wrapping_add(gap), at.wrapping_add(gap).wrapping_add(bytes));
            let dtype = dtype.safetensors_name().unwrap();
            fields.push(format!(
                r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
            ));
            at = end;
        }
        fields.retain(|field| !field.is_empty());
        let data = usize::try_from(at.wrapping_add(behind)).unwrap_or(0).min(4_096);
        (format!("{{{}}}{pad}", fields.join(",")), data)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_048))]

    #[test]
    fn a_header_is_taken_if_and_only_if_the_library_takes_it((header, data) in headers()) {
        let file = file(&header, data);
        let (ours, theirs) = (parsed(&file), SafeTensors::deserialize(&file));
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{}: {:?} {:?}", header, ours, theirs);
        let (Ok(ours), Ok(theirs)) = (ours, theirs) else { return Ok(()) };
        prop_assert_eq!(ours.entries.len(), theirs.len());
        for entry in ours.entries {
            let view = theirs.tensor(&entry.name).unwrap();
            let at = entry.offset as usize;
            prop_assert_eq!(&file[at..at + entry.layout.bytes() as usize], view.data());
            prop_assert_eq!(entry.layout.dtype().safetensors_name(), Some(&*view.dtype().to_string()));
            let shape: Vec<usize> = entry.layout.shape().iter().map(|&size| size as usize).collect();
            prop_assert_eq!(shape, view.shape());
        }
    }

    #[test]
    fn a_refusal_has_words_of_its_own((header, data) in headers()) {
        if let Err(error) = parsed(&file(&header, data)) {
            let told = format!("{error:#}");
            // The library's own, which name no offset.
            for vague in ["invalid offset for tensor", "invalid shape, data type", "do not cover", "slicing"] {
                prop_assert!(!told.contains(vague), "{}: {}", header, told);
            }
        }
    }

    #[test]
    fn a_file_is_written_byte_for_byte_as_the_library_writes_it(tensors in tensors(), format in any::<Option<bool>>()) {
        let format: BTreeMap<String, String> =
            format.map(|format| ("format".to_owned(), format.to_string())).into_iter().collect();
        let layouts: Vec<(&str, Layout)> =
            tensors.iter().map(|(name, (dtype, shape))| (name.as_str(), layout(*dtype, shape))).collect();
        let mut ordered: Vec<(&str, &Layout)> = layouts.iter().map(|(name, layout)| (*name, layout)).collect();
        ordered.sort_by(|one, other| order(one.0, one.1).cmp(&order(other.0, other.1)));
        let data: HashMap<&str, Vec<u8>> =
            layouts.iter().map(|(name, layout)| (*name, vec![name.len() as u8; layout.bytes() as usize])).collect();
        let mut ours = Header::write(&ordered, &format).unwrap();
        ordered.iter().for_each(|(name, _)| ours.extend(&data[name]));

        let views = layouts.iter().map(|(name, layout)| {
            let shape = layout.shape().iter().map(|&size| size as usize).collect();
            (*name, TensorView::new(dtype(layout.dtype()).unwrap(), shape, &data[name]).unwrap())
        });
        let known = (!format.is_empty()).then(|| format.clone().into_iter().collect());
        prop_assert_eq!(&ours, &safetensors::serialize(views, known).unwrap());
        let read = parsed(&ours).unwrap();
        prop_assert!(read.entries.is_sorted_by_key(|entry| entry.offset));
        let back: BTreeMap<&str, &Layout> = read.entries.iter().map(|entry| (&*entry.name, &entry.layout)).collect();
        let ordered: BTreeMap<&str, &Layout> = ordered.into_iter().collect();
        prop_assert_eq!((back, read.metadata), (ordered, format));
    }
}
