//! Replies of the sidecar as values of this crate.
//!
//! What the sidecar says is believed but proven: a reply that does not hold together is a broken protocol.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use prost::Message;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Reference, wire};

use crate::connection::Sidecar;
use crate::describe::Description;
use crate::error::{Error, Result};
use crate::moved::Moved;
use crate::reader::Frame;

/// The reply to a call of that kind, or why the call failed as a whole.
pub(crate) fn reply<R: Message + Default>(kind: SessionKind, frame: Frame) -> Result<R> {
    if frame.header.kind != u16::from(kind) {
        return Err(Error::protocol(format!(
            "a reply of kind {} came to a call of {kind:?}",
            frame.header.kind
        )));
    }
    if frame.header.is_failed() {
        return Err(failure(decode(kind, frame.body)?));
    }
    decode(kind, frame.body)
}

/// Reads a body. Bytes in it are not copied.
pub(crate) fn decode<R: Message + Default>(kind: SessionKind, body: impl Buf) -> Result<R> {
    R::decode(body).map_err(|error| Error::protocol(format!("the body of {kind:?} is malformed: {error}")))
}

/// The error that the sidecar reported.
pub(crate) fn failure(message: v1::Failure) -> Error {
    wire::failure(message).into()
}

/// Error of a reply that does not hold what it must.
pub(crate) fn missing(what: &str) -> Error {
    Error::protocol(format!("a reply came without {what}"))
}

/// As many results as there were items, or the protocol is broken.
pub(crate) fn counted<T>(results: Vec<T>, items: usize) -> Result<Vec<T>> {
    if results.len() == items {
        Ok(results)
    } else {
        Err(Error::protocol(format!("{} results came for {items} items", results.len())))
    }
}

/// The one result of a call with one item.
pub(crate) fn single<T>(results: Vec<T>) -> Result<T> {
    counted(results, 1)?.pop().ok_or_else(|| missing("a result"))
}

/// Sidecar that welcomed us.
pub(crate) fn sidecar(welcome: &v1::SessionWelcome) -> Result<Sidecar> {
    let wrong = |error: tensorlane_proto::identity::IdentityError| Error::protocol(error.to_string());
    Ok(Sidecar {
        exchange: welcome.exchange.parse().map_err(wrong)?,
        peer: welcome.peer.parse().map_err(wrong)?,
        incarnation: welcome.incarnation.parse().map_err(wrong)?,
        session: welcome.session,
        version: welcome.version,
        inline_bytes_max: welcome.inline_bytes_max,
    })
}

/// Reads a reference that the sidecar made.
pub(crate) fn reference(text: &str) -> Result<Reference> {
    text.parse().map_err(|error| Error::protocol(format!("the sidecar's reference {text:?}: {error}")))
}

/// Way in which bytes came.
pub(crate) fn moved(encoded: &Bytes) -> Result<Arc<Moved>> {
    Ok(Arc::new(part::<v1::Moved>("how bytes came", encoded)?.into()))
}

/// Proves a descriptor of the sidecar's that is not decoded yet.
pub(crate) fn described_by(encoded: &Bytes) -> Result<tensorlane_proto::Descriptor> {
    proven(part("a descriptor", encoded)?)
}

/// Reads a part of a reply that is not decoded yet.
fn part<M: Message + Default>(what: &str, encoded: &Bytes) -> Result<M> {
    M::decode(&encoded[..])
        .map_err(|error| Error::protocol(format!("{what} of a reply is malformed: {error}")))
}

/// Description of a tensor.
pub(crate) fn description(message: v1::Description) -> Result<Description> {
    let descriptor = message.descriptor.ok_or_else(|| missing("a descriptor"))?;
    Ok(Description {
        reference: reference(&message.reference)?,
        descriptor: proven(descriptor)?,
        sealed: message.sealed,
        names: message.names,
        leases: message.leases,
        tickets: message.tickets,
        crc32c: message.crc32c,
        here: message.here,
    })
}

/// The result of one Describe or Lookup item.
pub(crate) fn described(result: v1::DescribeResult) -> Result<Description> {
    match result.outcome {
        Some(v1::describe_result::Outcome::Description(found)) => description(found),
        Some(v1::describe_result::Outcome::Failure(why)) => Err(failure(why)),
        None => Err(missing("a description")),
    }
}

/// A result that is empty where all went well.
pub(crate) fn done(result: v1::DoneResult) -> Result<()> {
    result.failure.map_or(Ok(()), |why| Err(failure(why)))
}

/// Proves a descriptor of the sidecar's.
pub(crate) fn proven(message: v1::Descriptor) -> Result<tensorlane_proto::Descriptor> {
    wire::descriptor(message)
        .map_err(|why| Error::protocol(format!("the sidecar sent a descriptor that is none: {why}")))
}
