//! Peers over IPv6, and peers whose addresses are of two families. Needs root.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tensorlane_client::Client;
use tensorlane_tests::netns::{Network, PORT, Peers};
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::transfer::{MI, is, put, seconds};
use tensorlane_tests::{Sidecar, SidecarOptions, until, where_the_machine_runs_on};

use super::list_anew;
use super::quic::{by_quic, warm_up};

/// Two peers that take QUIC for every large tensor and have addresses of both families; what each listens on.
fn pair(listen: [&str; 2]) -> Peers {
    let peers = Peers::unconnected(2, |host, options| {
        options.set("prefer", "quic").set("peers.listen", format!("'{}:{PORT}'", listen[host]))
    });
    peers.network.add_ipv6();
    peers
}

/// Until a tensor comes by TCP and says so of QUIC: what is wrong may not be known yet when the first one comes.
fn until_told(writer: &Client, reader: &Client, why: &str) {
    let mut seed = 3;
    until(&format!("a tensor comes and says {why}"), || {
        seed += 1;
        let stored = put(writer, seed, 9 * MI);
        let tensor = reader.acquire(stored.reference(), &seconds(20)).unwrap();
        let told = tensor.moved().to_string();
        assert!(is(&tensor, seed, 9 * MI) && told.starts_with("tcp"), "{told}");
        told.contains(why)
    });
}

fn over_ipv6(peers: &Peers, host: usize) -> SocketAddr {
    (peers.network.ipv6(host), PORT).into()
}

#[test]
fn large_tensors_come_by_quic_over_ipv6() {
    where_the_machine_runs_on(|| {
        let mut peers = pair(["[::]", "[::]"]);
        list_anew(&mut peers, |peers, _, other| vec![over_ipv6(peers, other)]);
        let (writer, reader) = (peers.client(0), peers.client(1));
        warm_up(&writer, &reader);
        let stored = put(&writer, 3, 12 * MI);
        let tensor = reader.acquire(stored.reference(), &seconds(20)).unwrap();
        assert!(is(&tensor, 3, 12 * MI) && by_quic(&tensor), "{}", tensor.moved());
        drop((tensor, stored, writer, reader));
        peers.assert_free(1);
    });
}

#[test]
fn quic_between_families_takes_another_address_of_the_peer_or_says_that_there_is_none() {
    where_the_machine_runs_on(|| {
        let mut peers = pair(["0.0.0.0", "[::]"]);
        // The one whose datagrams are of IPv4 dials, always.
        let closed = |peers: &Peers, host| SocketAddr::new(peers.network.address(host).into(), 9);
        list_anew(&mut peers, |peers, host, other| match (host, other) {
            (0, 1) => vec![over_ipv6(peers, 1)],
            (1, 0) => vec![closed(peers, 0)],
            _ => vec![peers.network.peer_address(other)],
        });
        // Before they are connected nobody knows the ways between them.
        let small = put(&peers.client(1), 3, 4096);
        drop(peers.client(0).acquire(small.reference(), &seconds(20)).unwrap());
        drop(small);
        until_told(&peers.client(1), &peers.client(0), "not quic: no_address");
        let wanted = format!("quic to {} does not come up", over_ipv6(&peers, 1));
        until("the peer's status says why", || {
            let error = peers.seen(0, 1).last_error;
            error.contains(&wanted) && error.contains("is of IPv4 alone")
        });
        until_told(&peers.client(0), &peers.client(1), "not quic: not_offered");

        list_anew(&mut peers, |peers, host, other| match (host, other) {
            (0, 1) => vec![over_ipv6(peers, 1), peers.network.peer_address(1)],
            (1, 0) => vec![closed(peers, 0)],
            _ => vec![peers.network.peer_address(other)],
        });
        warm_up(&peers.client(1), &peers.client(0));
        warm_up(&peers.client(0), &peers.client(1));
        assert_eq!(peers.seen(0, 1).last_error, "");
    });
}

/// Three sidecars of one host that listen on its loopback over IPv6, each by a spelling of its own, and their peers file.
struct Spelled {
    sidecars: Vec<Sidecar>,
    folder: TempDir,
    _network: Network,
}

impl Spelled {
    fn start() -> Self {
        let (network, folder) = (Network::new(1), tempfile::tempdir().unwrap());
        let start = |name: &str, listen: &str, advertise: &str| {
            let options = SidecarOptions::default().netns(network.namespace(0)).set("peer", name);
            let options =
                options.set("prefer", "quic").set("peers.file", folder.path().join("peers.yaml").display());
            let options = options.set("peers.listen", format!("'{listen}'"));
            Sidecar::with(options.set("peers.advertise", format!("'{advertise}'")))
        };
        let sidecars = vec![
            start("a", "[::1]:9451", "[0:0:0::0001]:9451"),
            // An address alone has the port of the one that is listened on.
            start("b", "[::]:9452", "0:0::1"),
            start("c", "localhost:9453", "localhost:9453"),
        ];
        Self { sidecars, folder, _network: network }
    }

    /// Writes the peers file.
    fn list(&self, lines: &str) {
        let file = |name: &str| self.folder.path().join(name);
        std::fs::write(file("new"), format!("peers:\n{lines}")).unwrap();
        std::fs::rename(file("new"), file("peers.yaml")).unwrap();
    }

    /// Lines of all, as they print them.
    fn lines(&self) -> String {
        self.sidecars
            .iter()
            .map(|sidecar| print_peer(&sidecar.folder().join("config.yaml"), &[]).unwrap())
            .collect()
    }
}

/// Line of the peers file that a sidecar of this configuration prints, or what it says is wrong.
fn print_peer(config: &Path, variables: &[(&str, &str)]) -> Result<String, String> {
    let mut command = Command::new(bin_dir().join("tensorlane-sidecar"));
    command.arg("--print-peer").arg("--config").arg(config).env_clear().envs(variables.iter().copied());
    let printed = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if printed.status.success() { Ok(text(printed.stdout)) } else { Err(text(printed.stderr)) }
}

#[test]
fn peers_on_the_loopback_of_ipv6_find_each_other_however_each_is_spelled_and_by_quic() {
    where_the_machine_runs_on(|| {
        let spelled = Spelled::start();
        let lines = spelled.lines();
        for part in ["\"[0:0:0::0001]:9451\"", "\"[::1]:9452\"", "\"localhost:9453\""] {
            assert!(lines.contains(part), "{part} is not in {lines}");
        }
        spelled.list(&lines);
        let clients: Vec<_> = spelled.sidecars.iter().map(Sidecar::client).collect();
        until("all are connected", || {
            let others =
                |client: &Client| client.peers().unwrap().into_iter().filter(|peer| peer.state != "self");
            clients.iter().all(|client| others(client).filter(|peer| peer.state == "connected").count() == 2)
        });
        for (writer, reader) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
            let stored = put(&clients[writer], 3, 5000);
            let tensor = clients[reader].acquire(stored.reference(), &seconds(20)).unwrap();
            assert!(is(&tensor, 3, 5000), "{writer} to {reader}: {}", tensor.moved());
        }
        warm_up(&clients[0], &clients[1]);
        warm_up(&clients[1], &clients[0]);
        for client in &clients {
            until("a peer finds nothing wrong with itself", || {
                let peers = client.peers().unwrap();
                let own = peers.iter().find(|peer| peer.state == "self").unwrap();
                own.last_error.is_empty()
            });
        }

        // What cannot be an address leaves the table as it is, and says what would be one.
        for (wrong, part) in [
            ("::1:9452", "put the IPv6 address into brackets: [::1]:9452"),
            ("[fe80::1%eth0]:9452", "%eth0 is of one host alone"),
        ] {
            spelled.list(&lines.replace("[::1]:9452", wrong));
            until("the file is refused", || {
                let refused = spelled.sidecars[0].logged("peers file refused: the last good table stays");
                refused.is_some_and(|line| line["wrong"].as_str().is_some_and(|wrong| wrong.contains(part)))
            });
            let stored = put(&clients[0], 4, 5000);
            assert!(is(&clients[1].acquire(stored.reference(), &seconds(20)).unwrap(), 4, 5000));
        }
    });
}

#[test]
fn addresses_that_are_spelled_wrongly_are_refused_with_what_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    std::fs::write(&config, format!("state:\n  directory: {}\n", folder.path().display())).unwrap();
    for (wrong, part) in [
        ("::1:9454", "put the IPv6 address into brackets: [::1]:9454"),
        ("fe80::1%eth0:9454", "%eth0 is of one host alone"),
        ("[fe80::1%eth0]:9454", "%eth0 is of one host alone"),
        ("[::1]", "no port"),
        ("1.2.3.4:9421,[::1]:9421", "is no host name, IPv4 address or [IPv6 address]"),
        ("0.0.0.0:9421", "peers.advertise"),
    ] {
        let refused = print_peer(&config, &[("TENSORLANE_PEERS_LISTEN", wrong)]).unwrap_err();
        assert!(refused.contains(wrong) && refused.contains(part), "{wrong}: {refused}");
    }
}
