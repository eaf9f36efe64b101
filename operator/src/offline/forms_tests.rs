//! Forms of manifests beside the usual one: lists of `kubectl get --raw`, JSON, kinds that nobody knows here, our own
//! objects.

use super::tests::injected;
use super::*;

const POD: &str = "{\"metadata\": {\"name\": \"a\", \"annotations\": {\"tensorlane.dev/inject\": \"enabled\"}}, \
                   \"spec\": {\"containers\": [{\"name\": \"main\", \"image\": \"i\"}]}}";

fn told(yaml: &str) -> Vec<String> {
    injected(yaml).notes.into_iter().map(|note| format!("{}: {}", note.object, note.text)).collect()
}

#[test]
fn items_without_a_kind_are_what_their_list_says() {
    let pods = injected(&format!("kind: PodList\napiVersion: v1\nitems: [{POD}]\n"));
    assert_eq!(pods.notes[0].object, "Pod ml/a");
    assert_eq!(pods.yaml.matches("name: tensorlane\n").count(), 1, "{}", pods.yaml);
    let template = format!("{{metadata: {{name: d}}, spec: {{template: {POD}}}}}");
    let deployments = injected(&format!("kind: DeploymentList\napiVersion: apps/v1\nitems: [{template}]\n"));
    assert_eq!(deployments.notes[0].object, "Deployment ml/d");
    let read = reading::read(&deployments.yaml).map_err(|fault| fault.text).unwrap().value;
    let item = |key: &str| read.pointer(&format!("/items/0/{key}")).unwrap().clone();
    assert_eq!((item("kind"), item("apiVersion")), ("Deployment".into(), "apps/v1".into()));
    // Exchanges of a list are facts, too.
    let exchanges = "kind: TensorExchangeList\napiVersion: tensorlane.dev/v1alpha1\nitems: [{metadata: {name: big}, spec: {arena: {size: 4Gi}}}]\n";
    let asks = POD.replace(
        "tensorlane.dev/inject\": \"enabled",
        "tensorlane.dev/inject\": \"enabled\", \"tensorlane.dev/exchange\": \"big",
    );
    let both = injected(&format!("{exchanges}---\nkind: PodList\napiVersion: v1\nitems: [{asks}]\n"));
    assert_eq!(both.notes[0].text, "injected, in exchange big");
    let silent = "kind: PodList\napiVersion: v1\nitems: [{metadata: {name: a}, spec: {containers: [{name: m}]}}] # kept\n";
    assert_eq!(injected(silent).yaml, silent);
    let other = "kind: AllowList\napiVersion: example.org/v1\nitems: [10.0.0.0/8, {a: b}]\n";
    let done = injected(other);
    assert_eq!((done.yaml.as_str(), done.notes), (other, Vec::new()));
    let refused =
        inject("kind: List\nitems: [{metadata: {name: a}}]\n", "ml", &Defaults::default()).unwrap_err();
    assert!(matches!(refused, OfflineError::NoItem { number: 1, item: 0 }), "{refused}");
}

#[test]
fn json_is_read_with_its_own_escapes() {
    let pod = POD.replacen('{', r#"{"kind": "Pod", "odd": "\ud83d\ude00 \/ \u0041", "#, 1);
    let done = injected(&pod);
    assert_eq!(done.notes[0].text, "injected, in exchange default");
    let read = reading::read(&done.yaml).map_err(|fault| fault.text).unwrap().value;
    assert_eq!(read["odd"], "\u{1F600} / A");
    let escaped = r#"{"kind": "Secret", "stringData": {"a": "\ud83d\ude00"}}"#;
    assert_eq!(injected(escaped).yaml, escaped);
    // What only begins like JSON is YAML.
    let yaml = "{kind: Secret, mode: 0400} # kept\n";
    assert_eq!(reading::read(yaml).map_err(|fault| fault.text).unwrap().value["mode"], 256);
}

#[test]
fn json_documents_one_a_line_are_documents_and_stay_json() {
    let secret = r#"{"kind": "Secret", "stringData": {"a": "\ud83d\ude00"}}"#;
    let pod = POD.replacen('{', r#"{"kind": "Pod", "#, 1);
    let lines = format!("{secret}\n{pod}\n\n{secret}\n");
    let done = injected(&lines);
    assert_eq!(done.notes.len(), 1, "{:?}", done.notes);
    let out: Vec<&str> = done.yaml.lines().collect();
    assert_eq!((out.len(), out[0], out[2], out[3]), (4, secret, "", secret), "{}", done.yaml);
    let read: Value = serde_json::from_str(out[1]).unwrap();
    assert_eq!(read.pointer("/spec/initContainers/0/name").unwrap(), "tensorlane");
    // A second time nothing changes, so the text stays.
    assert_eq!(injected(&done.yaml).yaml, done.yaml);
    let silent = format!("{secret}{secret}\n---\n{secret}");
    assert_eq!(injected(&silent).yaml, silent);
    let wrong = inject(&format!("{secret}\n{{\"a\": 1}}\n"), "ml", &Defaults::default()).unwrap_err();
    assert!(matches!(wrong, OfflineError::NoObject(2)), "{wrong}");
}

/// Objects of others that carry annotations to their pods by ways of their own.
#[test]
fn objects_of_unknown_kinds_with_annotations_of_ours_are_named() {
    let ours = "{tensorlane.dev/inject: enabled}";
    for (version, kind, body, place) in [
        (
            "serving.knative.dev/v1",
            "Service",
            format!(
                "spec: {{template: {{metadata: {{annotations: {ours}}}, spec: {{containers: [{{image: i}}]}}}}}}"
            ),
            "spec.template.metadata.annotations",
        ),
        (
            "argoproj.io/v1alpha1",
            "Workflow",
            format!(
                "spec: {{templates: [{{name: a, metadata: {{annotations: {ours}}}, container: {{image: i}}}}]}}"
            ),
            "spec.templates[0].metadata.annotations",
        ),
        (
            "sparkoperator.k8s.io/v1beta2",
            "SparkApplication",
            format!("spec: {{driver: {{annotations: {ours}}}}}"),
            "spec.driver.annotations",
        ),
        (
            "tekton.dev/v1",
            "TaskRun",
            format!("metadata: {{name: x, annotations: {ours}}}"),
            "metadata.annotations",
        ),
        ("example.org/v1", "Chart", format!("spec: {{podAnnotations: {ours}}}"), "spec.podAnnotations"),
    ] {
        let yaml = format!("apiVersion: {version}\nkind: {kind}\n{body}\n");
        let notes = told(&yaml);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains(&format!("annotations of tensorlane.dev/ at {place}: ")), "{notes:?}");
        assert_eq!(injected(&yaml).yaml, yaml);
    }
    let slip = "apiVersion: tekton.dev/v1\nkind: TaskRun\nmetadata: {annotations: {tensorlane.dev/injct: enabled}}\n";
    assert!(told(slip)[1].contains("did you mean tensorlane.dev/inject?"), "{:?}", told(slip));
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: n, annotations: {ours}}}\n");
    assert!(told(&namespace)[0].contains("under metadata.labels"), "{:?}", told(&namespace));
    let labels = "apiVersion: v1\nkind: Service\nspec: {selector: {tensorlane.dev/exchange: default}}\n";
    assert_eq!(told(labels), [""; 0]);
}

#[test]
fn fields_of_an_exchange_that_are_not_known_are_named() {
    let exchange = |more: &str| {
        format!(
            "apiVersion: tensorlane.dev/v1alpha1\nkind: TensorExchange\nmetadata: {{name: e, annotations: {{a: b}}}}\n{more}\n"
        )
    };
    let wrong = exchange("spec: {securty: {}, arena: {size: 4Gi, sise: 1Gi}}\nspc: {}");
    assert_eq!(
        told(&wrong),
        [
            "TensorExchange ml/e: the field spc is not known and has no effect; did you mean spec?",
            "TensorExchange ml/e: the field spec.arena.sise is not known and has no effect; did you mean size?",
            "TensorExchange ml/e: the field spec.securty is not known and has no effect; did you mean security?",
        ]
    );
    let right = exchange(
        "spec: {arena: {size: 4Gi}, transports: [shm], inject: {gpuPods: true, selector: {matchLabels: {any: thing}}}}\nstatus: {}",
    );
    assert_eq!(told(&right), [""; 0]);
}
