//! Keeper of a new tensor, from the words of a request.

use std::num::NonZeroU32;
use std::str::FromStr;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, Keep, Millis, NameSpec, TensorId, TicketId, TicketSpec};
use tensorlane_proto::reference::Reference;
use tensorlane_proto::wire;

use super::Exchange;

/// Between the reference and the secret of a ticket.
const TICKET_MARK: char = '#';

impl Exchange {
    /// Reads what keeps a tensor. Outside of a session, without a name, the default ticket does.
    pub(super) fn keep(&self, by: Option<Holder>, keep: Option<v1::Keep>) -> Result<Keep, Failure> {
        let keep = keep.unwrap_or_default();
        let lease = by.is_some() && !keep.no_lease;
        let replaces = self.replaced(&keep.replaces)?;
        let name = wire::name(&keep.name)?;
        if name.is_none() && replaces.is_some() {
            return Err(Failure::new(Reason::InvalidArgument, "`replaces` is given without a name"));
        }
        let name = name.map(|name| NameSpec { name, replaces });
        let ticket = if keep.ticket_ms > 0 || (by.is_none() && name.is_none()) {
            Some(self.ticket_spec(keep.ticket_ms, keep.ticket_uses))
        } else {
            None
        };
        Ok(Keep { lease, name, ticket })
    }

    /// A ticket with a secret nobody can guess; the sidecar's default time where none is given.
    pub(super) fn ticket_spec(&self, ttl_ms: u64, uses: u32) -> TicketSpec {
        let default = u64::try_from(self.store.ticket_ttl().as_millis()).unwrap_or(u64::MAX);
        TicketSpec {
            id: TicketId(rand::random()),
            ttl: Millis(if ttl_ms == 0 { default } else { ttl_ms }),
            uses: NonZeroU32::new(uses).unwrap_or(NonZeroU32::MIN),
        }
    }

    /// The tensor that a name must stand for at present.
    pub(super) fn replaced(&self, reference: &str) -> Result<Option<TensorId>, Failure> {
        if reference.is_empty() {
            return Ok(None);
        }
        self.own(&Reference::from_str(reference)?).map(Some)
    }

    /// The id of a reference that must be of this peer and this incarnation.
    pub(super) fn own(&self, reference: &Reference) -> Result<TensorId, Failure> {
        self.check_exchange(reference)?;
        if !self.store.is_ours(reference) {
            return Err(Failure::new(
                Reason::NotOwned,
                format!("{reference} belongs to the peer {}; ask it there", reference.peer()),
            ));
        }
        self.check_incarnation(reference)?;
        Ok(TensorId(reference.id()))
    }

    pub(super) fn check_exchange(&self, reference: &Reference) -> Result<(), Failure> {
        let ours = &self.me().exchange;
        if reference.exchange() == ours {
            return Ok(());
        }
        Err(Failure::new(
            Reason::WrongExchange,
            format!("{reference} is of the exchange {}; this sidecar is in {ours}", reference.exchange()),
        ))
    }

    pub(super) fn check_incarnation(&self, reference: &Reference) -> Result<(), Failure> {
        if reference.incarnation() == self.store.incarnation() {
            return Ok(());
        }
        Err(owner_lost(reference))
    }
}

/// The life in which a tensor was put is over.
pub(super) fn owner_lost(reference: &Reference) -> Failure {
    Failure::new(
        Reason::OwnerLost,
        format!(
            "the sidecar {} that kept {reference} has ended since; put the tensor again",
            reference.peer()
        ),
    )
    .with("peer", reference.peer())
    .with("incarnation", reference.incarnation())
}

/// The text of a ticket.
pub(super) fn ticket_text(reference: &Reference, ticket: TicketId) -> String {
    format!("{reference}{TICKET_MARK}{:032x}", ticket.0)
}

/// Reads the text of a ticket.
pub(super) fn parse_ticket(text: &str) -> Result<(Reference, TicketId), Failure> {
    let malformed =
        || Failure::new(Reason::ReferenceMalformed, "this is not a ticket: it lacks its secret part");
    let (reference, secret) = text.split_once(TICKET_MARK).ok_or_else(malformed)?;
    if secret.len() != 32 || secret.bytes().any(|b| !b.is_ascii_hexdigit() || b.is_ascii_uppercase()) {
        return Err(malformed());
    }
    let secret = u128::from_str_radix(secret, 16).map_err(|_| malformed())?;
    Ok((Reference::from_str(reference)?, TicketId(secret)))
}

#[cfg(test)]
mod tests {
    use tensorlane_fuzz::{Target, fuzz};
    use tensorlane_memory::heap::MeteringAllocator;
    use tensorlane_proto::{DType, Incarnation, Layout, Shape};

    use super::*;

    #[test]
    fn mutated_tickets_are_refused_or_written_as_they_were_read() {
        let layout = Layout::contiguous(DType::F32, Shape::new(&[4, 6]).unwrap()).unwrap();
        let (exchange, peer) = ("ml".parse().unwrap(), "trainer-0".parse().unwrap());
        let reference = Reference::new(exchange, peer, Incarnation(7), 9, &layout);
        let ticket = |secret| ticket_text(&reference, TicketId(secret)).into_bytes();
        let corpus = vec![ticket(7), ticket(u128::MAX)];
        let (times, spare, meter) = (64, 16 << 10, MeteringAllocator::peak_of as tensorlane_fuzz::Meter);
        fuzz(Target { name: "a ticket", corpus, times, spare, meter }, |bytes| {
            let Ok(text) = str::from_utf8(bytes) else { return false };
            let Ok((reference, ticket)) = parse_ticket(text) else { return false };
            assert_eq!(ticket_text(&reference, ticket), text);
            true
        });
    }
}
