//! Questions that move nothing: describe, list, status, peers.

use std::vec;

use tensorlane_proto::Reference;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;

use crate::client::Client;
use crate::describe::{Description, Listed};
use crate::error::Result;
use crate::late::Late;
use crate::target::Target;
use crate::tensor::Tensor;
use crate::wire;

impl Client {
    /// Description of one tensor.
    ///
    /// # Errors
    /// The sidecar's refusal (NOT_FOUND, OWNER_LOST, ...), or what ended the call.
    pub fn describe(&self, target: impl Into<Target>) -> Result<Description> {
        wire::single(self.describe_many(&[target.into()])?)?
    }

    /// The reference of a leased tensor. None for a part of one, and for what another connection leases.
    ///
    /// # Errors
    /// What ended the call.
    pub fn reference_of(&self, tensor: &Tensor) -> Result<Option<Reference>> {
        let lease = tensor.lease();
        if !lease.is_of(&self.connection(&self.wait(None))?) {
            return Ok(None);
        }
        let known = self.describe(Target::Id(lease.id()))?;
        let is_whole = known.descriptor.layout == tensor.descriptor().layout;
        Ok(is_whole.then_some(known.reference))
    }

    /// Descriptions of many tensors, each with a result of its own, in order.
    ///
    /// # Errors
    /// What ended the call.
    pub fn describe_many(&self, targets: &[Target]) -> Result<Vec<Result<Description>>> {
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        let request = v1::DescribeRequest {
            targets: targets.iter().map(|target| target.to_message(connection.sidecar())).collect(),
            deadline_ms: wait.deadline_ms(),
        };
        let reply: v1::DescribeResponse =
            connection.call(SessionKind::Describe, &request, &wait, Late::Nothing)?;
        Ok(wire::counted(reply.results, targets.len())?.into_iter().map(wire::described).collect())
    }

    /// The names of this peer that begin with `prefix`, in order. Pages are asked for as they are needed.
    pub fn list(&self, prefix: &str) -> Names {
        Names {
            client: self.clone(),
            request: Some(v1::ListRequest {
                prefix: prefix.to_owned(),
                page_size: 0,
                page_token: String::new(),
                lease: false,
            }),
            page: Vec::new().into_iter(),
        }
    }

    /// The state of the sidecar: arena, counts, uptime.
    ///
    /// # Errors
    /// What ended the call.
    pub fn status(&self) -> Result<v1::StatusResponse> {
        self.call(SessionKind::Status, &v1::StatusRequest {})
    }

    /// The peers as this sidecar sees them, itself first.
    ///
    /// # Errors
    /// What ended the call.
    pub fn peers(&self) -> Result<Vec<v1::PeerStatus>> {
        let reply: v1::PeersResponse = self.call(SessionKind::Peers, &v1::PeersRequest {})?;
        Ok(reply.peers)
    }
}

/// Names, page by page. Ends after the first error.
#[derive(Debug)]
pub struct Names {
    client: Client,
    /// The request for the next page; none at the end.
    request: Option<v1::ListRequest>,
    page: vec::IntoIter<v1::Listed>,
}

impl Names {
    fn next_page(&mut self, mut request: v1::ListRequest) -> Result<()> {
        let reply: v1::ListResponse = self.client.call(SessionKind::List, &request)?;
        self.page = reply.entries.into_iter();
        if !reply.next_page_token.is_empty() {
            request.page_token = reply.next_page_token;
            self.request = Some(request);
        }
        Ok(())
    }
}

impl Iterator for Names {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.next() {
                let description = entry.description.ok_or_else(|| wire::missing("a description"));
                return Some(
                    description
                        .and_then(wire::description)
                        .map(|description| Listed { name: entry.name, description }),
                );
            }
            let request = self.request.take()?;
            if let Err(error) = self.next_page(request) {
                return Some(Err(error));
            }
        }
    }
}
