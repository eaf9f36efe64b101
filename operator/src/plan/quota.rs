//! Demands of a namespace's ResourceQuotas on the sidecar, and whether the pod with it has room in them.

use super::facts::Quota;
use super::reason::{Deny, OverQuota};
use super::resources::{CPU, MEMORY, Sum};
use crate::quantity::Amount;

/// A quota on a resource demands that every container says how much of it.
pub(super) fn fit(sum: &mut Sum, quotas: &[Quota]) {
    let has = |resource: &str| quotas.iter().any(|quota| quota.hard.contains_key(resource));
    if sum.cpu_limit.is_none() && has("limits.cpu") {
        sum.cpu_limit = Some(sum.cpu);
    }
    // Where limits are counted, every container has one; no more than is requested.
    if has("limits.ephemeral-storage") {
        sum.storage_limit = Some(sum.storage);
    }
}

/// Amount that a pod takes of a quota: without its sidecar and with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) resource: &'static str,
    pub(super) own: Amount,
    pub(super) whole: Amount,
}

impl Taken {
    /// Requests and limits, each of processors and memory.
    pub(super) fn all(own: [[Amount; 2]; 2], whole: [[Amount; 2]; 2]) -> [Taken; 6] {
        let one = |resource, list: usize, index: usize| Taken {
            resource,
            own: own[list][index],
            whole: whole[list][index],
        };
        [
            one(CPU, 0, 0),
            one(MEMORY, 0, 1),
            one("requests.cpu", 0, 0),
            one("requests.memory", 0, 1),
            one("limits.cpu", 1, 0),
            one("limits.memory", 1, 1),
        ]
    }
}

/// Checks that the pod with its sidecar has room. A pod that has none without its sidecar either is not ours to refuse.
pub(super) fn check(taken: &[Taken], quotas: &[Quota]) -> Result<(), Deny> {
    for quota in quotas.iter().filter(|quota| !quota.partial) {
        for one in taken {
            let Some(hard) = quota.hard.get(one.resource) else { continue };
            let left = *hard - quota.used.get(one.resource).copied().unwrap_or_default();
            if one.whole > left && one.own <= left {
                return Err(refusal(quota, one, left, *hard));
            }
        }
    }
    Ok(())
}

fn refusal(quota: &Quota, taken: &Taken, left: Amount, hard: Amount) -> Deny {
    let of_memory = taken.resource.ends_with(MEMORY);
    let shown = |amount: Amount| if of_memory { amount.memory().0 } else { amount.cpu().0 };
    Deny::Quota(Box::new(OverQuota {
        quota: quota.name.clone(),
        resource: taken.resource.to_owned(),
        needed: shown(taken.whole),
        own: shown(taken.own),
        sidecar: shown(taken.whole - taken.own),
        left: shown(left),
        hard: shown(hard),
    }))
}
