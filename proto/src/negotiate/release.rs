//! Words for refusals that are nobody's policy: where there is no directory in which the sidecars of a node find each other, nobody
//! should look for a policy that would change it. Every part that shows routes asks here, so that all of them say the same.

use super::{Refusal, Transport, TransportSet, Why};

/// Names as the lack of a directory what is refused by a policy that does not speak of it. `listed`: the transports that somebody
/// named as those that may be used; absent: nobody did.
pub fn own_up(refusals: &mut [Refusal], listed: Option<TransportSet>) {
    for refusal in refusals {
        refusal.why = owned_up(refusal.transport, refusal.why, listed);
    }
}

/// Names the reason of one transport by its own name.
pub fn owned_up(transport: Transport, why: Why, listed: Option<TransportSet>) -> Why {
    let needs: &[Transport] = match transport {
        Transport::Shm => &[Transport::Shm],
        // Its descriptors cross the node's socket, as segments do.
        Transport::CudaIpc => &[Transport::CudaIpc, Transport::Shm],
        Transport::Local | Transport::Tcp | Transport::Quic => return why,
    };
    let allowed = listed.is_none_or(|listed| needs.iter().all(|needed| listed.contains(*needed)));
    if why == Why::Policy && allowed { Why::NoSocketDir } else { why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_forbids_lacks_a_directory() {
        let only_tcp = TransportSet::EMPTY.with(Transport::Tcp);
        let with_shm = only_tcp.with(Transport::Shm);
        let with_cuda = only_tcp.with(Transport::CudaIpc);
        for (transport, why, listed, expected) in [
            (Transport::Shm, Why::Policy, None, Why::NoSocketDir),
            (Transport::CudaIpc, Why::Policy, None, Why::NoSocketDir),
            (Transport::Shm, Why::Policy, Some(only_tcp), Why::Policy),
            (Transport::Shm, Why::Policy, Some(with_shm), Why::NoSocketDir),
            (Transport::CudaIpc, Why::Policy, Some(with_shm), Why::Policy),
            (Transport::CudaIpc, Why::Policy, Some(with_cuda), Why::Policy),
            (Transport::CudaIpc, Why::Policy, Some(with_cuda.with(Transport::Shm)), Why::NoSocketDir),
            (Transport::Shm, Why::NotOffered, Some(with_shm), Why::NotOffered),
            (Transport::Shm, Why::OtherNode, None, Why::OtherNode),
            (Transport::CudaIpc, Why::OtherNode, None, Why::OtherNode),
            (Transport::Tcp, Why::Policy, None, Why::Policy),
        ] {
            let mut refusals = [Refusal { transport, why }];
            own_up(&mut refusals, listed);
            assert_eq!(refusals[0].why, expected, "{transport} {why}");
        }
    }
}
