//! Plain lanes, whose owner sums what it sends once, however many read it.

use super::*;

static PLAIN: Way = Way {
    counted: "lanes",
    name: "two plain lanes",
    lanes: LanesConfig { count: 2, plain: true, patience: PATIENCE, ..UNHURRIED },
    maps: None,
};

#[test]
fn what_was_summed_for_the_first_reader_is_what_the_next_one_proves_its_bytes_by() {
    let pair = Pair::new(&PLAIN);
    let bytes = 9 * MIB + 17;
    let owner = &pair.b;
    owner.twin.add(7, sealed(&owner.arena, bytes, 1), 1);
    let known = || owner.twin.sums.lock().get(&7).and_then(|sums| sums.of(&(0..bytes)));
    assert_eq!(known(), None);
    for _ in 0..2 {
        assert!(pair.a.get("b", 7, bytes).unwrap() == owner.own_bytes(7));
        assert_eq!(known(), Some(crc32c::crc32c(&owner.own_bytes(7))));
    }
    let sums = owner.twin.sums.lock().remove(&7).unwrap();
    // Sums of other bytes: if they are made anew, or not looked at, nobody minds.
    owner.twin.add(7, sealed(&owner.arena, bytes, 2), 1);
    owner.twin.sums.lock().insert(7, sums);
    assert_eq!(pair.a.get("b", 7, bytes).unwrap_err().reason, Reason::ChecksumMismatch);
    pair.assert_over();
}
