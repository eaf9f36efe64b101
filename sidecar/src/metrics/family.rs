//! Families of series whose members are found by index, without hashing: counting costs one atomic addition.

use std::marker::PhantomData;
use std::sync::OnceLock;

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use super::label::Labels;

/// Vector, as `prometheus` calls it, of one kind of member.
pub trait Vector: Collector + Clone + 'static {
    /// A series.
    type Member: Clone + Send + Sync;

    /// The member with these values of the labels.
    fn member(&self, words: &[&'static str]) -> Self::Member;
}

macro_rules! vector {
    ($vector:ty, $member:ty) => {
        impl Vector for $vector {
            type Member = $member;

            fn member(&self, words: &[&'static str]) -> $member {
                self.with_label_values(words)
            }
        }
    };
}

vector!(IntCounterVec, IntCounter);
vector!(IntGaugeVec, IntGauge);
vector!(HistogramVec, Histogram);

/// Series by labels. A series appears when it is first used.
pub struct Family<K, V: Vector> {
    vector: V,
    members: Box<[OnceLock<V::Member>]>,
    keys: PhantomData<fn(K)>,
}

/// Counters by labels.
pub type Counters<K> = Family<K, IntCounterVec>;
/// Gauges by labels.
pub type Gauges<K> = Family<K, IntGaugeVec>;
/// Histograms by labels.
pub type Histograms<K> = Family<K, HistogramVec>;

impl<K: Labels, V: Vector> Family<K, V> {
    fn new(vector: V, registry: &Registry) -> prometheus::Result<Self> {
        registry.register(Box::new(vector.clone()))?;
        let members = (0..K::COUNT).map(|_| OnceLock::new()).collect();
        Ok(Family { vector, members, keys: PhantomData })
    }

    /// The series of `key`. Two loads once it exists.
    pub fn at(&self, key: K) -> &V::Member {
        self.members[key.index()].get_or_init(|| self.vector.member(&key.words()))
    }

    /// Makes every series appear, at zero, so that a rate can be taken from the first event on. For small families.
    fn with_all(self) -> Self {
        K::all().into_iter().for_each(|key| _ = self.at(key));
        self
    }
}

/// Makes metrics in a registry. All names get the prefix `tensorlane_`.
pub(super) struct Maker<'a>(pub(super) &'a Registry);

/// From 20 µs, a bare round trip here, to the default deadline.
const SECONDS: [f64; 14] =
    [20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2.5e-3, 10e-3, 50e-3, 0.25, 1.0, 5.0, 15.0, 30.0];

impl Maker<'_> {
    fn opts(name: &str, help: &str) -> Opts {
        Opts::new(format!("tensorlane_{name}"), help)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        let counter = IntCounter::with_opts(Self::opts(name, help))?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.gauge_with(Self::opts(name, help))
    }

    /// A gauge with labels that never change while the process runs.
    pub(super) fn constant(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
    ) -> prometheus::Result<IntGauge> {
        let opts =
            labels.iter().fold(Self::opts(name, help), |opts, (name, word)| opts.const_label(*name, *word));
        self.gauge_with(opts)
    }

    fn gauge_with(&self, opts: Opts) -> prometheus::Result<IntGauge> {
        let gauge = IntGauge::with_opts(opts)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    /// A gauge for each of a few peers, by name. Whoever sets it bounds how many it shows.
    pub(super) fn of_peers(&self, name: &str, help: &str) -> prometheus::Result<IntGaugeVec> {
        let gauges = IntGaugeVec::new(Self::opts(name, help), &["peer"])?;
        self.0.register(Box::new(gauges.clone()))?;
        Ok(gauges)
    }

    pub(super) fn counters<K: Labels>(
        &self,
        name: &str,
        labels: &[&str],
        help: &str,
    ) -> prometheus::Result<Counters<K>> {
        Family::new(IntCounterVec::new(Self::opts(name, help), labels)?, self.0)
    }

    /// Counters of which every series exists from the start.
    pub(super) fn all_counters<K: Labels>(
        &self,
        name: &str,
        labels: &[&str],
        help: &str,
    ) -> prometheus::Result<Counters<K>> {
        self.counters(name, labels, help).map(Family::with_all)
    }

    pub(super) fn gauges<K: Labels>(
        &self,
        name: &str,
        labels: &[&str],
        help: &str,
    ) -> prometheus::Result<Gauges<K>> {
        Family::new(IntGaugeVec::new(Self::opts(name, help), labels)?, self.0).map(Family::with_all)
    }

    pub(super) fn histograms<K: Labels>(
        &self,
        name: &str,
        labels: &[&str],
        help: &str,
    ) -> prometheus::Result<Histograms<K>> {
        let opts = HistogramOpts::from(Self::opts(name, help)).buckets(SECONDS.to_vec());
        Family::new(HistogramVec::new(opts, labels)?, self.0)
    }
}
