//! Sidecars on hosts of their own: what one puts the others get over TLS, once, and only the bytes that were asked for.
//! Needs root.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use tensorlane_client::{AcquireOptions, Client, Moved, PutOptions, Result, Stored, Target};
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::Range;
use tensorlane_proto::{
    DType, Descriptor, Layout, Metadata, Reason, Selection, Shape, Strides, Transport, generated as v1,
};
use tensorlane_tests::netns::{Network, Peers};
use tensorlane_tests::refused::repeated_until;
use tensorlane_tests::tensors::{dense, fill, pattern};
use tensorlane_tests::{Sidecar, SidecarOptions, failure, failure_in_time, reason, until};

const MI: u64 = 1 << 20;
const ALL: AcquireOptions = AcquireOptions {
    selection: Selection::All,
    require: Require::NONE,
    deadline: None,
    wait: Duration::ZERO,
};

fn bytes(seed: u64, count: u64) -> Vec<u8> {
    pattern(seed, count as usize)
}

fn strided(dims: &[u64], strides: &[i64]) -> Descriptor {
    let shape = Shape::new(dims).unwrap();
    Descriptor::host(Layout::new(DType::F32, shape, Some(Strides::new(strides)), None).unwrap())
}

fn put(client: &Client, seed: u64, count: u64) -> (Stored, Vec<u8>) {
    let data = bytes(seed, count);
    let stored = client.put(&dense(DType::U8, &[count]), &data, &PutOptions::new()).unwrap();
    (stored, data)
}

fn selected(selection: Selection) -> AcquireOptions {
    ALL.selection(selection)
}

/// Bytes that a reader on another host gets, without gaps.
fn travels(peers: &Peers, descriptor: &Descriptor, data: &[u8], options: &PutOptions) -> Vec<u8> {
    let (writer, reader) = (peers.client(0), peers.client(1));
    let stored = writer.put(descriptor, data, options).unwrap();
    let tensor = reader.acquire(stored.reference(), &ALL).unwrap();
    assert_eq!(tensor.descriptor().layout, descriptor.layout.packed());
    assert_eq!(tensor.moved().transport, Some(Transport::Tcp));
    assert_eq!(tensor.moved().bytes, descriptor.layout.packed_bytes());
    assert_eq!(tensor.crc32c().is_some(), options.checksum && descriptor.layout.is_contiguous());
    tensor.to_vec()
}

#[test]
fn a_tensor_put_at_one_peer_is_acquired_at_another_and_the_reply_says_how() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let (stored, data) = put(&writer, 1, 3 * MI);
        let tensor = reader.acquire(stored.reference(), &ALL).unwrap();
        assert!(tensor.to_vec() == data);
        assert_eq!((tensor.moved().transport, tensor.moved().bytes), (Some(Transport::Tcp), 3 * MI));
        let refused = &tensor.moved().refusals;
        assert!(refused.iter().any(|r| r.transport == Some(Transport::Shm)), "{}", tensor.moved());
        assert_eq!(peers.seen(1, 0).bytes_in, 3 * MI);
        // Counted after they are on the wire.
        until("it is counted as sent", || {
            let sent = peers.metric(0, "tensorlane_peer_bytes_total", &["direction=\"out\""]) as u64;
            (peers.seen(0, 1).bytes_out, sent) == (3 * MI, 3 * MI)
        });
        assert_eq!(peers.metric(1, "tensorlane_peer_bytes_total", &["direction=\"in\""]) as u64, 3 * MI);
    }
    peers.assert_all_free();
}

/// Callers that ask first need not wait until somebody has connected.
#[test]
fn the_first_call_reaches_a_peer_that_was_never_connected() {
    for count in [4096, MI] {
        let peers = Peers::unconnected(2, |_, options| options.steady());
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let (stored, data) = put(&writer, 2, count);
            assert!(reader.acquire(stored.reference(), &ALL).unwrap().to_vec() == data);
        }
        peers.assert_all_free();
    }
}

#[test]
fn a_thousand_small_tensors_come_in_one_call() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored: Vec<_> = (0..1000).map(|seed| put(&writer, seed, 4096)).collect();
        let targets: Vec<Target> = stored.iter().map(|(stored, _)| stored.reference().into()).collect();
        let tensors = reader.acquire_many(&targets, &ALL);
        for (tensor, (_, data)) in tensors.iter().zip(&stored) {
            let tensor = tensor.as_ref().unwrap();
            assert!(tensor.to_vec() == *data);
            assert_eq!(tensor.moved().transport, Some(Transport::Tcp));
        }
        assert_eq!(tensors.len(), 1000);
        assert_eq!(peers.seen(1, 0).bytes_in, 1000 * 4096);
    }
    peers.assert_all_free();
}

/// Asks for each three times in one call: as it is, as what it is not, and again as it is. They are fetched together.
#[test]
fn what_is_wrongly_said_of_a_small_tensor_fails_alone_whoever_asks_first() {
    let peers = Peers::steady();
    for lie_first in [false, true] {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored: Vec<_> = (0..100).map(|seed| put(&writer, seed, 4096)).collect();
        let asked = stored.iter().flat_map(|(stored, _)| {
            let (right, wrong) = (stored.reference().clone(), lie(stored.reference()));
            let asked = if lie_first { [wrong.clone(), right, wrong] } else { [right.clone(), wrong, right] };
            asked.map(|reference| Target::from(&reference))
        });
        let targets: Vec<Target> = asked.collect();
        let outcomes = reader.acquire_many(&targets, &ALL);
        assert_eq!(outcomes.len(), 300);
        for (at, outcome) in outcomes.into_iter().enumerate() {
            if (at % 3 == 1) == lie_first {
                assert!(outcome.unwrap().to_vec() == stored[at / 3].1);
            } else {
                assert_eq!(reason(outcome), Reason::LayoutMismatch);
            }
        }
    }
    peers.assert_all_free();
}

/// Another shape of as many bytes.
fn lie(truth: &Reference) -> Reference {
    let layout = Layout::contiguous(DType::U8, Shape::new(&[64, 64]).unwrap()).unwrap();
    let (exchange, peer) = (truth.exchange().clone(), truth.peer().clone());
    Reference::new(exchange, peer, truth.incarnation(), truth.id(), &layout)
}

/// Descriptors alone, without the bytes of their tensors, are larger than any frame.
#[test]
fn many_small_tensors_with_much_metadata_come_in_one_call() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let metadata = Metadata::new((0..3).map(|i| (format!("key-{i}"), "v".repeat(4000)))).unwrap();
        let descriptor = Descriptor { metadata, ..dense(DType::U8, &[8]) };
        let put = |i: u64| writer.put(&descriptor, &bytes(i, 8), &PutOptions::new()).unwrap();
        let stored: Vec<_> = (0..1000).map(put).collect();
        let targets: Vec<Target> = stored.iter().map(|stored| stored.reference().into()).collect();
        for (i, tensor) in reader.acquire_many(&targets, &ALL).into_iter().enumerate() {
            let tensor = tensor.unwrap();
            assert_eq!(tensor.to_vec(), bytes(i as u64, 8));
            assert_eq!(tensor.descriptor().metadata, descriptor.metadata);
        }
    }
    peers.assert_all_free();
}

#[test]
fn a_tensor_larger_than_every_buffer_comes_whole() {
    let peers = Peers::start(2, |_, options| {
        options.steady().set("arena.size", "512Mi").set("arena.segment", "64Mi")
    });
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let (stored, data) = put(&writer, 7, 200 * MI + 1);
        let tensor = reader.acquire(stored.reference(), &ALL).unwrap();
        assert!(tensor.to_vec() == data);
        assert_eq!(tensor.moved().bytes, 200 * MI + 1);
    }
    peers.assert_all_free();
}

#[test]
fn strided_tensors_travel_without_their_gaps() {
    let peers = Peers::steady();
    // A transposed matrix of f32.
    let transposed = strided(&[300, 200], &[1, 300]);
    let data = bytes(3, transposed.layout.bytes());
    let expected: Vec<u8> = (0..300)
        .flat_map(|row| (0..200).flat_map(move |column| (0..4).map(move |b| (column * 300 + row) * 4 + b)))
        .map(|at| data[at])
        .collect();
    assert!(travels(&peers, &transposed, &data, &PutOptions::new()) == expected);
    // Every other element, small enough to travel inside a message.
    let sparse = strided(&[100], &[2]);
    let data = bytes(4, sparse.layout.bytes());
    let expected: Vec<u8> = (0..100).flat_map(|i| data[i * 8..i * 8 + 4].to_vec()).collect();
    assert_eq!(travels(&peers, &sparse, &data, &PutOptions::new()), expected);
    peers.assert_all_free();
}

/// 4 bytes lie there, 400,000 travel: the small road is not for them.
#[test]
fn a_repeated_element_travels_as_often_as_it_is_repeated() {
    let peers = Peers::steady();
    let repeated = strided(&[100_000], &[0]);
    assert_eq!(travels(&peers, &repeated, &[1, 2, 3, 4], &PutOptions::new()), [1, 2, 3, 4].repeat(100_000));
    peers.assert_all_free();
}

#[test]
fn tensors_of_every_shape_travel() {
    let peers = Peers::steady();
    let shapes: [&[u64]; 7] = [
        &[],
        &[0],
        &[5, 0, 7],
        &[1],
        &[2; 12],
        &[1, 1, 1, 1, 1, 1, 1, 1, 1, 70_000],
        &[2, 0, 1, 1, 1, 1, 1, 1, 1],
    ];
    for shape in shapes {
        for dtype in [DType::F32, DType::U8, DType::BF16] {
            let descriptor = dense(dtype, shape);
            let data = bytes(5, descriptor.layout.bytes());
            let came = travels(&peers, &descriptor, &data, &PutOptions::new());
            assert!(came == data, "{}", descriptor.layout);
        }
    }
    let small = dense(DType::I4, &[3, 3]);
    assert_eq!(travels(&peers, &small, &bytes(6, 5), &PutOptions::new()), bytes(6, 5));
    peers.assert_all_free();
}

#[test]
fn a_checksum_travels_with_its_tensor_and_is_verified() {
    let peers = Peers::steady();
    let checked = PutOptions { checksum: true, ..PutOptions::new() };
    for count in [0, 1000, 5 * MI] {
        let data = bytes(8, count);
        assert!(travels(&peers, &dense(DType::U8, &[count]), &data, &checked) == data);
    }
    let transposed = strided(&[30, 20], &[1, 30]);
    assert_eq!(travels(&peers, &transposed, &bytes(9, 2400), &checked).len(), 2400);
    assert_eq!(peers.metric(1, "tensorlane_transfer_checksum_mismatches_total", &["pull"]) as u64, 0);
    peers.assert_all_free();
}

#[test]
fn only_the_selected_bytes_travel() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let (rows, columns) = (8192_u64, 1024_u64);
        let data = bytes(10, rows * columns);
        let stored = writer.put(&dense(DType::U8, &[rows, columns]), &data, &PutOptions::new()).unwrap();
        let at = |row: u64, column: u64| data[(row * columns + column) as usize];
        let every_third: Vec<u8> =
            (6..3000).step_by(3).flat_map(|r| (0..columns).map(move |c| at(r, c))).collect();
        let corner: Vec<u8> =
            (1000..2000).flat_map(|r| (24..1000).step_by(2).map(move |c| at(r, c))).collect();
        let list: Vec<u64> = (0..900).map(|i| i * 7919 % rows).chain([5, 5, 0, rows - 1]).collect();
        let picked: Vec<u8> = list.iter().flat_map(|&r| (0..columns).map(move |c| at(r, c))).collect();
        let cases = [
            (Selection::Ranges(vec![Range::new(6, 3000).step_by(3)]), every_third),
            (Selection::Ranges(vec![Range::new(1000, 2000), Range::new(24, 1000).step_by(2)]), corner),
            (Selection::rows(list), picked),
            (Selection::Ranges(vec![Range::new(9, 9)]), Vec::new()),
            (Selection::rows(Vec::new()), Vec::new()),
        ];
        for (selection, expected) in cases {
            let (before, on_the_wire) = (peers.seen(1, 0).bytes_in, peers.network.received(1));
            let tensor = reader.acquire(stored.reference(), &selected(selection.clone())).unwrap();
            assert!(tensor.to_vec() == expected, "{selection:?}");
            let count = expected.len() as u64;
            assert_eq!(tensor.moved().bytes, count);
            assert_eq!(peers.seen(1, 0).bytes_in - before, count);
            let crossed = peers.network.received(1) - on_the_wire;
            assert!(crossed as f64 <= count as f64 * 1.05 + 65_536.0, "{crossed} bytes for {count}");
        }
        let refused = failure(
            reader.acquire(stored.reference(), &selected(Selection::Ranges(vec![Range::new(0, rows + 1)]))),
        );
        assert_eq!(refused.reason, Reason::SelectionOutOfRange);
        assert_eq!(reader.status().unwrap().copies, 0, "a part is no copy that others could use");
    }
    peers.assert_all_free();
}

#[test]
fn a_selection_of_a_tensor_with_many_dimensions_or_strides_travels_alone() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let deep = dense(DType::U8, &[10, 1, 1, 1, 1, 1, 1, 1, 1, 100_000]);
        let data = bytes(11, MI - 48_576);
        let stored = writer.put(&deep, &data, &PutOptions::new()).unwrap();
        let tensor = reader.acquire(stored.reference(), &selected(Selection::rows(vec![9, 2]))).unwrap();
        assert!(tensor.to_vec() == [&data[900_000..], &data[200_000..300_000]].concat());
        assert_eq!(tensor.moved().bytes, 200_000);
        let transposed = strided(&[300, 200], &[1, 300]);
        let data = bytes(12, transposed.layout.bytes());
        let flipped = writer.put(&transposed, &data, &PutOptions::new()).unwrap();
        let tensor = reader.acquire(flipped.reference(), &selected(Selection::rows(vec![7]))).unwrap();
        let row: Vec<u8> = (0..200).flat_map(|c| data[(c * 300 + 7) * 4..][..4].to_vec()).collect();
        assert_eq!(tensor.to_vec(), row);
    }
    peers.assert_all_free();
}

#[test]
fn a_second_acquire_is_answered_by_the_copy_that_is_here() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        for count in [4096, 2 * MI] {
            let (stored, data) = put(&writer, 13, count);
            let first = reader.acquire(stored.reference(), &ALL).unwrap();
            let came = peers.seen(1, 0).bytes_in;
            let second = peers.client(1).acquire(stored.reference(), &ALL).unwrap();
            assert!(second.to_vec() == data);
            assert_eq!((second.moved().transport, second.moved().bytes), (Some(Transport::Local), 0));
            let view = selected(Selection::Ranges(vec![Range::new(1, 3)]));
            let part = reader.acquire(stored.reference(), &view).unwrap();
            assert_eq!(part.to_vec(), data[1..3]);
            assert_eq!(peers.seen(1, 0).bytes_in, came);
            assert!(reader.describe(stored.reference()).unwrap().here);
            // The copy needs nothing of its owner any more, and stands for the tensor while somebody has it.
            let reference = stored.reference().clone();
            drop(stored);
            writer.flush().unwrap();
            until("its owner has freed it", || {
                reason_of(writer.describe(&reference)) == Some(Reason::NotFound)
            });
            assert!(reader.acquire(&reference, &ALL).unwrap().to_vec() == data);
            assert!(first.to_vec() == data);
        }
    }
    peers.assert_all_free();
}

fn reason_of<T>(outcome: Result<T>) -> Option<Reason> {
    outcome.err().and_then(|error| error.reason())
}

#[test]
fn eight_threads_that_want_one_tensor_transfer_it_once() {
    let peers = Peers::steady();
    {
        let (stored, data) = put(&peers.client(0), 14, 32 * MI);
        let start = Barrier::new(8);
        let reader = peers.client(1);
        std::thread::scope(|scope| {
            let getting: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        reader.acquire(stored.reference(), &ALL).unwrap()
                    })
                })
                .collect();
            // Whoever is late finds the copy that the others keep until all have it.
            let all: Vec<_> = getting.into_iter().map(|one| one.join().unwrap()).collect();
            assert!(all.iter().all(|tensor| tensor.to_vec() == data));
        });
        assert_eq!(peers.seen(1, 0).bytes_in, 32 * MI);
    }
    peers.assert_all_free();
}

#[test]
fn tensors_cross_in_both_directions_at_once() {
    let peers = Peers::steady();
    std::thread::scope(|scope| {
        for (from, to) in [(0, 1), (1, 0)] {
            let peers = &peers;
            scope.spawn(move || {
                let (writer, reader) = (peers.client(from), peers.client(to));
                for round in 0..8 {
                    let (stored, data) = put(&writer, round, 20 * MI);
                    assert!(reader.acquire(stored.reference(), &ALL).unwrap().to_vec() == data);
                }
            });
        }
    });
    assert_eq!(peers.seen(0, 1).bytes_in, 160 * MI);
    assert_eq!(peers.seen(1, 0).bytes_in, 160 * MI);
    peers.assert_all_free();
}

/// Each arena is full of what its own workloads put, and each needs room for what it pulls.
#[test]
fn two_full_peers_do_not_wait_for_each_other() {
    let peers =
        Peers::start(2, |_, options| options.steady().set("arena.size", "64Mi").set("arena.segment", "8Mi"));
    {
        let clients = [peers.client(0), peers.client(1)];
        let full = clients.each_ref().map(|client| fill(client, 1, 2 * MI, 20));
        for (reader, other) in [(&clients[0], &full[1]), (&clients[1], &full[0])] {
            let tensor = reader.acquire(other[0].reference(), &ALL).unwrap();
            assert!(tensor.to_vec() == bytes(1, 2 * MI));
        }
    }
    peers.assert_all_free();
}

/// Outcome of a call that asks other peers for a name. They have two seconds to say what they have: on a busy machine they are asked
/// again, until the outcome is the one that is waited for.
fn told_in_time<T>(ask: impl Fn() -> Result<T>, is_told: impl Fn(&Result<T>) -> bool) -> Result<T> {
    repeated_until("the peers say in time what they have", ask, is_told)
}

/// The one tensor or description that is found.
fn found_in_time<T>(ask: impl Fn() -> Result<T>) -> T {
    told_in_time(ask, Result::is_ok).unwrap()
}

fn is_ambiguous<T>(outcome: &Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.reason() == Some(Reason::AmbiguousName))
}

#[test]
fn names_are_found_at_other_peers() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let data = bytes(15, MI);
        let stored = writer.put(&dense(DType::U8, &[MI]), &data, &PutOptions::named("weights")).unwrap();
        let look_up = || reader.lookup(&["weights", "nothing"], None, Duration::ZERO);
        let found = told_in_time(look_up, |found| found.as_ref().is_ok_and(|all| all[0].is_ok())).unwrap();
        assert_eq!(&found[0].as_ref().unwrap().reference, stored.reference());
        assert_eq!(reason(found[1].clone()), Reason::NotFound);
        assert!(found_in_time(|| reader.acquire("weights", &ALL)).to_vec() == data);
        let at_a = Target::name_at(writer.peer().unwrap(), "weights");
        assert!(found_in_time(|| reader.acquire(at_a.clone(), &ALL)).to_vec() == data);
        let at_b = Target::name_at(reader.peer().unwrap(), "weights");
        assert_eq!(reason(reader.acquire(at_b, &ALL)), Reason::NotFound);
        let nowhere = Target::name_at("nobody".parse().unwrap(), "weights");
        assert_eq!(reason(reader.acquire(nowhere, &ALL)), Reason::PeerUnknown);
        writer.unname(&["weights"]).unwrap();
        assert_eq!(reason(reader.acquire("weights", &ALL)), Reason::NotFound);
    }
    peers.assert_all_free();
}

#[test]
fn names_that_appear_one_after_the_other_at_another_peer_are_waited_for() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let patient = ALL.wait(Duration::from_secs(120)).deadline(Duration::from_secs(125));
        let names = ["step-1", "step-2", "step-3"];
        let began = Instant::now();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let targets: Vec<Target> = names.iter().map(|name| Target::name(*name)).collect();
                reader.acquire_many(&targets, &patient)
            });
            // The last one first, and each only after the reader has had time to ask.
            for (seed, name) in names.iter().enumerate().rev() {
                std::thread::park_timeout(Duration::from_millis(200));
                let one = PutOptions { no_lease: true, ..PutOptions::named(*name) };
                let _ = writer.put(&dense(DType::U8, &[100]), &bytes(seed as u64, 100), &one).unwrap();
            }
            for (seed, tensor) in waiting.join().unwrap().into_iter().enumerate() {
                assert_eq!(tensor.unwrap().to_vec(), bytes(seed as u64, 100));
            }
        });
        assert!(began.elapsed() < Duration::from_secs(100), "{:?}", began.elapsed());
        writer.unname(&names).unwrap();
    }
    peers.assert_all_free();
}

#[test]
fn a_name_of_a_peer_that_joins_later_is_waited_for() {
    let peers = Peers::start(3, |_, options| options.set("gc.leaseGrace", "20s"));
    {
        let reader = peers.client(1);
        peers.network.cut(0);
        until("the cut is noticed", || peers.seen(1, 0).state != "connected");
        let patient = ALL.wait(Duration::from_secs(60)).deadline(Duration::from_secs(65));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| reader.acquire("late", &patient));
            let named = PutOptions { no_lease: true, ..PutOptions::named("late") };
            let _ = peers.client(0).put(&dense(DType::U8, &[100]), &bytes(16, 100), &named).unwrap();
            std::thread::park_timeout(Duration::from_millis(300));
            peers.network.mend(0);
            assert_eq!(waiting.join().unwrap().unwrap().to_vec(), bytes(16, 100));
        });
        peers.client(0).unname(&["late"]).unwrap();
    }
    peers.assert_all_free();
}

#[test]
fn a_wait_for_a_name_that_never_appears_ends_in_time() {
    let peers = Peers::steady();
    // Had it the time of a call, too, it would end much later.
    let client = peers.client(1).with_deadline(Duration::from_secs(600));
    let began = Instant::now();
    let found = client.lookup(&["never"], None, Duration::from_millis(700)).unwrap();
    assert_eq!(reason(found[0].clone()), Reason::NotFound);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(700) && took < Duration::from_secs(100), "{took:?}");
    peers.assert_all_free();
}

#[test]
fn two_owners_of_one_name_are_both_named() {
    let peers = Peers::start(3, |_, options| options.steady());
    {
        let (a, b, c) = (peers.client(0), peers.client(1), peers.client(2));
        let named = PutOptions::named("shared");
        let _at_a = a.put(&dense(DType::U8, &[10]), &bytes(17, 10), &named).unwrap();
        let at_b = b.put(&dense(DType::U8, &[10]), &bytes(18, 10), &named).unwrap();
        let refused = failure(told_in_time(|| c.acquire("shared", &ALL), is_ambiguous));
        assert_eq!(refused.reason, Reason::AmbiguousName);
        assert!(refused.to_string().contains('a') && refused.to_string().contains('b'), "{refused}");
        let look_up = || c.lookup(&["shared"], None, Duration::ZERO).unwrap().remove(0);
        assert_eq!(reason(told_in_time(look_up, is_ambiguous)), Reason::AmbiguousName);
        let which = Target::name_at(b.peer().unwrap(), "shared");
        assert_eq!(found_in_time(|| c.acquire(which.clone(), &ALL)).to_vec(), bytes(18, 10));
        assert_eq!(a.acquire("shared", &ALL).unwrap().to_vec(), bytes(17, 10), "one's own comes first");
        drop(at_b);
        b.unname(&["shared"]).unwrap();
        assert_eq!(found_in_time(|| c.acquire("shared", &ALL)).to_vec(), bytes(17, 10));
        a.unname(&["shared"]).unwrap();
    }
    peers.assert_all_free();
}

#[test]
fn another_peers_tensor_is_described_without_moving_it() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let options = PutOptions { checksum: true, ..PutOptions::named("model") };
        let stored = writer.put(&dense(DType::F32, &[256, 1024]), &bytes(19, MI), &options).unwrap();
        let description = reader.describe(stored.reference()).unwrap();
        assert_eq!(description.descriptor.layout.shape(), &Shape::new(&[256, 1024]).unwrap());
        assert_eq!((description.names, description.leases), (vec!["model".to_owned()], 1));
        assert!(description.sealed && description.crc32c.is_some() && !description.here);
        let by_name = reader.describe("model").unwrap();
        assert_eq!(&by_name.reference, stored.reference());
        assert_eq!(peers.seen(1, 0).bytes_in, 0);
        let gone = stored.reference().clone();
        drop(stored);
        writer.unname(&["model"]).unwrap();
        writer.flush().unwrap();
        until("the tensor is gone", || writer.describe(&gone).is_err());
        assert_eq!(reason(reader.describe(&gone)), Reason::NotFound);
        assert_eq!(reason(reader.acquire(&gone, &ALL)), Reason::NotFound);
    }
    peers.assert_all_free();
}

#[test]
fn every_peer_is_listed_with_its_state_and_route() {
    let peers = Peers::start(3, |_, options| options.steady());
    let listed = peers.client(1).peers().unwrap();
    let states: Vec<_> = listed.iter().map(|peer| (peer.name.as_str(), peer.state.as_str())).collect();
    assert_eq!(states, [("b", "self"), ("a", "connected"), ("c", "connected")]);
    assert_eq!(listed[1].incarnation, peers.client(0).incarnation().unwrap().to_string());
    assert_eq!(listed[2].addresses, [peers.network.peer_address(2).to_string()]);
    assert!(listed.iter().all(|peer| peer.last_error.is_empty()));
    let route = Moved::from(listed[1].route.clone().unwrap());
    assert_eq!(route.to_string(), "tcp, not shm: no_socket_dir");
    assert_eq!(peers.metric(1, "tensorlane_peer_known_peers", &["state=\"connected\""]) as u64, 2);
    peers.assert_all_free();
}

#[test]
fn a_requirement_that_no_route_meets_is_refused_with_reasons_and_moves_nothing() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let (stored, data) = put(&writer, 20, MI);
        for require in [Require::SAME_NODE, Require::ZERO_COPY, Require::SAME_NODE.and(Require::ENCRYPTED)] {
            let refused = failure(reader.acquire(stored.reference(), &ALL.require(require)));
            assert_eq!(refused.reason, Reason::RequirementNotMet, "{require}");
            let said = format!("{refused:?}");
            assert!(said.contains("tcp") && said.contains("shm"), "{said}");
            assert!(refused.message.contains(&format!("requires {require} of the way to")), "{said}");
        }
        assert_eq!(peers.seen(1, 0).bytes_in, 0);
        let tensor = reader.acquire(stored.reference(), &ALL.require(Require::ENCRYPTED)).unwrap();
        assert!(tensor.to_vec() == data);
        // Now that a copy is here, nothing has to be moved and nothing leaves the node.
        let local = reader.acquire(stored.reference(), &ALL.require(Require::ZERO_COPY)).unwrap();
        assert_eq!(local.moved().transport, Some(Transport::Local));
    }
    peers.assert_all_free();
}

#[test]
fn what_one_end_requires_is_in_the_routes_and_refusals_of_the_other_too() {
    let strict = |host, options: SidecarOptions| {
        if host == 1 { options.steady().set("require", "same_node") } else { options.steady() }
    };
    let peers = Peers::start(2, strict);
    {
        for (from, to) in [(0, 1), (1, 0)] {
            let seen = peers.seen(from, to);
            assert_eq!(seen.route.as_ref().unwrap().transport(), v1::Transport::Unspecified, "{seen:?}");
            let tcp = seen.candidates.iter().find(|one| one.transport() == v1::Transport::Tcp).unwrap();
            assert_eq!((&*tcp.standing, &*tcp.why), ("refused", "not_same_node"));
        }
        for (owner, reader) in [(0, 1), (1, 0)] {
            let (stored, _) = put(&peers.client(owner), 21, MI);
            let refused = failure(peers.client(reader).acquire(stored.reference(), &ALL));
            assert_eq!(refused.reason, Reason::RequirementNotMet);
            assert!(refused.message.contains("every route of b must be same_node"), "{}", refused.message);
            assert!(!refused.message.contains("every route of a"), "{}", refused.message);
        }
    }
    peers.assert_all_free();
}

#[test]
fn one_end_that_requires_encryption_gets_it_where_the_other_allows_plain_lanes() {
    let mixed = |host, options: SidecarOptions| match host {
        0 => options.steady().set("encryption", "none").set("transports", "tcp"),
        _ => options.steady().set("require", "encrypted"),
    };
    let peers = Peers::start(2, mixed);
    for (owner, reader, seed) in [(1, 0, 22), (0, 1, 23)] {
        let (stored, data) = put(&peers.client(owner), seed, 16 * MI);
        let tensor = peers.client(reader).acquire(stored.reference(), &ALL).unwrap();
        assert!(tensor.to_vec() == data && tensor.moved().transport == Some(Transport::Tcp));
        // A call that wants more than both do is not told of what is met.
        let (other, _) = put(&peers.client(owner), seed + 10, MI);
        let same_node = ALL.require(Require::SAME_NODE);
        let refused = failure(peers.client(reader).acquire(other.reference(), &same_node));
        assert!(!refused.message.contains("every route of"), "{}", refused.message);
    }
    peers.assert_all_free();
}

#[test]
fn idle_copies_make_room_for_new_ones_and_go_by_themselves() {
    let small = |_, options: SidecarOptions| {
        options.steady().set("arena.size", "64Mi").set("arena.segment", "16Mi").set("gc.copyIdle", "1h")
    };
    let mut peers = Peers::start(2, small);
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        // Six times what fits.
        for round in 0..24 {
            let (stored, data) = put(&writer, round, 16 * MI);
            assert!(reader.acquire(stored.reference(), &ALL).unwrap().to_vec() == data);
        }
        let status = reader.status().unwrap();
        assert!((1..=4).contains(&status.copies), "{status:?}");
        // Puts come before idle copies, too.
        let (stored, _) = put(&reader, 25, 32 * MI);
        drop(stored);
    }
    // What is left of the reader does not matter; the writer has nothing.
    peers.sidecars.truncate(1);
    peers.assert_all_free();
}

#[test]
fn a_reader_without_room_is_told_so_and_nothing_stays() {
    let peers = Peers::start(2, |host, options| match host {
        1 => options.steady().set("arena.size", "32Mi").set("arena.segment", "8Mi"),
        _ => options.steady(),
    });
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let (huge, _) = put(&writer, 26, 40 * MI);
        assert_eq!(reason(reader.acquire(huge.reference(), &ALL)), Reason::NeverFits);
        let (large, data) = put(&writer, 27, 20 * MI);
        let (own, _) = put(&reader, 28, 20 * MI);
        let brief = ALL.deadline(Duration::from_millis(400));
        // On a busy machine its owner may say too late what it is.
        until("it is told that there is no room", || {
            failure_in_time(|| reader.acquire(large.reference(), &brief)).reason == Reason::ArenaFull
        });
        drop(own);
        assert!(reader.acquire(large.reference(), &ALL).unwrap().to_vec() == data);
    }
    peers.assert_all_free();
}

#[test]
fn a_reference_of_another_exchange_is_refused() {
    let peers = Peers::steady();
    {
        let network = Network::new(1);
        let foreign = SidecarOptions::default().netns(network.namespace(0)).set("exchange", "other");
        let stranger = Sidecar::with(foreign.set("peer", "a"));
        let client = stranger.client();
        let (stored, _) = put(&client, 29, 100);
        let reader = peers.client(1);
        assert_eq!(reason(reader.acquire(stored.reference(), &ALL)), Reason::WrongExchange);
        assert_eq!(reason(reader.describe(stored.reference())), Reason::WrongExchange);
        assert_eq!(reason(client.acquire(put(&reader, 30, 8).0.reference(), &ALL)), Reason::WrongExchange);
    }
    peers.assert_all_free();
}
