//! Watching names: those that there are, then each that comes, is replaced or goes.
//!
//! ```text
//!   watch("policy") ──> Present* ──> Synced ──> Appeared | Replaced | Gone ...      from the beginning, or after WATCH_CUT
//!   watch, from(revision) ───────────────────> Appeared | Replaced | Gone ...      without a gap, or WATCH_CUT
//! ```
//! Each event comes once and in order. A watch holds one answer of the sidecar at a time, and the sidecar holds nothing for it: it
//! remembers the latest changes of all names. Who asks too late gets WATCH_CUT, once; the next call begins anew.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use tensorlane_proto::frame::{SessionKind, WATCH_SINCE};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, PeerName, Reason, Reference, Revision};

use crate::channel::Timeout;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::wait::{Cancel, Wait};

/// Names and changes of one answer. An answer with as many takes about 200 KB.
const PAGE: u32 = 1_000;

/// Beginning of a watch, and the peer whose names it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchOptions {
    from: Option<Revision>,
    peer: Option<PeerName>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchKind {
    /// The name was there when the watch began.
    Present,
    /// All names that were there have been told; what comes then are changes.
    Synced,
    /// The name was given to a tensor, and was free before.
    Appeared,
    /// The name was taken from one tensor and given to another.
    Replaced,
    /// The name was taken away.
    Gone,
}

/// Event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// Kind of the event.
    pub kind: WatchKind,
    /// The name; empty for [`WatchKind::Synced`].
    pub name: String,
    /// Tensor that the name stands for since then; of a name that is gone, the one that it stood for. None where that tensor is gone
    /// already.
    pub reference: Option<Reference>,
    /// Revision to go on from after this event. None for [`WatchKind::Present`]: before all of them are told nobody can go on.
    pub revision: Option<Revision>,
}

/// A watch of the names that begin alike. It has no place at the sidecar: dropping it ends nothing, and forgetting it costs nothing.
pub struct Watch {
    client: Client,
    prefix: String,
    peer: Option<PeerName>,
    /// Place from which the next answer goes on.
    place: Place,
    events: VecDeque<WatchEvent>,
    /// Revision of what was given out.
    seen: Option<Revision>,
}

/// Part that the sidecar has told already.
#[derive(Debug)]
enum Place {
    /// Nothing.
    Beginning,
    /// Names that there are, up to this token.
    Page { revision: Revision, token: String },
    /// Everything up to this revision.
    After(Revision),
}

// === impl WatchOptions ===

impl WatchOptions {
    /// Begins with the names that there are.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins with what has changed since this revision of an earlier watch, of whichever client.
    #[must_use]
    pub fn from(self, revision: Revision) -> Self {
        Self { from: Some(revision), ..self }
    }

    /// Watches the names of this peer. One of an earlier release tells its names to its own clients only, and UNSUPPORTED is said.
    #[must_use]
    pub fn peer(self, peer: PeerName) -> Self {
        Self { peer: Some(peer), ..self }
    }
}

// === impl WatchKind ===

impl WatchKind {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Synced => "synced",
            Self::Appeared => "appeared",
            Self::Replaced => "replaced",
            Self::Gone => "gone",
        }
    }
}

impl fmt::Display for WatchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Client ===

impl Client {
    /// Watches the names of this peer that begin with `prefix`; all of them if it is empty. Nothing is asked before [`Watch::next`].
    pub fn watch(&self, prefix: &str, options: WatchOptions) -> Watch {
        let place = options.from.map_or(Place::Beginning, Place::After);
        let (client, prefix, peer) = (self.clone(), prefix.to_owned(), options.peer);
        Watch { client, prefix, peer, place, events: VecDeque::new(), seen: options.from }
    }
}

// === impl Watch ===

impl Watch {
    /// The next event.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED where there is none in time. WATCH_CUT where changes are forgotten that were not told: the next call begins
    /// anew, with the names that there are. INVALID_ARGUMENT for a prefix that is longer than a name or a revision that this sidecar has
    /// not told; UNSUPPORTED with an older sidecar or of a peer with one; PEER_UNKNOWN and PEER_UNREACHABLE; a lost session, after which the next call connects anew.
    pub fn next(&mut self, timeout: Timeout) -> Result<WatchEvent> {
        let began = Instant::now();
        let after = match timeout {
            Timeout::Default => self.client.wait(None).left(),
            Timeout::Now => Duration::ZERO,
            Timeout::After(after) => after,
            Timeout::Never => Duration::MAX,
        };
        loop {
            if let Some(event) = self.events.pop_front() {
                self.seen = event.revision.or(self.seen);
                return Ok(event);
            }
            let wait = self.client.wait(Some(after.saturating_sub(began.elapsed())));
            self.ask(&wait)?;
            if self.events.is_empty() && wait.left().is_zero() {
                let waited = began.elapsed().as_millis();
                let message =
                    format!("no name that begins with {:?} has changed within {waited} ms", self.prefix);
                return Err(Failure::new(Reason::DeadlineExceeded, message).into());
            }
        }
    }

    /// Revision from which another watch can go on without missing or repeating an event; none before all names that there were are
    /// told.
    pub fn revision(&self) -> Option<Revision> {
        self.seen
    }

    /// The beginning of the names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Lets `cancel` withdraw calls that wait.
    #[must_use]
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.client = self.client.with_cancel(cancel);
        self
    }

    fn ask(&mut self, wait: &Wait) -> Result<()> {
        let (after, page_token) = match &self.place {
            Place::Beginning => (String::new(), String::new()),
            Place::Page { revision, token } => (revision.to_string(), token.clone()),
            Place::After(revision) => (revision.to_string(), String::new()),
        };
        let connection = self.client.connection(wait)?;
        let remedy = ": update the sidecar, or look names up with a wait";
        connection.require(WATCH_SINCE, "names are watched since", remedy)?;
        let request = v1::WatchRequest {
            prefix: self.prefix.clone(),
            peer: self.peer.as_ref().map(ToString::to_string).unwrap_or_default(),
            after,
            page_token,
            page_size: PAGE,
            deadline_ms: wait.deadline_ms(),
        };
        match connection.call(SessionKind::Watch, &request, wait, Late::Nothing) {
            Ok(reply) => self.take(reply),
            Err(error) => {
                if error.reason() == Some(Reason::WatchCut) {
                    (self.place, self.seen) = (Place::Beginning, None);
                }
                Err(error)
            }
        }
    }

    /// Takes an answer in.
    fn take(&mut self, reply: v1::WatchResponse) -> Result<()> {
        let revision: Revision = reply.revision.parse().map_err(|error| wrong(&error))?;
        let mut events = VecDeque::with_capacity(reply.events.len());
        for event in reply.events {
            events.push_back(read(event, revision)?);
        }
        self.events.append(&mut events);
        self.place = match reply.next_page_token {
            token if !token.is_empty() => Place::Page { revision, token },
            _ => Place::After(revision),
        };
        if reply.snapshot {
            if matches!(self.place, Place::After(_)) {
                let synced = WatchEvent {
                    kind: WatchKind::Synced,
                    name: String::new(),
                    reference: None,
                    revision: Some(revision),
                };
                self.events.push_back(synced);
            }
        } else if self.events.is_empty() {
            self.seen = Some(revision);
        }
        Ok(())
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("prefix", &self.prefix)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// Reads an event of an answer with this revision.
fn read(event: v1::NameEvent, revision: Revision) -> Result<WatchEvent> {
    let kind = match event.kind() {
        v1::NameEventKind::Present => WatchKind::Present,
        v1::NameEventKind::Appeared => WatchKind::Appeared,
        v1::NameEventKind::Replaced => WatchKind::Replaced,
        v1::NameEventKind::Gone => WatchKind::Gone,
        v1::NameEventKind::Unspecified => return Err(wrong(&"an event of an unknown kind")),
    };
    let reference = match event.reference.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error| wrong(&error))?),
    };
    let told = kind != WatchKind::Present;
    let revision = told.then_some(Revision { sequence: event.sequence, ..revision });
    Ok(WatchEvent { kind, name: event.name, reference, revision })
}

fn wrong(what: &dyn fmt::Display) -> Error {
    Error::protocol(format!("an answer to Watch has {what}"))
}
