//! Put: storing bytes. Small tensors travel inside the request, large ones are reserved, written in place and sealed.

use std::time::Duration;

use bytes::Bytes;
use tensorlane_proto::checksum;
use tensorlane_proto::frame::{INLINE_BYTES_MAX, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::RetryId;
use tensorlane_proto::{Descriptor, Reference};

use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::tensor::Lease;
use crate::wire;

/// Bytes of tensors and their metadata in one request at most: half of what a frame may hold, and enough that the round trip is small
/// beside the copy.
const REQUEST_BYTES_MAX: usize = 8 << 20;
/// Items of one request at most.
const ITEMS_MAX: usize = 8_192;

/// Options of a put: how a tensor is stored and what keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// A name for it; at most 512 bytes.
    pub name: Option<String>,
    /// The reference that the name must stand for at present; without one the name must be free.
    pub replaces: Option<Reference>,
    /// A ticket that lives so long; none by default.
    pub ticket: Option<Duration>,
    /// Uses of the ticket; 0 means 1.
    pub ticket_uses: u32,
    /// Do not lease it for this session: its name or ticket must keep it.
    pub no_lease: bool,
    /// Compute a CRC-32C, which is verified by the sidecar and on every transfer.
    pub checksum: bool,
    /// Time to wait for room; the client's deadline by default.
    pub deadline: Option<Duration>,
    /// Names this put in case it is repeated; chosen at random by default.
    pub retry_id: Option<RetryId>,
}

impl PutOptions {
    /// Leased by the session, without a name.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..Self::default() }
    }

    pub(crate) fn keep(&self) -> v1::Keep {
        v1::Keep {
            name: self.name.clone().unwrap_or_default(),
            replaces: self.replaces.as_ref().map(Reference::encode).unwrap_or_default(),
            ticket_ms: self.ticket.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)),
            ticket_uses: self.ticket_uses,
            no_lease: self.no_lease,
        }
    }

    /// Things that a late reply holds for us alone: nothing if the caller may ask for it again by its retry id.
    pub(crate) fn late(&self) -> Late {
        if self.no_lease || self.retry_id.is_some() { Late::Nothing } else { Late::Stored }
    }
}

/// Item of [`Client::put_many`]: one tensor.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    /// Meaning of the bytes.
    pub descriptor: &'a Descriptor,
    /// The bytes: as many as the descriptor says.
    pub bytes: &'a [u8],
    /// Options of how it is stored.
    pub options: PutOptions,
}

/// A sealed tensor, as its writer gets to know it. Holds the session's lease; dropping it releases the tensor.
#[derive(Debug)]
#[must_use = "dropping it ends the session's lease on the tensor"]
pub struct Stored {
    reference: Reference,
    ticket: Option<String>,
    lease: Option<Lease>,
}

impl Stored {
    /// Names it from anywhere in the exchange.
    pub fn reference(&self) -> &Reference {
        &self.reference
    }

    /// The ticket that was asked for.
    pub fn ticket(&self) -> Option<&str> {
        self.ticket.as_deref()
    }

    /// The session's lease, unless it was not wanted.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The lease alone.
    pub fn into_lease(self) -> Option<Lease> {
        self.lease
    }
}

impl Client {
    /// Stores the bytes of a tensor.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where bytes and descriptor disagree, the sidecar's refusal (ARENA_FULL, NAME_TAKEN,
    /// ...), or what ended the call.
    pub fn put(&self, descriptor: &Descriptor, bytes: &[u8], options: &PutOptions) -> Result<Stored> {
        check(descriptor, bytes)?;
        if bytes.len() > INLINE_BYTES_MAX {
            return self.put_in_place(descriptor, bytes, options);
        }
        let item = self.item(descriptor, bytes, options);
        let mut results = self.put_request(vec![item], &[options])?;
        results.pop().ok_or_else(|| wire::missing("a result"))?
    }

    /// Stores many tensors, each with a result of its own, in order. Small ones share requests.
    pub fn put_many(&self, items: &[Item<'_>]) -> Vec<Result<Stored>> {
        let mut results: Vec<Option<Result<Stored>>> = items.iter().map(|_| None).collect();
        let mut batch = Batch::default();
        for (index, item) in items.iter().enumerate() {
            if let Err(error) = check(item.descriptor, item.bytes) {
                results[index] = Some(Err(error));
            } else if item.bytes.len() > INLINE_BYTES_MAX {
                results[index] = Some(self.put_in_place(item.descriptor, item.bytes, &item.options));
            } else {
                let bytes = item.bytes.len() + metadata_bytes(item.descriptor);
                if batch.bytes + bytes > REQUEST_BYTES_MAX || batch.indices.len() == ITEMS_MAX {
                    self.put_batch(std::mem::take(&mut batch), items, &mut results);
                }
                batch.bytes += bytes;
                batch.indices.push(index);
            }
        }
        self.put_batch(batch, items, &mut results);
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(wire::missing("a result")))).collect()
    }

    fn put_batch(&self, batch: Batch, items: &[Item<'_>], results: &mut [Option<Result<Stored>>]) {
        if batch.indices.is_empty() {
            return;
        }
        let options: Vec<&PutOptions> = batch.indices.iter().map(|&index| &items[index].options).collect();
        let of = |&index: &usize| {
            let item = &items[index];
            self.item(item.descriptor, item.bytes, &item.options)
        };
        match self.put_request(batch.indices.iter().map(of).collect(), &options) {
            Ok(stored) => {
                batch
                    .indices
                    .into_iter()
                    .zip(stored)
                    .for_each(|(index, result)| results[index] = Some(result));
            }
            Err(error) => {
                batch.indices.into_iter().for_each(|index| results[index] = Some(Err(error.clone())));
            }
        }
    }

    fn item(&self, descriptor: &Descriptor, bytes: &[u8], options: &PutOptions) -> v1::PutItem {
        let retry_id = options.retry_id.unwrap_or_else(|| self.retry_id());
        v1::PutItem {
            retry_id: Bytes::copy_from_slice(&retry_id.0),
            descriptor: Some(descriptor.into()),
            data: Bytes::copy_from_slice(bytes),
            keep: Some(options.keep()),
            crc32c: options.checksum.then(|| checksum::crc32c(bytes)),
        }
    }

    fn put_request(&self, items: Vec<v1::PutItem>, options: &[&PutOptions]) -> Result<Vec<Result<Stored>>> {
        let wait = self.wait(options.iter().filter_map(|options| options.deadline).max());
        let connection = self.connection(&wait)?;
        let late = options.iter().map(|options| options.late()).find(|late| *late == Late::Nothing);
        let request = v1::PutRequest { items, deadline_ms: wait.deadline_ms() };
        let reply: v1::PutResponse =
            connection.call(SessionKind::Put, &request, &wait, late.unwrap_or(Late::Stored))?;
        let results = wire::counted(reply.results, options.len())?;
        Ok(results
            .into_iter()
            .zip(options)
            .map(|(result, options)| stored(&connection, result, options))
            .collect())
    }

    fn put_in_place(&self, descriptor: &Descriptor, bytes: &[u8], options: &PutOptions) -> Result<Stored> {
        let mut reservation = self.reserve_within(descriptor, options.deadline)?;
        reservation.copy_from(0, bytes)?;
        let crc32c = options.checksum.then(|| checksum::crc32c(bytes));
        reservation.seal_as(options, crc32c)
    }
}

#[derive(Default)]
struct Batch {
    indices: Vec<usize>,
    bytes: usize,
}

/// Bytes that the user's words take in a request: up to 16 KiB an item, beside which the rest is little.
fn metadata_bytes(descriptor: &Descriptor) -> usize {
    descriptor.metadata.iter().map(|(key, value)| key.len() + value.len()).sum()
}

fn check(descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
    let (given, needed) = (bytes.len(), descriptor.layout.bytes());
    if given as u64 == needed {
        return Ok(());
    }
    Err(Error::invalid(format!("{given} bytes were given for {}, which has {needed}", descriptor.layout)))
}

/// Makes a guard of what the sidecar stored.
pub(crate) fn stored(
    connection: &std::sync::Arc<Connection>,
    result: v1::StoredResult,
    options: &PutOptions,
) -> Result<Stored> {
    match result.outcome {
        Some(v1::stored_result::Outcome::Stored(stored)) => {
            // First of all the guard: whatever goes wrong below, the lease is given back.
            let lease = (!options.no_lease).then(|| Lease::new(connection, stored.id));
            let ticket = (!stored.ticket.is_empty()).then_some(stored.ticket);
            Ok(Stored { reference: wire::reference(&stored.reference)?, ticket, lease })
        }
        Some(v1::stored_result::Outcome::Failure(why)) => Err(wire::failure(why)),
        None => Err(wire::missing("an outcome")),
    }
}
