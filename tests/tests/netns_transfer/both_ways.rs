//! Small tensors of a peer on the node that some callers fetch and others map at the same time, because the node's directory comes and
//! goes meanwhile: everybody has the right bytes, and nothing is left. Needs root.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tensorlane_client::{Client, PutOptions, Target};
use tensorlane_proto::Transport;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::tensors::{is_intact, put_pattern};
use tensorlane_tests::transfer::seconds;
use tensorlane_tests::until;
use tensorlane_tests::wait::SetOnDrop;

const CALLERS: usize = 4;
const TOGETHER: u64 = 64;
/// Most of it is waiting until two sidecars have met again.
const PATIENCE: Duration = Duration::from_secs(120);

/// The transports by which so many callers got the same small tensors at once.
fn get_all(callers: &[Client], targets: &[Target]) -> BTreeSet<Option<&'static str>> {
    std::thread::scope(|scope| {
        let all: Vec<_> = callers
            .iter()
            .map(|client| {
                scope.spawn(|| {
                    let tensors = client.acquire_many(targets, &seconds(20));
                    let told = tensors.into_iter().map(|tensor| {
                        let tensor = tensor.unwrap();
                        assert!(is_intact(&tensor));
                        tensor.moved().transport.map(Transport::as_str)
                    });
                    told.collect::<BTreeSet<_>>()
                })
            })
            .collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn a_small_tensor_that_is_fetched_and_mapped_at_the_same_time_is_right_for_everybody() {
    let dir = tempfile::Builder::new().prefix("tensorlane-node-").tempdir().unwrap();
    let peers = Peers::start(2, |_, options| options.steady().set("node.directory", dir.path().display()));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&over);
        scope.spawn(|| {
            let aside = dir.path().with_extension("aside");
            let state =
                || peers.seen(1, 0).route.map(|route| tensorlane_client::Moved::from(route).to_string());
            while !over.load(Ordering::SeqCst) {
                until("they have met", || {
                    over.load(Ordering::SeqCst) || state().is_some_and(|route| route.starts_with("shm"))
                });
                std::fs::rename(dir.path(), &aside).unwrap();
                until("they have parted", || {
                    over.load(Ordering::SeqCst) || state().is_some_and(|route| !route.starts_with("shm"))
                });
                std::fs::rename(&aside, dir.path()).unwrap();
            }
        });
        let owner = peers.client(0);
        let callers: Vec<_> = (0..CALLERS).map(|_| peers.client(1)).collect();
        let began = Instant::now();
        let mut seed = 0;
        let mut were_both = false;
        while !were_both && began.elapsed() < PATIENCE {
            let stored: Vec<_> = (0..TOGETHER)
                .map(|_| {
                    seed += 1;
                    put_pattern(&owner, seed, 4096, &PutOptions::new()).unwrap()
                })
                .collect();
            let targets: Vec<Target> = stored.iter().map(|stored| stored.reference().into()).collect();
            let ways = get_all(&callers, &targets);
            were_both = ways.contains(&Some("shm")) && ways.contains(&Some("tcp"));
        }
        assert!(were_both, "in no round of {seed} tensors were some fetched and some mapped");
    });
    peers.assert_all_free();
}
