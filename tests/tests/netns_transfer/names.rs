//! Names that are given to other tensors without end while another host asks for them: none is ever missing. Needs root.

use std::time::Duration;

use tensorlane_client::{AcquireOptions, Client, Description, PutOptions, Target};
use tensorlane_proto::{Descriptor, Reference};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::tensors::{SEED, is_intact, put_pattern};
use tensorlane_tests::where_the_machine_runs_on;

const NAMES: u64 = 64;
/// Calls of the reader: gets, look-ups of all names and of one, and descriptions, in turn.
const CALLS: u64 = 2_000;

/// The name that the tensor of a seed has while no later one takes it.
fn name(seed: u64) -> String {
    format!("swapped/{:02}", seed % NAMES)
}

/// Puts the tensor of a seed in the place of that one, which nothing keeps then.
fn put(client: &Client, seed: u64, replaces: Option<Reference>) -> Reference {
    // Small ones come inside of an answer, the others as a transfer.
    let bytes = if seed.is_multiple_of(2) { 3_000 } else { 100_000 };
    let options = PutOptions { replaces, no_lease: true, ..PutOptions::named(name(seed)) };
    put_pattern(client, seed, bytes, &options).unwrap().reference().clone()
}

/// Checks that a tensor is one of those that had the name.
fn belongs(name: &str, descriptor: &Descriptor) {
    let seed = descriptor.metadata.value(SEED).unwrap().parse().unwrap();
    assert_eq!(self::name(seed), name);
}

/// Checks that a description is of a moment at which the name stood.
fn stood(name: &str, found: &Description) {
    belongs(name, &found.descriptor);
    assert_eq!(found.names, [name]);
}

#[test]
fn names_that_are_swapped_without_end_are_never_missing_at_another_host_and_each_get_is_whole() {
    // A host that does not say within two seconds what it has is passed over, and rightly.
    where_the_machine_runs_on(names_are_asked_for_while_they_are_swapped);
}

fn names_are_asked_for_while_they_are_swapped() {
    let peers = Peers::steady();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let (owner, all) = (writer.peer().unwrap(), AcquireOptions::new());
        let mut stand: Vec<Reference> = (0..NAMES).map(|seed| put(&writer, seed, None)).collect();
        let names: Vec<String> = (0..NAMES).map(name).collect();
        let get = |target: Target, name: &str| {
            let tensor = reader.acquire(target, &all).unwrap();
            assert!(is_intact(&tensor), "{name} has the bytes of two tensors");
            belongs(name, tensor.descriptor());
        };
        let ask = |number: u64| {
            let turn = number / 4;
            let name = name(turn);
            // At any peer, and at its own.
            let peer = (turn / NAMES % 2 == 1).then(|| owner.clone());
            let target = Target::Name { peer: peer.clone(), name: name.clone() };
            match number % 4 {
                0 => get(target, &name),
                1 => stood(&name, &reader.describe(target).unwrap()),
                2 => {
                    let found = reader.lookup(&[&name], peer.as_ref(), Duration::ZERO).unwrap();
                    stood(&name, found[0].as_ref().unwrap());
                }
                _ => {
                    let found = reader.lookup(&names, peer.as_ref(), Duration::ZERO).unwrap();
                    names.iter().zip(found).for_each(|(name, found)| stood(name, &found.unwrap()));
                }
            }
        };
        let mut next = NAMES;
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| (0..CALLS).for_each(ask));
            while !asking.is_finished() {
                let at = (next % NAMES) as usize;
                stand[at] = put(&writer, next, Some(stand[at].clone()));
                next += 1;
            }
            asking.join().unwrap();
        });
        assert!(next >= 3 * NAMES, "no more than {next} tensors were put meanwhile");
        writer.unname(&names).unwrap().into_iter().for_each(|done| done.unwrap());
    }
    peers.assert_all_free();
}
