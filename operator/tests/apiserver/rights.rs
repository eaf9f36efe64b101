//! Rights of a pod's token in its namespace and in others: what the role of peers says, and nothing more.

use std::collections::BTreeSet;

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tensorlane_operator::manifests::PEER_RULES;

use crate::objects::{api, create};
use crate::permissions::{Permission, granted_by, own};
use crate::running::{exchange, peer};

pub(crate) async fn a_pod_may_do_nothing_more(of_pod: &Client) {
    // Where there is no exchange: what every account may do, such as to ask what it may do.
    let everywhere = allowed(of_pod, "tensorlane-system").await;
    assert!(everywhere.iter().all(|(_, resource, verb)| is_a_question(resource, verb)), "{everywhere:#?}");
    let own_namespace = allowed(of_pod, "ml").await;
    let more: BTreeSet<Permission> = own_namespace.difference(&everywhere).cloned().collect();
    let granted: BTreeSet<Permission> = PEER_RULES.iter().flat_map(granted_by).collect();
    assert_eq!(more, granted, "in the namespace of the pod");
    requests_for_more_are_refused(of_pod).await;
}

/// As `kubectl auth can-i --list`.
async fn allowed(client: &Client, namespace: &str) -> BTreeSet<Permission> {
    let asked = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "metadata": {"name": ""},
        "spec": {"namespace": namespace},
    });
    let answer = create(client, &asked, false).await.unwrap().data["status"].clone();
    assert_eq!(answer["incomplete"], false, "{answer}");
    let mut all = BTreeSet::new();
    for rule in answer["resourceRules"].as_array().unwrap() {
        let words = |key: &str| {
            let list = rule[key].as_array().unwrap().iter();
            list.map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert!(rule["resourceNames"].as_array().is_none_or(Vec::is_empty), "{rule}");
        for (group, resource) in words("apiGroups")
            .iter()
            .flat_map(|group| words("resources").into_iter().map(move |resource| (group.clone(), resource)))
        {
            all.extend(words("verbs").iter().map(|verb| own(&group, &resource, verb)));
        }
    }
    all
}

fn is_a_question(resource: &str, verb: &str) -> bool {
    verb == "create" && resource.starts_with("selfsubject")
}

/// Requests for more than the rights are refused.
async fn requests_for_more_are_refused(of_pod: &Client) {
    let elsewhere = |mut object: Value| {
        object["metadata"]["namespace"] = json!("tensorlane-system");
        object
    };
    for object in [peer("more"), exchange(), elsewhere(peer("more")), elsewhere(exchange())] {
        refused("create", create(of_pod, &object, false).await);
    }
    let spec = json!({"spec": {"podUID": "mine"}});
    let status = json!({"status": {"addresses": ["10.0.0.1:9421"]}});
    let parameters = PatchParams::default();
    for (object, name) in [(peer("p"), "p"), (exchange(), "default")] {
        let objects = api(of_pod, &object);
        refused("patch", objects.patch(name, &parameters, &Patch::Merge(&spec)).await);
        refused("delete", objects.delete(name, &DeleteParams::default()).await);
        let all = objects.delete_collection(&DeleteParams::default(), &Default::default()).await;
        refused("deletecollection", all);
    }
    let exchanges = api(of_pod, &exchange());
    refused("patch", exchanges.patch_status("default", &parameters, &Patch::Merge(&status)).await);
    refused("list", exchanges.list(&Default::default()).await);
    let others = api(of_pod, &elsewhere(peer("p")));
    refused("patch", others.patch_status("p", &parameters, &Patch::Merge(&status)).await);
    refused("list", others.list(&Default::default()).await);
}

fn refused<T, E: ToString>(verb: &str, done: Result<T, E>) {
    let Err(error) = done else { panic!("{verb} is not refused") };
    let error = error.to_string();
    assert!(error.contains(&format!("cannot {verb} resource")), "{error}");
}
