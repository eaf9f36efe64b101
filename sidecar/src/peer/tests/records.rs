//! Our record layer against rustls as anyone uses it: one end is ours, the other a buffered connection. Each reads what the other
//! writes, however writes and the stream are cut, whoever changes keys when, and both end a damaged stream at the same byte.
//!
//! Every run follows from its seed, which is printed before it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::version::TLS13;
use rustls::{ClientConnection, Connection, Error, PeerMisbehaved, ServerConfig, ServerConnection};
use tensorlane_fuzz::Dice;

use super::keys;
use super::world::PATIENCE;
use crate::identity::{Identity, tls};
use crate::peer::handshake;
use crate::peer::record::{RECORD_HEADER, RECORD_PLAIN_MAX, RecordError, Sealer};
use crate::peer::record_reader::{Drained, RecordReader};

/// Connections of a test, each from a seed of its own.
const RUNS: u64 = 30;
/// Writes and changes of keys on one connection.
const STEPS: usize = 60;
/// Changes of keys without data between that either end bears.
const UPDATES: usize = 32;
/// Bytes of a record besides its plaintext: header, type and tag.
const OVERHEAD: usize = RECORD_HEADER + 1 + 16;

/// Two ends of one connection, in one thread.
struct Ends {
    sealer: Sealer,
    reader: RecordReader,
    /// Socket from which the reader receives, and that which leads there.
    ours: TcpStream,
    theirs: TcpStream,
    buffered: Connection,
    dice: Dice,
}

impl Ends {
    fn new(seed: u64) -> Self {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        for socket in [&ours, &theirs] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.set_nodelay(true).unwrap();
        }
        let (one, other) = (keys::identity(), keys::identity());
        let we_dial = dice.one_in(2);
        let mut buffered: Connection = match we_dial {
            true => ServerConnection::new(Arc::new(server_config(&other, &mut dice))).unwrap().into(),
            false => {
                let config = Arc::new(keys::client(&other));
                ClientConnection::new(config, tls::server_name()).unwrap().into()
            }
        };
        buffered.set_buffer_limit(None);
        let secured = std::thread::scope(|scope| {
            let secured = scope.spawn(|| handshaken(&one, &ours, we_dial));
            while buffered.is_handshaking() {
                buffered.complete_io(&mut &theirs).unwrap();
            }
            secured.join().unwrap()
        });
        let reader = RecordReader::new(secured.opener, secured.plain, &secured.sealed);
        Self { sealer: secured.sealer, reader, ours, theirs, buffered, dice }
    }

    /// Some bytes to write: none, one, about a record, or several records.
    fn some_bytes(&mut self) -> Vec<u8> {
        let count = match self.dice.roll(6) {
            0 => self.dice.below(3),
            1 => RECORD_PLAIN_MAX - 1 + self.dice.below(3),
            2 => self.dice.below(100_000),
            _ => self.dice.below(2_000),
        };
        self.dice.bytes(count)
    }

    /// Seals bytes as callers do: whole, or gathered from pieces.
    fn sealed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut records = VecDeque::new();
        if self.dice.one_in(2) {
            self.sealer.seal_all(bytes, &mut records).unwrap();
        } else {
            let mut rest = bytes;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(1 + self.dice.below(rest.len().min(RECORD_PLAIN_MAX)));
                let (head, tail) = now.split_at(self.dice.below(now.len()));
                self.sealer.seal(&[head, tail], &mut records).unwrap();
                rest = later;
            }
        }
        Vec::from(records).concat()
    }

    /// Announces new keys of ours.
    fn updated(&mut self) -> Vec<u8> {
        let mut records = VecDeque::new();
        self.sealer.update_keys(&mut records).unwrap();
        Vec::from(records).concat()
    }

    /// All that the buffered end has to send.
    fn written(&mut self) -> Vec<u8> {
        let mut sealed = Vec::new();
        while self.buffered.wants_write() {
            self.buffered.write_tls(&mut sealed).unwrap();
        }
        sealed
    }

    /// Brings bytes to the buffered end, cut anywhere: what it read, and whether the stream ended in order.
    fn feed_theirs(&mut self, sealed: &[u8]) -> (Vec<u8>, Result<bool, Error>) {
        let (mut read, mut rest) = (Vec::new(), sealed);
        while !rest.is_empty() {
            let (mut now, later) = rest.split_at(1 + self.dice.below(rest.len().min(40_000)));
            while !now.is_empty() {
                self.buffered.read_tls(&mut now).unwrap();
                let outcome = self.buffered.process_new_packets();
                let is_closed = outcome.as_ref().is_ok_and(rustls::IoState::peer_has_closed);
                let mut room = [0; 4096];
                // There is nothing more, or the stream has ended.
                while let Ok(bytes @ 1..) = self.buffered.reader().read(&mut room) {
                    read.extend_from_slice(&room[..bytes]);
                }
                match outcome {
                    Err(error) => return (read, Err(error)),
                    Ok(_) if is_closed => return (read, Ok(true)),
                    Ok(_) => {}
                }
            }
            rest = later;
        }
        (read, Ok(false))
    }

    /// Brings bytes to our end, cut anywhere and taken in pieces: what it read, and whether the stream ended in order.
    fn feed_ours(&mut self, sealed: &[u8]) -> (Vec<u8>, Result<bool, RecordError>) {
        let (mut read, mut rest) = (Vec::new(), sealed);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(1 + self.dice.below(rest.len().min(40_000)));
            (&self.theirs).write_all(now).unwrap();
            let mut left = now.len();
            while left > 0 {
                left -= self.reader.receive(&self.ours).unwrap();
                match self.drained(&mut read) {
                    Ok(Drained::Closed) => return (read, Ok(true)),
                    Ok(_) => {}
                    Err(error) => return (read, Err(error)),
                }
            }
            rest = later;
        }
        (read, Ok(false))
    }

    /// Opens all that has come, now and then with a stop in the middle of a record.
    fn drained(&mut self, read: &mut Vec<u8>) -> Result<Drained, RecordError> {
        let Self { reader, dice, .. } = self;
        loop {
            let drained = reader.drain::<RecordError>(|plain| {
                let taken = if dice.one_in(3) { dice.below(plain.len()) } else { plain.len() };
                read.extend_from_slice(&plain[..taken]);
                Ok(taken)
            })?;
            if drained != Drained::Stopped {
                return Ok(drained);
            }
        }
    }

    /// Writes at our end and reads at the other.
    fn says(&mut self, bytes: &[u8]) {
        let sealed = self.sealed(bytes);
        let (read, outcome) = self.feed_theirs(&sealed);
        assert!(
            read == bytes && outcome == Ok(false),
            "{} of {} bytes, {outcome:?}",
            read.len(),
            bytes.len()
        );
    }

    /// Writes at the other end and reads at ours.
    fn hears(&mut self, bytes: &[u8]) {
        self.buffered.writer().write_all(bytes).unwrap();
        let sealed = self.written();
        let (read, outcome) = self.feed_ours(&sealed);
        assert!(read == bytes, "{} of {} bytes", read.len(), bytes.len());
        assert!(!outcome.unwrap(), "the stream has not ended");
    }

    /// Changes the keys of the buffered end, which asks for new ones of ours.
    fn their_keys_change(&mut self) -> Result<bool, RecordError> {
        self.buffered.refresh_traffic_keys().unwrap();
        let sealed = self.written();
        let (read, outcome) = self.feed_ours(&sealed);
        assert!(read.is_empty());
        outcome
    }
}

/// Configuration of a buffered server, with one of the two suites that we speak.
fn server_config(identity: &Identity, dice: &mut Dice) -> ServerConfig {
    if dice.one_in(2) {
        return tls::server_config(identity).unwrap();
    }
    let mut provider = default_provider();
    provider.cipher_suites = vec![cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![identity.cert.clone()], identity.key.clone_key())
        .unwrap();
    config.send_tls13_tickets = 0;
    config
}

/// Our end after its handshake.
fn handshaken(identity: &Identity, socket: &TcpStream, we_dial: bool) -> handshake::Secured {
    let until = Instant::now() + PATIENCE;
    let secured = if we_dial {
        let mut config = keys::client(identity);
        config.enable_secret_extraction = true;
        handshake::client(&config, socket, until)
    } else {
        let mut config = tls::server_config(identity).unwrap();
        config.enable_secret_extraction = true;
        handshake::server(&config, socket, until, &|| {})
    };
    secured.unwrap()
}

#[test]
fn each_end_reads_what_the_other_writes_however_it_is_cut_and_whoever_changes_keys() {
    for seed in 0..RUNS {
        let mut ends = Ends::new(seed);
        if ends.dice.one_in(2) {
            let records = 1 + ends.dice.roll(5);
            ends.sealer.rekey_every(records);
        }
        for _ in 0..STEPS {
            let bytes = ends.some_bytes();
            match ends.dice.roll(8) {
                0..=2 => ends.says(&bytes),
                3..=5 => ends.hears(&bytes),
                6 => {
                    let update = ends.updated();
                    assert_eq!(ends.feed_theirs(&update), (Vec::new(), Ok(false)));
                }
                _ => {
                    assert!(!ends.their_keys_change().unwrap());
                    assert!(ends.reader.take_update_request(), "it asked for ours, too");
                    let update = ends.updated();
                    assert_eq!(ends.feed_theirs(&update), (Vec::new(), Ok(false)));
                }
            }
            assert!(!ends.reader.take_update_request());
        }
        each_end_hears_that_the_other_closes(ends);
    }
}

/// Checks the last word of either end; nothing behind it is read.
fn each_end_hears_that_the_other_closes(mut ends: Ends) {
    let mut records = VecDeque::new();
    ends.sealer.close_notify(&mut records).unwrap();
    let closed = Vec::from(records).concat();
    assert_eq!(ends.feed_theirs(&closed), (Vec::new(), Ok(true)));
    assert_eq!(ends.buffered.reader().read(&mut [0; 1]).unwrap(), 0, "the end of the stream, and no error");
    ends.hears(b"one direction alone has ended");
    ends.buffered.send_close_notify();
    let closed = ends.written();
    let (read, outcome) = ends.feed_ours(&closed);
    assert!(read.is_empty() && outcome.unwrap());
}

#[test]
fn keys_that_change_33_times_without_data_between_are_refused_at_both_ends() {
    let mut ends = Ends::new(1);
    for _ in 0..2 {
        for _ in 0..UPDATES {
            let update = ends.updated();
            assert_eq!(ends.feed_theirs(&update).1, Ok(false));
            assert!(!ends.their_keys_change().unwrap());
        }
        // Data gives either end its patience back.
        ends.says(b"data");
        ends.hears(b"data");
    }
    for _ in 0..UPDATES {
        let update = ends.updated();
        assert_eq!(ends.feed_theirs(&update).1, Ok(false));
        assert!(!ends.their_keys_change().unwrap());
    }
    let more = ends.their_keys_change();
    assert!(matches!(more, Err(RecordError::TooManyKeyUpdates)), "{more:?}");
    let update = ends.updated();
    let refused = Error::PeerMisbehaved(PeerMisbehaved::TooManyKeyUpdateRequests);
    assert_eq!(ends.feed_theirs(&update).1, Err(refused));
}

/// Damage of a stream of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Damage {
    /// Stream that ends there.
    Cut,
    /// Stream of which a bit there is another one.
    Flipped,
}

/// Damages records at random; how much of the plaintext both ends must read, and whether they must find out.
///
/// The version in a record's header is looked at by neither end, and its type is not authenticated by rustls: neither is altered.
fn damaged(sealed: &[u8], dice: &mut Dice) -> (Vec<u8>, Damage, usize, bool) {
    let (mut bytes, at) = (sealed.to_vec(), dice.below(sealed.len()));
    let (mut start, mut plain) = (0, 0);
    let length = |start: usize| {
        RECORD_HEADER + usize::from(u16::from_be_bytes([sealed[start + 3], sealed[start + 4]]))
    };
    while start + length(start) <= at {
        plain += length(start) - OVERHEAD;
        start += length(start);
    }
    if dice.one_in(2) {
        bytes.truncate(at);
        return (bytes, Damage::Cut, plain, false);
    }
    let at = at.max(start + 3);
    bytes[at] ^= 1 << dice.roll(8);
    // Where its length is another one, the end of the record may be waited for.
    (bytes, Damage::Flipped, plain, at >= start + RECORD_HEADER)
}

#[test]
fn a_stream_that_is_cut_off_or_altered_ends_at_the_same_byte_at_both_ends() {
    for seed in 0..2 * RUNS {
        let mut ends = Ends::new(1_000 + seed);
        let text = ends.dice.bytes(60_000);
        let parts: Vec<&[u8]> = text.chunks(1 + ends.dice.below(20_000)).collect();
        let sealed: Vec<u8> = parts.iter().flat_map(|part| ends.sealed(part)).collect();
        let (bytes, damage, plain, found) = damaged(&sealed, &mut ends.dice);
        let (read, outcome) = ends.feed_theirs(&bytes);
        assert!(read == text[..plain], "{damage:?}: they read {} bytes of {plain}", read.len());
        assert!(outcome != Ok(true) && (!found || outcome.is_err()), "{damage:?}: {outcome:?}");
        if damage == Damage::Cut {
            assert_eq!(ends.buffered.read_tls(&mut io::empty()).unwrap(), 0);
            let end = ends.buffered.reader().read(&mut [0; 1]).map_err(|error| error.kind());
            assert_eq!(end, Err(io::ErrorKind::UnexpectedEof), "no end in order");
        }

        let mut ends = Ends::new(2_000 + seed);
        ends.buffered.writer().write_all(&text).unwrap();
        let sealed = ends.written();
        let (bytes, damage, plain, found) = damaged(&sealed, &mut ends.dice);
        let (read, outcome) = ends.feed_ours(&bytes);
        assert!(read == text[..plain], "{damage:?}: we read {} bytes of {plain}", read.len());
        assert!(
            matches!(outcome, Ok(false) | Err(_)) && (!found || outcome.is_err()),
            "{damage:?}: {outcome:?}"
        );
        if damage == Damage::Cut {
            ends.theirs.shutdown(Shutdown::Write).unwrap();
            assert_eq!(ends.reader.receive(&ends.ours).unwrap(), 0, "an end of file, and no end in order");
        }
    }
}
