//! Proof of two ends of a control connection to each other that they are on one node: by meeting at a socket of its
//! directory, and bringing there what only they know.
//!
//! ```text
//!   who dialed control                                       who accepted it
//!     | magic, number of the connection, nonce                     |
//!     |----------------------------------------------------------->|
//!     |                     nonce, HMAC(key, accepts, both nonces) |
//!     |<-----------------------------------------------------------|
//!     | HMAC(key, dials, both nonces)                              |
//!     |----------------------------------------------------------->|
//!     |                                                     1 byte |
//!     |<-----------------------------------------------------------|
//! ```
//! The key was made for this connection and told on it alone. Host names and addresses prove nothing: they are equal where nodes
//! are not, and they lie. Whoever passes these bytes on between two nodes would be believed by this alone: so both ends compare
//! their kernel and directory first (see `place`), and what is said after the meeting is tagged (see `wire`).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::directory::NotThere;
use super::nodes_differ;
use super::wire::MetSocket;
use super::{Shm, directory};
use crate::clock;
use crate::peer::handshake::timed_out_here;
use crate::peer::link::Link;
use crate::peer::shared::Shared;
use crate::peer::transport::lanes::key::{BYTES, ID_BYTES, LaneName, Nonce, Role, nonce};

/// Bytes that a call begins with.
const MAGIC: [u8; 8] = *b"tl-node2";
const HELLO: usize = MAGIC.len() + ID_BYTES + BYTES;
/// Byte that says that the caller is taken.
const WELCOME: u8 = 1;
/// Time that a caller may be ahead of its connection.
const SOON: Duration = Duration::from_millis(500);
/// The proofs of lanes have a number and a direction; this is neither.
const NAME: LaneName = LaneName { number: 0, serves: false };

/// Reason for which it was not proven that two peers share a node.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unproven {
    /// Socket of the peer that could not be connected.
    #[error(transparent)]
    NotThere(#[from] NotThere),
    /// Peer that the table of peers has on another node.
    #[error("the table of peers has it on another node")]
    OtherNode,
    /// Caller that does not know what the other end of the connection knows.
    #[error("{0}")]
    Stranger(&'static str),
    /// Broken off.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// Not done in time.
    #[error("the other end did not answer within {}", clock::told(*.0))]
    TimedOut(Duration),
}

impl Unproven {
    /// Reason with how long its time was, if that was over; the kernel has other words for it.
    pub(super) fn after(self, most: Duration) -> Self {
        match self {
            Self::Socket(error) if timed_out_here(&error) => Self::TimedOut(most),
            other => other,
        }
    }

    /// Returns whether it is on another node, as far as this one can see.
    pub(super) fn is_other_node(&self) -> bool {
        matches!(self, Self::OtherNode | Self::NotThere(NotThere::OtherNode))
    }

    /// The label in metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::OtherNode | Self::NotThere(NotThere::OtherNode) => "other_node",
            Self::NotThere(NotThere::Foreign) => "foreign_socket",
            Self::Stranger(_) => "stranger",
            Self::NotThere(NotThere::Socket(_)) | Self::Socket(_) | Self::TimedOut(_) => "socket",
        }
    }
}

/// Calls the peer at its socket.
pub(super) fn dial(shm: &Shm, until: Instant) -> Result<MetSocket, Unproven> {
    let stream = shm.node.config().reached(directory::connect(shm.node.directory(), &shm.theirs)?);
    let ours = nonce();
    let mut hello = MAGIC.to_vec();
    hello.extend(shm.key.id());
    hello.extend(ours);
    send(&stream, &hello, until)?;
    let answer: [u8; 2 * BYTES] = receive(&stream, until)?;
    let (theirs, proof) = split(&answer);
    if !shm.key.is_proven(Role::NodeAccepts, NAME, &[ours, theirs], proof) {
        return Err(Unproven::Stranger("who answers at its socket is not the peer"));
    }
    send(&stream, &shm.key.prove(Role::NodeDials, NAME, &[ours, theirs]), until)?;
    match receive::<1>(&stream, until)? {
        [WELCOME] => {
            let of = |role| shm.key.messages(role, &[ours, theirs]);
            Ok(MetSocket::new(stream, of(Role::NodeDialed), of(Role::NodeAccepted)))
        }
        _ => Err(Unproven::Stranger("the peer does not take us")),
    }
}

/// Somebody called at our socket: the connection that it belongs to.
pub(super) fn accept(
    shared: &Arc<Shared>,
    stream: UnixStream,
    until: Instant,
) -> Result<(Arc<Link>, MetSocket), Unproven> {
    let hello: [u8; HELLO] = receive(&stream, until)?;
    let (magic, rest) = hello.split_at(MAGIC.len());
    let (id, theirs) = rest.split_at(ID_BYTES);
    if magic != MAGIC {
        return Err(Unproven::Stranger("it speaks something else"));
    }
    let theirs: Nonce = theirs.try_into().map_err(|_| Unproven::Stranger("its nonce is cut short"))?;
    let link = connection(shared, id, until).ok_or(Unproven::Stranger("its connection is not up"))?;
    let shm = link.ways.shm().ok_or(Unproven::Stranger("its connection shares no memory"))?;
    if nodes_differ(shared, &link.peer.name) {
        return Err(Unproven::OtherNode);
    }
    let ours = nonce();
    let mut answer = ours.to_vec();
    answer.extend(shm.key.prove(Role::NodeAccepts, NAME, &[theirs, ours]));
    send(&stream, &answer, until)?;
    let proof: [u8; BYTES] = receive(&stream, until)?;
    if !shm.key.is_proven(Role::NodeDials, NAME, &[theirs, ours], &proof) {
        return Err(Unproven::Stranger("it does not prove that it is the other end of the connection"));
    }
    let of = |role| shm.key.messages(role, &[theirs, ours]);
    let socket = MetSocket::new(stream, of(Role::NodeAccepted), of(Role::NodeDialed));
    Ok((link, socket))
}

/// The connection of a number. The other end of it may have heard our Hello before we are done with its place.
fn connection(shared: &Arc<Shared>, id: &[u8], until: Instant) -> Option<Arc<Link>> {
    let is_its = |link: &Arc<Link>| !link.dialed && link.ways.shm().is_some_and(|shm| shm.key.id() == *id);
    let until = until.min(Instant::now() + SOON);
    loop {
        let mut links = shared.peers().into_iter().filter_map(|peer| peer.state.lock().link.clone());
        if let Some(link) = links.find(is_its) {
            return Some(link);
        }
        if Instant::now() >= until || shared.is_stopping() {
            return None;
        }
        shared.pause(Duration::from_millis(5));
    }
}

/// Says to a caller that is taken that it is.
pub(super) fn welcome(stream: &UnixStream, until: Instant) -> io::Result<()> {
    send(stream, &[WELCOME], until)
}

fn split(answer: &[u8; 2 * BYTES]) -> (Nonce, &[u8]) {
    let (nonce, proof) = answer.split_at(BYTES);
    let mut theirs = [0; BYTES];
    theirs.copy_from_slice(nonce);
    (theirs, proof)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn send(mut stream: &UnixStream, bytes: &[u8], until: Instant) -> io::Result<()> {
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(bytes)
}

fn receive<const N: usize>(mut stream: &UnixStream, until: Instant) -> io::Result<[u8; N]> {
    let (mut bytes, mut have) = ([0; N], 0);
    while have < N {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut bytes[have..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => have += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_does_not_answer_in_time_is_told_of_by_that_time() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = receive::<1>(&ours, Instant::now() + Duration::from_millis(10)).unwrap_err();
        let told = Unproven::from(error).after(Duration::from_secs(5));
        assert_eq!(told.to_string(), "the other end did not answer within 5s");
        assert_eq!(told.label(), "socket");
    }
}
