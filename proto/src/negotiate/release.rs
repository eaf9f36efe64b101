//! Transports that this release speaks, and how a refusal that follows from that is called: by its own name, so
//! that nobody looks for a policy that would change it. Every part that shows routes asks here, so that all of them say
//! the same.

use super::{Refusal, Transport, TransportSet, Why};

/// The transports of this release.
pub const SPOKEN: TransportSet = TransportSet::EMPTY
    .with(Transport::Local)
    .with(Transport::Shm)
    .with(Transport::Tcp)
    .with(Transport::Quic);

/// Names as the release's own lack what is not offered because nobody could, or refused by a policy that does not speak
/// of it. `listed`: the transports that somebody named as those that may be used; absent: nobody did.
pub fn own_up(refusals: &mut [Refusal], listed: Option<TransportSet>) {
    for refusal in refusals {
        refusal.why = owned_up(refusal.transport, refusal.why, listed);
    }
}

/// The same for one transport: the reason by its own name.
pub fn owned_up(transport: Transport, why: Why, listed: Option<TransportSet>) -> Why {
    let forbidden = listed.is_some_and(|listed| !listed.contains(transport));
    let ours = match why {
        Why::NotOffered => true,
        Why::Policy => !forbidden,
        // Nobody should move pods onto one node for what would not be spoken there either.
        Why::OtherNode | Why::NodeUnproven => !forbidden && !SPOKEN.contains(transport),
        _ => false,
    };
    if ours && !SPOKEN.contains(transport) {
        Why::NotInThisRelease
    } else if ours && why == Why::Policy && transport == Transport::Shm {
        // Nobody forbids it: there is no directory for it.
        Why::NoSocketDir
    } else {
        why
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_forbids_and_nobody_could_offer_is_the_lack_of_the_release() {
        let only_tcp = TransportSet::EMPTY.with(Transport::Tcp);
        let with_shm = only_tcp.with(Transport::Shm);
        for (transport, why, listed, expected) in [
            (Transport::Shm, Why::Policy, None, Why::NoSocketDir),
            (Transport::CudaIpc, Why::Policy, None, Why::NotInThisRelease),
            (Transport::Shm, Why::Policy, Some(only_tcp), Why::Policy),
            (Transport::Shm, Why::Policy, Some(with_shm), Why::NoSocketDir),
            (Transport::Shm, Why::NotOffered, Some(with_shm), Why::NotOffered),
            (Transport::CudaIpc, Why::NotOffered, None, Why::NotInThisRelease),
            (Transport::Shm, Why::OtherNode, None, Why::OtherNode),
            (Transport::CudaIpc, Why::OtherNode, None, Why::NotInThisRelease),
            (Transport::CudaIpc, Why::OtherNode, Some(only_tcp), Why::OtherNode),
            (Transport::Tcp, Why::NotOffered, None, Why::NotOffered),
        ] {
            let mut refusals = [Refusal { transport, why }];
            own_up(&mut refusals, listed);
            assert_eq!(refusals[0].why, expected, "{transport} {why}");
        }
    }
}
