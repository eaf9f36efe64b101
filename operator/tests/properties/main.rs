//! Properties of every pod, whatever is in it: planning twice is planning once, nothing else is touched, and the patch
//! is the plan.

#![allow(clippy::unwrap_used)]

mod manifests;
mod pen;
mod people;

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tensorlane_operator::abilities::{Abilities, unsupported};
use tensorlane_operator::plan::{Facts, Namespace};
use tensorlane_operator::quantity::Amount;
use tensorlane_operator::{Decision, Deny, Plan, plan};
use tensorlane_proto::crd::ExchangeSpec;

const OURS: &str = "tensorlane";

fn maybe<S: Strategy + 'static>(strategy: S) -> impl Strategy<Value = Option<S::Value>>
where
    S::Value: std::fmt::Debug,
{
    prop::option::of(strategy)
}

/// An object of those members that are there.
fn object(members: Vec<(&str, Option<Value>)>) -> Value {
    Value::Object(members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect())
}

fn resources() -> impl Strategy<Value = Value> {
    let amount = || prop_oneof![Just("1"), Just("500m"), Just("2Gi")];
    let list = || prop::collection::btree_map("(cpu|memory)", amount(), 0..3).prop_map(|map| json!(map));
    (maybe(list()), maybe(list()))
        .prop_map(|(limits, requests)| object(vec![("limits", limits), ("requests", requests)]))
}

fn container(name: String) -> impl Strategy<Value = Value> {
    let variable = prop_oneof![Just("A"), Just("B"), Just("TENSORLANE_SOCKETS")];
    let env = prop::collection::btree_set(variable, 0..3).prop_map(|names| {
        names.into_iter().map(|name| json!({"name": name, "value": "/run/tensorlane"})).collect::<Value>()
    });
    let path = prop_oneof![Just("/data"), Just("/run"), Just("/run/tensorlane-other")];
    let mounts = prop::collection::btree_set(path, 0..3).prop_map(|paths| {
        paths.into_iter().map(|path| json!({"name": "v", "mountPath": path})).collect::<Value>()
    });
    (maybe(env), maybe(mounts), maybe(resources()), any::<bool>()).prop_map(
        move |(env, mounts, resources, strange)| {
            object(vec![
                ("name", Some(json!(name))),
                ("image", Some(json!("example.org/x"))),
                ("env", env),
                ("volumeMounts", mounts),
                ("resources", resources),
                ("unknownField", strange.then(|| json!({"kept": [1, 2]}))),
            ])
        },
    )
}

fn containers(prefix: &'static str, least: usize) -> impl Strategy<Value = Value> {
    (least..4_usize).prop_flat_map(move |count| {
        (0..count)
            .map(|index| container(format!("{prefix}{index}")))
            .collect::<Vec<_>>()
            .prop_map(Value::Array)
    })
}

fn annotations() -> impl Strategy<Value = BTreeMap<String, String>> {
    let pair = prop_oneof![
        Just(("arena-size", "64Mi")),
        Just(("memory", "128Mi")),
        Just(("cpu", "250m")),
        Just(("containers", "c0")),
        Just(("log-level", "debug")),
        Just(("require", "encrypted")),
        Just(("transports", "tcp,quic")),
        Just(("share-process-namespace", "true")),
        Just(("strange", "x")),
    ];
    prop::collection::vec(pair, 0..5).prop_map(|pairs| {
        let key = |name| format!("tensorlane.dev/{name}");
        let mut all: BTreeMap<_, _> =
            pairs.into_iter().map(|(name, value)| (key(name), value.to_owned())).collect();
        all.insert(key("inject"), "enabled".to_owned());
        all.insert("example.org/other".to_owned(), "kept".to_owned());
        all
    })
}

fn pod() -> impl Strategy<Value = Value> {
    let labels = prop::collection::btree_map("(app|tier)", "[a-z]{1,3}", 0..3).prop_map(|map| json!(map));
    let volumes = prop_oneof![Just(json!([])), Just(json!([{"name": "v", "emptyDir": {}}]))];
    (
        maybe(labels),
        annotations(),
        maybe(containers("i", 0)),
        containers("c", 1),
        maybe(volumes),
        maybe(resources()),
    )
        .prop_map(|(labels, annotations, init, containers, volumes, resources)| {
            let metadata = object(vec![("labels", labels), ("annotations", Some(json!(annotations)))]);
            let spec = object(vec![
                ("initContainers", init),
                ("containers", Some(containers)),
                ("volumes", volumes),
                ("resources", resources),
                ("newField", Some(json!(7))),
            ]);
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        })
}

/// Strategy for what an exchange may say of routes and memory.
fn exchange() -> impl Strategy<Value = ExchangeSpec> {
    let one_of =
        |words: &'static [&'static str]| maybe(prop::sample::select(words).prop_map(|word| json!(word)));
    let some_of = |words: &'static [&'static str]| {
        maybe(prop::sample::subsequence(words, 1..=words.len()).prop_map(|words| json!(words)))
    };
    let parts = (
        some_of(&["shm", "cuda_ipc", "tcp", "quic"]),
        some_of(&["zero_copy", "same_node", "encrypted"]),
        one_of(&["required", "none"]),
        one_of(&["auto", "none", "broker", "legacy_ipc"]),
        one_of(&["off", "claim", "hostPath"]),
        maybe((0..=8).prop_map(|readers: i32| json!(readers))),
        one_of(&["measured", "tcp", "quic"]),
    );
    parts.prop_map(|(transports, require, encryption, mode, same_node, fan_out, prefer)| {
        let spec = object(vec![
            ("transports", transports),
            ("require", require),
            ("security", encryption.map(|encryption| json!({"encryption": encryption}))),
            ("gpu", mode.map(|mode| json!({"mode": mode}))),
            ("sameNode", same_node),
            ("fanOut", fan_out),
            ("prefer", prefer),
        ]);
        serde_json::from_value(spec).unwrap()
    })
}

fn facts() -> Facts {
    Facts { namespace: Namespace { name: "ml".to_owned(), ..Namespace::default() }, ..Facts::default() }
}

fn injected(pod: &Value) -> Plan {
    match plan(pod, &facts()).decision {
        Decision::Inject(plan) => *plan,
        other => panic!("every pod of this strategy can be served: {other:?}"),
    }
}

/// The pod without anything of ours, and without empty lists and maps. It knows nothing of how the planner does that.
fn bare(value: &Value, before: Option<&Value>) -> Value {
    match value {
        Value::Array(list) => {
            let kept = list.iter().filter(|one| {
                let name = one.get("name").and_then(Value::as_str).unwrap_or_default();
                let was_there = before.and_then(Value::as_array).is_some_and(|before| before.contains(one));
                !(name == OURS
                    || name.starts_with("tensorlane-")
                    || (name == "TENSORLANE_SOCKETS" && !was_there))
            });
            let named = |one: &Value| {
                let all = before.and_then(Value::as_array).into_iter().flatten();
                all.into_iter()
                    .find(|other| other.get("name").is_some() && other.get("name") == one.get("name"))
                    .cloned()
            };
            kept.map(|one| bare(one, named(one).as_ref())).filter(|one| !is_empty(one)).collect()
        }
        Value::Object(map) => {
            let mut kept = Map::new();
            for (key, value) in map {
                let ours = ["tensorlane.dev/injected", "tensorlane.dev/exchange", "tensorlane.dev/status"];
                let shared =
                    key == "shareProcessNamespace" && before.is_some_and(|before| before.get(key).is_none());
                let inner = bare(value, before.and_then(|before| before.get(key)));
                if !ours.contains(&key.as_str()) && !shared && !is_empty(&inner) {
                    kept.insert(key.clone(), inner);
                }
            }
            Value::Object(kept)
        }
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// The amounts of a pod as a whole are raised, and so compared by their names only.
fn without_amounts(mut pod: Value) -> Value {
    for list in ["limits", "requests"] {
        let amounts = pod.pointer_mut(&format!("/spec/resources/{list}")).and_then(Value::as_object_mut);
        amounts.into_iter().flatten().for_each(|(_, amount)| *amount = Value::Null);
    }
    pod
}

const AMOUNTS: [(&str, &str); 4] =
    [("limits", "cpu"), ("limits", "memory"), ("requests", "cpu"), ("requests", "memory")];

/// Fate of an amount.
#[derive(Clone, Debug)]
enum Change {
    None,
    More(Amount),
    Less,
    Gone,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::None),
        (1..1_u64 << 40).prop_map(|more| Change::More(Amount::milli(more))),
        Just(Change::Less),
        Just(Change::Gone),
    ]
}

fn amount(pod: &Value, path: &str) -> Option<Amount> {
    Some(Amount::parse(pod.pointer(path)?.as_str()?).unwrap())
}

/// Adds what an API server and others add to an injected pod before they call again.
fn fill_in(pod: &mut Value) {
    let spec = &mut pod["spec"];
    let sidecar = &mut spec["initContainers"][0];
    sidecar["imagePullPolicy"] = json!("IfNotPresent");
    sidecar["terminationMessagePath"] = json!("/dev/termination-log");
    sidecar["startupProbe"]["timeoutSeconds"] = json!(1);
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        sidecar[probe]["successThreshold"] = json!(1);
        sidecar[probe]["httpGet"]["scheme"] = json!("HTTP");
    }
    for volume in spec["volumes"].as_array_mut().unwrap() {
        if volume.get("projected").is_some() {
            volume["projected"]["defaultMode"] = json!(420);
        }
    }
    spec["volumes"].as_array_mut().unwrap().push(json!({"name": "later", "emptyDir": {}}));
    for container in spec["containers"].as_array_mut().unwrap() {
        for (list, one) in [
            ("volumeMounts", json!({"name": "later", "mountPath": "/later"})),
            ("env", json!({"name": "LATER", "value": "x"})),
        ] {
            if let Some(list) = container.get_mut(list).and_then(Value::as_array_mut) {
                list.push(one);
            }
        }
    }
}

proptest! {
    #[test]
    fn injecting_twice_is_injecting_once(pod in pod()) {
        let first = injected(&pod);
        let second = injected(&first.pod);
        prop_assert_eq!(&second.pod, &first.pod);
        prop_assert!(second.patch.0.is_empty());
    }

    #[test]
    fn the_patch_leads_to_the_plan(pod in pod()) {
        let plan = injected(&pod);
        let mut patched = pod;
        json_patch::patch(&mut patched, &plan.patch).unwrap();
        prop_assert_eq!(patched, plan.pod);
    }

    #[test]
    fn nothing_else_is_touched(pod in pod()) {
        let plan = injected(&pod);
        let after = without_amounts(bare(&plan.pod, Some(&pod)));
        prop_assert_eq!(after, without_amounts(bare(&pod, Some(&pod))));
    }

    /// Another webhook adds a container after us, and we are called again.
    #[test]
    fn a_container_that_comes_later_is_served_as_if_it_had_been_there(pod in pod(), late in container("late".to_owned())) {
        let add = |mut pod: Value| {
            pod["spec"]["containers"].as_array_mut().unwrap().push(late.clone());
            pod
        };
        let (again, at_once) = (injected(&add(injected(&pod).pod)), injected(&add(pod)));
        prop_assert_eq!(without_empty(&again.pod), without_empty(&at_once.pod));
    }

    /// Another webhook writes other amounts of the pod as a whole after us, and we are called again.
    #[test]
    fn what_others_change_of_the_pod_as_a_whole_stays_and_ours_is_in_it_once(
        pod in pod(),
        changes in prop::collection::vec(change(), AMOUNTS.len()),
    ) {
        let mut changed = injected(&pod).pod;
        let mut expected = Vec::new();
        for ((list, name), change) in AMOUNTS.into_iter().zip(changes) {
            let path = format!("/spec/resources/{list}/{name}");
            let Some(wrote) = amount(&changed, &path) else { continue };
            let ours = wrote - amount(&pod, &path).unwrap();
            let (now, after) = match change {
                Change::None => (Some(wrote), Some(wrote)),
                Change::More(more) => (Some(wrote + more), Some(wrote + more)),
                Change::Less => (Some(Amount::milli(1)), Some(Amount::milli(1) + ours)),
                Change::Gone => (None, None),
            };
            let amounts = changed.pointer_mut(&format!("/spec/resources/{list}")).unwrap().as_object_mut().unwrap();
            match now {
                Some(now) => _ = amounts.insert(name.to_owned(), json!(now.to_string())),
                None => _ = amounts.remove(name),
            }
            expected.push((path, after));
        }
        let again = injected(&changed);
        for (path, after) in expected {
            prop_assert_eq!(amount(&again.pod, &path), after, "{}", path);
        }
        let once_more = injected(&again.pod);
        prop_assert!(once_more.patch.0.is_empty(), "{:?}", once_more.patch);
    }

    /// An API server calls again: with its defaults in our part, and with what others have put behind ours.
    #[test]
    fn what_is_written_into_our_part_and_behind_it_is_no_change(pod in pod()) {
        let mut seen = injected(&pod).pod;
        fill_in(&mut seen);
        let again = injected(&seen);
        prop_assert!(again.patch.0.is_empty(), "{:?}", again.patch);
    }

    /// Values that are no default of an API server are not kept: a sidecar is what this version says.
    #[test]
    fn what_others_write_over_our_part_is_written_anew(pod in pod()) {
        let planned = injected(&pod).pod;
        let mut changed = planned.clone();
        let sidecar = &mut changed["spec"]["initContainers"][0];
        sidecar["startupProbe"]["timeoutSeconds"] = json!(2);
        sidecar["terminationMessagePath"] = json!("/elsewhere");
        sidecar["command"] = json!(["sh"]);
        prop_assert_eq!(injected(&changed).pod, planned);
    }

    #[test]
    fn pods_are_refused_exactly_where_their_exchange_is_not_accepted(pod in pod(), spec in exchange()) {
        let lacks = unsupported(&spec, &Abilities::THIS_RELEASE);
        let exchanges = BTreeMap::from([("default".to_owned(), spec)]);
        match plan(&pod, &Facts { exchanges: exchanges.clone(), ..facts() }).decision {
            Decision::Deny(Deny::Unsupported(told)) => {
                prop_assert_eq!(&told.of_exchange, &lacks);
                let sentence = told.to_string();
                prop_assert!(sentence.contains("\"default\""), "{}", sentence);
                for lack in &lacks {
                    prop_assert!(sentence.contains(&lack.to_string()), "{}", sentence);
                }
                prop_assert!(!lacks.is_empty(), "no pod of this strategy asks for it by itself");
            }
            // A pod may ask for a transport that its exchange does not allow.
            Decision::Inject(_) | Decision::Deny(Deny::Contradiction(_)) => prop_assert!(lacks.is_empty()),
            other => prop_assert!(false, "{:?}", other),
        }
        let able = Facts { exchanges, abilities: Abilities::EVERYTHING, ..facts() };
        let refused = matches!(plan(&pod, &able).decision, Decision::Deny(Deny::Unsupported(_)));
        prop_assert!(!refused, "whoever can do everything refuses nothing");
    }

    #[test]
    fn no_json_at_all_makes_the_planner_panic(text in ".{0,60}", pod in pod(), key in "(spec|metadata|kind)") {
        let mut broken = pod;
        broken[key] = json!([text]);
        plan(&broken, &facts());
        plan(&Value::Null, &facts());
    }
}

fn without_empty(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(without_empty).collect(),
        Value::Object(map) => {
            let inner = map.iter().map(|(key, value)| (key.clone(), without_empty(value)));
            Value::Object(inner.filter(|(_, value)| !is_empty(value)).collect())
        }
        other => other.clone(),
    }
}
