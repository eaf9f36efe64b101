//! Judgement of what is wrong, from plain facts.

use tensorlane_client::{Moved, PeerStatus, Status};
use tensorlane_operator::findings::Finding;
use tensorlane_proto::Transport;

use super::facts::{Access, Facts};
use super::remedies::Remedies;
use crate::output::bytes;

/// Findings, the nearest first.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let remedies = Remedies::of(facts.in_kubernetes);
    let mut all = vec![sockets(facts, remedies)];
    let Some(status) = &facts.status else { return all };
    all.push(version(facts.version, &status.version, remedies));
    all.extend(arena(status, remedies));
    all.extend(facts.memory.map(|(limit, base)| memory(status, limit, base)));
    match &facts.peers {
        Ok(peers) => all.extend(others(status, peers, remedies)),
        Err(why) => all.push(Finding::unknown("peers", why.clone(), "look at the sidecar's log")),
    }
    all
}

fn sockets(facts: &Facts, remedies: &Remedies) -> Finding {
    let (about, directory) = ("sockets", facts.directory.display());
    match &facts.access {
        Access::Answers => Finding::ok(about, format!("a sidecar answers in {directory}")),
        Access::NoDirectory => {
            Finding::problem(about, format!("there is no directory {directory}"), remedies.no_directory)
        }
        Access::NoSocket => {
            Finding::problem(about, format!("no sidecar listens in {directory}"), remedies.no_socket)
        }
        Access::NoAnswer(why) => Finding::problem(
            about,
            format!("the sidecar in {directory} does not answer: {why}"),
            if why.contains("ermission denied") { remedies.denied } else { remedies.no_answer },
        ),
    }
}

/// Releases of one minor version speak with each other.
fn version(ours: &str, theirs: &str, remedies: &Remedies) -> Finding {
    let minor = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    if minor(ours) == minor(theirs) {
        return Finding::ok("version", format!("sidecar {theirs}, this command {ours}"));
    }
    let found = format!("the sidecar is {theirs}, this command is {ours}");
    Finding::problem("version", found, remedies.version)
}

fn arena(status: &Status, remedies: &Remedies) -> Vec<Finding> {
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
        all.push(Finding::problem(about, found, remedies.arena));
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
    let found = format!("limit {}, arena {} and {} beside it", bytes(limit), bytes(total), bytes(base));
    if total.saturating_add(base) <= limit {
        return Finding::ok("memory", found);
    }
    Finding::problem(
        "memory",
        format!("{found}: the next put may end the sidecar, with all tensors"),
        "raise the container's memory limit (a scaler may have lowered it: leave container tensorlane out of it), or make tensorlane.dev/arena-size smaller",
    )
}

fn others(status: &Status, peers: &[PeerStatus], remedies: &Remedies) -> Vec<Finding> {
    let is_other = |peer: &&PeerStatus| peer.name != status.peer && peer.state != "left";
    let others: Vec<&PeerStatus> = peers.iter().filter(is_other).collect();
    let connected = others.iter().filter(|peer| peer.state == "connected").count();
    let has_all = !others.is_empty() && connected == others.len();
    let mut all: Vec<Finding> = listing(status, peers, has_all, remedies).into_iter().collect();
    if others.is_empty() {
        let found = format!("no other peer of exchange {} is known: {}", status.exchange, remedies.alone);
        all.push(Finding::note("peers", found));
        return all;
    }
    let lists_well = all.is_empty();
    all.extend(others.iter().filter_map(|peer| unreachable(peer, remedies)));
    if lists_well && all.is_empty() {
        let rest = if has_all { String::new() } else { format!(", {} not yet", others.len() - connected) };
        let found = format!("{connected} of {} connected{rest}, none refused", others.len());
        all.push(Finding::ok("peers", found));
    }
    all.extend(others.iter().filter_map(|peer| stands_still(peer, remedies)));
    all.extend(routes(&others, remedies));
    all
}

/// Finding on what is wrong with the tables of peers: that one does not list this peer, or at an address that leads elsewhere, or
/// that this one's lacks others. `has_all`: all peers are connected, so that a line which is missing keeps nobody away.
fn listing(status: &Status, peers: &[PeerStatus], has_all: bool, remedies: &Remedies) -> Option<Finding> {
    let told = &peers.iter().find(|peer| peer.name == status.peer)?.last_error;
    if told.is_empty() {
        return None;
    }
    // So the sidecar says it of a peers file that lacks this peer, or its key; and of an address of its own.
    let is_refused = told.contains("so others refuse it") && !has_all;
    let is_elsewhere = told.contains("does not lead back to it");
    let remedy = if is_refused {
        remedies.unlisted
    } else if is_elsewhere {
        remedies.leads_elsewhere
    } else if told.contains("has not listed peers") {
        remedies.no_list
    } else {
        return Some(Finding::note("peers", told.clone()));
    };
    Some(Finding::problem("peers", told.clone(), remedy))
}

/// Finding on a connected peer: a problem where packets of full size may be lost, a note where something stood still lately or QUIC
/// does not come up.
fn stands_still(peer: &PeerStatus, remedies: &Remedies) -> Option<Finding> {
    if peer.state != "connected" || peer.last_error.is_empty() {
        return None;
    }
    let found = format!("{} is connected, but {}", peer.name, peer.last_error);
    Some(match remedies.of_path(&peer.last_error) {
        None => Finding::note("path", found),
        Some(remedy) => Finding::problem("path", found, remedy),
    })
}

fn unreachable(peer: &PeerStatus, remedies: &Remedies) -> Option<Finding> {
    if peer.state != "unreachable" {
        return None;
    }
    let found = format!("{} is not reached: {}", peer.name, peer.last_error);
    Some(Finding::problem("peers", found, remedies.of_error(&peer.last_error, &peer.name)))
}

/// Findings on routes. What all connected peers have in common is said once.
fn routes(others: &[&PeerStatus], remedies: &Remedies) -> Vec<Finding> {
    let mut seen = std::collections::BTreeMap::<String, (usize, bool)>::new();
    for peer in others.iter().filter(|peer| peer.state == "connected") {
        let Some(route) = peer.route.clone().map(Moved::from) else { continue };
        let none = route.transport.is_none();
        let entry = seen.entry(route.to_string()).or_insert((0, none));
        entry.0 += 1;
    }
    let one = |(route, (count, none)): (String, (usize, bool))| match none {
        false if route == Transport::Shm.as_str() => Finding::ok("routes", format!("{count} by {route}")),
        false => Finding {
            remedy: remedies.of_route(&route).map(str::to_owned),
            ..Finding::note("routes", format!("{count} by {route}"))
        },
        true => {
            let route = route.trim_start_matches("unknown, ");
            Finding::problem("routes", format!("no way to {count} connected: {route}"), remedies.no_way)
        }
    };
    seen.into_iter().map(one).collect()
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
