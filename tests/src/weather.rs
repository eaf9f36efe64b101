//! Bad weather on the network between hosts, made with nftables: packets that are lost by chance, datagrams that are
//! altered or that nobody carries, a flow that goes on from another port.

use std::process::Command;

use crate::netns::{Network, PORT};

/// Answer of a firewall to what it does not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Silent: it says nothing.
    Drops,
    /// Refuses aloud.
    Rejects,
}

impl Network {
    /// Of every hundred packets that come to the host, so many are lost by chance. Segments, not what the kernel makes of
    /// several: everyone sends them one by one.
    pub fn lossy(&self, host: usize, percent: u32) {
        self.send_one_by_one();
        self.nft(host, "add table netdev weather");
        self.nft(host, "add chain netdev weather in { type filter hook ingress device \"e0\" priority 0; }");
        self.nft(host, "flush chain netdev weather in");
        self.nft(host, &format!("add rule netdev weather in numgen random mod 100 < {percent} drop"));
    }

    /// Packets of more bytes than that are lost on their way to the host, and nobody says so: a path with a smaller MTU, and
    /// a firewall that drops ICMP.
    pub fn only_small(&self, host: usize, bytes: u32) {
        self.send_one_by_one();
        self.nft(host, "add table netdev weather");
        self.nft(host, "add chain netdev weather in { type filter hook ingress device \"e0\" priority 0; }");
        self.nft(host, "flush chain netdev weather in");
        self.nft(host, &format!("add rule netdev weather in meta length > {bytes} drop"));
    }

    /// Of every hundred datagrams that come to the host and are large enough, so many have one byte of their content altered.
    /// No checksum of the kernel tells: between hosts of one machine none is looked at.
    pub fn altering(&self, host: usize, percent: u32) {
        self.send_one_by_one();
        self.nft(host, "add table netdev weather");
        self.nft(host, "add chain netdev weather in { type filter hook ingress device \"e0\" priority 0; }");
        self.nft(host, "flush chain netdev weather in");
        let chosen = format!("meta l4proto udp meta length > 300 numgen random mod 100 < {percent}");
        // The 126th byte from the head of UDP: within what QUIC has sealed.
        self.nft(host, &format!("add rule netdev weather in {chosen} @th,1000,8 set 0x55 counter"));
    }

    /// Datagrams that were altered since [`Network::altering`].
    ///
    /// # Panics
    /// Where `nft` does not say.
    pub fn altered(&self, host: usize) -> u64 {
        let listed = self.nft(host, "list chain netdev weather in");
        let counted = listed.split_once("counter packets ").and_then(|(_, rest)| rest.split(' ').next());
        counted.and_then(|count| count.parse().ok()).expect("a counter")
    }

    /// Ends [`Network::lossy`] and [`Network::altering`].
    pub fn sunny(&self, host: usize) {
        self.nft(host, "flush chain netdev weather in");
    }

    /// No datagram from or to the port for peers comes to the host or leaves it.
    pub fn no_datagrams(&self, host: usize) {
        self.nft(host, "add table inet weather");
        for (chain, hook) in [("in", "input"), ("out", "output")] {
            self.nft(
                host,
                &format!("add chain inet weather {chain} {{ type filter hook {hook} priority 0; }}"),
            );
            self.nft(host, &format!("add rule inet weather {chain} udp dport {PORT} drop"));
        }
    }

    /// No new connection to the port for peers comes to the host; those that are there live on.
    pub fn no_new_connections(&self, host: usize, closed: Closed) {
        let verdict = match closed {
            Closed::Drops => "drop",
            Closed::Rejects => "reject with tcp reset",
        };
        self.nft(host, "add table inet firewall");
        self.nft(host, "add chain inet firewall in { type filter hook input priority 0; }");
        let first = "tcp flags & (syn | ack) == syn";
        self.nft(host, &format!("add rule inet firewall in tcp dport {PORT} {first} {verdict}"));
    }

    /// From now on what the host sends from the port for peers seems to come from this one, as after a NAT has forgotten
    /// the flow. Another call takes the place of the one before.
    pub fn rebind(&self, host: usize, port: u16) {
        self.nft(host, "add table inet rebind");
        self.nft(host, "add chain inet rebind out { type filter hook output priority -300; }");
        self.nft(host, "add chain inet rebind in { type filter hook prerouting priority -300; }");
        // In this order: an answer to the port before is lost.
        self.nft(host, "flush table inet rebind");
        self.nft(host, &format!("add rule inet rebind out udp sport {PORT} udp sport set {port}"));
        self.nft(host, &format!("add rule inet rebind in udp dport {port} udp dport set {PORT}"));
    }

    /// Runs nft on a host and returns what it prints.
    fn nft(&self, host: usize, words: &str) -> String {
        let inside = ["netns", "exec", self.namespace(host), "nft", words];
        let output = Command::new("ip").args(inside).output().expect("iproute2 is installed");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nft {words}: {}", told.trim());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
