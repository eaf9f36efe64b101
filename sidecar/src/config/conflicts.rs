//! Rules between settings.

use std::net::{IpAddr, SocketAddr};

use tensorlane_proto::text::variable;

use super::values::bytes_text;
use super::{Arena, Config, Peers, PeersDirectory};

/// Returns what is wrong, at which of them. Asked only when each is right by itself.
pub(super) fn conflicts(config: &Config) -> Vec<(&'static str, String)> {
    let Arena { size, segment, ready, .. } = config.arena;
    let above = |path, bytes| {
        (bytes > size)
            .then(|| (path, format!("{} is more than arena.size {}", bytes_text(bytes), bytes_text(size))))
    };
    let unreachable = config.peers.advertise.is_some() && config.peers.listen.is_none();
    let advertised =
        unreachable.then(|| ("peers.advertise", "nothing listens there: set peers.listen".to_owned()));
    let table = table_conflict(&config.peers);
    let unused = unused_table(&config.peers);
    let identity = &config.identity;
    let hasty = identity.rotate_every.is_some_and(|every| every <= identity.overlap);
    let overlap = hasty.then(|| ("identity.overlap", "not shorter than identity.rotateEvery".to_owned()));
    let named = (config.peers.directory == PeersDirectory::Kubernetes)
        .then(|| config.peers.advertise.iter().flatten().find(|text| is_name(text)))
        .flatten()
        .map(|text| {
            let wrong =
                format!("{text} is a name: in Kubernetes peers take IP addresses alone; say that of the pod");
            ("peers.advertise", wrong)
        });
    let all = [
        above("arena.segment", segment),
        above("arena.ready", ready),
        advertised,
        named,
        table,
        unused,
        overlap,
    ];
    all.into_iter().flatten().collect()
}

fn is_name(address: &str) -> bool {
    address.parse::<SocketAddr>().is_err() && address.parse::<IpAddr>().is_err()
}

fn table_conflict(peers: &Peers) -> Option<(&'static str, String)> {
    let wrong = match (peers.directory, &peers.file) {
        (PeersDirectory::File, None) => "there is no file: set peers.file",
        (PeersDirectory::None | PeersDirectory::Kubernetes, Some(_)) => {
            "peers.file is given and would not be read: set this to file, or take peers.file away"
        }
        _ => return None,
    };
    Some(("peers.directory", wrong.to_owned()))
}

/// Peers that would never be connected: without an address to listen on there are none.
fn unused_table(peers: &Peers) -> Option<(&'static str, String)> {
    let path = match (peers.directory, &peers.file) {
        _ if peers.listen.is_some() => return None,
        (_, Some(_)) => "peers.file",
        (PeersDirectory::Kubernetes, None) => "peers.directory",
        (PeersDirectory::None | PeersDirectory::File, None) => return None,
    };
    let listen = variable("peers.listen");
    let wrong = format!(
        "it needs peers.listen, without which no peer is connected: set that ({listen}) to HOST:PORT, or take this away"
    );
    Some((path, wrong))
}
