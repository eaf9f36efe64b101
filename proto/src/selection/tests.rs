use proptest::prelude::*;

use super::*;
use crate::layout::{Shape, Strides};

fn dense(dtype: DType, dims: &[u64]) -> Layout {
    Layout::contiguous(dtype, Shape::new(dims).unwrap()).unwrap()
}

fn view(selection: &Selection, layout: &Layout) -> View {
    match selection.resolve(layout).unwrap() {
        Resolved::View(view) => view,
        Resolved::Rows(_) => panic!("a view was expected"),
    }
}

fn runs(selection: &Selection, layout: &Layout) -> Vec<(u64, u64)> {
    selection.resolve(layout).unwrap().runs().collect()
}

#[test]
fn all_of_a_dense_tensor_is_one_run() {
    let layout = dense(DType::F32, &[100, 200]);
    assert_eq!(runs(&Selection::All, &layout), [(0, 80_000)]);
    assert!(view(&Selection::All, &layout).contiguous);
}

#[test]
fn leading_rows_are_one_run_and_columns_one_for_each_row() {
    let layout = dense(DType::F32, &[4, 10]);
    assert_eq!(runs(&Selection::Ranges(vec![Range::new(1, 3)]), &layout), [(40, 80)]);
    let columns = Selection::Ranges(vec![Range::FULL, Range::new(2, 5)]);
    assert_eq!(runs(&columns, &layout), [(8, 12), (48, 12), (88, 12), (128, 12)]);
    let seen = view(&columns, &layout);
    assert_eq!((seen.offset_bytes, seen.bytes, seen.contiguous), (8, 48, false));
    assert_eq!(seen.layout.strides().unwrap().to_vec(), [10, 1]);
}

#[test]
fn a_step_multiplies_the_stride() {
    let seen = view(&Selection::Ranges(vec![Range::new(1, 10).step_by(4)]), &dense(DType::I16, &[10]));
    assert_eq!((seen.offset_bytes, seen.bytes), (2, 6));
    assert_eq!(seen.layout.strides().unwrap().to_vec(), [4]);
    // A step beyond the dimension leaves its first index.
    let one = view(&Selection::Ranges(vec![Range::FULL.step_by(u64::MAX)]), &dense(DType::I16, &[10]));
    assert_eq!((one.bytes, one.contiguous), (2, true));
}

#[test]
fn rows_come_in_the_order_of_the_list_and_neighbours_are_joined() {
    let layout = dense(DType::F32, &[100, 4]);
    let selection = Selection::rows([7, 8, 9, 3, 3]);
    assert_eq!(runs(&selection, &layout), [(112, 48), (48, 16), (48, 16)]);
    assert_eq!(selection.resolve(&layout).unwrap().packed_layout(), dense(DType::F32, &[5, 4]));
}

#[test]
fn empty_selections_are_fine_and_have_no_runs() {
    let layout = dense(DType::F32, &[10, 4]);
    for selection in [Selection::rows([]), Selection::Ranges(vec![Range::new(10, 10)])] {
        let resolved = selection.resolve(&layout).unwrap();
        assert_eq!(resolved.packed_layout(), dense(DType::F32, &[0, 4]));
        assert_eq!((resolved.bytes(), resolved.runs().next()), (0, None));
    }
    assert!(runs(&Selection::rows([1, 2, 0]), &dense(DType::F32, &[3, 0])).is_empty());
    assert!(runs(&Selection::All, &dense(DType::F32, &[3, 0])).is_empty());
}

#[test]
fn what_lies_outside_is_refused_and_never_clamped() {
    let layout = dense(DType::F32, &[10, 4]);
    let resolve = |ranges: Vec<Range>| Selection::Ranges(ranges).resolve(&layout).unwrap_err();
    for range in [Range::new(0, 11), Range::new(11, 11), Range::new(5, 4), Range::new(u64::MAX, u64::MAX)] {
        assert_eq!(resolve(vec![range]), SelectionError::RangeOutside { dim: 0, range, size: 10 });
    }
    let told = |range| resolve(vec![range]).to_string();
    assert_eq!(told(Range::new(0, 11)), "the range 0:11 is outside dimension 0 of size 10");
    assert_eq!(told(Range::new(5, 4).step_by(2)), "the range 5:4:2 of dimension 0 ends before it begins");
    let range = Range::FULL.step_by(0);
    assert_eq!(resolve(vec![Range::FULL, range]), SelectionError::ZeroStep { dim: 1, range });
    assert_eq!(resolve(vec![Range::FULL; 3]), SelectionError::MoreRangesThanDims { ranges: 3, dims: 2 });
    assert_eq!(
        Selection::rows([0, 10]).resolve(&layout),
        Err(SelectionError::RowOutside { position: 1, row: 10, size: 10 })
    );
    let scalar = dense(DType::F32, &[]);
    assert_eq!(Selection::rows([]).resolve(&scalar), Err(SelectionError::ScalarHasNoRows));
}

#[test]
fn a_million_ranges_are_refused_by_their_count_alone() {
    let selection = Selection::Ranges(vec![Range { start: None, stop: None, step: 0 }; 1_000_000]);
    let refused = Err(SelectionError::TooManyRanges { ranges: 1_000_000 });
    assert_eq!(selection.check_limits(), refused.clone());
    assert_eq!(selection.resolve(&dense(DType::F32, &[1])).map(|_| ()), refused);
    let rows = Selection::rows(vec![9; MAX_ROWS + 1]);
    assert_eq!(rows.check_limits(), Err(SelectionError::TooManyRows { rows: MAX_ROWS + 1 }));
}

#[test]
fn repeated_rows_cannot_grow_beyond_the_largest_tensor() {
    let layout = dense(DType::U8, &[2, 1 << 40]);
    let error = Selection::rows(vec![1; 1 << 10]).resolve(&layout).unwrap_err();
    assert!(matches!(error, SelectionError::Result(_)), "{error}");
}

#[test]
fn elements_smaller_than_a_byte_are_selected_in_whole_bytes() {
    let layout = dense(DType::I4, &[4, 8]);
    assert_eq!(runs(&Selection::Ranges(vec![Range::new(1, 3)]), &layout), [(4, 8)]);
    let columns = Selection::Ranges(vec![Range::FULL, Range::new(2, 6)]);
    assert_eq!(runs(&columns, &layout), [(1, 2), (5, 2), (9, 2), (13, 2)]);
    assert_eq!(runs(&Selection::rows([3, 0]), &layout), [(12, 4), (0, 4)]);
    let cut = SelectionError::NotByteAligned { dtype: DType::I4 };
    for range in [Range::new(1, 3), Range::new(0, 3), Range::new(2, 3), Range::FULL.step_by(2)] {
        let selection = Selection::Ranges(vec![Range::FULL, range]);
        assert_eq!(selection.resolve(&layout), Err(cut.clone()), "{range}");
    }
    assert_eq!(Selection::rows([0]).resolve(&dense(DType::I4, &[4, 3])), Err(cut));
}

#[test]
fn only_the_end_of_a_sub_byte_tensor_may_be_a_part_of_a_byte() {
    let layout = dense(DType::I4, &[5]);
    assert_eq!(runs(&Selection::Ranges(vec![Range::new(2, 5)]), &layout), [(1, 2)]);
    assert_eq!(runs(&Selection::Ranges(vec![Range::new(4, 5)]), &layout), [(2, 1)]);
    assert!(Selection::Ranges(vec![Range::new(2, 3)]).resolve(&layout).is_err());
    assert!(Selection::Ranges(vec![Range::new(0, 1)]).resolve(&layout).is_err());
    // The last byte holds element 4 alone, but element 3 shares its byte.
    assert!(Selection::Ranges(vec![Range::new(2, 4)]).resolve(&layout).is_ok());
}

#[test]
fn columns_of_a_transposed_tensor_that_are_dense_in_memory_come_as_they_are_asked_for() {
    let strides = Some(Strides::new(&[1, 3]));
    let layout = Layout::new(DType::U8, Shape::new(&[3, 2]).unwrap(), strides, None).unwrap();
    assert_eq!(runs(&Selection::All, &layout), [(0, 1), (3, 1), (1, 1), (4, 1), (2, 1), (5, 1)]);
    let column = Selection::Ranges(vec![Range::FULL, Range::new(1, 2)]);
    assert_eq!(runs(&column, &layout), [(3, 3)]);
}

/// Offsets at which each element of the result lies, in elements, one after the other.
fn offsets(layout: &Layout, picks: &[Vec<u64>]) -> Vec<usize> {
    let strides = layout.effective_strides();
    let mut offsets = vec![0usize];
    for (dim, indices) in picks.iter().enumerate() {
        let place = |&index: &u64| (index as usize) * (strides[dim] as usize);
        offsets = offsets.iter().flat_map(|at| indices.iter().map(move |i| at + place(i))).collect();
    }
    offsets
}

/// The naive model: each element of the result by its index.
fn naive(source: &[u8], layout: &Layout, picks: &[Vec<u64>]) -> Vec<u8> {
    let size = layout.dtype().size().unwrap() as usize;
    offsets(layout, picks).iter().flat_map(|at| source[at * size..][..size].to_vec()).collect()
}

fn bit_of(bytes: &[u8], bit: usize) -> bool {
    bytes[bit / 8] >> (bit % 8) & 1 == 1
}

/// The naive model for elements smaller than a byte: the bits of each, one after the other.
fn naive_bits(source: &[u8], layout: &Layout, picks: &[Vec<u64>]) -> Vec<bool> {
    let bits = layout.dtype().bits() as usize;
    offsets(layout, picks)
        .iter()
        .flat_map(|at| (0..bits).map(move |bit| bit_of(source, at * bits + bit)))
        .collect()
}

fn gather(source: &[u8], resolved: &Resolved) -> Vec<u8> {
    let piece = |(offset, length): (u64, u64)| source[offset as usize..][..length as usize].to_vec();
    resolved.runs().flat_map(piece).collect()
}

fn arbitrary_layout() -> impl Strategy<Value = Layout> {
    let dims = prop::collection::vec((0u64..5, 0i64..30), 0..4);
    let dtype = prop::sample::select(vec![DType::U8, DType::I16, DType::F32, DType::C128]);
    (dims, dtype, any::<bool>()).prop_map(|(dims, dtype, strided)| {
        let (dims, strides): (Vec<u64>, Vec<i64>) = dims.into_iter().unzip();
        let strides = strided.then(|| Strides::new(&strides));
        Layout::new(dtype, Shape::new(&dims).unwrap(), strides, None).unwrap()
    })
}

/// A selection by small numbers, in and out of range, and what it picks in each dimension if it is in range.
fn interpret(ranges: &[(u64, u64, u64)], layout: &Layout) -> (Selection, Option<Vec<Vec<u64>>>) {
    let given: Vec<Range> =
        ranges.iter().map(|&(start, stop, step)| Range::new(start, stop).step_by(step)).collect();
    let inside = ranges.len() <= layout.shape().rank()
        && ranges.iter().zip(layout.shape().iter()).all(|(r, &size)| r.0 <= r.1 && r.1 <= size);
    let picks = inside.then(|| {
        let pick = |(dim, &size): (usize, &u64)| match ranges.get(dim) {
            Some(&(start, stop, step)) => (start..stop).step_by(step as usize).collect(),
            None => (0..size).collect(),
        };
        layout.shape().iter().enumerate().map(pick).collect()
    });
    (Selection::Ranges(given), picks)
}

fn bytes_of(layout: &Layout) -> Vec<u8> {
    (0..layout.bytes()).map(|i| (i * 131 % 251) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn ranges_gather_what_an_index_by_index_copy_gathers(
        layout in arbitrary_layout(),
        ranges in prop::collection::vec((0u64..4, 0u64..5, 1u64..4), 0..4),
    ) {
        let (selection, picks) = interpret(&ranges, &layout);
        let resolved = selection.resolve(&layout);
        prop_assert_eq!(resolved.is_ok(), picks.is_some());
        if let (Ok(resolved), Some(picks)) = (resolved, picks) {
            let source = bytes_of(&layout);
            let wanted = naive(&source, &layout, &picks);
            prop_assert_eq!(&gather(&source, &resolved), &wanted);
            prop_assert_eq!(resolved.bytes(), wanted.len() as u64);
            prop_assert_eq!(resolved.packed_layout().bytes(), wanted.len() as u64);
            let Resolved::View(view) = &resolved else { panic!("ranges are a view") };
            prop_assert!(view.offset_bytes + view.layout.bytes() <= layout.bytes());
            prop_assert!(!view.contiguous || resolved.runs().count() <= 1);
            // The view, seen from its own start, is the same bytes.
            let seen = Selection::All.resolve(&view.layout).unwrap();
            prop_assert_eq!(gather(&source[view.offset_bytes as usize..], &seen), wanted);
        }
    }

    #[test]
    fn rows_gather_what_an_index_by_index_copy_gathers(
        layout in arbitrary_layout(),
        rows in prop::collection::vec(0u64..5, 0..8),
    ) {
        let resolved = Selection::rows(rows.clone()).resolve(&layout);
        let inside = layout.shape().first().is_some_and(|&size| rows.iter().all(|&row| row < size));
        prop_assert_eq!(resolved.is_ok(), inside);
        if let Ok(resolved) = resolved {
            let source = bytes_of(&layout);
            let mut picks: Vec<Vec<u64>> = layout.shape().iter().map(|&size| (0..size).collect()).collect();
            picks[0] = rows;
            prop_assert_eq!(gather(&source, &resolved), naive(&source, &layout, &picks));
        }
    }

    #[test]
    fn elements_smaller_than_a_byte_gather_as_bit_by_bit(
        dims in prop::collection::vec(0u64..9, 1..4),
        pad in 0u64..3,
        ranges in prop::collection::vec((0u64..9, 0u64..9, 1u64..3), 0..4),
        rows in prop::option::of(prop::collection::vec(0u64..9, 0..6)),
        dtype in prop::sample::select(vec![DType::U1, DType::I2, DType::I4, DType::F6E2M3]),
    ) {
        // Dense, or with every row padded.
        let shape = Shape::new(&dims).unwrap();
        let mut strides = Strides::row_major(&shape).to_vec();
        let inner = strides.len() - 1;
        strides[..inner].iter_mut().for_each(|stride| *stride += 4 * pad as i64);
        let Ok(layout) = Layout::new(dtype, shape, Some(Strides::new(&strides)), None) else { return Ok(()) };
        let (mut selection, mut picks) = interpret(&ranges, &layout);
        if let Some(rows) = rows {
            picks = Some(dims.iter().map(|&size| (0..size).collect()).collect());
            picks.iter_mut().for_each(|picks| picks[0] = rows.clone());
            selection = Selection::rows(rows);
        }
        if let (Ok(resolved), Some(picks)) = (selection.resolve(&layout), picks) {
            let source = bytes_of(&layout);
            let wanted = naive_bits(&source, &layout, &picks);
            let packed = gather(&source, &resolved);
            prop_assert_eq!(packed.len() as u64, resolved.bytes());
            let got = (0..wanted.len()).map(|bit| bit_of(&packed, bit)).collect::<Vec<bool>>();
            prop_assert_eq!(got, wanted);
        }
    }

    #[test]
    fn no_range_whatever_its_numbers_panics_or_leaves_the_tensor(
        dims in prop::collection::vec(0u64..1 << 12, 0..4),
        ranges in prop::collection::vec((any::<Option<u64>>(), any::<Option<u64>>(), any::<u64>()), 0..4),
        code in 1u16..34,
    ) {
        let layout = dense(DType::from_code(code).unwrap(), &dims);
        let ranges = ranges.into_iter().map(|(start, stop, step)| Range {
            start: start.map(|n| n >> 52), stop: stop.map(|n| n >> 50), step: step >> 54,
        });
        if let Ok(Resolved::View(view)) = Selection::Ranges(ranges.collect()).resolve(&layout) {
            prop_assert!(view.offset_bytes + view.layout.bytes() <= layout.bytes());
            let walked: u64 = Resolved::View(view.clone()).runs().take(1000).map(|run| run.1).sum();
            prop_assert!(walked <= view.bytes);
        }
    }
}
