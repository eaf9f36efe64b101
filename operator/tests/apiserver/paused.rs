//! A leader that stands still while its lease runs out: another one leads, and the first writes nothing when it goes on.

use std::net::TcpStream;
use std::process::Command;

use kube::Client;
use serde_json::{Value, json};

use crate::metrics::value;
use crate::objects::{apply, get, until};
use crate::permissions::requests;
use crate::running::{exchange, pod, prepare, start, token};
use crate::server::{Server, free_port};

const SYSTEM: &str = "tensorlane-system";

/// The replica whose requests are told apart by its token, which is that of a pod.
const SECOND: &str = "second";

/// Number of times that the machine may let the second one stand still.
const TRIES: usize = 3;

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn a_leader_that_stood_still_while_another_took_its_lease_writes_nothing_when_it_goes_on() {
    for _ in 0..TRIES {
        if the_second_leads_all_the_time().await {
            return;
        }
    }
    panic!("the machine lets the second one stand still in each of {TRIES} tries");
}

/// True if it does. If the machine lets it stand still, too, the first one rightly leads again, and nothing is proven.
async fn the_second_leads_all_the_time() -> bool {
    let mut server = Server::start().await;
    let admin = server.admin();
    let (own, port) = prepare(&admin).await;
    let probes = [free_port(), free_port()];
    let first = start(&mut server, "first", &own, (port, probes[0]), &[]);
    until("the first one leads", || async { leads(probes[0]).filter(|leads| *leads) }).await;
    let of_its_pod = token_of_a_pod(&admin).await;
    start(&mut server, SECOND, &of_its_pod, (free_port(), probes[1]), &[]);
    until("the second one waits", || async { leads(probes[1]).filter(|leads| !leads) }).await;

    signal(first, "STOP");
    // Whoever leads has something to write for it; the first one will hear of it as soon as it goes on.
    made(&admin, "while-it-stands").await;
    until("the second one leads", || async { leads(probes[1]).filter(|leads| *leads) }).await;
    let before = writes_of_the_first(&server).len();

    signal(first, "CONT");
    until("the first one knows that it leads no more", || async { leads(probes[0]).filter(|leads| !leads) })
        .await;
    made(&admin, "after-it-goes-on").await;
    let second = server.log("second.log");
    if second.contains("this replica leads no more") {
        return false;
    }
    assert_eq!(writes_of_the_first(&server)[before..], [""; 0]);
    assert!(server.log("first.log").contains("the lease was not renewed in time"));
    assert_eq!(probes.map(leads), [Some(false), Some(true)]);
    true
}

/// Makes an exchange, and waits until a leader has seen to it.
pub(crate) async fn made(admin: &Client, name: &str) {
    let mut wanted = exchange();
    (wanted["metadata"]["name"], wanted["spec"]) = (json!(name), json!({}));
    apply(admin, &wanted).await.unwrap();
    until("a leader has written what it knows of it", || async {
        get(admin, &wanted).await?["status"]["observedGeneration"].as_u64()
    })
    .await;
}

/// True if a replica says that it leads; none while it does not answer.
pub(crate) fn leads(port: u16) -> Option<bool> {
    TcpStream::connect(("127.0.0.1", port)).ok()?;
    Some(value(port, "leader")? == 1)
}

/// Writes in the operator's name by whoever is not the second replica, leases aside: verb and object.
fn writes_of_the_first(server: &Server) -> Vec<String> {
    let of_the_second =
        |line: &Value| line["user"]["extra"]["authentication.kubernetes.io/pod-name"] == json!([SECOND]);
    let is_written = |line: &Value| {
        ["create", "update", "patch", "delete"].contains(&line["verb"].as_str().unwrap_or_default())
            && line["objectRef"]["resource"] != "leases"
    };
    let all = requests(server);
    let written = all.iter().filter(|line| is_written(line) && !of_the_second(line));
    written.map(|line| format!("{} {}", line["verb"], line["objectRef"])).collect()
}

/// A token of the operator's account for a pod of that name.
async fn token_of_a_pod(admin: &Client) -> String {
    let mut own = pod(SECOND, &json!({}));
    own["metadata"]["namespace"] = json!(SYSTEM);
    own["spec"]["serviceAccountName"] = json!("tensorlane-operator");
    // What the namespace enforces.
    own["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    own["spec"]["containers"][0]["securityContext"] =
        json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let made = apply(admin, &own).await.unwrap();
    token(admin, SYSTEM, "tensorlane-operator", Some(&serde_json::to_value(made).unwrap())).await
}

pub(crate) fn signal(process: u32, which: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{which} {process}")]).status().unwrap();
    assert!(sent.success(), "{which} to {process}");
}
