//! A workload of the soak: orders as lines of JSON in, outcomes as lines of JSON out. It ends when its input does.
//!
//! It decides nothing: what it is told, and what it answers, stands in `soak/orders.rs`.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use tensorlane_client::{
    AcquireOptions, Client, Error, Moved, PutOptions, Refused, Reservation, Result, RetryId, Stored, Target,
    Tensor,
};
use tensorlane_proto::selection::Range;
use tensorlane_proto::{Layout, Reference, Selection, Transport};
use tensorlane_tests::soak::orders::{Order, Outcome, Verb, name_of};
use tensorlane_tests::tensors::{pattern, put_pattern, seeded};

/// Time that a put waits for room.
const ROOM: Duration = Duration::from_secs(2);
/// Deadline of calls that have none of their own.
const DEADLINE: Duration = Duration::from_secs(4);
/// Number of times that a put is made again that ended without an answer.
const REPEATS: u32 = 1;

struct Actor {
    sockets: PathBuf,
    client: Option<Client>,
    stored: HashMap<u64, Stored>,
    reserved: HashMap<u64, Reservation>,
    slots: HashMap<u64, Tensor>,
}

fn main() -> ExitCode {
    let Some(sockets) = std::env::args_os().nth(1) else {
        eprintln!("usage: actor SOCKETS");
        return ExitCode::FAILURE;
    };
    let mut actor = Actor {
        sockets: sockets.into(),
        client: None,
        stored: HashMap::new(),
        reserved: HashMap::new(),
        slots: HashMap::new(),
    };
    say("ready");
    for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
        let order: Order = serde_json::from_str(&line).expect("an order");
        let outcome = actor.obey(&order).unwrap_or_else(|error| actor.failed(&error));
        say(&serde_json::to_string(&outcome).expect("an outcome is JSON"));
    }
    ExitCode::SUCCESS
}

/// Prints one line, at once. Who does not listen any more has killed us or soon will.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

impl Actor {
    fn failed(&mut self, error: &Error) -> Outcome {
        if matches!(error, Error::SidecarUnreachable { .. }) {
            // It has waited long enough for another sidecar to come; a new one is told at once while there is none.
            self.client = None;
        }
        let reason = word(error);
        Outcome::Failed { reason, told: error.to_string() }
    }
}

fn word(error: &Error) -> String {
    match error {
        Error::Refused(failure) => failure.reason.to_string(),
        Error::SessionLost { .. } => "lost".to_owned(),
        Error::SidecarUnreachable { .. } => "unreachable".to_owned(),
        Error::DeadlineExceeded { .. } => "deadline".to_owned(),
        _ => "other".to_owned(),
    }
}

impl Actor {
    /// The client; made at the first order that finds a sidecar.
    fn client(&mut self) -> Result<Client> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = Client::options(&self.sockets).deadline(DEADLINE).connect()?;
        self.client = Some(client.clone());
        Ok(client)
    }

    fn obey(&mut self, order: &Order) -> Result<Outcome> {
        // The plan thought that it was killed meanwhile, and it had just not been there. A session that repeats a put has one
        // lease and would have two guards.
        let has_it = match order.verb {
            Verb::Put { tensor, .. } => self.stored.contains_key(&tensor),
            Verb::Hold { slot, .. } => self.slots.contains_key(&slot),
            _ => false,
        };
        if has_it {
            return Ok(Outcome::Unasked);
        }
        let reference = || order.reference.as_deref().and_then(|text| Reference::from_str(text).ok());
        match order.verb {
            Verb::Put { tensor, seed, bytes, named, checksum } => {
                let name = named.then(|| name_of(tensor));
                let retry_id = Some(RetryId(u128::from(tensor).to_be_bytes()));
                let deadline = Some(ROOM);
                self.put(
                    tensor,
                    seed,
                    bytes,
                    &PutOptions { name, checksum, retry_id, deadline, ..PutOptions::new() },
                )
            }
            Verb::Reserve { tensor, seed, bytes } => self.reserve(tensor, seed, bytes),
            Verb::Seal { tensor } => self.seal(tensor),
            Verb::Abort { tensor } => Ok(self.reserved.remove(&tensor).map_or(Outcome::Unasked, |gone| {
                gone.abort();
                Outcome::Done
            })),
            Verb::Release { tensor } => {
                let stored = self.stored.remove(&tensor);
                self.given_back(stored)
            }
            Verb::Get { tensor, part, by_name, deadline_ms } => {
                let target =
                    if by_name { Some(Target::name(name_of(tensor))) } else { reference().map(Target::from) };
                let Some(target) = target else { return Ok(Outcome::Unasked) };
                let mut options = AcquireOptions::new().deadline(Duration::from_millis(deadline_ms));
                if let Some((from, to)) = part {
                    options = options.selection(Selection::Ranges(vec![Range::new(from, to)]));
                }
                Ok(got(&self.client()?.acquire(target, &options)?))
            }
            Verb::Hold { slot, deadline_ms, .. } => {
                let Some(reference) = reference() else { return Ok(Outcome::Unasked) };
                let options = AcquireOptions::new().deadline(Duration::from_millis(deadline_ms));
                let tensor = self.client()?.acquire(&reference, &options)?;
                let outcome = got(&tensor);
                self.slots.insert(slot, tensor);
                Ok(outcome)
            }
            Verb::Look { slot } => Ok(self.slots.get(&slot).map_or(Outcome::Unasked, |tensor| {
                let seen = tensor.to_vec();
                let live = tensor.lease().is_live();
                Outcome::Seen { bytes: seen.len() as u64, crc: crc32c::crc32c(&seen), live }
            })),
            Verb::Drop { slot } => {
                let tensor = self.slots.remove(&slot);
                self.given_back(tensor)
            }
            Verb::Clear => self.clear(),
        }
    }

    fn put(&mut self, tensor: u64, seed: u64, bytes: u64, options: &PutOptions) -> Result<Outcome> {
        let client = self.client()?;
        let mut result = put_pattern(&client, seed, bytes, options);
        for _ in 0..REPEATS {
            // It may have been done: the same again is safe.
            if matches!(result, Err(Error::SessionLost { .. } | Error::DeadlineExceeded { .. })) {
                result = put_pattern(&client, seed, bytes, options);
            }
        }
        let stored = result?;
        let reference = stored.reference().to_string();
        self.stored.insert(tensor, stored);
        Ok(Outcome::Stored { reference })
    }

    fn reserve(&mut self, tensor: u64, seed: u64, bytes: u64) -> Result<Outcome> {
        let client = self.client()?;
        let descriptor = seeded(seed, bytes);
        let mut reservation = client.reserve(&descriptor)?;
        reservation.copy_from(0, &pattern(seed, bytes as usize))?;
        let layout: &Layout = &descriptor.layout;
        let reference = Reference::new(
            client.exchange()?,
            client.peer()?,
            client.incarnation()?,
            reservation.id(),
            layout,
        );
        self.reserved.insert(tensor, reservation);
        Ok(Outcome::Reserved { reference: reference.to_string() })
    }

    fn seal(&mut self, tensor: u64) -> Result<Outcome> {
        let Some(reservation) = self.reserved.remove(&tensor) else { return Ok(Outcome::Unasked) };
        let stored = reservation.seal(&PutOptions::new())?;
        let reference = stored.reference().to_string();
        self.stored.insert(tensor, stored);
        Ok(Outcome::Stored { reference })
    }

    /// Drops it, and waits until the sidecar knows.
    fn given_back<T>(&mut self, what: Option<T>) -> Result<Outcome> {
        if what.is_none() {
            return Ok(Outcome::Unasked);
        }
        drop(what);
        self.client()?.flush()?;
        Ok(Outcome::Done)
    }

    fn clear(&mut self) -> Result<Outcome> {
        self.stored.clear();
        self.reserved.clear();
        self.slots.clear();
        let client = self.client()?;
        client.flush()?;
        let names: Vec<String> = client.list("").map(|listed| Ok(listed?.name)).collect::<Result<_>>()?;
        for unnamed in client.unname(&names)? {
            match unnamed {
                // The other workload of the host takes them away, too.
                Err(error) if error.reason() != Some(tensorlane_proto::Reason::NotFound) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(Outcome::Done)
    }
}

fn got(tensor: &Tensor) -> Outcome {
    let seen = tensor.to_vec();
    let word = |transport: Option<Transport>| transport.map_or("unknown", Transport::as_str).to_owned();
    let Moved { transport, bytes: moved, refusals, .. } = tensor.moved();
    let refused = |Refused { transport, why }: &Refused| format!("{}: {why}", word(*transport));
    Outcome::Got {
        bytes: seen.len() as u64,
        crc: crc32c::crc32c(&seen),
        transport: word(*transport),
        refused: refusals.iter().map(refused).collect(),
        moved: *moved,
    }
}
