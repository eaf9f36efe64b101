use std::collections::BTreeSet;

use proptest::prelude::*;
use tensorlane_proto::allowed::{LISTS_BYTES_MAX, PATTERN_BYTES_MAX, PATTERNS_MAX};

use super::*;

const FROM: SessionId = SessionId(1);
const TO: SessionId = SessionId(2);

/// The listener of [`one`].
const LISTENER: u64 = 1;

type Named = Table<&'static str>;

fn party(session: SessionId) -> Party {
    Party { session, account: session, client: Arc::from(format!("client-{}", session.0)), peer: None }
}

fn name() -> TensorName {
    TensorName::new("inbox").unwrap()
}

/// A pipe from `FROM` to `TO`, not accepted.
fn one() -> (Named, u64) {
    let mut table = Named::default();
    table.listen(party(TO), name(), AllowedPeers::All).unwrap();
    let (pipe, other, effects) = table.connect(party(FROM), &name(), None).unwrap().unwrap();
    assert_eq!((other, effects), (party(TO), Vec::new()));
    (table, pipe)
}

fn show(to: &'static str, sequence: u64, message: &'static str) -> Effect<&'static str> {
    Effect::Show { to, sequence, message: Bytes::from(message) }
}

/// Lists who failed, with the reason and what is said of the delivery.
fn failed(effects: &[Effect<&'static str>]) -> Vec<(&'static str, Reason, Option<String>)> {
    let told = |effect: &Effect<&'static str>| match effect {
        Effect::Fail { to, why } => Some((*to, why.reason, why.detail("delivered").map(str::to_owned))),
        _ => None,
    };
    effects.iter().filter_map(told).collect()
}

#[test]
fn a_write_is_over_when_the_other_side_has_taken_its_message() {
    let (mut table, pipe) = one();
    assert_eq!(table.write(FROM, pipe, 1, "a".into(), "w1").unwrap(), []);
    assert_eq!(table.taken(TO, pipe + 1, 1), [], "what was not shown was not read");
    assert_eq!(table.read(TO, pipe + 1, 1, "r").unwrap(), [show("r", 1, "a")]);
    assert_eq!(table.taken(FROM, pipe, 1), [], "its writer does not read it");
    assert_eq!(table.taken(TO, pipe + 1, 1), [Effect::Written { to: "w1" }]);
    assert_eq!(table.taken(TO, pipe + 1, 1), [], "taken once");
    assert_eq!((table.totals().messages, table.totals().unread), (1, 0));
}

#[test]
fn messages_are_shown_in_the_order_of_writes_and_again_until_they_are_taken() {
    let (mut table, pipe) = one();
    assert_eq!(table.read(TO, pipe + 1, 1, "early").unwrap(), []);
    assert_eq!(table.write(FROM, pipe, 1, "a".into(), "w1").unwrap(), [show("early", 1, "a")]);
    table.write(FROM, pipe, 2, "b".into(), "w2").unwrap();
    assert_eq!(table.read(TO, pipe + 1, 2, "r").unwrap(), [show("r", 2, "b")]);
    assert_eq!(table.read(TO, pipe + 1, 1, "r").unwrap(), [show("r", 1, "a")]);
    let late = table.write(FROM, pipe, 2, "c".into(), "w3").unwrap_err();
    assert_eq!(late.reason, Reason::InvalidArgument);
}

#[test]
fn a_message_is_shown_to_every_reader_that_waits_for_it_or_for_an_earlier_one() {
    let (mut table, pipe) = one();
    for (from, reader) in [(1, "again"), (3, "later"), (2, "next")] {
        assert_eq!(table.read(TO, pipe + 1, from, reader).unwrap(), []);
    }
    let shown = table.write(FROM, pipe, 2, "b".into(), "w2").unwrap();
    assert_eq!(shown, [show("again", 2, "b"), show("next", 2, "b")]);
    assert_eq!(table.write(FROM, pipe, 3, "c".into(), "w3").unwrap(), [show("later", 3, "c")]);
}

#[test]
fn both_sides_write_before_either_reads() {
    let (mut table, pipe) = one();
    table.write(FROM, pipe, 1, "there".into(), "w").unwrap();
    table.write(TO, pipe + 1, 1, "back".into(), "v").unwrap();
    assert_eq!(table.read(FROM, pipe, 1, "r").unwrap(), [show("r", 1, "back")]);
    assert_eq!(table.read(TO, pipe + 1, 1, "s").unwrap(), [show("s", 1, "there")]);
    assert_eq!(table.taken(FROM, pipe, 1), [Effect::Written { to: "v" }]);
}

#[test]
fn accepts_and_connects_queue_in_either_order() {
    let mut table = Named::default();
    assert!(table.connect(party(FROM), &name(), Some("c")).unwrap().is_none());
    let (listener, waited) = table.listen(party(TO), name(), AllowedPeers::All).unwrap();
    assert_eq!(waited, [Effect::Listens { to: "c" }]);
    assert_eq!(table.accept(TO, listener, "a1").unwrap(), None);
    let (first, _, effects) = table.connect(party(FROM), &name(), None).unwrap().unwrap();
    assert_eq!(effects, [Effect::Accepted { to: "a1", pipe: first + 1, other: party(FROM) }]);
    let (second, ..) = table.connect(party(FROM), &name(), None).unwrap().unwrap();
    assert_eq!(table.accept(TO, listener, "a2").unwrap(), Some((second + 1, party(FROM))));
    assert_eq!(table.accept(FROM, listener, "a3").unwrap_err().reason, Reason::NotFound);
    assert_eq!(table.listen(party(FROM), name(), AllowedPeers::All).unwrap_err().reason, Reason::NameTaken);
}

#[test]
fn an_end_of_the_reader_gives_every_message_back_and_says_which_may_have_been_read() {
    let (mut table, pipe) = one();
    table.write(FROM, pipe, 1, "a".into(), "w1").unwrap();
    table.write(FROM, pipe, 2, "b".into(), "w2").unwrap();
    table.read(TO, pipe + 1, 1, "r").unwrap();
    let ended = failed(&table.end_session(TO));
    let unknown = ("w1", Reason::PipeLost, Some("unknown".to_owned()));
    assert_eq!(ended, [unknown, ("w2", Reason::PipeLost, Some("no".to_owned()))]);
    let late = table.write(FROM, pipe, 3, "c".into(), "w3").unwrap_err();
    assert_eq!(late.reason, Reason::PipeLost);
    table.close(FROM, pipe, Ended::Closed);
    assert_eq!(table.totals(), PipeTotals::default());
    assert!(table.names.is_empty() && table.waiting.is_empty());
}

#[test]
fn finish_is_an_end_behind_the_last_message_also_after_the_writer_has_closed() {
    let (mut table, pipe) = one();
    table.write(FROM, pipe, 1, "a".into(), "w1").unwrap();
    assert_eq!(table.finish(FROM, pipe), []);
    let late = table.write(FROM, pipe, 2, "b".into(), "w2").unwrap_err();
    assert_eq!(late.reason, Reason::PipeClosed);
    assert_eq!(table.read(TO, pipe + 1, 1, "r").unwrap(), [show("r", 1, "a")]);
    assert_eq!(table.read(TO, pipe + 1, 2, "r").unwrap(), [Effect::End { to: "r" }]);
    table.taken(TO, pipe + 1, 1);
    assert_eq!(table.close(FROM, pipe, Ended::Closed), []);
    assert_eq!(table.read(TO, pipe + 1, 2, "r").unwrap(), [Effect::End { to: "r" }]);
}

#[test]
fn a_close_without_finish_is_an_error_at_the_other_end() {
    let (mut table, pipe) = one();
    table.accept(TO, LISTENER, "a").unwrap();
    table.read(TO, pipe + 1, 1, "r").unwrap();
    let effects = table.close(FROM, pipe, Ended::Closed);
    assert_eq!(failed(&effects), [("r", Reason::PipeClosed, None)]);
    assert_eq!(table.read(TO, pipe + 1, 1, "r").unwrap_err().reason, Reason::PipeClosed);
    assert_eq!(table.read(FROM, pipe, 1, "r").unwrap_err().reason, Reason::NotFound);
}

#[test]
fn whoever_gives_up_leaves_nothing() {
    let (mut table, pipe) = one();
    table.write(FROM, pipe, 1, "a".into(), "w1").unwrap();
    assert_eq!(table.forget(&Waits::Reader(pipe, 1), |w| *w == "other"), None);
    assert_eq!(table.forget(&Waits::Reader(pipe, 1), |w| *w == "w1"), Some(false));
    table.write(FROM, pipe, 2, "b".into(), "w2").unwrap();
    table.read(TO, pipe + 1, 1, "r").unwrap();
    assert_eq!(table.forget(&Waits::Reader(pipe, 2), |w| *w == "w2"), Some(true));
    assert_eq!(table.taken(TO, pipe + 1, 2), []);
    table.read(TO, pipe + 1, 1, "r2").unwrap();
    assert_eq!(table.forget(&Waits::Message(pipe + 1), |w| *w == "r2"), Some(false));
    assert_eq!(table.write(FROM, pipe, 3, "c".into(), "w3").unwrap(), [], "nobody waits for it");
    assert_eq!(table.forget(&Waits::Reader(pipe, 3), |w| *w == "w3"), Some(false));
    let nowhere = TensorName::new("nowhere").unwrap();
    table.connect(party(FROM), &nowhere, Some("c")).unwrap();
    assert_eq!(table.forget(&Waits::Listener(nowhere), |w| *w == "c"), Some(false));
    assert!(table.waiting.is_empty());
}

#[test]
fn an_end_of_a_listener_ends_what_it_has_not_accepted() {
    let (mut table, pipe) = one();
    table.write(FROM, pipe, 1, "a".into(), "w1").unwrap();
    let (listener, _) =
        table.listen(party(TO), TensorName::new("other").unwrap(), AllowedPeers::All).unwrap();
    table.accept(TO, listener, "a1").unwrap();
    assert_eq!(failed(&table.end_listener(TO, listener, Ended::Closed)), [("a1", Reason::PipeClosed, None)]);
    let ended = failed(&table.end_listener(TO, 1, Ended::Closed));
    assert_eq!(ended, [("w1", Reason::PipeClosed, Some("no".to_owned()))]);
    assert_eq!(table.totals().listeners, 0);
}

#[test]
fn unread_messages_have_a_bound_that_names_who_does_not_read() {
    let (mut table, pipe) = one();
    for sequence in 1..=UNREAD_MAX as u64 {
        table.write(FROM, pipe, sequence, "a".into(), "w").unwrap();
    }
    let full = table.write(FROM, pipe, 1_000, "a".into(), "w").unwrap_err();
    assert_eq!((full.reason, full.detail("client")), (Reason::LimitExceeded, Some("client-2")));
    table.read(TO, pipe + 1, 1, "r").unwrap();
    table.taken(TO, pipe + 1, 1);
    assert!(table.write(FROM, pipe, 1_000, "a".into(), "w").is_ok());
}

#[test]
fn a_session_may_have_both_ends() {
    let mut table = Named::default();
    let (listener, _) = table.listen(party(FROM), name(), AllowedPeers::All).unwrap();
    let (near, ..) = table.connect(party(FROM), &name(), None).unwrap().unwrap();
    let (far, _) = table.accept(FROM, listener, "a").unwrap().unwrap();
    table.write(FROM, near, 1, "a".into(), "w").unwrap();
    assert_eq!(table.read(FROM, far, 1, "r").unwrap(), [show("r", 1, "a")]);
    assert_eq!(table.taken(FROM, far, 1), [Effect::Written { to: "w" }]);
    table.end_session(FROM);
    assert_eq!((table.totals().pipes, table.totals().listeners), (0, 0));
}

/// A connection of another peer.
fn peer(session: SessionId) -> Party {
    Party { peer: Some("there".parse().unwrap()), ..party(session) }
}

#[test]
fn bytes_that_are_unread_have_a_bound_for_a_writer_and_one_for_all_and_end_with_their_messages() {
    let mut table = Named::default();
    let (listener, _) = table.listen(party(TO), name(), AllowedPeers::All).unwrap();
    let large = Bytes::from(vec![0; 1 << 20]);
    let mut pipes = Vec::new();
    for writer in 10..15 {
        let writer = SessionId(writer);
        let (pipe, ..) = table.connect(party(writer), &name(), None).unwrap().unwrap();
        for sequence in 1..=8 {
            let written = table.write(writer, pipe, sequence, large.clone(), "w");
            // The fifth one finds all room taken by the others.
            assert_eq!(written.is_err(), pipes.len() == 4, "{writer:?} {sequence}");
        }
        let full = table.write(writer, pipe, 9, large.clone(), "w").unwrap_err();
        assert_eq!((full.reason, full.detail("most").is_some()), (Reason::LimitExceeded, true));
        assert!(table.write(writer, pipe, 9, Bytes::new(), "w").is_ok(), "one without bytes takes none");
        pipes.push((writer, pipe));
    }
    let (writer, pipe) = pipes[0];
    table.read(TO, pipe + 1, 1, "r").unwrap();
    table.taken(TO, pipe + 1, 1);
    assert_eq!(table.forget(&Waits::Reader(pipe, 2), |_| true), Some(false));
    assert_eq!(table.budget.bytes(), 30 << 20);
    assert!(table.write(writer, pipe, 10, large.clone(), "w").is_ok());
    table.end_session(pipes[1].0);
    table.end_listener(TO, listener, Ended::Closed);
    assert_eq!(table.budget.bytes(), 0);
}

#[test]
fn a_connection_of_a_peer_has_its_pipes_and_no_others() {
    let mut table = Named::default();
    let (listener, _) = table.listen(party(TO), name(), AllowedPeers::All).unwrap();
    let (near, other) = (SessionId(1 << 63), SessionId(1 << 63 | 1));
    let (pipe, ..) = table.connect(peer(near), &name(), None).unwrap().unwrap();
    assert_eq!(table.accept(TO, listener, "a").unwrap(), Some((pipe + 1, peer(near))));
    for stranger in [other, FROM] {
        assert_eq!(table.write(stranger, pipe, 1, "a".into(), "w").unwrap_err().reason, Reason::NotFound);
        assert_eq!(table.read(stranger, pipe, 1, "r").unwrap_err().reason, Reason::NotFound);
        assert_eq!(table.taken(stranger, pipe, 1), []);
        assert_eq!(table.finish(stranger, pipe), []);
        assert_eq!(table.close(stranger, pipe, Ended::Closed), []);
    }
    table.write(near, pipe, 1, "a".into(), "w").unwrap();
    table.read(TO, pipe + 1, 2, "r").unwrap();
    let ended = failed(&table.end_session(near));
    assert_eq!(ended, [("w", Reason::PipeClosed, Some("no".to_owned())), ("r", Reason::PipeLost, None)]);
    let lost = table.write(TO, pipe + 1, 1, "b".into(), "w").unwrap_err();
    assert!(lost.message.contains("of peer there"), "{lost}");
}

#[test]
fn a_connect_that_comes_again_after_a_lost_connection_is_accepted_once() {
    let mut table = Named::default();
    let (listener, _) = table.listen(party(TO), name(), AllowedPeers::All).unwrap();
    let (first, again) = (SessionId(1 << 63), SessionId(1 << 63 | 1));
    table.connect(peer(first), &name(), None).unwrap().unwrap();
    table.end_session(first);
    let (pipe, ..) = table.connect(peer(again), &name(), None).unwrap().unwrap();
    assert_eq!(table.accept(TO, listener, "a").unwrap(), Some((pipe + 1, peer(again))));
    assert_eq!(table.accept(TO, listener, "a").unwrap(), None);
    assert_eq!(table.totals().pipes, 1);
}

#[test]
fn whoever_connects_and_closes_again_and_again_fills_no_listener() {
    let mut table = Named::default();
    let (listener, _) = table.listen(party(TO), name(), AllowedPeers::All).unwrap();
    for _ in 0..SESSION_PIPES_MAX + 1 {
        let (pipe, ..) = table.connect(party(FROM), &name(), None).unwrap().unwrap();
        table.close(FROM, pipe, Ended::Closed);
    }
    assert_eq!(table.totals().pipes, 0);
    assert_eq!(table.accept(TO, listener, "a").unwrap(), None);
    // What an end said before it closed is heard: these are kept, and bounded.
    let (listener, _) =
        table.listen(party(TO), TensorName::new("other").unwrap(), AllowedPeers::All).unwrap();
    let other = TensorName::new("other").unwrap();
    for _ in 0..SESSION_PIPES_MAX / 2 {
        let (pipe, ..) = table.connect(party(FROM), &other, None).unwrap().unwrap();
        table.finish(FROM, pipe);
        table.close(FROM, pipe, Ended::Closed);
    }
    let full = table.connect(party(FROM), &other, None).unwrap_err();
    assert_eq!(full.reason, Reason::LimitExceeded);
    let (pipe, _) = table.accept(TO, listener, "b").unwrap().unwrap();
    assert_eq!(table.read(TO, pipe, 1, "r").unwrap(), [Effect::End { to: "r" }]);
}

#[test]
fn pipes_that_wait_to_be_accepted_have_a_share_for_each_session_and_peer() {
    let mut table = Named::default();
    let (listener, _) = table.listen(party(TO), name(), AllowedPeers::All).unwrap();
    let second = TensorName::new("second").unwrap();
    table.listen(party(TO), second.clone(), AllowedPeers::All).unwrap();
    let (near, again) = (SessionId(1 << 63), SessionId(1 << 63 | 1));
    let connect_all = |table: &mut Named, from: &Party| {
        let mut made = Vec::new();
        loop {
            match table.connect(from.clone(), &name(), None) {
                Ok(pipe) => made.push(pipe.unwrap().0),
                Err(refused) => return (made, refused),
            }
        }
    };
    let (_, refused) = connect_all(&mut table, &party(FROM));
    assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("512")));
    assert!(refused.message.contains("client-1") && refused.message.contains("inbox"), "{refused}");
    // The session of both listeners is one.
    assert_eq!(table.connect(party(FROM), &second, None).unwrap_err().detail("most"), Some("512"));
    let (of_peer, refused) = connect_all(&mut table, &peer(near));
    assert_eq!((of_peer.len(), refused.detail("most")), (256, Some("256")));
    // What its lost connection has left there counts with the next one.
    of_peer.iter().for_each(|pipe| drop(table.finish(near, *pipe)));
    table.end_session(near);
    assert!(connect_all(&mut table, &peer(again)).0.is_empty());
    // Those that are accepted count no more, and whoever waits to accept takes any.
    while table.accept(TO, listener, "a").unwrap().is_some() {}
    let (more, refused) = connect_all(&mut table, &party(FROM));
    assert_eq!((more.len(), refused.detail("most")), (129, Some("128")));
}

/// Opens listeners of a session until one is refused; how many there are, and the refusal.
fn listen_all(table: &mut Named, session: SessionId, allowed: &AllowedPeers) -> (usize, Failure) {
    for number in 0.. {
        let name = TensorName::new(&format!("{}/{number}", session.0)).unwrap();
        if let Err(refused) = table.listen(party(session), name, allowed.clone()) {
            return (number, refused);
        }
    }
    unreachable!("there is a bound on listeners")
}

#[test]
fn a_session_with_as_many_listeners_as_it_may_have_keeps_no_other_from_its_own() {
    let mut table = Named::default();
    let (listeners, refused) = listen_all(&mut table, FROM, &AllowedPeers::All);
    assert_eq!((listeners, refused.reason), (SESSION_LISTENERS_MAX, Reason::LimitExceeded));
    assert_eq!(refused.detail("most"), Some("1024"));
    assert!(table.listen(party(TO), name(), AllowedPeers::All).is_ok());
    table.end_session(FROM);
    assert!(table.listen(party(FROM), TensorName::new("again").unwrap(), AllowedPeers::All).is_ok());
}

#[test]
fn lists_of_peers_of_all_listeners_have_a_bound_and_those_without_one_are_not_kept_out() {
    let mut table = Named::default();
    let longest = AllowedPeers::Only(vec!["*".repeat(PATTERN_BYTES_MAX); PATTERNS_MAX].into());
    let (listeners, refused) = listen_all(&mut table, FROM, &longest);
    assert_eq!(listeners as u64, LISTS_BYTES_MAX / longest.heap_bytes());
    assert_eq!((refused.reason, refused.detail("limit")), (Reason::LimitExceeded, Some("8388608")));
    assert!(table.listen(party(TO), name(), AllowedPeers::All).is_ok());
    table.end_session(FROM);
    assert!(table.listen(party(FROM), TensorName::new("again").unwrap(), longest).is_ok());
}

#[test]
fn the_last_sequence_of_all_is_none() {
    let (mut table, pipe) = one();
    let refused = table.write(FROM, pipe, u64::MAX, "a".into(), "w").unwrap_err();
    assert_eq!(refused.reason, Reason::InvalidArgument);
}

#[test]
fn a_listener_for_one_pipe_ends_with_it_or_with_the_wait_for_it() {
    let mut table = Named::default();
    let is_it = |wanted: &'static str| move |who: &&'static str| *who == wanted;
    table.connect(party(FROM), &name(), Some("c")).unwrap();
    let id = table.number();
    assert_eq!(
        table.listen_once(id, party(TO), (name(), AllowedPeers::All), "a").unwrap(),
        [Effect::Listens { to: "c" }]
    );
    let again = table.number();
    assert_eq!(
        table.listen_once(again, party(TO), (name(), AllowedPeers::All), "b").unwrap_err().reason,
        Reason::NameTaken
    );
    let (pipe, _, effects) = table.connect(party(FROM), &name(), Some("c")).unwrap().unwrap();
    assert_eq!(effects, [Effect::Accepted { to: "a", pipe: pipe + 1, other: party(FROM) }]);
    assert!(!table.is_listened(&name()), "the next one waits for another listener");
    assert_eq!(table.totals().listeners, 0);
    let id = table.number();
    table.listen_once(id, party(TO), (name(), AllowedPeers::All), "a").unwrap();
    assert_eq!(table.forget(&Waits::Pipe(id), is_it("a")), Some(false));
    assert!(!table.is_listened(&name()) && table.totals().listeners == 0);
    let id = table.number();
    table.listen_once(id, party(TO), (name(), AllowedPeers::All), "a").unwrap();
    assert_eq!(failed(&table.end_session(TO))[0].0, "a");
    assert!(!table.is_listened(&name()));
}

#[test]
fn a_listener_takes_pipes_of_the_peers_that_it_allows_and_of_its_own_pod() {
    let mut table = Named::default();
    let allowed = AllowedPeers::Only(["rollout-*".to_owned()].as_slice().into());
    table.listen(party(TO), name(), allowed).unwrap();
    let of = |peer: &str| Party { peer: Some(peer.parse().unwrap()), ..party(FROM) };
    let refused = table.connect(of("trainer"), &name(), None).unwrap_err();
    assert_eq!((refused.reason, refused.detail("peer")), (Reason::PermissionDenied, Some("trainer")));
    for allowed in [of("rollout-1"), party(FROM)] {
        assert!(table.connect(allowed, &name(), None).unwrap().is_some());
    }
}

#[test]
fn a_session_and_a_sidecar_have_limits_of_pipes_that_name_themselves() {
    let mut table = Named::default();
    let most = |refused: &Failure| refused.detail("most").map(str::to_owned);
    for number in 0..SESSION_PIPES_MAX {
        // Each to a listener of another session, which accepts it: no share is used up.
        let (other, name) =
            (SessionId(100 + number as u64), TensorName::new(&format!("inbox-{number}")).unwrap());
        let (listener, _) = table.listen(party(other), name.clone(), AllowedPeers::All).unwrap();
        table.connect(party(FROM), &name, None).unwrap().unwrap();
        table.accept(other, listener, "a").unwrap().unwrap();
    }
    let name = TensorName::new("inbox-0").unwrap();
    let refused = table.connect(party(FROM), &name, None).unwrap_err();
    assert_eq!(
        (refused.reason, most(&refused)),
        (Reason::LimitExceeded, Some(SESSION_PIPES_MAX.to_string()))
    );
    assert!(refused.message.contains("session 1 has 1024 ends"), "{refused}");
    let next = table.connect(party(TO), &name, None).unwrap().unwrap();
    for number in table.pipes.len()..PIPES_MAX {
        let sides = [FROM, TO].map(|session| Side::new(party(session)));
        table.pipes.insert((1 << 40) + number as u64, Pipe { name: name.clone(), sides });
    }
    let refused = table.connect(party(SessionId(99)), &name, None).unwrap_err();
    assert_eq!((refused.reason, most(&refused)), (Reason::LimitExceeded, Some(PIPES_MAX.to_string())));
    table.close(TO, next.0, Ended::Closed);
    assert!(table.connect(party(SessionId(99)), &name, None).unwrap().is_some(), "there is room again");
}

#[test]
fn listeners_of_a_sidecar_have_a_limit_and_room_again_when_one_ends() {
    let mut table = Named::default();
    let mut listen = |number: usize| {
        let name = TensorName::new(&format!("inbox-{number}")).unwrap();
        let session = SessionId((100 + number / SESSION_LISTENERS_MAX) as u64);
        table.listen(party(session), name, AllowedPeers::All).map(|(listener, _)| listener)
    };
    let listeners: Vec<u64> = (0..LISTENERS_MAX).map(|number| listen(number).unwrap()).collect();
    let refused = listen(LISTENERS_MAX).unwrap_err();
    assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("4096")));
    table.end_listener(SessionId(100), listeners[7], Ended::Closed);
    assert!(table.listen(party(TO), name(), AllowedPeers::All).is_ok());
}

/// Pipe whose sides do whatever they like, and whoever waits for something of it.
struct Rough {
    table: Table<u64>,
    ends: [(SessionId, u64); 2],
    /// Last sequence that each side has written.
    written: [u64; 2],
    waiters: u64,
    waiting: BTreeMap<u64, Waits>,
    /// Sequences that each side was shown.
    shown: [BTreeSet<u64>; 2],
}

impl Rough {
    fn new() -> Self {
        let mut table = Table::default();
        let (listener, _) = table.listen(party(TO), name(), AllowedPeers::All).unwrap();
        let (near, ..) = table.connect(party(FROM), &name(), None).unwrap().unwrap();
        let (far, _) = table.accept(TO, listener, 0).unwrap().unwrap();
        let (ends, waiting, shown) = ([(FROM, near), (TO, far)], BTreeMap::new(), Default::default());
        Self { table, ends, written: [0; 2], waiters: 0, waiting, shown }
    }

    /// Somebody waits, until it is told in these effects or later.
    fn wait(&mut self, waits: Waits, effects: Vec<Effect<u64>>) {
        self.waiting.insert(self.waiters, waits);
        self.tell(effects);
    }

    fn tell(&mut self, effects: Vec<Effect<u64>>) {
        for effect in effects {
            let to = match &effect {
                Effect::Show { to, .. }
                | Effect::End { to }
                | Effect::Written { to }
                | Effect::Fail { to, .. } => *to,
                other => panic!("nobody connects: {other:?}"),
            };
            let waited = self.waiting.remove(&to).expect("whoever waits is told once");
            if let (Effect::Show { sequence, .. }, Waits::Message(end)) = (&effect, &waited) {
                self.shown[(end % 2) as usize].insert(*sequence);
            }
        }
    }

    /// First message from a sequence on that the other side has written and that was not read.
    fn first_unread(&self, side: usize, from: u64) -> Option<u64> {
        let other = self.ends[1 - side].1;
        let unread = self.waiting.values().filter_map(|waits| match waits {
            Waits::Reader(end, sequence) if *end == other && *sequence >= from => Some(*sequence),
            _ => None,
        });
        unread.min()
    }

    fn act(&mut self, act: u8, side: usize, which: u64) {
        let (session, end) = self.ends[side];
        self.waiters += 1;
        match act {
            0..14 => {
                let sequence = self.written[side] + 1;
                if let Ok(effects) = self.table.write(session, end, sequence, "m".into(), self.waiters) {
                    self.written[side] = sequence;
                    self.wait(Waits::Reader(end, sequence), effects);
                }
            }
            14..24 => {
                let first = self.first_unread(side, which);
                if let Ok(effects) = self.table.read(session, end, which, self.waiters) {
                    let shown = effects.iter().find_map(|effect| match effect {
                        Effect::Show { sequence, .. } => Some(*sequence),
                        _ => None,
                    });
                    assert_eq!(shown, first, "messages are shown in the order of writes");
                    self.wait(Waits::Message(end), effects);
                }
            }
            24..34 => {
                let effects = self.table.taken(session, end, which);
                let was_shown = self.shown[side].contains(&which);
                assert!(effects.is_empty() || was_shown, "what was not shown was not read");
                self.tell(effects);
            }
            34..38 => {
                let is_its =
                    |waits: &Waits| matches!(waits, Waits::Reader(of, _) | Waits::Message(of) if *of == end);
                let found = self.waiting.iter().find(|(_, waits)| is_its(waits));
                if let Some((waiter, waits)) = found.map(|(waiter, waits)| (*waiter, waits.clone())) {
                    assert!(self.table.forget(&waits, |other| *other == waiter).is_some(), "it waits");
                    self.waiting.remove(&waiter);
                }
            }
            38 => {
                let effects = self.table.finish(session, end);
                self.tell(effects);
            }
            _ => {
                let effects = self.table.close(session, end, Ended::Closed);
                self.tell(effects);
            }
        }
    }
}

proptest! {
    #[test]
    fn whoever_waits_for_something_of_a_pipe_is_told_once_whatever_both_sides_do(
        acts in proptest::collection::vec((0..40u8, 0..2usize, 1..9u64), 0..200),
    ) {
        let mut rough = Rough::new();
        for (act, side, which) in acts {
            rough.act(act, side, which);
        }
        for session in [FROM, TO] {
            let effects = rough.table.end_session(session);
            rough.tell(effects);
        }
        prop_assert!(rough.waiting.is_empty());
        prop_assert_eq!((rough.table.totals().pipes, rough.table.budget.bytes()), (0, 0));
    }
}
