//! The TLS handshake of one connection: rustls drives, this file carries its bytes over a blocking socket.
//!
//! Nothing is believed here beyond what TLS proves: that the other side has the key of the certificate it showed.
//! `hello` says whose key that is. Memory before that: one buffer of [`INCOMING`] bytes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ExtractedSecrets, ServerConfig};
use thiserror::Error;

use crate::identity::tls;
use crate::metrics::label::Label;

use super::exporter::{Exported, Keeper};
use super::record::{self, Opener, RECORD_MAX, Rekey, Sealer};
use super::seats::{self, NoSeat};

/// Room for what comes during the handshake: one record of the largest size, and a little of the next.
const INCOMING: usize = RECORD_MAX + 4096;
/// Most plaintext that may arrive together with the end of the handshake (the other side's Hello).
const EARLY_PLAIN_MAX: usize = 64 << 10;

/// Reason for which there is no secure connection.
#[derive(Debug, Error)]
pub(super) enum HandshakeError {
    /// The socket failed.
    #[error("the TLS handshake: {0}")]
    Socket(io::Error),
    /// The other side took too long.
    #[error("the TLS handshake: the peer did not answer in time")]
    TimedOut,
    /// TLS failed; the other side was told why.
    #[error("the TLS handshake: {0}")]
    Tls(#[from] rustls::Error),
    /// The other side closed.
    #[error("the peer closed during the TLS handshake")]
    Closed,
    /// More bytes than any handshake of ours has.
    #[error("the TLS handshake: too many bytes")]
    TooMuch,
    /// The other side has no seat for a connection.
    #[error("{0}")]
    NoSeat(NoSeat),
    /// TLS does not insist on a certificate of the client by itself.
    #[error("the peer showed no certificate")]
    NoCertificate,
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        // The kernel's own words for it would be "Resource temporarily unavailable".
        if timed_out(&error) { Self::TimedOut } else { Self::Socket(error) }
    }
}

impl HandshakeError {
    /// The label in metrics: one of `AuthRefusal`.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::Tls(error) => tls::refusal(error).as_str(),
            Self::TimedOut => "timeout",
            Self::NoSeat(_) => "too_many",
            Self::Socket(_) | Self::Closed | Self::TooMuch => "tls",
        }
    }
}

/// Returns whether an operation on a socket ended because its time was over.
pub(super) fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Returns whether that was the time that we gave it. What the kernel gives up by itself says so in words, and when is
/// its own affair.
pub(super) fn timed_out_here(error: &io::Error) -> bool {
    timed_out(error) && error.raw_os_error() != Some(rustix::io::Errno::TIMEDOUT.raw_os_error())
}

/// A connection with keys.
pub(super) struct Secured {
    /// Seals what we send.
    pub(super) sealer: Sealer,
    /// Opens what comes.
    pub(super) opener: Opener,
    /// Certificate that the other side showed, and proved to have the key of.
    pub(super) certificate: CertificateDer<'static>,
    /// Secret that both ends have of the handshake besides their keys.
    pub(super) exported: Exported,
    /// Plaintext that came with the end of the handshake.
    pub(super) plain: Vec<u8>,
    /// Bytes that came after it, still sealed.
    pub(super) sealed: Vec<u8>,
}

/// The two ends of a handshake have the same states but no common type.
trait Machine: Sized {
    type Data;
    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&self) -> &CommonState;
    fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Rekey>), rustls::Error>;
}

macro_rules! machine {
    ($connection:ty, $data:ty) => {
        impl Machine for $connection {
            type Data = $data;
            fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, $data> {
                self.process_tls_records(incoming)
            }
            fn common(&self) -> &CommonState {
                self
            }
            fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Rekey>), rustls::Error> {
                let (secrets, keys) = self.dangerous_into_kernel_connection()?;
                Ok((secrets, Box::new(keys)))
            }
        }
    };
}
machine!(UnbufferedClientConnection, rustls::client::ClientConnectionData);
machine!(UnbufferedServerConnection, rustls::server::ServerConnectionData);

/// The dialing side's handshake.
pub(super) fn client(
    config: &ClientConfig,
    socket: &TcpStream,
    until: Instant,
) -> Result<Secured, HandshakeError> {
    let (config, keeper) = Keeper::of(config, |config| &mut config.key_log);
    drive(UnbufferedClientConnection::new(config, tls::server_name())?, &keeper, socket, until, None)
}

/// The accepting side's handshake. `heard` is called once a ClientHello has come, and may be again.
pub(super) fn server(
    config: &ServerConfig,
    socket: &TcpStream,
    until: Instant,
    heard: &dyn Fn(),
) -> Result<Secured, HandshakeError> {
    let (config, keeper) = Keeper::of(config, |config| &mut config.key_log);
    drive(UnbufferedServerConnection::new(config)?, &keeper, socket, until, Some(heard))
}

/// Outcome of one step of the machine.
enum Next {
    Step,
    Read,
    Done,
}

fn drive<M: Machine>(
    mut machine: M,
    keeper: &Keeper,
    socket: &TcpStream,
    until: Instant,
    heard: Option<&dyn Fn()>,
) -> Result<Secured, HandshakeError> {
    let mut incoming = vec![0; INCOMING];
    let mut have = 0;
    let mut outgoing = Vec::new();
    let mut plain = Vec::new();
    let mut is_first = true;
    loop {
        let UnbufferedStatus { mut discard, state, .. } = machine.step(&mut incoming[..have]);
        if let Some(heard) = heard.filter(|_| matches!(state, Ok(ConnectionState::EncodeTlsData(_)))) {
            // The accepting side has nothing to say before it has heard something.
            heard();
        }
        let next = match state {
            Ok(state) => step(state, socket, until, &mut outgoing, &mut plain, &mut discard)?,
            Err(error) => {
                flush_alert(&mut machine, &mut incoming[discard..have], socket);
                return Err(error.into());
            }
        };
        incoming.copy_within(discard..have, 0);
        have -= discard;
        match next {
            Next::Step => {}
            Next::Read => {
                have += receive(socket, &mut incoming[have..], until)?;
                if heard.is_none() && is_first && NoSeat::begins(&incoming[..have]) {
                    return Err(no_seat(socket, &mut incoming, have, until));
                }
                is_first = false;
            }
            Next::Done => break,
        }
    }
    incoming.truncate(have);
    let common = machine.common();
    let certificate = common.peer_certificates().and_then(<[_]>::first).cloned();
    let certificate = certificate.ok_or(HandshakeError::NoCertificate)?.into_owned();
    let suite = common.negotiated_cipher_suite().ok_or(rustls::Error::HandshakeNotComplete)?;
    let exported = keeper.export(suite)?;
    let (secrets, keys) = machine.finish()?;
    let (sealer, opener) = record::split(suite, secrets, keys)?;
    Ok(Secured { sealer, opener, certificate, exported, plain, sealed: incoming })
}

/// Reads to the end what the other side says instead of a handshake. Whatever is no such record is what TLS would say of it.
fn no_seat(socket: &TcpStream, incoming: &mut [u8], mut have: usize, until: Instant) -> HandshakeError {
    while have < seats::RECORD_BYTES {
        match receive(socket, &mut incoming[have..seats::RECORD_BYTES], until) {
            Ok(bytes) => have += bytes,
            Err(error) => return error,
        }
    }
    let told = NoSeat::of_record(&incoming[..have]);
    told.map_or(
        rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType).into(),
        HandshakeError::NoSeat,
    )
}

fn step<D>(
    state: ConnectionState<'_, '_, D>,
    socket: &TcpStream,
    until: Instant,
    outgoing: &mut Vec<u8>,
    plain: &mut Vec<u8>,
    discard: &mut usize,
) -> Result<Next, HandshakeError> {
    match state {
        ConnectionState::EncodeTlsData(mut data) => {
            encode(|room| data.encode(room), outgoing)?;
            Ok(Next::Step)
        }
        ConnectionState::TransmitTlsData(data) => {
            send(socket, outgoing, until)?;
            outgoing.clear();
            data.done();
            Ok(Next::Step)
        }
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                *discard += record.discard;
                plain.extend_from_slice(record.payload);
                if plain.len() > EARLY_PLAIN_MAX {
                    return Err(HandshakeError::TooMuch);
                }
            }
            Ok(Next::Step)
        }
        ConnectionState::BlockedHandshake => Ok(Next::Read),
        ConnectionState::WriteTraffic(_) => Ok(Next::Done),
        // Early data is off on both sides.
        _ => Err(HandshakeError::Closed),
    }
}

fn encode(
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    outgoing: &mut Vec<u8>,
) -> Result<(), HandshakeError> {
    let at = outgoing.len();
    loop {
        match encode(&mut outgoing[at..]) {
            Ok(written) => {
                outgoing.truncate(at + written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(size)) => outgoing.resize(at + size.required_size, 0),
            Err(EncodeError::AlreadyEncoded) => return Ok(()),
        }
    }
}

/// Tells the other side why, as far as that works without waiting long.
fn flush_alert<M: Machine>(machine: &mut M, incoming: &mut [u8], socket: &TcpStream) {
    let mut outgoing = Vec::new();
    // While there is something to write a step does not look at what came.
    while machine.common().wants_write() {
        let Ok(ConnectionState::EncodeTlsData(mut data)) = machine.step(incoming).state else { return };
        if encode(|room| data.encode(room), &mut outgoing).is_err() {
            return;
        }
    }
    // The connection ends either way; the alert is a courtesy.
    let _ = send(socket, &outgoing, Instant::now() + Duration::from_millis(100));
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads some bytes before `until`. No room is more than any handshake needs.
pub(super) fn receive(socket: &TcpStream, room: &mut [u8], until: Instant) -> Result<usize, HandshakeError> {
    if room.is_empty() {
        return Err(HandshakeError::TooMuch);
    }
    socket.set_read_timeout(Some(left(until)?))?;
    let mut reader = socket;
    match reader.read(room)? {
        0 => Err(HandshakeError::Closed),
        bytes => Ok(bytes),
    }
}

/// Writes all bytes before `until`.
pub(super) fn send(socket: &TcpStream, bytes: &[u8], until: Instant) -> io::Result<()> {
    socket.set_write_timeout(Some(left(until)?))?;
    let mut writer = socket;
    writer.write_all(bytes)
}
