//! References that say of a tensor what it is not: each is refused alone, whoever asks and however many at once, for a tensor of
//! this pod, of a pod on this node and of one elsewhere. Needs root.

use std::collections::HashSet;

use tensorlane_client::{Client, Error, PutOptions, Target, Tensor};
use tensorlane_proto::selection::Range;
use tensorlane_proto::{DType, Descriptor, Layout, Reason, Reference, Selection, Shape, Strides};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::transfer::{MI, is, put, seconds};
use tensorlane_tests::ways::WAYS;
use tensorlane_tests::{reason, until};

use super::TURNS;

/// Tensors that travel in a frame with others, and such that do not.
const SIZES: [u64; 2] = [4096, 9 * MI];

/// A reference of the same tensor that says another layout.
fn saying(truth: &Reference, layout: &Layout) -> Reference {
    let (exchange, peer) = (truth.exchange().clone(), truth.peer().clone());
    Reference::new(exchange, peer, truth.incarnation(), truth.id(), layout)
}

fn layout(dtype: DType, shape: &[u64], strides: Option<&[i64]>) -> Layout {
    Layout::new(dtype, Shape::new(shape).unwrap(), strides.map(Strides::new), None).unwrap()
}

/// Some tens of lies about a row of so many bytes, all of them different.
fn lies(truth: &Reference, bytes: u64) -> Vec<Reference> {
    let types = [DType::I8, DType::F16, DType::BF16, DType::F32, DType::I64, DType::F64];
    let typed = types.into_iter().map(|dtype| layout(dtype, &[bytes * 8 / u64::from(dtype.bits())], None));
    let other_types = [DType::F8E4M3, DType::Bool].into_iter().map(|dtype| layout(dtype, &[bytes], None));
    // As many bytes in another shape, one beyond what a reference spells out among them.
    let folded = (1..9).map(|power| layout(DType::U8, &[1 << power, bytes >> power], None));
    let deep = std::iter::once(layout(DType::U8, &[&[1; 9][..], &[bytes]].concat(), None));
    let sizes = [1, bytes / 2, bytes - 1, bytes + 1, 2 * bytes].into_iter();
    let sized = sizes.map(|count| layout(DType::U8, &[count], None));
    // The right type and shape, and another number of bytes.
    let stretched = [0, 2, 3, 5, 8].into_iter().map(|step| layout(DType::U8, &[bytes], Some(&[step])));
    let all = typed.chain(other_types).chain(folded).chain(deep).chain(sized).chain(stretched);
    let all: HashSet<String> = all.map(|layout| saying(truth, &layout).to_string()).collect();
    assert!(all.len() > 20 && !all.contains(&truth.to_string()));
    all.into_iter().map(|text| text.parse().unwrap()).collect()
}

/// Every lie between two right ones.
fn among(truth: &Reference, lies: &[Reference]) -> Vec<Target> {
    let both = lies.iter().flat_map(|lie| [Target::from(truth), Target::from(lie)]);
    both.chain([Target::from(truth)]).collect()
}

fn assert_judged(outcomes: Vec<Result<Tensor, Error>>, targets: &[Target], seed: u64, bytes: u64) {
    assert_eq!(outcomes.len(), targets.len());
    for (at, outcome) in outcomes.into_iter().enumerate() {
        let target = &targets[at];
        match at % 2 == 0 {
            true => assert!(is(&outcome.unwrap(), seed, bytes), "{target:?}"),
            false => assert_eq!(reason(outcome), Reason::LayoutMismatch, "{target:?}"),
        }
    }
}

/// Nothing is left at the owner but what the writer holds.
fn await_the_writers_alone(peers: &Peers) {
    until("the tensor of its writer is left, and no lease but that", || {
        let status = peers.client(0).status().unwrap();
        (status.tensors, status.leases) == (1, 1)
    });
}

/// Checks what a caller of `reader` gets of a tensor of host 0, and several at once.
fn lies_are_refused_alone(peers: &Peers, reader: usize, way: &str) {
    let writer = peers.client(0);
    for (seed, bytes) in (1..).zip(SIZES) {
        let stored = put(&writer, seed, bytes);
        let lies = lies(stored.reference(), bytes);
        let targets = among(stored.reference(), &lies);
        let call = |client: &Client| client.acquire_many(&targets, &seconds(25));
        assert_judged(call(&peers.client(reader)), &targets, seed, bytes);
        let callers: Vec<Client> = (0..6).map(|_| peers.client(reader)).collect();
        std::thread::scope(|scope| {
            let calls: Vec<_> = callers.iter().map(|client| scope.spawn(|| call(client))).collect();
            calls.into_iter().for_each(|all| assert_judged(all.join().unwrap(), &targets, seed, bytes));
        });
        // A lie about the bytes is one also where a part of them is wanted.
        let part = seconds(25).selection(Selection::Ranges(vec![Range::new(5, 77)]));
        let stretched = saying(stored.reference(), &layout(DType::U8, &[bytes], Some(&[2])));
        assert_eq!(reason(peers.client(reader).acquire(&stretched, &part)), Reason::LayoutMismatch, "{way}");
        drop(callers);
        await_the_writers_alone(peers);
        drop(stored);
        writer.flush().unwrap();
    }
}

#[test]
fn lies_about_a_tensor_of_another_pod_are_refused_alone_whichever_way_it_comes() {
    let _turn = TURNS.beside_others();
    for way in &WAYS {
        let (peers, _node) = way.pair(|_, options| options.steady());
        lies_are_refused_alone(&peers, 1, way.name);
        peers.assert_all_free();
    }
}

#[test]
fn what_lies_with_gaps_comes_by_its_own_reference_and_by_no_other() {
    let _turn = TURNS.beside_others();
    let peers = Peers::steady();
    for (rows, width, step) in [(8, 16, 24), (2048, 4096, 5000)] {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let gapped = layout(DType::U8, &[rows, width], Some(&[step, 1]));
        let data = pattern(7, usize::try_from(gapped.bytes()).unwrap());
        let descriptor = Descriptor::host(gapped.clone());
        let stored = writer.put(&descriptor, &data, &PutOptions::new()).unwrap();
        let packed = saying(stored.reference(), &gapped.packed());
        for client in [&writer, &reader] {
            for _ in 0..2 {
                // As if nothing lay between its rows, or more than there does.
                let wider = layout(DType::U8, &[rows, width], Some(&[step + 1, 1]));
                let wider = saying(stored.reference(), &wider);
                for lie in [&packed, &wider] {
                    assert_eq!(reason(client.acquire(lie, &seconds(60))), Reason::LayoutMismatch);
                }
                let got = client.acquire(stored.reference(), &seconds(60)).unwrap().to_vec();
                let rows = data.chunks(usize::try_from(step).unwrap());
                let wanted: Vec<u8> =
                    rows.flat_map(|row| &row[..row.len().min(width as usize)]).copied().collect();
                assert!(got == wanted);
            }
        }
    }
    peers.assert_all_free();
}

#[test]
fn lies_about_a_tensor_of_the_sidecar_itself_are_refused_alone() {
    let _turn = TURNS.beside_others();
    let peers = Peers::steady();
    lies_are_refused_alone(&peers, 0, "here");
    peers.assert_all_free();
}
