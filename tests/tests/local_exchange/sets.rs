//! Sealed sets of one sidecar: versions, whom they keep, and writers beside one another.

use std::sync::atomic::{AtomicBool, Ordering};

use tensorlane_client::set::{Keys, PublishOptions, Published};
use tensorlane_client::{AcquireOptions, Client, PutOptions, Result, Stored};
use tensorlane_proto::set::{Node, Tree};
use tensorlane_proto::{Failure, Reason, Reference};
use tensorlane_tests::tensors::{is_intact, put_pattern};
use tensorlane_tests::{Sidecar, SidecarOptions, failure, reason, until};

const LEAVES: u64 = 3;

/// Tensors of a version that can be told from those of others, and a value beside them.
fn put(client: &Client, seed: u64) -> (Vec<Stored>, Tree<Reference>) {
    let one = |leaf| put_pattern(client, seed * 10 + leaf, 100_000, &PutOptions::new()).unwrap();
    let stored: Vec<Stored> = (0..LEAVES).map(one).collect();
    let tensor = |(at, stored): (usize, &Stored)| (format!("{at}"), Node::Tensor(stored.reference().clone()));
    let below =
        Tree { batch: vec![1], entries: stored.iter().enumerate().map(tensor).collect(), ..Tree::default() };
    let entries =
        vec![("layers".to_owned(), Node::Tree(below)), ("seed".to_owned(), Node::Value(seed.into()))];
    (stored, Tree { entries, ..Tree::default() })
}

fn publish(client: &Client, seed: u64, options: &PublishOptions) -> Result<Published> {
    let (_leased, tree) = put(client, seed);
    client.publish_set("policy", &tree, options)
}

fn keeping(keep: u32) -> PublishOptions {
    PublishOptions { keep, ..PublishOptions::default() }
}

fn expecting(latest: u64) -> PublishOptions {
    PublishOptions { expects: Some(latest), ..PublishOptions::default() }
}

fn all() -> AcquireOptions {
    AcquireOptions::new()
}

#[test]
fn a_set_is_published_and_got_whole_by_another_session() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let published = publish(&writer, 7, &keeping(1)).unwrap();
    drop(writer);
    let set = reader.get_set("policy", &all()).unwrap();
    assert_eq!((published.version, set.version), (1, 1));
    let tensors = set.tree.tensors();
    assert_eq!(tensors.len() as u64, LEAVES);
    assert!(tensors.iter().all(|(_, tensor)| is_intact(tensor) && tensor.moved().to_string() == "local"));
    drop(tensors);
    drop(set);
    for name in ["policy", "policy@1"] {
        assert!(reader.unname(&[name]).unwrap().remove(0).is_ok());
    }
    sidecar.assert_all_free();
}

#[test]
fn of_some_keys_of_a_set_only_the_tensors_are_leased() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    publish(&writer, 7, &keeping(1)).unwrap();
    drop(writer);
    // Its manifest leases what it lists.
    until("the writer's leases are gone", || reader.status().unwrap().leases == LEAVES);
    let these = |keys: &[&str]| Keys::These(keys.iter().map(|key| (*key).to_owned()).collect());
    for (keys, count) in [
        (these(&["layers/1"]), 1),
        (these(&["layers.0", "seed"]), 1),
        (these(&["lay*"]), LEAVES),
        (Keys::IfThere(vec!["layers/2".to_owned(), "none".to_owned()]), 1),
        (Keys::All, LEAVES),
    ] {
        let set = reader.get_set_of("policy", &keys, &all()).unwrap();
        assert_eq!(set.tree.tensors().len() as u64, count, "{keys:?}");
        assert!(set.tree.tensors().iter().all(|(_, tensor)| is_intact(tensor)));
        assert_eq!(reader.status().unwrap().leases, LEAVES + count + 1, "these and the manifest besides");
        drop(set);
        reader.flush().unwrap();
    }
    let refused = failure(reader.get_set_of("policy", &these(&["seed", "layers/9"]), &all()));
    assert_eq!((refused.reason, refused.detail("key")), (Reason::SetMismatch, Some("layers/9")));
}

#[test]
fn an_opened_set_keeps_every_leaf_of_its_version() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    publish(&writer, 1, &keeping(1)).unwrap();
    let opened = reader.open_set("policy", &all()).unwrap();
    publish(&writer, 2, &keeping(1)).unwrap();
    let set = reader.acquire_set(opened, &all()).unwrap();
    assert_eq!(set.version, 1);
    assert!(set.tree.tensors().iter().all(|(_, tensor)| is_intact(tensor)));
    drop(set);
    writer.unname(&["policy", "policy@2"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_version_is_found_by_its_number_and_by_its_reference_for_as_long_as_it_is_kept() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let first = publish(&client, 1, &keeping(2)).unwrap();
    publish(&client, 2, &keeping(2)).unwrap();
    assert_eq!(client.get_set("policy@1", &all()).unwrap().version, 1);
    assert_eq!(client.get_set(&first.reference, &all()).unwrap().version, 1);
    publish(&client, 3, &keeping(2)).unwrap();
    assert_eq!(reason(client.get_set("policy@1", &all())), Reason::NotFound);
    assert_eq!(reason(client.get_set(&first.reference, &all())), Reason::NotFound);
    assert_eq!(client.get_set("policy", &all()).unwrap().version, 3);
}

#[test]
fn a_version_that_is_waited_for_is_told_when_it_is_published() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let (writer, reader) = (sidecar.client(), sidecar.client());
    publish(&writer, 1, &keeping(2)).unwrap();
    std::thread::scope(|scope| {
        let minute = std::time::Duration::from_secs(60);
        let wait = all().wait(minute).deadline(minute);
        let waiting = scope.spawn(move || reader.get_set("policy@2", &wait).unwrap().version);
        until("the reader waits", || {
            sidecar.metric("tensorlane_sidecar_waiting_requests", &["for=\"name\""]) > 0.0
        });
        publish(&writer, 2, &keeping(2)).unwrap();
        assert_eq!(waiting.join().unwrap(), 2);
    });
}

#[test]
fn writers_beside_one_another_publish_each_version_once() {
    let sidecar = Sidecar::start();
    let write = |seed: u64| {
        let client = sidecar.client();
        (0..8).map(|_| publish(&client, seed, &keeping(2)).unwrap().version).collect::<Vec<u64>>()
    };
    let mut versions: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8).map(|seed| scope.spawn(move || write(seed))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    versions.sort_unstable();
    assert_eq!(versions, (1..=64).collect::<Vec<u64>>());
    let client = sidecar.client();
    client.unname(&["policy", "policy@63", "policy@64"]).unwrap();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_reader_beside_a_writer_gets_all_of_one_version() {
    let sidecar = Sidecar::start();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let client = sidecar.client();
            let published: Vec<_> = (1..=200).map(|seed| publish(&client, seed, &keeping(1))).collect();
            done.store(true, Ordering::Release);
            published
        });
        let reader = sidecar.client();
        let wait = all().wait(std::time::Duration::from_secs(20));
        let mut seen = 0;
        while !done.load(Ordering::Acquire) {
            let set = reader.get_set("policy", &wait).unwrap();
            let Some(Node::Value(seed)) = set.tree.find(&["seed"]) else { panic!("the value is there") };
            assert_eq!(seed.as_u64(), Some(set.version));
            assert!(set.tree.tensors().iter().all(|(_, tensor)| is_intact(tensor)));
            assert!(set.version >= seen);
            seen = set.version;
        }
        assert!(writer.join().unwrap().into_iter().all(|published| published.is_ok()));
    });
}

#[test]
fn a_version_that_is_not_the_next_one_is_refused_and_leaves_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    publish(&client, 1, &expecting(0)).unwrap();
    for latest in [0, 2, u64::MAX] {
        let refused: Failure = failure(publish(&client, 2, &expecting(latest)));
        assert_eq!((refused.reason, refused.detail("latest")), (Reason::VersionChanged, Some("1")));
    }
    assert_eq!(publish(&client, 2, &expecting(1)).unwrap().version, 2);
    client.unname(&["policy", "policy@1", "policy@2"]).unwrap();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_name_of_a_tensor_is_not_taken_by_a_set_nor_read_as_one() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::named("policy")).unwrap();
    assert_eq!(reason(publish(&client, 2, &keeping(1))), Reason::NameTaken);
    assert_eq!(reason(client.get_set("policy", &all())), Reason::NotASet);
    drop(stored);
    client.unname(&["policy"]).unwrap();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn bytes_that_say_they_are_a_manifest_and_are_none_are_no_set() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut descriptor = tensorlane_tests::tensors::u8s(4);
    descriptor.metadata =
        tensorlane_proto::Metadata::new([(tensorlane_proto::set::SET_METADATA, "1")]).unwrap();
    let stored = client.put(&descriptor, b"{\"a\"", &PutOptions::named("x")).unwrap();
    assert_eq!(reason(client.get_set("x", &all())), Reason::NotASet);
    assert_eq!(reason(client.get_set(stored.reference(), &all())), Reason::NotASet);
    // No reader copies what no manifest has.
    let bytes = vec![b'{'; tensorlane_proto::set::MANIFEST_BYTES_MAX + 1];
    let mut descriptor = tensorlane_tests::tensors::u8s(bytes.len() as u64);
    descriptor.metadata =
        tensorlane_proto::Metadata::new([(tensorlane_proto::set::SET_METADATA, "1")]).unwrap();
    drop(client.put(&descriptor, &bytes, &PutOptions::named("y")).unwrap());
    let refused: Failure = failure(client.get_set("y", &all()));
    assert!(
        refused.reason == Reason::NotASet && refused.message.contains("16777216 are the most"),
        "{refused}"
    );
}

#[test]
fn a_publication_beyond_the_limits_is_refused() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("limits.names", 1));
    let client = sidecar.client();
    let refused = failure(publish(&client, 1, &keeping(1)));
    assert_eq!(refused.reason, Reason::LimitExceeded);
    assert!(refused.message.contains("1 names"), "{refused}");
    drop(client);
    sidecar.assert_all_free();
}
