//! Rows against a naive model: bands of bytes here, a plain list of rows there.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::failure::Reason;
use crate::generated as v1;
use crate::ledger::RetryId;
use crate::selection::Selection;
use crate::{DType, Range};

fn leaf(key: &str, dtype: DType, row_shape: &[u64]) -> v1::SetLeaf {
    v1::SetLeaf { key: key.to_owned(), dtype: dtype.code().into(), row_shape: row_shape.to_vec() }
}

fn reason(leaves: &[v1::SetLeaf], rows: u64) -> Reason {
    SetLayout::new(leaves, rows).unwrap_err().reason
}

fn selections(rows: u64) -> impl Strategy<Value = Selection> {
    let range = (0..=rows, 0..=rows, 1..5u64)
        .prop_map(|(a, b, step)| Selection::Ranges(vec![Range::new(a.min(b), a.max(b)).step_by(step)]));
    let list = prop::collection::vec(0..rows, 0..40).prop_map(Selection::rows);
    prop_oneof![Just(Selection::All), range, list]
}

/// Rows that a selection means, counted one by one.
fn plainly(selection: &Selection, rows: u64) -> Vec<u64> {
    match selection {
        Selection::All => (0..rows).collect(),
        Selection::Rows(list) => list.to_vec(),
        Selection::Ranges(ranges) => {
            let Range { start, stop, step } = ranges[0];
            (start.unwrap_or(0)..stop.unwrap_or(rows)).step_by(usize::try_from(step).unwrap()).collect()
        }
    }
}

proptest! {
    #[test]
    fn rows_that_are_written_in_bands_are_those_of_a_plain_list(
        wide in 1u64..300_000,
        rows in 1u64..200,
        writes in prop::collection::vec((selections(200), any::<u8>()), 1..12),
    ) {
        let leaves = [leaf("a", DType::U8, &[wide]), leaf("b", DType::U16, &[])];
        let layout = SetLayout::new(&leaves, rows).unwrap();
        // Bytes of which only the first of each row are kept.
        let mut bands: BTreeMap<(u64, u64), u8> = BTreeMap::new();
        let mut plain = vec![0u8; usize::try_from(rows).unwrap()];
        for (selection, value) in writes {
            let Ok(list) = RowList::new(&selection, &layout) else { continue };
            let meant = plainly(&selection, rows);
            prop_assert_eq!(list.len(), meant.len() as u64);
            for leaf in layout.leaves() {
                let mut bytes = 0;
                for (run, (_, count)) in list.runs(&layout, leaf).zip(list.pieces(&layout)) {
                    prop_assert!(run.offset + run.length <= layout.band_bytes());
                    bytes += run.length;
                    for at in 0..count {
                        bands.insert((run.band, run.offset + at * leaf.row_bytes), value);
                    }
                }
                prop_assert_eq!(bytes, list.len() * leaf.row_bytes);
            }
            meant.iter().for_each(|row| plain[usize::try_from(*row).unwrap()] = value);
            prop_assert!(list.pieces(&layout).all(|(row, _)| list.bands(&layout).contains(&layout.band(row))));
        }
        for (row, value) in (0..).zip(plain) {
            for leaf in layout.leaves() {
                let run = layout.run(leaf, row, 1);
                prop_assert_eq!(bands.get(&(run.band, run.offset)).copied().unwrap_or(0), value);
            }
        }
    }

    #[test]
    fn a_garbled_reference_is_refused(at in 0usize..60, byte in 33u8..127) {
        let text = reference().to_string();
        let mut bytes = text.clone().into_bytes();
        let at = at % bytes.len();
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        prop_assert!(String::from_utf8(bytes).unwrap().parse::<SetReference>().is_err());
        prop_assert_eq!(text.parse::<SetReference>().unwrap(), reference());
    }
}

fn reference() -> SetReference {
    let (exchange, peer) = ("ml".parse().unwrap(), "trainer-0".parse().unwrap());
    SetReference { exchange, peer, id: SetId::Memory { incarnation: crate::Incarnation(7), number: 12 } }
}

#[test]
fn layouts_that_cannot_be_are_refused_with_their_reason() {
    let one = leaf("a", DType::U8, &[3]);
    assert_eq!(reason(&[], 1), Reason::InvalidArgument);
    assert_eq!(reason(std::slice::from_ref(&one), 0), Reason::InvalidArgument);
    assert_eq!(reason(std::slice::from_ref(&one), SET_ROWS_MAX + 1), Reason::InvalidArgument);
    assert_eq!(reason(&[one.clone(), one.clone()], 1), Reason::InvalidArgument);
    assert_eq!(reason(&[v1::SetLeaf { dtype: 9_999, ..one.clone() }], 1), Reason::DTypeUnknown);
    assert_eq!(reason(&[v1::SetLeaf { key: String::new(), ..one.clone() }], 1), Reason::InvalidArgument);
    assert_eq!(reason(&[v1::SetLeaf { row_shape: vec![1 << 40], ..one.clone() }], 1 << 30), Reason::TooLarge);
    assert_eq!(reason(&[v1::SetLeaf { row_shape: vec![1; 32], ..one }], 1), Reason::InvalidArgument);
}

#[test]
fn layouts_have_as_many_leaves_rows_and_bytes_of_a_key_as_they_may_and_no_more() {
    let many =
        |leaves: usize| (0..leaves).map(|at| leaf(&at.to_string(), DType::U8, &[])).collect::<Vec<_>>();
    assert!(SetLayout::new(&many(SETS_LEAVES_MAX), 1).is_ok());
    assert_eq!(reason(&many(SETS_LEAVES_MAX + 1), 1), Reason::InvalidArgument);
    let key = |bytes: usize| [leaf(&"k".repeat(bytes), DType::U8, &[])];
    assert!(SetLayout::new(&key(255), SET_ROWS_MAX).is_ok());
    assert_eq!(reason(&key(255), SET_ROWS_MAX + 1), Reason::InvalidArgument);
    assert_eq!(reason(&key(256), 1), Reason::InvalidArgument);
}

#[test]
fn a_layout_says_the_heap_that_it_takes() {
    let short = SetLayout::new(&[leaf("a", DType::U8, &[])], 1).unwrap().heap_bytes();
    let long = SetLayout::new(&[leaf(&"a".repeat(255), DType::U8, &[1; 31])], 1).unwrap().heap_bytes();
    assert!(short >= size_of::<Leaf>() as u64 + size_of::<(String, usize)>() as u64, "{short}");
    assert_eq!(long - short, 2 * 254 + 31 * 8);
}

#[test]
fn rows_outside_are_refused() {
    let layout = SetLayout::new(&[leaf("a", DType::F32, &[])], 10).unwrap();
    let outside = [
        Selection::rows([10]),
        Selection::rows([1 << 63]),
        Selection::Ranges(vec![Range::new(5, 11)]),
        Selection::Ranges(vec![Range::new(6, 5)]),
        Selection::Ranges(vec![Range::FULL, Range::FULL]),
    ];
    for selection in outside {
        let refused = RowList::new(&selection, &layout).unwrap_err();
        assert_eq!(refused.reason, Reason::SelectionOutOfRange, "{selection:?}");
    }
    let still = RowList::new(&Selection::Ranges(vec![Range::FULL.step_by(0)]), &layout);
    assert_eq!(still.unwrap_err().reason, Reason::InvalidArgument);
}

#[test]
fn more_rows_than_a_selection_has_are_refused() {
    let layout = SetLayout::new(&[leaf("a", DType::U8, &[])], 1 << 30).unwrap();
    assert_eq!(RowList::new(&Selection::All, &layout).unwrap_err().reason, Reason::TooLarge);
    let long = RowList::of_any_length(&Selection::All, &layout).unwrap();
    assert_eq!(long.check_length().unwrap_err().reason, Reason::TooLarge);
}

#[test]
fn a_span_is_rows_that_are_neighbours_by_their_range() {
    let layout = SetLayout::new(&[leaf("a", DType::U8, &[])], 1 << 30).unwrap();
    let span = |selection: &Selection| RowList::of_any_length(selection, &layout).unwrap().span();
    let range = |range: Range| Selection::Ranges(vec![range]);
    assert_eq!(span(&Selection::All), Some((0, 1 << 30)));
    assert_eq!(span(&range(Range::new(0, 1 << 30))), Some((0, 1 << 30)));
    assert_eq!(span(&range(Range::new(7, 1 << 29))), Some((7, (1 << 29) - 7)));
    assert_eq!(span(&range(Range::FULL.step_by(2))), None);
    assert_eq!(span(&Selection::rows([0, 1])), None);
}

#[test]
fn a_commit_is_the_next_version_and_its_repeat_is_the_same_one() {
    let mut commits = Commits::default();
    let retry = RetryId([1; 16]);
    assert_eq!(commits.check(Some(0)), Ok(()));
    let first = commits.commit(&RowList::Range { first: 4, count: 1, step: 1 }, Some(retry));
    assert_eq!(first, Committed { version: 1, first: 4 });
    assert_eq!(commits.repeated(Some(retry)), Some(first));
    assert_eq!(commits.check(Some(0)).unwrap_err().detail("latest"), Some("1"));
    for at in 0..REPEATS_MAX as u64 {
        commits.commit(
            &RowList::Range { first: 0, count: 1, step: 1 },
            Some(RetryId((u128::from(at) + 1000).to_le_bytes())),
        );
    }
    assert_eq!(commits.repeated(Some(retry)), None, "the oldest are forgotten");
}

#[test]
fn a_set_that_remembers_fewer_commits_forgets_the_oldest_at_once_and_later() {
    let row = RowList::Range { first: 0, count: 1, step: 1 };
    let retry = |number: u8| Some(RetryId([number; 16]));
    let mut commits = Commits::default();
    for number in 0..9 {
        commits.commit(&row, retry(number));
    }
    commits.remember_at_most(4);
    let remembered = |commits: &Commits| -> Vec<u8> {
        (0..=10).filter(|number| commits.repeated(retry(*number)).is_some()).collect()
    };
    assert_eq!(remembered(&commits), [5, 6, 7, 8]);
    commits.commit(&row, retry(10));
    assert_eq!((remembered(&commits), commits.version()), (vec![6, 7, 8, 10], 10));
    commits.remember_at_most(usize::MAX);
    for at in 0..REPEATS_MAX as u128 {
        commits.commit(&row, Some(RetryId((at + 1_000).to_le_bytes())));
    }
    assert!(remembered(&commits).is_empty(), "at most as many as ever");
}

#[test]
fn layouts_have_a_digest_that_stays_and_none_shares_it_whose_leaves_or_rows_are_others() {
    let two = |first: &str, shape: &[u64], dtype, second: &str| {
        vec![leaf(first, dtype, shape), leaf(second, DType::U8, &[2])]
    };
    let layouts = [
        (two("a", &[2], DType::U8, "b"), 6),
        (two("b", &[2], DType::U8, "a"), 6),
        (two("a", &[2], DType::I8, "b"), 6),
        (two("a", &[1, 2], DType::U8, "b"), 6),
        (two("a", &[2], DType::U8, "c"), 6),
        (two("a", &[2], DType::U8, "b"), 7),
        (two("a", &[2], DType::U8, "b")[..1].to_vec(), 6),
    ];
    let digest = |(leaves, rows): &(Vec<v1::SetLeaf>, u64)| SetLayout::new(leaves, *rows).unwrap().digest();
    let digests: BTreeSet<u32> = layouts.iter().map(digest).collect();
    assert_eq!(digests.len(), layouts.len());
    // Directories have it in their `set.json`: notes beside another one are refused.
    assert_eq!(digest(&layouts[0]), 0xb096_95ea);
}

#[test]
fn extensions_go_round_and_what_was_not_written_is_taken_again() {
    let layout = SetLayout::new(&[leaf("a", DType::U8, &[])], 10).unwrap();
    let mut commits = Commits::default();
    commits.take(8, 10);
    let round = commits.take(4, 10);
    assert_eq!(round.pieces(&layout).collect::<Vec<_>>(), [(8, 2), (0, 2)]);
    commits.give_back(&round);
    assert_eq!(commits.cursor(), 8);
    let (one, _other) = (commits.take(1, 10), commits.take(1, 10));
    commits.give_back(&one);
    assert_eq!(commits.cursor(), 0, "rows of another extension stay taken");
}

#[test]
fn a_reference_of_a_set_on_files_has_no_life_and_is_short_enough() {
    let on_files = SetReference { id: SetId::Files(u128::MAX - 7), ..reference() };
    let text = on_files.to_string();
    assert!(
        text.contains("/files/fffffffffffffffffffffffffffffff8/") && text.len() <= SET_REFERENCE_BYTES_MAX,
        "{text}"
    );
    assert_eq!(text.parse::<SetReference>().unwrap(), on_files);
    assert_eq!(on_files.id.incarnation(), None);
    let garbled = text.replace("files", "filet");
    assert_eq!(garbled.parse::<SetReference>().unwrap_err().reason, Reason::ReferenceMalformed);
}
