//! Memory of sidecars that was lowered in place, by people or by a scaler, below what their arenas take.

use serde_json::Value;

use super::{Seen, container, hidden, is_over, list, name, text};
use crate::findings::Finding;
use crate::names::SIDECAR;
use crate::quantity::Amount;

const ABOUT: &str = "memory";

/// The most pods that are named.
const NAMED_MAX: usize = 8;

const REMEDY: &str = "somebody made the sidecar smaller in place: set its limit back, and leave container tensorlane out of scalers (docs/scalers.md)";

/// Limit that is too small, and what it would have to hold.
struct Lowered {
    limit: Amount,
    arena: Amount,
    base: Amount,
}

/// Limit of a pod's sidecar, what was asked for last or what is in force, if the arena and what is beside it do not fit into it.
fn lowered(pod: &Value) -> Option<Lowered> {
    let container = container(pod)?;
    let env = |name: &str| {
        let variable = list(container, "/env").iter().find(|one| text(one, "/name") == name)?;
        Amount::parse(text(variable, "/value")).ok()
    };
    let (arena, base) = (env("TENSORLANE_ARENA_SIZE")?, env("TENSORLANE_ARENA_BASE")?);
    let statuses = list(pod, "/status/initContainerStatuses");
    let actual = statuses.iter().find(|status| text(status, "/name") == SIDECAR);
    let limits =
        [actual, Some(container)].into_iter().flatten().map(|one| text(one, "/resources/limits/memory"));
    let limit = limits.filter_map(|limit| Amount::parse(limit).ok()).min()?;
    (limit < arena + base).then_some(Lowered { limit, arena, base })
}

/// Fault of a pod.
pub(super) fn of_pod(pod: &Value) -> Option<Finding> {
    let Lowered { limit, arena, base } = lowered(pod)?;
    let [limit, arena, base] = [limit, arena, base].map(|amount| amount.memory().0);
    let found = format!(
        "limit {limit}, arena {arena} and {base} beside it: the next put may end the sidecar, with all tensors"
    );
    Some(Finding::problem(ABOUT, found, REMEDY))
}

/// Fault of a namespace's pods: all that have it, before it kills.
pub(super) fn of_pods(pods: &Seen) -> Option<Finding> {
    if let Seen::Hidden(why) = pods {
        return Some(hidden(ABOUT, "the pods", why));
    }
    let running = pods.items().iter().filter(|pod| !is_over(pod));
    let all: Vec<String> = running.filter_map(|pod| Some(named(name(pod), &lowered(pod)?))).collect();
    let more = match all.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = all.get(..NAMED_MAX).unwrap_or(&all).join(", ");
    let found = format!(
        "the next put may end the sidecar, with all tensors, where its limit is below its arena and what is beside it: {named}{more}"
    );
    (!all.is_empty()).then(|| Finding::problem(ABOUT, found, REMEDY))
}

fn named(pod: &str, Lowered { limit, arena, base }: &Lowered) -> String {
    format!("{pod} ({} of {})", limit.memory().0, (*arena + *base).memory().0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::findings::Level;

    /// A pod with an arena of 1Gi and 256Mi beside it, with these limits: in its specification, and in force.
    fn pod(name: &str, asked: &str, actual: Option<&str>) -> Value {
        let limits = |memory: &str| json!({"limits": {"memory": memory}});
        let env = json!([
            {"name": "TENSORLANE_ARENA_SIZE", "value": "1Gi"}, {"name": "TENSORLANE_ARENA_BASE", "value": "256Mi"},
        ]);
        let status = actual.map(|memory| json!({"name": SIDECAR, "resources": limits(memory)}));
        json!({
            "metadata": {"name": name},
            "spec": {"initContainers": [{"name": SIDECAR, "env": env, "resources": limits(asked)}]},
            "status": {"phase": "Running", "initContainerStatuses": Vec::from_iter(status)},
        })
    }

    fn told(pods: &[Value]) -> String {
        let found = of_pods(&Seen::There(json!({"items": pods})));
        found.map(|found| found.found).unwrap_or_default()
    }

    #[test]
    fn pods_whose_sidecar_was_made_smaller_than_its_arena_are_named_with_both_numbers() {
        let text = told(&[
            pod("whole", "1280Mi", Some("1280Mi")),
            pod("in-place", "300Mi", Some("300Mi")),
            pod("asked", "1Gi", Some("1280Mi")),
            pod("not-yet-back", "1280Mi", Some("512Mi")),
            pod("new", "1279Mi", None),
            json!({"metadata": {"name": "another"}, "spec": {"containers": []}}),
        ]);
        let named = "in-place (300Mi of 1280Mi), asked (1Gi of 1280Mi), not-yet-back (512Mi of 1280Mi), new (1279Mi of 1280Mi)";
        assert!(text.ends_with(named), "{text}");
        assert_eq!(told(&[pod("whole", "1280Mi", None), pod("larger", "2Gi", Some("2Gi"))]), "");
        let hidden = of_pods(&Seen::Hidden("no".to_owned())).unwrap();
        assert_eq!((hidden.found.as_str(), hidden.level), ("the pods cannot be read: no", Level::Unknown));
    }

    #[test]
    fn pods_that_are_over_are_left_out_and_many_are_counted() {
        let mut over = pod("over", "300Mi", None);
        over["status"]["phase"] = json!("Succeeded");
        assert_eq!(told(&[over]), "");
        let many: Vec<_> = (0..12).map(|number| pod(&format!("p{number}"), "300Mi", None)).collect();
        let text = told(&many);
        assert!(
            text.contains("p7 (300Mi") && text.ends_with(" and 4 more") && !text.contains("p8"),
            "{text}"
        );
    }
}
