//! Hosts of their own on one machine: network namespaces on a bridge, a sidecar in each, and what can happen to the
//! network between them.
//!
//! ```text
//!   host 0 [e0 198.18.0.1] --- b0 \
//!   host 1 [e0 198.18.0.2] --- b1  > bridge, in a namespace of its own
//!   host 2 [e0 198.18.0.3] --- b2 /
//! ```
//! Needs root. The names carry the process id of the suite: two suites at once do not meet, and what a killed suite left
//! behind is taken away by the next one.

use std::fmt::Display;
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;
use tensorlane_client::{Client, PeerStatus};
use tensorlane_sidecar::identity::Identity;

use crate::http;
use crate::sidecar::{Sidecar, SidecarOptions};
use crate::wait::until;

/// Port on which sidecars listen for peers.
pub const PORT: u16 = 9421;
/// Port on which sidecars serve metrics.
const ADMIN_PORT: u16 = 9420;
const PREFIX: &str = "tltest-";

/// A bridge and the hosts on it. Dropping it takes them away.
pub struct Network {
    hub: String,
    hosts: Vec<String>,
}

/// Hosts with a sidecar each that know each other: host 0 is the peer `a`, host 1 `b`, and so on.
pub struct Peers {
    // In the order of dropping: a namespace goes after the processes in it.
    /// The sidecars.
    pub sidecars: Vec<Sidecar>,
    /// Between them.
    pub network: Network,
    folder: TempDir,
    identities: Vec<Identity>,
}

// === impl Network ===

impl Network {
    /// Makes that many hosts.
    ///
    /// # Panics
    /// Without root.
    pub fn new(hosts: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        assert!(rustix::process::geteuid().is_root(), "these suites make network namespaces and need root");
        sweep();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |what: &dyn Display| format!("{PREFIX}{}-{number}-{what}", std::process::id());
        // Made before anything that can fail, so that a panic half-way takes away what there is.
        let network = Self { hub: name(&"hub"), hosts: (0..hosts).map(|host| name(&host)).collect() };
        let hub = &network.hub;
        ip(&format!("netns add {hub}"));
        ip(&format!("-n {hub} link add br0 type bridge"));
        ip(&format!("-n {hub} link set br0 up"));
        for (host, namespace) in network.hosts.iter().enumerate() {
            let address = network.address(host);
            ip(&format!("netns add {namespace}"));
            ip(&format!("link add e0 netns {namespace} type veth peer name b{host} netns {hub}"));
            ip(&format!("-n {hub} link set b{host} master br0 up"));
            ip(&format!("-n {namespace} addr add {address}/24 dev e0"));
            ip(&format!("-n {namespace} link set lo up"));
            ip(&format!("-n {namespace} link set e0 up"));
        }
        network
    }

    /// The namespace of a host.
    pub fn namespace(&self, host: usize) -> &str {
        &self.hosts[host]
    }

    /// The address of a host.
    ///
    /// # Panics
    /// Beyond 250 hosts.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, 0, u8::try_from(host + 1).expect("few hosts"))
    }

    /// Address at which the sidecar of a host listens for peers.
    pub fn peer_address(&self, host: usize) -> SocketAddr {
        (self.address(host), PORT).into()
    }

    /// Gives every host an address of IPv6, too.
    pub fn add_ipv6(&self) {
        for (host, namespace) in self.hosts.iter().enumerate() {
            ip(&format!("-n {namespace} addr add {}/64 dev e0 nodad", self.ipv6(host)));
        }
    }

    /// IPv6 address of a host.
    ///
    /// # Panics
    /// Beyond 65,000 hosts.
    pub fn ipv6(&self, host: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfd18, 0, 0, 0, 0, 0, 0, u16::try_from(host + 1).expect("few hosts"))
    }

    /// Takes the host's cable out: nothing comes or goes, and its interface says so.
    pub fn cut(&self, host: usize) {
        ip(&format!("-n {} link set b{host} down", self.hub));
    }

    /// Puts the cable back.
    pub fn mend(&self, host: usize) {
        ip(&format!("-n {} link set b{host} up", self.hub));
    }

    /// Loses what `from` sends to `to` without a word; what comes the other way still arrives.
    pub fn lose(&self, from: usize, to: usize) {
        let (namespace, to) = (&self.hosts[from], self.address(to));
        // A neighbour that nobody is: the bridge carries the packets and every host throws them away.
        ip(&format!("-n {namespace} neigh replace {to} lladdr 02:00:00:00:00:99 dev e0 nud permanent"));
    }

    /// Address of the network at which nobody is, and that says nothing of it to this host.
    pub fn dead_address(&self, from: usize) -> SocketAddr {
        let dead = Ipv4Addr::new(198, 18, 0, 254);
        let namespace = &self.hosts[from];
        ip(&format!("-n {namespace} neigh replace {dead} lladdr 02:00:00:00:00:99 dev e0 nud permanent"));
        (dead, PORT).into()
    }

    /// Ends [`Network::lose`].
    pub fn find(&self, from: usize, to: usize) {
        ip(&format!("-n {} neigh del {} dev e0", self.hosts[from], self.address(to)));
    }

    /// Everything that the host sends goes at that many Mbit/s, so that a test can be in the middle of it.
    pub fn slow(&self, host: usize, mbit: u32) {
        self.shape(host, mbit, "latency 200ms");
    }

    /// Slows a host down, where so many bytes wait for the cable at most, however slow it is.
    pub fn slow_behind(&self, host: usize, mbit: u32, bytes: u64) {
        self.shape(host, mbit, &format!("limit {bytes}"));
    }

    fn shape(&self, host: usize, mbit: u32, waiting: &str) {
        let namespace = &self.hosts[host];
        let shape = format!("rate {mbit}mbit burst 256kb {waiting}");
        run("ip", &format!("netns exec {namespace} tc qdisc replace dev e0 root tbf {shape}"));
    }

    /// Everything that the host sends goes at that many kbit/s from the first packet on, and waits for seconds in a long line.
    pub fn crawl(&self, host: usize, kbit: u32) {
        self.send_one_by_one();
        let shape = format!("rate {kbit}kbit burst 3000 limit 20000");
        run("ip", &format!("netns exec {} tc qdisc replace dev e0 root tbf {shape}", self.hosts[host]));
    }

    /// Ends [`Network::slow`].
    pub fn fast(&self, host: usize) {
        run("ip", &format!("netns exec {} tc qdisc del dev e0 root", self.hosts[host]));
    }

    /// Every link carries frames of that many bytes.
    pub fn frames(&self, bytes: u32) {
        for (host, namespace) in self.hosts.iter().enumerate() {
            ip(&format!("-n {} link set b{host} mtu {bytes}", self.hub));
            ip(&format!("-n {namespace} link set e0 mtu {bytes}"));
        }
        ip(&format!("-n {} link set br0 mtu {bytes}", self.hub));
    }

    /// Every host sends segments one by one, and not several as one to be cut on the way.
    pub(crate) fn send_one_by_one(&self) {
        for namespace in &self.hosts {
            ip(&format!("-n {namespace} link set e0 gso_max_segs 1"));
        }
    }

    /// Bytes that came to the host over its cable, headers included.
    ///
    /// # Panics
    /// Where `ip` does not say.
    pub fn received(&self, host: usize) -> u64 {
        self.cable_bytes(host, "rx")
    }

    /// Bytes that left the host over its cable, headers included.
    ///
    /// # Panics
    /// Where `ip` does not say.
    pub fn sent(&self, host: usize) -> u64 {
        self.cable_bytes(host, "tx")
    }

    fn cable_bytes(&self, host: usize, direction: &str) -> u64 {
        let said = ip(&format!("-n {} -s -j link show e0", self.hosts[host]));
        let said: serde_json::Value = serde_json::from_str(&said).expect("ip speaks JSON");
        said[0]["stats64"][direction]["bytes"].as_u64().expect("a count of bytes")
    }

    /// Calls by which programs of the host have taken and given datagrams: one that takes or gives several at once is one.
    ///
    /// # Panics
    /// Where the kernel does not say.
    pub fn datagram_calls(&self, host: usize) -> [u64; 2] {
        // Of the namespace of the thread, not of the process.
        let said = self.inside(host, || std::fs::read_to_string("/proc/thread-self/net/snmp"));
        let said = said.expect("counters");
        let mut lines = said.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let (names, counts) = (lines.next().expect("names"), lines.next().expect("counts"));
        let count = |wanted| {
            let found = names.split(' ').zip(counts.split(' ')).find(|(name, _)| *name == wanted);
            found.and_then(|(_, count)| count.parse().ok()).expect("a count")
        };
        [count("InDatagrams"), count("OutDatagrams")]
    }

    /// Does something on a thread inside the host's namespace. Sockets made there stay there.
    ///
    /// # Panics
    /// Where `work` does.
    pub fn inside<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(Path::new("/run/netns").join(&self.hosts[host])).expect("the namespace");
        std::thread::scope(|scope| {
            let entered = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("the namespace can be entered");
                work()
            });
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain([&self.hub]) {
            // The last resort for what is left is `sweep`.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Takes away what suites left behind that were killed.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another suite may be doing the same.
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

fn ip(words: &str) -> String {
    run("ip", words)
}

fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split(' ')).output().expect("iproute2 is installed");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {}", told.trim());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

// === impl Peers ===

impl Peers {
    /// Two connected sidecars.
    pub fn pair() -> Self {
        Self::start(2, |_, options| options)
    }

    /// Two connected sidecars of which neither leaves the other for standing still for some seconds: if no link is cut.
    pub fn steady() -> Self {
        Self::start(2, |_, options| options.steady())
    }

    /// Starts that many connected sidecars, each with its options.
    pub fn start(count: usize, options: impl Fn(usize, SidecarOptions) -> SidecarOptions) -> Self {
        let peers = Self::unconnected(count, options);
        peers.await_connected();
        peers
    }

    /// Starts that many sidecars that know each other and may not be connected yet.
    ///
    /// # Panics
    /// Where one does not start.
    pub fn unconnected(count: usize, options: impl Fn(usize, SidecarOptions) -> SidecarOptions) -> Self {
        Self::listing(count, count, options)
    }

    /// Starts that many sidecars that know each other, and one more that knows all of them and that none of them knows.
    ///
    /// # Panics
    /// Where one does not start.
    pub fn with_stranger(members: usize, options: impl Fn(usize, SidecarOptions) -> SidecarOptions) -> Self {
        Self::listing(members + 1, members, options)
    }

    /// So many sidecars, of which the first `members` are listed by everyone, and the others by themselves.
    fn listing(
        count: usize,
        members: usize,
        options: impl Fn(usize, SidecarOptions) -> SidecarOptions,
    ) -> Self {
        let network = Network::new(count);
        let folder = tempfile::Builder::new().prefix("tensorlane-netns-").tempdir().expect("a folder");
        let key_of = |host: usize| folder.path().join(name(host));
        let identities: Vec<_> =
            (0..count).map(|host| Identity::load_or_create(&key_of(host)).expect("a key")).collect();
        let mut peers = Self { sidecars: Vec::new(), network, folder, identities };
        for host in 0..count {
            let listed = (0..count).filter(|other| *other < members || *other == host);
            peers.list(host, &listed.map(|other| peers.entry(other)).collect::<Vec<_>>());
            let own = SidecarOptions::default()
                .netns(peers.network.namespace(host))
                .identity(&peers.folder.path().join(name(host)))
                .set("peer", name(host))
                .set("peers.listen", peers.network.peer_address(host))
                .set("peers.file", peers.file(host).display())
                .set("admin.listen", SocketAddr::from((peers.network.address(host), ADMIN_PORT)))
                .set("gc.copyIdle", "500ms")
                .set("gc.leaseGrace", "3s")
                .set("deadlines.progress", "1s");
            peers.sidecars.push(Sidecar::with(options(host, own)));
        }
        peers
    }

    /// Entries that every peers file has at first.
    pub fn everyone(&self) -> Vec<Entry> {
        (0..self.identities.len()).map(|host| self.entry(host)).collect()
    }

    /// Entry by which a host is listed.
    pub fn entry(&self, host: usize) -> Entry {
        Entry {
            name: name(host),
            addresses: vec![self.network.peer_address(host)],
            fingerprints: vec![self.identities[host].fingerprint.to_string()],
        }
    }

    /// The key of a host, for impostors.
    pub fn identity(&self, host: usize) -> &Identity {
        &self.identities[host]
    }

    fn file(&self, host: usize) -> PathBuf {
        self.folder.path().join(format!("peers-{host}.yaml"))
    }

    /// Writes the peers file of a host.
    ///
    /// # Panics
    /// Where it cannot be written.
    pub fn list(&self, host: usize, entries: &[Entry]) {
        let mut text = String::from("peers:\n");
        for Entry { name, addresses, fingerprints } in entries {
            let fingerprints = fingerprints.join("\", \"");
            let addresses: Vec<_> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
            text.push_str(&format!("  - name: {name}\n    addresses: [{}]\n", addresses.join(", ")));
            text.push_str(&format!("    fingerprints: [\"{fingerprints}\"]\n"));
        }
        let (file, draft) = (self.file(host), self.folder.path().join(format!("draft-{host}")));
        std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, &file)).expect("a peers file");
    }

    /// The peers file of a host cannot be read any more: what it says is no table.
    ///
    /// # Panics
    /// Where it cannot be written.
    pub fn garble(&self, host: usize) {
        let draft = self.folder.path().join(format!("draft-{host}"));
        std::fs::write(&draft, "peers: [")
            .and_then(|()| std::fs::rename(&draft, self.file(host)))
            .expect("a file");
    }

    /// Waits until everyone is connected to everyone else.
    pub fn await_connected(&self) {
        for sidecar in &self.sidecars {
            let client = sidecar.client();
            until("everyone is connected", || {
                let peers = client.peers().expect("the peers");
                let others = peers.iter().filter(|peer| peer.state != "self");
                others.filter(|peer| peer.state == "connected").count() + 1 == self.sidecars.len()
            });
        }
    }

    /// Status of `other` as `host` sees it.
    ///
    /// # Panics
    /// Where it does not list it.
    pub fn seen(&self, host: usize, other: usize) -> PeerStatus {
        let peers = self.client(host).peers().expect("the peers");
        peers.into_iter().find(|peer| peer.name == name(other)).expect("it is listed")
    }

    /// A session with the sidecar of a host.
    pub fn client(&self, host: usize) -> Client {
        self.sidecars[host].client()
    }

    /// The sum of all series of a metric of a host with all the `labels`, such as `kind="own"`.
    ///
    /// # Panics
    /// Where it is not there.
    pub fn metric(&self, host: usize, metric: &str, labels: &[&str]) -> f64 {
        let address = SocketAddr::from((self.network.address(host), ADMIN_PORT));
        let (status, text) = self.network.inside(host, || http::get(address, "/metrics"));
        assert_eq!(status, 200, "{text}");
        http::metric(&text, metric, labels)
    }

    /// Checks of every sidecar what [`Peers::assert_free`] checks.
    pub fn assert_all_free(&self) {
        (0..self.sidecars.len()).for_each(|host| self.assert_free(host));
    }

    /// Checks of a sidecar that nobody holds anything there, that every copy has gone, and that every byte of the arena
    /// is free. Clients and tensors must have been dropped.
    ///
    /// # Panics
    /// Where something is left.
    pub fn assert_free(&self, host: usize) {
        self.sidecars[host].assert_all_free();
        let client = self.client(host);
        until("no segment is kept for a session that has ended", || {
            let arena = client.status().expect("a status").arena.unwrap_or_default();
            arena.free == arena.total
        });
    }
}

/// A peer as a peers file lists it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Name of the peer.
    pub name: String,
    /// Addresses at which it is said to listen.
    pub addresses: Vec<SocketAddr>,
    /// Fingerprints of its keys.
    pub fingerprints: Vec<String>,
}

/// The name of the peer of a host: `a`, `b`, `c`.
fn name(host: usize) -> String {
    char::from(b'a' + u8::try_from(host).expect("few hosts")).to_string()
}
