//! Names: giving, taking away, finding.

use std::time::Duration;

use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{PeerName, Reference};

use crate::client::Client;
use crate::describe::Description;
use crate::error::Result;
use crate::late::Late;
use crate::target::Target;
use crate::tensor::Lease;
use crate::wire;

/// A name to give or to take away, beside others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming {
    /// A tensor of this peer; none takes the name away from the tensor that has it.
    pub target: Option<Target>,
    /// The name.
    pub name: String,
    /// The tensor that must have the name at present; none if the name must be free.
    pub replaces: Option<Reference>,
}

impl Client {
    /// Gives a tensor of this peer a name. With `replaces`, only if the name stands for that tensor at present; without,
    /// only if it is free.
    ///
    /// # Errors
    /// The sidecar's refusal (NAME_TAKEN, ...), or what ended the call.
    pub fn name(&self, target: impl Into<Target>, name: &str, replaces: Option<&Reference>) -> Result<()> {
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        let item = v1::NameItem {
            target: Some(target.into().to_message(connection.sidecar())),
            name: name.to_owned(),
            replaces: replaces.map(Reference::encode).unwrap_or_default(),
        };
        let request = v1::NameRequest { items: vec![item], together: false };
        let reply: v1::NameResponse = connection.call(SessionKind::Name, &request, &wait, Late::Nothing)?;
        wire::done(wire::single(reply.results)?)
    }

    /// Gives names to tensors of this peer, and takes names away, in one step: all of them, or none. Whoever looks sees all names
    /// before, or all after it. At most 65,536 names in 16 MiB with what they replace.
    ///
    /// # Errors
    /// The sidecar's refusal of any of them (NAME_TAKEN, NAME_CHANGED, ...): then no name has changed. Or what ended the call.
    pub fn name_together(&self, items: &[Naming]) -> Result<()> {
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        let item = |naming: &Naming| v1::NameItem {
            target: naming.target.as_ref().map(|target| target.to_message(connection.sidecar())),
            name: naming.name.clone(),
            replaces: naming.replaces.as_ref().map(Reference::encode).unwrap_or_default(),
        };
        let request = v1::NameRequest { items: items.iter().map(item).collect(), together: true };
        let reply: v1::NameResponse = connection.call(SessionKind::Name, &request, &wait, Late::Nothing)?;
        wire::counted(reply.results, items.len())?.into_iter().try_for_each(wire::done)
    }

    /// Leases the tensors of all names of this peer that begin with `prefix` in one step: what all of them stand for at one moment.
    /// The names in order. At most 65,536 names in 16 MiB.
    ///
    /// # Errors
    /// The sidecar's refusal (TOO_LARGE, LIMIT_EXCEEDED): then nothing is leased. Or what ended the call.
    pub fn lease_names(&self, prefix: &str) -> Result<Vec<(String, Lease)>> {
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        let request =
            v1::ListRequest { prefix: prefix.to_owned(), lease: true, ..v1::ListRequest::default() };
        let reply: v1::ListResponse = connection.call(SessionKind::List, &request, &wait, Late::Named)?;
        let leased = |entry: v1::Listed| {
            let id = entry.lease.ok_or_else(|| wire::missing("a lease"))?;
            Ok((entry.name, Lease::new(&connection, id)))
        };
        reply.entries.into_iter().map(leased).collect()
    }

    /// Takes names of this peer away, each with a result of its own. A tensor that nothing else keeps is freed.
    ///
    /// # Errors
    /// What ended the call.
    pub fn unname<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<Result<()>>> {
        let request =
            v1::UnnameRequest { names: names.iter().map(|name| name.as_ref().to_owned()).collect() };
        let reply: v1::UnnameResponse = self.call(SessionKind::Unname, &request)?;
        Ok(wire::counted(reply.results, names.len())?.into_iter().map(wire::done).collect())
    }

    /// Descriptions of what names stand for, each with a result of its own. Without `peer` this peer and all connected
    /// ones are asked. Names that do not exist yet are waited for. The client's deadline is on top of the wait.
    ///
    /// # Errors
    /// What ended the call.
    pub fn lookup<S: AsRef<str>>(
        &self,
        names: &[S],
        peer: Option<&PeerName>,
        wait: Duration,
    ) -> Result<Vec<Result<Description>>> {
        let patience = self.wait(Some(wait.saturating_add(self.deadline())));
        let connection = self.connection(&patience)?;
        let request = v1::LookupRequest {
            names: names.iter().map(|name| name.as_ref().to_owned()).collect(),
            peer: peer.map(PeerName::to_string).unwrap_or_default(),
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            deadline_ms: patience.deadline_ms(),
        };
        let reply: v1::LookupResponse =
            connection.call(SessionKind::Lookup, &request, &patience, Late::Nothing)?;
        Ok(wire::counted(reply.results, names.len())?.into_iter().map(wire::described).collect())
    }
}
