//! Lists that sidecars which start together ask of an API server, by its own metrics: from its memory, and none of etcd.

use std::time::Instant;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::iter;
use kube::Client;
use tensorlane_sidecar::directory::Directory;

use crate::directory::{of_peer_a, prepare, publish_key};
use crate::objects::until;
use crate::running::token;
use crate::server::Server;

/// Peers, and sidecars that watch them.
const FEW: (usize, usize) = (300, 10);

/// Peers and sidecars with the variable of the environment [`LARGE`].
const MANY: (usize, usize) = (5_000, 50);
const LARGE: &str = "TENSORLANE_TEST_MANY_PEERS";

/// Objects of a page of what is stored, as a sidecar asks for it.
const PAGE: usize = 250;

/// Objects that are made at once.
const AT_ONCE: usize = 32;

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn sidecars_that_start_together_list_from_memory_and_a_refresh_is_of_what_is_stored() {
    let (peers, sidecars) = if std::env::var_os(LARGE).is_some() { MANY } else { FEW };
    let server = Server::start().await;
    let admin = server.admin();
    prepare(&admin).await;
    let made = Instant::now();
    let publish = |number: usize| {
        let admin = admin.clone();
        async move { publish_key(&admin, &format!("peer-{number}"), &format!("{number:064x}")).await }
    };
    iter(0..peers).map(publish).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    println!("{peers} peers made in {:.1?}", made.elapsed());
    let token = token(&admin, "ml", "trainer", None).await;
    let kubeconfig = server.kubeconfig(&token, "directory.kubeconfig");

    let before = Lists::of(&admin).await;
    let started = Instant::now();
    let directories = join_all((0..sidecars).map(|_| of_peer_a(&kubeconfig))).await;
    let tables: Vec<_> = directories.iter().map(Directory::watch).collect();
    until("every sidecar knows every peer", || async {
        tables.iter().all(|table| table.borrow().len() == peers).then_some(())
    })
    .await;
    let first = Lists::of(&admin).await.since(&before);
    println!("{sidecars} sidecars know them after {:.1?}: {first:?}", started.elapsed());
    assert_eq!(first.asked, sidecars, "one list each, whole");
    assert_eq!(first.stored, 0, "etcd is not asked");
    assert!(first.cached >= sidecars, "{first:?}");

    let before = Lists::of(&admin).await;
    let started = Instant::now();
    directories.iter().for_each(Directory::refresh);
    let pages = sidecars * peers.div_ceil(PAGE);
    until("every sidecar has listed what is stored", || async {
        (Lists::of(&admin).await.since(&before).asked >= pages).then_some(())
    })
    .await;
    let again = Lists::of(&admin).await.since(&before);
    println!("refreshed after {:.1?}: {again:?}", started.elapsed());
    assert_eq!(again.asked, pages, "in pages");
    // Who comes now is told by the watches.
    publish_key(&admin, "late", &"f".repeat(64)).await;
    until("every sidecar knows who came late", || async {
        tables.iter().all(|table| table.borrow().len() == peers + 1).then_some(())
    })
    .await;
    assert_eq!(Lists::of(&admin).await.since(&before).asked, pages, "without another list");
}

/// Lists of peers that the API server has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lists {
    /// All of them, each page for itself.
    asked: usize,
    /// From its memory.
    cached: usize,
    /// From etcd.
    stored: usize,
}

impl Lists {
    async fn of(admin: &Client) -> Lists {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = admin.request_text(request).await.unwrap();
        let sum = |metric: &str, label: &str| -> usize {
            let is_it = |line: &&str| {
                line.starts_with(metric) && line.contains("resource=\"tensorpeers\"") && line.contains(label)
            };
            let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as usize;
            text.lines().filter(is_it).map(value).sum()
        };
        Lists {
            asked: sum("apiserver_request_total{", "verb=\"LIST\""),
            cached: sum("apiserver_cache_list_total{", ""),
            stored: sum("apiserver_storage_list_total{", ""),
        }
    }

    fn since(self, before: &Lists) -> Lists {
        Lists {
            asked: self.asked - before.asked,
            cached: self.cached - before.cached,
            stored: self.stored - before.stored,
        }
    }
}
