//! Metrics of the operator. Labels come from closed lists; none names a pod, a namespace or an exchange.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// All of them.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    injections: IntCounterVec,
    seconds: HistogramVec,
    /// Events that were not written because too many waited.
    pub notes_dropped: IntCounter,
    /// Time at which the certificate that is served ends to be valid.
    pub certificate_expiry: IntGauge,
    /// Set while this replica leads.
    pub leader: IntGauge,
    /// Set where the policy on the status of peers does what was installed, as the leader saw it last.
    pub guarded: IntGauge,
    reconciles: IntCounterVec,
    objects: IntGaugeVec,
}

/// From a plan without facts to the deadline.
const BUCKETS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 4.0];

impl Metrics {
    /// Registers all of them.
    ///
    /// # Errors
    /// A name is taken twice, which no registry of our own has.
    pub fn new() -> prometheus::Result<Metrics> {
        let registry = Registry::new();
        let metrics = Metrics {
            injections: IntCounterVec::new(
                Opts::new(
                    "tensorlane_operator_injections_total",
                    "Pods that the webhook was asked about, by result: injected, a reason to skip or deny, bad_review, busy, no_facts.",
                ),
                &["result"],
            )?,
            seconds: HistogramVec::new(
                HistogramOpts::new(
                    "tensorlane_operator_injection_seconds",
                    "Seconds of a call of the webhook, from the whole request to the answer, by the same result.",
                )
                .buckets(BUCKETS.to_vec()),
                &["result"],
            )?,
            notes_dropped: IntCounter::new(
                "tensorlane_operator_events_dropped_total",
                "Events that were not written because too many waited.",
            )?,
            certificate_expiry: IntGauge::new(
                "tensorlane_operator_certificate_expiry_seconds",
                "When the certificate that the webhook shows ends to be valid, in seconds since 1970.",
            )?,
            leader: IntGauge::new(
                "tensorlane_operator_leader",
                "1 where this replica leads and writes objects, else 0.",
            )?,
            guarded: IntGauge::new(
                "tensorlane_operator_peers_guarded",
                "1 where the policy on the status of peers is as installed, 0 where it is missing or weaker or nobody has looked yet; of the leader.",
            )?,
            reconciles: IntCounterVec::new(
                Opts::new(
                    "tensorlane_operator_reconciles_total",
                    "Objects that were brought to what they should be, by kind and result (ok or error).",
                ),
                &["kind", "result"],
            )?,
            objects: IntGaugeVec::new(
                Opts::new("tensorlane_operator_peers", "Peers of all exchanges, by state (ready or not_ready)."),
                &["state"],
            )?,
            registry,
        };
        metrics.register()?;
        Ok(metrics)
    }

    fn register(&self) -> prometheus::Result<()> {
        let all: [Box<dyn Collector>; 8] = [
            Box::new(self.injections.clone()),
            Box::new(self.seconds.clone()),
            Box::new(self.notes_dropped.clone()),
            Box::new(self.certificate_expiry.clone()),
            Box::new(self.leader.clone()),
            Box::new(self.guarded.clone()),
            Box::new(self.reconciles.clone()),
            Box::new(self.objects.clone()),
        ];
        all.into_iter().try_for_each(|one| self.registry.register(one))
    }

    /// A call of the webhook ended so.
    pub fn injection(&self, result: &'static str, took: Duration) {
        self.injections.with_label_values(&[result]).inc();
        self.seconds.with_label_values(&[result]).observe(took.as_secs_f64());
    }

    /// An object of this kind was reconciled.
    pub fn reconciled(&self, kind: &'static str, ok: bool) {
        self.reconciles.with_label_values(&[kind, if ok { "ok" } else { "error" }]).inc();
    }

    /// Sets the numbers of peers that are ready and that are not.
    pub fn peers(&self, ready: i64, not_ready: i64) {
        self.objects.with_label_values(&["ready"]).set(ready);
        self.objects.with_label_values(&["not_ready"]).set(not_ready);
    }

    /// All of them as Prometheus text.
    ///
    /// # Errors
    /// The encoder fails.
    pub fn render(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
