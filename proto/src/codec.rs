//! Codec of the services: a request is weighed before it is decoded, by whoever serves.
//!
//! An element of two bytes becomes some hundred once it is decoded, and tonic decodes a message before any of our code sees it. A server
//! says within [`ROOM`] who has room for messages; clients, which trust their sidecar, say nothing and take answers as they come.

use std::sync::Arc;

use bytes::Buf;
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use crate::decoded::decoded_bytes;

/// Room for what the messages of one call become.
pub trait MessageRoom: Send + Sync {
    /// Takes room for a message: the bytes of its body, and what it becomes beside them ([`decoded_bytes`]). The one before it is over.
    ///
    /// # Errors
    /// The status with which the call ends, where there is no room.
    fn admit(&self, body: usize, decoded: usize) -> Result<(), Status>;
}

tokio::task_local! {
    /// Room of the call that begins within.
    pub static ROOM: Arc<dyn MessageRoom>;
}

/// Codec of one call.
#[derive(Debug)]
pub struct WeighedCodec<T, U>(ProstCodec<T, U>);

/// Decoder of the messages of one call.
pub struct WeighedDecoder<U> {
    prost: ProstDecoder<U>,
    room: Option<Arc<dyn MessageRoom>>,
}

impl<T, U> Default for WeighedCodec<T, U> {
    fn default() -> Self {
        Self(ProstCodec::default())
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> Codec for WeighedCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = WeighedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        WeighedDecoder { prost: self.0.decoder(), room: ROOM.try_with(Arc::clone).ok() }
    }
}

impl<U: Message + Default> Decoder for WeighedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if let Some(room) = &self.room {
            // All of the message: tonic keeps it in one piece.
            let body = message.chunk();
            let decoded = decoded_bytes::<U>(body);
            let decoded =
                decoded.ok_or_else(|| Status::internal("a body that is no message of this call"))?;
            room.admit(body.len(), decoded)?;
        }
        self.prost.decode(message)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.prost.buffer_settings()
    }
}
