//! Writers of the same rows, and a reader beside them, against a model: the commits, one after the other by their versions.

use std::thread;

use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::rows::{RowList, SetId, SetLayout};

use super::super::memory::{Band, NewRows, Terms, zeroed};
use super::*;

/// Rows of the set, each of which is a band.
const ROWS: u64 = 3;
/// Commits that each of both writers tries.
const TRIES: usize = 50_000;
/// Values that each of both writers has.
const VALUES: usize = 60;
/// Rows of the commits, of which any two share one.
const PLACES: [&[u64]; 4] = [&[0, 1, 2], &[0, 1], &[1, 2], &[2, 0]];

/// A commit that was made: its version, its place and the value of its rows in both leaves.
type Made = (u64, usize, u8);

fn set(exchange: &Exchange) -> MutableSet {
    let leaves = [leaf("wide", &[ROW - 128]), leaf("one", &[]), leaf("other", &[])];
    let me = exchange.me();
    let id = SetId::Memory { incarnation: me.incarnation, number: 1 };
    let reference = SetReference { exchange: me.exchange.clone(), peer: me.peer.clone(), id };
    let layout = SetLayout::new(&leaves, ROWS).unwrap();
    MutableSet::new(reference, TensorName::new("set").unwrap(), Vec::new(), layout)
}

fn rows_of(set: &MutableSet, place: usize) -> RowList {
    RowList::new(&Selection::rows(PLACES[place]), &set.layout).unwrap()
}

/// New rows of one value.
fn value(exchange: &Exchange, value: u8) -> Block {
    let new = allocate(exchange, ROWS, MINUTE).unwrap();
    new.landing().unwrap().write(0, &[value; 3]).unwrap();
    new.mark_sealed().unwrap();
    new
}

/// Commits in both small leaves; none where another version is there than it expects.
fn commit(
    set: &MutableSet,
    rows: &RowList,
    block: &Block,
    expects: Option<u64>,
    fresh: Vec<(u64, Band)>,
) -> Option<u64> {
    let until = (Instant::now() + MINUTE, &Cancel::default());
    let parts = [1, 2].map(|leaf| NewRows { leaf, block });
    match set.apply(rows, &parts, Terms { expects, retry: None }, fresh, until) {
        Ok(made) => Some(made.version),
        Err(refused) => {
            assert_eq!(refused.reason, Reason::VersionChanged, "{refused}");
            None
        }
    }
}

/// Tries commits to all places, of which some expect the version of its last one; those that were made.
fn writer(set: &MutableSet, blocks: &[(u8, Block)], seed: usize) -> Vec<Made> {
    let places: Vec<RowList> = (0..PLACES.len()).map(|place| rows_of(set, place)).collect();
    let mut made: Vec<Made> = Vec::with_capacity(TRIES);
    for attempt in 0..TRIES {
        let place = (attempt * 7 + seed) % places.len();
        let (value, block) = &blocks[attempt % blocks.len()];
        let expects = made.last().map(|(version, ..)| *version).filter(|_| attempt % 5 == 0);
        let version = commit(set, &places[place], block, expects, Vec::new());
        made.extend(version.map(|version| (version, place, *value)));
    }
    made
}

#[test]
fn commits_of_two_writers_to_the_same_rows_are_those_of_a_model_and_so_is_each_read_beside_them() {
    let (exchange, workers, _) = alone();
    let set = set(&exchange);
    let all = rows_of(&set, 0);
    let bands = (0..ROWS).map(|band| {
        let own = allocate(&exchange, set.layout.band_bytes(), MINUTE).unwrap();
        (band, Band::Own(zeroed(&own).unwrap()))
    });
    assert_eq!(commit(&set, &all, &value(&exchange, 255), None, bands.collect()), Some(1));
    let blocks = [0, 1].map(|writer| {
        let values = (1..=VALUES).map(|at| u8::try_from(writer * VALUES + at).unwrap());
        values.map(|own| (own, value(&exchange, own))).collect::<Vec<_>>()
    });
    let mut into = [(); 2].map(|()| allocate(&exchange, ROWS, MINUTE).unwrap().landing().unwrap());
    let mut read = || {
        let until = (Instant::now() + MINUTE, &Cancel::default());
        let version = set.gather(&all, &[1, 2], &mut into, until).unwrap();
        let [one, other] =
            into.each_ref().map(|leaf| <[u8; 3]>::try_from(leaf.chunk(0..ROWS).unwrap()).unwrap());
        assert_eq!(one, other, "half of version {version}");
        (version, one)
    };
    let (mut made, mut reads) = thread::scope(|scope| {
        let [one, other] = [0, 1].map(|at: usize| {
            let (set, blocks) = (&set, &blocks[at]);
            scope.spawn(move || writer(set, blocks, at))
        });
        let mut reads = Vec::new();
        while !(one.is_finished() && other.is_finished()) {
            reads.push(read());
        }
        ([one.join().unwrap(), other.join().unwrap()].concat(), reads)
    });
    reads.push(read());
    made.sort_unstable();
    assert!(made.len() >= TRIES, "most of them expect no version");
    let versions = made.iter().map(|(version, ..)| *version);
    assert!(versions.eq(2..2 + made.len() as u64), "each commit has one version of its own");
    // What each version is: the commits one after the other.
    let mut states = vec![[0; 3], [255; 3]];
    for (_, place, value) in &made {
        let mut state = states[states.len() - 1];
        PLACES[*place].iter().for_each(|row| state[*row as usize] = *value);
        states.push(state);
    }
    for (version, found) in reads {
        assert_eq!(found, states[version as usize], "version {version}");
    }
    workers.stop();
}
