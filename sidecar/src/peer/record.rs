//! The record layer of TLS 1.3 after the handshake, as two halves that share nothing but the key schedule.
//!
//! rustls makes the handshake and the keys; here its own encrypters and decrypters are driven directly. That buys
//! three things over its buffered connection: reader and writer need no common lock, a record is opened in place in
//! the buffer that it was received into, and a record is sealed straight from the memory of the tensor. What is left
//! to do here is what a record is (a 5-byte header and a length) and when keys change.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::kernel::KernelConnection;
use rustls::{
    ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite, Tls13CipherSuite,
};
use thiserror::Error;

/// Most plaintext in one record, by RFC 8446.
pub(super) const RECORD_PLAIN_MAX: usize = 1 << 14;
/// Type, version and length before each record.
pub(super) const RECORD_HEADER: usize = 5;
/// Most bytes after the header of one record: plaintext, its type, padding and tag, by RFC 8446.
const RECORD_BODY_MAX: usize = RECORD_PLAIN_MAX + 256;
/// Most bytes of one record on the wire.
pub(super) const RECORD_MAX: usize = RECORD_HEADER + RECORD_BODY_MAX;
/// Records under one key before it is replaced: the limit of AES-GCM in rustls less a margin. 256 GiB of tensors.
const REKEY_AFTER: u64 = (1 << 24) - 1024;
/// Keys the other side may change without any byte of data between; more is an attempt to keep us busy.
const KEY_UPDATES_MAX: u32 = 32;

/// Handshake messages that may come after the handshake; every other one ends the connection.
const KEY_UPDATE: u8 = 24;
const ALERT_CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// Reason for which the record layer cannot go on.
#[derive(Debug, Error)]
pub(super) enum RecordError {
    /// Longer than any record may be.
    #[error("a record of {0} bytes is longer than TLS allows")]
    TooLong(usize),
    /// Not encrypted, or a message that may not come after the handshake.
    #[error("a record of type {0} may not come here")]
    Unexpected(u8),
    /// Keys changed over and over.
    #[error("the keys were changed {KEY_UPDATES_MAX} times without data between")]
    TooManyKeyUpdates,
    /// The other side gave up and said why.
    #[error("the peer sent the TLS alert {0}")]
    Alert(u8),
    /// A record was altered, or the keys differ.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// Makes the next traffic keys. One behind a lock for both halves; asked once in 256 GiB.
pub(super) trait Rekey: Send {
    /// The next keys of what we send.
    fn next_tx(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error>;
    /// The next keys of what we receive.
    fn next_rx(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error>;
}

impl<D: Send> Rekey for KernelConnection<D> {
    fn next_tx(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error> {
        self.update_tx_secret().map(|(_, secrets)| secrets)
    }

    fn next_rx(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error> {
        self.update_rx_secret().map(|(_, secrets)| secrets)
    }
}

type Keys = Arc<Mutex<Box<dyn Rekey>>>;

fn encrypter(
    suite: &Tls13CipherSuite,
    secrets: ConnectionTrafficSecrets,
) -> Result<Box<dyn MessageEncrypter>, rustls::Error> {
    let (key, iv) = key_and_iv(secrets)?;
    Ok(suite.aead_alg.encrypter(key, iv))
}

fn decrypter(
    suite: &Tls13CipherSuite,
    secrets: ConnectionTrafficSecrets,
) -> Result<Box<dyn MessageDecrypter>, rustls::Error> {
    let (key, iv) = key_and_iv(secrets)?;
    Ok(suite.aead_alg.decrypter(key, iv))
}

fn key_and_iv(
    secrets: ConnectionTrafficSecrets,
) -> Result<(rustls::crypto::cipher::AeadKey, rustls::crypto::cipher::Iv), rustls::Error> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
        _ => Err(rustls::Error::General("a cipher that this record layer does not know".into())),
    }
}

/// The two halves from what the handshake left.
pub(super) fn split(
    suite: SupportedCipherSuite,
    secrets: rustls::ExtractedSecrets,
    keys: Box<dyn Rekey>,
) -> Result<(Sealer, Opener), rustls::Error> {
    let suite = suite.tls13().ok_or_else(|| rustls::Error::General("not a TLS 1.3 cipher".into()))?;
    let keys: Keys = Arc::new(Mutex::new(keys));
    let (tx_sequence, tx) = secrets.tx;
    let (rx_sequence, rx) = secrets.rx;
    let sealer = Sealer {
        suite,
        encrypter: encrypter(suite, tx)?,
        sequence: tx_sequence,
        rekey_after: REKEY_AFTER,
        keys: Arc::clone(&keys),
    };
    let opener = Opener {
        suite,
        decrypter: decrypter(suite, rx)?,
        sequence: rx_sequence,
        keys,
        updates: 0,
        wants_update: false,
    };
    Ok((sealer, opener))
}

/// The sending half: plaintext in, whole records out, in the order of the calls.
pub(super) struct Sealer {
    suite: &'static Tls13CipherSuite,
    encrypter: Box<dyn MessageEncrypter>,
    sequence: u64,
    rekey_after: u64,
    keys: Keys,
}

impl Sealer {
    /// Seals one record of at most [`RECORD_PLAIN_MAX`] bytes, gathered from `parts`.
    pub(super) fn seal(&mut self, parts: &[&[u8]], out: &mut VecDeque<Vec<u8>>) -> Result<(), rustls::Error> {
        if self.sequence >= self.rekey_after {
            self.update_keys(out)?;
        }
        self.seal_as(ContentType::ApplicationData, OutboundChunks::new(parts), out)
    }

    /// Seals a whole buffer as as many records as it takes.
    pub(super) fn seal_all(
        &mut self,
        bytes: &[u8],
        out: &mut VecDeque<Vec<u8>>,
    ) -> Result<(), rustls::Error> {
        bytes.chunks(RECORD_PLAIN_MAX).try_for_each(|piece| self.seal(&[piece], out))
    }

    /// Announces new keys and takes them.
    pub(super) fn update_keys(&mut self, out: &mut VecDeque<Vec<u8>>) -> Result<(), rustls::Error> {
        // RFC 8446, 4.6.3: type, 24 bits of length, update_not_requested.
        self.seal_as(ContentType::Handshake, OutboundChunks::Single(&[KEY_UPDATE, 0, 0, 1, 0]), out)?;
        self.encrypter = encrypter(self.suite, self.keys.lock().next_tx()?)?;
        self.sequence = 0;
        Ok(())
    }

    /// The alert that ends a stream in order.
    pub(super) fn close_notify(&mut self, out: &mut VecDeque<Vec<u8>>) -> Result<(), rustls::Error> {
        self.seal_as(ContentType::Alert, OutboundChunks::Single(&ALERT_CLOSE_NOTIFY), out)
    }

    fn seal_as(
        &mut self,
        typ: ContentType,
        payload: OutboundChunks<'_>,
        out: &mut VecDeque<Vec<u8>>,
    ) -> Result<(), rustls::Error> {
        let plain = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_3, payload };
        let record = self.encrypter.encrypt(plain, self.sequence)?;
        self.sequence += 1;
        out.push_back(record.encode());
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn rekey_every(&mut self, records: u64) {
        self.rekey_after = records;
    }
}

/// Content of one record.
pub(super) enum Opened<'a> {
    /// Bytes of the stream.
    Data(&'a [u8]),
    /// New keys; nothing for the stream.
    Nothing,
    /// The other side ended its stream in order.
    Closed,
}

/// The receiving half: whole records in, plaintext out, in place.
pub(super) struct Opener {
    suite: &'static Tls13CipherSuite,
    decrypter: Box<dyn MessageDecrypter>,
    sequence: u64,
    keys: Keys,
    updates: u32,
    wants_update: bool,
}

impl Opener {
    /// The length of the record at the front of `bytes`, header included; `None` while its end has not come yet.
    pub(super) fn whole(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
        let [typ, _, _, high, low, ..] = *bytes else { return Ok(None) };
        if typ != u8::from(ContentType::ApplicationData) {
            // An alert that is not encrypted: the other side refused the handshake after we thought it was done.
            return match (ContentType::from(typ), bytes.get(RECORD_HEADER + 1)) {
                (ContentType::Alert, Some(&alert)) => Err(RecordError::Alert(alert)),
                _ => Err(RecordError::Unexpected(typ)),
            };
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > RECORD_BODY_MAX {
            return Err(RecordError::TooLong(length));
        }
        let whole = RECORD_HEADER + length;
        Ok((bytes.len() >= whole).then_some(whole))
    }

    /// Opens one whole record (header included) in place.
    pub(super) fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<Opened<'a>, RecordError> {
        let body = &mut record[RECORD_HEADER..];
        let message = InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, body);
        let plain = self.decrypter.decrypt(message, self.sequence)?;
        self.sequence += 1;
        match plain.typ {
            ContentType::ApplicationData => {
                self.updates = 0;
                Ok(Opened::Data(plain.payload))
            }
            ContentType::Handshake => self.handshake(plain.payload),
            ContentType::Alert => match plain.payload {
                [_, 0] => Ok(Opened::Closed),
                [_, alert] => Err(RecordError::Alert(*alert)),
                _ => Err(RecordError::Unexpected(ContentType::Alert.into())),
            },
            other => Err(RecordError::Unexpected(other.into())),
        }
    }

    fn handshake(&mut self, message: &[u8]) -> Result<Opened<'static>, RecordError> {
        // Alone in its record: what follows is under the new keys. Tickets are off on both sides.
        let &[KEY_UPDATE, 0, 0, 1, requested @ (0 | 1)] = message else {
            return Err(RecordError::Unexpected(ContentType::Handshake.into()));
        };
        self.updates += 1;
        if self.updates > KEY_UPDATES_MAX {
            return Err(RecordError::TooManyKeyUpdates);
        }
        self.decrypter = decrypter(self.suite, self.keys.lock().next_rx()?)?;
        self.sequence = 0;
        self.wants_update |= requested == 1;
        Ok(Opened::Nothing)
    }

    /// Returns whether the other side asked for new keys of ours since this was last asked.
    pub(super) fn take_update_request(&mut self) -> bool {
        std::mem::take(&mut self.wants_update)
    }
}
