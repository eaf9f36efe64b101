//! Room that an arena tells of: exactly what a request then finds.

use super::*;
use crate::PAGE;

const SEGMENT: u64 = 256 * KI;

/// Asks for the largest block that is said to be there, then for a page more.
fn is_exact(arena: &Arena, owner: Owner, purpose: Purpose) {
    let room = arena.room(owner, purpose);
    assert!(room.usage.balances(), "{room:?}");
    assert!(!matches!(arena.allocate(owner, purpose, room.largest), Err(NoRoom::Full(_))), "{room:?}");
    let more = arena.allocate(owner, purpose, room.largest + PAGE);
    assert!(matches!(more, Err(NoRoom::Full(_) | NoRoom::Never { .. })), "{room:?}: {more:?}");
}

#[test]
fn free_ends_that_an_ended_session_left_are_told_apart_from_room_for_everyone() {
    let arena = start(options(2 * SEGMENT, SEGMENT));
    let kept = put(&arena, 1, SEGMENT / 4).unwrap();
    kept.mark_sealed().unwrap();
    arena.session_ended(1);
    let end = SEGMENT - SEGMENT / 4;

    let another = arena.room(Owner::Session(2), Purpose::Put);
    assert_eq!((another.largest, another.elsewhere, another.for_pulls), (SEGMENT, end, 0));
    assert_eq!(another.usage.free, SEGMENT + end);
    let sidecar = arena.room(Owner::Sidecar, Purpose::Put);
    assert_eq!((sidecar.largest, sidecar.elsewhere), (SEGMENT, 0));
    is_exact(&arena, Owner::Session(2), Purpose::Put);

    // Nothing is left but that end: it is free, and of no use to a session.
    let all = put(&arena, 2, SEGMENT).unwrap();
    let another = arena.room(Owner::Session(3), Purpose::Put);
    assert_eq!((another.largest, another.elsewhere, another.usage.free), (0, end, end));
    assert_eq!(arena.room(Owner::Sidecar, Purpose::Put).largest, end);
    is_exact(&arena, Owner::Session(3), Purpose::Put);
    is_exact(&arena, Owner::Sidecar, Purpose::Put);
    drop((kept, all));
}

#[test]
fn what_is_kept_for_pulls_is_no_room_for_puts() {
    let arena = start(ArenaOptions { pull_share: 0.25, ..options(4 * SEGMENT, SEGMENT) });
    let all: Vec<_> = (0..3).map(|_| put(&arena, 1, SEGMENT).unwrap()).collect();
    let puts = arena.room(Owner::Session(1), Purpose::Put);
    assert_eq!((puts.largest, puts.for_pulls, puts.usage.free), (0, SEGMENT, SEGMENT));
    let pulls = arena.room(Owner::Sidecar, Purpose::Pull);
    assert_eq!((pulls.largest, pulls.for_pulls), (SEGMENT, 0));
    is_exact(&arena, Owner::Session(1), Purpose::Put);
    is_exact(&arena, Owner::Sidecar, Purpose::Pull);
    drop(all);
}

#[test]
fn idle_segments_of_a_session_are_in_reach_of_another_and_no_room_before() {
    let arena = start(options(4 * SEGMENT, SEGMENT));
    let all: Vec<_> = (0..3).map(|_| put(&arena, 1, SEGMENT).unwrap()).collect();
    let room = || arena.room(Owner::Session(2), Purpose::Put);
    assert_eq!((room().largest, room().in_reach), (SEGMENT, SEGMENT));
    drop(all);
    assert_eq!((room().largest, room().in_reach), (SEGMENT, 4 * SEGMENT));
    // They come back once they are asked for.
    let told = arena.reclaim_held(3 * SEGMENT);
    assert_eq!(told.len(), 0, "nobody maps them: {told:?}");
    until("they have come back", || room().largest == 4 * SEGMENT);
    is_exact(&arena, Owner::Session(2), Purpose::Put);
}
