use std::sync::mpsc;

use tensorlane_memory::{Arena, Block};
use tensorlane_proto::{Incarnation, generated as v1};

use super::super::pieces::GRANULE;
use super::*;
use crate::peer::paths::Paths;
use crate::peer::tests::world::{arena, block};
use crate::peer::transport::Way;

fn transfer(bytes: u64) -> (Arc<Arena>, Block, Arc<Transfer>) {
    let arena = arena(16 << 20);
    let block = block(&arena, bytes);
    let transfer = Transfer::new(1, block.landing().unwrap(), 0, Instant::now() + Duration::from_secs(80));
    (arena, block, transfer)
}

/// Asks for the next piece and begins to write it.
fn take(transfer: &Transfer, granules: u64) -> Option<Part> {
    transfer.reserve(granules).map(|reserved| transfer.begin(&reserved).unwrap())
}

fn landed(transfer: &Transfer, part: Part, crc32c: Option<u32>) -> Landed {
    landed_of(transfer, part, crc32c, 0)
}

/// Lands a piece that was asked for under another control connection.
fn landed_of(transfer: &Transfer, part: Part, crc32c: Option<u32>, epoch: u64) -> Landed {
    let reserved = Reserved { range: part.range(), epoch };
    transfer.landed(Brought { part, reserved, crc32c, lane: 9, claim: None })
}

fn stopped(transfer: &Transfer) -> (Option<Finish>, mpsc::Receiver<u64>) {
    let (tell, told) = mpsc::channel();
    let finish = transfer.stop(Box::new(move |landing| tell.send(landing.len()).unwrap()));
    (finish, told)
}

#[test]
fn whoever_brings_the_last_piece_gets_the_landing() {
    let (_arena, block, transfer) = transfer(3 * GRANULE + 5);
    let (first, second) = (take(&transfer, 2).unwrap(), take(&transfer, 4).unwrap());
    assert_eq!((first.range(), second.range()), (0..2 * GRANULE, 2 * GRANULE..3 * GRANULE + 5));
    assert!(take(&transfer, 1).is_none() && transfer.untaken() == 0);
    assert!(matches!(landed(&transfer, second, None), Landed::More));
    let Landed::Whole(landing) = landed(&transfer, first, None) else { panic!("all is here") };
    drop(landing);
    block.mark_sealed().unwrap();
}

#[test]
fn it_waits_for_a_lane_as_long_as_there_is_time_for_another_way() {
    let (_arena, _block, transfer) = transfer(GRANULE);
    let (began, most) = (transfer.begun, Duration::from_secs(20));
    let quarter = transfer.allowance(began);
    assert!(quarter <= most && quarter > most / 2);
    assert_eq!(transfer.waits_until(began, most), began + quarter);
    assert_eq!(transfer.waits_until(began - most, most), began + quarter, "before it began it did not wait");
    assert_eq!(transfer.waits_until(began, most / 4), began + most / 4);
    let late = began + Duration::from_secs(600);
    assert_eq!(transfer.waits_until(late, most), late, "its time is over");
}

#[test]
fn what_came_is_counted_with_the_lanes_that_brought_it() {
    let (_arena, _block, transfer) = transfer(GRANULE);
    let b = PeerKey { name: crate::peer::tests::world::name("b"), incarnation: Incarnation(1) };
    for (number, bytes, is_plain) in [(0, 5, false), (7, 6, true), (0, 7, false)] {
        let lane = OnLane { number, is_plain };
        transfer.came(lane, bytes, &b.name, Some(&b));
    }
    let travelled = transfer.travelled();
    assert_eq!((travelled.bytes, travelled.plain, travelled.lanes), (18, 6, 2));
    let again = transfer.travelled();
    assert_eq!((again.bytes, again.plain, again.lanes), (0, 0, 0), "told once");
    let mut told = Paths::default();
    for travelled in [travelled, again] {
        told.came(Way::Lanes, travelled);
    }
    let told: Vec<v1::Sender> = told.senders().into();
    assert_eq!(told, [v1::Sender { peer: "b".to_owned(), bytes: 18 }], "so is who sent them");
}

#[test]
fn what_is_stopped_is_told_when_the_last_part_is_back_and_gives_out_no_more() {
    let (_arena, _block, transfer) = transfer(4 * GRANULE);
    let (first, second) = (take(&transfer, 1).unwrap(), take(&transfer, 1).unwrap());
    let (finish, told) = stopped(&transfer);
    assert!(finish.is_none() && transfer.is_over() && take(&transfer, 1).is_none());
    assert!(transfer.give_back(first).is_none() && told.try_recv().is_err());
    let Landed::Told(finish) = landed(&transfer, second, None) else { panic!("the last part is back") };
    finish();
    assert_eq!(told.recv(), Ok(4 * GRANULE));
}

#[test]
fn what_was_asked_for_and_has_not_begun_holds_up_nobody() {
    let (_arena, _block, transfer) = transfer(4 * GRANULE);
    let (first, second) = (take(&transfer, 1).unwrap(), transfer.reserve(1).unwrap());
    let (finish, told) = stopped(&transfer);
    assert!(finish.is_none());
    transfer.give_back(first).unwrap()();
    assert_eq!(told.recv(), Ok(4 * GRANULE));
    assert!(transfer.begin(&second).is_none(), "its bytes go nowhere");
}

#[test]
fn while_bytes_come_a_pull_is_not_tired_of_lanes() {
    let (_arena, _block, transfer) = transfer(GRANULE);
    let (since, most) = (transfer.begun, Duration::from_millis(10));
    assert!(!transfer.has_moved() && transfer.waits_until(since, most) == since + most);
    transfer.moves();
    assert!(transfer.has_moved() && transfer.waits_until(since, most) > since + most);
}

#[test]
fn a_landing_is_taken_back_only_while_nobody_writes_it() {
    let (_arena, _block, transfer) = transfer(4 * GRANULE);
    let (first, second) = (take(&transfer, 1).unwrap(), take(&transfer, 2).unwrap());
    assert!(transfer.reclaim().is_none());
    assert!(matches!(landed(&transfer, first, None), Landed::More));
    assert!(transfer.give_back(second).is_none());
    let Reclaimed { landing, prefix, ahead } = transfer.reclaim().unwrap();
    assert_eq!((landing.len(), prefix, ahead), (4 * GRANULE, GRANULE, Vec::new()));
    assert!(transfer.reclaim().is_none() && transfer.untaken() == 0);
}

#[test]
fn a_stop_after_the_last_piece_gets_the_landing_from_whoever_has_it() {
    let (_arena, _block, transfer) = transfer(GRANULE);
    let Landed::Whole(landing) = landed(&transfer, take(&transfer, 1).unwrap(), None) else { panic!() };
    let (finish, told) = stopped(&transfer);
    assert!(finish.is_none());
    transfer.unwanted(landing).unwrap()();
    assert_eq!(told.recv(), Ok(GRANULE));
}

#[test]
fn a_piece_has_landed_when_both_ends_agree_on_its_sum_whichever_comes_first() {
    let (_arena, _block, transfer) = transfer(3 * GRANULE);
    let mut parts: Vec<Part> = (0..3).map(|_| take(&transfer, 1).unwrap()).collect();
    assert!(matches!(transfer.sum(0, GRANULE, 7), Some(Landed::More)));
    assert!(matches!(landed(&transfer, parts.remove(0), Some(7)), Landed::More));
    // A sum of an answer that was cut short, and then the right one.
    assert!(matches!(transfer.sum(GRANULE, 5, 1), Some(Landed::More)));
    assert!(matches!(landed(&transfer, parts.remove(0), Some(8)), Landed::More));
    assert!(matches!(transfer.sum(GRANULE, GRANULE, 8), Some(Landed::More)));
    assert!(matches!(landed(&transfer, parts.remove(0), Some(9)), Landed::More));
    let altered = transfer.sum(2 * GRANULE, GRANULE, 10);
    assert!(matches!(altered, Some(Landed::Altered(piece, 9)) if piece == (2 * GRANULE..3 * GRANULE)));
}

#[test]
fn without_its_sum_a_piece_is_asked_for_again_on_the_next_connection() {
    let (_arena, _block, transfer) = transfer(GRANULE);
    assert!(matches!(landed(&transfer, take(&transfer, 1).unwrap(), Some(1)), Landed::More));
    assert!(take(&transfer, 1).is_none());
    transfer.forget_sums();
    let late = take(&transfer, 1).unwrap();
    assert!(
        matches!(landed_of(&transfer, late, Some(1), 0), Landed::More),
        "its sum went with its connection"
    );
    assert!(take(&transfer, 1).is_some());
    for sum in 0..SUMS_MAX as u64 {
        assert!(transfer.sum(sum, 1, 1).is_some());
    }
    assert!(transfer.sum(u64::MAX, 1, 1).is_none());
}

#[test]
fn a_sum_that_is_not_said_in_time_is_not_waited_for_and_is_as_good_when_it_comes_late() {
    let (_arena, _block, transfer) = transfer(GRANULE);
    let before = Instant::now();
    assert!(matches!(landed(&transfer, take(&transfer, 1).unwrap(), Some(1)), Landed::More));
    transfer.forget_unsummed(before);
    assert!(take(&transfer, 1).is_none(), "it has just come");
    transfer.forget_unsummed(Instant::now() + Duration::from_secs(1));
    let again = take(&transfer, 1).unwrap();
    assert!(matches!(transfer.sum(0, GRANULE, 1), Some(Landed::More)), "it was on its way");
    assert!(matches!(landed(&transfer, again, Some(1)), Landed::Whole(_)));
}

#[test]
fn sums_that_come_again_for_what_has_landed_are_not_kept() {
    let (_arena, _block, transfer) = transfer(2 * GRANULE);
    assert!(matches!(landed(&transfer, take(&transfer, 1).unwrap(), Some(1)), Landed::More));
    for _ in 0..2 * SUMS_MAX {
        assert!(matches!(transfer.sum(0, GRANULE, 1), Some(Landed::More)));
    }
    for sum in 1..=SUMS_MAX as u64 {
        assert!(transfer.sum(GRANULE + sum, 1, 1).is_some(), "there is room for all others");
    }
}
