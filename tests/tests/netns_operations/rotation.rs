//! Identity keys that are changed while tensors travel between hosts. Needs root.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use tensorlane_client::{AcquireOptions, PutOptions};
use tensorlane_proto::DType;
use tensorlane_tests::netns::{Entry, Peers};
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::wait::SetOnDrop;
use tensorlane_tests::ways::WAYS;
use tensorlane_tests::{Sidecar, SidecarOptions, until};

const MI: u64 = 1 << 20;
/// Each side changes its key at least twice in it, on a slow machine too.
const PATIENCE: Duration = Duration::from_secs(240);
/// Interval at which the files are written.
const EVERY: Duration = Duration::from_millis(50);

/// Changes its key every two seconds.
fn restless(options: SidecarOptions) -> SidecarOptions {
    // A busy machine may take a while to connect again.
    let settings =
        [("identity.rotateEvery", "2s"), ("identity.overlap", "1500ms"), ("deadlines.progress", "30s")];
    settings
        .into_iter()
        .fold(options, |options, (path, value)| options.set(path, value))
        .default_of("gc.leaseGrace")
}

/// The keys that a sidecar is to be listed with, as its own command prints them.
fn printed_keys(sidecar: &Sidecar) -> Vec<String> {
    let config = sidecar.folder().join("config.yaml");
    let mut command = Command::new(bin_dir().join("tensorlane-sidecar"));
    let output = command.arg("--print-peer").arg("--config").arg(config).output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    let keys = line.split('"').filter(|word| word.starts_with("sha256:")).map(str::to_owned);
    let keys: Vec<_> = keys.collect();
    assert!((1..=2).contains(&keys.len()), "{line} {}", String::from_utf8_lossy(&output.stderr));
    keys
}

/// Does what whoever manages the peers files does: writes down what each sidecar prints.
fn list_anew(peers: &Peers) {
    let entry =
        |host: usize| Entry { fingerprints: printed_keys(&peers.sidecars[host]), ..peers.entry(host) };
    let entries = [entry(0), entry(1)];
    (0..2).for_each(|host| peers.list(host, &entries));
}

#[test]
fn keys_change_on_both_sides_under_a_stream_of_gets_without_one_that_fails() {
    // Small and large by turns.
    gets_while_keys_change(&Peers::start(2, |_, options| restless(options)), &[4096, MI], 10);
}

#[test]
fn keys_change_on_both_sides_under_large_pulls_in_every_way_without_one_that_fails() {
    for way in WAYS.iter().filter(|way| way.brings) {
        let (peers, _node) = way.pair(|_, options| restless(options));
        gets_while_keys_change(&peers, &[24 * MI, 24 * MI + 77], 4);
        let counted = format!("way=\"{}\"", way.counted);
        for host in 0..2 {
            // Some may have gone on another way, on a busy machine.
            let pulls = peers.metric(host, "tensorlane_peer_pulls_total", &[counted.as_str()]);
            assert!(pulls >= 2.0, "{}: {pulls}", way.name);
        }
    }
}

/// Gets tensors of these sizes by turns in both directions until either sidecar has used three keys, and so many came either
/// way.
fn gets_while_keys_change(peers: &Peers, sizes: &[u64], least: u64) {
    let (gets, done) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
    let mut used = [BTreeSet::new(), BTreeSet::new()];
    std::thread::scope(|scope| {
        let streams = [(0, 1), (1, 0)].map(|(owner, reader)| {
            let (gets, done) = (&gets[owner], &done);
            scope.spawn(move || {
                let (owner, reader) = (peers.client(owner), peers.client(reader));
                let mut seed = 0;
                while !done.load(Ordering::SeqCst) {
                    // Another tensor each time, so that none comes from a copy.
                    let count = sizes[seed as usize % sizes.len()];
                    let bytes = pattern(seed, count as usize);
                    let stored = owner.put(&dense(DType::U8, &[count]), &bytes, &PutOptions::new()).unwrap();
                    let tensor = reader.acquire(stored.reference(), &AcquireOptions::new()).unwrap();
                    assert!(tensor.to_vec() == bytes);
                    gets.fetch_add(1, Ordering::SeqCst);
                    seed += 1;
                }
            })
        });
        let stop = SetOnDrop(&done);
        let until = Instant::now() + PATIENCE;
        let is_short = |gets: &AtomicU64| gets.load(Ordering::SeqCst) < least;
        while (used.iter().any(|keys| keys.len() < 3) || gets.iter().any(is_short))
            && !streams.iter().any(ScopedJoinHandle::is_finished)
        {
            assert!(Instant::now() < until, "keys are not changed, or nothing comes: {used:?} {gets:?}");
            list_anew(peers);
            for (host, keys) in used.iter_mut().enumerate() {
                keys.insert(peers.client(host).status().unwrap().fingerprint);
            }
            std::thread::park_timeout(EVERY);
        }
        drop(stop);
        for stream in streams {
            stream.join().expect("no get fails");
        }
    });
    // With the last word of both in the files the connection stands.
    list_anew(peers);
    peers.await_connected();
    peers.assert_all_free();
}

#[test]
fn a_key_that_the_file_does_not_list_is_never_used() {
    let mut peers = Peers::start(2, |_, options| restless(options));
    let first = peers.client(0).status().unwrap().fingerprint;
    let announced = |peers: &Peers| printed_keys(&peers.sidecars[0]);
    until("the next key is made", || announced(&peers).len() == 2);
    assert_eq!(announced(&peers)[0], first);
    // Not even a restart changes that.
    let before = announced(&peers);
    peers.sidecars[0].kill();
    peers.sidecars[0].start_again();
    assert_eq!(announced(&peers), before);
    let (owner, reader) = (peers.client(0), peers.client(1));
    let stored = owner.put(&dense(DType::U8, &[MI]), &pattern(1, MI as usize), &PutOptions::new()).unwrap();
    let options = AcquireOptions::new().deadline(Duration::from_secs(60));
    assert!(reader.acquire(stored.reference(), &options).unwrap().to_vec() == pattern(1, MI as usize));
    assert_eq!(owner.status().unwrap().fingerprint, first);
    // Once it is listed it is used.
    list_anew(&peers);
    until("the next key is used", || owner.status().unwrap().fingerprint == before[1]);
    drop((stored, owner, reader));
    peers.assert_all_free();
}
