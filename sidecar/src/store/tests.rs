//! Copies of other peers' tensors, and who has them.

use tensorlane_memory::{ArenaOptions, Block, Purpose};
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::dtype::DType;
use tensorlane_proto::encoded;
use tensorlane_proto::layout::{Layout, Shape};
use tensorlane_proto::reference::Reference;

use super::*;

const BYTES: u64 = 4096;
const A: Holder = Holder::Session(SessionId(1));
const B: Holder = Holder::Session(SessionId(2));
/// A session that is not open.
const GONE: Holder = Holder::Session(SessionId(3));

/// A store in which a session may have two leases.
fn store() -> Arc<Store> {
    let options = ArenaOptions { ready_bytes: 0, ..ArenaOptions::new(8 << 20) };
    let arena = Arena::start(options, Arc::new(|| {})).unwrap();
    let me = Me {
        exchange: ExchangeName::new("lab").unwrap(),
        peer: PeerName::new("here").unwrap(),
        incarnation: Incarnation(1),
    };
    let limits = Limits { leases_per_holder: 2, ..Limits::default() };
    let (ticket_ttl, lease_grace) = (Duration::from_secs(60), Duration::from_secs(10));
    let store = Store::new(
        me,
        StoreSettings { limits, ticket_ttl, lease_grace, metadata_bytes: 1 << 20 },
        arena,
        Clock::start(),
    );
    for session in [A, B] {
        let Holder::Session(id) = session else { unreachable!() };
        store.plain_session_began(id, Arc::default());
    }
    store
}

fn sealed(store: &Store) -> Block {
    let block = store.arena.allocate_or_grow(Purpose::Pull, BYTES).unwrap();
    block.mark_sealed().unwrap();
    block
}

/// Tensor `id` of another peer.
fn copied(store: &Store, id: u64, wanted_by: &[Holder]) -> Copied {
    let layout = Layout::contiguous(DType::U8, Shape::new(&[BYTES]).unwrap()).unwrap();
    let exchange = store.me.exchange.clone();
    let reference = Reference::new(exchange, PeerName::new("there").unwrap(), Incarnation(9), id, &layout);
    let descriptor = Descriptor::host(layout);
    let (plain, wanted_by) = (encoded::without_metadata(&descriptor), wanted_by.into());
    let (gpu, staged, crc32c) = (None, false, None);
    Copied { reference, descriptor, plain, block: sealed(store), gpu, staged, crc32c, wanted_by }
}

fn entered(store: &Store, copies: Vec<Copied>) -> Vec<Entered> {
    store.copies_in(copies).into_iter().map(Result::unwrap).collect()
}

#[test]
fn copies_that_come_together_are_leased_to_those_who_wait_for_each() {
    let store = store();
    let copies = vec![copied(&store, 1, &[A, B]), copied(&store, 2, &[B])];
    let [one, two] = entered(&store, copies).try_into().ok().unwrap();
    assert_eq!((&one.leased[..], &two.leased[..]), (&[A, B][..], &[B][..]));
    assert_eq!((store.totals().0.copies, store.totals().0.leases), (2, 3));
    for (by, id) in [(A, one.tensor.id), (B, one.tensor.id), (B, two.tensor.id)] {
        assert!(store.release(by, &[id.0], &[])[0].is_ok());
    }
    assert_eq!(store.totals().0.leases, 0, "the sidecar keeps none of its own");
    store.arena.stop();
}

#[test]
fn who_is_gone_or_has_too_many_leases_gets_none_and_the_copy_stays() {
    let store = store();
    let two = entered(&store, vec![copied(&store, 1, &[A]), copied(&store, 2, &[A, GONE])]);
    assert!(two.iter().all(|entered| entered.leased[..] == [A]));
    let third = entered(&store, vec![copied(&store, 3, &[A, GONE])]);
    assert!(third[0].leased.is_empty());
    assert_eq!(store.lease(A, None, third[0].tensor.id).err().unwrap().reason.as_str(), "LIMIT_EXCEEDED");
    assert_eq!(store.totals().0.copies, 3);
    assert!(store.lease(B, None, third[0].tensor.id).is_ok(), "it is there for the next one");
    store.arena.stop();
}

#[test]
fn the_copy_that_was_faster_is_the_one_that_all_get() {
    let store = store();
    let first = entered(&store, vec![copied(&store, 1, &[A])]).remove(0);
    let late = copied(&store, 1, &[B]);
    let again = entered(&store, vec![late]).remove(0);
    assert_eq!((first.tensor.id, &again.leased[..]), (again.tensor.id, &[B][..]));
    assert!(Arc::ptr_eq(&first.tensor, &again.tensor));
    assert_eq!((store.totals().0.copies, store.totals().0.leases), (1, 2));
    store.arena.stop();
}
