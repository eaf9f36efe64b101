//! Names of another peer, which are replaced between the answer and the pull.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Failure, Incarnation, Layout, Reason, Reference, Shape};

use super::world::{One, PATIENCE, Start, Table, name, sealed, until};
use crate::cancel::Cancel;
use crate::exchange::alone::alone;
use crate::exchange::{Caller, Exchange};

/// Small ones travel inside a frame, others by a pull of their own.
const SIZES: [u64; 2] = [4 << 10, 1 << 20];

/// A reader with its verbs, and an owner that answers what it is told to.
struct Scene {
    exchange: Arc<Exchange>,
    owner: One,
    _reader: One,
}

impl Scene {
    fn new() -> Self {
        let (exchange, ..) = alone();
        let table = Arc::new(Table::default());
        let start = |name| Start {
            exchange: "lab",
            offer: exchange.offer(&["somewhere".to_owned()]),
            ..Start::new(name)
        };
        let owner = start("owner").start(&table);
        let reader = start("here").start(&table);
        exchange.connect(Arc::clone(&reader.peers));
        reader.peers.ensure(&name("owner"), std::time::Instant::now() + PATIENCE).unwrap();
        until("they are connected", || reader.peers.connected().contains(&name("owner")));
        Self { exchange, owner, _reader: reader }
    }

    fn has(&self, id: u64, bytes: u64) {
        self.owner.twin.add(id, sealed(&self.owner.arena, bytes, id), 1);
    }

    /// The name stands for these when it is asked for, one after the other.
    fn stands_for(&self, ids: impl IntoIterator<Item = u64>, bytes: u64) {
        *self.owner.twin.answers.lock() =
            ids.into_iter().map(|id| described(&reference(id, bytes))).collect();
    }

    /// Number of answers that were not asked for.
    fn left(&self) -> usize {
        self.owner.twin.answers.lock().len()
    }

    /// The bytes of what is got.
    fn get(&self, target: v1::target::Kind, deadline: Duration) -> Result<Vec<u8>, Failure> {
        let target = v1::Target { kind: Some(target), peer: String::new() };
        let item = v1::GetItem { target: Some(target), selection: None };
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap();
        let request = v1::GetRequest { items: vec![item], deadline_ms, ..v1::GetRequest::default() };
        let caller = Caller { holder: None, link: None, on_behalf: None, cancel: Cancel::default() };
        let (tell, told) = mpsc::channel();
        self.exchange.borrow(caller, request, move |outcome| tell.send(outcome).unwrap());
        let borrowed = told.recv_timeout(PATIENCE).expect("an answer").unwrap();
        match &borrowed.taken[0] {
            Ok(taken) => Ok(taken.block().chunk(0..taken.block().len()).unwrap().to_vec()),
            Err(failure) => Err(failure.clone()),
        }
    }
}

fn reference(id: u64, bytes: u64) -> Reference {
    let layout = Layout::contiguous(DType::U8, Shape::new(&[1, bytes]).unwrap()).unwrap();
    Reference::new("lab".parse().unwrap(), name("owner"), Incarnation(1), id, &layout)
}

fn described(reference: &Reference) -> v1::DescribeResult {
    use v1::describe_result::Outcome;
    let description = v1::Description { reference: reference.encode(), ..v1::Description::default() };
    v1::DescribeResult { outcome: Some(Outcome::Description(description)) }
}

fn by_name() -> v1::target::Kind {
    v1::target::Kind::Name("weights".to_owned())
}

#[test]
fn a_get_by_name_follows_the_name_to_the_tensor_that_took_its_place() {
    let scene = Scene::new();
    for (id, bytes) in (10..).step_by(10).zip(SIZES) {
        // Twice what it stands for is gone when it is pulled.
        scene.has(id, bytes);
        scene.stands_for([id - 2, id - 1, id], bytes);
        let got = scene.get(by_name(), PATIENCE).unwrap();
        assert_eq!((got.len() as u64, scene.left()), (bytes, 0));
        assert_eq!(got, scene.owner.twin.tensors.lock()[&id].0.chunk(0..bytes).unwrap());
    }
}

#[test]
fn a_name_that_stands_for_what_is_gone_is_looked_up_once_more_and_not_again() {
    let scene = Scene::new();
    for bytes in SIZES {
        scene.stands_for([7; 5], bytes);
        assert_eq!(scene.get(by_name(), PATIENCE).unwrap_err().reason, Reason::NotFound);
        assert_eq!(scene.left(), 3);
    }
}

#[test]
fn a_name_that_is_taken_away_on_the_way_is_not_found() {
    let scene = Scene::new();
    scene.stands_for([7], SIZES[0]);
    let failure = scene.get(by_name(), PATIENCE).unwrap_err();
    assert_eq!(failure.reason, Reason::NotFound);
    assert!(failure.message.contains("nothing is named weights"), "{failure}");
}

#[test]
fn a_name_that_is_replaced_for_ever_is_followed_until_the_deadline() {
    let scene = Scene::new();
    scene.stands_for(1..50_000, SIZES[0]);
    let failure = scene.get(by_name(), Duration::from_millis(300)).unwrap_err();
    assert_eq!(failure.reason, Reason::DeadlineExceeded, "{failure}");
    assert!(scene.left() > 0);
}

#[test]
fn a_get_by_reference_follows_no_name() {
    let scene = Scene::new();
    for bytes in SIZES {
        scene.has(8, bytes);
        scene.stands_for([8; 3], bytes);
        let gone = v1::target::Kind::Reference(reference(7, bytes).encode());
        assert_eq!(scene.get(gone, PATIENCE).unwrap_err().reason, Reason::NotFound);
        assert_eq!(scene.left(), 3);
    }
}
