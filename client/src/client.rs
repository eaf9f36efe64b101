//! The client: one session with the sidecar of this pod, made anew when it was lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::ledger::RetryId;
use tensorlane_proto::{ExchangeName, Incarnation, PeerName};

use crate::config::{ClientOptions, GRACE, RECONNECT_MAX, SESSION_SOCKET, WELCOME_MAX};
use crate::connection::{Connection, Sidecar};
use crate::error::{Error, Result};
use crate::late::Late;
use crate::origin::Origin;
use crate::wait::{Cancel, Wait, later};

/// A workload's standing with its own sidecar. Cheap to clone, usable from any number of threads at once.
///
/// When the session is lost, calls under way fail with [`Error::SessionLost`], or else the next one does; the one after
/// it connects anew. So a user hears once that the leases of a session are gone. A client does not survive a fork: the
/// child opens its own.
#[derive(Clone, Debug)]
pub struct Client {
    core: Arc<Core>,
    deadline: Duration,
    cancel: Option<Cancel>,
    /// Set where the interrupt is asked while a call waits.
    interrupts: bool,
}

#[derive(Debug)]
pub(crate) struct Core {
    origin: Origin,
    path: PathBuf,
    pub(crate) options: ClientOptions,
    connection: Mutex<Arc<Connection>>,
    retries: Retries,
    /// Thread that copies out of GPU memory for others, once GPU memory is used.
    #[cfg(feature = "gpu")]
    pub(crate) staged_gpus: Mutex<Option<Arc<crate::gpu::staged_gpus::StagedGpus>>>,
}

impl Client {
    /// Connects to the session socket in `directory`.
    ///
    /// # Errors
    /// [`Error::SidecarUnreachable`] where nobody answers.
    pub fn connect(directory: impl AsRef<Path>) -> Result<Self> {
        Self::options(directory).connect()
    }

    /// Connects to the session socket in `$TENSORLANE_SOCKETS`, or in `/run/tensorlane`.
    ///
    /// # Errors
    /// [`Error::SidecarUnreachable`] where nobody answers.
    pub fn from_env() -> Result<Self> {
        ClientOptions::from_env().connect()
    }

    /// Options for a connection to the session socket in `directory`.
    pub fn options(directory: impl AsRef<Path>) -> ClientOptions {
        ClientOptions::at(directory)
    }

    pub(crate) fn with_options(options: ClientOptions) -> Result<Self> {
        let path = options.directory.join(SESSION_SOCKET);
        let until = later(options.patience);
        // Who is patient with a sidecar that is not there is as patient with one that is busy.
        let first = welcome(options.deadline).max(options.patience.min(WELCOME_MAX));
        let wait = Wait::new(options.patience.max(first), options.interrupt.clone(), None);
        let heed = || match wait.check() {
            Err(Error::Withdrawn) => Err(Error::Withdrawn),
            _ => Ok(()),
        };
        let connection = Connection::open(&path, &options.name, until, || first, &heed)?;
        let deadline = options.deadline;
        let retries = Retries::new()?;
        let core = Core {
            origin: Origin::here(),
            path,
            options,
            connection: Mutex::new(connection),
            retries,
            #[cfg(feature = "gpu")]
            staged_gpus: Mutex::default(),
        };
        Ok(Self { core: Arc::new(core), deadline, cancel: None, interrupts: true })
    }

    /// Client of the same connection with another deadline for calls that name none.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// Client of the same connection, whose calls `cancel` withdraws.
    #[must_use]
    pub fn with_cancel(&self, cancel: Cancel) -> Self {
        Self { cancel: Some(cancel), ..self.clone() }
    }

    /// Client for threads of our own, on which its user's interrupt has no place.
    pub(crate) fn uninterrupted(&self) -> Self {
        Self { interrupts: false, ..self.clone() }
    }

    /// Cancel for a part of the client's calls, which that of the client withdraws, too.
    pub(crate) fn cancel_part(&self) -> Cancel {
        self.cancel.as_ref().map_or_else(Cancel::new, Cancel::part)
    }

    /// Tells the sidecar at once of every lease that ended, instead of with the next request or a moment later.
    ///
    /// # Errors
    /// [`Error::SessionLost`], and then the leases are gone anyhow.
    pub fn flush(&self) -> Result<()> {
        self.current()?.flush()
    }

    /// The exchange.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn exchange(&self) -> Result<ExchangeName> {
        Ok(self.sidecar()?.exchange)
    }

    /// The name of this peer.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn peer(&self) -> Result<PeerName> {
        Ok(self.sidecar()?.peer)
    }

    /// The incarnation that the present session is with.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn incarnation(&self) -> Result<Incarnation> {
        Ok(self.sidecar()?.incarnation)
    }

    /// The deadline of calls that name none.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    fn sidecar(&self) -> Result<Sidecar> {
        Ok(self.current()?.sidecar().clone())
    }

    fn current(&self) -> Result<Arc<Connection>> {
        if self.core.origin.is_child() {
            return Err(Error::Forked);
        }
        Ok(Arc::clone(&self.core.connection.lock()))
    }

    #[cfg(feature = "gpu")]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Wait of a call.
    pub(crate) fn wait(&self, deadline: Option<Duration>) -> Wait {
        let interrupt = self.core.options.interrupt.clone().filter(|_| self.interrupts);
        Wait::new(deadline.unwrap_or(self.deadline), interrupt, self.cancel.clone())
    }

    /// The session, made anew if it was lost.
    pub(crate) fn connection(&self, wait: &Wait) -> Result<Arc<Connection>> {
        // Before the lock: in a forked child it may be held by a thread that is not there.
        if self.core.origin.is_child() {
            return Err(Error::Forked);
        }
        wait.check()?;
        let most = wait.left().min(RECONNECT_MAX);
        let until = Instant::now() + most;
        // Who reconnects holds the lock, so that the others wait for the same new session.
        let late = || Error::DeadlineExceeded { after: most };
        let mut connection = self.core.connection.try_lock_until(until).ok_or_else(late)?;
        if connection.is_lost() {
            // Leases went with it: its user must hear of that, also where no call was under way.
            if let Some(loss) = connection.calls().untold_loss() {
                return Err(loss);
            }
            let welcome = || welcome(wait.left());
            // No signal is asked for with the lock held: its handler may call this very client.
            let options = &self.core.options;
            *connection = Connection::open(&self.core.path, &options.name, until, welcome, &|| Ok(()))?;
        }
        wait.looked_until_now();
        Ok(Arc::clone(&connection))
    }

    /// Makes one call on the present session.
    pub(crate) fn call<R: Message + Default>(&self, kind: SessionKind, request: &impl Message) -> Result<R> {
        let wait = self.wait(None);
        self.connection(&wait)?.call(kind, request, &wait, Late::Nothing)
    }

    /// An id for one item of a request, which no other client or call has.
    pub(crate) fn retry_id(&self) -> RetryId {
        self.core.retries.next()
    }
}

/// Time for a sidecar to give its welcome to a caller that has so much time.
fn welcome(left: Duration) -> Duration {
    left.saturating_add(GRACE).min(WELCOME_MAX)
}

/// Retry ids: a random beginning and a count. Not a random generator in memory, which a forked child would repeat.
#[derive(Debug)]
struct Retries {
    next: Mutex<u128>,
}

impl Retries {
    fn new() -> Result<Self> {
        let mut seed = [0; 16];
        let mut filled = 0;
        while filled < seed.len() {
            filled += rustix::rand::getrandom(&mut seed[filled..], rustix::rand::GetRandomFlags::empty())
                .map_err(|error| Error::resources("no random bytes", error))?;
        }
        Ok(Self { next: Mutex::new(u128::from_ne_bytes(seed)) })
    }

    fn next(&self) -> RetryId {
        let mut next = self.next.lock();
        *next = next.wrapping_add(1);
        RetryId(next.to_be_bytes())
    }
}
