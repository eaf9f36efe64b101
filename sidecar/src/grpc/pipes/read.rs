//! Messages of the pipe go to the client.
//!
//! Each is brought here whole, and goes out piece by piece as the client takes them; its tensors are leased until it has gone out. The
//! client says when it has read it. One that its writer has taken back before it was brought is nothing to the client.

use bytes::{Bytes, BytesMut};
use prost::DecodeError;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tensorlane_proto::decoded;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::pipe_response::Event;

use super::super::call::outcome;
use super::super::get::{Packed, packed};
use super::super::lasting::Begun;
use super::Answers;
use super::progress::Progress;
use crate::cancel::CancelOnDrop;
use crate::exchange::{Borrowed, HostedPipe};
use crate::store::Direction;

/// Most bytes of a message in one answer.
const PIECE_MAX: usize = 256 << 10;
/// Most payloads and tensors of a message, together. Each costs some 250 bytes once it is decoded.
const PARTS_MAX: usize = 2_048;

/// Reader of a pipe, on its stream.
pub(super) struct Reader<'a> {
    begun: &'a Begun,
    answers: &'a Answers,
    pipe: &'a HostedPipe,
    number: u64,
    progress: &'a Progress,
}

/// A message whose bytes are here.
struct Brought {
    metadata: Bytes,
    parts: Vec<Part>,
    borrowed: Borrowed,
}

/// Part of it.
struct Part {
    descriptor: Option<v1::Descriptor>,
    metadata: Bytes,
    bytes: u64,
    body: Body,
}

enum Body {
    Inline(Bytes),
    Packed(Packed),
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// A reader of a pipe by its number.
    pub(super) fn new(
        begun: &'a Begun,
        answers: &'a Answers,
        (pipe, number): (&'a HostedPipe, u64),
        progress: &'a Progress,
    ) -> Self {
        Self { begun, answers, pipe, number, progress }
    }

    /// Reads until the other end has finished and everything was given.
    ///
    /// # Errors
    /// PIPE_CLOSED and PIPE_LOST where it is no more and has not finished.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let mut from = 1;
        let mut failed: Option<(u64, Failure)> = None;
        loop {
            self.progress.until_room().await;
            let v1::PipeReadResponse { sequence, message } = self.next(from).await?;
            if sequence == 0 {
                self.answers.say(Event::End(v1::PipeEnd {})).await;
                self.progress.end();
                return Ok(());
            }
            // Where it is still there it was not taken back: then its bytes cannot be had.
            if let Some((_, failure)) = failed.take_if(|(before, _)| *before == sequence) {
                let failure = Some((&failure).into());
                self.answers.say(Event::Missed(v1::PipeMissed { message: sequence, failure })).await;
                from = sequence.saturating_add(1);
                continue;
            }
            match self.bring(sequence, message).await {
                Ok(brought) => {
                    self.send(sequence, brought).await?;
                    from = sequence.saturating_add(1);
                }
                Err(failure) => {
                    failed = Some((sequence, failure));
                    from = sequence;
                }
            }
        }
    }

    /// Descriptor of the next message from a sequence on, once there is one.
    async fn next(&self, from: u64) -> Result<v1::PipeReadResponse, Failure> {
        let request = v1::PipeReadRequest { pipe: self.number, from, deadline_ms: u64::MAX };
        loop {
            let call = CancelOnDrop::default();
            match outcome(|done| self.pipe.read(&call, &request, done), drop).await {
                Err(failure) if failure.reason == Reason::DeadlineExceeded => {}
                outcome => return outcome,
            }
        }
    }

    /// Leases the tensors of a message, which may come from another peer.
    async fn bring(&self, sequence: u64, message: Bytes) -> Result<Brought, Failure> {
        // Before it is decoded: an empty part is two bytes there and some hundreds here.
        let count = fields(&message).map_err(|error| unreadable(sequence, &error.to_string()))?;
        if count > PARTS_MAX + 1 {
            return Err(unreadable(sequence, &format!("it has {count} fields")));
        }
        let v1::PipeMessage { metadata, payloads, tensors } =
            decoded::decode(message).map_err(|error| unreadable(sequence, &error.to_string()))?;
        let parts: Vec<(bool, v1::PipePart)> = payloads
            .into_iter()
            .map(|part| (false, part))
            .chain(tensors.into_iter().map(|part| (true, part)))
            .collect();
        if parts.len() > PARTS_MAX {
            return Err(unreadable(sequence, &format!("it has {} parts", parts.len())));
        }
        let outside = parts.iter().filter(|(is_tensor, part)| *is_tensor || !part.reference.is_empty());
        let items: Vec<v1::GetItem> = outside.map(|(_, part)| whole(part)).collect();
        // A message may take as long as any call: what is not brought in time is lost.
        let request = v1::GetRequest { items, deadline_ms: u64::MAX, ..Default::default() };
        let call = CancelOnDrop::default();
        let caller = self.pipe.caller(call.cancel());
        let borrowed = outcome(|done| self.begun.exchange.borrow(caller, request, done), drop).await?;
        let mut taken = borrowed.taken.iter();
        let mut brought = Vec::with_capacity(parts.len());
        for (is_tensor, part) in parts {
            let v1::PipePart { inline, reference, metadata, .. } = part;
            if !is_tensor && reference.is_empty() {
                let bytes = inline.len() as u64;
                brought.push(Part { descriptor: None, metadata, bytes, body: Body::Inline(inline) });
                continue;
            }
            let taken = taken.next().ok_or_else(|| unreadable(sequence, "a tensor is missing"))?;
            let taken = taken.as_ref().map_err(Clone::clone)?;
            let (descriptor, packed) = packed(taken)?;
            let bytes = descriptor.layout.bytes();
            let descriptor = is_tensor.then(|| (&descriptor).into());
            brought.push(Part { descriptor, metadata, bytes, body: Body::Packed(packed) });
        }
        Ok(Brought { metadata, parts: brought, borrowed })
    }

    /// Sends a message, which is the client's to take then.
    async fn send(&self, sequence: u64, brought: Brought) -> Result<(), Failure> {
        let Brought { metadata, mut parts, borrowed } = brought;
        let streams = self.begun.exchange.store().streams();
        let held = streams.enter(Direction::Get, std::sync::Arc::clone(&self.begun.program));
        held.keeps(borrowed.tensors());
        let all = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
        let here = all <= PIECE_MAX as u64;
        let mut told = Vec::with_capacity(parts.len());
        for part in &mut parts {
            let data = if here { part.rest()? } else { Bytes::new() };
            let (descriptor, metadata) = (part.descriptor.take(), part.metadata.clone());
            told.push(v1::PipeStreamPart { descriptor, bytes: part.bytes, data, metadata });
        }
        if here {
            // Before its client may say that it has it.
            self.progress.give(sequence);
        }
        let received = v1::PipeReceived { message: sequence, metadata, parts: told };
        self.answers.say(Event::Received(received)).await;
        if here {
            return Ok(());
        }
        let last = parts.iter().rposition(|part| part.bytes > 0);
        for (index, part) in parts.iter_mut().enumerate() {
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            let mut left = part.bytes;
            while left > 0 {
                let data = part.piece()?;
                left = left.saturating_sub(data.len() as u64);
                if left == 0 && last == Some(index) {
                    self.progress.give(sequence);
                }
                self.answers.say(Event::Chunk(v1::PipeChunk { part: number, data })).await;
                held.moved();
            }
        }
        Ok(())
    }
}

// === impl Part ===

impl Part {
    /// The next bytes, some at least.
    fn piece(&mut self) -> Result<Bytes, Failure> {
        match &mut self.body {
            Body::Inline(bytes) => Ok(bytes.split_to(bytes.len().min(PIECE_MAX))),
            Body::Packed(packed) => packed.next(PIECE_MAX).unwrap_or_else(|| Err(short())),
        }
    }

    /// All bytes.
    fn rest(&mut self) -> Result<Bytes, Failure> {
        let mut left = self.bytes;
        if left == 0 {
            return Ok(Bytes::new());
        }
        let first = self.piece()?;
        left -= first.len() as u64;
        if left == 0 {
            return Ok(first);
        }
        let mut all = BytesMut::from(&first[..]);
        while left > 0 {
            let piece = self.piece()?;
            left = left.saturating_sub(piece.len() as u64);
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }
}

/// Number of the fields of an encoded message, repeated ones counted each.
fn fields(mut message: &[u8]) -> Result<usize, DecodeError> {
    let mut count = 0;
    while !message.is_empty() {
        let (tag, wire_type) = decode_key(&mut message)?;
        skip_field(wire_type, tag, &mut message, DecodeContext::default())?;
        count += 1;
    }
    Ok(count)
}

/// All of a tensor.
fn whole(part: &v1::PipePart) -> v1::GetItem {
    let kind = Some(v1::target::Kind::Reference(part.reference.clone()));
    v1::GetItem { target: Some(v1::Target { kind, peer: String::new() }), selection: None }
}

/// Failure of a message that cannot be read. Its writer is another process, which may write what it likes.
fn unreadable(sequence: u64, what: &str) -> Failure {
    let message = format!("message {sequence} cannot be read: {what}; its writer uses another release");
    Failure::new(Reason::MessageDamaged, message).with("sequence", sequence)
}

/// Failure of a tensor that has fewer bytes than its layout says.
fn short() -> Failure {
    Failure::new(Reason::Internal, "a tensor of a message has fewer bytes than its layout says")
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn fields_of_a_message_are_counted_before_it_is_decoded() {
        let part = v1::PipePart { inline: Bytes::from_static(b"abc"), bytes: 3, ..Default::default() };
        let message = v1::PipeMessage {
            metadata: Bytes::from_static(b"words"),
            payloads: vec![part.clone(), v1::PipePart::default()],
            tensors: vec![part],
        };
        assert_eq!(fields(&message.encode_to_vec()), Ok(4));
        assert_eq!(fields(&[0x12, 0].repeat(5_000)), Ok(5_000));
        assert_eq!(fields(&[]), Ok(0));
        assert!(fields(&[0x12, 7]).is_err() && fields(&[0x12]).is_err());
        assert!(size_of::<v1::PipePart>() <= 256);
    }
}
