//! The ways in which bytes get from one sidecar to another, and what makes two sidecars take each: the list that suites run
//! their cases over. A new way is a line in it.

use tempfile::TempDir;
use tensorlane_proto::Transport;

use crate::netns::Peers;
use crate::sidecar::SidecarOptions;
use crate::wait::until;

/// A way, and what makes two sidecars take it.
pub struct Way {
    /// For messages of tests.
    pub name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    /// The label of its pulls in the metrics.
    pub counted: &'static str,
    /// Set if nobody on the way can read it.
    pub encrypted: bool,
    /// Transport of large tensors.
    pub transport: Transport,
    /// Bytes come to the reader; else they stay where they are and are mapped.
    pub brings: bool,
}

/// All of them.
pub const WAYS: [Way; 5] = [
    Way {
        name: "stream",
        settings: &[("peers.lanes", "0"), ("transports", "tcp")],
        counted: "stream",
        encrypted: true,
        transport: Transport::Tcp,
        brings: true,
    },
    Way {
        name: "lanes in TLS",
        settings: &[("peers.lanes", "3"), ("transports", "tcp")],
        counted: "lanes",
        encrypted: true,
        transport: Transport::Tcp,
        brings: true,
    },
    Way {
        name: "plain lanes",
        settings: &[("peers.lanes", "3"), ("encryption", "none"), ("transports", "tcp")],
        counted: "lanes",
        encrypted: false,
        transport: Transport::Tcp,
        brings: true,
    },
    Way {
        name: "quic",
        settings: &[("prefer", "quic")],
        counted: "quic",
        encrypted: true,
        transport: Transport::Quic,
        brings: true,
    },
    Way {
        name: "shared memory",
        settings: &[],
        counted: "shm",
        encrypted: true,
        transport: Transport::Shm,
        brings: false,
    },
];

impl Way {
    /// Two sidecars that take it, once they have met where they are to; and the directory of their node, if there is one.
    ///
    /// # Panics
    /// Where they do not.
    pub fn pair(
        &self,
        options: impl Fn(usize, SidecarOptions) -> SidecarOptions,
    ) -> (Peers, Option<TempDir>) {
        let node = (!self.brings).then(|| {
            tempfile::Builder::new().prefix("tensorlane-node-").tempdir().expect("a directory of the node")
        });
        let peers = Peers::start(2, |host, own| {
            let set = |own: SidecarOptions, (path, value): &(&str, &str)| own.set(path, value);
            let own = options(host, self.settings.iter().fold(own, set));
            node.iter().fold(own, |own, node| own.set("node.directory", node.path().display()))
        });
        for (from, to) in [(0, 1), (1, 0)] {
            until("they have met, if they are to", || {
                let route = peers.seen(from, to).route.map(tensorlane_client::Moved::from);
                self.brings || route.is_some_and(|route| route.transport == Some(self.transport))
            });
        }
        (peers, node)
    }
}
