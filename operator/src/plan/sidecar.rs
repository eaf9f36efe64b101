//! The sidecar's container.
//!
//! It is configured by environment alone; the variables are those of the sidecar's own configuration, and a suite
//! starts a sidecar with them. It starts before everything else in the pod and ends after it (a native sidecar): no
//! preStop, because that would run while workloads still use it; SIGTERM drains.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector, Probe,
    ResourceRequirements, SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tensorlane_proto::crd::SameNode;

use super::facts::Defaults;
use super::resources::{Budget, CPU, MEMORY, STORAGE};
use super::settle::Settled;
use super::volumes::sidecar_mounts;
use crate::names::{ADMIN_PORT, NODE_PATH, PEERS_PORT, SETS_PATH, SIDECAR, SOCKETS_PATH, STATE_PATH};
use crate::quantity::Amount;

/// The ports of the pod that it takes.
pub(super) const PORTS: [i32; 2] = [PEERS_PORT as i32, ADMIN_PORT as i32];

/// Returns whether a port that a container declares is one of the sidecar's: peers come by TCP and UDP, all else by TCP.
pub(super) fn listens_on(port: &ContainerPort) -> bool {
    match port.protocol.as_deref().unwrap_or("TCP") {
        "TCP" => PORTS.contains(&port.container_port),
        "UDP" => port.container_port == i32::from(PEERS_PORT),
        _ => false,
    }
}

/// The container.
pub(super) fn container(settled: &Settled, budget: &Budget, defaults: &Defaults) -> Container {
    Container {
        name: SIDECAR.to_owned(),
        image: Some(defaults.image.clone()),
        image_pull_policy: defaults.image_pull_policy.clone(),
        restart_policy: Some("Always".to_owned()),
        env: Some(environment(settled, budget, defaults)),
        ports: Some(vec![
            port("tl-peers", PEERS_PORT, "TCP"),
            port("tl-quic", PEERS_PORT, "UDP"),
            port("tl-admin", ADMIN_PORT, "TCP"),
        ]),
        // Populating the arena takes up to half a second a gibibyte, and a start must not wait longer than it takes.
        startup_probe: Some(probe("/startupz", 1, 300)),
        // A flood may have a probe's first packet sent again after a second: the default of a second would fail it.
        readiness_probe: Some(Probe { timeout_seconds: Some(4), ..probe("/readyz", 5, 3) }),
        liveness_probe: Some(Probe { timeout_seconds: Some(5), ..probe("/livez", 10, 6) }),
        resources: Some(resources(budget)),
        security_context: Some(security(defaults)),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(sidecar_mounts(settled)),
        ..Container::default()
    }
}

fn resources(budget: &Budget) -> ResourceRequirements {
    let sum = budget.sum;
    let list = |cpu: Option<Amount>, storage: Option<Amount>| {
        let amounts = [
            (CPU, cpu.map(Amount::cpu)),
            (MEMORY, Some(sum.memory.memory())),
            (STORAGE, storage.map(Amount::memory)),
        ];
        amounts.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount?))).collect()
    };
    ResourceRequirements {
        requests: Some(list(Some(sum.cpu), Some(sum.storage))),
        limits: Some(list(sum.cpu_limit, sum.storage_limit)),
        claims: None,
    }
}

fn security(defaults: &Defaults) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        run_as_user: defaults.user,
        run_as_group: defaults.user,
        seccomp_profile: Some(SeccompProfile { localhost_profile: None, type_: "RuntimeDefault".to_owned() }),
        ..SecurityContext::default()
    }
}

fn port(name: &str, number: u16, protocol: &str) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        protocol: Some(protocol.to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, seconds: i32, failures: i32) -> Probe {
    let get = HTTPGetAction {
        path: Some(path.to_owned()),
        // A number: a mesh that rewrites probes does not look for names among the ports of init containers.
        port: IntOrString::Int(i32::from(ADMIN_PORT)),
        ..HTTPGetAction::default()
    };
    Probe {
        http_get: Some(get),
        period_seconds: Some(seconds),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// Variables that the sidecar is told. Facts of the pod come first, because later variables are made of them.
fn environment(settled: &Settled, budget: &Budget, defaults: &Defaults) -> Vec<EnvVar> {
    let mut all = vec![
        from_pod("POD_NAME", "metadata.name"),
        from_pod("POD_NAMESPACE", "metadata.namespace"),
        from_pod("POD_UID", "metadata.uid"),
        from_pod("POD_IPS", "status.podIPs"),
        from_pod("NODE_NAME", "spec.nodeName"),
    ];
    let any = if defaults.ipv6 { "[::]" } else { "0.0.0.0" };
    let said = [
        ("TENSORLANE_EXCHANGE", settled.exchange.clone()),
        ("TENSORLANE_PEER", "$(POD_NAME)".to_owned()),
        ("TENSORLANE_SOCKETS_DIRECTORY", SOCKETS_PATH.to_owned()),
        ("TENSORLANE_STATE_DIRECTORY", STATE_PATH.to_owned()),
        ("TENSORLANE_ARENA_SIZE", settled.arena.memory().0),
        ("TENSORLANE_ARENA_BASE", budget.base.memory().0),
        ("TENSORLANE_PEERS_LISTEN", format!("{any}:{PEERS_PORT}")),
        ("TENSORLANE_PEERS_ADVERTISE", "$(POD_IPS)".to_owned()),
        ("TENSORLANE_PEERS_DIRECTORY", "kubernetes".to_owned()),
        ("TENSORLANE_ADMIN_LISTEN", format!("{any}:{ADMIN_PORT}")),
        ("TENSORLANE_LOG_LEVEL", settled.log_level.to_string()),
    ];
    all.extend(said.into_iter().map(|(name, value)| text(name, value)));
    all.extend(choices(settled));
    all
}

/// Variables that are said only if pod or exchange says them.
fn choices(settled: &Settled) -> impl Iterator<Item = EnvVar> {
    let joined = |words: Vec<&str>| words.join(",");
    let require: Vec<_> = settled.require.iter().map(|word| word.as_str()).collect();
    let transports =
        settled.transports.as_ref().map(|all| joined(all.iter().map(|word| word.as_str()).collect()));
    let node = (settled.same_node != SameNode::Off).then(|| NODE_PATH.to_owned());
    [
        ("TENSORLANE_GC_LEASE_GRACE", settled.lease_grace.clone()),
        ("TENSORLANE_GC_TICKET_TTL", settled.ticket_ttl.clone()),
        ("TENSORLANE_TRANSPORTS", transports),
        ("TENSORLANE_PREFER", settled.prefer.map(|word| word.to_string())),
        ("TENSORLANE_REQUIRE", (!require.is_empty()).then(|| joined(require))),
        ("TENSORLANE_ENCRYPTION", settled.encryption.map(|word| word.to_string())),
        ("TENSORLANE_SECURITY_NEIGHBOURS", settled.neighbours.map(|word| word.to_string())),
        ("TENSORLANE_GPU_MODE", Some(settled.gpu.to_string())),
        ("TENSORLANE_NODE_DIRECTORY", node),
        ("TENSORLANE_SETS_ROOT", settled.sets.as_ref().map(|_| SETS_PATH.to_owned())),
        ("TENSORLANE_PEERS_MAX", settled.seats.map(|seats| seats.to_string())),
        ("TENSORLANE_PEERS_FAN_OUT", settled.fan_out.map(|readers| readers.to_string())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(text(name, value?)))
}

pub(super) fn text(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.into()), value_from: None }
}

fn from_pod(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { api_version: Some("v1".to_owned()), field_path: path.to_owned() };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_another_protocol_is_not_the_sidecars() {
        let declared = |number: u16, protocol: Option<&str>| ContainerPort {
            container_port: i32::from(number),
            protocol: protocol.map(str::to_owned),
            ..ContainerPort::default()
        };
        for (number, protocol, is_ours) in [
            (PEERS_PORT, None, true),
            (PEERS_PORT, Some("UDP"), true),
            (ADMIN_PORT, Some("TCP"), true),
            (ADMIN_PORT, Some("UDP"), false),
            (PEERS_PORT, Some("SCTP"), false),
            (80, None, false),
        ] {
            assert_eq!(listens_on(&declared(number, protocol)), is_ours, "{number} {protocol:?}");
        }
    }
}
