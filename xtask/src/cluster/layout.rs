//! Names, addresses and places of the cluster: plain values, all of them following from where the checkout's target
//! directory lies. Two checkouts get different names, so that their clusters do not meet.

use std::path::{Path, PathBuf};

use crate::hash::Hash;
use crate::place::Place;

/// Address of the API server: on node 1, whose network the control plane shares.
pub(crate) const API: &str = "198.18.0.11";
/// The range of the Services' addresses.
pub(crate) const SERVICES: &str = "198.18.128.0/20";
/// The API server's own Service: the first address of that range.
pub(crate) const API_SERVICE: &str = "198.18.128.1";
/// The name server's Service.
pub(crate) const DNS: &str = "198.18.128.10";
/// Range of the addresses of the cluster's nodes and pods. Reserved for tests by RFC 2544.
pub(crate) const PODS: &str = "198.18.0.0/17";
/// The bridge between the nodes. It forwards nothing, so what is sent nowhere ends there.
pub(crate) const GATEWAY: &str = "198.18.0.1";

/// A node, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node(pub(crate) u8);

/// The nodes of the cluster.
pub(crate) const NODES: [Node; 2] = [Node(1), Node(2)];

impl Node {
    /// Name by which Kubernetes knows it.
    pub(crate) fn name(self) -> String {
        format!("node{}", self.0)
    }

    /// IPv4 address of the node.
    pub(crate) fn address(self) -> String {
        format!("198.18.0.{}", 10 + self.0)
    }

    /// The range of its pods' addresses.
    pub(crate) fn pods(self) -> String {
        format!("198.18.{}.0/24", self.0)
    }
}

/// The directories and names of this checkout's cluster.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    state: PathBuf,
    id: String,
}

impl Layout {
    /// Layout of a checkout.
    pub(crate) fn of(place: &Place) -> Self {
        let state = place.cluster();
        let id = Hash::new().with(state.as_os_str().as_encoded_bytes()).shown()[..6].to_owned();
        Self { state, id }
    }

    /// Everything of the cluster.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// The built components.
    pub(crate) fn bin(&self) -> PathBuf {
        self.state.join("bin")
    }

    /// Directory that exists while a cluster is up, and is removed with it.
    pub(crate) fn run(&self) -> PathBuf {
        self.state.join("run")
    }

    /// Logs of the last cluster's components. Kept after it is down.
    pub(crate) fn logs(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// The log of one component or job.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }

    /// Certificates, keys and kubeconfigs.
    pub(crate) fn pki(&self) -> PathBuf {
        self.run().join("pki")
    }

    /// Opens the cluster as an administrator.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.pki().join("admin.kubeconfig")
    }

    /// A node's configuration and disk.
    pub(crate) fn directory(&self, node: Node) -> PathBuf {
        self.run().join(node.name())
    }

    /// A node's network namespace, and its tree of cgroups.
    pub(crate) fn namespace(&self, node: Node) -> String {
        format!("tlc-{}-{}", self.id, node.name())
    }

    /// The network namespace of the bridge.
    pub(crate) fn fabric(&self) -> String {
        format!("tlc-{}-fabric", self.id)
    }
}

/// The first process of a node, as the record calls it.
pub(crate) fn init_of(node: Node) -> String {
    format!("{}.init", node.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_two_checkouts_have_different_names() {
        let [one, other] = ["/a", "/b"].map(|root| Layout::of(&Place::at(Path::new(root))));
        assert_ne!(one.fabric(), other.fabric());
        assert_eq!(one.fabric(), Layout::of(&Place::at(Path::new("/a"))).fabric());
    }

    #[test]
    fn every_node_has_its_own_name_address_and_pods() {
        let [one, two] = NODES;
        assert_eq!(
            (one.name(), one.address(), one.pods()),
            ("node1".to_owned(), API.to_owned(), "198.18.1.0/24".to_owned())
        );
        assert_ne!(one.address(), two.address());
        assert_ne!(one.pods(), two.pods());
    }
}
