//! History of what happened, in the order in which it was written down: plain data, one line of JSON an event.
//!
//! A call is written down before it is made and after it was answered, a kill before the signal and after the end. So what
//! really happened lies between the two, and the order of the lines proves an order of the things.

use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::orders::{Actor, Fault, Outcome, Verb, Who};

/// A single line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Microseconds since the first event.
    pub at: u64,
    /// Content: what happened.
    #[serde(flatten)]
    pub what: What,
}

/// Content of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The first of a history.
    World {
        /// Seed from which all steps follow.
        seed: u64,
        /// Hosts that share a directory of their node.
        node: Vec<usize>,
        /// The host that nobody lists.
        stranger: usize,
        /// Lifetime of the leases of a lost peer, in milliseconds.
        grace_ms: u64,
    },
    /// A process runs.
    Born {
        /// Process that runs now.
        who: Who,
        /// Incarnation of a sidecar, or process id of a workload.
        life: String,
    },
    /// Killed from now on.
    Killing {
        /// Process that is killed.
        who: Who,
    },
    /// Ended.
    Gone {
        /// Process that has ended.
        who: Who,
    },
    /// A fault begins.
    Hurt {
        /// Fault that begins.
        fault: Fault,
    },
    /// A fault has ended.
    Mended {
        /// Fault that has ended.
        fault: Fault,
    },
    /// Everyone sees everyone else again.
    Settled,
    /// State of the world that did not come about.
    Unsettled {
        /// States of the peers: who saw whom how.
        seen: String,
    },
    /// A call will be made now.
    Began {
        /// The number of its step.
        call: u64,
        /// Actor that makes the call.
        actor: Actor,
        /// Order that the call carries out.
        verb: Verb,
        /// The tensor that it is about, where it has been put.
        reference: Option<String>,
    },
    /// A call has been answered.
    Ended {
        /// The number of its step.
        call: u64,
        /// Outcome of the call.
        outcome: Outcome,
    },
    /// The owner was asked whether a tensor lives.
    Probed {
        /// The tensor.
        reference: String,
        /// Time at which it was asked, in microseconds; the answer came at the time of the event.
        asked: u64,
        /// Number of leases of the tensor; none if it is gone.
        leases: Option<u64>,
    },
    /// A sidecar told its books.
    Audited {
        /// Host whose books they are.
        host: usize,
        /// Content of the books.
        books: Books,
        /// Everything was dropped, and it had all the time that it needs.
        last: bool,
    },
}

/// The books of a sidecar; bytes of its arena and counts of its ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the words of the protocol")]
pub struct Books {
    pub total: u64,
    pub free: u64,
    pub reserved: u64,
    pub sealed: u64,
    pub held: u64,
    pub retired: u64,
    pub tensors: u64,
    pub leases: u64,
    pub names: u64,
    pub tickets: u64,
    pub waiting: u64,
}

impl Books {
    /// Returns whether nobody has anything.
    pub fn all_free(&self) -> bool {
        let lives = [self.tensors, self.leases, self.names, self.tickets, self.waiting];
        lives == [0; 5] && self.free == self.total
    }
}

/// Writes a history; shared by all who see something.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    events: Mutex<Vec<Event>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { began: Instant::now(), events: Mutex::default() }
    }
}

impl Recorder {
    /// Adds an event, and gives its time in microseconds.
    ///
    /// # Panics
    /// Where another thread panicked while it wrote.
    pub fn note(&self, what: What) -> u64 {
        // The time is taken under the lock, so that times never run against the order of the lines.
        let mut events = self.events.lock().expect("no panic while writing");
        let at = self.now();
        events.push(Event { at, what });
        at
    }

    /// Microseconds since the beginning.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Everything until now, also where a thread panicked.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything until now; the next history begins empty.
    ///
    /// # Panics
    /// As [`Recorder::note`].
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().expect("no panic while writing"))
    }
}

/// Writes a history as lines of JSON. Line `n` of the file is event `n`, counted from 1.
///
/// # Errors
/// What the writer refuses.
pub fn save(events: &[Event], mut to: impl Write) -> io::Result<()> {
    for event in events {
        writeln!(to, "{}", serde_json::to_string(event)?)?;
    }
    to.flush()
}

/// Writes a history into a file, in a folder that is made if it is not there.
///
/// # Errors
/// What the file system refuses.
pub fn save_to(events: &[Event], path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    save(events, BufWriter::new(File::create(path)?))
}

/// Keeps the history of a lap that ends in a panic: dropped by one, it writes what there is to a file and says which.
#[derive(Debug)]
pub struct Kept<'a> {
    /// The history.
    pub recorder: &'a Recorder,
    /// The file.
    pub to: &'a Path,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        match save_to(&self.recorder.events(), self.to) {
            Ok(()) => eprintln!("the history until the panic: {}", self.to.display()),
            Err(error) => eprintln!("the history could not be written to {}: {error}", self.to.display()),
        }
    }
}

/// Reads what [`save`] wrote.
///
/// # Errors
/// What cannot be read, or is no event.
pub fn load(from: impl BufRead) -> io::Result<Vec<Event>> {
    from.lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_history_reads_back_as_it_was() {
        let recorder = Recorder::default();
        let actor = Actor { host: 1, seat: 0 };
        recorder.note(What::World { seed: 7, node: vec![0, 1], stranger: 3, grace_ms: 3000 });
        recorder.note(What::Born { who: Who::Workload(actor), life: "12".into() });
        recorder.note(What::Hurt { fault: Fault::Lose(0, 1) });
        let verb = Verb::Get { tensor: 3, part: Some((1, 2)), by_name: false, deadline_ms: 5 };
        recorder.note(What::Began { call: 4, actor, verb, reference: None });
        recorder.note(What::Ended { call: 4, outcome: Outcome::Unasked });
        recorder.note(What::Audited { host: 0, books: Books::default(), last: true });
        recorder.note(What::Settled);
        let events = recorder.take();
        let mut file = Vec::new();
        save(&events, &mut file).unwrap();
        assert_eq!(load(&*file).unwrap(), events);
        assert!(recorder.take().is_empty());
    }

    #[test]
    fn the_history_of_a_panic_is_kept_and_that_of_a_lap_that_ends_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("histories/panicked.jsonl");
        let recorder = Recorder::default();
        recorder.note(What::Hurt { fault: Fault::Lose(0, 1) });
        drop(Kept { recorder: &recorder, to: &path });
        assert!(!path.exists());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _kept = Kept { recorder: &recorder, to: &path };
            let _poisoned = recorder.events.lock().unwrap();
            panic!("for the test");
        }));
        assert!(panicked.is_err());
        let kept = load(io::BufReader::new(File::open(&path).unwrap())).unwrap();
        assert_eq!((&kept, kept.len()), (&recorder.events(), 1));
    }
}
