use serde_json::json;

use super::*;
use crate::findings::exit_code;

fn subject(kind: &'static str, object: Value) -> Subject {
    let mut facts = Facts::default();
    facts.namespace.name = "ml".to_owned();
    let mut object = object;
    object["kind"] = json!(kind);
    Subject {
        kind: kind.to_owned(),
        name: "x".to_owned(),
        namespace: "ml".to_owned(),
        object: Seen::There(object),
        facts: Ok(facts),
        settings: Ok(()),
        events: Seen::There(json!({"items": []})),
        makers: Ok(()),
        peer: Seen::Missing,
    }
}

fn pod(annotations: &Value) -> Value {
    json!({"metadata": {"name": "x", "annotations": annotations}, "spec": {"containers": [{"name": "main", "image": "i"}]}})
}

/// A pod as the planner makes it, with this status of its sidecar.
fn with_sidecar(status: &Value) -> Value {
    let Decision::Inject(plan) = plan(&pod(&json!({INJECT: "enabled"})), &Facts::default()).decision else {
        panic!("it is injected")
    };
    let mut pod = plan.pod;
    let mut status = status.clone();
    status["name"] = json!("tensorlane");
    pod["status"] = json!({"initContainerStatuses": [status]});
    pod
}

fn told(subject: &Subject) -> String {
    crate::findings::text(&findings(subject))
}

#[test]
fn a_pod_that_does_not_ask_is_told_how_to() {
    let asked_nothing = subject("Pod", pod(&json!({})));
    let text = told(&asked_nothing);
    assert!(
        text.contains("no sidecar: neither the pod nor its namespace")
            && text.contains("enabled in metadata"),
        "{text}"
    );
    assert_eq!(exit_code(&findings(&asked_nothing)), 0);
    let deployment = json!({"spec": {"template": pod(&json!({INJECT: "disabled"}))}});
    assert!(
        told(&subject("Deployment", deployment)).contains("the pod says tensorlane.dev/inject: disabled")
    );
}

#[test]
fn a_template_that_cannot_be_served_is_told_why_and_one_that_can_by_whom() {
    let template = |annotations: Value| json!({"spec": {"template": pod(&annotations)}});
    let wrong = template(
        json!({INJECT: "enabled", "tensorlane.dev/arena-size": "2GB", "tensorlane.dev/arena": "1Gi"}),
    );
    let wrong = subject("Job", wrong);
    let text = told(&wrong);
    for part in ["cannot be served (invalid_annotation)", "such as 2Gi", "tensorlane.dev/arena"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(exit_code(&findings(&wrong)), 1);
    let right = told(&subject("StatefulSet", template(json!({INJECT: "enabled"}))));
    assert!(right.contains("its pods get a sidecar of exchange default: the pod asked"), "{right}");
}

#[test]
fn a_template_whose_exchange_asks_for_too_much_is_told_which_and_what_to_write() {
    let mut subject = subject("Deployment", json!({"spec": {"template": pod(&json!({INJECT: "enabled"}))}}));
    let spec = serde_json::from_value(json!({"gpu": {"mode": "broker"}})).unwrap();
    subject.facts.as_mut().unwrap().exchanges.insert("default".to_owned(), spec);
    let text = told(&subject);
    for part in [
        "cannot be served (unsupported)",
        "TensorExchange \"default\" says gpu.mode: broker",
        "say auto or none",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(exit_code(&findings(&subject)), 1);
}

#[test]
fn a_pod_that_asks_and_has_none_is_older_than_that() {
    let text = told(&subject("Pod", pod(&json!({INJECT: "enabled"}))));
    assert!(text.contains("has none") && text.contains("kubectl delete pod x"), "{text}");
}

#[test]
fn an_injected_pod_says_who_asked_how_its_sidecar_is_and_whether_others_reach_it() {
    let mut well = subject("Pod", with_sidecar(&json!({"ready": true, "restartCount": 0})));
    let published =
        json!({"type": "Ready", "status": "True", "message": "other peers can reach the sidecar"});
    well.peer = Seen::There(json!({"metadata": {"name": "x"}, "status": {"conditions": [published]}}));
    let text = told(&well);
    for part in ["the pod asked; exchange default, arena 1Gi", "it is ready", "other peers can reach"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(exit_code(&findings(&well)), 0);
}

#[test]
fn a_pod_that_is_over_has_no_problem() {
    let mut pod = with_sidecar(&json!({"state": {"terminated": {"exitCode": 0}}}));
    assert!(told(&subject("Pod", pod.clone())).contains("it is not ready: exit code 0"));
    pod["status"]["phase"] = json!("Succeeded");
    let text = told(&subject("Pod", pod.clone()));
    assert!(text.contains("the pod is over") && !text.contains("not ready"), "{text}");
    pod["status"]["phase"] = json!("Running");
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(told(&subject("Pod", pod)).contains("the pod is over"));
}

#[test]
fn a_sidecar_that_is_not_ready_says_its_last_words() {
    let ended = json!({"terminated": {"exitCode": 1, "message": "arena.size 2Gi is too much"}});
    for (status, part) in [
        (
            json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}),
            "again and again: arena.size 2Gi",
        ),
        (
            json!({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}),
            "ImagePullBackOff: no such image",
        ),
        (json!({"lastState": {"terminated": {"reason": "OOMKilled"}}}), "raise tensorlane.dev/memory"),
        (json!({"state": {"running": {}}}), "it is not ready: it has said nothing yet"),
    ] {
        let text = told(&subject("Pod", with_sidecar(&status)));
        assert!(text.contains(part), "{part} is not in {text}");
        assert!(text.contains("it has no TensorPeer"), "{text}");
    }
    let mut pending = with_sidecar(&json!({}));
    pending["status"] =
        json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: memory"}]});
    assert!(told(&subject("Pod", pending)).contains("0/2 nodes: memory"));
}

#[test]
fn what_is_not_there_and_what_may_not_be_read_is_told_apart() {
    let mut nothing = subject("Pod", Value::Null);
    nothing.object = Seen::Missing;
    assert!(told(&nothing).contains("a pod that was refused is never there"));
    nothing.object = Seen::Hidden("forbidden".to_owned());
    assert_eq!(exit_code(&findings(&nothing)), 3);
    let mut blind = subject("Pod", pod(&json!({INJECT: "enabled"})));
    blind.facts = Err("the quotas of namespace ml cannot be read".to_owned());
    assert_eq!(exit_code(&findings(&blind)), 3);
}

#[test]
fn the_newest_event_of_ours_is_repeated() {
    let event = |time: &str, controller: &str, note: &str| json!({"eventTime": time, "reportingComponent": controller, "reason": "InjectionDenied", "message": note});
    let mut job = subject("Job", json!({"spec": {"template": pod(&json!({}))}}));
    job.events = Seen::There(json!({"items": [
        event("2026-01-02T00:00:00Z", "tensorlane-operator", "newer"),
        event("2026-01-01T00:00:00Z", "tensorlane-operator", "older"),
        event("2026-01-03T00:00:00Z", "job-controller", "theirs"),
    ]}));
    let text = told(&job);
    assert!(
        text.contains("InjectionDenied: newer") && !text.contains("older") && !text.contains("theirs"),
        "{text}"
    );
}

#[test]
fn a_sidecar_that_lost_its_restart_policy_or_its_memory_is_told_the_true_reason() {
    let mut object = with_sidecar(
        &json!({"ready": true, "restartCount": 0, "resources": {"limits": {"memory": "300Mi"}}}),
    );
    let text = told(&subject("Pod", object.clone()));
    assert!(text.contains("limit 300Mi, arena 1Gi and 256Mi beside it"), "{text}");
    object["status"] = json!({});
    object["spec"]["initContainers"][0].as_object_mut().unwrap().remove("restartPolicy");
    let text = told(&subject("Pod", object));
    assert!(text.contains("lost restartPolicy: Always") && !text.contains("was not called"), "{text}");
}

#[test]
fn a_template_shows_what_a_queue_counts_and_what_its_pods_take() {
    let mut template = pod(&json!({INJECT: "enabled", "tensorlane.dev/arena-size": "16Gi"}));
    template["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "4Gi"}});
    let job = json!({"spec": {"parallelism": 4, "template": template}});
    let text = told(&subject("Job", job));
    for part in [
        "the template asks for cpu 1 and memory 4Gi, the pod will for cpu 1100m and memory 20736Mi",
        "4 pods: cpu 4 and memory 16Gi, and cpu 4400m and memory 81Gi",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn every_template_of_an_object_is_counted_by_itself() {
    let mut template = pod(&json!({INJECT: "enabled", "tensorlane.dev/arena-size": "16Gi"}));
    template["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "4Gi"}});
    let mut set = subject(
        "LeaderWorkerSet",
        json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "spec": {"replicas": 2, "leaderWorkerTemplate": {
            "size": 4, "leaderTemplate": template, "workerTemplate": template,
        }}}),
    );
    let text = told(&set);
    for part in [
        "leaderTemplate: the template asks for cpu 1 and memory 4Gi, the pod will for cpu 1100m and memory 20736Mi; 2 pods: cpu 2 and memory 8Gi, and cpu 2200m and memory 41472Mi",
        "workerTemplate: the template asks for cpu 1 and memory 4Gi, the pod will for cpu 1100m and memory 20736Mi; 6 pods: cpu 6 and memory 24Gi, and cpu 6600m and memory 124416Mi",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    if let Seen::There(object) = &mut set.object {
        object["spec"]["replicas"] = json!(0);
    }
    assert!(told(&set).contains("; there are no such pods now"), "{}", told(&set));
}

#[test]
fn pods_that_are_refused_are_told_beside_the_plan_and_also_without_one() {
    let mut job = subject("Job", json!({"spec": {"template": pod(&json!({INJECT: "enabled"}))}}));
    let event = json!({
        "reason": "FailedCreate", "message": "Error creating: pods \"x-\" is forbidden: exceeded quota",
        "involvedObject": {"kind": "Job", "name": "x"}, "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    job.events = Seen::There(json!({"items": [event]}));
    let text = told(&job);
    assert!(text.contains("its pods get a sidecar") && text.contains("forbidden: exceeded quota"), "{text}");
    assert_eq!(exit_code(&findings(&job)), 1);
    job.facts = Err("the quotas of namespace ml cannot be read".to_owned());
    assert!(told(&job).contains("forbidden: exceeded quota"), "{}", told(&job));
}

#[test]
fn an_object_whose_containers_are_in_no_template_is_explained_by_its_pods() {
    let served = json!({"apiVersion": "serving.kserve.io/v1beta1", "spec": {"predictor": {"containers": [{"name": "main"}]}}});
    let text = told(&subject("InferenceService", served));
    assert!(text.contains("come of spec.predictor.containers") && text.contains("pod/NAME"), "{text}");
    assert!(told(&subject("Service", json!({"spec": {}}))).contains("it makes no pods"));
}

#[test]
fn events_that_may_not_be_read_are_told_and_the_rest_is_explained() {
    let mut job = subject("Job", json!({"spec": {"template": pod(&json!({INJECT: "enabled"}))}}));
    job.events = Seen::Hidden("events is forbidden".to_owned());
    let text = told(&job);
    assert!(text.contains("its pods get a sidecar of exchange default"), "{text}");
    assert!(text.contains("events is forbidden; so a refusal of its pods may not be told here"), "{text}");
    assert_eq!(exit_code(&findings(&job)), 3);
    job.events = Seen::There(json!({"items": []}));
    job.makers = Err("Job train-0: jobs.batch is forbidden".to_owned());
    assert!(told(&job).contains("who made it cannot be read: Job train-0"), "{}", told(&job));
    let mut alone = subject("Pod", pod(&json!({})));
    alone.events = Seen::Hidden("events is forbidden".to_owned());
    assert_eq!(exit_code(&findings(&alone)), 0, "a pod that is there was not refused");
}

#[test]
fn a_pod_whose_exchange_is_not_open_to_its_account_is_told_why_it_has_no_peer() {
    let mut pod = with_sidecar(&json!({"ready": true}));
    pod["metadata"]["labels"][EXCHANGE] = json!("training");
    let mut subject = subject("Pod", pod);
    let spec = serde_json::from_value(json!({"members": {"serviceAccounts": ["trainer"]}})).unwrap();
    subject.facts.as_mut().unwrap().exchanges.insert("training".to_owned(), spec);
    let text = told(&subject);
    assert!(text.contains("spec.members of exchange training has no service account default"), "{text}");
    assert_eq!(exit_code(&findings(&subject)), 1);
}

#[test]
fn a_copy_without_our_labels_is_told_that_no_peer_finds_it() {
    let mut copy = with_sidecar(&json!({"ready": true}));
    copy["metadata"] = json!({"name": "x"});
    let text = told(&subject("Pod", copy));
    assert!(text.contains("like a copy by kubectl debug"), "{text}");
}
