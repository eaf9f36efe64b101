//! Examples of the pages about queues, scalers and meshes, by the definitions of whoever reads them. Nobody of those runs
//! here.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::foreign::{apply_definitions, folder, misspelt_is_refused, tries};
use crate::objects::make_namespace;
use crate::server::Server;

const SCALERS: &str = include_str!("../../../docs/scalers.md");
const MESHES: &str = include_str!("../../../docs/meshes.md");

/// Objects in the blocks of YAML of a page. Every block is a whole object.
fn examples(page: &str) -> Vec<Value> {
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").expect("it ends").0);
    let read =
        |block| serde_yaml::from_str::<Value>(block).unwrap_or_else(|error| panic!("{error}: {block}"));
    blocks.map(read).collect()
}

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn objects_in_the_pages_about_scalers_and_meshes_are_as_their_definitions_have_them() {
    let server = Server::start().await;
    let admin = server.admin();
    make_namespace(&admin, "ml", &json!({})).await;
    apply_definitions(&admin, &["kueue", "vertical-pod-autoscaler"]).await;
    let mut kinds = BTreeSet::new();
    for mut object in [examples(SCALERS), examples(MESHES)].concat() {
        let kind = object["kind"].as_str().unwrap_or_else(|| panic!("no whole object: {object}")).to_owned();
        if !["RuntimeClass", "ClusterQueue"].contains(&kind.as_str()) {
            object["metadata"]["namespace"] = json!("ml");
        }
        tries(&admin, &object).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        if object.get("spec").is_some() {
            misspelt_is_refused(&admin, &object).await;
        }
        kinds.insert(kind);
    }
    let expected = ["Deployment", "HorizontalPodAutoscaler", "RuntimeClass", "VerticalPodAutoscaler"];
    assert_eq!(kinds, expected.map(str::to_owned).into());
}

/// Names of Istio's annotations and labels, where they are read, and that its webhook is not called again: the page says what its
/// sources say.
#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn words_of_istio_in_the_page_stand_in_its_sources() {
    let read = |name: &str| {
        let path = folder().join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let (annotations, labels) = (read("istio-api/annotations.gen.go"), read("istio-api/labels.gen.go"));
    let template = read("istio/injection-template.yaml");
    let is_named = |all: &str, name: &str| all.contains(&format!("Name:          \"{name}\","));
    let mut told = BTreeSet::new();
    let words = MESHES.split(|c: char| !c.is_ascii_alphanumeric() && !"./-".contains(c));
    for word in words.filter(|word| word.contains("istio.io/")) {
        assert!(is_named(&annotations, word) || is_named(&labels, word), "{word}");
        if word.starts_with("traffic.sidecar.istio.io/") {
            assert!(template.contains(&format!("annotation .ObjectMeta `{word}`")), "{word} is not read");
        }
        told.insert(word);
    }
    assert!(told.len() >= 4, "{told:?}");
    let webhook = read("istio/mutatingwebhook.yaml");
    assert!(webhook.contains("name: istio-sidecar-injector") && MESHES.contains("`istio-sidecar-injector`"));
    let values = read("istio/values.yaml");
    let said = values.lines().find_map(|line| line.trim().strip_prefix("reinvocationPolicy: "));
    assert!(said == Some("Never") && MESHES.contains("`reinvocationPolicy: Never`"), "{said:?}");
}
