//! Properties of the cable between two hosts: the size of its packets, its rate, and how many are lost.

use std::fmt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::hosts::TwoHosts;

/// A kind of cable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes of the largest packet.
    pub mtu: u32,
    /// Mbit/s; none for what the machine can do.
    pub mbit: Option<u32>,
    /// Packets of a thousand that are lost, in either direction.
    pub lost: u32,
}

impl Link {
    /// Every link of small and large packets, shaped and not, that loses nothing, one of a thousand and ten.
    pub fn grid() -> Vec<Self> {
        let mut all = Vec::new();
        for mtu in [1500, 9000] {
            for mbit in [None, Some(1000)] {
                all.extend([0, 1, 10].map(|lost| Self { mtu, mbit, lost }));
            }
        }
        all
    }

    /// Makes the cable between these two hosts one of this kind. The hosts must be new.
    ///
    /// # Errors
    /// On loopback, and where a tool refuses.
    pub fn make(self, hosts: &TwoHosts) -> Result<()> {
        for namespace in [hosts.a.namespace(), hosts.b.namespace()] {
            let namespace = namespace.context("loopback is no link")?;
            inside(namespace, &format!("ip link set eth0 mtu {}", self.mtu))?;
            if let Some(mbit) = self.mbit {
                let rate = format!("tbf rate {mbit}mbit burst 256kb latency 50ms");
                inside(namespace, &format!("tc qdisc replace dev eth0 root {rate}"))?;
            }
            if self.lost > 0 {
                // One by one, so that what is lost is a packet and not what the kernel makes of many.
                inside(namespace, "ip link set eth0 gso_max_segs 1")?;
                inside(namespace, "nft add table netdev loss")?;
                inside(
                    namespace,
                    "nft add chain netdev loss in { type filter hook ingress device \"eth0\" priority 0; }",
                )?;
                let rule = format!("numgen random mod 1000 < {} drop", self.lost);
                inside(namespace, &format!("nft add rule netdev loss in {rule}"))?;
            }
        }
        Ok(())
    }
}

/// `MTU 1500, 1000 Mbit/s, 0.1 % lost`
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MTU {}", self.mtu)?;
        match self.mbit {
            Some(mbit) => write!(f, ", {mbit} Mbit/s")?,
            None => f.write_str(", unshaped")?,
        }
        write!(f, ", {} % lost", f64::from(self.lost) / 10.0)
    }
}

fn inside(namespace: &str, words: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).args(words.split(' ')).stdin(Stdio::null());
    let output = command.output().context("`ip` (of iproute2) cannot be started")?;
    if !output.status.success() {
        bail!("`{words}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_twelve_links_that_are_told_apart() {
        let mut shown: Vec<String> = Link::grid().iter().map(ToString::to_string).collect();
        assert_eq!(shown[1], "MTU 1500, unshaped, 0.1 % lost");
        shown.dedup();
        assert_eq!(shown.len(), 12);
    }
}
