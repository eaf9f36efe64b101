//! The hosts: sidecars that are processes of their own on a network of their own, and what is done to them. Two members share
//! a node; one more host knows everyone, and nobody lists it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tensorlane_client::{Client, Error};
use tensorlane_proto::{Reason, Reference};

use super::history::{Books, Recorder, What};
use super::orders::{Fault, Who};
use super::plan::{LARGE, MEMBERS, NODE, STRANGER};
use crate::netns::{Entry, Peers};
use crate::process::{signal, stop};
use crate::sidecar::SidecarOptions;

/// `gc.leaseGrace` of every sidecar, in milliseconds.
pub const GRACE_MS: u64 = 3000;
/// Time that everyone may take to see everyone again, and all to become free.
const PATIENCE: Duration = Duration::from_secs(40);
/// Time for which everyone must see everyone. A connection that a short cut has killed counts as one until
/// `deadlines.progress` (2 s).
const STEADY: Duration = Duration::from_millis(2500);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time that one question to a sidecar may take.
const ANSWER: Duration = Duration::from_secs(2);

/// Transports of large tensors to each host.
const PREFER: [&str; 3] = ["tcp", "measured", "quic"];

/// All hosts. Dropping it ends them.
pub struct World {
    peers: Peers,
    recorder: Arc<Recorder>,
    /// For questions that are no part of the plan.
    monitors: Vec<Option<Client>>,
    _node: TempDir,
}

impl World {
    /// Starts everything.
    ///
    /// # Panics
    /// Without root, and where something does not start.
    pub fn start(recorder: &Arc<Recorder>) -> Self {
        let node = tempfile::Builder::new().prefix("tensorlane-soak-").tempdir().expect("a folder");
        let shared = node.path().display().to_string();
        let peers = Peers::with_stranger(MEMBERS, |host, options: SidecarOptions| {
            let options = options
                .set("arena.size", "256Mi")
                .set("gc.leaseGrace", format!("{GRACE_MS}ms"))
                .set("peers.fanOutFrom", LARGE)
                .set("prefer", PREFER[host % PREFER.len()])
                // A machine that stands still for a second cuts nothing: no fault would explain what comes of it.
                .default_of("deadlines.progress");
            if NODE.contains(&host) { options.set("node.directory", &shared) } else { options }
        });
        let monitors = (0..=STRANGER).map(|_| None).collect();
        let mut world = Self { peers, recorder: Arc::clone(recorder), monitors, _node: node };
        assert!(world.settled(), "the members do not meet");
        world
    }

    /// Begins a history with what there is.
    ///
    /// # Panics
    /// Where a sidecar does not answer.
    pub fn introduce(&mut self, seed: u64) {
        let (node, stranger, grace_ms) = (NODE.to_vec(), STRANGER, GRACE_MS);
        self.recorder.note(What::World { seed, node, stranger, grace_ms });
        for host in 0..=STRANGER {
            self.born(host);
        }
    }

    /// Path at which the sockets of a host's sidecar are.
    pub fn sockets(&self, host: usize) -> PathBuf {
        self.peers.sidecars[host].sockets()
    }

    /// Resident bytes of the sidecars of all members.
    pub fn resident(&self) -> u64 {
        let of = |host: usize| {
            let stat = std::fs::read_to_string(format!("/proc/{}/statm", self.peers.sidecars[host].pid()));
            let pages = stat.ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
            pages.unwrap_or(0) * 4096
        };
        (0..MEMBERS).map(of).sum()
    }

    fn born(&mut self, host: usize) {
        let life = self.peers.client(host).incarnation().expect("it welcomes").to_string();
        self.recorder.note(What::Born { who: Who::Sidecar(host), life });
    }

    fn members(&self) -> Vec<Entry> {
        (0..MEMBERS).map(|host| self.peers.entry(host)).collect()
    }

    fn list(&self, host: usize) {
        self.peers.list(host, &self.members());
    }

    /// Does something to it.
    ///
    /// # Panics
    /// Where the machine refuses.
    pub fn hurt(&mut self, fault: Fault) {
        self.recorder.note(What::Hurt { fault });
        match fault {
            Fault::Cut(host) => self.peers.network.cut(host),
            Fault::Lose(from, to) => self.peers.network.lose(from, to),
            Fault::Stop(host) => stop(self.peers.sidecars[host].pid()),
            Fault::Directory(host) => self.peers.garble(host),
            Fault::Kill(host) => {
                let who = Who::Sidecar(host);
                self.recorder.note(What::Killing { who });
                self.peers.sidecars[host].kill();
                self.recorder.note(What::Gone { who });
            }
        }
    }

    /// Ends what was done.
    ///
    /// # Panics
    /// Where the machine refuses, and where a sidecar does not start again.
    pub fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::Cut(host) => self.peers.network.mend(host),
            Fault::Lose(from, to) => self.peers.network.find(from, to),
            Fault::Stop(host) => signal(self.peers.sidecars[host].pid(), Signal::CONT),
            Fault::Directory(host) => self.list(host),
            Fault::Kill(host) => {
                self.peers.sidecars[host].start_again();
                self.born(host);
            }
        }
        self.recorder.note(What::Mended { fault });
    }

    /// Waits until every member sees every other, and writes down whether it came about.
    pub fn settle(&mut self) -> bool {
        if self.settled() {
            self.recorder.note(What::Settled);
            return true;
        }
        let seen = format!("{:?}", (0..MEMBERS).map(|host| self.states(host)).collect::<Vec<_>>());
        self.recorder.note(What::Unsettled { seen });
        false
    }

    fn settled(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let mut steady: Option<Instant> = None;
        while Instant::now() < deadline {
            let all = (0..MEMBERS).all(|host| {
                let seen = self.states(host);
                seen.iter().filter(|(_, state)| state == "connected").count() + 1 == MEMBERS
            });
            let since = steady.get_or_insert_with(Instant::now);
            if !all {
                steady = None;
            } else if since.elapsed() >= STEADY {
                return true;
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
        false
    }

    /// States of the others as a sidecar sees them; nothing if it does not answer.
    fn states(&mut self, host: usize) -> Vec<(String, String)> {
        let peers = self.monitor(host).and_then(|client| client.peers());
        peers.map_or_else(
            |_| Vec::new(),
            |peers| peers.into_iter().map(|peer| (peer.name, peer.state)).collect(),
        )
    }

    fn monitor(&mut self, host: usize) -> Result<Client, Error> {
        if let Some(client) = &self.monitors[host] {
            return Ok(client.clone());
        }
        let client = Client::connect(self.sockets(host))?.with_deadline(ANSWER);
        self.monitors[host] = Some(client.clone());
        Ok(client)
    }

    fn books(&mut self, host: usize) -> Result<Books, Error> {
        let status = self.monitor(host)?.status()?;
        let arena = status.arena.unwrap_or_default();
        Ok(Books {
            total: arena.total,
            free: arena.free,
            reserved: arena.reserved,
            sealed: arena.sealed,
            held: arena.held,
            retired: arena.retired,
            tensors: status.tensors,
            leases: status.leases,
            names: status.names,
            tickets: status.tickets,
            waiting: status.waiting,
        })
    }

    /// Writes the books of a sidecar down, if it answers.
    pub fn audit(&mut self, host: usize) {
        if let Ok(books) = self.books(host) {
            self.recorder.note(What::Audited { host, books, last: false });
        }
    }

    /// Waits until nothing is left at a sidecar, and writes down what its books say then, or at the end of the patience.
    pub fn last_audit(&mut self, host: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut books = Books::default();
        while Instant::now() < deadline {
            // A session that was lost is told once.
            if let Ok(said) = self.books(host) {
                books = said;
                if books.all_free() {
                    break;
                }
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
        self.recorder.note(What::Audited { host, books, last: true });
    }

    /// Asks the owner of a tensor whether it lives, until it does not or `within` after its first answer is over, and writes
    /// down the last answer: that it lives is no wonder while the machine has not come to telling the owner otherwise.
    pub fn probe(&mut self, host: usize, reference: &str, within: Duration) {
        let Ok(parsed) = reference.parse::<Reference>() else { return };
        let mut first = None;
        loop {
            let asked = self.recorder.now();
            let said = self.monitor(host).and_then(|client| client.describe(&parsed));
            match said {
                Ok(description) => {
                    if first.get_or_insert_with(Instant::now).elapsed() >= within {
                        return self.probed(reference, (asked, Some(description.leases)));
                    }
                }
                Err(error) if matches!(error.reason(), Some(Reason::NotFound | Reason::OwnerLost)) => {
                    return self.probed(reference, (asked, None));
                }
                // It is down or stopped: another time.
                Err(_) => return,
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    fn probed(&self, reference: &str, (asked, leases): (u64, Option<u64>)) {
        self.recorder.note(What::Probed { reference: reference.to_owned(), asked, leases });
    }
}
