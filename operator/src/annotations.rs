//! Annotations by which a pod speaks of its sidecar: the table of annotations, and reading them.
//!
//! A key is a row here and a field of [`Wishes`]. What is not said stays absent, so that the exchange and the
//! installation can say it; a value that makes no sense is an error with what would; a key that we do not know is a
//! warning, because it may belong to a newer version.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use tensorlane_proto::crd::{
    GpuMode, LogLevel, MAX_EXCHANGE_NAME_BYTES, Requirement, TransportKind, UnknownWord,
};

use crate::dns::Label;
use crate::names::{INJECT, PREFIX, STATUS};
use crate::nearest::nearest;
use crate::quantity::Amount;

/// Wishes of a pod. Absent is what it leaves to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Set if the pod says whether it wants a sidecar.
    pub inject: Option<bool>,
    /// The exchange that it wants to belong to.
    pub exchange: Option<String>,
    /// Bytes that tensors may take.
    pub arena: Option<Amount>,
    /// Mode of sharing tensors on GPUs.
    pub gpu: Option<GpuMode>,
    /// The transports that may be used.
    pub transports: Option<Vec<TransportKind>>,
    /// Requirements for every route; empty for nothing.
    pub require: Option<Vec<Requirement>>,
    /// The containers that see the sockets.
    pub containers: Option<Vec<String>>,
    /// Init containers that run before the sidecar.
    pub after: Option<Vec<String>>,
    /// The volume of the pod in which sets on files lie.
    pub sets: Option<SetsVolume>,
    /// Processor time to request.
    pub cpu: Option<Amount>,
    /// Bytes beside the arena.
    pub memory: Option<Amount>,
    /// Level of the log.
    pub log_level: Option<LogLevel>,
    /// Set if the pod says whether its containers see each other's processes.
    pub share_process_namespace: Option<bool>,
}

/// A volume of the pod, or a directory in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetsVolume {
    /// Name of the volume.
    pub volume: Label,
    /// Path in the volume, without `.` and `..`; none for all of it.
    pub sub_path: Option<String>,
}

/// A single annotation.
#[derive(Debug)]
pub struct Key {
    /// Name of the annotation, behind the prefix.
    pub name: &'static str,
    /// Accepted values, in words.
    pub accepts: &'static str,
    /// Purpose of the annotation.
    pub doc: &'static str,
    /// Check of a value, as an expression over `VALUE` that an API server can evaluate; none where that needs
    /// more than the value.
    pub cel: Option<&'static str>,
    set: fn(&mut Wishes, &str) -> Result<(), String>,
}

/// A value that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// The whole key.
    pub key: String,
    /// Value that was given, at most 80 characters of it.
    pub value: String,
    /// Fault of the value.
    pub wrong: String,
    /// Accepted values, in words.
    pub accepts: &'static str,
}

/// The smallest arena that a sidecar takes.
pub const ARENA_MIN: Amount = Amount::whole(16 << 20);
/// The largest.
pub const ARENA_MAX: Amount = Amount::whole(16 << 40);
/// The fewest bytes beside the arena.
pub const BASE_MIN: Amount = Amount::whole(64 << 20);
/// The most.
pub const BASE_MAX: Amount = Amount::whole(1 << 40);
/// Seats for peers that a sidecar has unless it is told, and that its bytes beside the arena are for.
pub const SEATS: u32 = 256;
/// The most seats.
pub const SEATS_MAX: u32 = 10_000;
/// Bytes of each seat above [`SEATS`]: what `peers.max` of the configuration says of a connected peer.
pub const SEAT: u64 = 1 << 20;
/// The most processors.
pub const CPU_MAX: Amount = Amount::whole(1000);
/// Memory comes in these.
pub const PAGE: u64 = 4096;

const BYTES: &str = "bytes in multiples of 4Ki, such as 512Mi or 2Gi";

/// Every annotation, in the order of the documentation.
pub static KEYS: &[Key] = &[
    Key {
        name: "inject",
        accepts: "enabled or disabled",
        doc: "Whether the pod gets a sidecar. It beats the label of the namespace and `inject.gpuPods` of an exchange.",
        cel: Some("VALUE in ['enabled', 'disabled']"),
        set: |wishes, text| switch(text, "enabled", "disabled").map(|on| wishes.inject = Some(on)),
    },
    Key {
        name: "exchange",
        accepts: "the name of a TensorExchange of this namespace",
        doc: "The exchange that the pod belongs to; `default` without it.",
        cel: None,
        set: |wishes, text| exchange(text).map(|name| wishes.exchange = Some(name)),
    },
    Key {
        name: "arena-size",
        accepts: "bytes from 16Mi to 16Ti in multiples of 4Ki, such as 2Gi",
        doc: "Bytes that tensors may take in this pod. They are requested for the sidecar's container.",
        cel: Some(
            "isQuantity(VALUE) && quantity(VALUE).compareTo(quantity('16Mi')) >= 0 && quantity(VALUE).compareTo(quantity('16Ti')) <= 0 && quantity(VALUE).isInteger() && quantity(VALUE).asInteger() % 4096 == 0",
        ),
        set: |wishes, text| memory(text, ARENA_MIN, ARENA_MAX).map(|bytes| wishes.arena = Some(bytes)),
    },
    Key {
        name: "gpu",
        accepts: "auto, none, broker or legacy_ipc",
        doc: "How tensors on GPUs are shared. `legacy_ipc` needs a shared process namespace.",
        cel: Some("VALUE in ['auto', 'none', 'broker', 'legacy_ipc']"),
        set: |wishes, text| word(text).map(|mode| wishes.gpu = Some(mode)),
    },
    Key {
        name: "transports",
        accepts: "some of shm, cuda_ipc, tcp and quic, with commas between them",
        doc: "The transports that may be used, in any order. It can only narrow what the exchange allows.",
        cel: Some("VALUE.split(',').all(word, word.trim() in ['shm', 'cuda_ipc', 'tcp', 'quic'])"),
        set: |wishes, text| words(text).map(|all| wishes.transports = Some(all)),
    },
    Key {
        name: "require",
        accepts: "some of zero_copy, same_node and encrypted, with commas between them, or none",
        doc: "What every route must be, besides what the exchange requires; what has no such route fails.",
        cel: Some(
            "VALUE == 'none' || VALUE.split(',').all(word, word.trim() in ['zero_copy', 'same_node', 'encrypted'])",
        ),
        set: |wishes, text| require(text).map(|all| wishes.require = Some(all)),
    },
    Key {
        name: "containers",
        accepts: "names of containers of this pod, with commas between them",
        doc: "The containers that see the sockets; without it all, init containers included, but for those that `after` puts before the sidecar.",
        cel: None,
        set: |wishes, text| names(text).map(|all| wishes.containers = Some(all)),
    },
    Key {
        name: "after",
        accepts: "names of init containers of this pod, with commas between them",
        doc: "Init containers, or sidecars of others, that come before the sidecar. They see no sockets, nor does any that runs before the last of them. It comes first without it.",
        cel: None,
        set: |wishes, text| names(text).map(|all| wishes.after = Some(all)),
    },
    Key {
        name: "sets",
        accepts: "a volume of this pod, or a directory in it: VOLUME or VOLUME/PATH, such as data/sets",
        doc: "The volume in which [sets on files](sets.md#in-kubernetes) lie. The sidecar has it, writable, besides those containers that mount it themselves.",
        cel: Some(
            "VALUE.size() <= 512 && VALUE.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(/[^/]+)*$') && !VALUE.split('/').exists(part, part in ['.', '..'])",
        ),
        set: |wishes, text| sets(text).map(|volume| wishes.sets = Some(volume)),
    },
    Key {
        name: "cpu",
        accepts: "processors from 1m to 1k, such as 200m",
        doc: "Processor time to request for the sidecar. A limit is set only where the pod or the namespace needs one.",
        cel: Some(
            "isQuantity(VALUE) && quantity(VALUE).isGreaterThan(quantity('0')) && quantity(VALUE).compareTo(quantity('1k')) <= 0",
        ),
        set: |wishes, text| cpu(text).map(|amount| wishes.cpu = Some(amount)),
    },
    Key {
        name: "memory",
        accepts: "bytes from 64Mi to 1Ti in multiples of 4Ki, such as 256Mi",
        doc: "Bytes that the sidecar needs beside the arena, for up to 256 seats for peers. `peers.max` of the exchange adds those of more.",
        cel: Some(
            "isQuantity(VALUE) && quantity(VALUE).compareTo(quantity('64Mi')) >= 0 && quantity(VALUE).compareTo(quantity('1Ti')) <= 0 && quantity(VALUE).isInteger() && quantity(VALUE).asInteger() % 4096 == 0",
        ),
        set: |wishes, text| memory(text, BASE_MIN, BASE_MAX).map(|bytes| wishes.memory = Some(bytes)),
    },
    Key {
        name: "log-level",
        accepts: "error, warn, info, debug or trace",
        doc: "How much the sidecar logs.",
        cel: Some("VALUE in ['error', 'warn', 'info', 'debug', 'trace']"),
        set: |wishes, text| word(text).map(|level| wishes.log_level = Some(level)),
    },
    Key {
        name: "share-process-namespace",
        accepts: "true or false",
        doc: "Lets the pod's containers see each other's processes, which `gpu: legacy_ipc` needs. Process 1 is then another one.",
        cel: Some("VALUE in ['true', 'false']"),
        set: |wishes, text| switch(text, "true", "false").map(|on| wishes.share_process_namespace = Some(on)),
    },
];

/// Reads what the annotations of a pod say.
///
/// # Errors
/// Every value that makes no sense.
pub fn read(annotations: &BTreeMap<String, String>) -> Result<Wishes, Vec<BadValue>> {
    let mut wishes = Wishes::default();
    let mut bad = Vec::new();
    for row in KEYS {
        bad.extend(row.read(annotations, &mut wishes).err());
    }
    if bad.is_empty() { Ok(wishes) } else { Err(bad) }
}

/// Reads what the annotation `require` says by itself, other values being wrong or not; nothing where it is absent.
///
/// # Errors
/// It makes no sense.
pub fn required(annotations: &BTreeMap<String, String>) -> Result<Vec<Requirement>, BadValue> {
    let mut wishes = Wishes::default();
    for row in KEYS.iter().filter(|row| row.name == "require") {
        row.read(annotations, &mut wishes)?;
    }
    Ok(wishes.require.unwrap_or_default())
}

impl Key {
    /// Hears what the annotations say of this one.
    fn read(&self, annotations: &BTreeMap<String, String>, wishes: &mut Wishes) -> Result<(), BadValue> {
        let key = format!("{PREFIX}{}", self.name);
        let Some(value) = annotations.get(&key) else { return Ok(()) };
        (self.set)(wishes, value).map_err(|wrong| {
            let value = value.chars().take(80).collect();
            BadValue { key, value, wrong, accepts: self.accepts }
        })
    }
}

/// `tensorlane.dev/inject: "on" is wrong (no such word); say enabled or disabled`.
impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadValue { key, value, wrong, accepts } = self;
        write!(f, "{key}: {value:?} is wrong ({wrong}); say {accepts}")
    }
}

/// Reads what the annotation `inject` says by itself, other values being wrong or not; none where it is absent or
/// wrong.
pub fn inject(annotations: &BTreeMap<String, String>) -> Option<bool> {
    annotations.get(INJECT).and_then(|text| switch(text, "enabled", "disabled").ok())
}

/// A sentence for each annotation under our prefix that nobody reads.
pub fn unknown(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let names = || KEYS.iter().map(|row| row.name);
    let ours = annotations.keys().filter(|key| *key != STATUS).filter_map(|key| key.strip_prefix(PREFIX));
    let strange = ours.filter(|name| names().all(|known| known != *name));
    let sentence = |name: &str| {
        // No key that the API server takes is longer, and this is done before it has looked.
        let hint = (name.len() <= 63).then(|| nearest(name, names())).flatten();
        let hint = hint.map_or_else(String::new, |known| format!("; did you mean {PREFIX}{known}?"));
        let name: String = name.chars().take(80).collect();
        format!("the annotation {PREFIX}{name} is not known and has no effect{hint}")
    };
    let mut strange: Vec<&str> = strange.collect();
    let more = strange.len().saturating_sub(UNKNOWN_MAX);
    strange.truncate(UNKNOWN_MAX);
    let rest = (more > 0)
        .then(|| format!("{more} more annotations under {PREFIX} are not known and have no effect"));
    strange.into_iter().map(sentence).chain(rest).collect()
}

/// The most unknown annotations that are told one by one: a pod may have as many as fit into a megabyte.
const UNKNOWN_MAX: usize = 8;

/// The annotations of a pod.
pub fn of(pod: &Pod) -> BTreeMap<String, String> {
    pod.metadata.annotations.clone().unwrap_or_default()
}

fn switch(text: &str, on: &str, off: &str) -> Result<bool, String> {
    match text {
        _ if text == on => Ok(true),
        _ if text == off => Ok(false),
        _ => Err("no such word".to_owned()),
    }
}

fn word<T: std::str::FromStr<Err = UnknownWord>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: UnknownWord| error.to_string())
}

fn words<T: std::str::FromStr<Err = UnknownWord> + PartialEq + Copy>(text: &str) -> Result<Vec<T>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let one = word(part.trim())?;
        if all.contains(&one) {
            return Err(format!("{:?} is said twice", part.trim()));
        }
        all.push(one);
    }
    Ok(all)
}

fn require(text: &str) -> Result<Vec<Requirement>, String> {
    if text == "none" { Ok(Vec::new()) } else { words(text) }
}

fn exchange(text: &str) -> Result<String, String> {
    let name = tensorlane_proto::ExchangeName::new(text).map_err(|error| error.to_string())?;
    if text.len() > MAX_EXCHANGE_NAME_BYTES {
        return Err(format!("longer than {MAX_EXCHANGE_NAME_BYTES} characters"));
    }
    Ok(name.as_str().to_owned())
}

fn names(text: &str) -> Result<Vec<String>, String> {
    let mut all: Vec<String> = Vec::new();
    for name in text.split(',').map(str::trim) {
        if name.is_empty() {
            return Err("an empty name".to_owned());
        }
        if !all.iter().any(|other| other == name) {
            all.push(name.to_owned());
        }
    }
    Ok(all)
}

/// The most bytes of a volume and a path in it.
const SETS_BYTES_MAX: usize = 512;

fn sets(text: &str) -> Result<SetsVolume, String> {
    if text.len() > SETS_BYTES_MAX {
        return Err(format!("longer than {SETS_BYTES_MAX} bytes"));
    }
    let (volume, sub_path) = match text.split_once('/') {
        Some((volume, path)) => (volume, Some(path)),
        None => (text, None),
    };
    let volume = Label::new("volume", volume).map_err(|error| error.to_string())?;
    let mut parts = sub_path.iter().flat_map(|path| path.split('/'));
    match parts.find(|part| ["", ".", ".."].contains(part)) {
        Some(part) => Err(format!("a path with a part {part:?}")),
        None => Ok(SetsVolume { volume, sub_path: sub_path.map(str::to_owned) }),
    }
}

/// Bytes in whole pages between two bounds.
pub(crate) fn memory(text: &str, min: Amount, max: Amount) -> Result<Amount, String> {
    let amount = Amount::parse(text).map_err(|error| error.to_string())?;
    if amount < min || amount > max {
        return Err(format!("not between {} and {}", min.memory().0, max.memory().0));
    }
    let pages = amount.units().is_some_and(|bytes| bytes % PAGE == 0);
    if amount.is_whole() && pages { Ok(amount) } else { Err(format!("not {BYTES}")) }
}

/// Processors up to the most.
pub(crate) fn cpu(text: &str) -> Result<Amount, String> {
    let amount = Amount::parse(text).map_err(|error| error.to_string())?;
    if amount > Amount::ZERO && amount <= CPU_MAX {
        Ok(amount)
    } else {
        Err(format!("not between 1m and {CPU_MAX}"))
    }
}

#[cfg(test)]
mod tests;
