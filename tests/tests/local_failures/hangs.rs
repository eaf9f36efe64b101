//! A sidecar whose start hangs, and one whose API server never answers: a signal ends both within their drain.

use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use tempfile::TempDir;
use tensorlane_client::PutOptions;
use tensorlane_tests::process::signal;
use tensorlane_tests::tensors::{pattern, seeded};
use tensorlane_tests::wait::PATIENCE;
use tensorlane_tests::{Sidecar, SidecarOptions, until};

use super::all;

/// A peer whose table comes from an API server, as if in Kubernetes.
fn options(kubeconfig: &Path, drain: &str) -> SidecarOptions {
    SidecarOptions::default()
        .set("deadlines.drain", drain)
        .set("peers.directory", "kubernetes")
        .set("peers.kubeconfig", kubeconfig.display())
        .set("peers.listen", "127.0.0.1:0")
}

/// A sidecar in the middle of its start: its kubeconfig is a pipe that is open, and nobody writes to it.
fn in_its_start(drain: &str) -> (Sidecar, File, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    mknodat(CWD, &kubeconfig, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let sidecar = Sidecar::starting(options(&kubeconfig, drain));
    let nonblocking: i32 = OFlags::NONBLOCK.bits().try_into().unwrap();
    let mut pipe = None;
    until("the sidecar reads its kubeconfig", || {
        // An error for as long as nobody reads.
        pipe = File::options().write(true).custom_flags(nonblocking).open(&kubeconfig).ok();
        pipe.is_some()
    });
    (sidecar, pipe.unwrap(), folder)
}

#[test]
fn a_signal_ends_a_start_that_hangs_within_the_drain() {
    let (mut sidecar, _pipe, _folder) = in_its_start("1s");
    assert_eq!(sidecar.terminate().code(), Some(1));
    let log = sidecar.log();
    assert!(log.contains("SIGTERM came during the start") && log.contains("peers.kubeconfig"), "{log}");
}

#[test]
fn a_second_signal_ends_a_start_that_hangs_at_once() {
    let (mut sidecar, _pipe, _folder) = in_its_start("1h");
    signal(sidecar.pid(), Signal::TERM);
    until("the first one is heard", || {
        sidecar.logged("the start is waited for, and ended").is_some_and(|line| line["reason"] == "SIGTERM")
    });
    assert_eq!(sidecar.terminate().code(), Some(1));
}

#[test]
fn a_sidecar_whose_api_server_never_answers_serves_its_own_and_ends_within_its_drain() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: t\n\
         clusters: [{{name: t, cluster: {{server: 'http://{}'}}}}]\n\
         users: [{{name: t, user: {{token: word}}}}]\n\
         contexts: [{{name: t, context: {{cluster: t, user: t, namespace: t}}}}]\n",
        server.local_addr().unwrap()
    );
    std::fs::write(&kubeconfig, text).unwrap();
    server.set_nonblocking(true).unwrap();
    let mut sidecar = Sidecar::with(options(&kubeconfig, "1s"));
    let mut asked = None;
    until("the sidecar asks the API server", || {
        asked = server.accept().ok();
        asked.is_some()
    });
    let (mut request, _) = asked.unwrap();
    request.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut begin = [0; 4];
    request.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"GET ");
    // Until then a signal ends the start.
    until("the start is over", || sidecar.logged("sidecar started").is_some());
    let client = sidecar.client();
    let stored = client.put(&seeded(1, 100), &pattern(1, 100), &PutOptions::new()).unwrap();
    assert_eq!(client.get(stored.reference(), &all()).unwrap().bytes, pattern(1, 100));
    assert_eq!(sidecar.terminate().code(), Some(0));
}
