//! Rows of a set of another host.

use std::sync::Arc;

use anyhow::Result;
use tensorlane_benches::limits::memory::Memcpy;
use tensorlane_benches::limits::round_trip::{SMALL, TcpRoundTrip};
use tensorlane_benches::limits::tls::TlsFetch;
use tensorlane_benches::pairs::interleaved;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::tensors;

use super::pod::{COMMIT, COMMITTED, Commits, GATHERED, READ, ROUND_TRIPS, TIMES, median};
use super::table::Picks;
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::groups::two_hosts;
use crate::paths::far::TLS;
use crate::rows::{Measured, sets};
use crate::tcp::two_sidecars;

const ARENA: u64 = 2 << 30;

pub(super) fn gather(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress("reads of 1,000 rows of another host: all cores, sidecars and limit alike");
    let mut fetch = TlsFetch::start(&hosts, READ as u64 * GATHERED.row_bytes)?;
    let mut tcp = TcpRoundTrip::start(&hosts, [None; 2], SMALL)?;
    let scratch = Scratch::make()?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA, [None; 2], TLS)?;
    let (owner, reader) = (a.client()?, b.client()?);
    let set = GATHERED.create(&owner, "gather", &[])?;
    GATHERED.fill(&set)?;
    let far = reader.open_mutable_set(set.reference())?;
    tensors::settle(&owner)?;
    tensors::settle(&reader)?;
    let mut picks = Picks::new();
    let ours =
        || median(TIMES, || GATHERED.read_us(&far, &picks.rows(READ, GATHERED.rows), 0)).map(|us| us / 1e3);
    let limit = || {
        let fetched = median(TIMES, || fetch.seconds())? * 1e6;
        Ok((fetched + tcp.median_us(ROUND_TRIPS)?) / 1e3)
    };
    let pairs = interleaved(PAIRS, WARM_UP, limit, ours)?;
    drop((set, far, owner, reader));
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&sets::GATHER_NET, pairs)])
}

pub(super) fn commit(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress("commits of 5 rows of 1.2 MB at another host: all cores, sidecars and limit alike");
    let bytes = COMMIT as u64 * COMMITTED.row_bytes;
    let mut fetch = TlsFetch::start(&hosts, bytes)?;
    let mut tcp = TcpRoundTrip::start(&hosts, [None; 2], SMALL)?;
    let copy = Memcpy::best(&Arc::new(vec![0x5a; bytes as usize]), bench.cores.count)?;
    let scratch = Scratch::make()?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA / 2, [None; 2], TLS)?;
    let (writer, owner) = (a.client()?, b.client()?);
    let set = COMMITTED.create(&owner, "commit", &["a"])?;
    COMMITTED.fill(&set)?;
    let far = writer.open_mutable_set(set.reference())?;
    tensors::settle(&writer)?;
    tensors::settle(&owner)?;
    let mut commits = Commits::new(COMMITTED, &far, COMMIT);
    let limit = || {
        let moved = median(TIMES, || fetch.seconds())? + median(TIMES, || copy.seconds())?;
        Ok((moved * 1e6 + 2.0 * tcp.median_us(ROUND_TRIPS)?) / 1e3)
    };
    let pairs = interleaved(PAIRS, WARM_UP, limit, || Ok(commits.us(TIMES)? / 1e3))?;
    drop((set, far, owner, writer));
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&sets::COMMIT_NET, pairs)])
}
