//! Name, Unname, Ticket: what keeps a tensor beside leases.

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{NameSpec, TensorId, TensorName};

use super::keep::ticket_text;
use super::target::Meant;
use super::{Caller, Exchange, done_result};
use crate::store::Own;

/// A tensor of this peer that a request means.
enum Owned {
    Id(TensorId),
    Named(TensorName),
}

// === impl Owned ===

impl Owned {
    fn own(&self) -> Own<'_> {
        match self {
            Self::Id(id) => Own::Id(*id),
            Self::Named(name) => Own::Named(name),
        }
    }
}

// === impl Exchange ===

impl Exchange {
    /// Gives names to tensors of this peer; where they are meant together, all in one step or none. Names end in that step, too.
    pub fn name(&self, caller: &Caller, request: &v1::NameRequest) -> Result<v1::NameResponse, Failure> {
        if request.together {
            self.name_together(caller, &request.items)?;
            return Ok(v1::NameResponse { results: vec![done_result(&Ok(())); request.items.len()] });
        }
        let results = request.items.iter().map(|item| done_result(&self.name_one(caller, item))).collect();
        Ok(v1::NameResponse { results })
    }

    fn name_together(&self, caller: &Caller, items: &[v1::NameItem]) -> Result<(), Failure> {
        let meant = |item: &v1::NameItem| {
            let spec = NameSpec { name: tensor_name(&item.name)?, replaces: self.replaced(&item.replaces)? };
            let ends = item.target.is_none() && spec.replaces.is_some();
            let owned = if ends { None } else { Some(self.owned(item.target.as_ref())?) };
            Ok((owned, spec))
        };
        let about = |item: &v1::NameItem| {
            meant(item).map_err(|failure: Failure| match failure.detail("name") {
                Some(_) => failure,
                None => failure.with("name", &item.name),
            })
        };
        let items = items.iter().map(about).collect::<Result<Vec<_>, Failure>>()?;
        let items: Vec<_> =
            items.iter().map(|(owned, spec)| (owned.as_ref().map(Owned::own), spec.clone())).collect();
        self.store.name_together(caller.holder, &items)
    }

    fn name_one(&self, caller: &Caller, item: &v1::NameItem) -> Result<(), Failure> {
        let target = self.owned(item.target.as_ref())?;
        let name = tensor_name(&item.name)?;
        self.store.name(caller.holder, target.own(), &name, self.replaced(&item.replaces)?)
    }

    /// Takes names away.
    pub fn unname(&self, request: &v1::UnnameRequest) -> v1::UnnameResponse {
        let unname = |text: &String| tensor_name(text).and_then(|name| self.store.unname(name));
        let results = request.names.iter().map(|text| done_result(&unname(text))).collect();
        v1::UnnameResponse { results }
    }

    /// Makes tickets.
    pub fn ticket(&self, caller: &Caller, request: &v1::TicketRequest) -> v1::TicketResponse {
        use v1::ticket_result::Outcome;
        let result = |item: &v1::TicketItem| match self.ticket_one(caller, item) {
            Ok(ticket) => v1::TicketResult { outcome: Some(Outcome::Ticket(ticket)) },
            Err(failure) => v1::TicketResult { outcome: Some(Outcome::Failure((&failure).into())) },
        };
        v1::TicketResponse { results: request.items.iter().map(result).collect() }
    }

    fn ticket_one(&self, caller: &Caller, item: &v1::TicketItem) -> Result<String, Failure> {
        let target = self.owned(item.target.as_ref())?;
        let spec = self.ticket_spec(item.ttl_ms, item.uses);
        let tensor = self.store.issue_ticket(caller.holder, target.own(), spec)?;
        Ok(ticket_text(&tensor.reference, spec.id))
    }

    /// A target that must be a tensor of this peer.
    fn owned(&self, target: Option<&v1::Target>) -> Result<Owned, Failure> {
        match self.meant(target.cloned().unwrap_or_default())? {
            Meant::Here(id, _) => Ok(Owned::Id(id)),
            Meant::There(reference) => self.own(&reference).map(Owned::Id),
            Meant::Named(peer, name) if peer.as_ref().is_none_or(|p| *p == self.me().peer) => {
                Ok(Owned::Named(name))
            }
            Meant::Named(_, name) => Err(Failure::new(
                Reason::NotOwned,
                format!("{name} belongs to another peer; names and tickets are given where the tensor is"),
            )),
        }
    }
}

pub(super) fn tensor_name(text: &str) -> Result<TensorName, Failure> {
    TensorName::new(text).map_err(|e| Failure::new(Reason::InvalidArgument, e.to_string()))
}

#[cfg(test)]
mod tests;
