//! Entry of this sidecar in the peers file: known from its configuration and its key, without running it.

use std::net::{IpAddr, SocketAddr};

use super::error::RunError;
use crate::config::Config;
use crate::directory::PeerEntry;
use crate::identity::Keyring;

/// The line of the peers file about this sidecar, with both keys while they are changed. Makes its key, if it has none yet.
///
/// # Errors
/// It listens for no peers, others could not connect to the address, or its key cannot be read or kept.
pub fn peers_file_line(config: &Config) -> Result<String, RunError> {
    let listen = config.peers.listen.as_deref().ok_or(RunError::NoPeers)?;
    let addresses = advertised(config, listen)?;
    if let Some(address) = addresses.iter().find(|address| is_nowhere(address)) {
        return Err(RunError::NowhereToConnect { address: address.clone() });
    }
    let keyring = Keyring::look(&config.state.directory)?;
    Ok(format!("  - {}\n", entry(config, &keyring, addresses)))
}

/// The addresses that other peers are told. An IP address alone has the port of `listen`, and is left out where that takes no
/// connections of its family.
///
/// # Errors
/// None is left.
pub(super) fn advertised(config: &Config, listen: &str) -> Result<Vec<String>, RunError> {
    let Some(all) = &config.peers.advertise else { return Ok(vec![listen.to_owned()]) };
    let (host, port) = listen.rsplit_once(':').unwrap_or((listen, ""));
    let is_taken = |address: &IpAddr| address.is_ipv4() || host != "0.0.0.0";
    let full = |text: &String| match text.parse::<IpAddr>() {
        Ok(address) if !is_taken(&address) => None,
        Ok(IpAddr::V6(address)) => Some(format!("[{address}]:{port}")),
        Ok(IpAddr::V4(address)) => Some(format!("{address}:{port}")),
        Err(_) => Some(text.clone()),
    };
    let told: Vec<String> = all.iter().filter_map(full).collect();
    if told.is_empty() {
        return Err(RunError::OtherFamily { listen: listen.to_owned(), addresses: all.join(", ") });
    }
    Ok(told)
}

/// Entry of this sidecar, as a table of peers has it.
pub(super) fn entry(config: &Config, keyring: &Keyring, addresses: Vec<String>) -> PeerEntry {
    let (name, fingerprints) = (config.peer.clone(), keyring.fingerprints());
    PeerEntry { name, addresses, fingerprints, node: None, awaits_ip: false }
}

/// Returns whether an address is good to listen on and no good to connect to: every address, or any port.
pub(super) fn is_nowhere(address: &str) -> bool {
    address.ends_with(":0") || address.parse::<SocketAddr>().is_ok_and(|known| known.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_pod_is_told_whose_family_is_listened_on() {
        let told = |listen: &str, all: &str| {
            let config = Config::of(&[("peers.listen", listen), ("peers.advertise", all)]).unwrap();
            advertised(&config, listen).map_err(|error| error.to_string())
        };
        assert_eq!(told("[::]:9421", "fd00::7,10.0.0.7").unwrap(), ["[fd00::7]:9421", "10.0.0.7:9421"]);
        assert_eq!(told("0.0.0.0:9421", "fd00::7,10.0.0.7").unwrap(), ["10.0.0.7:9421"]);
        assert_eq!(told("0.0.0.0:9421", "host:1,10.0.0.7").unwrap(), ["host:1", "10.0.0.7:9421"]);
        let wrong = told("0.0.0.0:9421", "fd00::7").unwrap_err();
        assert!(wrong.contains("sidecar.ipv6") && wrong.contains("fd00::7"), "{wrong}");
    }

    #[test]
    fn addresses_that_nobody_can_connect_to_are_known() {
        for nowhere in ["0.0.0.0:9421", "[::]:9421", "127.0.0.1:0", "host:0"] {
            assert!(is_nowhere(nowhere), "{nowhere}");
        }
        for somewhere in ["127.0.0.1:9421", "host:10", "[::1]:1"] {
            assert!(!is_nowhere(somewhere), "{somewhere}");
        }
    }
}
