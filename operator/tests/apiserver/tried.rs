//! Pods that are tried (`--dry-run=server`) and never made: the webhook answers, and nothing is left of them.

use futures_util::StreamExt;
use futures_util::stream::iter;
use kube::Client;
use serde_json::json;

use crate::objects::{api, create};
use crate::running::pod;

/// Pods that are tried.
const FEW: usize = 200;

/// Pods that are tried with the variable of the environment [`LARGE`].
const MANY: usize = 10_000;
const LARGE: &str = "TENSORLANE_TEST_MANY_DRY_RUNS";

/// Pods that are tried at once.
const AT_ONCE: usize = 16;

/// Name of the Job that they would belong to.
const OWNER: &str = "tried";

/// Tries pods that ask, of which every other one is refused, in a namespace where no pod was made.
pub(crate) async fn pods_that_are_tried_leave_no_peer_and_no_exchange(admin: &Client) {
    let runs = if std::env::var_os(LARGE).is_some() { MANY } else { FEW };
    let owner =
        json!({"apiVersion": "batch/v1", "kind": "Job", "name": OWNER, "uid": "u-3", "controller": true});
    let tried = |number: usize| {
        let admin = admin.clone();
        let is_wrong = number % 2 == 1;
        let size = if is_wrong { "2GB" } else { "2Gi" };
        let asks = json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": size});
        let mut pod = pod(&format!("tried-{number}"), &asks);
        pod["metadata"]["ownerReferences"] = json!([owner]);
        async move { (is_wrong, create(&admin, &pod, true).await) }
    };
    let mut outcomes = iter(0..runs).map(tried).buffer_unordered(AT_ONCE);
    while let Some((is_wrong, outcome)) = outcomes.next().await {
        match outcome {
            Ok(made) => {
                assert!(!is_wrong && made.data["spec"]["initContainers"][0]["name"] == "tensorlane");
            }
            Err(refused) => assert!(is_wrong && refused.contains("such as 2Gi"), "{refused}"),
        }
    }
    for kind in ["TensorPeer", "TensorExchange"] {
        let one =
            json!({"apiVersion": "tensorlane.dev/v1alpha1", "kind": kind, "metadata": {"namespace": "ml"}});
        let all = api(admin, &one).list(&Default::default()).await.unwrap();
        assert!(all.items.is_empty(), "{runs} trials left {:?}", all.items);
    }
}

/// Looks for Events of what was tried, once those of pods that came later are there.
pub(crate) async fn what_was_tried_has_no_event(admin: &Client) {
    let events = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"namespace": "ml"}});
    let all = api(admin, &events).list(&Default::default()).await.unwrap();
    let of_a_trial = all.items.iter().find(|event| event.data["regarding"]["name"] == OWNER);
    assert!(!all.items.is_empty() && of_a_trial.is_none(), "{of_a_trial:?}");
}
