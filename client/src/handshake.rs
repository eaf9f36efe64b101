//! The first two frames of a session.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};
use tensorlane_proto::frame::{SESSION_VERSION, SessionKind, encode};
use tensorlane_proto::generated::{SessionHello, SessionWelcome};

use crate::connection::{SLICE, Sidecar};
use crate::error::{Error, Result};
use crate::reader::{Frame, Reader};
use crate::wire;

/// First pause before the socket is tried again; it doubles up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Results of a handshake: the socket, what was read beyond the welcome, the sidecar and the event pipe.
type Welcomed = (UnixStream, Reader, Sidecar, OwnedFd);

/// Connects and shakes hands. While nobody listens, tries again until `until`; once at least. `welcome`: how long a sidecar that
/// took the connection may take to answer, asked at each try. What `heed` says ends the wait.
pub(crate) fn perform(
    path: &Path,
    name: &str,
    until: Instant,
    welcome: impl Fn() -> Duration,
    heed: &dyn Fn() -> Result<()>,
) -> Result<Welcomed> {
    let mut pause = PAUSE_FIRST;
    loop {
        heed()?;
        let error = match connect(path).and_then(|socket| greet(socket, name, welcome(), heed)) {
            Ok(welcomed) => return Ok(welcomed),
            Err(error @ (Error::SidecarUnreachable { .. } | Error::SessionLost { .. })) => error,
            Err(error) => return Err(error),
        };
        if Instant::now() + pause >= until {
            return Err(unreachable(path, error));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn connect(path: &Path) -> Result<UnixStream> {
    UnixStream::connect(path)
        .map_err(|source| Error::SidecarUnreachable { path: path.to_owned(), source: Arc::new(source) })
}

/// A sidecar that hangs up during the handshake is as unreachable as one that does not listen.
fn unreachable(path: &Path, error: Error) -> Error {
    match error {
        Error::SessionLost { why } => {
            let source = io::Error::new(io::ErrorKind::ConnectionReset, why.to_string());
            Error::SidecarUnreachable { path: path.to_owned(), source: Arc::new(source) }
        }
        other => other,
    }
}

fn greet(
    socket: UnixStream,
    name: &str,
    within: Duration,
    heed: &dyn Fn() -> Result<()>,
) -> Result<Welcomed> {
    let hello = SessionHello { version: SESSION_VERSION, client: name.to_owned() };
    // A fresh socket has room for one small frame, so it is written whole or not at all.
    let greeted = send(&socket, &encode(SessionKind::Hello.into(), 0, 1, &hello), SendFlags::NOSIGNAL);
    let mut reader = Reader::new();
    // A sidecar that has no place for us says so and closes, perhaps before we have spoken: its reason is there to read.
    let frame = match (first_frame(&socket, &mut reader, within, heed), greeted) {
        (Ok(frame), _) => frame,
        (Err(Error::Withdrawn), _) => return Err(Error::Withdrawn),
        (Err(_), Err(error)) => return Err(Error::lost(format!("the greeting could not be sent: {error}"))),
        (Err(error), Ok(_)) => return Err(error),
    };
    let welcome: SessionWelcome = wire::reply(SessionKind::Hello, frame)?;
    // An older sidecar speaks its own: what this version has beyond it is said by the sidecar alone.
    if !(1..=SESSION_VERSION).contains(&welcome.version) {
        return Err(Error::protocol(format!(
            "the sidecar speaks version {} of the session protocol",
            welcome.version
        )));
    }
    let events = reader.descriptor()?;
    Ok((socket, reader, wire::sidecar(&welcome)?, events))
}

fn first_frame(
    socket: &UnixStream,
    reader: &mut Reader,
    within: Duration,
    heed: &dyn Fn() -> Result<()>,
) -> Result<Frame> {
    let until = Instant::now() + within;
    loop {
        if let Some(frame) = reader.next_frame()? {
            return Ok(frame);
        }
        if Instant::now() >= until {
            return Err(Error::DeadlineExceeded { after: within });
        }
        heed()?;
        reader.fill_within(socket, SLICE.min(until.saturating_duration_since(Instant::now())))?;
    }
}
