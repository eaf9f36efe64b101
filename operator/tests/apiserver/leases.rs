//! The lease of a leader: one whose renewals fail writes nothing more, clocks that are off are no matter, and neither is the name
//! that stands in it.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::objects::{api, apply, get, installed, until};
use crate::paused::{leads, made};
use crate::permissions::requests;
use crate::running::{exchange, install, prepare, start};
use crate::server::{Server, free_port};

/// Seconds after a renewal in which nobody else takes the lease.
const LEASE: SignedDuration = SignedDuration::from_secs(15);

/// Kinds that the leader alone writes.
const OF_LEADERS: [&str; 4] =
    ["tensorexchanges", "tensorpeers", "rolebindings", "mutatingwebhookconfigurations"];

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn a_leader_whose_renewals_are_refused_writes_nothing_after_its_lease_and_leads_again_when_they_are_not()
 {
    let mut server = Server::start().await;
    let admin = server.admin();
    let probes = free_port();
    install(&admin, &mut server, probes, &[]).await;
    until("it leads", || async { leads(probes).filter(|leads| *leads) }).await;
    made(&admin, "before").await;

    renewals(&admin, false).await;
    until("it leads no more", || async { leads(probes).filter(|leads| !leads) }).await;
    let mut after = exchange();
    (after["metadata"]["name"], after["spec"]) = (json!("after"), json!({}));
    apply(&admin, &after).await.unwrap();
    let refused = of_lease(&server, &[403]).len();
    until("it has asked for the lease, and was refused", || async {
        (of_lease(&server, &[403]).len() > refused + 2).then_some(())
    })
    .await;
    let renewed = of_lease(&server, &[200, 201]).into_iter().max().unwrap();
    let written: Vec<Timestamp> =
        requests(&server).iter().filter(|line| is_of_leader(line)).map(asked).collect();
    assert!(written.iter().all(|at| at.duration_since(renewed) < LEASE), "{renewed}: {written:?}");
    assert!(get(&admin, &after).await.unwrap()["status"].is_null());

    renewals(&admin, true).await;
    until("it leads again", || async { leads(probes).filter(|leads| *leads) }).await;
    until("it has written what it knows", || async {
        get(&admin, &after).await?["status"]["observedGeneration"].as_u64()
    })
    .await;
}

/// A replica elsewhere whose clock is two hours behind renews the lease with its own time. Then one whose clock is ahead has it, and ends.
#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn a_clock_that_is_off_neither_loses_a_lease_that_is_renewed_nor_keeps_one_that_is_not() {
    let mut server = Server::start().await;
    let admin = server.admin();
    let (own, webhook) = prepare(&admin).await;
    held(&admin, "elsewhere", SignedDuration::from_hours(-2)).await;
    let renewing = tokio::spawn({
        let admin = admin.clone();
        async move {
            loop {
                tokio::time::sleep(Duration::from_secs(2)).await;
                held(&admin, "elsewhere", SignedDuration::from_hours(-2)).await;
            }
        }
    });
    let probes = free_port();
    start(&mut server, "replica", &own, (webhook, probes), &[]);
    let began = Timestamp::now();
    until("it has waited for longer than a lease", || async {
        let last = looks(&server).into_iter().max()?;
        (last.duration_since(began) > LEASE + LEASE / 2).then_some(())
    })
    .await;
    assert_eq!(leads(probes), Some(false));
    renewing.abort();
    let _ = renewing.await;
    held(&admin, "elsewhere", SignedDuration::from_hours(2)).await;
    until("it leads", || async { leads(probes).filter(|leads| *leads) }).await;
}

/// As after a restore from a backup of the time when this replica led: who leads now is not in it.
#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn a_lease_that_has_the_name_of_a_replica_which_does_not_lead_is_taken_by_it_as_late_as_any_other() {
    let mut server = Server::start().await;
    let admin = server.admin();
    let (own, webhook) = prepare(&admin).await;
    held(&admin, "replica", SignedDuration::ZERO).await;
    let probes = free_port();
    start(&mut server, "replica", &own, (webhook, probes), &[]);
    until("it leads", || async { leads(probes).filter(|leads| *leads) }).await;
    let (looked, taken) = (looks(&server).into_iter().min(), of_lease(&server, &[200]).into_iter().min());
    let waited = taken.unwrap().duration_since(looked.unwrap());
    // The two times are of the API server, and the waiting is the replica's.
    assert!(waited > LEASE - SignedDuration::from_secs(1), "{waited:?}");
}

/// Writes the lease as a replica of this name whose clock is off by this.
async fn held(admin: &Client, holder: &str, off: SignedDuration) {
    let renewed = (Timestamp::now() + off).strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "tensorlane-operator", "namespace": "tensorlane-system"},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15, "acquireTime": renewed, "renewTime": renewed,
        },
    });
    apply(admin, &lease).await.unwrap();
}

/// Lets the operator renew its lease, or not; it may read it in any case.
async fn renewals(admin: &Client, are_granted: bool) {
    let is_it = |role: &Value| role["rules"].to_string().contains("leases");
    let mut role = installed(&["Role"]).into_iter().find(is_it).unwrap();
    for rule in role["rules"].as_array_mut().unwrap() {
        if !are_granted && rule["resources"] == json!(["leases"]) {
            rule["verbs"] = json!(["get"]);
        }
    }
    let name = role["metadata"]["name"].as_str().unwrap().to_owned();
    let patch = Patch::Merge(json!({"rules": role["rules"]}));
    api(admin, &role).patch(&name, &PatchParams::default(), &patch).await.unwrap();
}

/// Times at which the operator asked to make or write the lease, and was answered with one of these codes.
fn of_lease(server: &Server, codes: &[u64]) -> Vec<Timestamp> {
    let lines = requests(server);
    let is_it = |line: &&Value| {
        let code = line["responseStatus"]["code"].as_u64();
        ["create", "patch"].iter().any(|verb| line["verb"] == *verb)
            && line["objectRef"]["resource"] == "leases"
            && code.is_some_and(|code| codes.contains(&code))
    };
    lines.iter().filter(is_it).map(asked).collect()
}

/// Times at which the operator read the lease.
fn looks(server: &Server) -> Vec<Timestamp> {
    let lines = requests(server);
    let is_it = |line: &&Value| line["verb"] == "get" && line["objectRef"]["resource"] == "leases";
    lines.iter().filter(is_it).map(asked).collect()
}

fn is_of_leader(line: &Value) -> bool {
    ["create", "update", "patch", "delete"].contains(&line["verb"].as_str().unwrap_or_default())
        && OF_LEADERS.iter().any(|resource| line["objectRef"]["resource"] == *resource)
}

fn asked(line: &Value) -> Timestamp {
    line["requestReceivedTimestamp"].as_str().unwrap().parse().unwrap()
}
