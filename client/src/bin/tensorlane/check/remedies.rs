//! Remedies in the terms of the place: a pod of Kubernetes, or processes that somebody starts by hand.

/// Remedies for each thing that can be wrong.
#[derive(Debug)]
pub(super) struct Remedies {
    pub(super) no_directory: &'static str,
    pub(super) no_socket: &'static str,
    pub(super) no_answer: &'static str,
    /// Remedy where the system refuses the connection; every user may have it.
    pub(super) denied: &'static str,
    pub(super) version: &'static str,
    pub(super) arena: &'static str,
    /// Consequence of having no other peer, and where to look.
    pub(super) alone: &'static str,
    pub(super) no_way: &'static str,
    /// Remedy where neighbours of one machine do not share memory, for they have no directory in common.
    no_socket_dir: &'static str,
    node_unproven: &'static str,
    /// Remedy where the table of peers that this peer reads lacks it, or its key.
    pub(super) unlisted: &'static str,
    not_pinned: &'static str,
    another_owner: &'static str,
    another_name: &'static str,
    another_exchange: &'static str,
    another_release: &'static str,
    no_address: &'static str,
    /// Remedy where nobody knows an IP of a pod.
    no_ip: &'static str,
    not_reached: &'static str,
    /// Remedy where small packets pass and large ones do not.
    packet_size: &'static str,
    /// Remedy where an address of another peer leads back to this one.
    own_address: &'static str,
    /// Remedy where an address of this peer leads to another one.
    pub(super) leads_elsewhere: &'static str,
    /// Remedy where the source of the table of peers fails.
    pub(super) no_list: &'static str,
}

const IN_KUBERNETES: Remedies = Remedies {
    no_directory: "this container has no sidecar: `kubectl tensorlane explain pod/NAME` says why, and tensorlane.dev/containers may leave this container out",
    no_socket: "it has not started, or has ended: `kubectl logs POD -c tensorlane` (--previous for its last life)",
    no_answer: "`kubectl logs POD -c tensorlane`; TENSORLANE_LIMITS_SESSIONS where there are too many sessions",
    denied: "the sockets are open to every user of the pod, so a rule of the node refuses: an SELinux level (seLinuxOptions) or AppArmor profile that this container has and the pod has not; take it off, or give it to the pod",
    version: "use client and sidecar of the same minor version: make the pod anew after an upgrade",
    arena: "release tensors, take names away (`tensorlane ls -l`, `tensorlane rm`), or make tensorlane.dev/arena-size larger",
    alone: "tensors stay in this pod (`kubectl get txp`)",
    no_way: "the exchange or this pod requires what cannot be had: relax `require`, or `transports`",
    unlisted: "write that line into the peers file of every peer: it is read again within a second",
    no_socket_dir: "memory is shared between pods of a node once the exchange says `sameNode`; between nodes this is as it should be",
    node_unproven: "the directory of `sameNode`, or a socket in it, cannot be used, or was not tried yet: the log of the sidecar says which",
    not_pinned: "a key is not pinned on both sides: `kubectl get txp PEER -o yaml` must list the fingerprints of both",
    another_owner: "its address belongs to another pod by now: the table will follow; if not, look at its TensorPeer",
    another_name: "its TensorPeer has another name than its sidecar: make the pod anew",
    another_exchange: "it belongs to another exchange: set tensorlane.dev/exchange alike on both",
    another_release: "its sidecar is of another release: make the older pod anew",
    no_address: "it has not published yet: `kubectl describe txp PEER`",
    no_ip: "`kubectl describe pod PEER`, `kubectl describe txp PEER`: does its node have a network, and does the operator run?",
    not_reached: "can this pod reach its port 9421? a NetworkPolicy must let pods of the exchange connect to each other; is its node up?",
    packet_size: "`ping -M do -s 1400 ADDRESS` from this node to the peer's: where it fails, make the MTU of the pod network smaller than that of the path, or let ICMP pass",
    own_address: "two pods have one address, or one key: look at the addresses of `kubectl get txp -o wide`",
    leads_elsewhere: "another pod has the address of this one, or a proxy answers there: look at the addresses of `kubectl get txp -o wide`",
    no_list: "known peers go on, new ones are not seen: can this pod reach the API server, and is its service account still there? `kubectl logs POD -c tensorlane`",
};

const ELSEWHERE: Remedies = Remedies {
    no_directory: "start a sidecar, or set TENSORLANE_SOCKETS to the directory of one",
    no_socket: "it has not started, or has ended: look at what it wrote to its standard error",
    no_answer: "look at what it wrote to its standard error; `limits.sessions` (TENSORLANE_LIMITS_SESSIONS) where there are too many sessions",
    denied: "the sockets are open to every user who reaches their directory: look at the modes of the directories above it, and at rules of SELinux or AppArmor",
    version: "use client and sidecar of the same minor version: start the sidecar anew after an upgrade",
    arena: "release tensors, take names away (`tensorlane ls -l`, `tensorlane rm`), or make `arena.size` (TENSORLANE_ARENA_SIZE) larger",
    alone: "tensors stay with this sidecar; `peers.file` (TENSORLANE_PEERS_FILE) names others",
    no_way: "one of the two sidecars requires what cannot be had: relax `require`, or `transports`",
    unlisted: "write that line into the peers file of every peer: it is read again within a second",
    no_socket_dir: "memory is shared on a machine once `node.directory` (TENSORLANE_NODE_DIRECTORY) is the same on both; between machines this is as it should be",
    node_unproven: "the directory of `node.directory` (TENSORLANE_NODE_DIRECTORY) must be there and the same on both: the log of the sidecar says what is wrong",
    not_pinned: "a key is not pinned on both sides: the peers files of both must have the fingerprint of the other",
    another_owner: "another sidecar has its address: correct the address of PEER in the peers file",
    another_name: "let `peer` (TENSORLANE_PEER) of its sidecar be the name that the peers file has for its key",
    another_exchange: "it belongs to another exchange: set `exchange` (TENSORLANE_EXCHANGE) alike on both",
    another_release: "its sidecar is of another release: start the older one anew",
    no_address: "give PEER an address in the peers file, or in its own, so that one of the two can connect",
    no_ip: "`kubectl describe txp PEER` says of which pod it is",
    not_reached: "does it run, does the peers file have its address, and does a firewall let this host reach that port?",
    packet_size: "`ping -M do -s 1400 ADDRESS` to the peer: where it fails, make the MTU of both ends that of the path between them, or let ICMP pass",
    own_address: "correct the address of PEER in the peers file, or `peers.advertise` (TENSORLANE_PEERS_ADVERTISE) there; no two peers may share an identity folder",
    no_list: "known peers go on, new ones are not seen: can this host reach the API server, and is the token of `peers.kubeconfig` good?",
    leads_elsewhere: "correct `peers.advertise` (TENSORLANE_PEERS_ADVERTISE) of this sidecar, and its address in the peers file of every peer",
};

impl Remedies {
    pub(super) const fn of(in_kubernetes: bool) -> &'static Self {
        if in_kubernetes { &IN_KUBERNETES } else { &ELSEWHERE }
    }

    /// Remedy for what is told of the path to a peer that is connected, where there is one.
    pub(super) fn of_path(&self, told: &str) -> Option<&'static str> {
        told.contains("packets of full size").then_some(self.packet_size)
    }

    /// Remedy for a route, in words, whose reason somebody can change.
    pub(super) fn of_route(&self, route: &str) -> Option<&'static str> {
        let asked = [("no_socket_dir", self.no_socket_dir), ("node_unproven", self.node_unproven)];
        asked.iter().find(|(why, _)| route.contains(why)).map(|(_, remedy)| *remedy)
    }

    /// Remedy for the words of an error with which a peer was not reached.
    pub(super) fn of_error(&self, error: &str, peer: &str) -> String {
        // What one side says of both is also told as a refusal of the other, so that comes last.
        let asked: [(&[&str], &str); 8] = [
            (&["this peer's own"], self.own_address),
            (&["exchange \""], self.another_exchange),
            (&["calls itself"], self.another_name),
            (&["version"], self.another_release),
            (
                &["belongs to no peer", "does not list our key", "refused us", "certificate", "alert"],
                self.not_pinned,
            ),
            (&["not to "], self.another_owner),
            (&["no address"], self.no_address),
            (&["no IP of its pod"], self.no_ip),
        ];
        let has = |words: &[&str]| words.iter().any(|word| error.contains(word));
        let remedy =
            asked.iter().find(|(words, _)| has(words)).map_or(self.not_reached, |(_, remedy)| remedy);
        remedy.replace("PEER", peer)
    }
}
