//! Names of hosts that nobody resolves: the server of names takes every question and answers none. Needs root.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::Duration;

use tensorlane_proto::Fingerprint;
use tensorlane_tests::netns::{Network, PORT};
use tensorlane_tests::{Sidecar, SidecarOptions, until};

/// Folder that `ip netns exec` shows as `/etc` in a namespace; gone with the test.
struct Etc(PathBuf);

impl Drop for Etc {
    fn drop(&mut self) {
        // The last resort is whoever finds a folder of a namespace that there is no more.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A host whose server of names is a socket on the other one.
struct Scene {
    network: Network,
    server: UdpSocket,
    folder: tempfile::TempDir,
    _etc: Etc,
}

impl Scene {
    fn new() -> Self {
        let network = Network::new(2);
        let etc = Etc(PathBuf::from("/etc/netns").join(network.namespace(0)));
        std::fs::create_dir_all(&etc.0).unwrap();
        let conf = format!("nameserver {}\noptions timeout:30 attempts:5\n", network.address(1));
        std::fs::write(etc.0.join("resolv.conf"), conf).unwrap();
        let server = network.inside(1, || UdpSocket::bind((network.address(1), 53)).unwrap());
        server.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        Scene { network, server, folder, _etc: etc }
    }

    fn options(&self) -> SidecarOptions {
        SidecarOptions::default().netns(self.network.namespace(0)).set("deadlines.drain", "1s")
    }

    fn wait_for_a_question(&self) {
        self.server.recv(&mut [0; 512]).expect("somebody asks for a name");
    }
}

#[test]
fn a_sidecar_ends_at_once_although_the_name_of_a_peer_is_looked_up_without_an_end() {
    let scene = Scene::new();
    let file = scene.folder.path().join("peers.yaml");
    // The largest key there is: whoever has a smaller one dials.
    let key = Fingerprint([0xff; 32]);
    let far = format!("  - name: far\n    addresses: [\"far.test:{PORT}\"]\n    fingerprints: [\"{key}\"]\n");
    std::fs::write(&file, format!("peers:\n{far}")).unwrap();
    let listen = scene.network.peer_address(0);
    let options = scene.options().set("peers.listen", listen).set("peers.file", file.display());
    let mut sidecar = Sidecar::with(options);
    scene.wait_for_a_question();
    // Until then a signal ends the start.
    until("the start is over", || sidecar.logged("sidecar started").is_some());
    assert_eq!(sidecar.terminate().code(), Some(0), "{}", sidecar.log());
}

#[test]
fn a_sidecar_whose_own_address_is_never_resolved_says_so_and_ends() {
    let scene = Scene::new();
    let (status, log) = Sidecar::refused(scene.options().set("peers.listen", format!("far.test:{PORT}")));
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("far.test:9421 was not resolved in time"), "{log}");
}
