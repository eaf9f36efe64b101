//! Tickets that another peer redeems, and watches of its names: used once and ended, whatever becomes of the connection.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

use super::faults::through_a_proxy;
use super::world::*;
use crate::peer::{CallHandle, PullGuard};

type Redeemed = mpsc::Receiver<Result<PullGuard, Failure>>;

impl One {
    /// Redeems a ticket of `b`, which calls it as its tensor.
    fn redeem(&self, id: u64, owner: &One) -> (Redeemed, CallHandle) {
        let (tell, told) = mpsc::channel();
        let message = v1::PeerRedeem { ticket: id.to_string(), ..Default::default() };
        let (tensor, deadline) = ((id, owner.key().incarnation), Instant::now() + PATIENCE);
        let handle = self.peers.redeem(&name("b"), tensor, message, deadline, move |answer| {
            let _ = tell.send(answer);
        });
        (told, handle)
    }

    fn watch(&self, prefix: &str) -> (mpsc::Receiver<Result<v1::WatchResponse, Failure>>, CallHandle) {
        let (tell, told) = mpsc::channel();
        let message = v1::WatchRequest { prefix: prefix.to_owned(), ..Default::default() };
        let handle = self.peers.watch(&name("b"), message, Instant::now() + PATIENCE, move |answer| {
            let _ = tell.send(answer);
        });
        (told, handle)
    }
}

fn pair() -> (Arc<Table>, One, One, super::proxy::Proxy) {
    through_a_proxy(PATIENCE / 3)
}

#[test]
fn a_lease_that_a_ticket_became_ends_when_its_guard_is_dropped() {
    let (_table, a, b, _proxy) = pair();
    let (told, _) = a.redeem(7, &b);
    let guard = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(b.twin.leased(), 1);
    drop(guard);
    until("the owner has it back", || b.twin.leased() == 0);
    let (told, _) = a.redeem(8, &b);
    drop(told.recv_timeout(PATIENCE).unwrap().unwrap());
    until("and once only", || b.twin.leased() == 0 && b.twin.redeemed.lock().len() == 2);
}

#[test]
fn a_ticket_whose_answer_is_lost_is_used_once() {
    let (_table, a, b, proxy) = pair();
    proxy.stall.store(true, Ordering::SeqCst);
    let (told, _) = a.redeem(7, &b);
    // Nothing comes through to the owner, and with the cut all of it is lost.
    proxy.cut();
    proxy.stall.store(false, Ordering::SeqCst);
    drop(told.recv_timeout(PATIENCE).unwrap().unwrap());
    until("its lease has ended", || b.twin.leased() == 0);
    assert_eq!(b.twin.redeemed.lock().len(), 1);
    // The question comes through, and its answer does not.
    proxy.back.all.fail_after(0);
    proxy.refuse.store(true, Ordering::SeqCst);
    let (told, _) = a.redeem(8, &b);
    until("the owner has used it", || b.twin.redeemed.lock().len() == 2);
    until("the owner has lost the asker", || {
        b.twin.events.lock().iter().any(|event| event.starts_with("lost"))
    });
    proxy.refuse.store(false, Ordering::SeqCst);
    let guard = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!((b.twin.redeemed.lock().len(), b.twin.leased()), (2, 1), "it was found open");
    drop(guard);
    until("its lease has ended, too", || b.twin.leased() == 0);
}

#[test]
fn a_redeem_that_is_withdrawn_leaves_no_lease() {
    let (_table, a, b, proxy) = pair();
    proxy.stall.store(true, Ordering::SeqCst);
    let (told, call) = a.redeem(7, &b);
    call.cancel();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().reason, Reason::Cancelled);
    proxy.stall.store(false, Ordering::SeqCst);
    until("the question and its end have come", || b.twin.redeemed.lock().len() == 1 && b.twin.leased() == 0);
    // The connection is as it was: another one is answered on it.
    let (told, _) = a.redeem(8, &b);
    drop(told.recv_timeout(PATIENCE).unwrap().unwrap());
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn a_refusal_of_a_ticket_comes_back_as_it_is() {
    let (_table, a, b, _proxy) = pair();
    let (tell, told) = mpsc::channel();
    let message = v1::PeerRedeem { ticket: "none".to_owned(), ..Default::default() };
    let tensor = (7, b.key().incarnation);
    a.peers.redeem(&name("b"), tensor, message, Instant::now() + PATIENCE, move |answer| {
        let _ = tell.send(answer.map(drop));
    });
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().reason, Reason::NotFound);
    assert_eq!(b.twin.leased(), 0);
}

#[test]
fn a_watch_is_asked_again_on_the_next_connection_and_its_end_is_told() {
    let (_table, a, b, proxy) = pair();
    let waits = || b.twin.watches.lock().len();
    let (told, _) = a.watch("policy/");
    until("it waits there", || waits() == 1);
    proxy.cut();
    until("it is asked again", || waits() == 2);
    let mut watches = std::mem::take(&mut *b.twin.watches.lock()).into_iter();
    let ((_, first, _), (asked, second, reply)) = (watches.next().unwrap(), watches.next().unwrap());
    until("the first one is not waited for", || first.is_cancelled());
    assert!(!second.is_cancelled() && asked.prefix == "policy/");
    reply(Ok(v1::WatchResponse { revision: "7".to_owned(), ..Default::default() }));
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap().revision, "7");
    let (told, call) = a.watch("policy/");
    until("it waits there", || waits() == 1);
    call.cancel();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().reason, Reason::Cancelled);
    until("and is withdrawn there", || b.twin.watches.lock()[0].1.is_cancelled());
}
