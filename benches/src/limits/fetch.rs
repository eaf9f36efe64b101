//! Bytes that go between two hosts, fetched again and again in the quickest of several ways, which is found by trying.
//! Knows neither sockets nor protocols: its ends do.

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::ends;
use crate::hosts::TwoHosts;
use crate::stats;
use crate::worker::{At, Worker};

/// Fetches that decide which way is the best.
const TRIES: usize = 3;

/// Way to fetch, and both ends of it.
#[derive(Debug)]
pub(super) struct Fetch<W> {
    fetch: Worker,
    _send: Worker,
    /// Way of the bytes.
    pub(super) way: W,
    /// Number of connections or streams.
    pub(super) count: usize,
}

impl<W: Copy + ValueEnum> Fetch<W> {
    /// The best of these ways, each over so many. Host A is the first end and sends, host B the second one and fetches.
    ///
    /// # Errors
    /// They do not start.
    pub(super) fn best(
        hosts: &TwoHosts,
        bytes: u64,
        ends: [&str; 2],
        ways: impl IntoIterator<Item = (W, usize)>,
    ) -> Result<Self> {
        let mut best: Option<(f64, Self)> = None;
        for (way, count) in ways {
            let mut fetch = Self::start(hosts, bytes, ends, way, count)?;
            fetch.seconds()?;
            let took = (0..TRIES).map(|_| fetch.seconds()).collect::<Result<Vec<_>>>()?;
            let took = stats::median(&took).context("no fetch was tried")?;
            if best.as_ref().is_none_or(|(least, _)| took < *least) {
                best = Some((took, fetch));
            }
        }
        Ok(best.context("no way to fetch")?.1)
    }

    fn start(hosts: &TwoHosts, bytes: u64, [send, fetch]: [&str; 2], way: W, count: usize) -> Result<Self> {
        let word = way.to_possible_value().context("every way has a word")?.get_name().to_owned();
        let words = [hosts.a.free_address()?.to_string(), bytes.to_string(), word, count.to_string()];
        let start = |host, end: &str| {
            let at = At { host: Some(host), core: None };
            let words: Vec<_> =
                [end].into_iter().chain(words.iter().map(String::as_str)).map(AsRef::as_ref).collect();
            ends::start(at, &words)
        };
        let send = start(&hosts.a, send)?;
        let fetch = start(&hosts.b, fetch)?;
        Ok(Self { fetch, _send: send, way, count })
    }

    /// The seconds of one fetch.
    ///
    /// # Errors
    /// An end is gone.
    pub(super) fn seconds(&mut self) -> Result<f64> {
        self.fetch.ask(&())
    }
}
