//! `tensorlane inject -f` as a command: what comes out of golden pods, by a file and by a pipe, and what it says where
//! nothing comes out. Needs no sidecar and no cluster.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tensorlane_tests::sidecar::bin_dir;

/// Facts that only a cluster has, or another release; the command does not know them.
const NOT_OFFLINE: [&str; 4] = ["LimitRange", "ResourceQuota", "Claims", "Abilities"];

/// Outcome of one call.
struct Called {
    code: Option<i32>,
    out: String,
    errors: String,
}

/// Calls `tensorlane inject` with these words and this on its standard input.
fn inject(words: &[&str], input: &[u8]) -> Called {
    let mut command = Command::new(bin_dir().join("tensorlane"));
    command.arg("inject").args(words).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command's binary");
    let mut pipe = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A call that reads nothing ends before everything is written.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&input)));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Called { code: status.code(), out: text(stdout), errors: text(stderr) }
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../operator/tests/golden")
}

fn read(name: &str) -> String {
    fs::read_to_string(golden().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn documents(yaml: &str) -> Vec<Value> {
    yaml.split("---\n").map(|one| serde_yaml::from_str(one).unwrap()).collect()
}

/// Golden pods of which files say everything: name, manifests, and what is decided.
fn offline() -> Vec<(String, String, Value)> {
    let names = fs::read_dir(golden()).unwrap().filter_map(|entry| {
        entry.unwrap().file_name().to_str().unwrap().strip_suffix(".in.yaml").map(str::to_owned)
    });
    let all = names.map(|name| {
        let (manifests, decided) = (read(&format!("{name}.in.yaml")), read(&format!("{name}.out.yaml")));
        (name, manifests, serde_yaml::from_str(&decided).unwrap())
    });
    let known =
        |yaml: &str| !documents(yaml).iter().any(|one| NOT_OFFLINE.iter().any(|kind| one["kind"] == *kind));
    all.filter(|(_, yaml, _)| known(yaml)).collect()
}

/// Everything that is said besides belongs to the object that it names.
fn is_as_committed(name: &str, manifests: &str, decided: &Value, called: &Called) {
    let said = &called.errors;
    for warning in decided["warnings"].as_array().into_iter().flatten() {
        assert!(said.contains(warning.as_str().unwrap()), "{name}: {said}");
    }
    if decided["decision"] == "deny" {
        assert_eq!((called.code, called.out.as_str()), (Some(1), ""), "{name}: {said}");
        assert!(said.contains(decided["sentence"].as_str().unwrap()), "{name}: {said}");
        assert!(said.ends_with("error: 1 cannot be injected, so nothing is printed\n"), "{name}: {said}");
        return;
    }
    assert_eq!(called.code, Some(0), "{name}: {said}");
    let mut expected = documents(manifests);
    if decided["decision"] == "inject" {
        let pod = expected.iter_mut().find(|one| one["kind"] == "Pod").unwrap();
        *pod = decided["pod"].clone();
        let note = format!("injected, in exchange {}\n", decided["exchange"].as_str().unwrap());
        assert!(said.contains(&note), "{name}: {said}");
    } else {
        assert!(
            said.contains(&format!("not injected: {}", decided["sentence"].as_str().unwrap())),
            "{name}: {said}"
        );
    }
    assert_eq!(documents(&called.out), expected, "{name}");
}

#[test]
fn golden_pods_come_out_as_committed_from_a_pipe_and_from_a_file() {
    let all = offline();
    let count = |decision: &str| all.iter().filter(|(_, _, decided)| decided["decision"] == decision).count();
    let counts = ["inject", "skip", "deny"].map(count);
    assert!(counts[0] >= 12 && counts[1] >= 4 && counts[2] >= 12, "{counts:?}");
    for (name, manifests, decided) in &all {
        let piped = inject(&["-f", "-", "-n", "ml"], manifests.as_bytes());
        is_as_committed(name, manifests, decided, &piped);
        let file = golden().join(format!("{name}.in.yaml")).display().to_string();
        let filed = inject(&["--file", &file, "--namespace", "ml"], b"");
        assert_eq!((filed.code, filed.out, filed.errors), (piped.code, piped.out, piped.errors), "{name}");
    }
}

#[test]
fn what_came_out_goes_in_again_and_stays_as_it_is() {
    let once = inject(&["-f", "-"], read("restricted.in.yaml").as_bytes());
    let twice = inject(&["-f", "-"], once.out.as_bytes());
    assert_eq!((twice.code, &twice.out), (Some(0), &once.out), "{}", twice.errors);
}

#[test]
fn the_namespace_and_the_image_are_what_the_command_is_told() {
    let exchange =
        "kind: TensorExchange\nmetadata: {name: e, namespace: ml}\nspec: {arena: {size: 4Gi}}\n---\n";
    let pod = "kind: Pod\nmetadata: {name: p, annotations: {tensorlane.dev/inject: enabled, tensorlane.dev/exchange: e}}\nspec: {containers: [{name: main}]}\n";
    let manifests = format!("{exchange}{pod}");
    let words = ["-f", "-", "-n", "ml", "--sidecar-image", "registry.example.org/s@sha256:1"];
    let called = inject(&words, manifests.as_bytes());
    assert_eq!(called.code, Some(0), "{}", called.errors);
    let sidecar = &documents(&called.out)[1]["spec"]["initContainers"][0];
    assert_eq!(sidecar["image"], "registry.example.org/s@sha256:1");
    let elsewhere = inject(&["-f", "-"], manifests.as_bytes());
    assert_eq!((elsewhere.code, elsewhere.out.as_str()), (Some(0), manifests.as_str()));
    let said = elsewhere.errors;
    assert!(said.starts_with("Pod default/p: ") && said.contains("TensorExchange e is not among"), "{said}");
}

#[test]
fn what_cannot_be_read_says_where_and_what_to_do_and_prints_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let large = format!("kind: ConfigMap\ndata: {{a: {}}}\n", "x".repeat(17 << 20));
    let (missing, directory) = (path("missing.yaml"), path(""));
    let cases: [(&[&str], &[u8], &[&str]); 9] = [
        (&["-f", "-"], b"kind: Pod\n---\na: [\n", &["document 2 is not YAML", "line ", "correct it there"]),
        (&["-f", "-"], b"just a text\n", &["document 1 is no object of Kubernetes", "say what it is"]),
        (&["-f", "-"], b"", &["there is no manifest", "-f FILE"]),
        (&["-f", "-"], b"\xff\xfe", &["- cannot be read", "YAML in UTF-8"]),
        (&["-f", "-"], large.as_bytes(), &["bytes, more than", "file by file"]),
        (
            &["-f", "-"],
            b"kind: TensorExchange\nmetadata: {name: e}\nspec: {transports: [rdma]}\n",
            &["TensorExchange \"e\" cannot be read", "`rdma`", "expected one of `shm`", "correct its spec"],
        ),
        (
            &["-f", "-"],
            b"kind: Pod\nmetadata: {name: p, annotations: {tensorlane.dev/inject: enabled}}\n",
            &["Pod default/p: cannot be injected", "missing field `spec`"],
        ),
        (
            &["-f", &missing],
            b"",
            &["missing.yaml cannot be opened", "No such file", "name a file of manifests"],
        ),
        (&["-f", &directory], b"", &["cannot be read", "s a directory", "a file of YAML"]),
    ];
    for (words, input, parts) in cases {
        let called = inject(words, input);
        assert_eq!((called.code, called.out.as_str()), (Some(1), ""), "{parts:?}: {}", called.errors);
        for part in parts {
            assert!(called.errors.contains(part), "{part} is not in {}", called.errors);
        }
        assert!(called.errors.len() < 1000, "what was wrong is cut, not repeated: {}", called.errors);
    }
}

#[test]
fn a_namespace_or_image_that_is_none_is_refused_before_anything_is_read() {
    let wrong: [(&[&str], &str); 4] = [
        (&["--namespace", ""], "the namespace \"\" is no name of Kubernetes"),
        (&["-n", "A_B"], "the namespace \"A_B\" is no name of Kubernetes"),
        (&["--sidecar-image", ""], "it is no image"),
        (&["--sidecar-image", "a b"], "it is no image"),
    ];
    for (words, part) in wrong {
        let called = inject(&[&["-f", "-"], words].concat(), b"");
        assert_eq!((called.code, called.out.as_str()), (Some(2), ""), "{words:?}: {}", called.errors);
        assert!(called.errors.contains(part), "{words:?}: {}", called.errors);
    }
}

#[test]
fn what_does_not_ask_passes_byte_for_byte_beside_what_does() {
    let chart = "# Source: chart/templates/config.yaml\r\napiVersion: v1\r\nkind: ConfigMap\r\ndata: {mode: '0400', 'on': \"yes\"} # kept\r\n";
    let silent = "kind: Pod\nmetadata: {name: silent}\nspec: {containers: [{name: tensorlane}]}   # not ours to refuse\n";
    let asks = "kind: Pod\nmetadata: {name: p, annotations: {tensorlane.dev/inject: enabled}}\nspec: {containers: [{name: main, args: [\"on\"]}]}\n";
    let called = inject(&["-f", "-"], format!("{chart}---\n{silent}--- # last\n{asks}").as_bytes());
    assert_eq!(called.code, Some(0), "{}", called.errors);
    let pod = called.out.strip_prefix(&format!("{chart}---\n{silent}--- # last\n"));
    let pod = pod.unwrap_or_else(|| panic!("{}", called.out));
    assert!(pod.contains("- \"on\"\n") && pod.contains("name: tensorlane\n"), "{pod}");
}

#[test]
fn json_is_one_list_of_what_comes_out_as_yaml_and_notes_are_lines_of_it() {
    let manifests = read("restricted.in.yaml");
    let yaml = inject(&["-f", "-"], manifests.as_bytes());
    let called = inject(&["-f", "-", "-o", "json"], manifests.as_bytes());
    assert_eq!((yaml.code, called.code), (Some(0), Some(0)), "{}", called.errors);
    let list: Value = serde_json::from_str(&called.out).expect("one object");
    assert_eq!((&list["apiVersion"], &list["kind"]), (&Value::from("v1"), &Value::from("List")));
    assert_eq!(list["items"], Value::from(documents(&yaml.out)));
    let note = |line: &str| serde_json::from_str::<Value>(line).unwrap()["note"].as_str().unwrap().to_owned();
    let notes: Vec<_> = called.errors.lines().map(note).collect();
    assert_eq!(notes, yaml.errors.lines().collect::<Vec<_>>());
    let again = inject(&["-f", "-", "-o", "json"], called.out.as_bytes());
    assert_eq!((again.code, again.out), (Some(0), called.out), "{}", again.errors);
}

#[test]
fn json_is_nothing_where_a_pod_cannot_be_injected() {
    let pod = "kind: Pod\nmetadata: {name: p, annotations: {tensorlane.dev/inject: enabled}}\n";
    let called = inject(&["-f", "-", "-o", "json"], pod.as_bytes());
    assert_eq!((called.code, called.out.as_str()), (Some(1), ""));
    let lines: Vec<Value> = called.errors.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[0]["note"].as_str().unwrap().contains("cannot be injected"), "{lines:?}");
    assert!(lines[1]["message"].as_str().unwrap().contains("nothing is printed"), "{lines:?}");
}

#[test]
fn a_call_without_a_file_shows_how_it_is_called() {
    let called = inject(&[], b"");
    assert_eq!((called.code, called.out.as_str()), (Some(2), ""));
    assert!(
        called.errors.contains("--file <FILE>") && called.errors.contains("Usage: tensorlane inject"),
        "{}",
        called.errors
    );
}
