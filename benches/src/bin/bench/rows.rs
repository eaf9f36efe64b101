//! The rows: what each is measured against, and what it must reach.

pub(crate) mod channels;
pub(crate) mod pipes;
pub(crate) mod sets;

use tensorlane_benches::pairs::Pair;
use tensorlane_benches::stats::{self, Spread};

/// Bound that a row must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// Value by limit, for times.
    RatioAtMost(f64),
    /// Value by limit, for rates.
    RatioAtLeast(f64),
    /// Value less limit, for times to which we add about as much on every machine.
    AboveAtMost(f64),
    /// The value itself.
    ValueAtMost(f64),
    /// The value itself.
    ValueAtLeast(f64),
    /// Told, not judged.
    Reported,
}

/// A single row of the table.
#[derive(Debug, PartialEq)]
pub(crate) struct Row {
    /// Name of the row, in tables and files, for good.
    pub(crate) name: &'static str,
    /// Of value and limit.
    pub(crate) unit: &'static str,
    /// Limit: what it does.
    pub(crate) limit: &'static str,
    /// Bound that it must reach.
    pub(crate) bound: Bound,
}

const fn row(name: &'static str, unit: &'static str, limit: &'static str, bound: Bound) -> Row {
    Row { name, unit, limit, bound }
}

pub(crate) static ACQUIRE_4K: Row =
    row("local.acquire_4k", "us", "a raw Unix-socket round trip of 64 bytes", Bound::RatioAtMost(1.5));
pub(crate) static ACQUIRE_1G: Row =
    row("local.acquire_1g", "us", "local.acquire_4k", Bound::RatioAtMost(1.3));
pub(crate) static ACQUIRE_TOUCH_1G: Row = row(
    "local.acquire_touch_1g",
    "us",
    "reading one byte a page of a map that is already warm",
    Bound::RatioAtMost(1.2),
);
pub(crate) static RESERVE_SEAL_1G: Row =
    row("local.reserve_seal_1g", "us", "a raw Unix-socket round trip of 64 bytes", Bound::RatioAtMost(3.0));
pub(crate) static PUT_COPY_64M: Row =
    row("local.put_copy_64m", "GB/s", "the best warm memcpy with all cores", Bound::RatioAtLeast(0.88));
pub(crate) static PUT_COPY_1G: Row =
    row("local.put_copy_1g", "GB/s", "the best warm memcpy with all cores", Bound::RatioAtLeast(0.95));
pub(crate) static BATCH_ACQUIRE_4K: Row =
    row("local.batch_acquire_4k", "tensors/s", "none; batches of 1,000", Bound::ValueAtLeast(500_000.0));
pub(crate) static RECLAIM_AFTER_KILL: Row = row(
    "local.reclaim_after_kill",
    "ms",
    "none; from end of file until all is free, 1,000 leases",
    Bound::ValueAtMost(10.0),
);
pub(crate) static RECLAIM_AFTER_SIGKILL_1G: Row = row(
    "local.reclaim_after_sigkill_1g",
    "ms",
    "none; from SIGKILL until all is free, 1 GiB mapped and 1,000 leases",
    Bound::Reported,
);
pub(crate) static GET_256M_TLS: Row = row(
    "tcp.get_256m_tls",
    "GB/s",
    "the same sockets, TLS library and memfds, nothing else",
    Bound::RatioAtLeast(0.85),
);
pub(crate) static GET_4K: Row = row(
    "tcp.get_4k",
    "us",
    "64 B up and 4 KiB down over TCP, plus one Unix round trip",
    Bound::AboveAtMost(70.0),
);
pub(crate) static SHM_GET_1G: Row =
    row("shm.get_1g", "us", "a raw Unix-socket round trip of 64 bytes", Bound::RatioAtMost(3.0));
pub(crate) static SHM_READERS: Row = row(
    "shm.readers_64",
    "MiB",
    "none; page tables a reader, 64 of which map one tensor of 1 GiB; shared memory grows by at most 1 MiB",
    Bound::ValueAtMost(2.5),
);
pub(crate) static GET_1G_PLAIN: Row = row(
    "tcp.get_1g_plain",
    "GB/s",
    "the best of write and sendfile between the same memfds, over 1, 2 or 4 plain sockets",
    Bound::RatioAtLeast(0.92),
);
pub(crate) static GET_1G_TLS: Row = row(
    "tcp.get_1g_tls",
    "GB/s",
    "the same sockets with the same TLS library, over the best of 1, 2 or 4, and nothing else",
    Bound::RatioAtLeast(0.85),
);

pub(crate) static QUIC_GET_1G: Row = row(
    "quic.get_1g",
    "GB/s",
    "bare quinn between the same memfds, the better of its defaults and our settings, over one or two streams",
    Bound::RatioAtLeast(0.9),
);

pub(crate) static CHOICE: Row = row(
    "choice",
    "links",
    "none; of 12 links, those on which sidecars that choose stay within 10 % of the faster of tcp and quic, by the bytes of all gets and the time of all",
    Bound::ValueAtLeast(11.0),
);
pub(crate) static GET_SHAPED: Row = row(
    "tcp.get_shaped",
    "GB/s",
    "16 MiB by iperf3 over the same link of 1 Gb/s, as its receiver counts",
    Bound::RatioAtLeast(0.97),
);
pub(crate) static GET_SHAPED_LARGE: Row =
    row("tcp.get_shaped_128m", "GB/s", "the same with 128 MiB, which has lanes", Bound::RatioAtLeast(0.97));
pub(crate) static OVERHEAD: Row = row(
    "overhead",
    "bytes/byte",
    "none; what sockets carry both ways for a tensor of 64 MiB on plain lanes, by what it has",
    Bound::ValueAtMost(1.01),
);
pub(crate) static FANOUT: Row = row(
    "fanout.8",
    "s",
    "256 MiB along a chain of plain sockets over the same cables of 1 Gb/s, in chunks of 1 MiB",
    Bound::RatioAtMost(1.3),
);
pub(crate) static FANOUT_TLS: Row =
    row("fanout.8_tls", "s", "the same chain of plain sockets, which encrypts nothing", Bound::Reported);
pub(crate) static FANOUT_SOURCE: Row = row(
    "fanout.8_source",
    "x",
    "none; bytes that leave the owner's host while 8 readers get the tensor, by the bytes that it has",
    Bound::ValueAtMost(1.2),
);
pub(crate) static WAIT_10K: Row = row(
    "wait.10k",
    "us",
    "the same get of a name that exists, with nobody who waits for another one",
    Bound::RatioAtMost(2.0),
);
pub(crate) static WAIT_10K_ANSWERED: Row = row(
    "wait.10k_answered",
    "ms",
    "none; from the put of a name until the last of 20,000 who wait for it has its answer",
    Bound::ValueAtMost(1000.0),
);
pub(crate) static WAIT_10K_MEMORY: Row = row(
    "wait.10k_memory",
    "B",
    "none; by which a sidecar grows for each of 10,000 waits of its 16 sessions",
    Bound::ValueAtMost(4096.0),
);
pub(crate) static SMALL_REMOTE: Row = row(
    "small.remote",
    "tensors/s",
    "none; 1,000 tensors of 4 KiB of the other peer in one call",
    Bound::ValueAtLeast(200_000.0),
);
pub(crate) static VS_GLOO_1G: Row =
    row("vs.gloo_1g", "GB/s", "torch.distributed over gloo, plain", Bound::RatioAtLeast(1.0));
pub(crate) static VS_GLOO_64M: Row =
    row("vs.gloo_64m", "GB/s", "torch.distributed over gloo, plain", Bound::Reported);
pub(crate) static VS_GLOO_1M: Row =
    row("vs.gloo_1m", "GB/s", "torch.distributed over gloo, plain", Bound::Reported);

pub(crate) static GPU_PUT_64M: Row = row("gpu.put_64m", "GB/s", DEVICE_COPY, Bound::Reported);
pub(crate) static GPU_PUT_1G: Row = row("gpu.put_1g", "GB/s", DEVICE_COPY, Bound::Reported);
pub(crate) static GPU_PUT_8G: Row = row("gpu.put_8g", "GB/s", DEVICE_COPY, Bound::RatioAtLeast(0.95));
pub(crate) static GPU_PUT_IN_PLACE_1G: Row =
    row("gpu.put_in_place_1g", "us", "making, mapping and exporting as much, nothing else", Bound::Reported);
pub(crate) static GPU_GET_2M: Row = row("gpu.get_2m", "us", IMPORT, Bound::RatioAtMost(2.0));
pub(crate) static GPU_GET_1G: Row = row("gpu.get_1g", "us", IMPORT, Bound::RatioAtMost(2.0));
pub(crate) static GPU_GET_8G: Row = row("gpu.get_8g", "us", IMPORT, Bound::RatioAtMost(2.0));
pub(crate) static GPU_GET_AGAIN_1G: Row =
    row("gpu.get_again_1g", "us", "a raw Unix-socket round trip of 64 bytes", Bound::RatioAtMost(2.5));
pub(crate) static GPU_GET_AGAIN_8G: Row =
    row("gpu.get_again_8g", "us", "the same of 2 MiB", Bound::RatioAtMost(1.3));
pub(crate) static GPU_STAGED_1G: Row = row(
    "gpu.staged_1g",
    "GB/s",
    "copying as much out of the device into page-locked memory, in the same chunks",
    Bound::RatioAtLeast(0.85),
);

const DEVICE_COPY: &str =
    "cuMemcpyDtoDAsync of as much between two allocations that are there, and the wait for it";
const IMPORT: &str = "importing and mapping a descriptor of as much, nothing else";

pub(crate) static CLUSTER_UP_UNBUILT: Row = row(
    "cluster.up_unbuilt",
    "s",
    "none; `cargo xtask cluster up` that builds its programs first; only where they were not built",
    Bound::Reported,
);
pub(crate) static CLUSTER_UP_COLD: Row = row(
    "cluster.up_cold",
    "s",
    "none; `cargo xtask cluster up` with everything built, nothing up and nothing kept, until names are resolved",
    Bound::Reported,
);
pub(crate) static CLUSTER_UP_WARM: Row =
    row("cluster.up_warm", "s", "none; the same once more, on the cluster that is up", Bound::Reported);
pub(crate) static OPERATOR_READY: Row = row(
    "cluster.operator_ready",
    "s",
    "none; from applying the manifests until a pod that asks gets its sidecar",
    Bound::Reported,
);
pub(crate) static WEBHOOK_P50: Row = row(
    "cluster.webhook_p50",
    "ms",
    "the same dry run of a pod that does not ask; of 100 calls, to a whole millisecond",
    Bound::Reported,
);
pub(crate) static WEBHOOK_P99: Row =
    row("cluster.webhook_p99", "ms", "as above, the slowest but one of 100 calls", Bound::Reported);
pub(crate) static FIRST_PUT: Row = row(
    "cluster.first_put",
    "s",
    "the same pod without a sidecar, until its container runs",
    Bound::Reported,
);
pub(crate) static PEER_SEEN: Row = row(
    "cluster.peer_seen",
    "s",
    "none; from a pod's Ready until pods of both nodes are told of its peer; below zero where they are told before",
    Bound::Reported,
);
pub(crate) static IMAGE_OPERATOR: Row = row("cluster.image_operator", "MB", IMAGE, Bound::Reported);
pub(crate) static IMAGE_SIDECAR: Row = row("cluster.image_sidecar", "MB", IMAGE, Bound::Reported);
pub(crate) static IMAGE_WORKLOAD: Row = row("cluster.image_workload", "MB", IMAGE, Bound::Reported);
pub(crate) static OPERATOR_MEMORY: Row = row("cluster.operator_memory", "MiB", MEMORY, Bound::Reported);
pub(crate) static OPERATOR_CPU: Row = row("cluster.operator_cpu", "%", PROCESSOR, Bound::Reported);
pub(crate) static SIDECAR_MEMORY: Row = row("cluster.sidecar_memory", "MiB", BESIDE, Bound::Reported);
pub(crate) static SIDECAR_CPU: Row = row("cluster.sidecar_cpu", "%", PROCESSOR, Bound::Reported);
pub(crate) static MANY_OPERATOR_MEMORY: Row =
    row("cluster.1000_operator_memory", "MiB", MANY, Bound::ValueAtMost(200.0));
pub(crate) static MANY_OPERATOR_CPU: Row =
    row("cluster.1000_operator_cpu", "%", MANY, Bound::ValueAtMost(5.0));
pub(crate) static MANY_SIDECAR_MEMORY: Row =
    row("cluster.1000_sidecar_memory", "MiB", MANY, Bound::ValueAtMost(64.0));
pub(crate) static MANY_SIDECAR_CPU: Row = row("cluster.1000_sidecar_cpu", "%", MANY, Bound::ValueAtMost(5.0));
pub(crate) static MANY_PEER_SEEN: Row = row(
    "cluster.1000_peer_seen",
    "s",
    "none; from asking for a peer's status to be written until pods of both nodes are told of it",
    Bound::ValueAtMost(2.0),
);

const IMAGE: &str = "none; bytes of the archive";
const MEMORY: &str =
    "none; at rest, 20 s after anything happened, as the kubelet counts it, of the one that takes most";
const BESIDE: &str = "none; the same, beside the arena";
const PROCESSOR: &str = "none; of one processor, at rest, over half a minute, of the one that takes most";
const MANY: &str = "none; the same with 1,000 peers more";

/// Measurement of a row in one run.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) row: &'static Row,
    /// Each value with the limit measured right before it.
    pub(crate) pairs: Vec<Pair>,
    /// Note, if anything else is worth saying.
    pub(crate) note: Option<String>,
    /// A rule besides the bound that was broken.
    pub(crate) breach: Option<String>,
}

impl Measured {
    pub(crate) fn new(row: &'static Row, pairs: Vec<Pair>) -> Self {
        Self { row, pairs, note: None, breach: None }
    }

    /// Measurement that could not be made here, which reaches no bound.
    pub(crate) fn missing(row: &'static Row, why: &str) -> Self {
        Self { note: Some(format!("not measured: {why}")), ..Self::new(row, Vec::new()) }
    }

    /// Values of ours; none if nothing was measured.
    pub(crate) fn value(&self) -> Option<Spread> {
        Spread::of(&self.pairs.iter().map(|pair| pair.value).collect::<Vec<_>>())
    }

    /// The limit's values.
    pub(crate) fn limit(&self) -> Option<Spread> {
        Spread::of(&self.pairs.iter().filter_map(|pair| pair.limit).collect::<Vec<_>>())
    }

    /// The median of value by limit, pair by pair.
    pub(crate) fn ratio(&self) -> Option<f64> {
        stats::median(&self.pairs.iter().filter_map(|pair| pair.ratio()).collect::<Vec<_>>())
    }

    /// The median of value less limit, pair by pair.
    fn above(&self) -> Option<f64> {
        stats::median(&self.pairs.iter().filter_map(|pair| pair.above()).collect::<Vec<_>>())
    }

    /// The number that is judged: the ratio, or the value where there is no limit.
    fn judged(&self) -> Option<f64> {
        self.ratio().or_else(|| self.value().map(|value| value.median))
    }

    /// True if the row reaches what it must. None if nothing is asked of it.
    pub(crate) fn passes(&self) -> Option<bool> {
        let ratio =
            |holds: fn(&f64, &f64) -> bool, bound| self.ratio().is_some_and(|ratio| holds(&ratio, &bound));
        let value = |holds: fn(&f64, &f64) -> bool, bound| {
            self.value().is_some_and(|value| holds(&value.median, &bound))
        };
        let reached = match self.row.bound {
            Bound::RatioAtMost(bound) => ratio(f64::le, bound),
            Bound::RatioAtLeast(bound) => ratio(f64::ge, bound),
            Bound::AboveAtMost(bound) => self.above().is_some_and(|above| above <= bound),
            Bound::ValueAtMost(bound) => value(f64::le, bound),
            Bound::ValueAtLeast(bound) => value(f64::ge, bound),
            Bound::Reported => return None,
        };
        Some(reached && self.breach.is_none())
    }
}

/// Of every row the run that lies in the middle, also of one that not every run has. What was breached in most runs stays
/// breached.
pub(crate) fn median_of_runs(runs: &[Vec<Measured>]) -> Vec<Measured> {
    let mut rows: Vec<&'static Row> = Vec::new();
    for measured in runs.iter().flatten() {
        if !rows.contains(&measured.row) {
            rows.push(measured.row);
        }
    }
    rows.into_iter().filter_map(|row| middle(row, runs)).collect()
}

fn middle(row: &Row, runs: &[Vec<Measured>]) -> Option<Measured> {
    let all: Vec<&Measured> = runs.iter().flatten().filter(|measured| measured.row == row).collect();
    // One without numbers says nothing where another run has some.
    let numbers = |measured: &&&Measured| !measured.pairs.is_empty();
    let with_numbers: Vec<&Measured> = all.iter().filter(numbers).copied().collect();
    let mut same = if with_numbers.is_empty() { all } else { with_numbers };
    same.sort_by(|a, b| a.judged().unwrap_or(f64::NAN).total_cmp(&b.judged().unwrap_or(f64::NAN)));
    let mut middle = same.get(same.len().saturating_sub(1) / 2).copied()?.clone();
    let breaches: Vec<&String> = same.iter().filter_map(|measured| measured.breach.as_ref()).collect();
    middle.breach = breaches.first().filter(|_| breaches.len() * 2 > same.len()).copied().cloned();
    Some(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(row: &'static Row, value: f64, limit: Option<f64>) -> Measured {
        Measured::new(row, vec![Pair { value, limit }; 11])
    }

    #[test]
    fn times_must_not_be_long_and_rates_not_low() {
        assert_eq!(measured(&ACQUIRE_4K, 45.0, Some(30.0)).passes(), Some(true));
        assert_eq!(measured(&ACQUIRE_4K, 45.1, Some(30.0)).passes(), Some(false));
        assert_eq!(measured(&PUT_COPY_1G, 19.0, Some(20.0)).passes(), Some(true));
        assert_eq!(measured(&PUT_COPY_1G, 18.9, Some(20.0)).passes(), Some(false));
        assert_eq!(measured(&RECLAIM_AFTER_KILL, 11.0, None).passes(), Some(false));
        assert_eq!(measured(&BATCH_ACQUIRE_4K, 6e5, None).passes(), Some(true));
        assert_eq!(measured(&GET_4K, 105.0, Some(35.0)).passes(), Some(true));
        assert_eq!(measured(&GET_4K, 105.1, Some(35.0)).passes(), Some(false));
        assert_eq!(measured(&GET_4K, 1.0, None).passes(), Some(false));
        assert_eq!(measured(&RECLAIM_AFTER_SIGKILL_1G, 1e9, None).passes(), None);
    }

    #[test]
    fn a_row_without_numbers_passes_nothing() {
        assert_eq!(Measured::new(&ACQUIRE_4K, Vec::new()).passes(), Some(false));
    }

    #[test]
    fn a_row_that_could_not_be_measured_is_missed_unless_another_run_has_it() {
        let missing = || vec![Measured::missing(&VS_GLOO_1G, "no torch")];
        let middle = median_of_runs(&[missing(), missing()]);
        assert_eq!(middle[0].note.as_deref(), Some("not measured: no torch"));
        assert_eq!(middle[0].passes(), Some(false));
        let runs = [missing(), vec![measured(&VS_GLOO_1G, 1.2, Some(1.0))], missing()];
        assert_eq!(median_of_runs(&runs)[0].passes(), Some(true));
    }

    #[test]
    fn the_ratio_is_the_median_of_the_pairs_and_not_of_the_sides() {
        let pairs =
            [(1.0, 1.0), (4.0, 2.0), (9.0, 3.0)].map(|(value, limit)| Pair { value, limit: Some(limit) });
        assert_eq!(Measured::new(&ACQUIRE_4K, pairs.to_vec()).ratio(), Some(2.0));
    }

    #[test]
    fn the_run_in_the_middle_counts_and_a_rule_broken_in_most_runs() {
        let run = |value, breach: bool| {
            let breach = breach.then(|| "faults".to_owned());
            vec![Measured { breach, ..measured(&PUT_COPY_1G, value, Some(1.0)) }]
        };
        let runs = [run(0.97, true), run(0.99, false), run(0.96, false)];
        let middle = median_of_runs(&runs);
        assert_eq!(middle[0].ratio(), Some(0.97));
        assert_eq!(middle[0].passes(), Some(true));
        let runs = [run(0.97, true), run(0.99, true), run(0.96, false)];
        assert_eq!(median_of_runs(&runs)[0].passes(), Some(false));
        assert!(median_of_runs(&[]).is_empty());
    }

    #[test]
    fn a_row_that_only_one_run_has_is_kept() {
        let row = |row, value| measured(row, value, None);
        let first = vec![row(&CLUSTER_UP_UNBUILT, 900.0), row(&CLUSTER_UP_COLD, 13.0)];
        let middle = median_of_runs(&[first, vec![row(&CLUSTER_UP_COLD, 15.0), row(&CLUSTER_UP_WARM, 3.0)]]);
        let told: Vec<_> = middle.iter().map(|row| (row.row.name, row.value().unwrap().median)).collect();
        let wanted = [("cluster.up_unbuilt", 900.0), ("cluster.up_cold", 13.0), ("cluster.up_warm", 3.0)];
        assert_eq!(told, wanted);
    }
}
