//! A workload for the suites: told line by line what to do, it answers with one line each.
//!
//! ```text
//! acquire TARGET...        acquired N         leases and maps tensors by name or reference, and holds them
//! hold PREFIX              held N             the same for every name that begins so
//! read SECONDS TARGET      read TRANSPORT     looks at every byte of a tensor within so many seconds, and gives it back
//! pages TARGET             pages WHERE        which pages of which file a tensor is mapped from; gives it back
//! verify                   intact N           every held tensor shows the bytes that its metadata promise
//! drop                     dropped N          gives back what is held
//! put NAME BYTES SEED      put REFERENCE      stores a pattern and holds the lease
//! store BYTES SEED         stored REFERENCE   the same without a name
//! fill BYTES SEED          filled N           stores patterns until the arena is full, and holds the leases
//! reserve BYTES            reserved ID        writes half of a reservation and neither seals nor aborts it
//! leases TARGET            leases N           how many there are on a tensor, of sessions and peers
//! sealed                   sealed N           bytes of the arena in sealed tensors
//! status                   ok INCARNATION     one call
//! fork                     child PID          a child that inherits everything and does nothing until it is killed
//! fork-watch               child PID          a child that says whether all is intact, stops itself, says it again, ends
//! fork-drop                child PID          the same; it has looked at what is held and dropped it
//! acquire-loop PREFIX      looping, then one line every hundred rounds; never ends by itself
//! churn SEED ROUNDS        churned N          puts, names, gets and drops at random, each tensor checked; N gets of others'
//! put-loop BYTES SEED      looping, then one line every hundred rounds; never ends by itself
//! map SET FIRST STOP       mapped VERSION, or copied VERSION: rows of a mutable set, which are held
//! value                    value BYTE that is everywhere in what is held, or value mixed
//! commit-loop SET SEED     looping, then one line every ten commits of a mutable set; never ends by itself
//! ```
//!
//! A call that fails is answered with `error KIND`, where the kind is a reason of the sidecar or one of the client's own.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use tensorlane_client::set::mutable::Place;
use tensorlane_client::{
    AcquireOptions, Client, Error, PutOptions, Reservation, Result, Stored, Target, Tensor,
};
use tensorlane_memory::fork::spawn_child;
use tensorlane_proto::generated::SetLeaf;
use tensorlane_proto::{Range, Reason, Reference, Selection};
use tensorlane_tests::sidecar::session;
use tensorlane_tests::tensors::{Numbers, is_intact, pages, pattern, put_pattern, seeded};

/// Time that a put of `fill` waits before the arena counts as full.
const FULL_AFTER: Duration = Duration::from_millis(300);
/// Number of times in all that the sidecar may say so too late for its client, as on a busy machine.
const LATE_MOST: u32 = 8;

struct Workload {
    client: Client,
    tensors: Vec<Tensor>,
    stored: Vec<Stored>,
    reservations: Vec<Reservation>,
    /// Number of answers that came too late.
    late: u32,
}

fn main() -> ExitCode {
    let Some(sockets) = std::env::args_os().nth(1) else {
        eprintln!("usage: workload SOCKETS");
        return ExitCode::FAILURE;
    };
    let client = match session(sockets) {
        Ok(client) => client,
        Err(error) => {
            say(&format!("error {error}"));
            return ExitCode::FAILURE;
        }
    };
    let mut workload =
        Workload { client, tensors: Vec::new(), stored: Vec::new(), reservations: Vec::new(), late: 0 };
    say("ready");
    for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = workload.obey(&words);
        say(&answer.unwrap_or_else(|error| format!("error {}", kind(&error))));
    }
    ExitCode::SUCCESS
}

/// Prints one line, at once. Who does not listen any more has killed us or soon will.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn kind(error: &Error) -> String {
    match error {
        Error::Refused(failure) => failure.reason.to_string(),
        Error::SessionLost { .. } => "lost".to_owned(),
        Error::SidecarUnreachable { .. } => "unreachable".to_owned(),
        Error::Forked => "forked".to_owned(),
        Error::DeadlineExceeded { .. } => "deadline".to_owned(),
        other => other.to_string(),
    }
}

fn target(word: &str) -> Target {
    Reference::from_str(word).map_or_else(|_| Target::name(word), Target::from)
}

fn number<T: FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is not a number"))
}

impl Workload {
    fn obey(&mut self, words: &[&str]) -> Result<String> {
        match words {
            ["acquire", targets @ ..] => self.acquire(targets.iter().map(|word| target(word)).collect()),
            ["hold", prefix] => self.hold(prefix),
            ["read", seconds, of] => self.read(Duration::from_secs(number(seconds)), target(of)),
            ["pages", of] => {
                Ok(format!("pages {}", pages(&self.client.acquire(target(of), &AcquireOptions::new())?)))
            }
            ["verify"] => Ok(self.verify()),
            ["drop"] => Ok(format!("dropped {}", self.drop_all()?)),
            ["put", name, bytes, seed] => self.put(name, number(bytes), number(seed)),
            ["store", bytes, seed] => self.store(number(bytes), number(seed)),
            ["fill", bytes, seed] => self.fill(number(bytes), number(seed)),
            ["reserve", bytes] => self.reserve(number(bytes)),
            ["leases", of] => Ok(format!("leases {}", self.client.describe(target(of))?.leases)),
            ["sealed"] => Ok(format!("sealed {}", self.client.status()?.arena.unwrap_or_default().sealed)),
            ["status"] => Ok(format!("ok {}", self.client.status()?.incarnation)),
            ["fork"] => Ok(fork(|| ())),
            ["fork-watch"] => Ok(self.fork_watch()),
            ["fork-drop"] => Ok(self.fork_and_drop()),
            ["acquire-loop", prefix] => self.acquire_loop(prefix),
            ["churn", seed, rounds] => self.churn(number(seed), number(rounds)),
            ["put-loop", bytes, seed] => self.put_loop(number(bytes), number(seed)),
            ["commit-loop", set, seed] => self.commit_loop(set, number(seed)),
            ["map", set, first, stop] => self.map(set, number(first), number(stop)),
            ["value"] => Ok(self.value()),
            other => panic!("this cannot be asked of a workload: {other:?}"),
        }
    }

    fn acquire(&mut self, targets: Vec<Target>) -> Result<String> {
        let before = self.tensors.len();
        for tensor in self.client.acquire_many(&targets, &AcquireOptions::new()) {
            self.tensors.push(tensor?);
        }
        Ok(format!("acquired {}", self.tensors.len() - before))
    }

    fn hold(&mut self, prefix: &str) -> Result<String> {
        let targets = self.named(prefix)?;
        self.acquire(targets)?;
        Ok(format!("held {}", self.tensors.len()))
    }

    fn named(&self, prefix: &str) -> Result<Vec<Target>> {
        self.client.list(prefix).map(|listed| Ok(Target::name(listed?.name))).collect()
    }

    fn read(&self, within: Duration, of: Target) -> Result<String> {
        let tensor = self.client.with_deadline(within).acquire(of, &AcquireOptions::new())?;
        let word = if is_intact(&tensor) { "read" } else { "damaged" };
        Ok(format!("{word} {}", tensor.moved().transport.map_or("unknown", |transport| transport.as_str())))
    }

    fn verify(&self) -> String {
        match self.tensors.iter().find(|tensor| !is_intact(tensor)) {
            None => format!("intact {}", self.tensors.len()),
            Some(tensor) => format!("damaged {tensor:?}"),
        }
    }

    fn drop_all(&mut self) -> Result<usize> {
        let held = self.tensors.len() + self.stored.len() + self.reservations.len();
        self.tensors.clear();
        self.stored.clear();
        self.reservations.clear();
        self.client.flush()?;
        Ok(held)
    }

    fn put(&mut self, name: &str, bytes: u64, seed: u64) -> Result<String> {
        let stored = put_pattern(&self.client, seed, bytes, &PutOptions::named(name))?;
        let answer = format!("put {}", stored.reference());
        self.stored.push(stored);
        Ok(answer)
    }

    fn store(&mut self, bytes: u64, seed: u64) -> Result<String> {
        let stored = put_pattern(&self.client, seed, bytes, &PutOptions::new())?;
        let answer = format!("stored {}", stored.reference());
        self.stored.push(stored);
        Ok(answer)
    }

    /// Returns whether an answer came too late for its client, and not often.
    fn is_late(&mut self, error: &Error) -> bool {
        let is_late = matches!(error, Error::DeadlineExceeded { .. });
        self.late += u32::from(is_late);
        is_late && self.late <= LATE_MOST
    }

    fn fill(&mut self, bytes: u64, seed: u64) -> Result<String> {
        let options = PutOptions { deadline: Some(FULL_AFTER), ..PutOptions::new() };
        self.late = 0;
        for seed in seed.. {
            match put_pattern(&self.client, seed, bytes, &options) {
                Ok(stored) => {
                    self.tensors.push(self.client.acquire(stored.reference(), &AcquireOptions::new())?);
                    self.stored.push(stored);
                }
                Err(error) if error.reason() == Some(Reason::ArenaFull) => break,
                Err(error) if self.is_late(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(format!("filled {}", self.stored.len()))
    }

    fn reserve(&mut self, bytes: u64) -> Result<String> {
        let mut reservation = self.client.reserve(&seeded(1, bytes))?;
        reservation.copy_from(0, &pattern(1, bytes as usize / 2))?;
        let answer = format!("reserved {}", reservation.id());
        self.reservations.push(reservation);
        Ok(answer)
    }

    fn fork_watch(&self) -> String {
        let look = || say(if self.tensors.iter().all(is_intact) { "intact" } else { "damaged" });
        let child = spawn_child(|| {
            look();
            // Until somebody lets it go on.
            let stopped =
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
            stopped.expect("a process may stop itself");
            look();
            0
        });
        format!("child {}", child.expect("a process can be forked"))
    }

    fn fork_and_drop(&mut self) -> String {
        let (tensors, client) = (&mut self.tensors, &self.client);
        // Taken in the child alone: the parent's stay where they are.
        fork(move || {
            let held = std::mem::take(tensors);
            let intact = held.iter().filter(|tensor| is_intact(tensor)).count();
            drop(held);
            let refused = client.status().map_or_else(|error| kind(&error), |_| "nothing".to_owned());
            say(&format!("saw {intact} and {refused}"));
        })
    }

    fn map(&mut self, set: &str, first: u64, stop: u64) -> Result<String> {
        let set = self.client.open_mutable_set(set)?;
        let rows = set.map(&[], &Selection::Ranges(vec![Range::new(first, stop)]))?;
        let word = if rows.is_mapped() { "mapped" } else { "copied" };
        self.tensors.extend(rows.leaves.into_iter().map(|(_, tensor)| tensor));
        Ok(format!("{word} {}", rows.version))
    }

    /// The byte that is everywhere in the held tensors.
    fn value(&self) -> String {
        let bytes: Vec<u8> = self.tensors.iter().flat_map(Tensor::to_vec).collect();
        match bytes.split_first() {
            Some((first, rest)) if rest.iter().all(|byte| byte == first) => format!("value {first}"),
            Some(_) => "value mixed".to_owned(),
            None => "value none".to_owned(),
        }
    }

    fn acquire_loop(&mut self, prefix: &str) -> Result<String> {
        let targets = self.named(prefix)?;
        say("looping");
        for round in 1u64.. {
            for tensor in self.client.acquire_many(&targets, &AcquireOptions::new()) {
                assert!(is_intact(&tensor?), "a damaged tensor in round {round}");
            }
            if round.is_multiple_of(100) {
                say(&format!("round {round}"));
            }
        }
        Ok("never".to_owned())
    }

    /// Names are shared by all who churn, so that each reads what others wrote while all of it is freed and reused.
    fn churn(&mut self, seed: u64, rounds: u64) -> Result<String> {
        let mut numbers = Numbers::of(seed);
        let mut others = 0;
        for round in 0..rounds {
            let bytes = match numbers.below(20) {
                0 => numbers.below(2 << 20),
                1..6 => numbers.below(300_000),
                _ => numbers.below(5_000),
            };
            let name = format!("churn/{}", numbers.below(16));
            // Somebody else may have named or unnamed it in the meantime.
            let mut options = PutOptions { deadline: Some(FULL_AFTER), ..PutOptions::new() };
            if numbers.below(2) == 0 {
                self.client.unname(&[&name])?;
                options.name = Some(name.clone());
            }
            match put_pattern(&self.client, seed ^ (round << 32), bytes, &options) {
                Ok(stored) => self.stored.push(stored),
                Err(error) if error.reason() == Some(Reason::NameTaken) => {}
                Err(error) if error.reason() == Some(Reason::ArenaFull) || self.is_late(&error) => {
                    // All may hold and wait, so each lets go.
                    self.drop_all()?;
                }
                Err(error) => return Err(error),
            }
            match self.client.acquire(name.as_str(), &AcquireOptions::new()) {
                Ok(tensor) => self.tensors.push(tensor),
                Err(error) if error.reason() == Some(Reason::NotFound) => {}
                Err(error) => return Err(error),
            }
            if self.stored.len() > 6 {
                drop(self.stored.swap_remove(numbers.below(6) as usize));
            }
            if self.tensors.len() > 6 {
                let tensor = self.tensors.swap_remove(numbers.below(6) as usize);
                assert!(is_intact(&tensor), "{tensor:?} is damaged in round {round}");
                others += 1;
            }
        }
        Ok(format!("churned {others}"))
    }

    fn put_loop(&mut self, bytes: u64, seed: u64) -> Result<String> {
        say("looping");
        for round in 1u64.. {
            let stored = put_pattern(&self.client, seed + round, bytes, &PutOptions::new())?;
            let tensor = self.client.acquire(stored.reference(), &AcquireOptions::new())?;
            assert!(is_intact(&tensor), "a damaged tensor in round {round}");
            if round.is_multiple_of(100) {
                say(&format!("round {round}"));
            }
        }
        Ok("never".to_owned())
    }

    /// Writes all rows of a set of bytes, each time with one value in every byte of every leaf.
    fn commit_loop(&mut self, set: &str, seed: u64) -> Result<String> {
        let set = self.client.open_mutable_set(set)?;
        let rows = set.rows();
        say("looping");
        for round in 1u64.. {
            let value = ((seed + round) % 255 + 1) as u8;
            let bytes =
                |leaf: &SetLeaf| vec![value; (rows * leaf.row_shape.iter().product::<u64>()) as usize];
            let leaves: Vec<_> = set.leaves().iter().map(|leaf| (leaf.key.as_str(), bytes(leaf))).collect();
            let leaves = leaves.iter().map(|(key, bytes)| (*key, &bytes[..])).collect();
            set.write(&Place::Rows(Selection::All), rows, &leaves, None)?;
            if round.is_multiple_of(10) {
                say(&format!("round {round}"));
            }
        }
        Ok("never".to_owned())
    }
}

/// A child that does `first` and then nothing, until it is killed.
fn fork(first: impl FnOnce()) -> String {
    let child = spawn_child(move || {
        first();
        loop {
            std::thread::park();
        }
    });
    format!("child {}", child.expect("a process can be forked"))
}
