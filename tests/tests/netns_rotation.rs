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
use tensorlane_tests::{Sidecar, until};

const MI: u64 = 1 << 20;
/// Each side changes its key at least twice in it, on a slow machine too.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often the files are written.
const EVERY: Duration = Duration::from_millis(50);

/// Two sidecars that change their keys every two seconds.
fn restless() -> Peers {
    // A busy machine may take a while to connect again.
    let settings =
        [("identity.rotateEvery", "2s"), ("identity.overlap", "1500ms"), ("deadlines.progress", "10s")];
    Peers::start(2, |_, options| settings.into_iter().fold(options, |o, (path, value)| o.set(path, value)))
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

/// Ends the streams, also where the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What whoever manages the peers files does: writes down what each sidecar prints.
fn list_anew(peers: &Peers) {
    let entry =
        |host: usize| Entry { fingerprints: printed_keys(&peers.sidecars[host]), ..peers.entry(host) };
    let entries = [entry(0), entry(1)];
    (0..2).for_each(|host| peers.list(host, &entries));
}

#[test]
fn keys_change_on_both_sides_under_a_stream_of_gets_without_one_that_fails() {
    let peers = restless();
    let (gets, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut used = [BTreeSet::new(), BTreeSet::new()];
    std::thread::scope(|scope| {
        let streams = [(0, 1), (1, 0)].map(|(owner, reader)| {
            let (peers, gets, done) = (&peers, &gets, &done);
            scope.spawn(move || {
                let (owner, reader) = (peers.client(owner), peers.client(reader));
                let mut seed = 0;
                while !done.load(Ordering::SeqCst) {
                    // Another tensor each time, so that none comes from a copy; small and large by turns.
                    let count = if seed % 2 == 0 { 4096 } else { MI };
                    let bytes = pattern(seed, count as usize);
                    let stored = owner.put(&dense(DType::U8, &[count]), &bytes, &PutOptions::new()).unwrap();
                    let tensor = reader.acquire(stored.reference(), &AcquireOptions::new()).unwrap();
                    assert!(tensor.to_vec() == bytes);
                    gets.fetch_add(1, Ordering::SeqCst);
                    seed += 1;
                }
            })
        });
        let stop = Stop(&done);
        let until = Instant::now() + PATIENCE;
        while used.iter().any(|keys| keys.len() < 3) && !streams.iter().any(ScopedJoinHandle::is_finished) {
            assert!(Instant::now() < until, "keys are not changed: {used:?}");
            list_anew(&peers);
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
    assert!(gets.load(Ordering::SeqCst) > 10, "{gets:?} gets while {used:?}");
    // With the last word of both in the files the connection stands.
    list_anew(&peers);
    peers.await_connected();
    peers.assert_all_free();
}

#[test]
fn a_key_that_the_file_does_not_list_is_never_used() {
    let mut peers = restless();
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
    let options = AcquireOptions::new().deadline(Duration::from_secs(20));
    assert!(reader.acquire(stored.reference(), &options).unwrap().to_vec() == pattern(1, MI as usize));
    assert_eq!(owner.status().unwrap().fingerprint, first);
    // Once it is listed it is used.
    list_anew(&peers);
    until("the next key is used", || owner.status().unwrap().fingerprint == before[1]);
    drop((stored, owner, reader));
    peers.assert_all_free();
}
