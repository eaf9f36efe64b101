//! Everything that a sidecar talks to hangs at once, and it ends within its drain all the same. Needs root.

use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use tensorlane_client::{Error, Result, Tensor};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Fingerprint};
use tensorlane_tests::netns::{PORT, Peers};
use tensorlane_tests::other::{self, Other};
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::sidecar::session;
use tensorlane_tests::streams::{Grpc, channel};
use tensorlane_tests::tensors::dense;
use tensorlane_tests::transfer::{LARGE, MI, ROUTES, in_the_middle_of, put, seconds};
use tensorlane_tests::{until, where_the_machine_runs_on};

/// Longer than any test: what ends sooner was ended by something else.
const HOUR_MS: u64 = 3_600_000;

/// Folder that `ip netns exec` shows as `/etc` in a namespace; gone with the test.
struct Etc(PathBuf);

impl Drop for Etc {
    fn drop(&mut self) {
        // The last resort is whoever finds a folder of a namespace that there is no more.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Host 0 asks a server of names, and nobody reads its log.
struct Scene {
    peers: Peers,
    peers_file: PathBuf,
    _etc: Etc,
    _log: File,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (log, kept) = (folder.path().join("standard-error"), RefCell::new(None));
        let pipe = full_pipe(&log);
        let peers = Peers::unconnected(2, |host, options| {
            let options = options.set("deadlines.drain", "1s").set("deadlines.progress", "1h");
            if host > 0 {
                return options;
            }
            let etc = Etc(PathBuf::from("/etc/netns").join(options.netns.as_ref().unwrap()));
            std::fs::create_dir_all(&etc.0).unwrap();
            // The first host of a network, whatever the network: its own server would answer at once.
            let listen = setting(&options.settings, "peers.listen");
            let own = listen.rsplit_once(':').unwrap().0.to_owned();
            let conf = format!("nameserver {own}\noptions timeout:30 attempts:5\n");
            std::fs::write(etc.0.join("resolv.conf"), conf).unwrap();
            kept.replace(Some((etc, PathBuf::from(setting(&options.settings, "peers.file")))));
            let exec = format!("exec \"$@\" 2>{}", log.display());
            options.set("log.level", "debug").prefix(["sh".to_owned(), "-c".into(), exec, "sh".into()])
        });
        let (etc, peers_file) = kept.take().unwrap();
        Scene { peers, peers_file, _etc: etc, _log: pipe, _folder: folder }
    }

    /// Lists more peers for host 0, each with a key so large that it is dialed.
    fn list(&self, others: &[(&str, String)]) {
        let mut text = std::fs::read_to_string(&self.peers_file).unwrap();
        for (last, (name, address)) in (0..).zip(others) {
            let mut key = Fingerprint([0xff; 32]);
            key.0[31] = last;
            text.push_str(&format!(
                "  - name: {name}\n    addresses: [\"{address}\"]\n    fingerprints: [\"{key}\"]\n"
            ));
        }
        let draft = self.peers_file.with_extension("draft");
        std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, &self.peers_file)).unwrap();
    }
}

fn setting<'a>(settings: &'a [(String, String)], path: &str) -> &'a str {
    &settings.iter().find(|(known, _)| known == path).unwrap().1
}

/// A named pipe that is full and has a reader, who stands still.
fn full_pipe(path: &Path) -> File {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let nonblocking = OFlags::NONBLOCK.bits().try_into().unwrap();
    let mut pipe = File::options().read(true).write(true).custom_flags(nonblocking).open(path).unwrap();
    loop {
        match pipe.write(&[b'\n'; 4096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return pipe,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Client that is to be stopped: it has a lease, and room that it writes.
#[test]
fn a_client_in_the_middle_of_a_put() {
    let Some((sockets, _)) = other::role() else { return };
    let client = session(sockets).unwrap();
    let _held = put(&client, 7, 100_000);
    let mut room = client.reserve(&dense(DType::U8, &[4 * MI])).unwrap();
    room.copy_from(0, &[1; 4096]).unwrap();
    println!("in the middle");
    std::thread::park_timeout(Duration::from_secs(600));
}

#[test]
fn a_sidecar_ends_within_its_drain_although_all_that_it_talks_to_hangs() {
    where_the_machine_runs_on(ends_although_all_hangs);
}

/// Returns whether a get failed, and not because the patience of its caller was over.
fn was_ended(got: &Result<Tensor>) -> bool {
    !matches!(got, Ok(_) | Err(Error::DeadlineExceeded { .. }))
}

fn ends_although_all_hangs() {
    let mut scene = Scene::new();
    scene.peers.await_connected();
    let network = &scene.peers.network;
    // A name that is asked for and never answered, and a peer that accepts and says nothing.
    let names = network.inside(0, || UdpSocket::bind((network.address(0), 53)).unwrap());
    names.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let silent = network.inside(1, || TcpListener::bind((network.address(1), 0)).unwrap());
    let at = silent.local_addr().unwrap().to_string();
    scene.list(&[("far", format!("far.test:{PORT}")), ("silent", at)]);
    names.recv(&mut [0; 512]).expect("somebody asks for a name");
    silent.set_nonblocking(true).unwrap();
    let mut held = None;
    until("somebody dials the peer that says nothing", || {
        held = silent.accept().ok();
        held.is_some()
    });

    let (own, there) = (scene.peers.client(0), scene.peers.client(1));
    let (ours, theirs) = (put(&own, 1, LARGE), put(&there, 2, LARGE));
    // Longer than anything that is waited for here; short enough for a test that fails.
    let options = seconds(120);
    // A client that is stopped in the middle of a put, and holds a lease.
    let mut stopped =
        Other::start("hangs::a_client_in_the_middle_of_a_put", &scene.peers.sidecars[0], "stopped");
    stopped.says("in the middle");
    stop(stopped.id());
    // A stream over gRPC that stands still in the middle of a message, and one whose reader takes nothing.
    let grpc = Grpc::of(&scene.peers.sidecars[0]);
    let mut writer = grpc.writes(channel("c", 1 << 20, v1::ChannelPolicy::Block));
    let _reader = grpc.reads("c");
    writer.begin(&[(None, &[0; 100])], None);
    // A watcher and a caller that do not read, and one that has sent half of what it says.
    let mut watcher = RawSession::begin_in(&scene.peers.sidecars[0], 7);
    let lookup = v1::LookupRequest {
        names: vec!["never".to_owned()],
        wait_ms: HOUR_MS,
        ..v1::LookupRequest::default()
    };
    watcher.send(SessionKind::Lookup, &lookup);
    watcher
        .send(SessionKind::Watch, &v1::WatchRequest { deadline_ms: HOUR_MS, ..v1::WatchRequest::default() });
    let mut half = RawSession::begin(&scene.peers.sidecars[0]);
    half.send_bytes(&[1, 0, 0]);
    let (ended, back, out) = std::thread::scope(|scope| {
        // Both are in the middle of a tensor of the other when one is stopped. From there on it is too slow to finish.
        let [out, back] = ROUTES;
        let out = in_the_middle_of(scope, &scene.peers, out, (&there, ours.reference(), &options));
        scene.peers.network.slow(0, 8);
        let back = in_the_middle_of(scope, &scene.peers, back, (&own, theirs.reference(), &options));
        scene.peers.network.slow(1, 8);
        stop(scene.peers.sidecars[1].pid());
        signal(scene.peers.sidecars[0].pid(), Signal::TERM);
        let ended = scene.peers.sidecars[0].wait();
        let back = back.join().unwrap();
        scene.peers.sidecars[1].kill();
        (ended, back, out.join().unwrap())
    });
    assert_eq!(ended.code(), Some(0), "its parts have ended in time");
    assert!(was_ended(&back), "a client hears that its sidecar is gone: {back:?}");
    assert!(was_ended(&out), "so does one whose sidecar was stopped and killed: {out:?}");
    stopped.kill();
}
