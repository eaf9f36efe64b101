//! Tickets: references with a lease of their own, for the hand-over between processes.

use std::time::Duration;

use bytes::Bytes;
use tensorlane_proto::encoded;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::RetryId;

use super::acquire::adopt;
use crate::client::Client;
use crate::error::Result;
use crate::late::Late;
use crate::target::Target;
use crate::tensor::Tensor;
use crate::wire;

impl Client {
    /// Makes a ticket for a tensor of this peer. `ttl`: how long it lives, the sidecar's default (60 s) if none. `uses`:
    /// how often it can be redeemed; 0 means once.
    ///
    /// # Errors
    /// The sidecar's refusal, or what ended the call.
    pub fn ticket(&self, target: impl Into<Target>, ttl: Option<Duration>, uses: u32) -> Result<String> {
        wire::single(self.ticket_many(&[target.into()], ttl, uses)?)?
    }

    /// Makes a ticket for each of these tensors of this peer, in one request: at most
    /// [`SESSION_ITEMS_MAX`](tensorlane_proto::frame::SESSION_ITEMS_MAX).
    ///
    /// # Errors
    /// What ended the call. Each target has a result of its own, in order.
    pub fn ticket_many(
        &self,
        targets: &[Target],
        ttl: Option<Duration>,
        uses: u32,
    ) -> Result<Vec<Result<String>>> {
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        let item = |target: &Target| v1::TicketItem {
            target: Some(target.to_message(connection.sidecar())),
            ttl_ms: ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)),
            uses,
        };
        let request = v1::TicketRequest { items: targets.iter().map(item).collect() };
        let reply: v1::TicketResponse =
            connection.call(SessionKind::Ticket, &request, &wait, Late::Nothing)?;
        let one = |result: v1::TicketResult| match result.outcome {
            Some(v1::ticket_result::Outcome::Ticket(ticket)) => Ok(ticket),
            Some(v1::ticket_result::Outcome::Failure(why)) => Err(wire::failure(why)),
            None => Err(wire::missing("an outcome")),
        };
        Ok(wire::counted(reply.results, targets.len())?.into_iter().map(one).collect())
    }

    /// Turns a ticket into a leased and mapped tensor. With a `retry_id` the call may be repeated without using the
    /// ticket twice.
    ///
    /// # Errors
    /// The sidecar's refusal (the ticket is used up or too old, ...), or what ended the call.
    pub fn redeem(&self, ticket: &str, retry_id: Option<RetryId>) -> Result<Tensor> {
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        let id = retry_id.unwrap_or_else(|| self.retry_id());
        let item = v1::RedeemItem { retry_id: Bytes::copy_from_slice(&id.0), ticket: ticket.to_owned() };
        let request = v1::RedeemRequest { items: vec![item], deadline_ms: wait.deadline_ms() };
        let late = if retry_id.is_some() { Late::Nothing } else { Late::Acquired };
        let reply: encoded::AcquireResponse = connection.call(SessionKind::Redeem, &request, &wait, late)?;
        wire::single(adopt(&connection, wire::counted(reply.results, 1))?)?
    }
}
