//! Manifests in, manifests with sidecars out, as people write them: what is read of the output differs from what is read of the input by the
//! plan alone. What is in the input follows from the tree that was written; the output is read as `inject` reads, and by kubectl itself.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tensorlane_operator::offline::inject;
use tensorlane_operator::plan::{Defaults, Facts, Namespace};
use tensorlane_operator::{Decision, plan};

use crate::pen::written;
use crate::people::{Author, meaning};

/// Documents that kubectl is asked for at a time.
const AT_A_TIME: usize = 40;

/// Documents of one seed: the text of each, what kubectl reads in it, and that with the plan.
struct Stream {
    text: String,
    read: Vec<Value>,
    planned: Vec<Value>,
}

impl Stream {
    fn of(seed: u64) -> Stream {
        let mut author = Author::new(seed);
        let mut stream = Stream { text: String::new(), read: Vec::new(), planned: Vec::new() };
        for (number, document) in author.documents().into_iter().enumerate() {
            if number > 0 || author.dice.one_in(4) {
                stream.text += author.dice.pick(&["---\n", "---  \n", "---\n---\n"]).unwrap();
            }
            stream.text += &written(&document.root, &mut author.dice);
            let object = meaning(&document.root, &mut BTreeMap::new());
            stream.planned.push(with_plans(object.clone(), &document.pods));
            stream.read.push(object);
        }
        // An editor that ends no last line, and one of another system.
        if author.dice.one_in(8) && !stream.text.ends_with("\n\n") {
            stream.text.pop();
        }
        if author.dice.one_in(6) {
            stream.text = stream.text.replace('\n', "\r\n");
        }
        stream
    }
}

/// The object with sidecars in those of its pods that get one.
fn with_plans(mut object: Value, pods: &[String]) -> Value {
    let facts =
        Facts { namespace: Namespace { name: "ml".to_owned(), ..Namespace::default() }, ..Facts::default() };
    for place in pods {
        let pod = object.pointer_mut(place).unwrap();
        if let Decision::Inject(plan) = plan(pod, &facts).decision {
            *pod = plan.pod;
        }
    }
    object
}

#[test]
fn a_manifest_as_people_write_it_differs_by_the_plan_alone() {
    let mut injected = 0;
    for seed in tensorlane_fuzz::seeds() {
        let Stream { text, read, planned } = Stream::of(seed);
        let done = inject(&text, "ml", &Defaults::default())
            .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        assert_eq!(done.objects, planned, "seed {seed}\n{text}");
        // What came out is read again, and has all of it already.
        let again = inject(&done.yaml, "ml", &Defaults::default())
            .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", done.yaml));
        assert_eq!(again.objects, planned, "seed {seed}\n{text}\n# out\n{}", done.yaml);
        assert_eq!(again.yaml, done.yaml, "seed {seed}");
        match read == planned {
            true => assert_eq!(done.yaml, text, "seed {seed}: nothing is injected"),
            false => injected += 1,
        }
    }
    assert!(injected > 0, "nothing was injected");
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn kubectl_reads_the_plan_alone_besides_what_it_reads_of_a_manifest() {
    let kubectl = program();
    let seeds: Vec<u64> = tensorlane_fuzz::seeds().take(1000).collect();
    for seeds in seeds.chunks(AT_A_TIME) {
        let (mut before, mut after) = (String::new(), String::new());
        let (mut read, mut planned) = (Vec::new(), Vec::new());
        for seed in seeds {
            let stream = Stream::of(*seed);
            let done = inject(&stream.text, "ml", &Defaults::default()).unwrap();
            for (all, text) in [(&mut before, &stream.text), (&mut after, &done.yaml)] {
                *all += &format!(
                    "{}{text}",
                    if all.is_empty() || all.ends_with('\n') { "---\n" } else { "\n---\n" }
                );
            }
            read.extend(stream.read.into_iter().map(labelled));
            planned.extend(stream.planned.into_iter().map(labelled));
        }
        for (text, right) in [(before, read), (after, planned)] {
            let told = objects(&kubectl, &text);
            assert_eq!(told.len(), right.len(), "seeds {seeds:?}\n{text}");
            for (told, right) in told.iter().zip(&right) {
                assert_eq!(told, right, "seeds {seeds:?}\n{text}");
            }
        }
    }
}

fn program() -> PathBuf {
    let named = std::env::var_os("TENSORLANE_CLUSTER_BIN").map(PathBuf::from);
    let target = Path::new(env!("CARGO_BIN_EXE_tensorlane-manifests")).ancestors().nth(2).unwrap();
    let program = named.unwrap_or_else(|| target.join("cluster/bin")).join("kubectl");
    assert!(program.is_file(), "there is no {}: `cargo xtask cluster up` gets it", program.display());
    program
}

/// Objects as kubectl reads them. It is asked for a label, which needs no cluster, and gives all else back as it is.
fn objects(kubectl: &Path, text: &str) -> Vec<Value> {
    let mut command = Command::new(kubectl);
    command.args(["label", "--local", "--filename=-", "--output=json", "--overwrite", "read-by=kubectl"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = text.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    serde_json::Deserializer::from_slice(&output.stdout).into_iter().map(Result::unwrap).collect()
}

fn labelled(mut object: Value) -> Value {
    object["metadata"]["labels"]["read-by"] = "kubectl".into();
    object
}
