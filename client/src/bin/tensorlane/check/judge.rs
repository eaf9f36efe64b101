//! What is wrong, from plain facts.

use tensorlane_client::{Moved, PeerStatus, Status};
use tensorlane_operator::findings::Finding;
use tensorlane_proto::Transport;

use super::facts::{Access, Facts};
use crate::output::bytes;

/// What is found, the nearest first.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = vec![sockets(facts)];
    let Some(status) = &facts.status else { return all };
    all.push(version(facts.version, &status.version));
    all.extend(arena(status));
    all.extend(facts.memory.map(|(limit, base)| memory(status, limit, base)));
    match &facts.peers {
        Ok(peers) => all.extend(others(status, peers)),
        Err(why) => all.push(Finding::unknown("peers", why.clone(), "look at the sidecar's log")),
    }
    all
}

fn sockets(facts: &Facts) -> Finding {
    let (about, directory) = ("sockets", facts.directory.display());
    match &facts.access {
        Access::Answers => Finding::ok(about, format!("a sidecar answers in {directory}")),
        Access::NoDirectory => Finding::problem(
            about,
            format!("there is no directory {directory}"),
            "in Kubernetes this container has no sidecar: `kubectl tensorlane explain pod/NAME` says why, and tensorlane.dev/containers may leave this container out; elsewhere start a sidecar, or set TENSORLANE_SOCKETS to the directory of one",
        ),
        Access::NoSocket => Finding::problem(
            about,
            format!("no sidecar listens in {directory}"),
            "it has not started, or has ended: `kubectl logs POD -c tensorlane` (--previous for its last life)",
        ),
        Access::NoAnswer(why) => Finding::problem(
            about,
            format!("the sidecar in {directory} does not answer: {why}"),
            "`kubectl logs POD -c tensorlane`; TENSORLANE_LIMITS_SESSIONS where there are too many sessions",
        ),
    }
}

/// Releases of one minor version speak with each other.
fn version(ours: &str, theirs: &str) -> Finding {
    let minor = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    if minor(ours) == minor(theirs) {
        return Finding::ok("version", format!("sidecar {theirs}, this command {ours}"));
    }
    let found = format!("the sidecar is {theirs}, this command is {ours}");
    Finding::problem(
        "version",
        found,
        "use client and sidecar of the same minor version: make the pod anew after an upgrade",
    )
}

fn arena(status: &Status) -> Vec<Finding> {
    let about = "arena";
    let Some(arena) = status.arena else { return Vec::new() };
    let mut all = Vec::new();
    let whole = bytes(arena.total);
    if arena.largest_put == 0 || status.waiting > 0 {
        let found = format!(
            "{} of {whole} free, {} puts wait for room; {} sealed, {} reserved, {} retired, held by {} leases, {} names and {} tickets",
            bytes(arena.free),
            status.waiting,
            bytes(arena.sealed),
            bytes(arena.reserved),
            bytes(arena.retired),
            status.leases,
            status.names,
            status.tickets
        );
        let remedy = "release tensors, take names away (`tensorlane ls -l`, `tensorlane rm`), or make tensorlane.dev/arena-size larger";
        all.push(Finding::problem(about, found, remedy));
    } else {
        all.push(Finding::ok(about, format!("{} of {whole} free", bytes(arena.free))));
    }
    if arena.inherited > 0 {
        let found = format!(
            "{} of a sidecar that died are still mapped by workloads, and come back when those unmap them",
            bytes(arena.inherited)
        );
        all.push(Finding::note(about, found));
    }
    all
}

fn memory(status: &Status, limit: u64, base: u64) -> Finding {
    let total = status.arena.map_or(0, |arena| arena.total);
    let needed = total.saturating_add(base);
    let found = format!(
        "arena and what is beside it need {}, the container may have {}",
        bytes(needed),
        bytes(limit)
    );
    if needed <= limit {
        return Finding::ok("memory", found);
    }
    Finding::problem(
        "memory",
        found,
        "raise the container's memory limit, or make tensorlane.dev/arena-size smaller",
    )
}

fn others(status: &Status, peers: &[PeerStatus]) -> Vec<Finding> {
    let others: Vec<&PeerStatus> = peers.iter().filter(|peer| peer.name != status.peer).collect();
    if others.is_empty() {
        let found = format!(
            "no other peer of exchange {} is known: tensors stay in this pod (`kubectl get txp`)",
            status.exchange
        );
        return vec![Finding::note("peers", found)];
    }
    let mut all: Vec<Finding> = others.iter().filter_map(|peer| unreachable(peer)).collect();
    if all.is_empty() {
        let connected = others.iter().filter(|peer| peer.state == "connected").count();
        all.push(Finding::ok("peers", format!("{connected} of {} connected, none refused", others.len())));
    }
    all.extend(routes(&others));
    all
}

fn unreachable(peer: &PeerStatus) -> Option<Finding> {
    if peer.state != "unreachable" {
        return None;
    }
    let found = format!("{} is not reached: {}", peer.name, peer.last_error);
    Some(Finding::problem("peers", found, remedy(&peer.last_error, &peer.name)))
}

/// What the words of an error ask for.
fn remedy(error: &str, peer: &str) -> String {
    let has = |words: &[&str]| words.iter().any(|word| error.contains(word));
    if has(&["belongs to no peer", "refused us", "certificate", "alert"]) {
        return format!(
            "a key is not pinned on both sides: fingerprints of both must be listed (`kubectl get txp {peer} -o yaml`, or the peers file on both sides)"
        );
    }
    if has(&["not to ", "name of its key"]) {
        return "its address belongs to another pod by now: the table will follow; if not, look at its TensorPeer".to_owned();
    }
    if has(&["exchange"]) {
        return "it belongs to another exchange: correct tensorlane.dev/exchange of one of the two"
            .to_owned();
    }
    if has(&["version"]) {
        return "its sidecar is of another release: make the older pod anew".to_owned();
    }
    if has(&["no address"]) {
        return format!("it has not published yet: `kubectl describe txp {peer}`");
    }
    "can this pod reach its port 9421? a NetworkPolicy must let pods of the exchange connect to each other; is its node up?"
        .to_owned()
}

/// What all connected peers have in common is said once.
fn routes(others: &[&PeerStatus]) -> Vec<Finding> {
    let mut seen = std::collections::BTreeMap::<String, (usize, bool)>::new();
    for peer in others.iter().filter(|peer| peer.state == "connected") {
        let Some(route) = peer.route.clone().map(Moved::from) else { continue };
        let none = route.transport.is_none();
        let entry = seen.entry(route.to_string()).or_insert((0, none));
        entry.0 += 1;
    }
    let one = |(route, (count, none)): (String, (usize, bool))| match none {
        false if route == Transport::Shm.as_str() => Finding::ok("routes", format!("{count} by {route}")),
        false => Finding::note("routes", format!("{count} by {route}")),
        true => {
            let route = route.trim_start_matches("unknown, ");
            let remedy =
                "the exchange or this pod requires what cannot be had: relax `require`, or `transports`";
            Finding::problem("routes", format!("no way to {count} connected: {route}"), remedy)
        }
    };
    seen.into_iter().map(one).collect()
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
