//! Abilities of this release, of all that an exchange or a pod may ask for. Pure: the definition has checked already
//! that it makes sense.
//!
//! The words are older than some of what they speak of. What *may* be used and is not there yet is no lack: it is a
//! transport less, and every reply names it. What is *insisted on* and cannot be had is one: a sidecar with such settings
//! refuses to start (`sidecar/src/config/abilities.rs`), and its pod would hang for ever. So the exchange says that it is
//! not accepted, and the planner refuses its pods, both by [`unsupported`], in the words of the exchange. Requirements of
//! routes are no lack either: each transfer is told by itself.

use std::fmt;

use tensorlane_proto::crd::{Encryption, ExchangeSpec, GpuMode, SameNode, TransportKind};

use crate::annotations::Wishes;

/// Abilities of the sidecars of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The transports between pods of which one has to be allowed. Not `quic`, which brings large tensors and nothing else.
    pub transports: &'static [TransportKind],
    /// Bytes between pods may go unencrypted.
    pub plain: bool,
    /// The memory of GPUs is shared.
    pub gpu_memory: bool,
    /// The pods of a node share memory.
    pub same_node: bool,
}

impl Abilities {
    /// Abilities of this release.
    pub const THIS_RELEASE: Abilities = Abilities {
        transports: &[TransportKind::Shm, TransportKind::Tcp],
        plain: true,
        gpu_memory: false,
        same_node: true,
    };

    /// All abilities that can be asked for. The planner plans all of them already; tests see to it.
    pub const EVERYTHING: Abilities =
        Abilities { transports: TransportKind::ALL, plain: true, gpu_memory: true, same_node: true };
}

impl Default for Abilities {
    fn default() -> Abilities {
        Abilities::THIS_RELEASE
    }
}

/// A lack: something that is insisted on and cannot be had: `sameNode: claim: this release …: say off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Field in which it is asked for.
    pub field: &'static str,
    /// Value that is asked for.
    pub value: String,
    /// Reason why it cannot be had.
    pub why: &'static str,
    /// Remedy: the value to write instead.
    pub remedy: String,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}: {}", self.field, self.value, self.why, self.remedy)
    }
}

/// All that an exchange insists on and cannot have; nothing where it is accepted.
pub fn unsupported(spec: &ExchangeSpec, abilities: &Abilities) -> Vec<Lack> {
    let transports = spec.transports.as_deref();
    let gpu = spec.gpu.as_ref().and_then(|gpu| gpu.mode);
    let all = [
        transports.and_then(|allowed| none_of("transports", allowed, abilities)).map(Lack::bracketed),
        plain(spec, abilities),
        gpu_memory("gpu.mode", gpu, abilities),
        same_node(spec, abilities),
    ];
    all.into_iter().flatten().collect()
}

/// All that a pod insists on by its own annotations and cannot have.
pub fn unsupported_wishes(wishes: &Wishes, abilities: &Abilities) -> Vec<Lack> {
    let transports = wishes.transports.as_deref();
    let all = [
        transports.and_then(|allowed| none_of("tensorlane.dev/transports", allowed, abilities)),
        gpu_memory("tensorlane.dev/gpu", wishes.gpu, abilities),
    ];
    all.into_iter().flatten().collect()
}

/// If some of the transports are there, those are used.
fn none_of(field: &'static str, allowed: &[TransportKind], abilities: &Abilities) -> Option<Lack> {
    let spoken = abilities.transports;
    let lack = || Lack {
        field,
        value: words(allowed),
        why: "none of them is enough between pods in this release",
        remedy: format!("add {}", words(spoken)),
    };
    (!allowed.iter().any(|kind| spoken.contains(kind))).then(lack)
}

fn plain(spec: &ExchangeSpec, abilities: &Abilities) -> Option<Lack> {
    let said = spec.security.as_ref()?.encryption?;
    let lack = || Lack {
        field: "security.encryption",
        value: said.to_string(),
        why: "this release encrypts all bytes between pods",
        remedy: "say required".to_owned(),
    };
    (said == Encryption::None && !abilities.plain).then(lack)
}

fn gpu_memory(field: &'static str, mode: Option<GpuMode>, abilities: &Abilities) -> Option<Lack> {
    let mode = mode?;
    let lack = || Lack {
        field,
        value: mode.to_string(),
        why: "this release shares memory of GPUs by auto alone",
        remedy: "say auto or none".to_owned(),
    };
    (matches!(mode, GpuMode::Broker | GpuMode::LegacyIpc) && !abilities.gpu_memory).then(lack)
}

fn same_node(spec: &ExchangeSpec, abilities: &Abilities) -> Option<Lack> {
    let mode = spec.same_node?;
    let lack = || Lack {
        field: "sameNode",
        value: mode.to_string(),
        why: "this release shares no memory between the pods of a node",
        remedy: "say off".to_owned(),
    };
    (mode != SameNode::Off && !abilities.same_node).then(lack)
}

fn words(kinds: &[TransportKind]) -> String {
    kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ")
}

impl Lack {
    /// A list as an object has it.
    fn bracketed(self) -> Lack {
        Lack { value: format!("[{}]", self.value), ..self }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(spec: Value, abilities: &Abilities) -> Vec<String> {
        let spec = serde_json::from_value(spec).unwrap();
        unsupported(&spec, abilities).iter().map(ToString::to_string).collect()
    }

    fn of(spec: Value) -> Vec<String> {
        told(spec, &Abilities::THIS_RELEASE)
    }

    #[test]
    fn what_can_be_had_lacks_nothing() {
        for spec in [
            json!({}),
            json!({"transports": ["tcp"]}),
            json!({"transports": ["shm", "cuda_ipc", "tcp", "quic"]}),
            json!({"require": ["zero_copy", "same_node", "encrypted"]}),
            json!({"security": {"encryption": "required"}}),
            json!({"security": {"encryption": "none"}}),
            json!({"gpu": {"mode": "auto"}}),
            json!({"gpu": {"mode": "none"}, "sameNode": "off"}),
            json!({"sameNode": "claim"}),
            json!({"sameNode": "hostPath", "transports": ["shm"]}),
        ] {
            assert_eq!(of(spec.clone()), Vec::<String>::new(), "{spec}");
        }
    }

    #[test]
    fn all_that_cannot_be_had_is_told_at_once_with_what_to_write() {
        let asked = json!({
            "transports": ["cuda_ipc", "quic"], "gpu": {"mode": "broker"},
        });
        let expected =
            [("transports: [cuda_ipc, quic]: ", "add shm, tcp"), ("gpu.mode: broker: ", "say auto or none")];
        let found = of(asked.clone());
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, (asked, remedy)) in found.iter().zip(expected) {
            assert!(found.starts_with(asked) && found.ends_with(remedy), "{found}");
        }
        assert_eq!(of(json!({"gpu": {"mode": "legacy_ipc"}})).len(), 1);
        let without = Abilities { same_node: false, ..Abilities::THIS_RELEASE };
        assert_eq!(told(json!({"sameNode": "hostPath"}), &without).len(), 1);
        assert!(told(asked, &Abilities::EVERYTHING).is_empty());
    }

    #[test]
    fn what_a_pod_says_itself_is_told_by_its_annotation() {
        let wishes = Wishes {
            transports: Some(vec![TransportKind::CudaIpc, TransportKind::Quic]),
            gpu: Some(GpuMode::LegacyIpc),
            ..Wishes::default()
        };
        let told: Vec<_> =
            unsupported_wishes(&wishes, &Abilities::THIS_RELEASE).iter().map(ToString::to_string).collect();
        assert!(told[0].starts_with("tensorlane.dev/transports: cuda_ipc, quic: "), "{told:?}");
        assert!(told[1].starts_with("tensorlane.dev/gpu: legacy_ipc: "), "{told:?}");
        assert!(unsupported_wishes(&wishes, &Abilities::EVERYTHING).is_empty());
        assert!(unsupported_wishes(&Wishes::default(), &Abilities::THIS_RELEASE).is_empty());
    }
}
