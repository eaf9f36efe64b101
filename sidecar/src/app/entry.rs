//! Entry of this sidecar in the peers file: known from its configuration and its key, without running it.

use std::net::SocketAddr;

use super::error::RunError;
use crate::config::Config;
use crate::directory::PeerEntry;
use crate::identity::Keyring;

/// The line of the peers file about this sidecar, with both keys while they are changed. Makes its key, if it has none yet.
///
/// # Errors
/// It listens for no peers, others could not connect to the address, or its key cannot be read or kept.
pub fn peers_file_line(config: &Config) -> Result<String, RunError> {
    let address = advertised(config).ok_or(RunError::NoPeers)?;
    if is_nowhere(&address) {
        return Err(RunError::NowhereToConnect { address });
    }
    let keyring = Keyring::look(&config.state.directory)?;
    Ok(format!("  - {}\n", entry(config, &keyring, address)))
}

/// The address that other peers are told.
pub(super) fn advertised(config: &Config) -> Option<String> {
    config.peers.advertise.clone().or_else(|| config.peers.listen.clone())
}

/// Entry of this sidecar, as a table of peers has it.
pub(super) fn entry(config: &Config, keyring: &Keyring, address: String) -> PeerEntry {
    PeerEntry {
        name: config.peer.clone(),
        addresses: vec![address],
        fingerprints: keyring.fingerprints(),
        node: None,
    }
}

/// Returns whether an address is good to listen on and no good to connect to: every address, or any port.
fn is_nowhere(address: &str) -> bool {
    address.ends_with(":0") || address.parse::<SocketAddr>().is_ok_and(|known| known.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

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
