//! The parts of `cargo xtask test`: what each one runs, decided from plain facts.
//!
//! Everything is built in the release profile and for the workspace as a whole: one package alone would have its
//! dependencies built a second time, with other features.

use std::fs;
use std::time::Duration;

use crate::deny;
use crate::messages;
use crate::place::Place;
use crate::python;
use crate::run::Job;
use crate::setup;
use crate::style::Style;
use crate::suites;

/// The programs that write generated files: the protocol code, and the manifests for Kubernetes. With `--check` they
/// compare them only.
pub(crate) const GENERATORS: &[&str] = &["tensorlane-proto-codegen", "tensorlane-manifests"];

/// Tells tests and programs where the built programs lie.
pub(crate) const PROGRAMS: &str = "TENSORLANE_BIN_DIR";

/// Tells tests where the programs of Kubernetes lie.
const COMPONENTS: &str = "TENSORLANE_CLUSTER_BIN";

/// Tools that tests need that ignore themselves where it may not be there: an API server of their own, helm, who judges
/// charts, and what other operators define.
const NEEDED: [&str; 7] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm", "kube-score", "definitions"];

/// Runs tests that ignore themselves, too.
const ALL_TESTS: [&str; 2] = ["--", "--include-ignored"];

/// Tests in a module of this name are left out by `--quick`.
const SLOW: &str = "slow::";

/// A single part of the tests.
#[derive(Debug)]
pub(crate) struct Part {
    /// Name for `--only` and the table.
    pub(crate) name: &'static str,
    /// Description of its work, for `help`.
    pub(crate) about: &'static str,
    /// Set if it belongs to what one runs before each commit.
    pub(crate) quick: bool,
    /// Parts of the same lane run one after the other.
    pub(crate) lane: Lane,
    /// Plan of what it runs.
    pub(crate) plan: fn(&Surroundings<'_>) -> Plan,
}

/// A sequence of parts. Two lanes run at the same time.
///
/// Cost: what computes in one lane slows down the other, so a test must bear a busy machine, as it must elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Most parts: they compile, or use both cores.
    Main,
    /// Parts that wait for other programs most of their time.
    Waiting,
    /// Parts that go to whichever lane has nothing else left. A cold machine is long at Kubernetes, a warm one at the rest.
    Either,
}

/// Surroundings that a plan may look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) place: &'a Place,
    pub(crate) style: Style,
    pub(crate) quick: bool,
    /// The part `cluster` runs, too.
    pub(crate) with_cluster: bool,
}

/// Plan of what a part runs, or why it does not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Steps to run, in this order.
    Run(Vec<Step>),
    /// Skipped, because it cannot run here.
    Skip(String),
    /// Failure: it cannot run, and that is a mistake.
    Fail(String),
}

/// A single job of a part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) job: Job,
    pub(crate) counted: Counted,
}

/// Way in which the end of a job is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Counted as a check, which passes or fails.
    Check,
    /// As many tests as its output says.
    Tests,
    /// Nothing if it ends well; else the part fails and ends.
    Preparation,
    /// As a preparation, but it runs whatever happened before it.
    Cleanup,
    /// Nothing at all; if it fails, the rest of the part is left out and this is noted.
    Gate(&'static str),
}

/// All parts, in the order in which a lane runs them: what fails soonest comes first. `unit` compiles for minutes, and cargo
/// lets nobody else build meanwhile: the suites before it give the other lane time to have its cluster running.
pub(crate) const PARTS: &[Part] = &[
    main_part("format", "the code is formatted", format).in_quick(),
    main_part("generated", "the generated files are what is committed", generated),
    main_part("lint", "words and rooms are as they were, and clippy has nothing to say", lint).in_quick(),
    main_part("deny", "licences, sources, who depends on whom", deny::plan),
    main_part("local", "suites that need processes (local_*)", local).in_quick(),
    main_part(
        "fake-gpu",
        "suites of GPU memory over a stand-in for the driver, which prove logic and no speed (fake_gpu*)",
        fake_gpu,
    ),
    main_part("gpu", "suites of GPU memory over this machine's own driver, where it has a GPU (gpu_*)", gpu),
    main_part("netns", "suites that need network namespaces and root (netns_*)", netns),
    main_part("unit", "the tests inside the crates", unit).in_quick(),
    main_part("demo", "the demo, from its first step to its last", demo),
    Part {
        lane: Lane::Waiting,
        ..main_part(
            "cluster",
            "suites that need a Kubernetes, which it builds and starts (cluster_*)",
            cluster,
        )
    },
    Part {
        lane: Lane::Either,
        ..main_part("python", "the Python package, with numpy, torch and Ray", python::plan)
    },
    Part { lane: Lane::Either, ..main_part("docs", "the documentation builds, its examples run", docs) },
];

const fn main_part(name: &'static str, about: &'static str, plan: fn(&Surroundings<'_>) -> Plan) -> Part {
    Part { name, about, quick: false, lane: Lane::Main, plan }
}

impl Part {
    const fn in_quick(self) -> Self {
        Self { quick: true, ..self }
    }
}

pub(crate) fn step(counted: Counted, job: Job) -> Step {
    Step { job, counted }
}

/// The profile of demo and tests.
pub(crate) const RELEASE: &str = "release";

/// Builds the programs that suites and demo start, and `others`, in a profile of the workspace.
pub(crate) fn build_programs(profile: &str, others: &[&str]) -> Job {
    let all = ["tensorlane-sidecar", "tensorlane"].iter().chain(others);
    Job::cargo(["build", "--profile", profile, "--workspace"]).with(all.flat_map(|name| ["--bin", name]))
}

fn format(_: &Surroundings<'_>) -> Plan {
    Plan::Run(vec![step(Counted::Check, Job::cargo(["fmt", "--all", "--check"]))])
}

fn generated(around: &Surroundings<'_>) -> Plan {
    let check = |program: &&str| step(Counted::Check, generate(program, around.place, &["--check"]));
    let build = step(Counted::Preparation, build_generators());
    match messages::compared(around.place, around.style) {
        Ok(messages) => {
            Plan::Run(std::iter::once(build).chain(GENERATORS.iter().map(check)).chain(messages).collect())
        }
        Err(failure) => Plan::Fail(failure.what().to_owned()),
    }
}

/// Builds the generators.
pub(crate) fn build_generators() -> Job {
    Job::cargo(["build", "--release", "--workspace"])
        .with(GENERATORS.iter().flat_map(|program| ["--bin", program]))
}

/// Runs a generator that is built, with these arguments.
pub(crate) fn generate(program: &str, place: &Place, arguments: &[&str]) -> Job {
    Job::new(place.programs(RELEASE).join(program), arguments)
}

fn lint(around: &Surroundings<'_>) -> Plan {
    let narrow = if around.quick { Vec::new() } else { narrow_features(around.place) };
    let house = Job::new(around.place.programs(RELEASE).join("xtask"), ["house"]);
    Plan::Run(std::iter::once(step(Counted::Check, house)).chain(lint_steps(&narrow)).collect())
}

/// Packages whose features others narrow, with the options that narrow them.
fn narrow_features(place: &Place) -> Vec<Vec<&'static str>> {
    // The messages alone, without the services.
    let mut narrow = vec![vec!["tensorlane-proto"]];
    let others = [
        ("sidecar", "tensorlane-sidecar"),
        ("client", "tensorlane-client"),
        ("operator", "tensorlane-operator"),
    ];
    for (directory, package) in others {
        let manifest =
            fs::read_to_string(place.root().join(directory).join("Cargo.toml")).unwrap_or_default();
        if has_default_features(&manifest) {
            narrow.push(vec![package, "--no-default-features"]);
        }
    }
    narrow
}

/// Returns whether a manifest switches features on by default.
fn has_default_features(manifest: &str) -> bool {
    let mut section = "";
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        let value = line.strip_prefix("default").and_then(|rest| rest.trim_start().strip_prefix('='));
        section == "[features]" && value.is_some_and(|value| value.replace(' ', "") != "[]")
    })
}

fn lint_steps(narrow: &[Vec<&str>]) -> Vec<Step> {
    let clippy = |selection: &[&str]| {
        let job = Job::cargo(["clippy", "--release", "--all-targets"]).with(selection);
        step(Counted::Check, job.with(["--", "-D", "warnings"]))
    };
    let mut steps = vec![clippy(&["--workspace"])];
    for options in narrow {
        steps.push(clippy(&[&["--package"], options.as_slice()].concat()));
    }
    steps
}

fn unit(around: &Surroundings<'_>) -> Plan {
    let mut job = tests(around.place, &["--exclude", "tensorlane-tests", "--lib", "--bins", "--tests"]);
    // The part `cluster` runs the tests that need programs of Kubernetes. Without it they run here where these are
    // built, and are named at the end as skipped where not.
    let components = around.place.cluster().join("bin");
    if !around.with_cluster && NEEDED.iter().all(|name| components.join(name).exists()) {
        job = job.env(COMPONENTS, components).with(ALL_TESTS);
    }
    Plan::Run(vec![step(Counted::Tests, job)])
}

fn tests(place: &Place, selection: &[&str]) -> Job {
    Job::cargo(["test", "--release", "--workspace", "--no-fail-fast"])
        .with(selection)
        .env(PROGRAMS, place.programs(RELEASE))
}

fn local(around: &Surroundings<'_>) -> Plan {
    suite_plan("local_", &[], around)
}

fn fake_gpu(around: &Surroundings<'_>) -> Plan {
    suite_plan("fake_gpu", &["gpu"], around)
}

/// Note for a run without the suites of the machine's own driver.
const NO_GPU: &str = "NO GPU: nothing ran over a real driver. Its probe says why in the log; docs/gpu.md says what is proven without one";

fn gpu(around: &Surroundings<'_>) -> Plan {
    match suite_plan("gpu_", &["gpu"], around) {
        Plan::Run(mut steps) => {
            let probe = Job::new(around.place.programs(RELEASE).join("gpu"), ["--probe"]);
            steps.insert(1, step(Counted::Gate(NO_GPU), probe));
            Plan::Run(steps)
        }
        other => other,
    }
}

fn netns(around: &Surroundings<'_>) -> Plan {
    if let Err(reason) = setup::network_namespaces(around.place, around.style) {
        return Plan::Skip(reason);
    }
    match setup::provide(setup::NETNS_TOOLS, around.place, around.style) {
        Ok(()) => suite_plan("netns_", &[], around),
        Err(failure) => Plan::Fail(failure.what().to_owned()),
    }
}

fn demo(around: &Surroundings<'_>) -> Plan {
    let job = Job::new(around.place.programs(RELEASE).join("xtask"), ["demo"]);
    Plan::Run(vec![step(Counted::Check, job)])
}

/// Limit for building Kubernetes where nothing of it is cached: it gives way to whatever the main lane builds meanwhile.
const CLUSTER_BUILD_LIMIT: Duration = Duration::from_secs(70 * 60);

fn cluster(around: &Surroundings<'_>) -> Plan {
    let state = around.place.cluster();
    if let Err(reason) = setup::cluster_can_run(around.place, around.style, &state) {
        return Plan::Skip(reason);
    }
    let xtask = |words: &[&str]| Job::new(around.place.programs(RELEASE).join("xtask"), words);
    match suite_plan("cluster_", &["kubectl-tensorlane"], around) {
        Plan::Run(mut steps) => {
            // Kubernetes is built first: meanwhile the main lane builds what is needed next.
            let build = xtask(&["cluster", "build"]).at_most(CLUSTER_BUILD_LIMIT);
            steps.insert(0, step(Counted::Preparation, build));
            let prepared = [
                &["images"][..],
                &["cluster", "up"],
                &["cluster", "load", "operator"],
                &["cluster", "load", "sidecar"],
                &["cluster", "load", "workload"],
                &["cluster", "load", "python"],
                &["weights"],
            ];
            let suites = steps.pop();
            steps.extend(prepared.map(|words| step(Counted::Preparation, xtask(words))));
            // One at a time: some of them stop services of a node, and all share the folder of images.
            let alone =
                suites.map(|suites| Step { job: suites.job.with(["--", "--test-threads=1"]), ..suites });
            steps.extend(alone);
            // They start an API server of their own and render the chart, by programs that `cluster up` has built.
            let alone = tests(around.place, &["--test", "apiserver", "--test", "chart"])
                .env(COMPONENTS, state.join("bin"))
                .with(ALL_TESTS)
                // Beside each runs a cluster already.
                .with(["--test-threads=1"]);
            steps.push(step(Counted::Tests, alone));
            steps.push(step(Counted::Cleanup, xtask(&["cluster", "down"])));
            Plan::Run(steps)
        }
        other => other,
    }
}

/// The suites whose names begin so, once the programs are built that every suite needs, and `others`.
fn suite_plan(prefix: &str, others: &[&str], around: &Surroundings<'_>) -> Plan {
    if suites::suites(around.place.root(), prefix).is_empty() {
        return Plan::Fail(format!("no suite is called {prefix}*: none of tests/tests/{prefix}* exists"));
    }
    let mut job = tests(around.place, &["--test", &format!("{prefix}*")]);
    if around.quick {
        job = job.with(["--", "--skip", SLOW]);
    }
    Plan::Run(vec![step(Counted::Preparation, build_programs(RELEASE, others)), step(Counted::Tests, job)])
}

fn docs(around: &Surroundings<'_>) -> Plan {
    let pages =
        Job::cargo(["doc", "--release", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    let examples = tests(around.place, &["--doc"]);
    Plan::Run(vec![step(Counted::Check, pages), step(Counted::Tests, examples)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn shown(steps: &[Step]) -> Vec<String> {
        steps.iter().map(|step| step.job.shown()).collect()
    }

    #[test]
    fn default_features_are_seen_where_there_are_some() {
        assert!(has_default_features("[features]\ndefault = [\"grpc\"]\n"));
        assert!(!has_default_features("[features]\ndefault = [ ]\ngrpc = []\n"));
        assert!(!has_default_features("[features]\ngrpc = []\n[dependencies]\ndefault = \"1\"\n"));
        assert!(!has_default_features("[dependencies]\ntokio = { default-features = false }\n"));
    }

    #[test]
    fn lint_runs_once_for_all_and_once_for_each_narrow_set() {
        let steps =
            lint_steps(&[vec!["tensorlane-proto"], vec!["tensorlane-client", "--no-default-features"]]);
        assert_eq!(
            shown(&steps),
            [
                "cargo clippy --release --all-targets --workspace -- -D warnings",
                "cargo clippy --release --all-targets --package tensorlane-proto -- -D warnings",
                "cargo clippy --release --all-targets --package tensorlane-client --no-default-features -- -D warnings",
            ]
        );
    }

    #[test]
    fn a_suite_part_without_suites_fails_and_says_which_files_it_misses() {
        let place = Place::at(Path::new("/no/such/checkout"));
        let around = Surroundings { place: &place, style: Style::plain(), quick: false, with_cluster: false };
        let Plan::Fail(reason) = local(&around) else { panic!("it must fail") };
        assert!(reason.contains("tests/tests/local_*"), "{reason}");
    }

    #[test]
    fn suites_over_a_real_driver_run_only_behind_a_probe_that_finds_one() {
        let root = std::env::temp_dir().join(format!("xtask-parts-gpu-{}", std::process::id()));
        fs::create_dir_all(root.join("tests/tests")).unwrap();
        fs::write(root.join("tests/tests/gpu_shared.rs"), "").unwrap();
        let place = Place::at(&root);
        let around = Surroundings { place: &place, style: Style::plain(), quick: false, with_cluster: false };
        let Plan::Run(steps) = gpu(&around) else { panic!("it must run") };
        fs::remove_dir_all(&root).unwrap();
        let Counted::Gate(note) = steps[1].counted else { panic!("the probe must be a gate") };
        assert!(note.starts_with("NO GPU"));
        assert!(steps[1].job.shown().ends_with("gpu --probe"));
        assert!(steps[2].job.shown().ends_with("--test 'gpu_*'"), "{}", steps[2].job.shown());
    }

    #[test]
    fn tests_that_need_programs_of_kubernetes_are_asked_for_where_all_of_them_are_there() {
        let root = std::env::temp_dir().join(format!("xtask-parts-needed-{}", std::process::id()));
        let place = Place::at(&root);
        let components = place.cluster().join("bin");
        fs::create_dir_all(&components).unwrap();
        let around = Surroundings { place: &place, style: Style::plain(), quick: false, with_cluster: false };
        let command = || {
            let Plan::Run(steps) = unit(&around) else { panic!("it must run") };
            shown(&steps).concat()
        };
        for name in NEEDED {
            assert!(!command().contains("--include-ignored"), "{name} is not there");
            fs::write(components.join(name), "").unwrap();
        }
        assert!(command().ends_with("--tests -- --include-ignored"), "{}", command());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_suite_part_builds_the_programs_first_and_quick_leaves_slow_tests_out() {
        let root = std::env::temp_dir().join(format!("xtask-parts-{}", std::process::id()));
        fs::create_dir_all(root.join("tests/tests")).unwrap();
        fs::write(root.join("tests/tests/local_put.rs"), "").unwrap();
        let place = Place::at(&root);
        let around = Surroundings { place: &place, style: Style::plain(), quick: true, with_cluster: false };
        let Plan::Run(steps) = local(&around) else { panic!("it must run") };
        fs::remove_dir_all(&root).unwrap();
        let commands = shown(&steps);
        assert_eq!(
            commands[0],
            "cargo build --profile release --workspace --bin tensorlane-sidecar --bin tensorlane"
        );
        assert!(commands[1].ends_with("--test 'local_*' -- --skip slow::"), "{}", commands[1]);
        assert_eq!(steps[0].counted, Counted::Preparation);
    }
}
