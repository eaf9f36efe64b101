//! Demands of a namespace's LimitRanges on the sidecar's container, and on the pod with it.

use super::facts::LimitRange;
use super::reason::{Deny, OverLimit};
use super::resources::{CPU, MEMORY, STORAGE, STORAGE_LIMIT, Sum};
use crate::quantity::Amount;

const SMALLER_ARENA: &str = "make tensorlane.dev/arena-size smaller, or raise the LimitRange";
const LESS_CPU: &str = "make tensorlane.dev/cpu smaller, or raise the LimitRange";

/// The container as the LimitRanges want it: requests raised to the least, a limit for processors where one is needed.
pub(super) fn fit(sum: &mut Sum, ranges: &[LimitRange]) -> Result<(), Deny> {
    for range in ranges.iter().filter(|range| !range.of_pod) {
        for (resource, request, limit) in
            [(CPU, &mut sum.cpu, &mut sum.cpu_limit), (MEMORY, &mut sum.memory, &mut None)]
        {
            let least = range.min.get(resource).copied().unwrap_or_default();
            *request = (*request).max(least);
            needs_limit(resource, *request, limit, range);
        }
    }
    fit_storage(&mut sum.storage, &mut sum.storage_limit, ranges);
    // A limit that was there before a least raised the request.
    if let Some(limit) = &mut sum.cpu_limit {
        *limit = (*limit).max(sum.cpu);
    }
    // The largest of several minimums counts against every maximum.
    for range in ranges.iter().filter(|range| !range.of_pod) {
        let cpu = sum.cpu_limit.unwrap_or(sum.cpu);
        within("the sidecar", CPU, cpu, range, "a container", LESS_CPU)?;
        within("the sidecar", MEMORY, sum.memory, range, "a container", SMALLER_ARENA)?;
    }
    Ok(())
}

/// Bytes of the node's disk for logs, within what is allowed: there is nothing to refuse a pod for. A limit is needed where every
/// container has or gets one. Where the sum of the pod is limited, or its ratio, the limit is the request: what others
/// need of it is not known.
fn fit_storage(request: &mut Amount, said: &mut Option<Amount>, ranges: &[LimitRange]) {
    for range in ranges.iter().filter(|range| !range.of_pod) {
        *request = (*request).max(range.min.get(STORAGE).copied().unwrap_or_default());
    }
    let bounds = |range: &LimitRange| range.max.contains_key(STORAGE) || range.ratio.contains_key(STORAGE);
    if ranges.iter().any(|range| bounds(range) || range.default.contains_key(STORAGE)) {
        said.get_or_insert(STORAGE_LIMIT);
    }
    let Some(limit) = said else { return };
    for range in ranges.iter().filter(|range| !range.of_pod) {
        let by_ratio = range.ratio.get(STORAGE).map_or(*limit, |ratio| request.times(*ratio));
        *limit = (*limit).min(by_ratio).min(range.max.get(STORAGE).copied().unwrap_or(*limit));
    }
    if ranges.iter().any(|range| range.of_pod && bounds(range)) {
        *limit = (*limit).min(*request);
    }
    *limit = (*limit).max(range_least(ranges));
    *request = (*request).min(*limit);
}

/// The largest least of a container's disk.
fn range_least(ranges: &[LimitRange]) -> Amount {
    let of_containers = ranges.iter().filter(|range| !range.of_pod);
    of_containers.filter_map(|range| range.min.get(STORAGE).copied()).max().unwrap_or_default()
}

/// A maximum demands a limit, and a default would be put there by the API server, below our request perhaps.
fn needs_limit(resource: &str, request: Amount, limit: &mut Option<Amount>, range: &LimitRange) {
    let default = range.default.get(resource).copied();
    let demanded =
        default.is_some() || range.max.contains_key(resource) || range.ratio.contains_key(resource);
    if resource != CPU || !demanded {
        return;
    }
    let wanted = limit.or(default).unwrap_or(request).max(request);
    let by_ratio = range.ratio.get(resource).map_or(wanted, |ratio| request.times(*ratio));
    let by_max = range.max.get(resource).copied().unwrap_or(wanted);
    *limit = Some(wanted.min(by_ratio).min(by_max).max(request));
}

/// Checks that the pod with its sidecar is within what LimitRanges allow a pod.
pub(super) fn check_pod(
    requests: [Amount; 2],
    limits: [Amount; 2],
    ranges: &[LimitRange],
) -> Result<(), Deny> {
    for range in ranges.iter().filter(|range| range.of_pod) {
        for (index, resource, remedy) in [(0, CPU, LESS_CPU), (1, MEMORY, SMALLER_ARENA)] {
            let most = limits[index].max(requests[index]);
            within("the pod with its sidecar", resource, most, range, "a pod", remedy)?;
        }
    }
    Ok(())
}

fn within(
    what: &'static str,
    resource: &str,
    needed: Amount,
    range: &LimitRange,
    per: &'static str,
    remedy: &'static str,
) -> Result<(), Deny> {
    match range.max.get(resource) {
        Some(allowed) if needed > *allowed => {
            let shown = |amount: Amount| if resource == CPU { amount.cpu().0 } else { amount.memory().0 };
            Err(Deny::LimitRange(Box::new(OverLimit {
                what,
                range: range.name.clone(),
                resource: resource.to_owned(),
                needed: shown(needed),
                allowed: shown(*allowed),
                per,
                remedy,
            })))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Request and limit of the node's disk in MiB, of a pod in which others have a limit or not.
    fn storage(others: bool, ranges: &[LimitRange]) -> (u64, Option<u64>) {
        let mib = |amount: Amount| amount.units().unwrap() >> 20;
        let (mut request, mut limit) = (Amount::whole(64 << 20), others.then_some(STORAGE_LIMIT));
        fit_storage(&mut request, &mut limit, ranges);
        (mib(request), limit.map(mib))
    }

    fn of(mib: u64) -> std::collections::BTreeMap<String, Amount> {
        [(STORAGE.to_owned(), Amount::whole(mib << 20))].into()
    }

    #[test]
    fn the_limit_on_disk_gives_way_to_what_a_pod_or_a_container_may_have() {
        let ratio = |units: u64| [(STORAGE.to_owned(), Amount::whole(units))].into();
        let container = LimitRange { max: of(100), ..LimitRange::default() };
        let pod = LimitRange { of_pod: true, max: of(512), ..LimitRange::default() };
        let of_container = LimitRange { ratio: ratio(4), ..LimitRange::default() };
        let of_pod = LimitRange { of_pod: true, ratio: ratio(4), ..LimitRange::default() };
        let other = LimitRange { of_pod: true, ..LimitRange::default() };
        assert_eq!(storage(true, &[other]), (64, Some(1024)));
        for others in [true, false] {
            assert_eq!(storage(others, std::slice::from_ref(&container)), (64, Some(100)));
            assert_eq!(storage(others, std::slice::from_ref(&of_container)), (64, Some(256)));
            assert_eq!(storage(others, std::slice::from_ref(&pod)), (64, Some(64)));
            assert_eq!(storage(others, std::slice::from_ref(&of_pod)), (64, Some(64)));
        }
        let least = LimitRange { min: of(80), ..LimitRange::default() };
        assert_eq!(storage(true, &[pod, least, container]), (80, Some(80)));
    }

    #[test]
    fn a_limit_on_disk_is_there_only_where_others_have_one() {
        assert_eq!(storage(false, &[]), (64, None));
        assert_eq!(storage(false, &[LimitRange { min: of(80), ..LimitRange::default() }]), (80, None));
        let default = LimitRange { default: of(2048), ..LimitRange::default() };
        assert_eq!(storage(false, &[default]), (64, Some(1024)));
    }
}
