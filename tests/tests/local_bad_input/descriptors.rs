//! Descriptors that do not fit their bytes, or no memory, or their limits.

use tensorlane_client::{Error, PutOptions};
use tensorlane_proto::frame::INLINE_BYTES_MAX;
use tensorlane_proto::{DType, Reason, generated as v1};
use tensorlane_tests::Sidecar;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::u8s;

use super::{bytes_of, item, refused_put, refused_reserve};

#[test]
fn element_type_shape_strides_and_byte_count_must_agree() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let f32s = v1::Descriptor { dtype: DType::F32 as u32, shape: vec![2, 3], ..v1::Descriptor::default() };
    let cases = [
        (v1::Descriptor { dtype: 0, ..f32s.clone() }, Reason::DTypeUnknown),
        (v1::Descriptor { dtype: 9999, ..f32s.clone() }, Reason::DTypeUnknown),
        (v1::Descriptor { dtype: u32::MAX, ..f32s.clone() }, Reason::DTypeUnknown),
        (v1::Descriptor { byte_length: 23, ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { byte_length: 25, ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { shape: vec![2, 4], ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { shape: vec![], ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { strides: vec![1], ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { strides: vec![3, -1], ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { strides: vec![4, 1], ..f32s.clone() }, Reason::LayoutMismatch),
    ];
    for (descriptor, expected) in cases {
        let refused = refused_put(&mut session, item(descriptor.clone(), &[0; 24]));
        assert_eq!(refused.reason, expected, "{descriptor:?}: {refused}");
        assert!(refused.message.len() > 10, "a refusal tells what was wrong: {refused}");
    }
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn sizes_that_overflow_are_refused_before_anything_is_set_aside() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let shaped = |shape: Vec<u64>, strides: Vec<i64>| v1::Descriptor {
        dtype: DType::F64 as u32,
        shape,
        strides,
        ..v1::Descriptor::default()
    };
    let descriptors = [
        shaped(vec![u64::MAX], vec![]),
        shaped(vec![1 << 63], vec![]),
        shaped(vec![1 << 32, 1 << 32], vec![]),
        shaped(vec![1 << 22; 32], vec![]),
        shaped(vec![1 << 46], vec![]),
        shaped(vec![2, 2], vec![i64::MAX, i64::MAX]),
        shaped(vec![3], vec![1 << 61]),
        shaped(vec![1; 33], vec![]),
        shaped(vec![1; 1_000_000], vec![]),
    ];
    for descriptor in descriptors {
        let shown = format!("{:?}", &descriptor.shape[..descriptor.shape.len().min(4)]);
        let refused = refused_put(&mut session, item(descriptor.clone(), &[]));
        assert_eq!(refused.reason, Reason::TooLarge, "{shown}: {refused}");
        let reserve = v1::ReserveItem { descriptor: Some(descriptor), ..v1::ReserveItem::default() };
        assert_eq!(refused_reserve(&mut session, reserve).reason, Reason::TooLarge, "{shown}");
    }
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn bytes_that_do_not_fit_their_descriptor_are_not_stored() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    for given in [0, 99, 101] {
        let refused = refused_put(&mut session, item(bytes_of(100), &vec![1; given]));
        assert_eq!(refused.reason, Reason::LayoutMismatch);
        assert_eq!(refused.detail("expected_bytes"), Some("100"));
    }
    let refused = refused_put(
        &mut session,
        item(bytes_of(INLINE_BYTES_MAX as u64 + 1), &vec![1; INLINE_BYTES_MAX + 1]),
    );
    assert_eq!(refused.reason, Reason::TooLarge, "{refused}");
    let wrong_sum = v1::PutItem { crc32c: Some(1), ..item(bytes_of(100), &[1; 100]) };
    assert_eq!(refused_put(&mut session, wrong_sum).reason, Reason::ChecksumMismatch);
    let client = sidecar.client();
    let short = client.put(&u8s(100), &[1; 99], &PutOptions::new());
    assert!(matches!(short, Err(Error::InvalidArgument(_))), "{short:?}");
    drop((session, client));
    sidecar.assert_all_free();
}

#[test]
fn metadata_over_their_limits_are_refused() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let with = |entries: Vec<(String, String)>| v1::Descriptor {
        metadata: entries.into_iter().collect(),
        ..bytes_of(1)
    };
    let numbered =
        |count: usize, bytes: usize| with((0..count).map(|i| (i.to_string(), "v".repeat(bytes))).collect());
    let cases = [
        (numbered(65, 1), Reason::TooLarge),
        (numbered(5, 4096), Reason::TooLarge),
        (with(vec![("k".repeat(129), String::new())]), Reason::TooLarge),
        (with(vec![("k".into(), "v".repeat(4097))]), Reason::TooLarge),
        (with(vec![(String::new(), "v".into())]), Reason::InvalidArgument),
    ];
    for (descriptor, expected) in cases {
        let refused = refused_put(&mut session, item(descriptor, &[1]));
        assert_eq!(refused.reason, expected, "{refused}");
    }
    drop(session);
    sidecar.assert_all_free();
}
