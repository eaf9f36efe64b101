//! Parts of Kubernetes die and come back, and the exchange goes on. Needs `cargo xtask cluster up` and the images
//! `operator`, `sidecar` and `workload` on the nodes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tensorlane_tests::asked::{kubectl_tensorlane, tensorlane_in};
use tensorlane_tests::cluster::{NODES, PATIENCE, eventually, items, reads, succeeds, xtask};
use tensorlane_tests::http::metric;
use tensorlane_tests::installed::{Exchange, SYSTEM, await_operator, condition, scale_operator};
use tensorlane_tests::kubernetes::{metrics_of_the_api_server, pods, try_metrics};
use tensorlane_tests::outage::{BadLink, Outage, heard_of};
use tensorlane_tests::pod::{Pod, PodOptions, SIDECAR, container_status, first_process};
use tensorlane_tests::process::Orphan;

const MIB: u64 = 1 << 20;

/// The deadline of a caller who reads through a link that is cut.
const READ_WITHIN: Duration = Duration::from_secs(4);

/// Time within which that caller has been told at the latest.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// Time that nothing may come from a peer until its connection is taken for lost, by default.
const SILENCE: Duration = Duration::from_secs(2);

/// Time that what is under way waits for a lost owner, in the exchange where a link is cut.
const GRACE: Duration = Duration::from_secs(2);

/// Time that busy processors may add to it, in all but one of a few tries.
const BUSY: Duration = Duration::from_secs(30);

/// Each of two puts what the other reads.
fn round(one: &mut Pod<'_>, other: &mut Pod<'_>) {
    let number = next();
    give(one, other, number);
    give(other, one, number + 1);
}

/// Numbers that no tensor of this process has had.
fn next() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(2, Ordering::Relaxed)
}

fn give(from: &mut Pod<'_>, to: &mut Pod<'_>, seed: u64) {
    let reference = from.ask(&format!("store {MIB} {seed}"), "stored");
    assert_eq!(
        to.ask(&format!("read 20 {reference}"), "read"),
        "tcp",
        "from {} to {}",
        from.name(),
        to.name()
    );
    from.ask("drop", "dropped 1");
}

/// Rounds for as long as this.
fn rounds_for(time: Duration, one: &mut Pod<'_>, other: &mut Pod<'_>) -> usize {
    let end = Instant::now() + time;
    let mut rounds = 0;
    while Instant::now() < end {
        round(one, other);
        rounds += 1;
    }
    rounds
}

/// Identities that must not change when nothing of the exchange has died: of each pod the restarts, of each peer who it
/// is.
fn identities(exchange: &Exchange, pods: &[&Pod<'_>]) -> BTreeMap<String, Value> {
    let restarts = pods.iter().map(|pod| {
        let counts = serde_json::json!([pod.restarts("main"), pod.restarts(SIDECAR)]);
        (format!("pod/{}", pod.name()), counts)
    });
    let peer = |peer: Value| {
        let who = serde_json::json!([peer["metadata"]["uid"], peer["status"]["incarnation"]]);
        (format!("txp/{}", peer["metadata"]["name"]), who)
    };
    restarts.chain(exchange.peers().into_iter().map(peer)).collect()
}

/// A peer, by its name.
fn peer(exchange: &Exchange, name: &str) -> Value {
    exchange.get(&format!("txp/{name}"))
}

/// Waits until the operator says of a peer that its node is lost.
fn await_lost(exchange: &Exchange, name: &str) {
    eventually("the operator says that the node is lost", || {
        let ready = condition(&peer(exchange, name), "Ready");
        (ready.is("False") && ready.reason() == "NodeLost").then_some(())
    });
}

#[test]
fn a_node_without_kubelet_and_containerd_goes_on_exchanging_and_one_that_is_cut_off_harms_nobody_else() {
    let exchange = Exchange::with(&format!("{{gc: {{leaseGrace: {}s}}}}", GRACE.as_secs()));
    let mut one = Pod::start(&exchange, "one", &PodOptions::on("node1"));
    let mut near = Pod::start(&exchange, "near", &PodOptions::on("node1"));
    let mut far = Pod::start(&exchange, "far", &PodOptions::on("node2"));
    exchange.await_peers(3);
    round(&mut one, &mut far);
    let before = identities(&exchange, &[&one, &near, &far]);

    let mut dead = Outage::of(&["node2.kubelet", "node2.containerd"]);
    round(&mut one, &mut far);
    await_lost(&exchange, "far");
    round(&mut one, &mut far);
    round(&mut near, &mut far);
    dead.end("node2.containerd");
    dead.end("node2.kubelet");
    exchange.await_peers(3);
    assert_eq!(identities(&exchange, &[&one, &near, &far]), before);

    let reference = far.ask(&format!("store {MIB} 77"), "stored");
    let large = far.ask(&format!("store {} 78", 40 * MIB), "stored");
    // A megabyte a second: it is cut long before all has come.
    let slow = BadLink::slow("node1", 8);
    one.tell(&format!("read 60 {large}"));
    eventually("the read is under way", || {
        (far.ask(&format!("leases {large}"), "leases") == "2").then_some(())
    });
    let cut = BadLink::cut("node2");
    let was_cut = Instant::now();
    assert_eq!(one.answer(), "error PEER_UNREACHABLE", "what was under way");
    let took = was_cut.elapsed();
    println!("a read that was under way was told {took:.1?} after the cut");
    assert!(took <= SILENCE + GRACE + BUSY, "{took:?}");
    drop(slow);
    let took = [(); 3].map(|()| refused_after(&mut one, &reference));
    println!("reads were told after {took:.1?}");
    assert!(took.iter().all(|took| *took <= TOLD_WITHIN + BUSY), "{took:?}");
    assert!(took.iter().any(|took| *took <= TOLD_WITHIN), "{took:?}");
    round(&mut one, &mut near);
    await_lost(&exchange, "far");
    assert_eq!(managers(&exchange, "far"), ["tensorlane-operator-status"]);
    let parts = ["far: ", "(NodeLost)", "kubectl describe node node2"];
    kubectl_tensorlane(exchange.name(), &["check"]).says(1, &parts);
    let parts = ["far is not reached", "is its node up?"];
    eventually("the sidecar says whom it does not reach", || {
        tensorlane_in(exchange.name(), "one", &["check"]).is(1, &parts).then_some(())
    });
    for name in ["one", "near"] {
        assert!(condition(&peer(&exchange, name), "Ready").is("True"), "{name} suffers");
    }
    round(&mut one, &mut near);
    drop(cut);
    exchange.await_peers(3);
    eventually("the far pod is reached again", || {
        one.tell(&format!("read 5 {reference}"));
        // A copy is of bytes that have come since, in time for the sidecar and too late for its client.
        ["read tcp", "read local"].contains(&one.answer().as_str()).then_some(())
    });
    far.ask("drop", "dropped 2");
    round(&mut one, &mut far);
    assert_eq!(identities(&exchange, &[&one, &near, &far]), before);

    // The kubelet is another process than the one that started them, and sees to them as that one did.
    far.process("main").kill();
    far.await_session();
    eventually("the restart is counted", || (far.restarts("main") == 1).then_some(()));
    assert_eq!(far.restarts(SIDECAR), 0);
    round(&mut one, &mut far);
}

/// Time that a caller waits who reads what is behind a link that is cut. It is told why, by the sidecar.
fn refused_after(pod: &mut Pod<'_>, reference: &str) -> Duration {
    let read = format!("read {} {reference}", READ_WITHIN.as_secs());
    let asked = Instant::now();
    let mut told = pod.ask(&read, "error");
    for _ in 0..3 {
        // Half a second after the deadline its client gives up, as it may on a busy machine. Then that is how long it waited.
        if told == "deadline" {
            told = pod.ask(&read, "error");
        }
    }
    assert_eq!(told, "PEER_UNREACHABLE");
    asked.elapsed()
}

/// Managers that say what a peer's condition is.
fn managers(exchange: &Exchange, name: &str) -> Vec<String> {
    let peer: Value = serde_json::from_str(&exchange.kubectl(&[
        "get",
        "txp",
        name,
        "--output=json",
        "--show-managed-fields",
    ]))
    .unwrap();
    let all = peer["metadata"]["managedFields"].as_array().unwrap().iter();
    let says = |entry: &&Value| {
        let ready = &entry["fieldsV1"]["f:status"]["f:conditions"]["k:{\"type\":\"Ready\"}"];
        !ready["f:status"].is_null()
    };
    all.filter(says).map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect()
}

/// The condition that says whether a pod's containers are ready, and since when.
fn readiness(pods: &[&Pod<'_>]) -> Vec<Value> {
    pods.iter().map(|pod| condition(&pod.object(), "ContainersReady").0).collect()
}

#[test]
fn the_exchange_goes_on_without_control_plane_and_operator_and_afterwards_no_peer_is_lost() {
    let exchange = Exchange::new();
    let mut one = Pod::start(&exchange, "one", &PodOptions::on("node1"));
    let mut far = Pod::start(&exchange, "far", &PodOptions::on("node2"));
    exchange.await_peers(2);
    round(&mut one, &mut far);
    // A pod that answers need not be told to be ready yet.
    for pod in ["pod/one", "pod/far"] {
        exchange.wait_for("Ready", pod);
    }
    let before = (identities(&exchange, &[&one, &far]), readiness(&[&one, &far]));

    scale_operator(0);
    let parts =
        ["pods that ask are refused", "--replicas=2", "no ready replica is behind the webhook's Service"];
    eventually("it is told that the operator is away", || {
        kubectl_tensorlane(exchange.name(), &["check"]).is(1, &parts).then_some(())
    });
    let mut dead = Outage::of(&["apiserver", "controller-manager"]);
    let rounds = rounds_for(Duration::from_secs(60), &mut one, &mut far);
    assert!(rounds > 5, "{rounds} rounds in a minute");
    dead.end("apiserver");
    // Else the controller manager finds that no node was heard of for a minute.
    let unheard = NODES.map(heard_of);
    eventually("both nodes are heard of again", || {
        let heard = NODES.map(heard_of);
        heard.iter().zip(&unheard).all(|(now, before)| now != before).then_some(())
    });
    dead.end("controller-manager");
    round(&mut one, &mut far);
    exchange.apply(&gated(1));
    eventually("pods that ask are refused while the operator is away", || {
        condition(&exchange.get("replicaset/gated"), "ReplicaFailure").is("True").then_some(())
    });
    scale_operator(2);
    let pod = eventually("their controller tries again", || exchange.pods("app=gated").pop());
    assert_eq!(pod["spec"]["initContainers"][0]["name"], SIDECAR);
    exchange.kubectl(&["delete", "replicaset/gated"]);
    exchange.await_peers(2);
    assert_eq!((identities(&exchange, &[&one, &far]), readiness(&[&one, &far])), before);
    let mut new = Pod::start(&exchange, "new", &PodOptions::on("node2"));
    exchange.await_peers(3);
    give(&mut one, &mut new, 5001);
}

#[test]
fn nothing_is_written_to_the_api_server_for_a_tensor() {
    let exchange = Exchange::new();
    let mut one = Pod::start(&exchange, "one", &PodOptions::on("node1"));
    let mut far = Pod::start(&exchange, "far", &PodOptions::on("node2"));
    exchange.await_peers(2);
    for pod in [&one, &far] {
        exchange.wait_for("Ready", &format!("pod/{}", pod.name()));
    }
    // What is said of a peer that has just come is still being said, and peers of an earlier test are still being deleted.
    eventually("twenty rounds go by without a write", || {
        let before = writes_to_peers();
        for _ in 0..20 {
            round(&mut one, &mut far);
        }
        (writes_to_peers() == before).then_some(())
    });
}

/// Calls that would change a peer, whether or not they changed something. A sidecar may write nothing else; another test
/// sees to that.
fn writes_to_peers() -> f64 {
    let text = metrics_of_the_api_server();
    let series = text.lines().filter(|line| {
        line.starts_with("apiserver_request_total{") && line.contains("resource=\"tensorpeers\"")
    });
    let writes = series.filter(|line| {
        !["GET", "LIST", "WATCH"].iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    });
    writes.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// Returns whether Kubernetes says that a pod is ready.
fn is_ready(pod: &Pod<'_>) -> bool {
    condition(&pod.object(), "Ready").is("True")
}

/// The kubelets are away when the API server comes back, so the controller manager takes both nodes for lost and their pods
/// for unready; without that it is a race which of the two it hears of first. The kubelets put the pods right. That is what
/// Kubernetes does, to any pod. Of us it must change nothing, before, meanwhile and after.
#[test]
fn the_exchange_goes_on_without_the_api_server_alone_and_while_kubernetes_takes_its_pods_for_unready() {
    let exchange = Exchange::new();
    let mut one = Pod::start(&exchange, "one", &PodOptions::on("node1"));
    let mut far = Pod::start(&exchange, "far", &PodOptions::on("node2"));
    exchange.await_peers(2);
    for pod in [&one, &far] {
        exchange.wait_for("Ready", &format!("pod/{}", pod.name()));
    }
    let before = identities(&exchange, &[&one, &far]);

    let mut dead = Outage::of(&["apiserver"]);
    rounds_for(Duration::from_secs(30), &mut one, &mut far);
    dead.take(&["node1.kubelet", "node2.kubelet"]);
    dead.end("apiserver");
    eventually("both pods are taken for unready", || {
        round(&mut one, &mut far);
        (![&one, &far].into_iter().any(is_ready)).then_some(())
    });
    dead.end("node1.kubelet");
    dead.end("node2.kubelet");
    eventually("both pods are ready again", || {
        round(&mut one, &mut far);
        [&one, &far].into_iter().all(is_ready).then_some(())
    });
    await_operator();
    exchange.await_peers(2);
    round(&mut one, &mut far);
    assert_eq!(identities(&exchange, &[&one, &far]), before);
    let restarts = [&one, &far].map(|pod| (pod.restarts("main"), pod.restarts(SIDECAR)));
    assert_eq!(restarts, [(0, 0); 2]);
}

/// Pods that ask for a sidecar and are never put on a node: all that the operator has to do, and nothing that costs.
pub(super) fn gated(replicas: usize) -> String {
    format!(
        "apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: gated}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: gated}}}}
  template:
    metadata:
      labels: {{app: gated}}
      annotations: {{tensorlane.dev/inject: enabled, tensorlane.dev/arena-size: 16Mi}}
    spec:
      schedulingGates: [{{name: tests.tensorlane.dev/never}}]
      containers: [{{name: main, image: none}}]
"
    )
}

fn await_made(exchange: &Exchange, count: usize) {
    eventually(&format!("{count} peers are there"), || (exchange.peers().len() == count).then_some(()));
}

/// Makes what has new peers, and does something as soon as there is one: a watch tells it before anybody could look again.
fn at_the_first_new_peer(exchange: &Exchange, make: impl FnOnce(), act: impl FnOnce()) {
    let list = ["get", "txp", "--output=name"];
    let known = exchange.kubectl(&list);
    let timeout = format!("--request-timeout={}s", PATIENCE.as_secs());
    let mut watch = xtask();
    watch.args(["cluster", "kubectl", "--namespace", exchange.name()]).args(list).args(["--watch", &timeout]);
    let mut watch = watch.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("xtask is built");
    let lines = BufReader::new(watch.stdout.take().expect("it is a pipe")).lines();
    make();
    let new = lines.map_while(Result::ok).find(|name| !known.lines().any(|known| known == name));
    act();
    // What it has started ends at its next line, or with its timeout.
    watch.kill().and_then(|()| watch.wait()).expect("it is a child");
    assert!(new.is_some(), "there was no new peer within {PATIENCE:?}");
}

/// The name of the pod of the replica that leads, and the first process of its container. The lease names one that was killed a
/// moment ago, too, and so does Kubernetes.
fn leader() -> (String, u32) {
    eventually("a replica leads", || {
        let holder = holder()?;
        let pods = items(&reads(&["kubectl", "--namespace", SYSTEM, "get", "pods", "--output=json"]));
        let pod = pods.into_iter().find(|pod| pod["metadata"]["name"] == holder.as_str())?;
        let operator = container_status(&pod, "operator");
        let process = first_process(&operator).filter(|_| operator["ready"] == true)?;
        Some((holder, process))
    })
}

#[test]
fn an_operator_that_is_killed_in_the_middle_of_its_work_is_followed_by_one_that_ends_it() {
    const STEP: usize = 30;
    const STEPS: usize = 4;
    let exchange = Exchange::new();
    let mut in_the_middle = false;
    let mut wanted = 0;
    while !in_the_middle && wanted < STEP * STEPS {
        wanted += STEP;
        let process = Orphan::adopt(leader().1);
        at_the_first_new_peer(&exchange, || exchange.apply(&gated(wanted)), || process.kill());
        in_the_middle = exchange.peers().len() < wanted;
        await_made(&exchange, wanted);
    }
    assert!(in_the_middle, "the operator is always faster than this test");
    await_operator();
    let pods = exchange.pods("app=gated");
    for peer in exchange.peers() {
        let pod = pods.iter().find(|pod| pod["metadata"]["name"] == peer["metadata"]["name"]).unwrap();
        assert_eq!(peer["spec"]["podUID"], pod["metadata"]["uid"]);
    }
    eventually("the exchange counts them", || {
        (exchange.get("tex/default")["status"]["peers"] == wanted).then_some(())
    });
}

/// The replica that has the lease.
fn holder() -> Option<String> {
    let read = "--output=jsonpath={.spec.holderIdentity}";
    let holder = reads(&["kubectl", "--namespace", SYSTEM, "get", "lease", "tensorlane-operator", read]);
    (!holder.is_empty()).then_some(holder)
}

/// Number of the replicas that answer say twice that they lead, while each of the others is asked: one that gives the
/// lease to another between two questions does not count.
fn leaders() -> usize {
    let replicas = pods(SYSTEM, "app.kubernetes.io/component=operator");
    let leads = |pod: &String| {
        let text = try_metrics(SYSTEM, pod);
        text.is_some_and(|text| metric(&text, "tensorlane_operator_leader", &[]) == 1.0)
    };
    let [first, second] = [(); 2].map(|()| replicas.iter().map(leads).collect::<Vec<_>>());
    first.iter().zip(&second).filter(|(first, second)| **first && **second).count()
}

#[test]
fn a_leader_that_goes_for_good_is_followed_by_the_other_replica_and_never_do_two_lead() {
    let exchange = Exchange::new();
    await_operator();
    eventually("replicas of earlier revisions are gone", || {
        let component = "--selector=app.kubernetes.io/component=operator";
        let all =
            items(&reads(&["kubectl", "--namespace", SYSTEM, "get", "pods", component, "--output=json"]));
        all.iter().all(|pod| pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
    });
    let (first, _) = leader();
    exchange.apply(&gated(1));
    await_made(&exchange, 1);
    let words = ["kubectl", "--namespace", SYSTEM, "delete", "pod", &first, "--force", "--grace-period=0"];
    succeeds(&words);
    let second = eventually("another replica leads", || holder().filter(|name| *name != first));
    await_operator();
    exchange.apply(&gated(2));
    await_made(&exchange, 2);
    // A leader that the machine let stand still steps back, and one of the two leads again.
    let gave_back = || {
        let said = reads(&["kubectl", "--namespace", SYSTEM, "logs", &second]);
        said.contains("this replica leads no more")
    };
    assert!(holder().as_ref() == Some(&second) || gave_back(), "the one that came last waits for its turn");
    for _ in 0..3 {
        let leading = leaders();
        assert!(leading == 1 || (leading == 0 && gave_back()), "{leading} replicas lead");
    }
    eventually("one leads", || (leaders() == 1).then_some(()));
}
