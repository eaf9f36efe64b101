//! Rows that were packed for another peer: whatever becomes of the answer, their leases end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Failure, Layout, Reason, Reference, Shape};

use super::faults::through_a_proxy;
use super::world::*;
use crate::peer::{CallHandle, SetDone};

type Told = mpsc::Receiver<Result<v1::SetAnswer, Failure>>;

impl One {
    fn call_set(&self, kind: v1::set_call::Kind) -> (Told, CallHandle) {
        let (tell, told) = mpsc::channel();
        let (message, deadline) = (v1::SetCall { kind: Some(kind) }, Instant::now() + PATIENCE);
        let handle = self.peers.set_call(&name("b"), None, message, deadline, move |answer| {
            let _ = tell.send(answer);
        });
        (told, handle)
    }

    fn read_set(&self) -> (Told, CallHandle) {
        self.call_set(v1::set_call::Kind::Read(v1::SetReadRequest::default()))
    }

    /// Waits for the next call about a set that came to it, and takes it.
    fn asked(&self) -> SetDone {
        until("the call has come", || !self.twin.sets.lock().is_empty());
        self.twin.sets.lock().remove(0).1
    }

    /// Packs rows into two tensors, leased for the reader, and answers with them.
    fn answer_packed(&self, reply: SetDone, first: u64) {
        let layout = Layout::contiguous(DType::U8, Shape::new(&[8]).unwrap()).unwrap();
        let reference = |id| {
            *self.twin.leases.lock().entry(id).or_default() += 1;
            Reference::new("lab".parse().unwrap(), name("b"), self.key().incarnation, id, &layout).encode()
        };
        let references = (first..first + 2).map(reference).collect();
        reply(Ok(v1::SetAnswer {
            kind: Some(v1::set_answer::Kind::Packed(v1::SetPacked { references, version: 1 })),
        }));
    }
}

fn pair() -> (Arc<Table>, One, One, super::proxy::Proxy) {
    through_a_proxy(PATIENCE / 3)
}

#[test]
fn rows_that_a_reader_takes_are_released_by_it_and_only_once() {
    let (_table, a, b, _proxy) = pair();
    let (told, _) = a.read_set();
    b.answer_packed(b.asked(), 1);
    told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(b.twin.leased(), 2, "they are kept until it has them");
    for _ in 0..2 {
        // Another one's id among them is nothing that it may end.
        let (told, _) = a.call_set(v1::set_call::Kind::Release(v1::SetRelease { ids: vec![1, 2, 77] }));
        told.recv_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(b.twin.leased(), 0);
        assert!(!b.twin.leases.lock().contains_key(&77));
    }
}

#[test]
fn rows_of_a_call_that_was_withdrawn_are_released_on_whichever_side_the_word_is() {
    let (_table, a, b, proxy) = pair();
    // Its cancel has come to the owner before the answer is there.
    let (told, call) = a.read_set();
    let reply = b.asked();
    call.cancel();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().reason, Reason::Cancelled);
    until("the cancel has come", || {
        let (told, _) = a.call_set(v1::set_call::Kind::Release(v1::SetRelease::default()));
        told.recv_timeout(PATIENCE).unwrap().is_ok()
    });
    b.answer_packed(reply, 1);
    assert_eq!(b.twin.leased(), 0);
    // The answer is on its way when the call is withdrawn: they cross.
    let (told, call) = a.read_set();
    let reply = b.asked();
    proxy.stall.store(true, Ordering::SeqCst);
    b.answer_packed(reply, 3);
    call.cancel();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().reason, Reason::Cancelled);
    assert_eq!(b.twin.leased(), 2);
    proxy.stall.store(false, Ordering::SeqCst);
    until("the reader has given them back", || b.twin.leased() == 0);
}

#[test]
fn rows_of_an_answer_that_is_lost_with_its_connection_are_let_go_and_the_call_is_made_again() {
    let (_table, a, b, proxy) = pair();
    let (told, _) = a.read_set();
    let reply = b.asked();
    proxy.stall.store(true, Ordering::SeqCst);
    b.answer_packed(reply, 1);
    proxy.cut();
    proxy.stall.store(false, Ordering::SeqCst);
    // The same call, on the next connection.
    b.answer_packed(b.asked(), 3);
    told.recv_timeout(PATIENCE).unwrap().unwrap();
    until("the rows of the first answer are gone", || b.twin.leased() == 2);
    proxy.cut();
    until("and those of the second one with the next connection", || b.twin.leased() == 0);
}
