//! Processes that map rows of a mutable set are killed, stopped and forked: commits go on when nobody can look any more.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal;
use tensorlane_client::Client;
use tensorlane_client::set::mutable::{MutableSet, Place, SetSpec};
use tensorlane_proto::{DType, Range, Reason, Selection};
use tensorlane_tests::{Sidecar, Workload, failure_in_time};

const WIDE: u64 = 100_000;
/// Time after which a commit to mapped rows gives up.
const SHORT: Duration = Duration::from_millis(300);

fn made(sidecar: &Sidecar) -> (Client, MutableSet) {
    let client = sidecar.client();
    let spec = SetSpec::new("replay", 50).leaf("obs", DType::U8, &[WIDE]).contiguous();
    let set = client.create_set(&spec).unwrap();
    write(&set, 0, 50, 1).unwrap();
    (client, set)
}

fn write(set: &MutableSet, first: u64, stop: u64, value: u8) -> tensorlane_client::Result<u64> {
    let obs = vec![value; usize::try_from((stop - first) * WIDE).unwrap()];
    let rows = Place::Rows(Selection::Ranges(vec![Range::new(first, stop)]));
    let leaves = BTreeMap::from([("obs", &obs[..])]);
    set.write(&rows, stop - first, &leaves, None).map(|committed| committed.version)
}

/// Set for commits that are refused: what succeeds may take longer on a busy machine.
fn hasty(sidecar: &Sidecar, set: &MutableSet) -> MutableSet {
    sidecar.client().with_deadline(SHORT).mutable_set(set.info())
}

/// A commit is refused, and says which process holds its rows.
fn assert_held_by(set: &MutableSet, holder: &Workload) {
    let refused = failure_in_time(|| write(set, 25, 26, 9));
    assert_eq!(refused.reason, Reason::DeadlineExceeded, "{refused}");
    assert!(refused.message.contains(&format!("process {})", holder.pid())), "{refused}");
}

#[test]
fn a_commit_goes_on_when_whoever_maps_its_rows_is_killed() {
    let sidecar = Sidecar::start();
    let (client, set) = made(&sidecar);
    let hasty = hasty(&sidecar, &set);
    for round in 0..5 {
        let mut holder = Workload::start(&sidecar);
        assert_eq!(holder.ask("map replay 20 30", "mapped"), (1 + round).to_string());
        assert_held_by(&hasty, &holder);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&set, 20, 30, 2));
            holder.kill_alone();
            assert_eq!(writer.join().unwrap().unwrap(), 2 + round);
        });
    }
    client.drop_set("replay").unwrap();
    drop((client, set, hasty));
    sidecar.assert_all_free();
}

#[test]
fn a_commit_says_who_is_stopped_and_goes_on_with_it() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    let mut holder = Workload::start(&sidecar);
    holder.ask("map replay 20 30", "mapped");
    holder.stop();
    assert_held_by(&hasty(&sidecar, &set), &holder);
    assert_eq!(write(&set, 30, 50, 2).unwrap(), 2, "other rows are written");
    holder.signal(Signal::CONT);
    assert_eq!(holder.ask("value", "value"), "1");
    holder.ask("drop", "dropped");
    assert_eq!(write(&set, 20, 30, 3).unwrap(), 3);
}

#[test]
fn rows_stay_held_while_a_forked_child_may_look_at_them() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    let mut holder = Workload::start(&sidecar);
    holder.ask("map replay 20 30", "mapped");
    let child = holder.fork();
    assert_held_by(&hasty(&sidecar, &set), &holder);
    holder.kill_alone();
    assert_held_by(&hasty(&sidecar, &set), &holder);
    child.kill();
    assert_eq!(write(&set, 20, 30, 3).unwrap(), 2);
}

#[test]
fn rows_that_are_mapped_stay_readable_when_their_sidecar_is_killed() {
    let mut sidecar = Sidecar::start();
    let (client, set) = made(&sidecar);
    let mut holder = Workload::start(&sidecar);
    holder.ask("map replay 20 30", "mapped");
    sidecar.kill();
    assert_eq!(holder.ask("value", "value"), "1");
    drop((client, set));
    sidecar.start_again();
    let (_client, _set) = made(&sidecar);
    assert_eq!(holder.ask("value", "value"), "1", "another life has other memory");
}
