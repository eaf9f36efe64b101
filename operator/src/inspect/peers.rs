//! The peers of a namespace: as rows, and what is wrong with them.

use serde::Serialize;
use serde_json::Value;
use tensorlane_proto::crd::is_at_pod;

use super::{Seen, condition, hidden, list, name, text};
use crate::findings::Finding;

/// A single peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRow {
    /// The namespace of its exchange.
    pub namespace: String,
    /// Name of the peer, which is that of its pod.
    pub name: String,
    /// Name of its exchange.
    pub exchange: String,
    /// The node of its pod.
    pub node: String,
    /// Readiness, that is, whether others can reach it: `True`, `False` or `Unknown`.
    pub ready: String,
    /// Reason, in a word.
    pub reason: String,
    /// The transports that it offers.
    pub transports: Vec<String>,
    /// Addresses at which it is reached.
    pub addresses: Vec<String>,
    /// Of these, the ones that are none of its pod's IP addresses, so that nobody dials them.
    pub foreign_addresses: Vec<String>,
    /// Fingerprints of its public key: two while the key is rotated.
    pub fingerprints: Vec<String>,
    /// Incarnation: this life of its sidecar.
    pub incarnation: String,
}

/// The rows of a list, by namespace, exchange and name; those of one exchange where one is named.
pub fn rows(peers: &[Value], exchange: Option<&str>) -> Vec<PeerRow> {
    let of_it = |row: &PeerRow| exchange.is_none_or(|exchange| row.exchange == exchange);
    let mut rows: Vec<PeerRow> = peers.iter().map(row).filter(of_it).collect();
    let place = |row: &PeerRow| (row.namespace.clone(), row.exchange.clone(), row.name.clone());
    rows.sort_by_cached_key(place);
    rows
}

fn row(peer: &Value) -> PeerRow {
    let texts = |pointer| {
        list(peer, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<String>>()
    };
    let ready = condition(peer, "Ready");
    let transports = list(peer, "/status/offer/transports").iter();
    PeerRow {
        namespace: text(peer, "/metadata/namespace").to_owned(),
        name: name(peer).to_owned(),
        exchange: text(peer, "/spec/exchange").to_owned(),
        node: text(peer, "/spec/node").to_owned(),
        ready: ready.map_or("Unknown", |ready| text(ready, "/status")).to_owned(),
        reason: ready.map_or("NotPublished", |ready| text(ready, "/reason")).to_owned(),
        transports: transports.map(|one| text(one, "/transport").to_owned()).collect(),
        addresses: texts("/status/addresses"),
        foreign_addresses: foreign_addresses(peer).into_iter().map(str::to_owned).collect(),
        fingerprints: texts("/status/fingerprints"),
        incarnation: text(peer, "/status/incarnation").to_owned(),
    }
}

/// Findings on what is wrong with peers.
pub(super) fn findings(seen: &Seen) -> Vec<Finding> {
    if let Seen::Hidden(why) = seen {
        return vec![hidden("peers", "the peers", why)];
    }
    let all = seen.items();
    let mut findings = same_keys(all);
    findings.extend(all.iter().filter_map(peer));
    findings.extend(all.iter().filter_map(elsewhere));
    if findings.is_empty() {
        findings.push(Finding::ok("peers", format!("all {} are ready", all.len())));
    }
    findings
}

fn peer(peer: &Value) -> Option<Finding> {
    let own = name(peer);
    let ready = condition(peer, "Ready");
    let reason = ready.map_or("NotPublished", |ready| text(ready, "/reason"));
    if ready.is_some_and(|ready| ready["status"] == "True") {
        return None;
    }
    let remedy = match reason {
        "PodEnded" | "PodEnding" => return Some(Finding::note("peers", format!("{own}: its pod is over"))),
        "PodGone" => format!("kubectl delete tensorpeer {own}"),
        "NodeLost" => format!("kubectl describe node {}", text(peer, "/spec/node")),
        "NoPodIP" => format!("kubectl describe pod {own}"),
        "SidecarNotReady" => format!("kubectl logs {own} -c tensorlane; kubectl describe pod {own}"),
        _ => format!(
            "kubectl logs {own} -c tensorlane: can it reach the API server, and may it write? (permissions above)"
        ),
    };
    let message =
        ready.map_or("the sidecar has not said yet how it is reached", |ready| text(ready, "/message"));
    Some(Finding::problem("peers", format!("{own}: {message} ({reason})"), remedy))
}

/// Addresses that a peer says of itself and that are not its pod's.
fn foreign_addresses(peer: &Value) -> Vec<&str> {
    let texts = |pointer| list(peer, pointer).iter().filter_map(Value::as_str).collect::<Vec<&str>>();
    let pod_ips = peer.pointer("/spec/podIPs").map(|_| texts("/spec/podIPs"));
    texts("/status/addresses").into_iter().filter(|one| !is_at_pod(one, pod_ips.as_deref())).collect()
}

fn elsewhere(peer: &Value) -> Option<Finding> {
    let foreign = foreign_addresses(peer);
    // A pod without addresses has not been seen with any yet, or is over.
    if foreign.is_empty() || list(peer, "/spec/podIPs").is_empty() {
        return None;
    }
    let own: Vec<&str> = list(peer, "/spec/podIPs").iter().filter_map(Value::as_str).collect();
    let found = format!(
        "{} publishes {}, and its pod has {}: nobody dials it there",
        name(peer),
        foreign.join(", "),
        own.join(", ")
    );
    let remedy = format!(
        "see what writes there: kubectl get tensorpeer {} -o yaml --show-managed-fields; an injected sidecar publishes its pod's own",
        name(peer)
    );
    Some(Finding::problem("peers", found, remedy))
}

/// A key that two claim belongs to one of them at most.
fn same_keys(all: &[Value]) -> Vec<Finding> {
    let mut owners: std::collections::BTreeMap<&str, Vec<&str>> = std::collections::BTreeMap::new();
    for peer in all {
        for key in list(peer, "/status/fingerprints").iter().filter_map(Value::as_str) {
            owners.entry(key).or_default().push(name(peer));
        }
    }
    let twice = owners.into_iter().filter(|(_, owners)| owners.len() > 1);
    twice
        .map(|(key, owners)| {
            let found = format!("{} claim the same key {key}", owners.join(" and "));
            Finding::problem(
                "peers",
                found,
                "one of them speaks for another: delete the pod that should not have it",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn listed(items: &[Value]) -> Seen {
        Seen::There(json!({"items": items}))
    }

    #[test]
    fn an_address_that_is_not_the_pods_own_is_told_with_those_that_are() {
        let with = |pod_ips: Value| {
            json!({
                "metadata": {"name": "a"}, "spec": {"podIPs": pod_ips},
                "status": {
                    "addresses": ["10.0.0.7:9421", "10.0.0.1:6443"],
                    "conditions": [{"type": "Ready", "status": "True", "reason": "Published"}],
                },
            })
        };
        let liar = with(json!(["10.0.0.7", "fd00::7"]));
        assert_eq!(rows(std::slice::from_ref(&liar), None)[0].foreign_addresses, ["10.0.0.1:6443"]);
        let found = findings(&listed(&[liar]));
        assert_eq!(found.len(), 1);
        let text = format!("{:?}", found[0]);
        assert!(text.contains("a publishes 10.0.0.1:6443, and its pod has 10.0.0.7, fd00::7"), "{text}");
        let honest = findings(&listed(&[with(json!(["10.0.0.7", "10.0.0.1"]))]));
        assert!(format!("{honest:?}").contains("all 1 are ready"), "{honest:?}");
        let early = findings(&listed(&[with(json!([]))]));
        assert!(format!("{early:?}").contains("all 1 are ready"), "{early:?}");
    }

    #[test]
    fn a_peer_that_has_published_and_one_that_has_not() {
        let published = json!({
            "metadata": {"name": "b"}, "spec": {"exchange": "default", "node": "n1"},
            "status": {
                "incarnation": "00", "addresses": ["10.0.0.1:9421"], "fingerprints": ["sha256:1", "sha256:2"],
                "offer": {"transports": [{"transport": "tcp"}]},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Published"}],
            },
        });
        let new = json!({"metadata": {"name": "a"}, "spec": {"exchange": "other"}});
        let rows = rows(&[new.clone(), published], None);
        assert_eq!((rows[0].name.as_str(), rows[1].name.as_str()), ("b", "a"), "by exchange, then by name");
        assert_eq!((rows[0].ready.as_str(), rows[0].fingerprints.len()), ("True", 2));
        assert_eq!(rows[0].transports, ["tcp"]);
        assert_eq!((rows[1].ready.as_str(), rows[1].reason.as_str()), ("Unknown", "NotPublished"));
        assert!(super::rows(&[new], Some("default")).is_empty());
        let of = |namespace: &str| json!({"metadata": {"namespace": namespace, "name": "a"}});
        let namespaces: Vec<_> =
            super::rows(&[of("rl"), of("ml")], None).into_iter().map(|row| row.namespace).collect();
        assert_eq!(namespaces, ["ml", "rl"]);
    }
}
