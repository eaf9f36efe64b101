//! Many hosts on one machine: network namespaces on one bridge, each with a cable of its own.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Host, Namespace, ip};

/// The most hosts of a star: their names are these.
pub const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];

/// Hosts that all reach each other.
#[derive(Debug)]
pub struct Star {
    /// Hosts themselves.
    pub hosts: Vec<Host>,
    // Goes last, with the bridge in it.
    _hub: Namespace,
}

impl Star {
    /// So many hosts, each with a cable that carries so many Mbit/s in either direction.
    ///
    /// # Errors
    /// More than [`NAMES`] has; without root; where `ip` or `tc` (of iproute2) refuses.
    pub fn make(count: usize, mbit: u32) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces need root");
        }
        if count > NAMES.len() {
            bail!("{count} hosts; a star has {} at most", NAMES.len());
        }
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |side: &str| format!("tls-{side}-{}-{number}", std::process::id());
        let hub = Namespace::make(name("hub"))?;
        let in_hub = |words: &[&str]| ip(&[&["-n", &hub.name], words].concat());
        in_hub(&["link", "add", "br0", "type", "bridge"])?;
        in_hub(&["link", "set", "br0", "up"])?;
        let host = |at: usize| -> Result<Host> {
            let namespace = Namespace::make(name(NAMES[at]))?;
            let (cable, inside) = (format!("c{at}"), &namespace.name);
            let address = Ipv4Addr::new(198, 18, 1, at as u8 + 1);
            ip(&[
                "link", "add", "eth0", "netns", inside, "type", "veth", "peer", &cable, "netns", &hub.name,
            ])?;
            in_hub(&["link", "set", &cable, "master", "br0", "up"])?;
            let own = |words: &[&str]| ip(&[&["-n", inside], words].concat());
            own(&["address", "add", &format!("{address}/24"), "dev", "eth0"])?;
            own(&["link", "set", "lo", "up"])?;
            own(&["link", "set", "eth0", "up"])?;
            // What the host sends, and what comes to it.
            shape(inside, "eth0", mbit)?;
            shape(&hub.name, &cable, mbit)?;
            let namespace = Some(namespace);
            Ok(Host { name: NAMES[at], address: IpAddr::V4(address), namespace })
        };
        let hosts = (0..count).map(host).collect::<Result<Vec<_>>>()?;
        Ok(Self { hosts, _hub: hub })
    }
}

/// Shapes what leaves through a device to so many Mbit/s from now on.
fn shape(namespace: &str, device: &str, mbit: u32) -> Result<()> {
    let rate = format!("{mbit}mbit");
    let tc = ["tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", &rate];
    ip(&[&["netns", "exec", namespace], &tc[..], &["burst", "256kb", "latency", "50ms"]].concat())?;
    Ok(())
}

impl Host {
    /// Does something on a thread in the network of this host. Sockets that are made there stay there.
    ///
    /// # Errors
    /// The network cannot be entered; what `work` fails with.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let Some(namespace) = self.namespace() else { return work() };
        let file = File::open(Path::new("/run/netns").join(namespace)).context("the namespace is gone")?;
        std::thread::scope(|scope| {
            let entered = scope.spawn(move || {
                let own = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(file.as_fd(), own).context("the namespace cannot be entered")?;
                work()
            });
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}
