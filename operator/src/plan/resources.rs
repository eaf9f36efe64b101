//! Resources that the sidecar's container requests and may use, and what the pod then takes as a whole.
//!
//! The memory of the sidecar is the arena and a base beside it, and its limit is the same: what it populates must never
//! be the user's to pay for. A limit on processors slows transfers down, so there is one only where the pod's class or
//! the namespace needs one.

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

use super::facts::{Facts, amounts};
use super::reason::Deny;
use super::settle::Settled;
use super::{View, limits, quota};
use crate::annotations::PAGE;
use crate::quantity::Amount;

pub(super) const CPU: &str = "cpu";
pub(super) const MEMORY: &str = "memory";
pub(super) const STORAGE: &str = "ephemeral-storage";

/// Request of the node's disk. A kubelet keeps 50 MiB of logs of a container unless it is told otherwise.
const STORAGE_REQUEST: Amount = Amount::whole(64 << 20);

/// Limit on the node's disk where there is one: room for ten times as much and more, because whoever is above it loses the
/// pod. Kubelets take the sum of all limits for one on the whole pod, volumes included. So a limit of the sidecar alone would be one on
/// what the others write, who have none.
pub(super) const STORAGE_LIMIT: Amount = Amount::whole(1 << 30);

/// The sidecar's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// Requested.
    pub(super) cpu: Amount,
    /// The limit, where there is one.
    pub(super) cpu_limit: Option<Amount>,
    /// Requested, and the limit.
    pub(super) memory: Amount,
    /// Requested of the node's disk: for logs alone, because all volumes of ours are of memory.
    pub(super) storage: Amount,
    /// The limit on the node's disk, where others have one.
    pub(super) storage_limit: Option<Amount>,
}

/// Requests of a pod, as Kubernetes writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Processors.
    pub cpu: Amount,
    /// Bytes.
    pub memory: Amount,
}

impl From<[Amount; 2]> for Requests {
    fn from([cpu, memory]: [Amount; 2]) -> Requests {
        Requests { cpu, memory }
    }
}

/// The sidecar's container, and what has to change in the pod's own resources.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Budget {
    pub(super) sum: Sum,
    /// Bytes beside the arena.
    pub(super) base: Amount,
    /// The resources of the pod as a whole, raised, where the pod says any.
    pub(super) pod_level: Option<ResourceRequirements>,
    /// Requests of processors and memory without the sidecar.
    pub(super) own: [Amount; 2],
    /// Requests of processors and memory with the sidecar.
    pub(super) whole: [Amount; 2],
}

/// Decides, or says what does not fit. `place` is the number of init containers before the sidecar.
pub(super) fn budget(view: &View, settled: &Settled, facts: &Facts, place: usize) -> Result<Budget, Deny> {
    let mut sum = Sum {
        cpu: settled.cpu,
        cpu_limit: None,
        memory: settled.arena + settled.base,
        storage: STORAGE_REQUEST,
        storage_limit: has_limit(view, |name| name == STORAGE).then_some(STORAGE_LIMIT),
    };
    let pod_level = view.spec.resources.as_ref();
    let guaranteed = pod_level.map_or_else(|| is_guaranteed(view), is_whole);
    if pod_level.is_none() && guaranteed {
        sum.cpu_limit = Some(sum.cpu);
    }
    limits::fit(&mut sum, &facts.limits)?;
    quota::fit(&mut sum, &facts.quotas);
    if sum.cpu_limit.is_some() && guaranteed {
        // Same request and limit, or the pod loses its class.
        sum.cpu = sum.cpu_limit.unwrap_or(sum.cpu);
    }
    // A least that is not whole pages would be refused by the sidecar.
    sum.memory = round_up(sum.memory);
    let raised = pod_level.map(|resources| raise(resources, sum));
    let own = pod_level.map_or_else(|| counted(view, None), taken);
    let whole = raised.as_ref().map_or_else(|| counted(view, Some((place, sum))), taken);
    limits::check_pod(whole[0], whole[1], &facts.limits)?;
    quota::check(&quota::Taken::all(own, whole), &facts.quotas)?;
    Ok(Budget { sum, base: sum.memory - settled.arena, pod_level: raised, own: own[0], whole: whole[0] })
}

/// Returns whether a container of the pod has a limit on something of such a name.
pub(super) fn has_limit(view: &View, is_it: impl Fn(&str) -> bool) -> bool {
    let spec = &view.spec;
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.any(|container| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        limits.is_some_and(|limits| limits.keys().any(|name| is_it(name)))
    })
}

fn round_up(memory: Amount) -> Amount {
    let bytes = memory.units().unwrap_or(u64::MAX - PAGE);
    Amount::whole(bytes.div_ceil(PAGE) * PAGE)
}

/// Returns whether every container has limits for processors and memory, and requests that are the same.
fn is_guaranteed(view: &View) -> bool {
    let spec = &view.spec;
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.all(|container| container.resources.as_ref().is_some_and(is_whole))
}

/// Returns whether there are limits for processors and memory, and requests that are the same.
fn is_whole(resources: &ResourceRequirements) -> bool {
    let (requests, limits) = (amounts(resources.requests.as_ref()), amounts(resources.limits.as_ref()));
    [CPU, MEMORY].iter().all(|name| {
        let limit = limits.get(*name).filter(|limit| **limit > Amount::ZERO);
        limit.is_some_and(|limit| requests.get(*name).unwrap_or(limit) == limit)
    })
}

/// The pod as a whole, with room for the sidecar in all that is said of it.
fn raise(resources: &ResourceRequirements, sum: Sum) -> ResourceRequirements {
    let mut raised = resources.clone();
    let more = [(CPU, sum.cpu_limit.unwrap_or(sum.cpu), sum.cpu), (MEMORY, sum.memory, sum.memory)];
    for (name, limit, request) in more {
        let add = |list: &mut Option<std::collections::BTreeMap<String, _>>, amount: Amount| {
            if let Some(quantity) = list.as_mut().and_then(|list| list.get_mut(name))
                && let Ok(now) = Amount::parse(&quantity_text(quantity))
            {
                let sum = now + amount;
                *quantity = if name == MEMORY { sum.memory() } else { sum.cpu() };
            }
        };
        add(&mut raised.limits, limit);
        add(&mut raised.requests, request);
    }
    raised
}

fn quantity_text(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> String {
    quantity.0.clone()
}

/// Requests and limits of processors and memory that are said of a pod as a whole.
fn taken(resources: &ResourceRequirements) -> [[Amount; 2]; 2] {
    let limits = amounts(resources.limits.as_ref());
    let requests = amounts(resources.requests.as_ref());
    let pick = |list: &std::collections::BTreeMap<String, Amount>, name| list.get(name).copied();
    let limit = [CPU, MEMORY].map(|name| pick(&limits, name).unwrap_or_default());
    let request = [CPU, MEMORY].map(|name| pick(&requests, name).or(pick(&limits, name)).unwrap_or_default());
    [request, limit]
}

/// Requests and limits of processors and memory of a pod: what runs at once, or the largest of what runs before. A sidecar
/// is counted with what runs beside it, so not with the init containers before its place.
fn counted(view: &View, sidecar: Option<(usize, Sum)>) -> [[Amount; 2]; 2] {
    let spec = &view.spec;
    let of = |container: &Container| container.resources.as_ref().map(taken).unwrap_or_default();
    let stays = |container: &Container| container.restart_policy.as_deref() == Some("Always");
    let init = spec.init_containers.iter().flatten();
    let mut all: Vec<_> = init.map(|container| (stays(container), of(container))).collect();
    if let Some((place, sum)) = sidecar {
        let ours = [[sum.cpu, sum.memory], [sum.cpu_limit.unwrap_or_default(), sum.memory]];
        all.insert(place.min(all.len()), (true, ours));
    }
    let mut running = [[Amount::ZERO; 2]; 2];
    let mut most = running;
    for (stays, amounts) in all {
        let beside = sum_of(running, amounts);
        most = most_of(most, beside);
        if stays {
            running = beside;
        }
    }
    let running = spec.containers.iter().map(of).fold(running, sum_of);
    most_of(most, running)
}

fn sum_of(a: [[Amount; 2]; 2], b: [[Amount; 2]; 2]) -> [[Amount; 2]; 2] {
    [0, 1].map(|list| [0, 1].map(|index| a[list][index] + b[list][index]))
}

fn most_of(a: [[Amount; 2]; 2], b: [[Amount; 2]; 2]) -> [[Amount; 2]; 2] {
    [0, 1].map(|list| [0, 1].map(|index| a[list][index].max(b[list][index])))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_init_container_before_the_sidecar_is_counted_without_it() {
        let of = |memory: &str| json!({"requests": {"memory": memory}, "limits": {"memory": memory}});
        let pod = json!({"spec": {
            "initContainers": [
                {"name": "loader", "resources": of("10Gi")},
                {"name": "mesh", "restartPolicy": "Always", "resources": of("1Gi")},
                {"name": "warm-up", "resources": of("4Gi")},
            ],
            "containers": [{"name": "main", "resources": of("2Gi")}],
        }});
        let view = View::deserialize(&pod).unwrap();
        let gib = |count: u64| Amount::whole(count << 30);
        let sum = Sum {
            cpu: Amount::ZERO,
            cpu_limit: None,
            memory: gib(2),
            storage: STORAGE_REQUEST,
            storage_limit: None,
        };
        let memory = |sidecar| counted(&view, sidecar).map(|list| list[1]);
        assert_eq!(memory(None), [gib(10); 2]);
        assert_eq!(memory(Some((0, sum))), [gib(12); 2], "beside the loader");
        assert_eq!(memory(Some((1, sum))), [gib(10); 2], "the loader has gone when it starts");
        let large = Sum { memory: gib(8), ..sum };
        assert_eq!(memory(Some((1, large))), [gib(13); 2], "with the mesh and what warms up");
        assert_eq!(memory(Some((9, large))), [gib(11); 2], "with the mesh and what runs then");
    }
}
