//! Sealed sets from another host: all of one version, whatever is published meanwhile.

use std::time::Duration;

use tensorlane_client::set::PublishOptions;
use tensorlane_client::{AcquireOptions, Client, PutOptions, Stored};
use tensorlane_proto::Reference;
use tensorlane_proto::set::{Node, Tree};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::tensors::{is_intact, put_pattern};

const LEAVES: u64 = 5;
const VERSIONS: u64 = 100;

fn publish(client: &Client, seed: u64, keep: u32) -> u64 {
    let put = |leaf| put_pattern(client, seed * 10 + leaf, 70_000, &PutOptions::new()).unwrap();
    let stored: Vec<Stored> = (0..LEAVES).map(put).collect();
    let tensor = |(at, stored): (usize, &Stored)| (format!("{at}"), Node::Tensor(stored.reference().clone()));
    let mut entries: Vec<(String, Node<Reference>)> = stored.iter().enumerate().map(tensor).collect();
    entries.push(("seed".to_owned(), Node::Value(seed.into())));
    let options = PublishOptions { keep, ..PublishOptions::default() };
    client.publish_set("policy", &Tree { entries, ..Tree::default() }, &options).unwrap().version
}

#[test]
fn a_set_of_another_host_is_got_whole_by_its_name() {
    let peers = Peers::steady();
    let (writer, reader) = (peers.client(0), peers.client(1));
    assert_eq!(publish(&writer, 1, 2), 1);
    let set = reader.get_set("policy", &AcquireOptions::new()).unwrap();
    assert_eq!((set.version, set.tree.tensors().len() as u64), (1, LEAVES));
    assert!(set.tree.tensors().iter().all(|(_, tensor)| is_intact(tensor)));
    drop(set);
    writer.unname(&["policy", "policy@1"]).unwrap();
    drop((writer, reader));
    peers.assert_all_free();
}

#[test]
fn a_reader_of_another_host_beside_a_writer_gets_all_of_one_version() {
    let peers = Peers::steady();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let client = peers.client(0);
            for seed in 1..=VERSIONS {
                // One version stays: a reader that is slower than a publication begins anew.
                assert_eq!(publish(&client, seed, 1), seed);
            }
        });
        let reader = peers.client(1);
        let wait = AcquireOptions::new().wait(Duration::from_secs(20)).deadline(Duration::from_secs(30));
        let mut seen = 0;
        while seen < VERSIONS {
            let set = reader.get_set("policy", &wait).unwrap();
            let Some(Node::Value(seed)) = set.tree.find(&["seed"]) else { panic!("the value is there") };
            assert_eq!(seed.as_u64(), Some(set.version));
            assert!(set.tree.tensors().iter().all(|(_, tensor)| is_intact(tensor)));
            assert!(set.version >= seen);
            seen = set.version;
        }
        writer.join().unwrap();
    });
}
