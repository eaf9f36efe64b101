//! The choice.

use super::*;

/// Advance in speed, in percent, that the other of `tcp` and `quic` must have before a pair changes over. More would
/// leave a pair with the slower one where that can be felt; less is within what two measurements of one link differ by,
/// and each change costs a connection.
pub const GOODPUT_ADVANTAGE_PERCENT: u32 = 10;

/// Everything that the choice depends on.
pub(super) struct Pair<'a> {
    pub(super) ours: &'a Offer,
    pub(super) theirs: &'a Offer,
    pub(super) what: &'a What,
    pub(super) policy: &'a Policy,
    pub(super) measured: &'a Measured,
}

/// Chooses the transport for one transfer between two peers, or says why there is none. Swapping the offers does
/// not change the answer.
///
/// # Errors
/// [`NoRoute`] with what spoke against every transport that came into question.
pub fn negotiate(
    ours: &Offer,
    theirs: &Offer,
    what: &What,
    policy: &Policy,
    measured: &Measured,
) -> Result<Route, NoRoute> {
    let pair = Pair { ours, theirs, what, policy, measured };
    let candidates = pair.candidates();
    let Some(version) = ours.versions.newest_common(theirs.versions) else {
        let refuse = |&transport| Refusal { transport, why: Why::NoCommonVersion };
        return Err(NoRoute { refusals: candidates.iter().map(refuse).collect() });
    };
    let mut refusals = Vec::new();
    for transport in candidates {
        match pair.against(transport) {
            Some(why) => refusals.push(Refusal { transport, why }),
            None => {
                let zero_copy = pair.is_zero_copy(transport);
                return Ok(Route { transport, version, zero_copy, refusals });
            }
        }
    }
    Err(NoRoute { refusals })
}

impl Pair<'_> {
    /// The transports that come into question at all, the best first. What could not matter (shared memory for a
    /// tensor on a GPU, a network inside one sidecar) is left out, so that no reply explains the obvious.
    pub(super) fn candidates(&self) -> Vec<Transport> {
        let host = self.what.device.is_host();
        match (self.ours.is_same_peer(self.theirs), host) {
            (true, true) => vec![Transport::Local],
            (true, false) => vec![Transport::CudaIpc, Transport::Local],
            (false, true) => vec![Transport::Shm, self.bulk()[0], self.bulk()[1]],
            (false, false) => vec![Transport::CudaIpc, self.bulk()[0], self.bulk()[1]],
        }
    }

    /// `tcp` before `quic`, or the other way round if the policy prefers it.
    fn bulk(&self) -> [Transport; 2] {
        match self.policy.prefer {
            Some(Transport::Quic) => [Transport::Quic, Transport::Tcp],
            _ => [Transport::Tcp, Transport::Quic],
        }
    }

    /// Reason that speaks against a transport. First what cannot be had, then what the caller does not want, and last
    /// what is worse than the other choice.
    fn against(&self, transport: Transport) -> Option<Why> {
        let is_measured = |one| self.measured.goodput(one).is_some();
        let compared = [Transport::Tcp, Transport::Quic].into_iter().all(is_measured);
        let why = if compared { Why::Slower } else { Why::NotCompared };
        self.unfit(transport).or_else(|| self.is_slower(transport).then_some(why))
    }

    pub(super) fn unfit(&self, transport: Transport) -> Option<Why> {
        self.unavailable(transport).or_else(|| self.unwanted(transport))
    }

    /// Another node comes first: to say that the policy forbids what could not be had anyway would send people
    /// to the wrong knob.
    pub(super) fn unavailable(&self, transport: Transport) -> Option<Why> {
        let node = match transport {
            Transport::Shm | Transport::CudaIpc => self.other_node(),
            Transport::Local | Transport::Tcp | Transport::Quic => None,
        };
        if node == Some(Why::OtherNode) {
            return node;
        }
        if !self.policy.allow.contains(transport) {
            return Some(Why::Policy);
        }
        let (Some(ours), Some(theirs)) = (self.ours.transport(transport), self.theirs.transport(transport))
        else {
            return Some(Why::NotOffered);
        };
        if self.measured.absent.contains(transport) {
            return Some(Why::NotOffered);
        }
        let host = self.what.device.is_host();
        let out_of_reach = match transport {
            Transport::Local => None,
            // What is known of the last try says more than that it has to be made again.
            Transport::Shm => node.map(|why| self.unshared().unwrap_or(why)),
            Transport::CudaIpc => {
                node.map(|why| self.unshared().unwrap_or(why)).or_else(|| self.unreached_gpu())
            }
            Transport::Tcp | Transport::Quic => {
                let has_none = ours.addresses.is_empty() && theirs.addresses.is_empty();
                (has_none || self.measured.unreached.contains(transport)).then_some(Why::NoAddress)
            }
        };
        let carries = host || transport == Transport::CudaIpc || (ours.gpu_memory && theirs.gpu_memory);
        if !carries {
            return Some(Why::NotSupported);
        }
        out_of_reach.or_else(|| self.is_cooling(transport).then(|| self.failed(transport)))
    }

    /// Returns whether a transport failed lately. Memory of GPUs crosses the node's socket as segments do, and fails with them.
    fn is_cooling(&self, transport: Transport) -> bool {
        let between = !self.ours.is_same_peer(self.theirs);
        let by = if transport == Transport::CudaIpc && between { Transport::Shm } else { transport };
        self.measured.cooling.contains(by) || self.measured.cooling.contains(transport)
    }

    /// Reason for which a transport that failed lately did.
    fn failed(&self, transport: Transport) -> Why {
        match transport {
            Transport::Shm | Transport::CudaIpc => self.unshared().unwrap_or(Why::Cooldown),
            Transport::Local | Transport::Tcp | Transport::Quic => Why::Cooldown,
        }
    }

    /// Reason for which memory is not shared now, where it is known.
    fn unshared(&self) -> Option<Why> {
        self.measured.unshared.filter(|_| self.measured.cooling.contains(Transport::Shm))
    }

    /// Only the handshake proves a node. Without one, tokens that differ are reason enough not to try.
    fn other_node(&self) -> Option<Why> {
        if self.ours.is_same_peer(self.theirs) {
            return None;
        }
        match (self.measured.same_node, &self.ours.node, &self.theirs.node) {
            (SameNode::Proven, ..) => None,
            (SameNode::Refuted, ..) => Some(Why::OtherNode),
            (SameNode::Unknown, Some(ours), Some(theirs)) if ours != theirs => Some(Why::OtherNode),
            (SameNode::Unknown, ..) => Some(Why::NodeUnproven),
        }
    }

    /// A GPU is shared only if both reach the one with the tensor's UUID; where that is not known yet, any that both reach.
    fn unreached_gpu(&self) -> Option<Why> {
        let (ours, theirs) = (&self.ours.gpus, &self.theirs.gpus);
        let both_reach = |uuid: &[u8; 16]| ours.contains(uuid) && theirs.contains(uuid);
        let is_shared = match &self.what.device {
            Device::Cuda { uuid: Some(uuid), .. } => both_reach(uuid),
            Device::Cuda { uuid: None, .. } => ours.iter().any(both_reach),
            Device::Host => false,
        };
        let has_none = ours.is_empty() || theirs.is_empty();
        (!is_shared).then_some(if has_none { Why::NoGpuProcess } else { Why::OtherGpu })
    }

    fn unwanted(&self, transport: Transport) -> Option<Why> {
        // What either of the two insists on of every route holds for both of them. That rows are packed is no matter of the route.
        let of_routes = self.ours.require.and(self.theirs.require);
        let require = self.what.require.and(of_routes);
        if self.what.require.zero_copy && !self.is_zero_copy(transport)
            || of_routes.zero_copy && !self.is_mapped(transport)
        {
            return Some(Why::NotZeroCopy);
        }
        if require.same_node && !transport.stays_on_node() {
            return Some(Why::NotSameNode);
        }
        (require.encrypted && !self.is_encrypted(transport)).then_some(Why::NotEncrypted)
    }

    /// A row list is packed into a new block everywhere. A sidecar hands GPU memory on without a copy only by
    /// `cuda_ipc`.
    fn is_zero_copy(&self, transport: Transport) -> bool {
        self.is_mapped(transport) && self.what.selection != SelectionKind::Rows
    }

    fn is_mapped(&self, transport: Transport) -> bool {
        match transport {
            Transport::Local | Transport::Shm => self.what.device.is_host(),
            Transport::CudaIpc => true,
            Transport::Tcp | Transport::Quic => false,
        }
    }

    fn is_encrypted(&self, transport: Transport) -> bool {
        match transport {
            // Lanes are plain only where neither end insists on the contrary.
            Transport::Tcp => {
                self.policy.encryption == Encryption::Tls
                    || self.ours.require.encrypted
                    || self.theirs.require.encrypted
            }
            Transport::Local | Transport::Shm | Transport::CudaIpc | Transport::Quic => true,
        }
    }

    /// Returns whether the other of `tcp` and `quic` is fit as well, and measured to be the better one. A policy that
    /// prefers one ends the question.
    fn is_slower(&self, transport: Transport) -> bool {
        let other = match transport {
            Transport::Tcp => Transport::Quic,
            Transport::Quic => Transport::Tcp,
            Transport::Local | Transport::Shm | Transport::CudaIpc => return false,
        };
        let decided = matches!(self.policy.prefer, Some(Transport::Tcp | Transport::Quic));
        if decided || self.unfit(other).is_some() {
            return false;
        }
        let (Some(mine), Some(its)) = (self.measured.goodput(transport), self.measured.goodput(other)) else {
            // Half a measurement compares nothing: the pair stays with what it has.
            return self.measured.current == Some(other);
        };
        let advantage = 1.0 + f64::from(GOODPUT_ADVANTAGE_PERCENT) / 100.0;
        // Whoever is in use, or else the first by order, stays until the other is clearly ahead.
        let incumbent = match self.measured.current {
            Some(current @ (Transport::Tcp | Transport::Quic)) => current,
            _ => Transport::Tcp,
        };
        if incumbent == transport { its > mine * advantage } else { mine <= its * advantage }
    }
}
