//! Channels over gRPC: a stream is the writer or the reader, and this process is it on the ring.
//!
//! - [`write`]: messages of a stream go into the ring.
//! - [`read`]: messages of the ring go into a stream.
//! - [`message`]: a message that comes in, part after part. Pure.
//!
//! Whatever ends a stream drops its conversation, and with it the writer or the reader.

mod message;
mod read;
mod write;

pub(super) use self::read::{Messages, read};
pub(super) use self::write::{Written, write};
