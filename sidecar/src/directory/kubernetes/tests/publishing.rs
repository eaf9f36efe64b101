use serde_json::{Value, json};

use super::*;
use crate::metrics::label::Moved;

impl Scene {
    async fn until_writes(&self, count: usize) {
        until("it is written", || self.twin.seen().writes.len() >= count).await;
        let seen = self.twin.seen();
        assert_eq!(seen.writes.len(), count, "{:#?}", seen.writes);
    }

    fn writes(&self, result: Moved) -> u64 {
        self.metrics.directory.writes.at((result,)).get()
    }

    async fn until_done(&self, count: u64) {
        until("the answer is read", || self.writes(Moved::Done) == count).await;
    }
}

#[tokio::test]
async fn it_is_said_once_and_again_only_when_something_differs() {
    let mut scene = scene(&["a"], timing()).await;
    scene.twin.create("me", "training", &json!(null));
    scene.directory.publish(offer(7));
    scene.until_writes(1).await;
    scene.until_names(&["a", "me"]).await;
    let status = scene.twin.status("me");
    assert_eq!(
        (&status["incarnation"], &status["observedGeneration"]),
        (&json!(format!("{:032x}", 7)), &json!(1))
    );
    assert_eq!(scene.twin.seen().managers, ["tensorlane-sidecar"]);
    // What changes nothing of it: others, words of others in its own object, a list, the same offer.
    scene.twin.create("b", "training", &published(9));
    scene.twin.change("me", |object| object["metadata"]["labels"] = json!({"team": "blue"}));
    scene.directory.publish(offer(7));
    scene.until_names(&["a", "b", "me"]).await;
    scene.watch.mark_unchanged();
    scene.directory.refresh();
    scene.woken().await;
    // A write too many would be counted here.
    scene.directory.publish(offer(8));
    scene.until_writes(2).await;
    scene.until_done(2).await;
    assert_eq!(
        (scene.twin.status("me")["incarnation"].clone(), scene.writes(Moved::Failed)),
        (json!(format!("{:032x}", 8)), 0)
    );
}

#[tokio::test]
async fn an_object_that_is_not_there_yet_is_waited_for_without_a_write() {
    let mut scene = scene(&["a"], timing()).await;
    scene.directory.publish(offer(7));
    scene.until_names(&["a"]).await;
    scene.twin.create("b", "training", &published(9));
    scene.until_names(&["a", "b"]).await;
    scene.twin.create("me", "training", &json!(null));
    scene.until_names(&["a", "b", "me"]).await;
    assert_eq!((scene.twin.seen().writes.len(), scene.writes(Moved::Failed)), (1, 0));
}

#[tokio::test]
async fn a_status_that_was_reset_and_an_object_that_was_made_again_are_written_again() {
    let mut scene = scene(&[], timing()).await;
    scene.twin.create("me", "training", &json!(null));
    scene.directory.publish(offer(7));
    scene.until_names(&["me"]).await;
    scene.twin.change("me", |object| object["status"] = json!({}));
    scene.until_writes(2).await;
    scene.until_done(2).await;
    scene.twin.delete("me");
    scene.until_names(&[]).await;
    scene.twin.create("me", "training", &json!(null));
    scene.until_writes(3).await;
    scene.until_names(&["me"]).await;
    scene.twin.change("me", |object| object["metadata"]["generation"] = json!(2));
    scene.until_writes(4).await;
    assert_eq!(scene.twin.status("me")["observedGeneration"], 2);
}

#[tokio::test]
async fn a_refused_write_is_made_again_and_counted() {
    let mut scene = scene(&[], timing()).await;
    scene.twin.will(|will| will.forbid_writes = 3);
    scene.twin.create("me", "training", &json!(null));
    scene.directory.publish(offer(7));
    scene.until_names(&["me"]).await;
    scene.until_done(1).await;
    assert_eq!((scene.writes(Moved::Failed), scene.twin.seen().writes.len()), (3, 4));
}

#[tokio::test]
async fn after_an_outage_only_what_is_new_is_written() {
    let mut scene = scene(&[], timing()).await;
    scene.twin.create("me", "training", &json!(null));
    scene.directory.publish(offer(7));
    scene.until_names(&["me"]).await;
    scene.until_done(1).await;
    scene.twin.gate.close().await;
    until("the watch has failed", || scene.metrics.directory.failed_reads.get() > 2).await;
    let told = scene.directory.outage().unwrap();
    assert!(told.starts_with("the API server has not listed peers for"), "{told}");
    scene.directory.publish(offer(8));
    until("the write has failed", || scene.writes(Moved::Failed) > 0).await;
    scene.twin.gate.open().await;
    scene.until_done(2).await;
    until("it is told no longer", || scene.directory.outage().is_none()).await;
    assert_eq!(scene.twin.seen().writes.len(), 2);
    let what = |write: &Value| write["status"]["incarnation"].clone();
    assert_eq!(what(&scene.twin.seen().writes[1]), json!(format!("{:032x}", 8)));
}

/// Tests what a change of the key waits for: the table that others read has both, then the new one alone.
#[tokio::test]
async fn a_second_key_is_listed_beside_the_first_and_then_alone() {
    let mut scene = scene(&[], timing()).await;
    scene.twin.create("me", "training", &json!(null));
    let with_keys = |keys: &[u8]| {
        let mut offer = offer(7);
        offer.entry.fingerprints = keys.iter().map(|&key| Fingerprint([key; 32])).collect();
        offer
    };
    for keys in [&[1][..], &[1, 2], &[2]] {
        let offer = with_keys(keys);
        scene.directory.publish(offer.clone());
        let listed = |table: &Arc<PeerTable>| {
            table.peer(&offer.entry.name).is_some_and(|own| own.fingerprints == offer.entry.fingerprints)
        };
        let came = tokio::time::timeout(PATIENCE, scene.watch.wait_for(listed)).await;
        assert!(came.is_ok_and(|table| table.is_ok()), "{keys:?}");
    }
}
