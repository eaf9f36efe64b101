use super::*;

const GPU: Gpu = [7; 16];
const OTHER: Gpu = [8; 16];
const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);

type Told = Table<&'static str, &'static str, &'static str>;

struct Scene {
    table: Told,
    start: Instant,
    now: Instant,
    polls: u64,
}

impl Scene {
    fn new() -> Self {
        let start = Instant::now();
        Self { table: Table::new(Limits { orders: 2, readers: 3 }), start, now: start, polls: 0 }
    }

    fn later(&mut self, by: Duration) {
        self.now += by;
    }

    fn want(&mut self, tensor: u64, reader: &'static str) -> Result<u64, Why> {
        let until = self.start + Duration::from_secs(60);
        self.table.want(Wanted { tensor: TensorId(tensor), gpu: GPU, bytes: 100, until }, reader)
    }

    fn poll(&mut self, session: SessionId, gpu: Gpu) -> Left<&'static str, &'static str> {
        self.polls += 1;
        let poll = (self.polls, "poll");
        self.table.poll(session, vec![gpu], poll, self.now).unwrap_or_else(|_| panic!("it polls once"))
    }

    /// Gives the next order, with room; the session and the number.
    fn give(&mut self) -> Option<(SessionId, u64, Cancel)> {
        let Given { number, session, cancel, .. } = self.table.give()?;
        assert_eq!(self.table.roomed(session, number, "block", self.now), Ok(()));
        Some((session, number, cancel))
    }
}

fn failed(left: &Left<&'static str, &'static str>) -> Vec<(Vec<&'static str>, Why)> {
    left.failed.iter().map(|failed| (failed.readers.clone(), failed.why.clone())).collect()
}

fn cannot() -> Failure {
    Failure::new(Reason::StagingFailed, "it cannot")
}

#[test]
fn readers_of_one_tensor_share_one_order_and_one_copy() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    let (_one, _two) = (s.want(1, "one").unwrap(), s.want(1, "two").unwrap());
    let (session, number, _) = s.give().unwrap();
    assert_eq!(session, A);
    assert!(s.give().is_none(), "there is no second order");
    let Written::Whole(wanted, "block") = s.table.written(A, number, 100, s.now) else {
        panic!("it is whole")
    };
    assert_eq!(s.table.counts(), (0, 1), "until it is entered");
    let (readers, cancel) = s.table.finish(wanted.tensor);
    assert_eq!((readers, cancel.is_none()), (vec!["one", "two"], true));
    assert!(s.table.is_idle());
}

#[test]
fn nobody_is_asked_who_does_not_reach_the_gpu_and_there_are_bounds() {
    let mut s = Scene::new();
    assert_eq!(s.want(1, "one"), Err(Why::Nobody));
    s.poll(A, OTHER);
    assert_eq!(s.want(1, "one"), Err(Why::Nobody));
    s.poll(B, GPU);
    for reader in ["one", "two", "three"] {
        s.want(1, reader).unwrap();
    }
    assert_eq!(s.want(1, "four"), Err(Why::Full(3)));
    s.want(2, "one").unwrap();
    assert_eq!(s.want(3, "one"), Err(Why::Full(2)));
    assert_eq!(s.give().unwrap().0, B);
    assert!(s.give().is_none(), "one at a time");
}

#[test]
fn who_stands_still_keeps_its_block_and_the_next_one_is_asked() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    s.want(1, "one").unwrap();
    let (_, first, _) = s.give().unwrap();
    s.poll(B, GPU);
    s.later(STALL / 2);
    assert!(s.table.progress(A, first, 10, s.now));
    s.later(STALL / 2);
    assert!(s.table.tick(s.now).stalled.is_empty(), "a byte came");
    assert!(s.table.progress(A, first, 10, s.now), "a word without a byte is none");
    s.later(STALL / 2);
    let left = s.table.tick(s.now);
    assert_eq!((left.stalled, left.blocks), (vec![A], vec![]));
    let (session, second, _) = s.give().unwrap();
    assert_eq!(session, B);
    assert!(!s.table.progress(A, first, 20, s.now), "it is not wanted of the first any more");
    assert!(
        matches!(s.table.written(A, first, 100, s.now), Written::Unwanted(left) if left.blocks == ["block"])
    );
    assert!(matches!(s.table.written(B, second, 100, s.now), Written::Whole(..)));
}

#[test]
fn where_none_is_left_the_last_reason_is_told() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    s.want(1, "one").unwrap();
    s.give().unwrap();
    s.later(STALL);
    assert!(s.table.tick(s.now).failed.is_empty(), "the first byte may take longer");
    s.later(FIRST - STALL);
    assert_eq!(failed(&s.table.tick(s.now)), [(vec!["one"], Why::Stalled)]);
    assert_eq!(s.want(1, "late"), Ok(3), "whoever comes later may find it awake");
    s.later(STALL);
    assert_eq!(failed(&s.table.tick(s.now)), [(vec!["late"], Why::Stalled)], "or not");
    s.poll(A, GPU);
    s.want(2, "two").unwrap();
    let (_, number, _) = s.give().unwrap();
    let left = s.table.gave_up(A, number, &cannot(), s.now).unwrap();
    assert_eq!((failed(&left), left.blocks), (vec![(vec!["two"], Why::Failed(cannot()))], vec!["block"]));
    assert!(s.table.is_idle());
}

#[test]
fn a_session_that_is_gone_takes_its_order_with_it_only_if_it_was_the_last() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    s.poll(B, GPU);
    s.want(1, "one").unwrap();
    let (first, ..) = s.give().unwrap();
    let (left, poll) = s.table.gone(first, s.now);
    assert_eq!((failed(&left), left.blocks, poll), (vec![], vec!["block"], None));
    let (second, ..) = s.give().unwrap();
    assert_ne!(first, second);
    let (left, _) = s.table.gone(second, s.now);
    assert_eq!(failed(&left), [(vec!["one"], Why::Nobody)]);
    s.poll(A, GPU);
    s.want(2, "two").unwrap();
    let (left, poll) = s.table.gone(A, s.now);
    assert_eq!((failed(&left), poll), (vec![(vec!["two"], Why::Nobody)], Some("poll")));
}

#[test]
fn the_last_reader_that_leaves_ends_the_order_and_the_session_hears_of_it() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    let (one, two) = (s.want(1, "one").unwrap(), s.want(1, "two").unwrap());
    let (_, number, cancel) = s.give().unwrap();
    assert!(s.table.leave(TensorId(1), one).cancels.is_empty());
    assert!(s.table.progress(A, number, 1, s.now));
    for ended in s.table.leave(TensorId(1), two).cancels {
        ended.cancel();
    }
    assert!(cancel.is_cancelled(), "nobody waits for room any more");
    assert!(!s.table.progress(A, number, 2, s.now));
    assert!(s.table.leave(TensorId(1), two).cancels.is_empty(), "again is nothing");
    assert!(s.table.gave_up(A, number + 1, &cannot(), s.now).is_none(), "another order");
    let left = s.table.gave_up(A, number, &cannot(), s.now).unwrap();
    assert_eq!((failed(&left), left.blocks), (vec![], vec!["block"]));
}

#[test]
fn room_that_comes_too_late_goes_back_and_none_is_the_readers_failure_unless_it_is_the_sessions() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    let one = s.want(1, "one").unwrap();
    let given = s.table.give().unwrap();
    s.table.leave(TensorId(1), one);
    assert_eq!(s.table.roomed(A, given.number, "late", s.now), Err("late"));
    for (theirs, why) in [(false, Why::Failed(cannot())), (true, Why::Failed(cannot()))] {
        s.poll(A, GPU);
        s.want(1, "one").unwrap();
        let given = s.table.give().unwrap();
        let left = s.table.unroomed(A, given.number, Why::Failed(cannot()), theirs, s.now);
        assert_eq!(failed(&left), [(vec!["one"], why)]);
    }
    s.poll(A, GPU);
    s.poll(B, GPU);
    s.want(1, "one").unwrap();
    let given = s.table.give().unwrap();
    let left = s.table.unroomed(given.session, given.number, Why::Stalled, true, s.now);
    assert!(left.failed.is_empty());
    assert_ne!(s.table.give().unwrap().session, given.session, "the other one is asked");
}

#[test]
fn who_lies_gets_nothing_entered() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    s.want(1, "one").unwrap();
    let (_, number, _) = s.give().unwrap();
    assert!(!s.table.progress(A, number + 1, 50, s.now), "another order");
    assert!(!s.table.progress(B, number, 50, s.now), "another session");
    assert!(matches!(s.table.written(B, number, 100, s.now), Written::Unwanted(_)));
    let Written::Unwanted(left) = s.table.written(A, number, 99, s.now) else { panic!("it is short") };
    assert!(matches!(&failed(&left)[..], [(readers, Why::Failed(_))] if *readers == ["one"]));
    assert!(matches!(s.table.written(A, number, 100, s.now), Written::Unwanted(_)), "a second time");
    s.poll(A, GPU);
    s.want(1, "one").unwrap();
    s.give().unwrap();
    // It asks for the next order, and says nothing of the one that it has: it may not have heard of it, once.
    let left = s.poll(A, GPU);
    assert_eq!((failed(&left), left.blocks), (vec![], vec!["block"]));
    s.give().unwrap();
    let left = s.poll(A, GPU);
    assert_eq!((failed(&left), left.blocks), (vec![(vec!["one"], Why::Stalled)], vec!["block"]));
    assert!(s.table.poll(A, vec![GPU], (99, "second"), s.now).is_err(), "one call at a time");
}

#[test]
fn a_session_that_does_not_ask_again_is_not_waited_for() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    assert_eq!(s.table.unpoll(A, 1, s.now), Some("poll"));
    s.want(1, "one").unwrap();
    assert!(s.table.tick(s.now).failed.is_empty(), "it may be back in a moment");
    s.later(STALL);
    assert_eq!(failed(&s.table.tick(s.now)), [(vec!["one"], Why::Stalled)]);
}

#[test]
fn a_session_that_goes_on_with_what_nobody_wants_is_waited_for() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    let one = s.want(1, "one").unwrap();
    let (_, number, _) = s.give().unwrap();
    s.table.leave(TensorId(1), one);
    s.want(2, "two").unwrap();
    s.later(STALL / 2);
    assert!(s.table.tick(s.now).failed.is_empty());
    s.table.progress(A, number, 10, s.now);
    s.later(STALL / 2);
    assert!(s.table.tick(s.now).failed.is_empty(), "it goes on");
    s.later(STALL / 2);
    assert_eq!(failed(&s.table.tick(s.now)), [(vec!["two"], Why::Stalled)]);
}

#[test]
fn an_order_that_its_session_never_heard_of_is_given_to_it_again_once() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    s.want(1, "one").unwrap();
    let (_, first, cancel) = s.give().unwrap();
    let left = s.poll(A, GPU);
    assert_eq!((failed(&left), left.blocks, left.stalled), (vec![], vec!["block"], vec![]));
    for ended in left.cancels {
        ended.cancel();
    }
    assert!(cancel.is_cancelled());
    let (session, second, _) = s.give().unwrap();
    assert_eq!(session, A, "although there is no other");
    assert!(s.table.gave_up(A, first, &cannot(), s.now).is_none(), "by its new number alone");
    assert_eq!(s.table.counts(), (0, 1));
    assert!(matches!(s.table.written(A, second, 100, s.now), Written::Whole(..)));
}

#[test]
fn room_that_is_missing_by_a_short_deadline_does_not_end_the_order_of_who_waits_for_longer() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    let wanted = |until| Wanted { tensor: TensorId(1), gpu: GPU, bytes: 100, until };
    let (short, long) = (s.now + Duration::from_secs(1), s.now + Duration::from_secs(60));
    s.table.want(wanted(short), "short").unwrap();
    let given = s.table.give().unwrap();
    assert_eq!(given.wanted.until, short);
    s.table.want(wanted(long), "long").unwrap();
    let left = s.table.unroomed(A, given.number, Why::Failed(cannot()), false, s.now);
    assert!(left.failed.is_empty());
    assert_eq!(s.table.counts(), (1, 0));
    s.poll(A, GPU);
    let given = s.table.give().unwrap();
    assert_eq!((given.session, given.wanted.until), (A, long), "that session is asked again, for longer");
    let left = s.table.unroomed(A, given.number, Why::Failed(cannot()), false, s.now);
    assert_eq!(failed(&left), [(vec!["short", "long"], Why::Failed(cannot()))], "for as long as any waits");
}

#[test]
fn an_order_that_a_copy_from_before_has_finished_is_not_wanted_of_who_has_it() {
    let mut s = Scene::new();
    s.poll(A, GPU);
    s.poll(B, GPU);
    let one = s.want(1, "one").unwrap();
    let (first, number, _) = s.give().unwrap();
    assert!(matches!(s.table.written(first, number, 100, s.now), Written::Whole(..)));
    // Before the copy is entered its reader leaves, and another one comes.
    s.table.leave(TensorId(1), one);
    s.want(1, "two").unwrap();
    let (second, stale, cancel) = s.give().unwrap();
    assert_ne!(first, second);
    let (readers, ended) = s.table.finish(TensorId(1));
    assert_eq!(readers, ["two"]);
    ended.unwrap().cancel();
    assert!(cancel.is_cancelled(), "no room is made for it any more");
    // The next order of that tensor is not the one that the second still has.
    s.want(1, "three").unwrap();
    assert!(!s.table.progress(second, stale, 10, s.now));
    assert!(
        matches!(s.table.written(second, stale, 100, s.now), Written::Unwanted(left) if left.failed.is_empty())
    );
    assert_eq!(s.table.counts(), (1, 0), "queued once");
    s.poll(second, GPU);
    assert!(s.give().is_some());
    assert!(s.give().is_none());
    assert_eq!(s.table.counts(), (0, 1));
}
