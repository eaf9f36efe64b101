//! Names that are waited for: nobody stands behind those who wait, and every wait ends.

use std::sync::mpsc::{Receiver, channel};

use tensorlane_proto::identity::Incarnation;
use tensorlane_proto::ledger::Holder;
use tensorlane_proto::ledger::SessionId;

use super::*;
use crate::cancel::Cancel;
use crate::exchange::alone::{MINUTE, alone};
use crate::peer::{PeerKey, Serve};

mod rounds;

/// More than there were ever threads for.
const MANY: usize = 1_500;

fn caller(session: u64) -> Caller {
    Caller {
        holder: Some(Holder::Session(SessionId(session))),
        link: None,
        on_behalf: None,
        cancel: Cancel::default(),
    }
}

fn put(exchange: &Arc<Exchange>, name: &str) {
    let keep = v1::Keep { name: name.to_owned(), ..v1::Keep::default() };
    let descriptor = v1::Descriptor {
        dtype: u32::from(tensorlane_proto::DType::U8.code()),
        shape: vec![8],
        ..v1::Descriptor::default()
    };
    let item = v1::PutItem {
        descriptor: Some(descriptor),
        data: vec![7; 8].into(),
        keep: Some(keep),
        ..v1::PutItem::default()
    };
    let (tell, told) = channel();
    let caller = Caller { holder: None, link: None, on_behalf: None, cancel: Cancel::default() };
    let request = v1::PutRequest { items: vec![item], ..v1::PutRequest::default() };
    exchange.put(caller, request, move |outcome| tell.send(outcome).unwrap());
    told.recv_timeout(MINUTE).expect("a put").unwrap();
}

type Looked = Receiver<Result<v1::LookupResponse, Failure>>;

fn lookup(exchange: &Arc<Exchange>, caller: Caller, name: &str, wait_ms: u64) -> Looked {
    let request = v1::LookupRequest { names: vec![name.to_owned()], wait_ms, ..v1::LookupRequest::default() };
    let (tell, told) = channel();
    // Whoever has lost interest does not listen.
    exchange.lookup(caller, request, move |outcome| drop(tell.send(outcome)));
    told
}

/// Description that was found, or why it was not.
fn found(looked: &Looked) -> Result<v1::Description, Failure> {
    let response = looked.recv_timeout(MINUTE).expect("an answer")?;
    let result = response.results.into_iter().next().unwrap();
    there(result.clone()).map(|there| there.description).or_else(|failure| match result.outcome {
        Some(v1::describe_result::Outcome::Description(description)) => Ok(description),
        _ => Err(failure),
    })
}

#[test]
fn a_name_that_is_here_is_found_at_once_however_many_wait_for_one_that_never_comes() {
    let (exchange, ..) = alone();
    put(&exchange, "here");
    let waiting: Vec<_> = (0..MANY).map(|_| lookup(&exchange, caller(1), "never", 60_000)).collect();
    let names = lookup(&exchange, caller(2), "here", 0);
    assert!(found(&names).is_ok());
    let missing = found(&lookup(&exchange, caller(2), "nothing", 0)).unwrap_err();
    assert_eq!(missing.reason, Reason::NotFound, "{missing}");
    // A peer is answered too, whether it waits or not.
    let peer = PeerKey { name: "there".parse().unwrap(), incarnation: Incarnation(7) };
    let (tell, told) = channel();
    let target = v1::Target { kind: Some(v1::target::Kind::Name("here".into())), peer: String::new() };
    let inquire = v1::Inquire { targets: vec![target], wait_ms: 1_000, ..v1::Inquire::default() };
    exchange.inquire(&peer, inquire, Cancel::default(), Box::new(move |answer| tell.send(answer).unwrap()));
    assert_eq!(told.recv_timeout(MINUTE).expect("an answer").results.len(), 1);
    assert_eq!(exchange.waiting_for_names().0, MANY);
    put(&exchange, "never");
    assert!(waiting.iter().all(|looked| found(looked).is_ok()));
    assert_eq!(exchange.waiting_for_names(), (0, 0), "nothing is left of them");
}

#[test]
fn a_wait_ends_at_its_own_deadline_beside_those_that_wait_longer() {
    let (exchange, ..) = alone();
    let _waiting: Vec<_> = (0..MANY).map(|_| lookup(&exchange, caller(1), "never", 60_000)).collect();
    let began = Instant::now();
    let missing = found(&lookup(&exchange, caller(2), "never", 50)).unwrap_err();
    assert_eq!(missing.reason, Reason::NotFound, "{missing}");
    assert!(began.elapsed() >= Duration::from_millis(50));
    assert_eq!(exchange.waiting_for_names().0, MANY);
}

#[test]
fn a_wait_ends_with_its_caller_and_with_the_sidecar() {
    let (exchange, ..) = alone();
    let leaves = caller(1);
    let left = lookup(&exchange, leaves.clone(), "never", 60_000);
    let stays = lookup(&exchange, caller(2), "never", 60_000);
    leaves.cancel.cancel();
    assert_eq!(found(&left).unwrap_err().reason, Reason::Cancelled);
    assert_eq!(exchange.waiting_for_names().0, 1);
    exchange.close();
    assert_eq!(found(&stays).unwrap_err().reason, Reason::Draining);
    assert_eq!(found(&lookup(&exchange, caller(3), "never", 60_000)).unwrap_err().reason, Reason::Draining);
    assert_eq!(exchange.waiting_for_names(), (0, 0));
    exchange.end();
}

#[test]
fn a_session_that_waits_for_too_much_is_told_the_limit_and_finds_what_is_here() {
    let (exchange, ..) = alone();
    put(&exchange, "here");
    // Names of 500 bytes, 600 at once: each look-up takes about half a megabyte while it waits.
    let names: Vec<String> = (0..600).map(|n| format!("{n:0500}")).collect();
    let ask = |caller, wait_ms| {
        let names = [&names[..], &["here".to_owned()]].concat();
        let request = v1::LookupRequest { names, wait_ms, ..v1::LookupRequest::default() };
        let (tell, told) = channel();
        exchange.lookup(caller, request, move |outcome| drop(tell.send(outcome)));
        told
    };
    let waiting: Vec<_> = (0..100).map(|_| ask(caller(1), 60_000)).collect();
    assert!(exchange.waiting_for_names().1 <= 8 << 20, "{:?}", exchange.waiting_for_names());
    let refused = waiting[99].recv_timeout(MINUTE).expect("an answer").unwrap().results;
    let failure = there(refused[0].clone()).unwrap_err();
    assert_eq!(failure.reason, Reason::LimitExceeded, "{failure}");
    assert!(failure.message.contains("this session may take 8388608 bytes at a time"), "{failure}");
    let here = |result: &v1::DescribeResult| {
        matches!(result.outcome, Some(v1::describe_result::Outcome::Description(_)))
    };
    assert!(here(&refused[600]), "what is here is answered");
    // Others wait, and the same session asks, as before.
    let other = lookup(&exchange, caller(2), "later", 60_000);
    let answer = ask(caller(1), 0).recv_timeout(MINUTE).expect("an answer").unwrap().results;
    assert!(here(&answer[600]));
    assert_eq!(there(answer[0].clone()).unwrap_err().reason, Reason::NotFound);
    put(&exchange, "later");
    assert!(found(&other).is_ok());
}

#[test]
fn a_peer_that_waits_for_too_much_is_told_the_limit_and_no_other_one_is() {
    let (exchange, ..) = alone();
    let peer = |name: &str| PeerKey { name: name.parse().unwrap(), incarnation: Incarnation(7) };
    let ask = |from: &str, names: usize, gone: &Cancel| {
        let target =
            |n| v1::Target { kind: Some(v1::target::Kind::Name(format!("{n:0500}"))), peer: String::new() };
        let targets = (0..names).map(target).collect();
        let inquire = v1::Inquire { targets, wait_ms: 60_000, ..v1::Inquire::default() };
        let (tell, told) = channel();
        exchange.inquire(&peer(from), inquire, gone.clone(), Box::new(move |answer| drop(tell.send(answer))));
        told
    };
    let gone = Cancel::default();
    let greedy: Vec<_> = (0..4).map(|_| ask("greedy", 4_096, &gone)).collect();
    let refused = greedy[3].recv_timeout(MINUTE).expect("an answer").results.remove(0);
    let failure = there(refused).unwrap_err();
    assert_eq!(failure.reason, Reason::LimitExceeded, "{failure}");
    assert!(failure.message.contains("of greedy may take 8388608 bytes"), "{failure}");
    let modest = ask("modest", 1, &Cancel::default());
    assert!(modest.try_recv().is_err(), "it waits");
    gone.cancel();
    assert_eq!(exchange.waiting_for_names().0, 1, "those whose asker is gone wait no longer");
    put(&exchange, &format!("{:0500}", 0));
    assert_eq!(modest.recv_timeout(MINUTE).expect("an answer").results.len(), 1);
}

#[test]
fn a_get_that_waits_has_no_thread_and_gets_what_appears() {
    let (exchange, ..) = alone();
    let get = |name: &str| {
        let target = v1::Target { kind: Some(v1::target::Kind::Name(name.into())), peer: String::new() };
        let item = v1::GetItem { target: Some(target), selection: None };
        let request = v1::GetRequest { items: vec![item], wait_ms: 60_000, ..v1::GetRequest::default() };
        let (tell, told) = channel();
        let caller = Caller { holder: None, link: None, on_behalf: None, cancel: Cancel::default() };
        exchange.borrow(caller, request, move |outcome| drop(tell.send(outcome)));
        told
    };
    let waiting: Vec<_> = (0..MANY).map(|_| get("later")).collect();
    put(&exchange, "here");
    assert!(get("here").recv_timeout(MINUTE).expect("an answer").unwrap().taken[0].is_ok());
    put(&exchange, "later");
    for told in waiting {
        assert!(told.recv_timeout(MINUTE).expect("an answer").unwrap().taken[0].is_ok());
    }
    let running = exchange.threads().running();
    let threads: usize = running.iter().map(|(_, count)| count).sum();
    assert!(threads < 300, "{running:?}");
    assert_eq!(exchange.waiting_for_names(), (0, 0));
}
