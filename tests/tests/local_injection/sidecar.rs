//! A sidecar takes every variable that the operator's planner gives it, and starts with them.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};
use tensorlane_client::{AcquireOptions, Moved, PutOptions};
use tensorlane_operator::abilities::Abilities;
use tensorlane_operator::plan::Facts;
use tensorlane_operator::{Decision, Deny, plan};
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::{Reason, Transport};
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::{is_intact, put_pattern};
use tensorlane_tests::{Sidecar, SidecarOptions, failure, until};

/// Facts that an operator with these abilities has of an installation.
fn known(abilities: Abilities) -> Facts {
    Facts { abilities, ..Facts::default() }
}

/// Decision of an operator with these facts about a pod with a GPU.
fn decided(annotations: &Value, exchange: &Value, mut facts: Facts) -> Decision {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    });
    facts.exchanges.insert("training".to_owned(), serde_json::from_value(exchange.clone()).unwrap());
    plan(&pod, &facts).decision
}

/// The variables of an injected sidecar, with the facts of a pod on this machine in them.
fn variables(annotations: &Value, exchange: &Value) -> BTreeMap<String, String> {
    variables_by(Abilities::THIS_RELEASE, annotations, exchange)
}

/// The variables by an operator that believes its sidecars able to do this.
fn variables_by(abilities: Abilities, annotations: &Value, exchange: &Value) -> BTreeMap<String, String> {
    variables_with(known(abilities), annotations, exchange, "127.0.0.1")
}

/// The variables by an operator with these facts, of a pod with these addresses.
fn variables_with(
    facts: Facts,
    annotations: &Value,
    exchange: &Value,
    ips: &str,
) -> BTreeMap<String, String> {
    let Decision::Inject(plan) = decided(annotations, exchange, facts) else { panic!("it is injected") };
    let sidecar = &plan.pod["spec"]["initContainers"][0];
    let given = sidecar["env"].as_array().unwrap().iter().map(|one| {
        let value = one["value"].as_str().unwrap_or(match one["name"].as_str().unwrap() {
            "POD_NAME" => "trainer-0",
            "POD_IPS" => ips,
            _ => "x",
        });
        (one["name"].as_str().unwrap().to_owned(), value.to_owned())
    });
    let given: BTreeMap<_, _> = given.collect();
    let filled = |value: &String| value.replace("$(POD_NAME)", "trainer-0").replace("$(POD_IPS)", ips);
    given.iter().map(|(name, value)| (name.clone(), filled(value))).collect()
}

/// Options with those variables for a sidecar of this test: in a folder and on ports of its own.
fn options(mut variables: BTreeMap<String, String>) -> SidecarOptions {
    for folder in ["TENSORLANE_SOCKETS_DIRECTORY", "TENSORLANE_STATE_DIRECTORY"] {
        variables.remove(folder).unwrap();
    }
    for port in ["TENSORLANE_PEERS_LISTEN", "TENSORLANE_ADMIN_LISTEN"] {
        *variables.get_mut(port).unwrap() = "127.0.0.1:0".to_owned();
    }
    // There is no API server here; the cluster's own suites have one.
    let directory = variables.insert("TENSORLANE_PEERS_DIRECTORY".to_owned(), "none".to_owned());
    assert_eq!(directory.as_deref(), Some("kubernetes"));
    let words = variables.iter().map(|(name, value)| format!("{name}={value}"));
    let soon_free = SidecarOptions::default().set("gc.copyIdle", "500ms");
    soon_free.prefix(["env".to_owned()].into_iter().chain(words))
}

#[test]
fn a_sidecar_starts_with_what_the_planner_gives_it() {
    let annotations = json!({
        "tensorlane.dev/inject": "enabled", "tensorlane.dev/exchange": "training",
        "tensorlane.dev/arena-size": "64Mi", "tensorlane.dev/memory": "128Mi", "tensorlane.dev/log-level": "debug",
        "tensorlane.dev/require": "encrypted", "tensorlane.dev/gpu": "none",
    });
    let exchange = json!({
        "transports": ["tcp", "quic"], "gc": {"leaseGrace": "20s", "ticketTtl": "2m"},
        "security": {"encryption": "required"}, "fanOut": 2,
    });
    let sidecar = Sidecar::with(options(variables(&annotations, &exchange)));
    let status = sidecar.client().status().unwrap();
    assert_eq!((status.exchange.as_str(), status.peer.as_str()), ("training", "trainer-0"));
    assert_eq!(status.arena.unwrap().total, 64 << 20);
    sidecar.assert_all_free();
}

/// Addresses of the line for a peers file, which are those that a directory is told, too.
#[test]
fn a_pod_with_addresses_of_both_families_is_told_of_by_those_on_which_its_sidecar_listens() {
    let folder = tempfile::tempdir().unwrap();
    for (ipv6, told) in [(false, r#"["10.0.0.7:9421"]"#), (true, r#"["10.0.0.7:9421", "[fd00::7]:9421"]"#)] {
        let mut facts = known(Abilities::THIS_RELEASE);
        facts.defaults.ipv6 = ipv6;
        let mut variables = variables_with(facts, &asked(&[]), &json!({}), "10.0.0.7,fd00::7");
        variables.insert("TENSORLANE_STATE_DIRECTORY".to_owned(), folder.path().display().to_string());
        let mut command = Command::new(bin_dir().join("tensorlane-sidecar"));
        let printed = command.arg("--print-peer").env_clear().envs(variables).output().unwrap();
        let line = String::from_utf8_lossy(&printed.stdout);
        let errors = String::from_utf8_lossy(&printed.stderr);
        assert!(printed.status.success() && line.contains(&format!("addresses: {told}")), "{line}{errors}");
    }
}

/// Annotations of every pod of these tests: little memory.
fn asked(more: &[(&str, &str)]) -> Value {
    let small =
        [("inject", "enabled"), ("exchange", "training"), ("arena-size", "64Mi"), ("memory", "128Mi")];
    let all = small.iter().chain(more).map(|(key, value)| (format!("tensorlane.dev/{key}"), json!(value)));
    Value::Object(all.collect())
}

/// Two pods of one exchange, connected. Their ports are free ones of a loopback address of this process.
fn pair(exchange: &Value, annotations: [&[(&str, &str)]; 2], host: u8) -> [Sidecar; 2] {
    let folder = tempfile::tempdir().unwrap().keep();
    let file = folder.join("peers.yaml");
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address = |port: usize| format!("127.{high}.{low}.{host}:{}", 9431 + port);
    let mut lines = String::from("peers:\n");
    let mut both = Vec::new();
    for (number, annotations) in annotations.into_iter().enumerate() {
        let mut variables = variables(&asked(annotations), exchange);
        variables.insert("TENSORLANE_PEERS_FILE".to_owned(), file.display().to_string());
        variables.insert("TENSORLANE_PEER".to_owned(), format!("trainer-{number}"));
        let mut options = options(variables);
        for word in &mut options.prefix {
            let (name, _) = word.split_once('=').unwrap_or((word, ""));
            match name {
                "TENSORLANE_PEERS_DIRECTORY" => *word = format!("{name}=file"),
                "TENSORLANE_PEERS_LISTEN" | "TENSORLANE_PEERS_ADVERTISE" => {
                    *word = format!("{name}={}", address(number));
                }
                _ => {}
            }
        }
        let sidecar = Sidecar::with(options);
        let fingerprint = sidecar.client().status().unwrap().fingerprint;
        lines.push_str(&format!(
            "  - {{name: trainer-{number}, addresses: [\"{}\"], fingerprints: [\"{fingerprint}\"]}}\n",
            address(number)
        ));
        both.push(sidecar);
    }
    std::fs::write(folder.join("draft"), lines).unwrap();
    std::fs::rename(folder.join("draft"), &file).unwrap();
    for sidecar in &both {
        let client = sidecar.client();
        until("the other is connected", || {
            client.peers().unwrap().iter().any(|peer| peer.state == "connected")
        });
    }
    // Nobody reads it any more: what a sidecar knows stays.
    let both = both.try_into().unwrap_or_else(|_| panic!("two"));
    std::fs::remove_dir_all(folder).unwrap();
    both
}

/// An operator of another release may inject what this sidecar cannot do.
#[test]
fn an_exchange_that_asks_for_what_this_release_cannot_do_is_refused_at_the_start_all_at_once() {
    let exchange = json!({
        "transports": ["cuda_ipc", "quic"], "security": {"encryption": "none"},
        "gpu": {"mode": "broker"},
    });
    let variables = variables_by(Abilities::EVERYTHING, &asked(&[]), &exchange);
    let (status, log) = Sidecar::refused(options(variables));
    assert_eq!(status.code(), Some(1), "{log}");
    for part in ["transports = cuda_ipc,quic", "gpu.mode = broker", "add tcp"] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
}

/// Each knows for itself what the release can do; a pod that one of them takes and the other does not would hang.
#[test]
fn the_planner_refuses_what_a_sidecar_would_refuse_and_takes_what_it_would_take() {
    let cases: [(Value, &[(&str, &str)]); 9] = [
        (json!({"transports": ["cuda_ipc", "quic"]}), &[]),
        (json!({"security": {"encryption": "none"}}), &[]),
        (json!({"sameNode": "claim"}), &[]),
        (json!({"gpu": {"mode": "broker"}}), &[]),
        (json!({}), &[("gpu", "legacy_ipc"), ("share-process-namespace", "true")]),
        (json!({}), &[("transports", "quic")]),
        (json!({"transports": ["shm", "tcp"], "security": {"encryption": "required"}}), &[]),
        (json!({"gpu": {"mode": "auto"}, "sameNode": "off", "require": ["same_node"]}), &[]),
        (json!({}), &[("transports", "shm,tcp"), ("gpu", "auto")]),
    ];
    for (exchange, annotations) in cases {
        let annotations = asked(annotations);
        let options = options(variables_by(Abilities::EVERYTHING, &annotations, &exchange));
        match decided(&annotations, &exchange, known(Abilities::THIS_RELEASE)) {
            Decision::Deny(Deny::Unsupported(_)) => {
                let (status, log) = Sidecar::refused(options);
                assert_eq!(status.code(), Some(1), "{exchange} {annotations}: {log}");
            }
            Decision::Inject(_) => Sidecar::with(options).assert_all_free(),
            other => panic!("{exchange} {annotations}: {other:?}"),
        }
    }
}

#[test]
fn what_an_exchange_requires_of_every_route_holds_for_those_who_ask_and_for_those_who_are_asked() {
    let annotations: [&[(&str, &str)]; 2] = [&[("require", "same_node")], &[]];
    let pods = pair(&json!({"transports": ["tcp"]}), annotations, 11);
    let [strict, other] = pods.each_ref().map(Sidecar::client);
    for count in [100, 1 << 20] {
        let theirs = put_pattern(&other, 1, count, &PutOptions::new()).unwrap();
        let refused = failure(strict.acquire(theirs.reference(), &AcquireOptions::new()));
        assert_eq!(
            (refused.reason, refused.detail("tcp")),
            (Reason::RequirementNotMet, Some("not_same_node"))
        );
        assert!(refused.message.contains("tensorlane.dev/require"), "{refused}");
        let ours = put_pattern(&strict, 2, count, &PutOptions::new()).unwrap();
        let refused = failure(other.acquire(ours.reference(), &AcquireOptions::new()));
        assert_eq!(refused.reason, Reason::RequirementNotMet, "{refused}");
        assert!(
            is_intact(&strict.acquire(ours.reference(), &AcquireOptions::new()).unwrap()),
            "in the pod it is met"
        );
    }
    let peers = strict.peers().unwrap();
    let seen = peers.iter().find(|peer| peer.name == "trainer-1").unwrap();
    let route = Moved::from(seen.route.clone().unwrap()).to_string();
    assert!(route.contains("not tcp: not_same_node"), "{route}");
    drop((strict, other));
    pods.iter().for_each(Sidecar::assert_all_free);
}

#[test]
fn encryption_is_met_by_tls_and_the_reply_names_what_the_policy_left_out() {
    let exchange =
        json!({"transports": ["tcp"], "require": ["encrypted"], "security": {"encryption": "required"}});
    let pods = pair(&exchange, [&[], &[]], 12);
    let [writer, reader] = pods.each_ref().map(Sidecar::client);
    let stored = put_pattern(&writer, 3, 1 << 20, &PutOptions::new()).unwrap();
    let options = AcquireOptions::new().require(Require::ENCRYPTED);
    let tensor = reader.acquire(stored.reference(), &options).unwrap();
    assert!(is_intact(&tensor));
    assert_eq!(tensor.moved().transport, Some(Transport::Tcp));
    assert!(tensor.moved().to_string().contains("not shm: policy"), "{}", tensor.moved());
    drop((tensor, stored, writer, reader));
    pods.iter().for_each(Sidecar::assert_all_free);
}

#[test]
fn what_an_exchange_itself_requires_is_refused_to_every_pod_of_it() {
    for (word, why, host) in [("same_node", "not_same_node", 13), ("zero_copy", "not_zero_copy", 14)] {
        let pods = pair(&json!({"transports": ["tcp"], "require": [word]}), [&[], &[]], host);
        let [one, other] = pods.each_ref().map(Sidecar::client);
        for (writer, reader) in [(&one, &other), (&other, &one)] {
            for count in [100, 1 << 20] {
                let stored = put_pattern(writer, 1, count, &PutOptions::new()).unwrap();
                let refused = failure(reader.acquire(stored.reference(), &AcquireOptions::new()));
                assert_eq!(
                    (refused.reason, refused.detail("tcp")),
                    (Reason::RequirementNotMet, Some(why)),
                    "{refused}"
                );
                let mapped = writer.acquire(stored.reference(), &AcquireOptions::new()).unwrap();
                assert!(is_intact(&mapped), "in the pod it is met");
            }
        }
        drop((one, other));
        pods.iter().for_each(Sidecar::assert_all_free);
    }
}
