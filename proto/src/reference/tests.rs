use std::time::Instant;

use proptest::prelude::*;

use super::*;

fn reference(dtype: DType, dims: &[u64]) -> Reference {
    let layout = Layout::contiguous(dtype, Shape::new(dims).unwrap()).unwrap();
    let (exchange, peer) = (ExchangeName::new("ml").unwrap(), PeerName::new("trainer-0").unwrap());
    Reference::new(exchange, peer, Incarnation(0x00112233445566778899aabbccddeeff), 42, &layout)
}

/// A text with the checksum that belongs to it.
fn sealed(body: &str) -> String {
    format!("{body}/{:08x}", crc32c::crc32c(body.as_bytes()))
}

#[test]
fn a_reference_prints_as_documented() {
    let text = reference(DType::F32, &[30522, 384]).to_string();
    let body = "tl1:ml/trainer-0/00112233445566778899aabbccddeeff/42/f32.30522x384/46881792";
    assert_eq!(text, sealed(body));
    assert_eq!(text.parse(), Ok(reference(DType::F32, &[30522, 384])));
}

#[test]
fn scalars_empty_tensors_and_many_dimensions_have_a_spelling() {
    assert!(reference(DType::F8E4M3, &[]).to_string().contains("/f8_e4m3./1/"));
    assert!(reference(DType::F32, &[0, 7]).to_string().contains("/f32.0x7/0/"));
    assert!(reference(DType::U8, &[1; 8]).to_string().contains("/u8.1x1x1x1x1x1x1x1/1/"));
    let long = reference(DType::U8, &[1; 9]);
    assert!(long.to_string().contains("/u8.r9."));
    assert_eq!(long.to_string().parse(), Ok(long.clone()));
    assert!(long.shape().matches(&Shape::new(&[1; 9]).unwrap()));
    assert!(!long.shape().matches(&Shape::new(&[1; 10]).unwrap()));
}

#[test]
fn a_reference_describes_its_tensor_and_no_other() {
    let layout = |dims: &[u64]| Layout::contiguous(DType::F32, Shape::new(dims).unwrap()).unwrap();
    assert!(reference(DType::F32, &[2, 3]).describes(&layout(&[2, 3])));
    assert!(!reference(DType::F32, &[2, 3]).describes(&layout(&[3, 2])));
    assert!(!reference(DType::I32, &[2, 3]).describes(&layout(&[2, 3])));
}

#[test]
fn each_cause_has_its_own_error() {
    let text = reference(DType::F32, &[2]).to_string();
    let parse = |text: &str| text.parse::<Reference>().unwrap_err();
    assert_eq!(parse(""), ReferenceError::NotAReference);
    assert_eq!(parse("tensor"), ReferenceError::NotAReference);
    assert_eq!(parse(&text.replacen("tl1", "tl2", 1)), ReferenceError::VersionUnknown("2".into()));
    assert_eq!(parse(&"x".repeat(1025)), ReferenceError::TooLong { bytes: 1025 });
    assert_eq!(parse(&text[..text.len() - 1]), ReferenceError::ChecksumMissing);
    assert_eq!(parse(&text.to_uppercase().replacen("TL1", "tl1", 1)), ReferenceError::ChecksumMissing);
    assert_eq!(parse(&text.replacen("trainer-0", "trainer-1", 1)), ReferenceError::ChecksumWrong);
    assert_eq!(parse(&sealed("tl1:ml/a/b")), ReferenceError::PartCount { parts: 4 });
}

#[test]
fn a_part_that_is_not_in_its_form_is_named_even_under_a_right_checksum() {
    let body = "tl1:ml/trainer-0/00112233445566778899aabbccddeeff/42/f32.2x3/24";
    assert!(sealed(body).parse::<Reference>().is_ok());
    let cases = [
        (":ml/", ":/", Part::Exchange),
        ("trainer-0", "Trainer", Part::Peer),
        ("0011", "011", Part::Incarnation),
        ("/42/", "/042/", Part::Id),
        ("/42/", "/18446744073709551616/", Part::Id),
        ("/42/", "/+42/", Part::Id),
        ("f32", "f33", Part::DType),
        ("2x3", "2x03", Part::Shape),
        ("2x3", "2x", Part::Shape),
        ("2x3", "1x1x1x1x1x1x1x1x6", Part::Shape),
        ("2x3", "r8.00000000", Part::Shape),
        ("2x3", "r33.00000000", Part::Shape),
        ("2x3", "r9.0000000", Part::Shape),
        ("2x3", "4294967296x4294967296", Part::Shape),
        (".2x3", "", Part::Shape),
        ("/24", "/281474976710657", Part::Bytes),
    ];
    for (from, to, expected) in cases {
        match sealed(&body.replacen(from, to, 1)).parse::<Reference>() {
            Err(ReferenceError::Part { part, .. }) => assert_eq!(part, expected, "{from} -> {to}"),
            other => panic!("{from} -> {to}: {other:?}"),
        }
    }
}

#[test]
fn the_longest_reference_is_within_the_limit() {
    let name = "a".repeat(253);
    let (exchange, peer) = (ExchangeName::new(&name).unwrap(), PeerName::new(&name).unwrap());
    let layout = Layout::contiguous(DType::F8E4M3B11Fnuz, Shape::new(&[1 << 6; 8]).unwrap()).unwrap();
    let longest = Reference::new(exchange, peer, Incarnation(u128::MAX), u64::MAX, &layout);
    assert!(longest.encode().len() <= MAX_REFERENCE_BYTES);
    assert_eq!(longest.encode().parse(), Ok(longest));
}

/// The bound is generous: a build without optimisation on a busy machine has to meet it too. With optimisation it
/// is 1 µs each.
#[test]
fn printing_and_reading_take_microseconds_at_most() {
    let reference = reference(DType::F32, &[30522, 384]);
    let best = |work: &dyn Fn()| {
        let once = || {
            let begin = Instant::now();
            (0..100).for_each(|_| work());
            begin.elapsed().as_nanos() as u64 / 100
        };
        (0..100).map(|_| once()).min().unwrap()
    };
    let text = reference.encode();
    let print = best(&|| drop(std::hint::black_box(reference.encode())));
    let read = best(&|| drop(std::hint::black_box(text.parse::<Reference>())));
    println!("print {print} ns, read {read} ns");
    let bound = if cfg!(debug_assertions) { 50_000 } else { 1_000 };
    assert!(print < bound && read < bound, "print {print} ns, read {read} ns");
}

fn arbitrary_reference() -> impl Strategy<Value = Reference> {
    let name = "[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?";
    let dims = prop::collection::vec(0u64..8, 0..12);
    (name, name, any::<u128>(), any::<u64>(), 1u16..34, dims).prop_map(
        |(exchange, peer, incarnation, id, code, dims)| {
            let shape = Shape::new(&dims).unwrap();
            let layout = Layout::contiguous(DType::from_code(code).unwrap(), shape).unwrap();
            let (exchange, peer) = (exchange.parse().unwrap(), peer.parse().unwrap());
            Reference::new(exchange, peer, Incarnation(incarnation), id, &layout)
        },
    )
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(reference in arbitrary_reference()) {
        prop_assert_eq!(reference.to_string().parse(), Ok(reference));
    }

    #[test]
    fn one_that_shares_parts_with_those_before_is_the_same(
        references in prop::collection::vec(arbitrary_reference(), 1..4),
        order in prop::collection::vec((0usize..4, any::<bool>()), 1..12),
    ) {
        let mut shared = SharedParts::default();
        for (at, spoilt) in order {
            let mut text = references[at % references.len()].encode();
            if spoilt {
                // In the shape, behind names that are known, and under a right checksum.
                text.truncate(text.len() - 9);
                let kind = format!("/{}.", references[at % references.len()].dtype().name());
                text = sealed(&text.replace(&kind, &format!("{kind}x")));
            }
            let read = Reference::from_bytes_sharing(text.as_bytes(), &mut shared);
            prop_assert_eq!(read, Reference::from_bytes(text.as_bytes()));
        }
    }

    #[test]
    fn a_single_flipped_bit_is_always_refused(reference in arbitrary_reference()) {
        let mut bytes = reference.encode().into_bytes();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Reference::from_bytes(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn whatever_is_accepted_prints_the_same_bytes(
        reference in arbitrary_reference(), at in 0usize..100, with in "[a-z0-9./:x+ -]{0,2}", cut in 0usize..3,
    ) {
        // Edits under a right checksum: the parts alone have to refuse a second spelling.
        let mut body = reference.encode();
        body.truncate(body.len() - 9);
        let at = at.min(body.len());
        let end = (at + cut).min(body.len());
        body.replace_range(at..end, &with);
        let text = sealed(&body);
        if let Ok(read) = text.parse::<Reference>() {
            prop_assert_eq!(read.encode(), text);
        }
    }

    #[test]
    fn no_bytes_at_all_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Reference::from_bytes(&bytes);
        let mut framed = b"tl1:".to_vec();
        framed.extend(bytes);
        prop_assert!(Reference::from_bytes(&framed).is_err());
    }
}
