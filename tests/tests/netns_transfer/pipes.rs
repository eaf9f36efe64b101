//! Pipes between peers: what holds in a pod holds between hosts, and the loss of a process, a sidecar or the link is told at both ends.

use std::thread;
use std::time::Duration;

use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{
    Allocation, ConnectOptions, Delivered, Descriptor, Incoming, Listener, Message, Payload, Pipe, Place,
    Tensor, UNREAD_MAX, WriteFailed, Writing,
};
use tensorlane_client::{Client, PutOptions};
use tensorlane_proto::frame::PEER_PIPES_SINCE;
use tensorlane_proto::{DType, Reason};
use tensorlane_tests::hostile::Hostile;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::other::{Other, role};
use tensorlane_tests::pipes::{LONG, go_on, is_end, next, nothing, other_end, text, undelivered};
use tensorlane_tests::sidecar::session;
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::{reason, until, where_the_machine_runs_on};

/// A wait that ends in a test.
const SHORT: Timeout = Timeout::After(Duration::from_millis(300));
/// A wait that ends in none.
const HOUR: Timeout = Timeout::After(Duration::from_secs(3_600));
/// Bytes that are some time on a slow way.
const MUCH: usize = 16 << 20;

/// Ends of a pipe from host 0 to a listener at host 1.
struct Ends {
    near: Pipe,
    far: Pipe,
    listener: Listener,
}

fn ends(from: &Client, to: &Client) -> Ends {
    let listener = to.listen("in/box").unwrap();
    let near = from.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap();
    let far = listener.accept(LONG).unwrap();
    Ends { near, far, listener }
}

fn fate(failed: &WriteFailed) -> (Delivered, Option<Reason>) {
    (failed.delivered, failed.error.reason())
}

/// The other process of the tests that kill it, which start it with a sidecar to talk to.
#[test]
fn another_process_has_an_end() {
    let Some((sockets, role)) = role() else { return };
    let client = session(sockets).unwrap();
    let (pipe, _listener) = if role.starts_with("connect") {
        (client.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap(), None)
    } else {
        let listener = client.listen("in/box").unwrap();
        (listener.accept(LONG).unwrap(), Some(listener))
    };
    if role.ends_with("writes much") {
        let tensor = dense(DType::U8, &[MUCH as u64]);
        let writing = pipe.begin(text("much").tensor(tensor, pattern(7, MUCH)), HOUR).unwrap();
        println!("written");
        // Killed here, unless all has come by then.
        drop(writing.wait());
        return;
    }
    go_on(&pipe, role.ends_with("writes"));
}

#[test]
fn messages_come_to_another_peer_in_the_order_of_writes_both_ways() {
    const MESSAGES: usize = 300;
    let peers = Peers::steady();
    let (from, to) = (peers.client(0), peers.client(1));
    let Ends { near, far, listener } = ends(&from, &to);
    let of = |pipe: &Pipe| (pipe.remote().peer.clone(), pipe.remote().route.clone());
    assert_eq!(
        [of(&near), of(&far)],
        [("b", "tcp"), ("a", "tcp")].map(|(p, r)| (p.to_owned(), r.to_owned()))
    );
    let own = to.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap();
    assert_eq!(of(&own), ("b".to_owned(), "local".to_owned()));
    let write = |pipe: &Pipe| {
        for n in 0..MESSAGES {
            let message = text(&format!("{n}")).tensor(dense(DType::U8, &[9]), pattern(n as u64, 9));
            drop(pipe.write(message, LONG).unwrap());
        }
        pipe.finish().unwrap();
    };
    let read = |pipe: &Pipe| {
        for n in 0..MESSAGES {
            let descriptor = next(pipe);
            assert_eq!(descriptor.metadata(), format!("{n}").as_bytes());
            let received = pipe.read(descriptor, Allocation::map()).unwrap();
            let Tensor::Mapped(tensor) = &received.tensors[0] else { panic!("it is mapped") };
            assert_eq!(tensor.to_vec(), pattern(n as u64, 9));
        }
        assert!(is_end(pipe));
    };
    thread::scope(|scope| {
        scope.spawn(|| write(&near));
        scope.spawn(|| write(&far));
        scope.spawn(|| read(&near));
        scope.spawn(|| read(&far));
    });
    assert!(peers.metric(1, "tensorlane_pipe_messages_total", &[]) >= 2.0 * MESSAGES as f64);
    assert!(peers.metric(0, "tensorlane_pipe_messages_total", &[]) >= 2.0 * MESSAGES as f64);
    drop((near, far, own, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn several_messages_are_under_way_at_once_and_are_read_in_their_order() {
    let peers = Peers::steady();
    let (from, to) = (peers.client(0), peers.client(1));
    let listener = to.listen("in/box").unwrap();
    let near = from.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap();
    let early: Vec<_> = (0..10).map(|n| near.begin(text(&format!("{n}")), LONG).unwrap()).collect();
    let far = listener.accept(LONG).unwrap();
    let back: Vec<_> = (0..10).map(|n| far.begin(text(&format!("{n}")), LONG).unwrap()).collect();
    for pipe in [&near, &far] {
        let descriptors: Vec<_> = (0..10).map(|_| next(pipe)).collect();
        for (n, descriptor) in descriptors.into_iter().enumerate() {
            assert_eq!(descriptor.metadata(), format!("{n}").as_bytes());
            pipe.read(descriptor, Allocation::map()).unwrap();
        }
    }
    early.into_iter().chain(back).for_each(|writing| drop(writing.wait().unwrap()));
}

#[test]
fn every_allocation_brings_tensors_of_another_peer_large_ones_too() {
    const LARGE: u64 = 64 << 20;
    let peers = Peers::start(2, |_, options| options.steady().set("arena.size", "512Mi"));
    let (from, to) = (peers.client(0), peers.client(1));
    let Ends { near, far, listener } = ends(&from, &to);
    for (write, read) in [(&near, &far), (&far, &near)] {
        let large = dense(DType::U8, &[LARGE]);
        let message = text("step 7")
            .payload("small")
            .payload(pattern(4, 200_000))
            .tensor(large.clone(), pattern(1, LARGE as usize))
            .tensor(large.clone(), pattern(2, LARGE as usize))
            .tensor(large, pattern(3, LARGE as usize))
            .tensor(dense(DType::F32, &[3, 5]), pattern(5, 60));
        thread::scope(|scope| {
            let written = scope.spawn(|| write.write(message, LONG));
            let descriptor = next(read);
            assert_eq!(descriptor.payloads().collect::<Vec<_>>(), [5, 200_000]);
            assert!(!written.is_finished(), "a write is not done before its message is read");
            let (mut own, mut few) = (vec![0; LARGE as usize], vec![0; 61]);
            let wrong = vec![Place::Map, Place::Skip, Place::Map, Place::Bytes(&mut few)];
            let failed = read.read(descriptor, Allocation::new(wrong)).unwrap_err();
            assert_eq!(failed.error.reason(), Some(Reason::LayoutMismatch));
            let places = vec![Place::Map, Place::Skip, Place::Bytes(&mut own), Place::Bytes(&mut few[..60])];
            let received = read.read(failed.descriptor, Allocation::new(places)).unwrap();
            let payloads: Vec<_> = received.payloads.iter().map(Payload::to_vec).collect();
            assert_eq!(payloads, [b"small".to_vec(), pattern(4, 200_000)]);
            let [Tensor::Mapped(mapped), Tensor::Skipped, Tensor::Copied, Tensor::Copied] =
                &received.tensors[..]
            else {
                panic!("each is where the allocation says: {:?}", received.tensors)
            };
            assert!(mapped.to_vec() == pattern(1, LARGE as usize), "the mapped one is another one");
            assert!(own == pattern(3, LARGE as usize), "the copied one is another one");
            assert_eq!(few[..60], pattern(5, 60));
            let back = written.join().unwrap().unwrap();
            assert_eq!(back.parts(), (2, 4), "the message comes back");
        });
    }
    drop((near, far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn a_message_for_which_its_reader_at_another_peer_has_no_room_is_read_when_there_is_some() {
    const BYTES: usize = 20 << 20;
    let peers = Peers::start(2, |host, options| match host {
        1 => options.steady().set("arena.size", "32Mi").set("arena.segment", "8Mi"),
        _ => options.steady(),
    });
    let (from, to) = (peers.client(0), peers.client(1));
    let Ends { near, far, listener } = ends(&from, &to);
    let large = dense(DType::U8, &[BYTES as u64]);
    let own = to.put(&large, &pattern(1, BYTES), &PutOptions::new()).unwrap();
    let writing = near.begin(text("large").tensor(large, pattern(2, BYTES)), HOUR).unwrap();
    let mut descriptor = Some(next(&far));
    // On a busy machine it may be said too late what it is.
    until("it is told that there is no room", || {
        let failed = far.read_within(descriptor.take().unwrap(), Allocation::map(), SHORT).unwrap_err();
        let told = failed.error.reason();
        descriptor = Some(failed.descriptor);
        told == Some(Reason::ArenaFull)
    });
    drop(own);
    let received = far.read_within(descriptor.unwrap(), Allocation::map(), LONG).unwrap();
    let Tensor::Mapped(tensor) = &received.tensors[0] else { panic!("it is mapped") };
    assert!(tensor.to_vec() == pattern(2, BYTES), "the mapped one is another one");
    drop(writing.wait().unwrap());
    drop((received, near, far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn a_write_that_nobody_reads_at_another_peer_says_whether_its_message_was_shown() {
    let peers = Peers::steady();
    let (from, to) = (peers.client(0), peers.client(1));
    let Ends { near, far, listener } = ends(&from, &to);
    for (write, read, there) in [(&near, &far, "client"), (&far, &near, "of peer a")] {
        let failed = undelivered(write, text("unseen"), SHORT);
        assert_eq!(failed.error.reason(), Some(Reason::DeadlineExceeded));
        let said = failed.error.to_string();
        assert!(said.contains(there) && said.contains(&write.remote().client), "{said}");
        assert_eq!(nothing(read, SHORT).reason(), Some(Reason::DeadlineExceeded), "it was taken back");
        // One that was over before it could be shown is written again.
        let (descriptor, failed) = loop {
            let writing = write.begin(text("shown"), Timeout::After(Duration::from_secs(1))).unwrap();
            let shown = read.read_descriptor(SHORT);
            let failed = writing.wait().unwrap_err();
            if let Ok(Incoming::Message(descriptor)) = shown
                && failed.error.reason().is_some()
            {
                break (descriptor, failed);
            }
        };
        assert_eq!(fate(&failed), (Delivered::Unknown, Some(Reason::DeadlineExceeded)));
        drop(descriptor);
        drop(write.begin(text("withdrawn"), LONG).unwrap());
        let writing = write.begin(failed.message, LONG).unwrap();
        until("what was withdrawn is not there any more", || {
            let descriptor = next(read);
            let is_left = descriptor.metadata() == b"shown";
            if is_left {
                read.read(descriptor, Allocation::map()).unwrap();
            }
            is_left
        });
        drop(writing.wait().unwrap());
    }
    drop((near, far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn finish_and_close_are_told_to_the_other_peer() {
    let peers = Peers::steady();
    let (from, to) = (peers.client(0), peers.client(1));
    let Ends { near, far, listener } = ends(&from, &to);
    let last = near.begin(text("last"), LONG).unwrap();
    near.finish().unwrap();
    far.read(next(&far), Allocation::map()).unwrap();
    last.wait().unwrap();
    assert!(is_end(&far) && is_end(&far), "an end stays one");
    let failed = near.write(text("late"), LONG).unwrap_err();
    assert_eq!(fate(&failed), (Delivered::No, Some(Reason::PipeClosed)));
    // The other way is open yet.
    let back = far.begin(text("back"), LONG).unwrap();
    near.read(next(&near), Allocation::map()).unwrap();
    back.wait().unwrap();
    near.close();
    assert!(is_end(&far));
    until("the close is there", || {
        far.write(text("nobody"), SHORT).unwrap_err().error.reason() == Some(Reason::PipeClosed)
    });
    // A close without a finish, from either side, with one that waits and one that comes later.
    for closes_near in [true, false] {
        let near = from.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap();
        let far = listener.accept(LONG).unwrap();
        let (closes, stays) = if closes_near { (near, far) } else { (far, near) };
        thread::scope(|scope| {
            let waiting = scope.spawn(|| nothing(&stays, LONG).reason());
            drop(closes);
            assert_eq!(waiting.join().unwrap(), Some(Reason::PipeClosed));
        });
        let failed = stays.write(text("nobody"), LONG).unwrap_err();
        assert_eq!(fate(&failed), (Delivered::No, Some(Reason::PipeClosed)));
    }
    drop((far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn a_connect_waits_for_a_listener_at_another_peer_and_names_what_is_not_there() {
    let peers = Peers::steady();
    let (from, to) = (peers.client(0), peers.client(1));
    assert_eq!(reason(from.connect_pipe("b/in/box", &ConnectOptions::new())), Reason::NotFound);
    assert_eq!(reason(from.connect_pipe("c/in/box", &ConnectOptions::new())), Reason::NotFound);
    let soon = ConnectOptions::new().wait(Duration::from_millis(200));
    assert_eq!(reason(from.connect_pipe("b/in/box", &soon)), Reason::NotFound);
    thread::scope(|scope| {
        let options = ConnectOptions::new().wait(Duration::from_secs(60));
        let from = &from;
        let waiting = scope.spawn(move || from.connect_pipe("b/in/box", &options).unwrap());
        let listener = to.listen("in/box").unwrap();
        let far = listener.accept(LONG).unwrap();
        let near = waiting.join().unwrap();
        // A listener that ends keeps what it has accepted, and ends what it has not.
        let unaccepted = from.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap();
        drop(listener);
        assert_eq!(nothing(&unaccepted, LONG).reason(), Some(Reason::PipeClosed));
        assert_eq!(reason(from.connect_pipe("b/in/box", &ConnectOptions::new())), Reason::NotFound);
        let writing = near.begin(text("still"), LONG).unwrap();
        far.read(next(&far), Allocation::map()).unwrap();
        drop(writing.wait().unwrap());
    });
    drop((from, to));
    peers.assert_all_free();
}

/// As many messages that nobody reads as a pipe takes.
fn unread(near: &Pipe) -> Vec<Writing> {
    (0..UNREAD_MAX).map(|_| near.begin(text("unread"), LONG).unwrap()).collect()
}

#[test]
fn unread_messages_for_another_peer_have_bounds_in_number_and_in_bytes() {
    let peers = Peers::steady();
    let (from, to) = (peers.client(0), peers.client(1));
    let Ends { near, far, listener } = ends(&from, &to);
    let all = unread(&near);
    let failed = near.begin(text("too many"), LONG).unwrap().wait().unwrap_err();
    assert_eq!(fate(&failed), (Delivered::No, Some(Reason::LimitExceeded)));
    far.read(next(&far), Allocation::map()).unwrap();
    drop(all);
    drop((near, far));
    // Some 400 KiB of descriptors each: twenty of them are more than all clients of a peer may have unread.
    let large = || {
        let small = |message: Message, _| message.tensor(dense(DType::U8, &[1]), [0]).about(vec![7; 4 << 10]);
        (0..100).fold(Message::new(), small)
    };
    let pipes: Vec<_> = (0..3)
        .map(|_| {
            let near = from.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap();
            (near, listener.accept(LONG).unwrap())
        })
        .collect();
    let begin = |n: usize| pipes[n % 3].0.begin(large(), LONG).unwrap();
    let fit: Vec<_> = (0..18).map(begin).collect();
    let more: Vec<_> = (0..4).map(begin).collect();
    let failed = more.into_iter().next_back().unwrap().wait().unwrap_err();
    assert_eq!(fate(&failed), (Delivered::No, Some(Reason::LimitExceeded)));
    assert!(failed.error.to_string().contains("bytes"), "{}", failed.error);
    for n in 0..18 {
        let (_, far) = &pipes[n % 3];
        far.read(next(far), Allocation::map()).unwrap();
    }
    fit.into_iter().for_each(|writing| drop(writing.wait().unwrap()));
    drop((failed, pipes, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn a_pipe_whose_messages_nobody_reads_holds_up_no_other_pipe_between_the_same_peers() {
    let peers = Peers::steady();
    let (from, to) = (peers.client(0), peers.client(1));
    let Ends { near, far, listener } = ends(&from, &to);
    let unread = unread(&near);
    let other = from.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap();
    let other_far = listener.accept(LONG).unwrap();
    for _ in 0..20 {
        let message = Message::new().tensor(dense(DType::U8, &[1 << 20]), pattern(1, 1 << 20));
        let writing = other.begin(message, LONG).unwrap();
        other_far.read(next(&other_far), Allocation::map()).unwrap();
        drop(writing.wait().unwrap());
    }
    drop(unread);
    drop((near, far, other, other_far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn a_reader_at_another_peer_that_is_killed_gives_every_message_back() {
    for (role, ours, theirs) in [("connect and reads", 1, 0), ("listen and reads", 0, 1)] {
        let peers = Peers::steady();
        let client = peers.client(ours);
        let (mut other, pipe, listener) = beside(&peers, &client, role, theirs);
        let message = text("first").tensor(dense(DType::U8, &[1 << 20]), pattern(1, 1 << 20));
        let first = pipe.begin(message, LONG).unwrap();
        other.says("shown");
        other.kill();
        let failed = first.wait().unwrap_err();
        assert_eq!(fate(&failed), (Delivered::Unknown, Some(Reason::PipeLost)), "{role}");
        let failed = pipe.write(failed.message, LONG).unwrap_err();
        assert_eq!(fate(&failed), (Delivered::No, Some(Reason::PipeLost)), "{role}");
        drop((failed, pipe, listener, client));
        peers.assert_all_free();
    }
}

#[test]
fn a_writer_at_another_peer_that_is_killed_is_an_error_and_no_end() {
    for (role, ours, theirs) in [("connect and writes", 1, 0), ("listen and writes", 0, 1)] {
        let peers = Peers::steady();
        let client = peers.client(ours);
        let (mut other, pipe, listener) = beside(&peers, &client, role, theirs);
        other.says("written");
        let descriptor = next(&pipe);
        assert_eq!(descriptor.metadata(), b"first");
        other.kill();
        until("its bytes are gone with it", || {
            peers.client(theirs).status().unwrap().arena.unwrap().sealed == 0
        });
        let failed = pipe.read(descriptor, Allocation::map()).unwrap_err();
        assert_eq!(failed.error.reason(), Some(Reason::PipeLost), "{role}: {}", failed.error);
        drop(failed);
        assert_eq!(nothing(&pipe, LONG).reason(), Some(Reason::PipeLost), "{role}");
        drop((pipe, listener, client));
        peers.assert_all_free();
    }
}

#[test]
fn a_writer_at_another_peer_that_is_killed_while_bytes_come_leaves_a_whole_message_or_an_error() {
    let peers = Peers::steady();
    let client = peers.client(1);
    let (mut other, pipe, listener) = beside(&peers, &client, "connect and writes much", 0);
    other.says("written");
    let descriptor = next(&pipe);
    peers.network.slow(0, 200);
    let before = peers.seen(1, 0).bytes_in;
    let outcome = thread::scope(|scope| {
        let reading = scope.spawn(|| pipe.read_within(descriptor, Allocation::map(), LONG));
        until("bytes come", || peers.seen(1, 0).bytes_in - before > 1 << 20);
        other.kill();
        reading.join().unwrap()
    });
    peers.network.fast(0);
    match outcome {
        // What is leased stays until it has come.
        Ok(received) => {
            let Tensor::Mapped(tensor) = &received.tensors[0] else { panic!("it is mapped") };
            assert!(tensor.to_vec() == pattern(7, MUCH), "the message is not whole");
        }
        Err(failed) => assert_eq!(failed.error.reason(), Some(Reason::PipeLost), "{}", failed.error),
    }
    // Where all had come before, it has closed its end.
    let told = nothing(&pipe, LONG).reason();
    assert!(matches!(told, Some(Reason::PipeLost | Reason::PipeClosed)), "{told:?}");
    drop((pipe, listener, client));
    peers.assert_all_free();
}

/// A process with an end at host `theirs`, and the other end of its pipe.
fn beside(peers: &Peers, client: &Client, role: &str, theirs: usize) -> (Other, Pipe, Option<Listener>) {
    if role.starts_with("connect") {
        let listener = client.listen("in/box").unwrap();
        let other = other_end(&peers.sidecars[theirs], role);
        let pipe = listener.accept(LONG).unwrap();
        return (other, pipe, Some(listener));
    }
    let other = other_end(&peers.sidecars[theirs], role);
    let options = ConnectOptions::new().wait(Duration::from_secs(60));
    (other, client.connect_pipe("b/in/box", &options).unwrap(), None)
}

/// Messages that are under way both ways when the link or a sidecar is lost: one that was shown, one that was not.
struct UnderWay {
    there: [Writing; 2],
    back: [Writing; 2],
    shown: [Descriptor; 2],
}

fn under_way(ends: &Ends) -> UnderWay {
    let begin = |pipe| ["shown", "unseen"].map(|what| Pipe::begin(pipe, text(what), LONG).unwrap());
    let (there, back) = (begin(&ends.near), begin(&ends.far));
    let shown = [next(&ends.far), next(&ends.near)];
    UnderWay { there, back, shown }
}

#[test]
fn a_link_that_is_cut_for_longer_than_the_grace_ends_the_pipe_at_both_ends() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        let (from, to) = (peers.client(0), peers.client(1));
        let ends = ends(&from, &to);
        let UnderWay { there, back, shown } = under_way(&ends);
        peers.network.cut(1);
        // Where the pipe lives it is known what was shown, and at the other end it is not.
        let fates = back.map(|writing| fate(&writing.wait().unwrap_err()));
        let lost = |delivered| (delivered, Some(Reason::PipeLost));
        assert_eq!(fates, [lost(Delivered::Unknown), lost(Delivered::No)]);
        let fates = there.map(|writing| fate(&writing.wait().unwrap_err()));
        assert_eq!(fates, [lost(Delivered::Unknown), lost(Delivered::Unknown)]);
        drop(shown);
        peers.network.mend(1);
        peers.await_connected();
        for pipe in [&ends.near, &ends.far] {
            assert_eq!(nothing(pipe, LONG).reason(), Some(Reason::PipeLost), "it came back too late");
            let failed = pipe.write(text("late"), LONG).unwrap_err();
            assert_eq!(fate(&failed), lost(Delivered::No));
        }
        // Connected again it goes on.
        let near = from.connect_pipe("b/in/box", &ConnectOptions::new()).unwrap();
        let far = ends.listener.accept(LONG).unwrap();
        let writing = near.begin(text("again"), LONG).unwrap();
        far.read(next(&far), Allocation::map()).unwrap();
        drop(writing.wait().unwrap());
        drop((near, far, ends, from, to));
        peers.assert_all_free();
    });
}

#[test]
fn a_call_that_waits_over_a_dead_link_ends_at_its_deadline() {
    let peers = Peers::steady();
    let (from, to) = (peers.client(0), peers.client(1));
    let Ends { near, far, listener } = ends(&from, &to);
    peers.network.cut(1);
    // Its sidecar says so, unless that comes too late for the client.
    let mut failed = near.write(text("where"), SHORT).unwrap_err();
    until("its sidecar answers in time", || {
        let is_said = failed.error.reason().is_some();
        if !is_said {
            failed = near.write(text("where"), SHORT).unwrap_err();
        }
        is_said
    });
    assert_eq!(fate(&failed), (Delivered::Unknown, Some(Reason::DeadlineExceeded)));
    assert_eq!(nothing(&near, SHORT).reason(), Some(Reason::DeadlineExceeded));
    peers.network.mend(1);
    drop((failed, near, far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn messages_come_whole_over_a_link_that_drops_one_packet_of_a_hundred() {
    const MESSAGES: u64 = 50;
    const BYTES: usize = 100_000;
    let peers = Peers::steady();
    let (from, to) = (peers.client(0), peers.client(1));
    let Ends { near, far, listener } = ends(&from, &to);
    (0..2).for_each(|host| peers.network.lossy(host, 1));
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..MESSAGES {
                let tensor = dense(DType::U8, &[BYTES as u64]);
                drop(near.write(text(&format!("{n}")).tensor(tensor, pattern(n, BYTES)), LONG).unwrap());
            }
            near.finish().unwrap();
        });
        for n in 0..MESSAGES {
            let descriptor = next(&far);
            assert_eq!(descriptor.metadata(), format!("{n}").as_bytes());
            let received = far.read(descriptor, Allocation::map()).unwrap();
            let Tensor::Mapped(tensor) = &received.tensors[0] else { panic!("it is mapped") };
            assert!(tensor.to_vec() == pattern(n, BYTES), "message {n} is another one");
        }
        assert!(is_end(&far));
    });
    drop((near, far, listener, from, to));
    peers.assert_all_free();
}

#[test]
fn a_sidecar_that_is_killed_is_told_at_the_other_peer() {
    for (killed, stays) in [(0, 1), (1, 0)] {
        let mut peers = Peers::steady();
        let (from, to) = (peers.client(0), peers.client(1));
        let ends = ends(&from, &to);
        let UnderWay { there, back, shown } = under_way(&ends);
        peers.sidecars[killed].kill();
        for (writings, host) in [(there, 0), (back, 1)] {
            for (at, writing) in writings.into_iter().enumerate() {
                let failed = writing.wait().unwrap_err();
                // Where the pipe lives it is known that the second one was not shown.
                let known = host == stays && stays == 1 && at == 1;
                let delivered = if known { Delivered::No } else { Delivered::Unknown };
                assert_eq!(failed.delivered, delivered, "{killed} {host} {at}: {}", failed.error);
                if host == stays {
                    assert_eq!(failed.error.reason(), Some(Reason::PipeLost), "{}", failed.error);
                }
            }
        }
        drop(shown);
        let pipe = if stays == 0 { &ends.near } else { &ends.far };
        assert_eq!(nothing(pipe, LONG).reason(), Some(Reason::PipeLost));
        drop((ends, from, to));
        peers.assert_free(stays);
    }
}

#[test]
fn a_peer_of_an_earlier_release_is_refused_in_words() {
    let mut peers = Peers::steady();
    peers.sidecars[1].kill();
    let client = peers.client(0);
    until("the old one is gone", || peers.seen(0, 1).state != "connected");
    let _older = Hostile::speaking(PEER_PIPES_SINCE - 1, &peers, 1, "b");
    until("the older one is there", || peers.seen(0, 1).state == "connected");
    let refused = client.connect_pipe("b/in/box", &ConnectOptions::new()).map(drop).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::Unsupported));
    assert!(refused.to_string().contains("update its sidecar"), "{refused}");
    drop(client);
    peers.assert_free(0);
}
