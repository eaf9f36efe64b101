//! Manifests in, manifests out.

use super::*;

pub(super) fn injected(yaml: &str) -> Injected {
    inject(yaml, "ml", &Defaults::default()).unwrap()
}

const TEMPLATE: &str =
    "{metadata: {annotations: {tensorlane.dev/inject: enabled}}, spec: {containers: [{name: a}]}}";

#[test]
fn every_kind_that_makes_pods_gets_its_template_injected() {
    for kind in ["Deployment", "StatefulSet", "DaemonSet", "Job"] {
        let done =
            injected(&format!("kind: {kind}\nmetadata: {{name: x}}\nspec: {{template: {TEMPLATE}}}\n"));
        assert!(done.yaml.contains("name: tensorlane\n"), "{kind}: {}", done.yaml);
        assert_eq!(done.notes[0].object, format!("{kind} ml/x"));
    }
    let cron = format!("kind: CronJob\nspec: {{jobTemplate: {{spec: {{template: {TEMPLATE}}}}}}}\n");
    assert!(injected(&cron).yaml.contains("name: tensorlane\n"));
    let list = format!("kind: List\nitems: [{{kind: Job, spec: {{template: {TEMPLATE}}}}}]\n");
    assert!(injected(&list).yaml.contains("name: tensorlane\n"));
}

#[test]
fn a_volume_that_a_stateful_set_claims_for_its_pods_is_one_of_them() {
    let template = TEMPLATE.replace("enabled}", "enabled, tensorlane.dev/sets: data}");
    let done = injected(&format!(
        "kind: StatefulSet\nspec: {{template: {template}, volumeClaimTemplates: [{{metadata: {{name: data}}}}]}}\n"
    ));
    assert!(done.yaml.contains("mountPath: /var/lib/tensorlane-sets"), "{}\n{:?}", done.yaml, done.notes);
    let other = injected(&format!("kind: StatefulSet\nspec: {{template: {template}}}\n"));
    assert!(
        other.notes[0].denied && other.notes[0].text.contains("the pod has no volume"),
        "{:?}",
        other.notes
    );
}

#[test]
fn what_makes_no_pods_passes_through() {
    let yaml = "apiVersion: v1\ndata:\n  a: b\nkind: ConfigMap\n";
    let done = injected(yaml);
    assert_eq!((done.yaml.as_str(), done.notes), (yaml, Vec::new()));
}

#[test]
fn objects_are_those_of_all_documents_and_lists_one_by_one() {
    let yaml = format!(
        "kind: ConfigMap\ndata: {{mode: 0400}}\n---\n# nothing\n---\nkind: List\nitems:\n- {{kind: Job, spec: {{template: {TEMPLATE}}}}}\n\
         - {{kind: SecretList, apiVersion: v1, items: [{{metadata: {{name: s}}}}]}}\n---\nkind: AllowList\nitems: [10.0.0.0/8]\n"
    );
    let objects = injected(&yaml).objects;
    let kinds: Vec<_> = objects.iter().map(kind).collect();
    assert_eq!(kinds, ["ConfigMap", "Job", "Secret", "AllowList"]);
    assert_eq!(objects[0].pointer("/data/mode"), Some(&Value::from(256)));
    assert_eq!(text(&objects[1], "/spec/template/spec/initContainers/0/name"), Some("tensorlane"));
    assert_eq!(text(&objects[2], "/apiVersion"), Some("v1"));
}

#[test]
fn namespaces_and_exchanges_of_the_stream_are_facts() {
    let yaml = "kind: Namespace\nmetadata: {name: ml, labels: {tensorlane.dev/inject: enabled}}\n---\n\
         kind: TensorExchange\nmetadata: {name: big}\nspec: {arena: {size: 4Gi}}\n---\n\
         kind: Pod\nmetadata: {name: p, annotations: {tensorlane.dev/exchange: big}}\nspec: {containers: [{name: a}]}\n---\n\
         kind: Deployment\nmetadata: {name: d, namespace: other}\nspec: {template: {spec: {containers: [{name: a}]}}}\n";
    let done = injected(yaml);
    let texts: Vec<_> = done.notes.iter().map(|note| note.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "injected, in exchange big",
            "not injected: neither the pod nor its namespace nor an exchange asks for a sidecar, as far as these manifests say"
        ]
    );
    assert!(done.yaml.contains("value: \"4Gi\""));
}

#[test]
fn a_pod_that_cannot_be_served_is_a_note_and_stays_as_it_was() {
    let done = injected(&format!(
        "kind: Job\nspec: {{template: {}}}\n",
        TEMPLATE.replace("[{name: a}]", "[{name: tensorlane}]")
    ));
    assert!(done.notes[0].denied && done.notes[0].text.contains("another one"), "{:?}", done.notes);
    assert!(!done.yaml.contains("initContainers"));
}

#[test]
fn an_exchange_that_is_not_among_the_manifests_may_be_in_the_cluster() {
    let template = TEMPLATE.replace("enabled}", "enabled, tensorlane.dev/exchange: training}");
    assert_ne!(template, TEMPLATE);
    let yaml = format!("kind: Job\nspec: {{template: {template}}}\n");
    let done = injected(&yaml);
    assert_eq!((done.yaml.as_str(), done.notes.len(), done.notes[0].denied), (yaml.as_str(), 1, false));
    assert!(
        done.notes[0].text.contains("TensorExchange training is not among these manifests"),
        "{:?}",
        done.notes
    );
    let other = "kind: TensorExchange\nmetadata: {name: trainer, namespace: ml}\nspec: {}\n";
    let other = injected(&format!("{yaml}---\n{other}"));
    assert!(other.notes[0].denied && other.notes[0].text.contains("trainer"), "{:?}", other.notes);
}

#[test]
fn nulls_are_what_an_api_server_takes_them_for() {
    let job = |metadata: &str| {
        format!(
            "kind: Job\nspec: {{template: {{metadata: {metadata}, spec: {{containers: [{{name: a}}], nodeSelector: {{a: }}}}}}}}\n"
        )
    };
    let done = injected(&job(
        "{annotations: {tensorlane.dev/inject: enabled, prometheus.io/path: }, labels: {app: }}",
    ));
    assert_eq!(done.notes[0].text, "injected, in exchange default");
    let read = reading::read(&done.yaml).map_err(|fault| fault.text).unwrap().value;
    let path = read.pointer("/spec/template/metadata/annotations/prometheus.io~1path");
    assert_eq!(path, Some(&Value::Null), "what is written stays as it was");
    let labelled = "kind: Namespace\nmetadata: {name: ml, labels: {tensorlane.dev/inject: enabled}}\n---\n";
    for metadata in ["", "{annotations: }"] {
        let done = injected(&format!("{labelled}{}", job(metadata)));
        assert_eq!(done.notes[0].text, "injected, in exchange default");
        let read = reading::read(done.yaml.split("---\n").nth(1).unwrap())
            .map_err(|fault| fault.text)
            .unwrap()
            .value;
        assert!(read.pointer("/spec/template/metadata/annotations").unwrap().is_object(), "{read}");
    }
}

/// JSON that `sigs.k8s.io/yaml` 1.6.0 printed for documents in odd forms that people write.
const FORMS_READ_BY_KUBECTL: &[(&str, &str)] = &[
    ("command: [\n  \"sh\", \"-c\"\n]\n", r#"{"command":["sh","-c"]}"#),
    ("x:\n  labels: {\n    \"a\": \"b\"\n  }\n", r#"{"x":{"labels":{"a":"b"}}}"#),
    ("args: [a,\nb]\n", r#"{"args":["a","b"]}"#),
    ("a:\n    note: \"one\n    two\"\n", r#"{"a":{"note":"one two"}}"#),
    ("a:\n  note: 'one\n\n  two'\nb: 1\n", r#"{"a":{"note":"one\ntwo"},"b":1}"#),
    ("image:\tnginx\n", r#"{"image":"nginx"}"#),
    ("image: \"nginx\"#x\n", r#"{"image":"nginx"}"#),
    ("a: |\n  x\n  ", r#"{"a":"x\n"}"#),
    ("a: ! 1\n", r#"{"a":"1"}"#),
    ("a: &x 1\nb: &x 2\nc: *x\n", r#"{"a":1,"b":2,"c":2}"#),
    ("? a\n: b\n", r#"{"a":"b"}"#),
    // kubectl ends each line, the last one too.
    ("a: |\n  x", r#"{"a":"x\n"}"#),
    ("a: >-\n  x\n  y", r#"{"a":"x y"}"#),
    ("\u{ff41}: 1\n", "{\"\u{ff41}\":1}"),
    ("a: \"it\\'s\"\nb: 'it\\'\n", r#"{"a":"it's","b":"it\\"}"#),
    ("a: {emptyDir:}\n", r#"{"a":{"emptyDir:":null}}"#),
    ("a: [x:, \"\\'\", y:]\nb: \u{e000}\n", "{\"a\":[\"x:\",\"'\",\"y:\"],\"b\":\"\u{e000}\"}"),
    ("a: what?\nb: ?c\n", r#"{"a":"what?","b":"?c"}"#),
    ("%YAML 1.1\n---\na: 1\n", r#"{"a":1}"#),
];

#[test]
fn documents_are_read_in_every_form_that_kubectl_reads() {
    for (yaml, json) in FORMS_READ_BY_KUBECTL {
        let read = reading::read(yaml).map_err(|fault| fault.text);
        assert_eq!(read.map(|document| document.value.to_string()), Ok((*json).to_owned()), "{yaml}");
    }
    for (yaml, fault) in [
        ("a: &x [*x]\n", "stands inside of what it names"),
        ("a: *x\n", "names nothing before it"),
        ("a: @x\n", "cannot start any token"),
        ("\ta: 1\n", "cannot start any token"),
        ("a: \"b\\", "unexpected end of stream"),
        ("a: [!!str, b]\n", "right behind a tag such as !!str"),
        (
            "a: {emptyDir:{}}\n",
            "found unexpected ':' before a comma, brace or bracket: put a space behind it",
        ),
        ("a: \"x\\/y\"\n", "a slash stands without a backslash before it"),
        ("a: \"x\\q\"\n", "found unknown escape character"),
        ("a: [http://x/?y=z]\n", "no ? in a text within braces or brackets"),
        ("%YAML 1.2\n---\na: 1\n", "names another version than 1.1"),
    ] {
        let refused = reading::read(yaml).unwrap_err();
        assert!(refused.text.contains(fault) && refused.line <= 2, "{refused:?}");
    }
    let refused = reading::read("a: [1, 2]\nb: !!str c, d\ne: [!!str, f]\n").unwrap_err();
    assert_eq!(refused.line, 3, "{refused:?}");
    // A comment needs no space behind three dashes.
    assert_eq!(injected("kind: Secret\n---#x\nkind: Secret\n").objects.len(), 2);
}

/// A template that takes a line's end away makes them. As YAML each is a key, of an object without its version or kind.
#[test]
fn a_line_that_goes_on_behind_three_dashes_is_refused_as_kubectl_refuses_it() {
    let refused = |yaml: &str| inject(yaml, "ml", &Defaults::default()).unwrap_err().to_string();
    for (yaml, told) in [
        (
            "---apiVersion: v1\nkind: Secret\n",
            "line 1 begins with three dashes and goes on with \"apiVersion: v1\"",
        ),
        (
            "kind: Secret\n--- {kind: Secret}\n",
            "line 2 begins with three dashes and goes on with \"{kind: Secret}\"",
        ),
        ("kind: Secret\n----\nkind: Secret\n", "line 2 begins with three dashes and goes on with \"-\""),
    ] {
        assert!(refused(yaml).starts_with(told), "{}", refused(yaml));
    }
    let indented = "kind: Secret\nstringData:\n  a: |\n    ---x\n--- # next\nkind: Secret\n";
    assert_eq!(injected(indented).yaml, indented);
}

#[test]
fn what_is_no_yaml_is_named_by_its_document() {
    let error = inject("kind: Pod\n---\na: [\n", "ml", &Defaults::default()).unwrap_err().to_string();
    assert!(error.starts_with("document 2 is not YAML"), "{error}");
}

#[test]
fn what_is_no_manifest_is_refused_and_empty_documents_pass() {
    let refused = |yaml| inject(yaml, "ml", &Defaults::default()).unwrap_err();
    assert!(matches!(refused("kind: Job\n---\n# a page\nhello\n"), OfflineError::NoObject(2)));
    assert!(matches!(refused("{metadata: {name: a}}"), OfflineError::NoObject(1)));
    for nothing in ["", "---\n---\n", "# a comment\n"] {
        assert!(matches!(refused(nothing), OfflineError::Nothing), "{nothing:?}");
    }
    assert_eq!(injected("---\nkind: Secret\n---\n").yaml, "---\nkind: Secret\n---\n");
}

/// JSON that `sigs.k8s.io/yaml` 1.6.0, which kubectl reads manifests with, printed for `v: TEXT`.
const READ_BY_KUBECTL: &[(&str, &str)] = &[
    ("0400", "256"),
    ("0800", "800"),
    ("y", "true"),
    ("Y", "true"),
    ("yes", "true"),
    ("on", "true"),
    ("Off", "false"),
    ("1_000", "1000"),
    ("0o17", "15"),
    ("0b11", "3"),
    ("-0b11", "-3"),
    ("0x1F", "31"),
    ("+5", "5"),
    (".", "\".\""),
    (".5", "0.5"),
    (".1_0", "0.1"),
    ("1e3", "1000"),
    ("1.50", "1.5"),
    ("12:30", "\"12:30\""),
    ("2001-01-01", "\"2001-01-01\""),
    ("\"yes\"", "\"yes\""),
    ("'0400'", "\"0400\""),
    ("!!str 5", "\"5\""),
    ("!foo 5", "\"5\""),
    ("!!int \"5\"", "5"),
    ("~", "null"),
    ("Null", "null"),
    ("", "null"),
    ("1.", "1"),
    ("08", "8"),
    ("18446744073709551615", "18446744073709551615"),
    ("99999999999999999999", "1e20"),
    ("1e400", "\"1e400\""),
    ("!!binary aGk=", "\"hi\""),
    ("=", "\"=\""),
    ("<<", "\"<<\""),
    ("0x1p3", "\"0x1p3\""),
    ("1_", "1"),
    ("_1", "\"_1\""),
    ("{a: 1, a: 2}", "{\"a\":2}"),
    ("{1: a, yes: b, 1.5: c, 0x10: d}", "{\"1\":\"a\",\"1.5\":\"c\",\"16\":\"d\",\"true\":\"b\"}"),
    ("{<<: {a: 1, b: 1}, a: 2}", "{\"a\":2,\"b\":1}"),
    ("{a: 2, <<: {a: 1, b: 1}}", "{\"a\":1,\"b\":1}"),
    ("{<<: [{a: 1}, {a: 2, b: 3}]}", "{\"a\":1,\"b\":3}"),
    ("{\"<<\": {a: 1}}", "{\"<<\":{\"a\":1}}"),
    ("!!float 5", "5"),
    ("!!bool \"yes\"", "true"),
    ("TRUE", "true"),
    ("tRUE", "\"tRUE\""),
    ("+.5", "0.5"),
    ("-.5", "-0.5"),
    ("1e+3", "1000"),
    ("0.1e-7", "1e-8"),
    ("123456789012345678", "123456789012345678"),
    ("-0", "0"),
    ("00", "0"),
    ("0_7", "7"),
    ("1__0", "10"),
    ("9007199254740993", "9007199254740993"),
    ("1e21", "1e21"),
];

#[test]
fn scalars_are_read_as_kubectl_reads_them_and_written_so_that_it_reads_the_same() {
    for (text, json) in READ_BY_KUBECTL {
        let read = reading::read(&format!("v: {text}")).unwrap().value;
        let right: Value = serde_json::from_str(json).unwrap();
        assert_eq!(read["v"], right, "{text}");
        let written = writing::write(&read);
        assert_eq!(reading::read(&written).unwrap().value, read, "{text}: {written}");
    }
    for (refused, why) in [
        (".inf", ".inf has no form in JSON"),
        ("+.inf", "+.inf has no form in JSON"),
        ("{~: a}", "a key is null, a list or a map"),
        ("{? [a] : b}", "a key is null, a list or a map"),
        ("!!null x", "\"x\" is no !!null"),
        ("{<<: 5}", "<< takes a map"),
        ("&a [*a]", "the alias *a stands inside of what it names"),
    ] {
        let fault = reading::read(&format!("v: {refused}")).unwrap_err();
        assert!(fault.text.starts_with(why), "{refused}: {fault:?}");
        assert_eq!(fault.line, 1, "{refused}");
    }
}

/// Carriage returns end lines of YAML, and kubectl cuts no stream there.
#[test]
fn a_stream_of_another_version_of_yaml_is_refused_as_kubectl_refuses_it() {
    let stream = |version: &str| format!("%YAML {version}\r---\rkind: Secret\r");
    assert_eq!(injected(&stream("1.1")).yaml, stream("1.1"));
    let refused = inject(&stream("1.2"), "ml", &Defaults::default()).unwrap_err().to_string();
    assert!(refused.contains("names another version than 1.1"), "{refused}");
}

#[test]
fn forms_that_the_parser_does_not_know_are_spelled_anew_so_many_times() {
    let quotes = |count: usize| reading::read(&format!("a: \"{}\"\n", "\\'".repeat(count)));
    let read = quotes(dialect::RESPELLED_MAX).map_err(|fault| fault.text).unwrap().value;
    assert_eq!(read["a"], "'".repeat(dialect::RESPELLED_MAX));
    let refused = quotes(dialect::RESPELLED_MAX + 1).unwrap_err();
    assert!(refused.text.contains("unknown escape character"), "{refused:?}");
}

#[test]
fn aliases_that_grow_without_bound_and_levels_without_end_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let alias = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("a{level}: &a{level} [{alias}]\n");
    }
    assert!(reading::read(&bomb).unwrap_err().text.contains("aliases"));
    let deep = format!("a: {}", "[".repeat(100_000));
    assert!(reading::read(&deep).is_err());
}

proptest::proptest! {
    #[test]
    fn any_value_that_is_written_is_read_again_the_same(value in value()) {
        let written = writing::write(&value);
        let read = reading::read(&written).map_err(|fault| format!("{fault:?}"));
        proptest::prop_assert_eq!(read.map(|document| document.value), Ok(value), "{}", written);
    }

    /// Compares what kubectl reads of the output with what it reads of the input, and the plan: nothing else, whatever is in it.
    #[test]
    fn an_injected_manifest_differs_by_the_plan_alone(odd in value(), text in "[a-z0-9:#\n -]{0,12}") {
        for (kind, place) in [("Pod", ""), ("Job", "/spec/template"), ("CronJob", "/spec/jobTemplate/spec/template")] {
            let mut pod = serde_json::json!({
                "metadata": {"annotations": {INJECT: "enabled", "example.org/text": text}},
                "spec": {
                    "containers": [{"name": "main", "args": [text], "env": [{"name": "A", "value": text}], "odd": odd}],
                    "odd": odd,
                },
            });
            for step in place.split('/').skip(1).collect::<Vec<_>>().into_iter().rev() {
                pod = serde_json::json!({step: pod, "odd": odd});
            }
            pod["kind"] = kind.into();
            pod["other"] = odd.clone();
            let before = reading::read(&writing::write(&pod)).map_err(|fault| fault.text).unwrap().value;
            let done = injected(&writing::write(&pod));
            let after = reading::read(&done.yaml).map_err(|fault| fault.text).unwrap().value;
            let facts = Scene::default().facts("ml".to_owned(), &Defaults::default());
            let Decision::Inject(planned) = plan(before.pointer(place).unwrap(), &facts).decision else {
                panic!("it asks")
            };
            let mut expected = before;
            *expected.pointer_mut(place).unwrap() = planned.pod;
            proptest::prop_assert_eq!(after, expected, "{}", done.yaml);
        }
    }
}

/// Manifests of kinds with which other injectors are tested, written anew for this: what makes pods and is no kind of ours
/// is named, what makes none passes without a word.
#[test]
fn kinds_that_other_injectors_are_tested_with_pass_or_are_named() {
    let pod = "{metadata: {annotations: {tensorlane.dev/inject: enabled}}, spec: {containers: [{name: a, image: i}]}}";
    let named = |group: &str, kind: &str, spec: String, place: &str| {
        let yaml =
            format!("# kept\napiVersion: {group}/v1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n");
        let done = injected(&yaml);
        assert_eq!(done.yaml, yaml, "{kind}");
        assert_eq!(done.notes.len(), 1, "{kind}: {:?}", done.notes);
        assert!(done.notes[0].text.contains(&format!("so {place} stays as it is")), "{:?}", done.notes);
    };
    named("apps.openshift.io", "DeploymentConfig", format!("{{template: {pod}}}"), "spec.template");
    named("argoproj.io", "Rollout", format!("{{template: {pod}}}"), "spec.template");
    named("serving.knative.dev", "Service", format!("{{template: {pod}}}"), "spec.template");
    named(
        "sparkoperator.k8s.io",
        "SparkApplication",
        format!("{{executor: {{template: {pod}}}}}"),
        "spec.executor.template",
    );
    named(
        "kubevirt.example",
        "Pool",
        format!("{{pools: {{a: {{template: {pod}}}}}}}"),
        "spec.pools.a.template",
    );
    // Containers without a template around them.
    let list = "[{name: a, image: i}]";
    named(
        "grove.io",
        "PodCliqueSet",
        format!(
            "{{template: {{cliques: [{{name: prefill, spec: {{podSpec: {{containers: {list}}}}}}}, {{name: decode, spec: {{podSpec: {{containers: {list}}}}}}}]}}}}"
        ),
        "spec.template.cliques[0].spec.podSpec.containers, spec.template.cliques[1].spec.podSpec.containers",
    );
    named(
        "serving.kserve.io",
        "InferenceService",
        format!("{{predictor: {{containers: {list}, workerSpec: {{containers: {list}}}}}}}"),
        "spec.predictor.containers, spec.predictor.workerSpec.containers",
    );
    named("serving.knative.dev", "Revision", format!("{{containers: {list}}}"), "spec");
    for silent in [
        "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 0400}]}\n",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {tls.crt: \"-----BEGIN\\nx\"}\n",
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nrules: []\n",
        "apiVersion: v1\nkind: List\nitems: []\n",
        "apiVersion: example.org/v1\nkind: Yard\nspec: {containers: [40ft, {size: 20}]}\n",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {}\n",
    ] {
        let done = injected(silent);
        assert_eq!((done.yaml.as_str(), done.notes.len()), (silent, 0), "{:?}", done.notes);
    }
    // A claim's template of a StatefulSet is no pod, and its own pods are injected.
    let set = format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: s}}\nspec: {{template: {pod}, volumeClaimTemplates: [{{metadata: {{name: v}}, spec: {{resources: {{requests: {{storage: 010}}}}}}}}]}}\n"
    );
    let done = injected(&set);
    assert_eq!(done.notes.len(), 1, "{:?}", done.notes);
    let read = reading::read(&done.yaml).map_err(|fault| fault.text).unwrap().value;
    // Octal, as kubectl reads it.
    assert_eq!(read.pointer("/spec/volumeClaimTemplates/0/spec/resources/requests/storage"), Some(&8.into()));
}

/// Any JSON without fractions, of texts that make trouble.
fn value() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let text = || {
        let odd = prop::sample::select(vec![
            "yes",
            "0400",
            "null",
            "",
            " a",
            "a ",
            "a: b",
            "a #b",
            "- a",
            "1e3",
            "a\nb",
            "a\n",
            "a\nb\n\n",
            "\na",
            "a\n\tb ",
            " \n",
            "#!/bin/sh\nset -e\n",
            "\u{85}",
            "\u{2028}x\ny",
            "\u{feff}",
            "é\n\u{1F600}",
            "\u{7}",
            "{{ .Values }}",
            "*a",
            "&a",
            "<<",
            "---",
            "---\na",
            "...\na",
            "a\n---\nb",
            "@x",
            "`x`",
            "%x",
            "x:",
            "'x'",
            "\"x\"",
            "~",
            "=",
            "2001-01-01",
            "a\r\nb",
        ]);
        prop_oneof![odd.prop_map(str::to_owned), any::<String>(), "[a-z \n:#-]{0,12}"]
    };
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        text().prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::btree_map(text(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[test]
fn what_is_not_injected_passes_byte_for_byte() {
    let yaml = "# Source: chart\r\n---\r\napiVersion: v1\r\nkind: ConfigMap\r\ndata: &d {mode: 0400, on: 'yes'} # why\r\n--- # next\n\
        kind: Pod\nmetadata: {name: silent}\nspec:\n  <<: *nobody\n";
    let without_alias = yaml.replace("  <<: *nobody\n", "  containers: [{name: a}]   # one\n");
    assert_eq!(injected(&without_alias).yaml, without_alias);
    let refused = inject(yaml, "ml", &Defaults::default()).unwrap_err().to_string();
    assert!(refused.starts_with("document 3 is not YAML, at line 10"), "{refused}");
}

#[test]
fn only_the_documents_that_are_injected_are_written_anew_and_keep_their_first_comments() {
    let asks = "# Source: trainer.yaml\nkind: Pod\nmetadata: {name: p, annotations: {tensorlane.dev/inject: enabled}}\n\
        spec:\n  containers: [{name: a, command: [sh, -c, \"set -e\\nrun\"], env: [{name: X, value: \"yes\"}]}]\n  \
        volumes: [{name: v, secret: {secretName: s, defaultMode: 0400}}]\n";
    let other = "kind: Secret # kept\nstringData: {a: 'on'}\n";
    let done = injected(&format!("{other}---\n{asks}---\n{other}")).yaml;
    let pieces = stream::cut(&done);
    assert_eq!((pieces[0].body, pieces[2].body), (other, other));
    let pod = pieces[1].body;
    assert!(pod.starts_with("# Source: trainer.yaml\n"), "{pod}");
    for kept in ["defaultMode: 256\n", "value: \"yes\"\n", "- |-\n", "name: tensorlane\n"] {
        assert!(pod.contains(kept), "{kept}: {pod}");
    }
    // A second time nothing changes, so the text stays.
    assert_eq!(injected(&done).yaml, done);
}

#[test]
fn anchors_and_merge_keys_of_an_injected_document_are_followed() {
    let yaml = "kind: Deployment\nx-env: &env [{name: A, value: \"1\"}]\nspec:\n  template:\n    metadata: {annotations: {tensorlane.dev/inject: enabled}}\n    \
        spec: {containers: [{name: a, env: *env}]}\n";
    let done = injected(yaml).yaml;
    let read = reading::read(&done).unwrap().value;
    assert_eq!(read.pointer("/spec/template/spec/containers/0/env/1/value").unwrap(), "1");
    assert_eq!(read.pointer("/x-env/0/name").unwrap(), "A");
}

#[test]
fn a_document_behind_dots_is_refused_where_it_would_be_lost() {
    let pod = format!("kind: Job\nspec: {{template: {TEMPLATE}}}\n...\nkind: Secret\n");
    let refused = inject(&pod, "ml", &Defaults::default()).unwrap_err();
    assert!(matches!(refused, OfflineError::Hidden(1)), "{refused}");
    let silent = "kind: Secret\n...\n---\nkind: Secret\n";
    assert_eq!(injected(silent).yaml, silent);
}

#[test]
fn kinds_of_the_training_world_get_every_template_injected() {
    let replicas = |key: &str| {
        format!("{{{key}: {{Master: {{template: {TEMPLATE}}}, Worker: {{template: {TEMPLATE}}}}}}}")
    };
    let ray =
        format!("{{headGroupSpec: {{template: {TEMPLATE}}}, workerGroupSpecs: [{{template: {TEMPLATE}}}]}}");
    for (version, kind, spec) in [
        ("ray.io/v1", "RayCluster", ray.clone()),
        ("ray.io/v1", "RayJob", format!("{{rayClusterSpec: {ray}}}")),
        ("ray.io/v1", "RayService", format!("{{rayClusterConfig: {ray}}}")),
        ("kubeflow.org/v1", "PyTorchJob", replicas("pytorchReplicaSpecs")),
        ("kubeflow.org/v1", "TFJob", replicas("tfReplicaSpecs")),
        ("kubeflow.org/v1", "MPIJob", replicas("mpiReplicaSpecs")),
        ("kubeflow.org/v1", "XGBoostJob", replicas("xgbReplicaSpecs")),
        ("kubeflow.org/v1", "PaddleJob", replicas("paddleReplicaSpecs")),
        ("kubeflow.org/v1", "JAXJob", replicas("jaxReplicaSpecs")),
        (
            "batch.volcano.sh/v1alpha1",
            "Job",
            format!("{{tasks: [{{template: {TEMPLATE}}}, {{template: {TEMPLATE}}}]}}"),
        ),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            format!("{{leaderWorkerTemplate: {{leaderTemplate: {TEMPLATE}, workerTemplate: {TEMPLATE}}}}}"),
        ),
        (
            "trainer.kubeflow.org/v1alpha1",
            "ClusterTrainingRuntime",
            format!(
                "{{template: {{spec: {{replicatedJobs: [{{template: {{spec: {{template: {TEMPLATE}}}}}}}, {{template: {{spec: {{template: {TEMPLATE}}}}}}}]}}}}}}"
            ),
        ),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            format!(
                "{{replicatedJobs: [{{template: {{spec: {{template: {TEMPLATE}}}}}}}, {{template: {{spec: {{template: {TEMPLATE}}}}}}}]}}"
            ),
        ),
    ] {
        let done =
            injected(&format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n"));
        let told: Vec<_> = done.notes.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(told, ["injected, in exchange default"; 2], "{kind}");
        assert!(done.notes[0].object.starts_with(&format!("{kind} ml/x spec.")), "{:?}", done.notes);
        assert_eq!(done.yaml.matches("name: tensorlane\n").count(), 2, "{kind}: {}", done.yaml);
    }
}

#[test]
fn the_objects_of_a_list_are_injected_whatever_the_list_is_called() {
    for list in ["List", "PodList"] {
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {tensorlane.dev/inject: enabled}}, spec: {containers: [{name: main, image: i}]}}";
        let done = injected(&format!("apiVersion: v1\nkind: {list}\nitems: [{pod}]\n"));
        assert_eq!(done.yaml.matches("name: tensorlane\n").count(), 1, "{list}: {}", done.yaml);
    }
}

#[test]
fn what_seems_to_make_pods_and_is_not_known_is_named_with_what_its_author_got_wrong() {
    let yaml = "apiVersion: example.org/v1\nkind: Fleet\nmetadata: {name: f, annotations: {tensorlane.dev/inject: enabled}}\n\
        spec: {groups: [{template: {metadata: {annotations: {tensorlane.dev/injct: enabled}}, spec: {containers: [{name: a}]}}}]}\n";
    let done = injected(yaml);
    assert_eq!(done.yaml, yaml);
    let told: Vec<_> =
        done.notes.iter().map(|note| (note.object.as_str(), note.text.as_str(), note.denied)).collect();
    assert_eq!(
        told,
        [
            (
                "Fleet ml/f",
                "the kind is not known here (example.org/v1), so spec.groups[0].template stays as it is: its pods get their sidecars from the webhook when they are made",
                false
            ),
            (
                "Fleet ml/f",
                "tensorlane.dev/inject stands on the object itself, where it has no effect: put it on the pods, under spec.groups[0].template.metadata.annotations",
                false
            ),
            (
                "Fleet ml/f",
                "the annotation tensorlane.dev/injct is not known and has no effect; did you mean tensorlane.dev/inject?",
                false
            ),
        ]
    );
    // Where its containers are in no template, too.
    let bare = "apiVersion: serving.kserve.io/v1\nkind: InferenceService\nmetadata: {annotations: {tensorlane.dev/injct: enabled}}\n\
        spec: {predictor: {containers: [{name: a}]}}\n";
    let told: Vec<_> = injected(bare).notes.into_iter().map(|note| note.text).collect();
    assert!(told.len() == 2 && told[1].contains("did you mean tensorlane.dev/inject?"), "{told:?}");
    // A Job of somebody else is none of Kubernetes.
    let other = format!("apiVersion: example.org/v1\nkind: Job\nspec: {{template: {TEMPLATE}}}\n");
    assert!(injected(&other).notes[0].text.starts_with("the kind is not known here"));
    let plain = "apiVersion: example.org/v1\nkind: Thing\nspec: {containers: 5}\n";
    let done = injected(plain);
    assert_eq!((done.yaml.as_str(), done.notes), (plain, Vec::new()));
}

#[test]
fn an_annotation_at_a_known_object_itself_is_told() {
    let done = injected(
        "kind: Job\nmetadata: {name: j, annotations: {tensorlane.dev/inject: enabled}}\nspec: {template: {spec: {containers: [{name: a}]}}}\n",
    );
    assert_eq!(
        done.notes[0].text,
        "tensorlane.dev/inject stands on the object itself, where it has no effect: put it on the pods, under spec.template.metadata.annotations"
    );
    assert!(done.notes[1].text.starts_with("not injected"));
}

#[test]
fn a_pod_that_did_not_ask_is_never_refused_however_odd_it_is() {
    let odd = "kind: Pod\nspec: {containers: [{name: tensorlane, ports: [{containerPort: \"many\"}]}], hostNetwork: \"perhaps\"}\n";
    let done = injected(odd);
    assert_eq!(done.yaml, odd);
    assert!(done.notes.iter().all(|note| !note.denied), "{:?}", done.notes);
    let asks =
        odd.replace("kind: Pod\n", "kind: Pod\nmetadata: {annotations: {tensorlane.dev/inject: enabled}}\n");
    assert!(injected(&asks).notes[0].denied);
}
