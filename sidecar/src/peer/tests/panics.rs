//! A thread of a connection that panics ends the connection and nothing else; the clock ends more.

use std::sync::Arc;

use super::world::*;
use crate::admin::{Health, Probe};
use crate::metrics::label::PanicScope;
use crate::peer::Known;
use crate::threads::Threads;

const BYTES: u64 = 4096;

/// Two whose threads tell their panics: `a` dials `b`, and one of them fails at some points.
fn watched(one: usize, points: &[&'static str]) -> (Arc<Table>, [Health; 2], [Threads; 2], One, One) {
    let (table, healths) = (Arc::new(Table::default()), [Health::new(), Health::new()]);
    let threads = healths.clone().map(Threads::new);
    points.iter().for_each(|point| threads[one].fail_at(point));
    let b = Start { threads: threads[1].clone(), ..Start::new("b") }.start(&table);
    let a = Start { threads: threads[0].clone(), listed: Some(nowhere()), ..Start::new("a") }.start(&table);
    b.twin.add(1, sealed(&b.arena, BYTES, 5), 1);
    (table, healths, threads, a, b)
}

#[test]
fn a_connection_whose_thread_panics_is_lost_and_the_next_one_takes_up_its_calls() {
    for (point, at_dialer, cut) in
        [("read", true, true), ("read", false, true), ("write", false, true), ("dial", true, false)]
    {
        let (table, healths, threads, a, b) = watched(usize::from(!at_dialer), &[point]);
        let (one, panicking) = if at_dialer { (&a, &threads[0]) } else { (&b, &threads[1]) };
        let bytes = || a.get("b", 1, BYTES).map(|bytes| bytes.len() as u64);
        if cut {
            assert_eq!(bytes(), Ok(BYTES), "{point}");
        } else {
            // A call that was there when the attempt failed has failed with it.
            until("the next attempt succeeds", || bytes() == Ok(BYTES));
        }
        until("it is counted", || panicking.panics(PanicScope::Connection) == 1);
        if cut {
            until("it is counted as ours", || one.peers.counters().closed.count("ours") == 1);
        }
        assert!(healths.iter().all(|health| health.ask(Probe::Alive).is_ok()));
        assert_eq!(table.all().len(), 2);
    }
}

#[test]
fn a_clock_that_panics_is_the_end_of_being_alive() {
    let (_table, healths, threads, a, b) = watched(0, &[]);
    a.connect("b");
    threads[0].fail_at("clock");
    until("it is known", || healths[0].ask(Probe::Alive).is_err());
    assert_eq!(healths[0].ask(Probe::Alive), Err("tl-peer-clock: its thread has panicked\n".to_owned()));
    assert_eq!(healths[1].ask(Probe::Alive), Ok(()));
    drop((a, b));
}
