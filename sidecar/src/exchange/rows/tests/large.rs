//! Rows that together are more than the caches hold, which all cores copy.

use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::rows::{SetId, SetLayout};

use super::super::memory::{Band, NewRows, Terms, zeroed};
use super::*;

/// Bytes of a row: sixteen are a band.
const BYTES: u64 = 64 << 10;
/// Rows of the set.
const ROWS: u64 = 40;
/// Rows of a commit and of a read: 4 MiB.
const MANY: u64 = 64;

fn set(exchange: &Exchange) -> MutableSet {
    let me = exchange.me();
    let id = SetId::Memory { incarnation: me.incarnation, number: 1 };
    let reference = SetReference { exchange: me.exchange.clone(), peer: me.peer.clone(), id };
    let layout = SetLayout::new(&[leaf("x", &[BYTES])], ROWS).unwrap();
    MutableSet::new(reference, TensorName::new("set").unwrap(), Vec::new(), layout)
}

#[test]
fn a_large_commit_is_written_in_the_order_of_its_rows_and_a_large_read_has_them_all() {
    let (exchange, workers, _) = alone();
    let set = set(&exchange);
    let cancel = Cancel::default();
    let until = (Instant::now() + MINUTE, &cancel);
    // Each of 20 rows more than once, of which the last one stays.
    let written: Vec<u64> = (0..MANY).map(|at| at * 7 % 20).collect();
    let rows = RowList::new(&Selection::rows(written.clone()), &set.layout).unwrap();
    let new = allocate(&exchange, MANY * BYTES, MINUTE).unwrap();
    let mut landing = new.landing().unwrap();
    for at in 0..MANY {
        landing.chunk_mut(at * BYTES..(at + 1) * BYTES).unwrap().fill(at as u8 + 1);
    }
    drop(landing);
    new.mark_sealed().unwrap();
    let parts = [NewRows { leaf: 0, block: &new }];
    let room = |band: u64| {
        let own = allocate(&exchange, set.layout.band_bytes(), MINUTE).unwrap();
        (band, Band::Own(zeroed(&own).unwrap()))
    };
    let fresh: Vec<_> = set.missing(&rows, &parts, until).unwrap().into_iter().map(room).collect();
    assert_eq!(fresh.len(), 2, "the third band stays zero");
    set.apply(&rows, &parts, Terms { expects: None, retry: None }, fresh, until).unwrap();
    drop(new);

    let read: Vec<u64> = (0..MANY).map(|at| ROWS - 1 - at % ROWS).collect();
    let rows = RowList::new(&Selection::rows(read.clone()), &set.layout).unwrap();
    let mut into = [allocate(&exchange, MANY * BYTES, MINUTE).unwrap().landing().unwrap()];
    assert_eq!(set.gather(&rows, &[0], &mut into, until).unwrap(), 1);
    for (at, row) in (0..).zip(&read) {
        let due = written.iter().rposition(|written| written == row).map_or(0, |last| last as u8 + 1);
        let found = into[0].chunk(at * BYTES..(at + 1) * BYTES).unwrap();
        assert!(found.iter().all(|byte| *byte == due), "row {row} at {at}");
    }
    workers.stop();
}
