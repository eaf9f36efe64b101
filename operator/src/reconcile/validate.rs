//! What an exchange insists on and this release cannot do. Pure: the definition has checked already that it makes sense.
//!
//! A sidecar of such an exchange refuses to start, in the words of its settings (`sidecar/src/config/abilities.rs`); here
//! whoever wrote the exchange reads of it in the words of the exchange. What may be used and is not there yet is no lack: it
//! is a transport less. Requirements of routes are none either: each transfer is told by itself.

use tensorlane_proto::crd::{Encryption, ExchangeSpec, GpuMode, SameNode, TransportKind};

/// What is asked for, that it cannot be had, and what to write instead; a sentence for each.
pub fn lacks(spec: &ExchangeSpec) -> Vec<String> {
    [transports(spec), encryption(spec), gpu(spec), same_node(spec)].into_iter().flatten().collect()
}

fn transports(spec: &ExchangeSpec) -> Option<String> {
    let allowed = spec.transports.as_ref().filter(|allowed| !allowed.contains(&TransportKind::Tcp))?;
    let allowed: Vec<&str> = allowed.iter().map(|kind| kind.as_str()).collect();
    let allowed = allowed.join(", ");
    Some(format!("transports: [{allowed}]: this release speaks none of them between pods: add tcp"))
}

fn encryption(spec: &ExchangeSpec) -> Option<String> {
    let said = spec.security.as_ref()?.encryption?;
    let lack = "security.encryption: none: this release encrypts all bytes between pods: say required";
    (said == Encryption::None).then(|| lack.to_owned())
}

fn gpu(spec: &ExchangeSpec) -> Option<String> {
    let mode = spec.gpu.as_ref()?.mode?;
    let lack = || format!("gpu.mode: {mode}: this release shares no memory of GPUs: say auto or none");
    matches!(mode, GpuMode::Broker | GpuMode::LegacyIpc).then(lack)
}

fn same_node(spec: &ExchangeSpec) -> Option<String> {
    let mode = spec.same_node.filter(|mode| *mode != SameNode::Off)?;
    Some(format!("sameNode: {mode}: this release shares no memory between the pods of a node: say off"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value) -> Vec<String> {
        lacks(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn what_can_be_had_lacks_nothing() {
        for spec in [
            json!({}),
            json!({"transports": ["tcp"]}),
            json!({"transports": ["shm", "cuda_ipc", "tcp", "quic"]}),
            json!({"require": ["zero_copy", "same_node", "encrypted"]}),
            json!({"security": {"encryption": "required"}}),
            json!({"gpu": {"mode": "auto"}}),
            json!({"gpu": {"mode": "none"}, "sameNode": "off"}),
        ] {
            assert_eq!(of(spec.clone()), Vec::<String>::new(), "{spec}");
        }
    }

    #[test]
    fn all_that_cannot_be_had_is_told_at_once_with_what_to_write() {
        let told = of(json!({
            "transports": ["shm", "quic"], "security": {"encryption": "none"}, "gpu": {"mode": "broker"},
            "sameNode": "claim",
        }));
        let expected = [
            ("transports: [shm, quic]: ", "add tcp"),
            ("security.encryption: none: ", "say required"),
            ("gpu.mode: broker: ", "say auto or none"),
            ("sameNode: claim: ", "say off"),
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (told, (asked, remedy)) in told.iter().zip(expected) {
            assert!(told.starts_with(asked) && told.ends_with(remedy), "{told}");
        }
        assert_eq!(of(json!({"gpu": {"mode": "legacy_ipc"}})).len(), 1);
        assert_eq!(of(json!({"sameNode": "hostPath"})).len(), 1);
    }
}
