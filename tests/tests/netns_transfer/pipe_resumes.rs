//! Pipes between peers go on over a link that is cut and mended in time: every message once, in order, and each write with its outcome.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use tensorlane_client::Client;
use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{
    Allocation, ConnectOptions, Delivered, Descriptor, Incoming, Listener, Pipe, Tensor,
};
use tensorlane_proto::{DType, Reason};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::pipes::{LONG, is_end, next, text, undelivered};
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::until;

/// A wait that ends in no test.
const HOUR: Timeout = Timeout::After(Duration::from_secs(3_600));
/// A wait that ends in a test.
const SHORT: Timeout = Timeout::After(Duration::from_millis(300));
/// Writes that are under way at once.
const AT_ONCE: usize = 8;

/// Peers that wait for each other for longer than a test takes.
fn patient() -> Peers {
    Peers::start(2, |_, options| options.set("gc.leaseGrace", "60s"))
}

/// Ends of a pipe from host 0 to a listener at host 1, which both know.
fn ends(from: &Client, to: &Client) -> (Pipe, Pipe, Listener) {
    let listener = to.listen("in/box").unwrap();
    let near = from.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap();
    let far = listener.accept(LONG).unwrap();
    let writing = near.begin(text("first"), HOUR).unwrap();
    read(&far, next(&far));
    drop(writing.wait().unwrap());
    (near, far, listener)
}

/// Cuts the link, until both ends have noticed.
fn cut(peers: &Peers) {
    peers.network.cut(1);
    for (host, other) in [(0, 1), (1, 0)] {
        until("an end notices", || peers.seen(host, other).state != "connected");
    }
}

fn resumed(peers: &Peers, host: usize) -> f64 {
    peers.metric(host, "tensorlane_pipe_resumed_pipes_total", &[])
}

/// Reads a message, and its tensor if it has one. Bytes that were not asked for before the link was cut are asked for again.
fn read(pipe: &Pipe, descriptor: Descriptor) -> Option<Vec<u8>> {
    let (mut descriptor, mut bytes) = (Some(descriptor), None);
    until("its bytes come", || match pipe.read_within(descriptor.take().unwrap(), Allocation::map(), LONG) {
        Ok(received) => {
            bytes = received.tensors.first().map(|tensor| match tensor {
                Tensor::Mapped(tensor) => tensor.to_vec(),
                other => panic!("it is mapped, not {other:?}"),
            });
            true
        }
        Err(failed) => {
            descriptor = Some(failed.descriptor);
            false
        }
    });
    bytes
}

/// Writes so many messages, every third one with a tensor; each is said to be read.
fn write_all(pipe: &Pipe, messages: u64) {
    let mut under_way = VecDeque::new();
    for number in 0..messages {
        let mut message = text(&format!("{number}"));
        if number % 3 == 0 {
            message = message.tensor(dense(DType::U8, &[5_000]), pattern(number, 5_000));
        }
        under_way.push_back(pipe.begin(message, HOUR).unwrap());
        if under_way.len() == AT_ONCE {
            drop(under_way.pop_front().unwrap().wait().unwrap());
        }
    }
    under_way.into_iter().for_each(|writing| drop(writing.wait().unwrap()));
    pipe.finish().unwrap();
}

/// Reads so many messages and the end; `before` is told the number of each one that comes next.
fn read_all(pipe: &Pipe, messages: u64, before: impl Fn(u64)) {
    for number in 0..messages {
        before(number);
        let descriptor = next(pipe);
        assert_eq!(descriptor.metadata(), format!("{number}").as_bytes(), "each comes once, and in order");
        let bytes = read(pipe, descriptor);
        assert!(
            bytes == (number % 3 == 0).then(|| pattern(number, 5_000)),
            "message {number} is another one"
        );
    }
    assert!(is_end(pipe));
}

#[test]
fn a_pipe_goes_on_both_ways_over_a_link_that_is_cut_in_the_middle_of_messages_and_mended() {
    const MESSAGES: u64 = 300;
    let peers = patient();
    let (from, to) = (peers.client(0), peers.client(1));
    let (near, far, listener) = ends(&from, &to);
    thread::scope(|scope| {
        for pipe in [&near, &far] {
            scope.spawn(move || write_all(pipe, MESSAGES));
        }
        scope.spawn(|| read_all(&near, MESSAGES, |_| {}));
        read_all(&far, MESSAGES, |number| {
            if number % 120 == 50 {
                cut(&peers);
                peers.network.mend(1);
            }
        });
    });
    // The last word of a cut may be later than the last message.
    for host in 0..2 {
        until("it is counted", || resumed(&peers, host) >= 1.0);
    }
    drop((near, far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn messages_that_are_written_shown_and_read_while_a_link_is_cut_arrive_when_it_is_mended() {
    let peers = patient();
    let (from, to) = (peers.client(0), peers.client(1));
    let (near, far, listener) = ends(&from, &to);
    for (write, other) in [(&near, &far), (&far, &near)] {
        // Shown, and read when nobody hears of it.
        let shown = write.begin(text("shown"), HOUR).unwrap();
        let descriptor = next(other);
        let unread = write.begin(text("unread"), HOUR).unwrap();
        cut(&peers);
        read(other, descriptor);
        let late = write.begin(text("late"), HOUR).unwrap();
        thread::scope(|scope| {
            let reading = scope.spawn(|| {
                ["unread", "late"].map(|what| {
                    let descriptor = other.read_descriptor(HOUR).unwrap();
                    let Incoming::Message(descriptor) = descriptor else { panic!("a message is there") };
                    assert_eq!(descriptor.metadata(), what.as_bytes());
                    read(other, descriptor);
                })
            });
            peers.network.mend(1);
            reading.join().unwrap();
        });
        [shown, unread, late].into_iter().for_each(|writing| drop(writing.wait().unwrap()));
        peers.await_connected();
    }
    drop((near, far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn a_write_that_is_given_up_while_a_link_is_cut_was_not_delivered_and_the_pipe_goes_on() {
    let peers = patient();
    let (from, to) = (peers.client(0), peers.client(1));
    let (near, far, listener) = ends(&from, &to);
    let before = near.begin(text("before"), HOUR).unwrap();
    cut(&peers);
    for pipe in [&near, &far] {
        let failed = undelivered(pipe, text("never"), SHORT);
        assert_eq!(
            (failed.delivered, failed.error.reason()),
            (Delivered::No, Some(Reason::DeadlineExceeded))
        );
    }
    // Of one that was on the way that is not known.
    drop(before);
    peers.network.mend(1);
    for (write, other) in [(&near, &far), (&far, &near)] {
        let writing = write.begin(text("next"), HOUR).unwrap();
        until("what was taken back is not there any more", || {
            let descriptor = next(other);
            let is_next = descriptor.metadata() == b"next";
            if is_next {
                read(other, descriptor);
            }
            is_next
        });
        drop(writing.wait().unwrap());
    }
    drop((near, far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn an_end_that_finishes_and_closes_while_a_link_is_cut_is_heard_of_when_it_is_mended() {
    for ends_in_order in [true, false] {
        let peers = patient();
        let (from, to) = (peers.client(0), peers.client(1));
        let (near, far, listener) = ends(&from, &to);
        cut(&peers);
        if ends_in_order {
            near.finish().unwrap();
        }
        drop(near);
        peers.network.mend(1);
        let told = far.read_descriptor(HOUR);
        match ends_in_order {
            true => assert!(matches!(told, Ok(Incoming::End)), "{told:?}"),
            false => assert_eq!(told.map(drop).unwrap_err().reason(), Some(Reason::PipeClosed)),
        }
        drop((far, listener, from, to));
        peers.assert_all_free();
    }
}

#[test]
fn a_listener_that_closes_its_end_while_a_link_is_cut_is_heard_of_when_it_is_mended() {
    let peers = patient();
    let (from, to) = (peers.client(0), peers.client(1));
    let (near, far, listener) = ends(&from, &to);
    let writing = near.begin(text("unseen"), HOUR).unwrap();
    cut(&peers);
    drop(far);
    peers.network.mend(1);
    let failed = writing.wait().unwrap_err();
    assert_eq!((failed.delivered, failed.error.reason()), (Delivered::No, Some(Reason::PipeClosed)));
    let told = near.read_descriptor(HOUR).map(drop).unwrap_err();
    assert_eq!(told.reason(), Some(Reason::PipeClosed));
    drop((failed, near, listener, from, to));
    peers.assert_all_free();
}
