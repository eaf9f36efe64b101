use serde_json::json;

use super::*;
use crate::admin::{Health, Probe};
use crate::metrics::label::LeftOut;

#[tokio::test]
async fn peers_are_listed_in_pages_and_followed() {
    let twin = Twin::start().await;
    twin.will(|will| (will.page, will.refuse_cached) = (Some(2), 1));
    for (key, name) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        twin.create(name, "training", &published(u8::try_from(key).unwrap()));
    }
    let mut scene = over(twin, timing());
    scene.until_names(&["a", "b", "c", "d", "e"]).await;
    scene.twin.create("f", "training", &published(9));
    scene.until_names(&["a", "b", "c", "d", "e", "f"]).await;
    scene.twin.delete("b");
    scene.until_names(&["a", "c", "d", "e", "f"]).await;
    assert_eq!((scene.twin.seen().lists, scene.metrics.directory.peers.get()), (2, 5));
    assert_eq!(scene.metrics.directory.failed_reads.get(), 1, "that of the cache");
}

#[tokio::test]
async fn only_peers_of_the_exchange_are_asked_for() {
    let mut scene = scene(&["a"], timing()).await;
    scene.twin.create("stranger", "inference", &published(8));
    scene.twin.create("b", "training", &published(9));
    scene.until_names(&["a", "b"]).await;
    let seen = scene.twin.seen();
    assert!(
        seen.selectors.iter().all(|selector| selector == "spec.exchange=training"),
        "{:?}",
        seen.selectors
    );
}

#[tokio::test]
async fn a_peer_is_in_the_table_once_it_has_published_and_until_it_is_reset() {
    let mut scene = scene(&["a"], timing()).await;
    scene.twin.create("b", "training", &json!(null));
    scene.twin.create("c", "training", &json!({"fingerprints": ["sha256:12"]}));
    scene.twin.create("d", "training", &published(9));
    scene.until_names(&["a", "d"]).await;
    let left_out = |why| scene.metrics.directory.left_out.at((why,)).get();
    assert_eq!((left_out(LeftOut::NotPublished), left_out(LeftOut::Fingerprint)), (1, 1));
    scene.twin.change("b", |object| object["status"] = published(7));
    scene.until_names(&["a", "b", "d"]).await;
    scene.twin.change("b", |object| object["status"] = json!({}));
    scene.until_names(&["a", "d"]).await;
}

/// Every table that anyone could have seen.
fn observe(watch: &watch::Receiver<Arc<PeerTable>>) -> (tokio::task::JoinHandle<()>, Arc<Mutex<Vec<usize>>>) {
    let (mut watch, sizes) = (watch.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&sizes);
    let task = tokio::spawn(async move {
        while watch.changed().await.is_ok() {
            seen.lock().push(watch.borrow_and_update().len());
        }
    });
    (task, sizes)
}

#[tokio::test]
async fn a_compacted_watch_is_followed_by_a_list_without_a_hole() {
    let mut scene = scene(&["a", "b", "c"], timing()).await;
    scene.until_names(&["a", "b", "c"]).await;
    let (observer, sizes) = observe(&scene.watch);
    scene.twin.will(|will| (will.page, will.expire_pages, will.refuse_cached) = (Some(1), 2, 1));
    scene.twin.compact_after(|objects| {
        objects.remove("a");
        let mut new = objects["b"].clone();
        new["metadata"]["name"] = json!("z");
        new["status"] = published(77);
        objects.insert("z".to_owned(), new);
    });
    scene.until_names(&["b", "c", "z"]).await;
    observer.abort();
    assert!(sizes.lock().iter().all(|&size| size == 3), "{:?}", sizes.lock());
    assert!(scene.twin.seen().lists >= 3, "a list whose pages expired was taken for whole");
    scene.twin.create("y", "training", &published(78));
    scene.until_names(&["b", "c", "y", "z"]).await;
}

/// Lists that many sidecars make at once come from the API server's memory; whether a key is new is asked of what is
/// stored.
#[tokio::test]
async fn the_first_list_and_that_after_a_410_come_from_the_cache_and_a_refresh_does_not() {
    let mut scene = scene(&["a"], timing()).await;
    scene.until_names(&["a"]).await;
    scene.twin.create("b", "training", &published(9));
    scene.until_names(&["a", "b"]).await;
    assert_eq!(scene.twin.seen().listed_at, ["0"]);
    scene.directory.refresh();
    until("a refresh is listed", || scene.twin.seen().listed_at.len() == 2).await;
    assert_eq!(scene.twin.seen().listed_at, ["0", ""]);
    let known = scene.twin.version();
    scene.twin.compact_after(|objects| _ = objects.remove("a"));
    scene.until_names(&["b"]).await;
    let after = scene.twin.seen().listed_at;
    assert_eq!(after.get(2), Some(&known.to_string()), "it is as new as what was known: {after:?}");
}

#[tokio::test]
async fn while_the_api_server_is_away_the_last_good_table_stays() {
    let mut scene = scene(&["a", "b"], timing()).await;
    scene.until_names(&["a", "b"]).await;
    scene.twin.gate.close().await;
    scene.twin.delete("a");
    scene.twin.create("c", "training", &published(9));
    let failed = &scene.metrics.directory.failed_reads;
    until("several attempts have failed", || failed.get() > 5).await;
    assert_eq!(scene.names(), ["a", "b"]);
    // Whoever meets a stranger meanwhile is not kept waiting.
    scene.watch.mark_unchanged();
    scene.directory.refresh();
    scene.woken().await;
    scene.twin.gate.open().await;
    scene.until_names(&["b", "c"]).await;
    let listed_at = scene.twin.seen().listed_at;
    assert!(listed_at.iter().all(|at| !at.is_empty()), "all sidecars list after an outage: {listed_at:?}");
}

#[tokio::test]
async fn the_first_list_waits_by_chance_and_whoever_asks_for_one_gets_it_at_once_of_what_is_stored() {
    let mut scene = scene(&["a"], Timing { spread: NEVER, ..timing() }).await;
    assert_eq!(scene.twin.seen().lists, 0);
    scene.directory.refresh();
    scene.until_names(&["a"]).await;
    assert_eq!(scene.twin.seen().listed_at, [""]);
}

#[tokio::test]
async fn a_table_is_empty_only_where_a_whole_list_says_so() {
    let mut scene = scene(&["a", "b"], timing()).await;
    scene.until_names(&["a", "b"]).await;
    scene.twin.compact_after(std::collections::BTreeMap::clear);
    scene.until_names(&[]).await;
    scene.twin.create("a", "training", &published(1));
    scene.until_names(&["a"]).await;
}

#[tokio::test]
async fn a_list_without_an_answer_is_given_up_and_made_again() {
    let twin = Twin::start().await;
    twin.create("a", "training", &published(1));
    twin.will(|will| will.hang_lists = 2);
    let mut scene = over(twin, Timing { request: Duration::from_millis(300), ..timing() });
    scene.until_names(&["a"]).await;
    assert!(scene.metrics.directory.failed_reads.get() >= 2);
}

#[tokio::test]
async fn a_silent_watch_is_followed_by_a_list() {
    let mut scene = scene(&["a"], Timing { silence: Duration::from_millis(20), ..timing() }).await;
    scene.until_names(&["a"]).await;
    until("watches were given up", || scene.twin.seen().lists > 2).await;
    scene.twin.create("b", "training", &published(9));
    scene.until_names(&["a", "b"]).await;
}

#[tokio::test]
async fn an_api_server_that_was_restored_is_listed_anew_and_told_again() {
    let mut scene = scene(&["a"], Timing { silence: Duration::from_millis(100), ..timing() }).await;
    scene.twin.create("me", "training", &json!(null));
    let before = scene.twin.backup();
    scene.directory.publish(offer(7));
    scene.twin.create("b", "training", &published(9));
    scene.until_names(&["a", "b", "me"]).await;
    let after = scene.twin.backup();
    let is_told = |scene: &Scene| scene.twin.status("me")["incarnation"] == format!("{:032x}", 7);
    // A backup from before it was told: what it wrote since has a version that the server has yet to come to.
    scene.twin.restore(before);
    until("it is told again", || is_told(&scene)).await;
    scene.until_names(&["a", "me"]).await;
    // A backup from after it: nothing is to be told, and what is reset after that is told again.
    scene.twin.restore(after);
    scene.until_names(&["a", "b", "me"]).await;
    scene.twin.change("me", |object| object["status"] = json!({}));
    until("it is told again", || is_told(&scene)).await;
}

#[tokio::test]
async fn a_refresh_lists_again_and_wakes_whoever_waits_though_nothing_is_new() {
    let mut scene = scene(&["a"], timing()).await;
    scene.until_names(&["a"]).await;
    for round in 1..4 {
        scene.watch.mark_unchanged();
        // They come before any task runs: they are one.
        (0..1000).for_each(|_| scene.directory.refresh());
        scene.woken().await;
        assert_eq!((scene.names(), scene.twin.seen().lists), (vec!["a".to_owned()], 1 + round));
    }
}

#[tokio::test]
async fn refreshes_make_no_more_lists_than_the_limit_allows() {
    let mut scene = scene(&["a"], Timing { refresh_every: NEVER, ..timing() }).await;
    scene.until_names(&["a"]).await;
    for (key, name) in ["b", "c", "d"].into_iter().enumerate() {
        scene.directory.refresh();
        scene.twin.create(name, "training", &published(100 + u8::try_from(key).unwrap()));
        until("the watch brought it", || scene.names().contains(&name.to_owned())).await;
    }
    assert_eq!(scene.twin.seen().lists, 1);
}

#[tokio::test]
async fn a_refresh_is_answered_by_the_watch_where_that_is_soon_enough() {
    let mut scene = scene(&["a"], Timing { refresh_lag: NEVER, ..timing() }).await;
    scene.until_names(&["a"]).await;
    scene.watch.mark_unchanged();
    scene.directory.refresh();
    scene.twin.create("b", "training", &published(9));
    scene.woken().await;
    assert_eq!((scene.names().len(), scene.twin.seen().lists), (2, 1));
}

#[tokio::test]
async fn dropping_it_ends_its_connections() {
    let Scene { twin, directory, watch, .. } = scene(&["a"], timing()).await;
    until("the first table is there", || watch.borrow().len() == 1).await;
    until("it watches", || twin.seen().watches == 1).await;
    assert!(twin.gate.connections() > 0);
    drop(directory);
    until("no connection is open", || twin.gate.connections() == 0).await;
}

#[tokio::test]
async fn a_sidecar_that_restarts_while_the_api_server_is_away_knows_its_peers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("peers.yaml");
    let mut first = scene(&["a", "b"], timing()).await;
    first.until_names(&["a", "b"]).await;
    let start = |scene: &Scene| {
        let metrics = Arc::new(Metrics::new(&Registry::new()).unwrap());
        KubernetesDirectory::with_timing(
            client(&scene.twin),
            &settings(Some(&path)),
            metrics,
            &Threads::default(),
            timing(),
        )
    };
    let before = start(&first);
    until("the table is kept", || load(&path).is_some_and(|table| table.len() == 2)).await;
    drop(before);
    first.twin.gate.close().await;
    let mut second = start(&first).watch();
    assert_eq!(second.borrow_and_update().len(), 2);
}

#[tokio::test]
async fn a_kubeconfig_says_where_the_api_server_is_and_who_asks() {
    let twin = Twin::start().await;
    twin.create("a", "training", &published(1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: t\n\
         clusters: [{{name: t, cluster: {{server: 'http://{}'}}}}]\n\
         users: [{{name: t, user: {{token: secret-word}}}}]\n\
         contexts: [{{name: t, context: {{cluster: t, user: t, namespace: ml}}}}]\n",
        twin.gate.address
    );
    std::fs::write(&path, text).unwrap();
    let (client, namespace) = connect(Some(&path)).await.unwrap();
    assert_eq!(namespace, "ml");
    let metrics = Arc::new(Metrics::new(&Registry::new()).unwrap());
    let directory =
        KubernetesDirectory::with_timing(client, &settings(None), metrics, &Threads::default(), timing());
    let mut watch = directory.watch();
    let listed = tokio::time::timeout(PATIENCE, watch.wait_for(|table| table.len() == 1)).await;
    assert!(listed.unwrap().is_ok());
    assert!(twin.seen().tokens.iter().all(|token| token == "Bearer secret-word"));
    let told = connect(Some(&folder.path().join("missing"))).await.err().unwrap().to_string();
    assert!(told.contains("peers.kubeconfig") && told.contains("missing"), "{told}");
}

#[tokio::test]
async fn a_task_of_the_directory_that_panics_is_the_end_of_being_alive() {
    let twin = Twin::start().await;
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("peers.yaml");
    for name in ["directory-watch", "directory-publish", "directory-keep"] {
        let health = Health::new();
        let threads = Threads::new(health.clone());
        threads.fail_at(name);
        let metrics = Arc::new(Metrics::new(&Registry::new()).unwrap());
        let settings = settings(Some(&path));
        let directory =
            KubernetesDirectory::with_timing(client(&twin), &settings, metrics, &threads, timing());
        let failed = async {
            while health.ask(Probe::Alive).is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, failed).await.expect(name);
        assert_eq!(health.ask(Probe::Alive), Err(format!("{name}: its thread has panicked\n")));
        drop(directory);
    }
}
