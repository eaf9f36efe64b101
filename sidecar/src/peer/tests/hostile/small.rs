//! Answers to pulls of small tensors that are none: the connection ends, and nothing of them is taken for a tensor.

use std::sync::mpsc;

use tensorlane_proto::encoded::{PulledMany, PulledSmall};

use super::*;

/// A tensor of three bytes with this descriptor.
fn small(descriptor: &'static [u8]) -> PulledSmall {
    PulledSmall { descriptor: Some(descriptor.into()), data: b"abc"[..].into(), ..PulledSmall::default() }
}

/// `a` asks the evil peer for two small tensors, and this is the answer.
fn is_refused(what: &str, tensors: Vec<PulledSmall>) {
    let (_table, a, evil) = victim();
    let mut raw = greeted(&a, &evil);
    let (tell, told) = mpsc::channel();
    let deadline = Instant::now() + PATIENCE;
    let pulling = a.peers.pull_small(&name("evil"), None, many(&[1, 2]), deadline, move |outcome| {
        let _ = tell.send(outcome);
    });
    let (header, _) = raw.next_of(PeerKind::PullMany).unwrap();
    raw.send(PeerKind::PullMany, REPLY, header.call, &PulledMany { tensors });
    assert!(raw.is_closed(), "{what}");
    // It waits for the next connection.
    pulling.cancel();
    assert!(told.recv_timeout(PATIENCE).unwrap().is_err(), "{what}");
    until(what, || a.peers.counters().frames_refused.count("malformed") == 1);
    a.assert_free();
}

#[test]
fn answers_with_another_number_of_small_tensors_are_refused() {
    is_refused("none of two", vec![]);
    is_refused("one of two", vec![small(b"")]);
    is_refused("three of two", vec![small(b""), small(b""), small(b"")]);
}

#[test]
fn a_small_tensor_with_a_descriptor_that_is_none_is_refused() {
    is_refused("the first", vec![small(b"\xff\xff\xff"), small(b"")]);
    is_refused("behind one that is", vec![small(b"\x08\x01"), small(b"\x08")]);
}
