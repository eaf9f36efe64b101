//! Two hosts on one machine: network namespaces with a cable between them, where root allows it; else loopback.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::undo::Undo;

pub mod star;

/// The first addresses of a network that is set aside for benchmarks (RFC 2544).
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
/// The end of the cable in each namespace.
const CABLE: &str = "eth0";
/// The first port of servers in a namespace, which has all ports for itself.
const PORT: u16 = 9421;

/// Place of a process in the network.
#[derive(Debug)]
pub struct Host {
    name: &'static str,
    address: IpAddr,
    /// None on loopback.
    namespace: Option<Namespace>,
}

#[derive(Debug)]
struct Namespace {
    name: String,
    /// The next server's.
    port: AtomicU16,
    _undo: Undo,
}

/// Two hosts that reach each other.
#[derive(Debug)]
pub struct TwoHosts {
    /// First of the two.
    pub a: Host,
    /// The other.
    pub b: Host,
    /// Reason why they are not namespaces, where they are not.
    pub why_loopback: Option<String>,
}

impl TwoHosts {
    /// Namespaces if possible, else loopback with the reason.
    pub fn make() -> Self {
        let loopback = |name| Host { name, address: Ipv4Addr::LOCALHOST.into(), namespace: None };
        match Self::in_namespaces() {
            Ok(hosts) => hosts,
            Err(why) => Self { a: loopback("A"), b: loopback("B"), why_loopback: Some(format!("{why:#}")) },
        }
    }

    fn in_namespaces() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces need root");
        }
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |side: &str| format!("tlb-{side}-{}-{number}", std::process::id());
        let [a, b] = [Namespace::make(name("a"))?, Namespace::make(name("b"))?];
        // Each end gets its name inside its own namespace, so that no name outside can be in the way.
        ip(&["link", "add", CABLE, "netns", &a.name, "type", "veth", "peer", CABLE, "netns", &b.name])?;
        for (namespace, address) in [&a, &b].into_iter().zip(ADDRESSES) {
            let at = |words: &[&str]| ip(&[&["-n", &namespace.name], words].concat());
            at(&["address", "add", &format!("{address}/30"), "dev", CABLE])?;
            at(&["link", "set", "lo", "up"])?;
            at(&["link", "set", CABLE, "up"])?;
        }
        let host = |name, namespace, address: Ipv4Addr| Host {
            name,
            address: address.into(),
            namespace: Some(namespace),
        };
        Ok(Self { a: host("A", a, ADDRESSES[0]), b: host("B", b, ADDRESSES[1]), why_loopback: None })
    }
}

/// `two network namespaces, 198.18.0.1 and 198.18.0.2, one veth pair`
impl fmt::Display for TwoHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why_loopback {
            Some(why) => write!(f, "loopback, because {why}"),
            None => {
                write!(f, "two network namespaces, {} and {}, one veth pair", self.a.address, self.b.address)
            }
        }
    }
}

impl Namespace {
    fn make(name: String) -> Result<Self> {
        ip(&["netns", "add", &name])?;
        // The cable goes with the first of its two ends.
        let gone = name.clone();
        let undo = Undo::with(move || drop(ip(&["netns", "delete", &gone])));
        Ok(Self { name, port: AtomicU16::new(PORT), _undo: undo })
    }
}

impl Host {
    /// Name for people.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Name of the host's network namespace; none on loopback.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_ref().map(|namespace| namespace.name.as_str())
    }

    /// The interface by which the other host is reached.
    pub fn interface(&self) -> &'static str {
        if self.namespace.is_some() { CABLE } else { "lo" }
    }

    /// A command that runs `program` here.
    pub fn command(&self, program: &Path) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(program) };
        // `ip` becomes the program, so that the process id is the program's.
        let mut command = Command::new("ip");
        command.args([OsStr::new("netns"), "exec".as_ref(), namespace.name.as_ref(), program.as_ref()]);
        command
    }

    /// An address at which a server can listen here, and which the other host reaches.
    ///
    /// # Errors
    /// No port is free.
    pub fn free_address(&self) -> Result<SocketAddr> {
        if let Some(namespace) = &self.namespace {
            return Ok((self.address, namespace.port.fetch_add(1, Ordering::Relaxed)).into());
        }
        let listener = TcpListener::bind((self.address, 0)).context("no free port")?;
        Ok(listener.local_addr()?)
    }
}

impl TwoHosts {
    /// Shapes what either host sends to so many Mbit/s from now on.
    ///
    /// # Errors
    /// They are no namespaces, or `tc` (of iproute2) refuses.
    pub fn shape(&self, mbit: u32) -> Result<()> {
        let rate = format!("{mbit}mbit");
        let words = [
            "tc", "qdisc", "replace", "dev", CABLE, "root", "tbf", "rate", &rate, "burst", "256kb",
            "latency", "50ms",
        ];
        for host in [&self.a, &self.b] {
            host.run(&words)?;
        }
        Ok(())
    }
}

impl Host {
    /// Bytes that all TCP sockets here, those that are up, have sent and received: without headers, with what was sent again.
    ///
    /// # Errors
    /// It is no namespace, or `ss` (of iproute2) does not say.
    pub fn socket_bytes(&self) -> Result<u64> {
        Ok(counted(&self.run(&["ss", "--no-header", "--numeric", "--tcp", "--info"])?))
    }

    /// Bytes that its cable has carried away from here, with all headers and with what was sent again.
    ///
    /// # Errors
    /// It is no namespace, or the kernel does not say.
    pub fn cable_bytes(&self) -> Result<u64> {
        let said = self.run(&["cat", &format!("/sys/class/net/{CABLE}/statistics/tx_bytes")])?;
        said.trim().parse().with_context(|| format!("no number of bytes: {said}"))
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        let namespace =
            self.namespace.as_ref().context("only a network namespace has a network of its own")?;
        ip(&[&["netns", "exec", &namespace.name], words].concat())
    }
}

/// The sum of what `ss` says of the sockets.
fn counted(said: &str) -> u64 {
    let count = |word: &str| {
        let number = word.strip_prefix("bytes_sent:").or_else(|| word.strip_prefix("bytes_received:"))?;
        number.parse::<u64>().ok()
    };
    said.split_whitespace().filter_map(count).sum()
}

/// Runs `ip` with these words; what it says.
fn ip(words: &[&str]) -> Result<String> {
    let mut command = Command::new("ip");
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.context("`ip` (of iproute2) cannot be started")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`ip {}` failed: {}", words.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_sockets_are_added_up() {
        let said = "ESTAB 0 0 198.18.0.1:9421 198.18.0.2:40000\n\t bbr wscale:7,7 rto:200 bytes_sent:1200 bytes_acked:1199 \
                    bytes_received:34 segs_out:5\nESTAB 0 0 198.18.0.1:9421 198.18.0.2:40002\n\t bbr bytes_received:1000000\n";
        assert_eq!(counted(said), 1_001_234);
        assert_eq!(counted(""), 0);
    }

    #[test]
    fn hosts_say_where_they_are_and_leave_nothing_behind() {
        let hosts = TwoHosts::make();
        let shown = hosts.to_string();
        let mut command = hosts.a.command(Path::new("true"));
        assert!(command.status().unwrap().success());
        let Some(namespace) = &hosts.b.namespace else {
            assert!(shown.starts_with("loopback, because "), "{shown}");
            return;
        };
        let kept = Path::new("/run/netns").join(&namespace.name);
        assert!(kept.exists());
        drop(hosts);
        assert!(!kept.exists());
    }
}
