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
        // By the word of the pod, or because somebody was first later.
        let later = name == "others-first" || name.ends_with("changed-after-injection");
        let place = usize::from(later);
        let sidecar = &spec["initContainers"][place];
        assert_eq!(
            (&sidecar["name"], &sidecar["restartPolicy"]),
            (&"tensorlane".into(), &"Always".into()),
            "{name}"
        );
        assert!(sidecar.get("lifecycle").is_none(), "a preStop would drain while workloads still work");
        let each = |list: &Value, key: &str| -> Vec<Value> {
            list.as_array().unwrap().iter().map(|one| one[key].clone()).collect()
        };
        let (volumes, ports) = (each(&spec["volumes"], "name"), each(&sidecar["ports"], "containerPort"));
        assert!(each(&sidecar["volumeMounts"], "name").iter().all(|mount| volumes.contains(mount)), "{name}");
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
        let all = spec["initContainers"].as_array().unwrap().iter();
        for container in
            all.filter(|one| one["name"] != "tensorlane").chain(spec["containers"].as_array().unwrap())
        {
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

/// The pod of a golden file with its sidecar.
fn planned(name: &str) -> (Value, plan::Facts) {
    let yaml = std::fs::read_to_string(common::folder().join(format!("{name}.in.yaml"))).unwrap();
    let (pod, facts) = common::read(&yaml);
    let Decision::Inject(plan) = plan(&pod, &facts).decision else { panic!("{name} is injected") };
    (plan.pod, facts)
}

fn init_names(pod: &Value) -> Vec<&str> {
    pod["spec"]["initContainers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect()
}

/// Pod after another call, and what is said.
fn again(pod: &Value, facts: &plan::Facts) -> (Value, Vec<String>) {
    let outcome = plan(pod, facts);
    let Decision::Inject(plan) = outcome.decision else { panic!("{:?}", outcome.decision) };
    (plan.pod, outcome.warnings)
}

#[test]
fn two_injectors_that_want_to_be_first_come_to_rest_and_what_uses_the_sidecar_is_behind_it() {
    for annotations in [
        "{tensorlane.dev/inject: enabled, tensorlane.dev/containers: warm-up}",
        "{tensorlane.dev/inject: enabled}",
    ] {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p, annotations: {annotations}}}, spec: {{\
             initContainers: [{{name: secrets, image: i}}, {{name: otel, image: i}}, {{name: warm-up, image: i}}], \
             containers: [{{name: main, image: i}}]}}}}"
        );
        let (pod, facts) = common::read(&text);
        let (mut pod, _) = again(&pod, &facts);
        assert_eq!(init_names(&pod), ["tensorlane", "secrets", "otel", "warm-up"]);
        for _ in 0..3 {
            let list = pod["spec"]["initContainers"].as_array_mut().unwrap();
            let at = list.iter().position(|one| one["name"] == "secrets").unwrap();
            let moved = list.remove(at);
            list.insert(0, moved);
            let (next, _) = again(&pod, &facts);
            assert_eq!(init_names(&next), ["secrets", "tensorlane", "otel", "warm-up"], "{annotations}");
            assert_eq!(next["spec"]["initContainers"], pod["spec"]["initContainers"], "it is at rest");
            pod = next;
        }
        let list = pod["spec"]["initContainers"].as_array_mut().unwrap();
        let ours = list.remove(1);
        list.push(ours);
        let (next, _) = again(&pod, &facts);
        let names = init_names(&next);
        let place = |name| names.iter().position(|one| *one == name).unwrap();
        assert!(place("tensorlane") < place("warm-up"), "{annotations}: {names:?}");
    }
}

#[test]
fn a_copy_by_kubectl_debug_is_known_as_ours_and_gets_a_sidecar_of_its_own() {
    let (injected, mut facts) = planned("own-init-containers");
    facts.namespace.labels.insert("tensorlane.dev/inject".to_owned(), "enabled".to_owned());
    let mut copy = injected.clone();
    copy["metadata"] = serde_json::json!({"name": "copy", "namespace": "ml"});
    let debugger = serde_json::json!({"name": "debugger", "image": "example.org/busybox:1"});
    copy["spec"]["containers"].as_array_mut().unwrap().push(debugger);
    let (planned, warnings) = again(&copy, &facts);
    assert!(warnings[0].contains("a copy by kubectl debug"), "{warnings:?}");
    assert_eq!(init_names(&planned), init_names(&injected));
    assert_eq!(planned["spec"]["volumes"], injected["spec"]["volumes"]);
    assert_eq!(planned["spec"]["containers"][0], injected["spec"]["containers"][0], "nothing is there twice");
    assert_eq!(planned["metadata"]["labels"]["tensorlane.dev/injected"], "true");
    assert_eq!(again(&planned, &facts).0, planned);
    // With --keep-init-containers=false there are volumes and mounts alone.
    let mut bare = copy.clone();
    bare["spec"].as_object_mut().unwrap().remove("initContainers");
    let (planned, _) = again(&bare, &facts);
    assert_eq!(init_names(&planned), ["tensorlane"]);
    assert_eq!(planned["spec"]["volumes"], injected["spec"]["volumes"]);
    // Whoever asks for nothing keeps what was copied.
    facts.namespace.labels.clear();
    assert!(matches!(plan(&copy, &facts).decision, Decision::Skip(_)));
    // A container of the user's own by that name is none of ours.
    copy["spec"]["initContainers"] =
        serde_json::json!([{"name": "tensorlane", "image": "example.org/other:1"}]);
    copy["metadata"]["annotations"] = serde_json::json!({"tensorlane.dev/inject": "enabled"});
    let Decision::Deny(deny) = plan(&copy, &facts).decision else { panic!("the name is taken") };
    assert_eq!(deny.label(), "name_taken");
}

#[test]
fn a_copy_of_a_pod_with_amounts_as_a_whole_has_room_for_one_sidecar() {
    let (injected, mut facts) = planned("pod-level-resources");
    facts.namespace.labels.insert("tensorlane.dev/inject".to_owned(), "enabled".to_owned());
    let mut copy = injected.clone();
    copy["metadata"] = serde_json::json!({"name": "copy", "namespace": "ml"});
    assert_eq!(again(&copy, &facts).0["spec"], injected["spec"]);
}

#[test]
fn what_another_webhook_did_to_the_sidecar_is_put_back_and_told() {
    let (injected, facts) = planned("own-init-containers");
    let mut not_native = injected.clone();
    not_native["spec"]["initContainers"][0].as_object_mut().unwrap().remove("restartPolicy");
    let mut moved = injected.clone();
    let sidecar = moved["spec"]["initContainers"].as_array_mut().unwrap().remove(0);
    let mut gone = moved.clone();
    moved["spec"]["containers"].as_array_mut().unwrap().push(sidecar);
    gone["spec"]["initContainers"].as_array_mut().unwrap().truncate(2);
    for (damaged, word) in [(not_native, "restartPolicy"), (moved, "moved"), (gone, "out of the pod")] {
        let (planned, warnings) = again(&damaged, &facts);
        assert_eq!(planned, injected, "{word}");
        assert!(warnings.iter().any(|warning| warning.contains(word)), "{warnings:?}");
    }
}

#[test]
fn containers_of_meshes_never_see_the_sockets_and_our_ports_are_outside() {
    let (linkerd, _) = planned("mesh-linkerd");
    for container in linkerd["spec"]["initContainers"].as_array().unwrap().iter().skip(1) {
        assert!(container.get("volumeMounts").is_none() && container.get("env").is_none(), "{container}");
    }
    let (mut istio, facts) = planned("mesh-istio");
    let said = |pod: &Value, key: &str| pod["metadata"]["annotations"][key].as_str().map(str::to_owned);
    let inbound = "traffic.sidecar.istio.io/excludeInboundPorts";
    assert_eq!(said(&istio, inbound).as_deref(), Some("8080,9420,9421"));
    // The mesh comes later, and its containers do not make ours say that it was too late.
    let proxy = serde_json::json!({"name": "istio-proxy", "image": "example.org/istio:1"});
    istio["spec"]["containers"].as_array_mut().unwrap().push(proxy);
    let (next, warnings) = again(&istio, &facts);
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(next, istio, "nothing is left to do");
}

#[test]
fn ports_outside_of_a_mesh_are_added_to_those_of_the_namespace_and_never_too_late() {
    let keys = ["config.linkerd.io/skip-inbound-ports", "config.linkerd.io/skip-outbound-ports"];
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: p, annotations: {tensorlane.dev/inject: enabled}}, \
         spec: {containers: [{name: main, image: i}]}}";
    let (pod, mut facts) = common::read(text);
    let of_namespace = [("linkerd.io/inject", "enabled"), (keys[0], "3306"), (keys[1], "3306,9420-9421")];
    let of_namespace = of_namespace.map(|(key, value)| (key.to_owned(), value.to_owned()));
    facts.namespace.annotations = of_namespace.into();
    let (mut planned, warnings) = again(&pod, &facts);
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(planned["metadata"]["annotations"][keys[0]], "3306,9420,9421");
    assert!(planned["metadata"]["annotations"].get(keys[1]).is_none(), "the namespace says it already");
    let proxy = serde_json::json!({"name": "linkerd-proxy", "image": "i"});
    planned["spec"]["containers"].as_array_mut().unwrap().push(proxy.clone());
    let (next, warnings) = again(&planned, &facts);
    assert!(warnings.is_empty() && next == planned, "it came in time: {warnings:?}");
    let mut late = pod;
    late["spec"]["containers"].as_array_mut().unwrap().push(proxy);
    for _ in 0..2 {
        let (next, warnings) = again(&late, &facts);
        assert!(warnings.iter().any(|warning| warning.contains("was there before")), "{warnings:?}");
        assert!(keys.iter().all(|key| next["metadata"]["annotations"].get(*key).is_none()), "{next}");
        late = next;
    }
}

#[test]
fn no_init_container_that_runs_before_the_sidecar_is_made_to_wait_for_it() {
    let pod = |more: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p, annotations: {{tensorlane.dev/inject: enabled, \
             tensorlane.dev/after: vault-agent-init{more}}}}}, spec: {{initContainers: [{{name: warm-up, image: i}}, \
             {{name: vault-agent-init, image: i}}, {{name: late, image: i}}], containers: [{{name: main, image: i}}]}}}}"
        );
        common::read(&text)
    };
    let (silent, facts) = pod("");
    let (planned, _) = again(&silent, &facts);
    assert_eq!(init_names(&planned), ["warm-up", "vault-agent-init", "tensorlane", "late"]);
    let sees = |index: usize| planned["spec"]["initContainers"][index].get("volumeMounts").is_some();
    assert_eq!([sees(0), sees(1), sees(3)], [false, false, true]);
    assert_eq!(again(&planned, &facts).0, planned);
    let (named, facts) = pod(", tensorlane.dev/containers: \"warm-up,main\"");
    let Decision::Deny(deny) = plan(&named, &facts).decision else { panic!("it would wait for ever") };
    assert_eq!(deny.label(), "contradiction");
    assert!(deny.to_string().contains("\"warm-up\", which runs before \"vault-agent-init\""), "{deny}");
    let (named, facts) = pod(", tensorlane.dev/containers: \"late,main\"");
    assert_eq!(init_names(&again(&named, &facts).0)[2], "tensorlane");
}

/// OpenShift chooses users, for the sidecar as for others; two that differ share the sockets.
#[test]
fn a_sidecar_whose_user_the_platform_chooses_says_none() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: p, annotations: {tensorlane.dev/inject: enabled}}, \
         spec: {securityContext: {runAsUser: 1000920000, fsGroup: 1000920000}, containers: [{name: main, image: i, \
         securityContext: {runAsUser: 1000925555}}]}}";
    let (pod, mut facts) = common::read(text);
    facts.defaults.user = None;
    let (planned, _) = again(&pod, &facts);
    let security = &planned["spec"]["initContainers"][0]["securityContext"];
    assert!(security.get("runAsUser").is_none() && security.get("runAsGroup").is_none(), "{security}");
    assert_eq!(security["runAsNonRoot"], true);
    assert_eq!(planned["spec"]["securityContext"], pod["spec"]["securityContext"]);
    assert_eq!(
        planned["spec"]["containers"][0]["securityContext"],
        pod["spec"]["containers"][0]["securityContext"]
    );
}

/// Tokens of sidecar and user are apart: the sidecar has one of its own, and the user's containers have what they had.
#[test]
fn a_sidecar_has_its_own_token_beside_a_pod_that_has_none_or_another() {
    const SECRETS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let other = format!(
        "containers: [{{name: main, image: i, volumeMounts: [{{name: token, mountPath: {SECRETS}}}]}}], volumes: [{{name: token, \
         projected: {{sources: [{{serviceAccountToken: {{path: token, audience: vault}}}}]}}}}]"
    );
    let none = "serviceAccountName: quiet, automountServiceAccountToken: false, containers: [{name: main, image: i}]";
    let all: [(&str, &[&str]); 2] = [(none, &[]), (&other, &["token"])];
    for (spec, theirs) in all {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p, annotations: {{tensorlane.dev/inject: enabled}}}}, spec: {{{spec}}}}}"
        );
        let (pod, facts) = common::read(&text);
        let (planned, warnings) = again(&pod, &facts);
        assert!(warnings.is_empty(), "{warnings:?}");
        let mounted = |container: &Value| -> Vec<String> {
            let all = container["volumeMounts"].as_array().unwrap().iter();
            let at_secrets = all.filter(|mount| mount["mountPath"] == SECRETS);
            at_secrets.map(|mount| mount["name"].as_str().unwrap().to_owned()).collect()
        };
        let spec = &planned["spec"];
        assert_eq!(mounted(&spec["initContainers"][0]), ["tensorlane-token"]);
        assert_eq!(mounted(&spec["containers"][0]), theirs);
        assert_eq!(spec["automountServiceAccountToken"], pod["spec"]["automountServiceAccountToken"]);
    }
}
