//! Every golden pod is decided as it is committed, and what comes out holds what is promised of every injected pod.

#![allow(clippy::unwrap_used)]

mod common;

use common::pod_security::violations;
use serde_json::Value;
use tensorlane_operator::{Decision, Plan, plan};

/// Every golden pod that is injected: its name, the pod before, and the plan.
fn injected() -> Vec<(String, Value, Plan)> {
    let planned = common::all().into_iter().filter_map(|(name, yaml)| {
        let (pod, facts) = common::read(&yaml);
        match plan(&pod, &facts).decision {
            Decision::Inject(plan) => Some((name, pod, *plan)),
            _ => None,
        }
    });
    planned.collect()
}

#[test]
fn every_golden_pod_is_decided_as_committed() {
    let mut wrong = Vec::new();
    for (name, yaml) in common::all() {
        let (pod, facts) = common::read(&yaml);
        wrong.extend(common::compare(&name, &common::shown(&plan(&pod, &facts))).err());
    }
    assert!(wrong.is_empty(), "TENSORLANE_GOLDEN=write writes these:\n{}", wrong.join("\n"));
}

#[test]
fn no_golden_pod_has_lost_its_input() {
    let known: Vec<_> = common::all().into_iter().map(|(name, _)| name).collect();
    for entry in std::fs::read_dir(common::folder()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = file.strip_suffix(".out.yaml") {
            assert!(known.iter().any(|known| known == name), "{file} has no input");
        }
    }
}

#[test]
fn planning_the_result_again_changes_nothing() {
    for (name, yaml) in common::all() {
        let (pod, facts) = common::read(&yaml);
        let Decision::Inject(first) = plan(&pod, &facts).decision else { continue };
        let Decision::Inject(second) = plan(&first.pod, &facts).decision else { panic!("{name}") };
        assert_eq!(second.pod, first.pod, "{name}");
        assert!(second.patch.0.is_empty(), "{name}: {:?}", second.patch);
    }
}

#[test]
fn the_patch_leads_to_the_planned_pod() {
    for (name, mut pod, plan) in injected() {
        json_patch::patch(&mut pod, &plan.patch).unwrap();
        assert_eq!(pod, plan.pod, "{name}");
    }
}

#[test]
fn the_sidecar_adds_nothing_that_restricted_pod_security_refuses() {
    let mut restricted = 0;
    for (name, before, plan) in injected() {
        let mut new = violations(&plan.pod);
        let old = violations(&before);
        new.retain(|violation| !old.contains(violation));
        match name.as_str() {
            "same-node-host-path" => assert_eq!(new, ["volume hostPath"]),
            _ => assert!(new.is_empty(), "{name}: {new:?}"),
        }
        restricted += usize::from(violations(&plan.pod).is_empty());
    }
    assert!(restricted > 0, "a pod that is restricted before stays so");
}

#[test]
fn the_sidecar_comes_first_and_its_volumes_and_ports_are_there() {
    for (name, _, plan) in injected() {
        let spec = &plan.pod["spec"];
        let sidecar = &spec["initContainers"][0];
        assert_eq!(
            (&sidecar["name"], &sidecar["restartPolicy"]),
            (&"tensorlane".into(), &"Always".into()),
            "{name}"
        );
        assert!(sidecar.get("lifecycle").is_none(), "a preStop would drain while workloads still work");
        let names = |list: &Value| -> Vec<Value> {
            list.as_array().unwrap().iter().map(|one| one["name"].clone()).collect()
        };
        let (volumes, ports) = (names(&spec["volumes"]), names(&sidecar["ports"]));
        assert!(names(&sidecar["volumeMounts"]).iter().all(|mount| volumes.contains(mount)), "{name}");
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            assert!(ports.contains(&sidecar[probe]["httpGet"]["port"]), "{name} {probe}");
        }
        assert_eq!(sidecar["startupProbe"]["periodSeconds"], 1, "{name}");
    }
}

#[test]
fn workloads_see_the_sockets_read_only_and_nothing_else() {
    for (name, _, plan) in injected() {
        let spec = &plan.pod["spec"];
        let own = spec["initContainers"].as_array().unwrap().iter().skip(1);
        for container in own.chain(spec["containers"].as_array().unwrap()) {
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                match mount["name"].as_str().unwrap() {
                    "tensorlane-sockets" => assert_eq!(mount["readOnly"], true, "{name}"),
                    other => {
                        assert!(!other.starts_with("tensorlane-"), "{name}: {other} is the sidecar's alone");
                    }
                }
            }
        }
    }
}
