//! Bytes that a holder changed on purpose, so that no checksum finds them: the owner's hashes do.

use super::*;

/// Five bytes that change no CRC-32C, wherever they are added to: the polynomial itself, in the order of the bits in memory.
const UNSEEN: [u8; 5] = [0xf1, 0x76, 0xec, 0x05, 0x01];

/// Granules of the tensor that are forged.
const FORGED: [u64; 2] = [4, 17];

/// The bytes of the owner's tensor, with some that are not.
fn forged(world: &World) -> Vec<u8> {
    let own = world.owner.own_bytes(ID);
    let mut content = own.clone();
    for granule in FORGED {
        let at = (granule * GRANULE + 1234) as usize;
        content[at..at + UNSEEN.len()].iter_mut().zip(UNSEEN).for_each(|(byte, change)| *byte ^= change);
    }
    assert_ne!(content, own);
    assert_eq!(crc32c::crc32c(&content), crc32c::crc32c(&own), "no checksum finds it");
    content
}

/// Gives a reader a copy of its own making.
fn copy(world: &World, reader: usize, content: &[u8]) {
    let one = &world.readers[reader];
    let (block, mut landing) = one.landing(BYTES);
    landing.chunk_mut(0..BYTES).unwrap().copy_from_slice(content);
    drop(landing);
    block.mark_sealed().unwrap();
    one.twin.add(ID, block, 1);
}

fn found(world: &World, reader: usize) -> u64 {
    world.readers[reader].peers.counters().forged.load(Ordering::SeqCst)
}

#[test]
fn what_a_holder_forged_is_found_comes_from_the_owner_and_is_passed_on_to_nobody() {
    for way in WAYS {
        let world = World::new(3, way);
        copy(&world, 0, &forged(&world));
        // The second is served by the forger, and serves the third meanwhile.
        (1..3).for_each(|reader| world.give(reader, &[reader - 1]));
        let pulls = [world.begin(1), world.begin(2)];
        let [second, third] = pulls.map(|pull| pull.end(&world));
        let (first, rest) = (&second[0], &second[1]);
        assert_eq!((&*first.0, &*rest.0), ("b", "a"), "{}: {second:?}", world.way);
        // The owner sent what was forged, and what nobody had when that was found.
        let sent = world.sent(&world.owner);
        assert!((GRANULE..=BYTES).contains(&rest.1) && sent >= rest.1, "{}: {second:?}", world.way);
        // It is counted behind what ends the pull.
        until("it is counted", || (1..=FORGED.len() as u64).contains(&found(&world, 1)));
        until("it is not asked again", || world.lost(1, HolderLost::Altered) == 1);
        let said = LostHolder { peer: world.readers[0].key(), why: Some(HolderLost::Altered) };
        until("the owner knows who forged", || world.owner.twin.lost.lock().contains(&said));
        // What came to the third was all the owner's, from whomever it came.
        assert_eq!(found(&world, 2), 0, "{}: {third:?}", world.way);
        assert!(third.iter().all(|(name, _)| ["c", "a"].contains(&&**name)), "{}: {third:?}", world.way);
        world.assert_over();
    }
}

#[test]
fn what_is_not_proven_yet_is_not_passed_on() {
    let world = World::new(3, WAYS[0]);
    copy(&world, 0, &forged(&world));
    world.owner.twin.hold_proofs.store(true, Ordering::SeqCst);
    (1..3).for_each(|reader| world.give(reader, &[reader - 1]));
    let pull = world.begin(1);
    until("all that the forger has is here", || bytes_in(&world.readers[1]) == BYTES);
    assert!(!world.has(1, 1), "nobody has said that it is the owner's");
    world.owner.twin.tell_proofs();
    let (senders, forged) = (pull.end(&world), FORGED.len() as u64);
    // The forger may send a granule again until it is let go.
    let (first, rest) = (&senders[0], &senders[1]);
    assert!(first.0 == "b" && (BYTES..=BYTES + forged * GRANULE).contains(&first.1), "{senders:?}");
    assert_eq!((rest, senders.len()), (&("a".to_owned(), forged * GRANULE), 2));
    until("they are counted", || (forged..=2 * forged).contains(&found(&world, 1)));
    world.assert_owner_sent(forged * GRANULE);
    assert_eq!(world.begin(2).end(&world), [("c".to_owned(), BYTES)]);
    assert_eq!(found(&world, 2), 0);
    world.assert_over();
}

#[test]
fn a_forger_that_was_let_go_before_it_was_found_is_named_all_the_same() {
    let world = World::new(2, WAYS[0]);
    let mut growing = world.grows(0, 0);
    growing.content = forged(&world);
    growing.grow(21);
    world.owner.twin.hold_proofs.store(true, Ordering::SeqCst);
    world.give(1, &[0]);
    let pull = world.begin(1);
    until("all that the forger has is here", || bytes_in(&world.readers[1]) == BYTES);
    world.readers[0].peers.stop();
    until("it is let go", || world.lost(1, HolderLost::Unreachable) == 1);
    world.owner.twin.tell_proofs();
    let rest = FORGED.len() as u64 * GRANULE;
    assert_eq!(pull.end(&world), [("b".to_owned(), BYTES), ("a".to_owned(), rest)]);
    until("they are counted", || found(&world, 1) == FORGED.len() as u64);
    drop(growing);
    world.assert_over();
}

#[test]
fn an_owner_that_says_hashes_of_another_number_of_granules_is_cut() {
    let world = World::new(2, WAYS[0]);
    world.owner.twin.short_proofs.store(true, Ordering::SeqCst);
    world.give(1, &[0]);
    let growing = world.grows(0, 5);
    let pull = world.begin(1);
    let frames = &world.readers[1].peers.counters().frames_refused;
    until("its connection has ended for that", || !frames.all().is_empty());
    world.owner.twin.short_proofs.store(false, Ordering::SeqCst);
    growing.grow(16);
    pull.end(&world);
    drop(growing);
    world.await_leases();
    world.assert_over();
}
