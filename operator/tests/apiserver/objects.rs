//! Objects as JSON, applied and made.

use std::time::{Duration, Instant};

use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};
use kube::{Api, Client};
use serde_json::{Value, json};
use tensorlane_operator::manifests::{Installation, objects};

/// The API for an object like this one.
pub(crate) fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let text = |key: &str| object[key].as_str().unwrap().to_owned();
    let types = TypeMeta { api_version: text("apiVersion"), kind: text("kind") };
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Applies an object server-side.
pub(crate) async fn apply(client: &Client, object: &Value) -> Result<DynamicObject, String> {
    let parameters = PatchParams::apply("test").force();
    let applied = api(client, object).patch(name(object), &parameters, &Patch::Apply(object)).await;
    applied.map_err(|error| error.to_string())
}

/// Makes an object, for good or as a trial.
pub(crate) async fn create(client: &Client, object: &Value, dry_run: bool) -> Result<DynamicObject, String> {
    let parameters = PostParams { dry_run, ..PostParams::default() };
    let new = serde_json::from_value(object.clone()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let made = api(client, object).create(&parameters, &new).await.map_err(|error| error.to_string());
        match made {
            // Nothing was made; whoever makes pods tries again.
            Err(refused) if is_late(&refused) && Instant::now() < deadline => {}
            made => return made,
        }
    }
}

/// True if a webhook did not answer within its five seconds.
fn is_late(refused: &str) -> bool {
    refused.contains("failed calling webhook") && refused.contains("deadline exceeded")
}

/// Waits until the webhook is called for such pods, and injects: until the API server knows of it, they are taken without a sidecar.
pub(crate) async fn injects(client: &Client, asking: &Value) {
    until("the webhook answers", || async {
        let tried = create(client, asking, true).await.ok()?;
        (tried.data["spec"]["initContainers"][0]["name"] == "tensorlane").then_some(())
    })
    .await;
}

/// Waits until the API server lets the accounts of a namespace do this, after a binding was made: group, resource and verb, there or
/// everywhere. It is asked by an administrator, so that none of them is seen to have tried.
pub(crate) async fn let_do(
    admin: &Client,
    accounts_of: &str,
    (group, resource, verb): (&str, &str, &str),
    namespace: Option<&str>,
) {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
        "spec": {
            "user": format!("system:serviceaccount:{accounts_of}:tensorlane-operator"),
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{accounts_of}")],
            "resourceAttributes": {"group": group, "resource": resource, "verb": verb, "namespace": namespace},
        },
    });
    until(&format!("accounts of {accounts_of} may {verb} {resource}"), || async {
        let told = create(admin, &review, false).await.unwrap();
        (told.data["status"]["allowed"] == true).then_some(())
    })
    .await;
}

/// Makes an object at this path; gives what is warned of, which the typed client does not show.
pub(crate) async fn warnings(client: &Client, path: &str, object: &Value) -> Result<Vec<String>, String> {
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(kube::client::Body::from(serde_json::to_vec(object).unwrap()))
        .unwrap();
    let reply = client.send(request).await.unwrap();
    if !reply.status().is_success() {
        return Err(reply.status().to_string());
    }
    let all = reply.headers().get_all("warning").iter();
    Ok(all.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect())
}

/// The object as it is there.
pub(crate) async fn get(client: &Client, object: &Value) -> Option<Value> {
    let found = api(client, object).get_opt(name(object)).await.unwrap()?;
    Some(serde_json::to_value(found).unwrap())
}

/// Makes a namespace with these labels, and the accounts of its pods, which nobody else makes here.
pub(crate) async fn make_namespace(client: &Client, name: &str, labels: &Value) {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    apply(client, &namespace).await.unwrap();
    for account in ["default", "trainer"] {
        let metadata = json!({"name": account, "namespace": name});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
        apply(client, &account).await.unwrap();
    }
}

/// The longest that anything may take to be so.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, is_so: impl FnMut() -> F) -> T {
    until_by(Instant::now() + PATIENCE, what, is_so).await
}

/// Waits until something is so, until then at the latest.
pub(crate) async fn until_by<T, F: Future<Output = Option<T>>>(
    deadline: Instant,
    what: &str,
    mut is_so: impl FnMut() -> F,
) -> T {
    loop {
        if let Some(found) = is_so().await {
            return found;
        }
        assert!(Instant::now() < deadline, "it takes too long until {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The definitions of our objects, established.
pub(crate) async fn install_definitions(client: &Client) {
    for file in ["tensorexchanges", "tensorpeers"] {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../manifests/crds/{file}.yaml"));
        let crd: Value = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        apply(client, &crd).await.unwrap();
        establish(client, &crd).await;
    }
}

/// Waits until objects of a definition can be made.
pub(crate) async fn establish(client: &Client, crd: &Value) {
    until("the definition is established", || async {
        let conditions = get(client, crd).await?["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True").then_some(())
    })
    .await;
}

/// The objects of the installation of this kind.
pub(crate) fn installed(kinds: &[&str]) -> Vec<Value> {
    let all = objects(&Installation::default());
    all.into_iter().filter(|object| kinds.contains(&object["kind"].as_str().unwrap())).collect()
}
