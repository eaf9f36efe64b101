//! Pulls whose owner is lost on the way: they go on from whoever has the bytes, as far as what comes can be proven.

use super::*;
use crate::peer::calls::{Kind, PullCall};
use crate::peer::tests::proxy::Proxy;

/// Time that the reader waits for a lost owner: no time at all, or longer than any test takes.
const NO_GRACE: Duration = Duration::from_millis(300);
const LONG_GRACE: Duration = Duration::from_secs(120);

/// An owner behind a proxy, a reader `c`, and others, `b` and `d`.
fn world(grace: Duration) -> (Arc<Table>, World, Proxy) {
    let table = Arc::new(Table::default());
    let start = |name| Start { lanes: WAYS[0].1, ..Start::new(name) };
    let owner = Start { grace: Duration::ZERO, ..start("a") }.start(&table);
    let others = ["b", "d"].map(|name| start(name).start(&table));
    let proxy = Proxy::new(owner.peers.bound_address());
    table.list("a", proxy.address, owner.fingerprint);
    let progress = Duration::from_secs(5);
    let reader = Start { listed: Some(nowhere()), progress, grace, ..start("c") }.start(&table);
    owner.twin.add(ID, sealed(&owner.arena, BYTES, 3), 1);
    reach_owner(&reader);
    let [b, d] = others;
    ["b", "d"].into_iter().for_each(|other| reader.connect(other));
    (table, World { owner, readers: vec![b, reader, d], way: "TLS" }, proxy)
}

/// The reader has five granules of `b`, which has got no more, and what the owner has to say of them.
fn helped(world: &World) -> (Growing, Pulling) {
    world.give(1, &[0]);
    let growing = world.grows(0, 5);
    let pull = world.begin(1);
    until("some of it is here", || bytes_in(&world.readers[1]) == 5 * GRANULE);
    until("it can be proven", || its_pull(world, PullCall::is_provable));
    (growing, pull)
}

/// The reader has some of it from the owner, whose lanes bring no more, and knows who else has all.
fn stuck(world: &World, proxy: &Proxy, spares: &[usize]) -> Pulling {
    *world.owner.twin.spares.lock() = spares.iter().map(|spare| world.readers[*spare].key()).collect();
    proxy.starve_after.store(3 * GRANULE as usize, Ordering::SeqCst);
    let pull = world.begin(1);
    until("some of it is here", || bytes_in(&world.readers[1]) > 0);
    until("it can be proven", || its_pull(world, PullCall::is_provable));
    pull
}

/// Returns whether something is so of the reader's pull.
fn its_pull(world: &World, is_so: impl Fn(&PullCall) -> bool) -> bool {
    let owner = world.readers[1].peers.shared.known_peer(&name("a")).unwrap();
    let state = owner.state.lock();
    state.calls.values().any(|call| matches!(&call.kind, Kind::Pull(pull) if is_so(pull)))
}

/// Time since the reader lost the owner.
fn away(world: &World) -> Duration {
    let owner = world.readers[1].peers.shared.known_peer(&name("a")).unwrap();
    owner.state.lock().away(std::time::Instant::now()).unwrap_or_default()
}

/// Nothing is left at anyone but the owner, who is gone.
fn assert_over(world: &World) {
    for one in &world.readers {
        until("its leases have ended", || one.twin.leased() == 0);
        one.twin.growths.lock().clear();
        one.assert_free();
    }
    world.owner.twin.tensors.lock().clear();
}

#[test]
fn what_a_holder_brings_comes_though_the_owner_does_not_come_back() {
    for unsummed in [false, true] {
        let (_table, world, _proxy) = world(NO_GRACE);
        world.owner.twin.unsummed.store(unsummed, Ordering::SeqCst);
        let (growing, pull) = helped(&world);
        world.owner.peers.stop();
        until("nobody waits for the owner any more", || away(&world) > NO_GRACE * 5);
        growing.grow(16);
        assert_eq!(pull.end(&world), [("b".to_owned(), BYTES)], "unsummed: {unsummed}");
        drop(growing);
        assert_over(&world);
    }
}

#[test]
fn a_holder_that_lets_go_when_the_owner_is_gone_leaves_the_reader_with_a_reason() {
    let (_table, world, _proxy) = world(NO_GRACE);
    let (growing, pull) = helped(&world);
    world.owner.peers.stop();
    until("nobody waits for the owner any more", || away(&world) > NO_GRACE * 5);
    growing.growth.gone();
    let outcome = pull.told.recv_timeout(PATIENCE).expect("every pull has an outcome");
    assert_eq!(outcome.unwrap_err().reason, Reason::PeerUnreachable);
    drop((growing, pull.block));
    assert_over(&world);
}

#[test]
fn what_came_from_the_owner_goes_on_from_one_that_has_all_when_it_is_gone() {
    for unsummed in [false, true] {
        let (_table, world, proxy) = world(LONG_GRACE);
        world.owner.twin.unsummed.store(unsummed, Ordering::SeqCst);
        // What is on its way will not do, and is passed over.
        let growing = world.grows(0, 21);
        world.readers[2].twin.add(ID, sealed(&world.readers[2].arena, BYTES, 3), 1);
        let pull = stuck(&world, &proxy, &[0, 2]);
        world.owner.peers.stop();
        let senders = pull.end(&world);
        let [(first, came), (second, rest)] = &senders[..] else { panic!("{senders:?}") };
        assert_eq!([&first[..], second], ["a", "d"], "unsummed: {unsummed}");
        assert!(*came > 0 && came + rest == BYTES, "{senders:?}");
        assert_eq!(world.lost(1, HolderLost::Refused), 1, "{senders:?}");
        drop(growing);
        assert_over(&world);
    }
}

#[test]
fn what_the_owner_cannot_prove_comes_from_the_owner_and_from_nobody_else() {
    let (_table, world, proxy) = world(NO_GRACE);
    world.owner.twin.unsummed.store(true, Ordering::SeqCst);
    world.owner.twin.unprovable.store(true, Ordering::SeqCst);
    world.readers[2].twin.add(ID, sealed(&world.readers[2].arena, BYTES, 3), 1);
    *world.owner.twin.spares.lock() = vec![world.readers[2].key()];
    let Ok(pulled) = world.told(1) else { panic!("the owner's own bytes need no proof") };
    assert_eq!((pulled.crc32c, pulled.paths.senders().are_others()), (None, false));
    drop(pulled);

    proxy.starve_after.store(3 * GRANULE as usize, Ordering::SeqCst);
    proxy.cut();
    reach_owner(&world.readers[1]);
    let before = bytes_in(&world.readers[1]);
    let pull = world.begin(1);
    until("some of it is here", || bytes_in(&world.readers[1]) > before);
    until("it knows that nobody can prove it", || its_pull(&world, |pull| pull.spares.is_empty()));
    world.owner.peers.stop();
    let outcome = pull.told.recv_timeout(PATIENCE).expect("every pull has an outcome");
    assert_eq!(outcome.unwrap_err().reason, Reason::PeerUnreachable);
    assert_eq!(world.sent(&world.readers[2]), 0);
    drop(pull.block);
    assert_over(&world);
}

#[test]
fn a_pull_under_way_outlives_the_life_of_its_owner_and_a_new_one_does_not_begin() {
    for holder_stays in [true, false] {
        let (table, world, _proxy) = world(LONG_GRACE);
        let (growing, pull) = helped(&world);
        world.owner.peers.stop();
        let next = Start { incarnation: 2, lanes: WAYS[0].1, ..Start::new("a") }.start(&table);
        let reader = &world.readers[1];
        until("the reader knows of the new life", || reader.peers.is_over(&name("a"), Incarnation(1)));
        let (told, _, block) = reader.pull("a", Some(1), ID, Selection::All, BYTES);
        assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().failure.reason, Reason::OwnerLost);
        drop(block);
        if holder_stays {
            growing.grow(16);
            assert_eq!(pull.end(&world), [("b".to_owned(), BYTES)]);
        } else {
            growing.growth.gone();
            let outcome = pull.told.recv_timeout(PATIENCE).expect("every pull has an outcome");
            assert_eq!(outcome.unwrap_err().reason, Reason::OwnerLost);
            drop(pull.block);
        }
        assert_eq!(next.twin.opens.load(Ordering::SeqCst), 0);
        drop(growing);
        assert_over(&world);
        next.assert_free();
    }
}

#[test]
fn an_owner_that_is_back_and_does_not_go_on_with_a_pull_does_not_end_what_a_holder_brings() {
    let (_table, world, proxy) = world(LONG_GRACE);
    let (growing, pull) = helped(&world);
    world.owner.twin.draining.store(true, Ordering::SeqCst);
    proxy.refuse.store(true, Ordering::SeqCst);
    proxy.cut();
    // It has no grace: what comes again after that is new to it.
    until("the owner has lost the reader", || {
        world.owner.twin.events.lock().contains(&"lost c 1".to_owned())
    });
    proxy.refuse.store(false, Ordering::SeqCst);
    until("the owner has refused it", || its_pull(&world, |pull| pull.orphaned.is_some()));
    growing.grow(16);
    assert_eq!(pull.end(&world), [("b".to_owned(), BYTES)]);
    drop(growing);
    assert_over(&world);
}

#[test]
fn a_reader_lets_a_spare_go_when_the_owner_is_back() {
    let (_table, world, proxy) = world(LONG_GRACE);
    let pull = stuck(&world, &proxy, &[2]);
    // It has nothing yet, and serves all the same.
    let silent = world.grows(2, 0);
    world.readers[2].twin.whole_too.store(true, Ordering::SeqCst);
    proxy.refuse.store(true, Ordering::SeqCst);
    proxy.cut();
    until("the spare was asked", || its_pull(&world, |pull| pull.relay.is_some()));
    proxy.starve_after.store(usize::MAX, Ordering::SeqCst);
    proxy.refuse.store(false, Ordering::SeqCst);
    let senders = pull.end(&world);
    assert!(senders.is_empty(), "the owner sent all: {senders:?}");
    drop((silent, proxy));
    assert_over(&world);
}
