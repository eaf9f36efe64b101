//! The rows `wait.10k*`: 16 sessions with 10,000 waits for one name beside a sidecar, and 10,000 more from 8 peers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::hosts::star::NAMES;
use tensorlane_benches::pairs::{Pair, median_us};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions, introduce_all};
use tensorlane_benches::{machine, tensors};
use tensorlane_client::{AcquireOptions, Client, PutOptions};
use tensorlane_proto::frame::{
    FAILED, HEADER_BYTES, Header, SESSION_BODY_MAX, SESSION_VERSION, SessionKind, encode, encode_into,
};
use tensorlane_proto::generated as v1;

use super::far::TLS;
use crate::context::Bench;
use crate::rows::{self, Measured};

const ARENA: u64 = 64 << 20;
/// Sessions beside the sidecar, and beside each of its peers.
const SESSIONS: usize = 16;
const SESSIONS_OF_A_PEER: usize = 2;
const PEERS: usize = 8;
/// Waits of a session: 16 have 10,000, and so have two of each of 8 peers.
const WAITS: usize = 625;
const ROUNDS: usize = 5;
/// Gets of one side of a pair.
const GETS: usize = 2001;
/// Longer than any round.
const PATIENCE: Duration = Duration::from_secs(60);
const AWAITED: &str = "awaited";
const THERE: &str = "there";

pub(crate) fn run(bench: &Bench, hosts: &TwoHosts) -> Result<Vec<Measured>> {
    bench.progress(&format!("{}: nine sidecars on one host, {ROUNDS} rounds", rows::WAIT_10K.name));
    let scratch = Scratch::make()?;
    let start = |name| {
        let options =
            SidecarOptions { host: Some(&hosts.a), settings: TLS, ..SidecarOptions::new(name, ARENA) };
        Sidecar::start(&options, &bench.programs, &scratch)
    };
    let sidecars = NAMES.into_iter().take(PEERS + 1).map(start).collect::<Result<Vec<_>>>()?;
    introduce_all(&sidecars)?;
    let (here, peers) = sidecars.split_first().context("there are nine")?;
    let client = here.client()?;
    let (descriptor, content) = (tensors::bytes(4096)?, tensors::content(4096));
    let there = client.put(&descriptor, &content, &PutOptions::named(THERE))?;
    let (mut gets, mut answered, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let limit = Some(get_us(&client)?);
        let before = anonymous(here)?;
        let mut waiting =
            (0..SESSIONS).map(|_| Waiting::begin(here.sockets())).collect::<Result<Vec<_>>>()?;
        let grown = anonymous(here)?.saturating_sub(before) as f64 / (SESSIONS * WAITS) as f64;
        memory.push(Pair { value: grown, limit: None });
        for peer in peers {
            for _ in 0..SESSIONS_OF_A_PEER {
                waiting.push(Waiting::begin(peer.sockets())?);
            }
        }
        gets.push(Pair { value: get_us(&client)?, limit });
        let put = || Ok(client.put(&descriptor, &content, &PutOptions::named(AWAITED))?);
        let (stored, took) = all_answered(waiting, put)?;
        answered.push(Pair { value: took.as_secs_f64() * 1e3, limit: None });
        client.unname(&[AWAITED])?.into_iter().collect::<Result<Vec<_>, _>>()?;
        drop(stored);
    }
    // What a round leaves is used by the next one: the first one alone grew from nothing.
    memory.truncate(1);
    drop((there, client));
    sidecars.into_iter().try_for_each(Sidecar::end)?;
    let measured =
        [(&rows::WAIT_10K, gets), (&rows::WAIT_10K_ANSWERED, answered), (&rows::WAIT_10K_MEMORY, memory)];
    Ok(measured.map(|(row, pairs)| Measured::new(row, pairs)).into())
}

/// Microseconds of a get of a tensor of this pod by its name.
fn get_us(client: &Client) -> Result<f64> {
    median_us(GETS, || {
        let tensor = client.acquire(THERE, &AcquireOptions::new())?;
        drop(tensor);
        Ok(())
    })
}

/// Bytes of memory that are the sidecar's own.
fn anonymous(sidecar: &Sidecar) -> Result<u64> {
    machine::bytes_of(&format!("/proc/{}/status", sidecar.process().id()), "RssAnon:")
}

/// Makes the name appear, and waits until all have their answers: what was made, and how long the last one took.
fn all_answered<T>(waiting: Vec<Waiting>, appear: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    thread::scope(|scope| {
        let all: Vec<_> = waiting.into_iter().map(|one| scope.spawn(move || one.answered())).collect();
        let begun = Instant::now();
        let appeared = appear()?;
        let mut last = begun;
        for one in all {
            last = last.max(one.join().map_err(|_| anyhow!("who waits panicked"))??);
        }
        Ok((appeared, last - begun))
    })
}

/// A session whose calls all wait for one name: as many threads would be in the way of what is measured.
struct Waiting(UnixStream);

impl Waiting {
    /// Begins all waits of a session.
    fn begin(sockets: &Path) -> Result<Self> {
        let socket = UnixStream::connect(sockets.join("session.sock"))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut waiting = Self(socket);
        let hello = v1::SessionHello { version: SESSION_VERSION, client: "waits".into() };
        waiting.0.write_all(&encode(SessionKind::Hello.into(), 0, 1, &hello))?;
        waiting.next()?;
        let wait_ms = PATIENCE.as_millis() as u64;
        let lookup =
            v1::LookupRequest { names: vec![AWAITED.into()], wait_ms, ..v1::LookupRequest::default() };
        let mut calls = Vec::new();
        for call in 0..WAITS {
            encode_into(&mut calls, SessionKind::Lookup.into(), 0, 2 + call as u64, &lookup);
        }
        encode_into(&mut calls, SessionKind::Status.into(), 0, 1, &v1::StatusRequest {});
        waiting.0.write_all(&calls)?;
        // Frames are taken in their order: by this answer all waits have begun.
        let status = waiting.next()?;
        ensure!(status.kind == u16::from(SessionKind::Status), "a wait ended before its name was there");
        Ok(waiting)
    }

    /// The moment at which the last answer was there.
    fn answered(mut self) -> Result<Instant> {
        for _ in 0..WAITS {
            let answer = self.next()?;
            ensure!(answer.kind == u16::from(SessionKind::Lookup), "another answer than to a wait");
        }
        Ok(Instant::now())
    }

    /// The next answer, which is none of a failure.
    fn next(&mut self) -> Result<Header> {
        let mut head = [0; HEADER_BYTES];
        self.0.read_exact(&mut head)?;
        let header = Header::decode(&head, SESSION_BODY_MAX)?;
        let mut body = vec![0; header.length as usize];
        self.0.read_exact(&mut body)?;
        ensure!(header.flags & FAILED == 0, "a call failed");
        Ok(header)
    }
}
