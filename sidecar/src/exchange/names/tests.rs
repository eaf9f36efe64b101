//! Names that are replaced while they are listed, looked up, described, got and given tickets: every one stands all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;

use crate::cancel::Cancel;
use crate::exchange::alone::alone;
use crate::exchange::{Caller, Exchange};

const NAMES: usize = 16;
/// Looks of each kind, unless time runs out.
const ROUNDS: usize = 3_000;
/// Time for the looks of each kind.
const TIME: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(30);

fn caller() -> Caller {
    Caller { holder: None, link: None, on_behalf: None, cancel: Cancel::default() }
}

fn names() -> Vec<String> {
    (0..NAMES).map(|i| format!("weights/{i:02}")).collect()
}

fn targets() -> Vec<v1::Target> {
    let target = |name| v1::Target { kind: Some(v1::target::Kind::Name(name)), peer: String::new() };
    names().into_iter().map(target).collect()
}

/// Answer of a verb.
fn answer<T: Send + 'static>(ask: impl FnOnce(Box<dyn FnOnce(Result<T, Failure>) + Send>)) -> T {
    let (tell, told) = channel();
    ask(Box::new(move |outcome| tell.send(outcome).unwrap()));
    told.recv_timeout(PATIENCE).expect("an answer").unwrap()
}

/// Puts a tensor under a name; its reference.
fn put(exchange: &Arc<Exchange>, name: &str, replaces: &str) -> String {
    use v1::stored_result::Outcome;
    let keep = v1::Keep { name: name.to_owned(), replaces: replaces.to_owned(), ..v1::Keep::default() };
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
    let request = v1::PutRequest { items: vec![item], ..v1::PutRequest::default() };
    let stored = answer(|done| exchange.put(caller(), request, done)).results.remove(0);
    match stored.outcome {
        Some(Outcome::Stored(stored)) => stored.reference,
        other => panic!("{other:?}"),
    }
}

/// Number of times that a name was missing for `look`, while a writer replaces all of them one after the other.
fn missed(look: impl Fn(&Arc<Exchange>) -> usize) -> usize {
    let (exchange, ..) = alone();
    let names = names();
    let mut stored: Vec<String> = names.iter().map(|name| put(&exchange, name, "")).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for (name, before) in names.iter().zip(&mut stored) {
                    *before = put(&exchange, name, before);
                }
            }
        });
        let until = Instant::now() + TIME;
        let rounds = (0..ROUNDS).take_while(|_| Instant::now() < until);
        let missed = rounds.map(|_| NAMES - look(&exchange)).sum();
        over.store(true, Ordering::Relaxed);
        missed
    })
}

#[test]
fn a_listing_has_every_name_that_is_replaced_meanwhile() {
    let missed = missed(|exchange| {
        // In pages: each goes on behind the last name of the one before.
        let (mut token, mut seen) = (String::new(), 0);
        loop {
            let request = v1::ListRequest {
                prefix: "weights/".to_owned(),
                page_size: 7,
                page_token: token,
                lease: false,
            };
            let page = exchange.list(&caller(), &request, 7).unwrap();
            seen += page.entries.iter().filter(|entry| entry.description.is_some()).count();
            token = page.next_page_token;
            if token.is_empty() {
                return seen;
            }
        }
    });
    assert_eq!(missed, 0);
}

fn described(results: &[v1::DescribeResult]) -> usize {
    use v1::describe_result::Outcome;
    results.iter().filter(|result| matches!(result.outcome, Some(Outcome::Description(_)))).count()
}

#[test]
fn a_look_up_finds_every_name_that_is_replaced_meanwhile() {
    let missed = missed(|exchange| {
        let request = v1::LookupRequest { names: names(), ..v1::LookupRequest::default() };
        described(&answer(|done| exchange.lookup(caller(), request, done)).results)
    });
    assert_eq!(missed, 0);
}

#[test]
fn a_description_is_there_for_every_name_that_is_replaced_meanwhile() {
    let missed = missed(|exchange| {
        let request = v1::DescribeRequest { targets: targets(), ..v1::DescribeRequest::default() };
        described(&answer(|done| exchange.describe(caller(), request, done)).results)
    });
    assert_eq!(missed, 0);
}

#[test]
fn a_get_by_name_leases_what_the_name_stands_for_though_it_is_replaced_meanwhile() {
    let missed = missed(|exchange| {
        let item = |target| v1::GetItem { target: Some(target), selection: None };
        let items = targets().into_iter().map(item).collect();
        let request = v1::GetRequest { items, ..v1::GetRequest::default() };
        let borrowed = answer(|done| exchange.borrow(caller(), request, done));
        borrowed.taken.iter().filter(|taken| taken.is_ok()).count()
    });
    assert_eq!(missed, 0);
}

#[test]
fn a_ticket_is_made_for_what_a_name_stands_for_though_it_is_replaced_meanwhile() {
    use v1::ticket_result::Outcome;
    let missed = missed(|exchange| {
        let item = |target| v1::TicketItem { target: Some(target), ttl_ms: 1, uses: 1 };
        let items = targets().into_iter().map(item).collect();
        let tickets = exchange.ticket(&caller(), &v1::TicketRequest { items });
        tickets.results.iter().filter(|r| matches!(r.outcome, Some(Outcome::Ticket(_)))).count()
    });
    assert_eq!(missed, 0);
}
