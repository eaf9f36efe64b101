//! Comparison with what others have made of what we added, where it is the same thing.
//!
//! An API server calls again after another webhook has changed the pod. By then it has written its defaults into our part,
//! and others have added to lists behind us. Planning again without those defaults, or in another order, would be a patch
//! that changes nothing, and an Event about it. What has another meaning than ours is planned anew.

use std::collections::BTreeMap;

use serde_json::Value;

use super::volumes::is_ours;
use crate::names::SIDECAR;
use crate::quantity::Amount;

/// Default that an API server writes if nothing is said.
enum Default {
    Number(i64),
    /// Any of these words.
    Word(&'static [&'static str]),
}

/// In the sidecar's container.
const OF_CONTAINER: [(&str, Default); 10] = [
    ("/terminationMessagePath", Default::Word(&["/dev/termination-log"])),
    // By the tag of the image, or for all by the plugin AlwaysPullImages.
    ("/imagePullPolicy", Default::Word(&["Always", "IfNotPresent"])),
    ("/securityContext/procMount", Default::Word(&["Default"])),
    ("/startupProbe/timeoutSeconds", Default::Number(1)),
    ("/startupProbe/successThreshold", Default::Number(1)),
    ("/startupProbe/httpGet/scheme", Default::Word(&["HTTP"])),
    ("/readinessProbe/successThreshold", Default::Number(1)),
    ("/readinessProbe/httpGet/scheme", Default::Word(&["HTTP"])),
    ("/livenessProbe/successThreshold", Default::Number(1)),
    ("/livenessProbe/httpGet/scheme", Default::Word(&["HTTP"])),
];

/// In our volumes.
const OF_VOLUME: [(&str, Default); 1] = [("/projected/defaultMode", Default::Number(0o644))];

/// Writes `after` the way `before` is written, where both mean the same.
pub(super) fn keep(before: &Value, after: &mut Value) {
    let (Some(before), Some(after)) = (before.get("spec"), after.get_mut("spec")) else { return };
    in_the_order_of(before.get("volumes"), after.get_mut("volumes"), "name");
    for volume in list(after.get_mut("volumes")) {
        let name = text(volume, "name").to_owned();
        if let Some(old) = named(before.get("volumes"), &name).filter(|_| is_ours(&name)) {
            with_defaults(old, volume, &OF_VOLUME);
        }
    }
    for kind in ["initContainers", "containers"] {
        for container in list(after.get_mut(kind)) {
            let name = text(container, "name").to_owned();
            let Some(old) = named(before.get(kind), &name) else { continue };
            if name == SIDECAR {
                with_defaults(old, container, &OF_CONTAINER);
                with_amounts(old, container);
            }
            in_the_order_of(old.get("env"), container.get_mut("env"), "name");
            in_the_order_of(old.get("volumeMounts"), container.get_mut("volumeMounts"), "mountPath");
        }
    }
    with_amounts(before, after);
}

/// Takes over the defaults that the API server has written and we have not.
fn with_defaults(before: &Value, after: &mut Value, defaults: &[(&str, Default)]) {
    for (path, default) in defaults {
        let Some(value) = before.pointer(path).filter(|value| default.is(value)) else { continue };
        let Some((place, key)) = path.rsplit_once('/') else { continue };
        if let Some(object) = after.pointer_mut(place).and_then(Value::as_object_mut)
            && !object.contains_key(key)
        {
            object.insert(key.to_owned(), value.clone());
        }
    }
}

/// The API server writes `1k` for `1000`.
fn with_amounts(before: &Value, after: &mut Value) {
    for list in ["/resources/limits", "/resources/requests"] {
        let old = before.pointer(list).and_then(Value::as_object);
        let new = after.pointer_mut(list).and_then(Value::as_object_mut);
        let (Some(old), Some(new)) = (old, new) else { continue };
        for (name, amount) in new.iter_mut() {
            if let Some(same) = old.get(name).filter(|old| is_same_amount(old, amount)) {
                *amount = same.clone();
            }
        }
    }
}

fn is_same_amount(one: &Value, other: &Value) -> bool {
    let read = |value: &Value| value.as_str().and_then(|text| Amount::parse(text).ok());
    read(one).is_some_and(|amount| read(other) == Some(amount))
}

/// Puts a list of the same things in the order in which they are; another list stays as it is.
fn in_the_order_of(before: Option<&Value>, after: Option<&mut Value>, key: &str) {
    let (before, after) = (before.and_then(Value::as_array), after.and_then(Value::as_array_mut));
    let (Some(before), Some(after)) = (before, after) else { return };
    let places: BTreeMap<&str, usize> =
        before.iter().enumerate().map(|(place, one)| (text(one, key), place)).collect();
    let place = |one: &Value| places.get(text(one, key)).copied();
    let mut taken: Vec<Option<usize>> = after.iter().map(place).collect();
    taken.sort_unstable();
    // Names that come twice, or only in one of the two, leave a gap.
    if taken.into_iter().eq((0..before.len()).map(Some)) {
        after.sort_by_key(place);
    }
}

fn named<'a>(list: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    list?.as_array()?.iter().find(|one| text(one, "name") == name)
}

fn list(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_array_mut).into_iter().flatten()
}

/// Text under a key; empty where there is none.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl Default {
    fn is(&self, value: &Value) -> bool {
        match self {
            Default::Number(number) => value.as_i64() == Some(*number),
            Default::Word(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        }
    }
}
