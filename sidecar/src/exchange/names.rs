//! Name, Unname, Ticket: what keeps a tensor beside leases.

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{TensorId, TensorName};

use super::keep::ticket_text;
use super::target::Meant;
use super::{Caller, Exchange, done_result};

// === impl Exchange ===

impl Exchange {
    /// Gives names to tensors of this peer.
    pub fn name(&self, caller: &Caller, request: &v1::NameRequest) -> v1::NameResponse {
        let results = request.items.iter().map(|item| done_result(&self.name_one(caller, item))).collect();
        v1::NameResponse { results }
    }

    fn name_one(&self, caller: &Caller, item: &v1::NameItem) -> Result<(), Failure> {
        let id = self.owned(item.target.as_ref())?;
        let name = tensor_name(&item.name)?;
        self.store.name(caller.holder, id, &name, self.replaced(&item.replaces)?)
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
        let id = self.owned(item.target.as_ref())?;
        let tensor = self.store.sealed(caller.holder, id)?;
        let spec = self.ticket_spec(item.ttl_ms, item.uses);
        self.store.issue_ticket(id, spec)?;
        Ok(ticket_text(&tensor.reference, spec.id))
    }

    /// A target that must be a tensor of this peer.
    fn owned(&self, target: Option<&v1::Target>) -> Result<TensorId, Failure> {
        match self.meant(target.cloned().unwrap_or_default())? {
            Meant::Here(id, _) => Ok(id),
            Meant::There(reference) => self.own(&reference),
            Meant::Named(peer, name) if peer.as_ref().is_none_or(|p| *p == self.me().peer) => {
                self.store.find(name.as_str()).ok_or_else(|| self.store.no_such_name(&name))
            }
            Meant::Named(_, name) => Err(Failure::new(
                Reason::NotOwned,
                format!("{name} belongs to another peer; names and tickets are given where the tensor is"),
            )),
        }
    }
}

fn tensor_name(text: &str) -> Result<TensorName, Failure> {
    TensorName::new(text).map_err(|e| Failure::new(Reason::InvalidArgument, e.to_string()))
}
