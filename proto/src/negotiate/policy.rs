//! Policy: what the exchange allows.

use super::{Transport, TransportSet};

/// Rule whether bulk bytes of `tcp` are encrypted. `quic` always encrypts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encryption {
    /// TLS on every lane.
    #[default]
    Tls,
    /// Plain lanes; control stays encrypted.
    None,
}

/// Policy of what the exchange allows, one for all its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The transports that may be used. Without `shm` and `cuda_ipc` nothing is shared between pods of a node.
    pub allow: TransportSet,
    /// Rule whether `tcp` encrypts.
    pub encryption: Encryption,
    /// `tcp` or `quic`, if the exchange has decided; none leaves it to the measurement. Others are no choice.
    pub prefer: Option<Transport>,
}

/// Everything but sharing between pods, which an exchange has to ask for.
impl Default for Policy {
    fn default() -> Policy {
        let allow = TransportSet::ALL.without(Transport::Shm).without(Transport::CudaIpc);
        Policy { allow, encryption: Encryption::Tls, prefer: None }
    }
}
