//! The directory against a twin of the API server.

use std::path::Path;
use std::time::Duration;

use kube::Config;
use prometheus::Registry;
use tensorlane_proto::identity::{Fingerprint, Incarnation};
use tensorlane_proto::negotiate::{Offer, Require, VersionRange};

use self::twin::{Twin, published};
use super::super::PeerEntry;
use super::*;
use crate::backoff::Backoff;

mod gate;
mod publishing;
mod twin;
mod watching;

/// Time of patience: what never comes within it does not come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longer than a test.
const NEVER: Duration = Duration::from_secs(3600);

struct Scene {
    twin: Twin,
    directory: KubernetesDirectory,
    metrics: Arc<Metrics>,
    watch: watch::Receiver<Arc<PeerTable>>,
}

/// Waits that are short, except where a test says otherwise.
fn timing() -> Timing {
    let ms = Duration::from_millis;
    Timing {
        spread: ms(1),
        backoff: Backoff::new(ms(2), ms(50)),
        refresh_every: ms(1),
        refresh_lag: ms(1),
        gather: ms(1),
        outage: Duration::ZERO,
        write_every: ms(1),
        keep: ms(1),
        ..Timing::default()
    }
}

fn settings(keep: Option<&Path>) -> KubernetesSettings {
    KubernetesSettings {
        namespace: "ml".to_owned(),
        exchange: "training".parse().unwrap(),
        peer: "me".parse().unwrap(),
        keep: keep.map(Path::to_owned),
    }
}

fn client(twin: &Twin) -> Client {
    let mut config = Config::new(format!("http://{}", twin.gate.address).parse().unwrap());
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// A directory over a twin that lists these peers of the exchange, each with a key of its own.
async fn scene(names: &[&str], timing: Timing) -> Scene {
    let twin = Twin::start().await;
    for (key, name) in names.iter().enumerate() {
        twin.create(name, "training", &published(u8::try_from(key).unwrap()));
    }
    over(twin, timing)
}

fn over(twin: Twin, timing: Timing) -> Scene {
    let metrics = Arc::new(Metrics::new(&Registry::new()).unwrap());
    let directory = KubernetesDirectory::with_timing(
        client(&twin),
        &settings(None),
        Arc::clone(&metrics),
        &Threads::default(),
        timing,
    );
    let watch = directory.watch();
    Scene { twin, directory, metrics, watch }
}

impl Scene {
    fn names(&self) -> Vec<String> {
        self.watch.borrow().iter().map(|entry| entry.name.to_string()).collect()
    }

    async fn until_names(&mut self, names: &[&str]) {
        let is =
            |table: &Arc<PeerTable>| table.iter().map(|entry| entry.name.as_str()).eq(names.iter().copied());
        let came = tokio::time::timeout(PATIENCE, self.watch.wait_for(is)).await.map(|table| table.is_ok());
        assert_eq!(came, Ok(true), "wanted {names:?}, has {:?}", self.names());
    }

    /// Waits for the next table, even if it is the same.
    async fn woken(&mut self) {
        tokio::time::timeout(PATIENCE, self.watch.changed()).await.expect("no table came").unwrap();
    }
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("it never came to this: {what}"));
}

fn offer(incarnation: u128) -> PublishedOffer {
    let entry = PeerEntry {
        name: "me".parse().unwrap(),
        addresses: vec!["10.0.0.9:9421".to_owned()],
        fingerprints: vec![Fingerprint([0xee; 32])],
        node: None,
        awaits_ip: false,
    };
    let offer = Offer {
        peer: entry.name.clone(),
        incarnation: Incarnation(incarnation),
        versions: VersionRange { min: 1, max: 1 },
        transports: Vec::new(),
        node: None,
        gpus: Vec::new(),
        require: Require::NONE,
    };
    PublishedOffer { entry, offer }
}
