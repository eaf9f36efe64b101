//! The command line: words in, a command or a failure that says what was wrong out.

use crate::bench;
use crate::cluster;
use crate::failure::Failure;
use crate::images;
use crate::parts::{PARTS, Part};
use crate::python;
use crate::soak;

/// Command that the user asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Prints every command.
    Help,
    /// Runs the test parts.
    Test(TestOptions),
    /// Builds and starts the demo.
    Demo(DemoOptions),
    /// Builds and starts the benchmarks.
    Bench(bench::Options),
    /// Random puts, gets, kills and cuts.
    Soak(soak::Options),
    /// Does something with the test cluster.
    Cluster(cluster::Request),
    /// Makes container images.
    Images(images::Options),
    /// Writes the generated files.
    Generate,
    /// Checks words and rooms of the sources.
    House,
    /// Installs what is missing.
    Setup,
    /// Fetches the weights that demo and suites move.
    Weights,
    /// Builds the Python package, in a profile.
    Wheel(&'static str),
}

/// Options of `cargo xtask test`: the parts that run, and how they run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    /// Set for the part that one runs before each commit.
    pub(crate) quick: bool,
    /// Later parts are left out once one has failed.
    pub(crate) fail_fast: bool,
    /// The parts by name; all of them where empty.
    pub(crate) only: Vec<&'static str>,
}

impl TestOptions {
    /// The parts that run, in their order.
    pub(crate) fn chosen(&self) -> Vec<&'static Part> {
        let chosen = |part: &&Part| match self.only.is_empty() {
            true => part.quick || !self.quick,
            false => self.only.contains(&part.name),
        };
        PARTS.iter().filter(chosen).collect()
    }
}

/// Options of the demo.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DemoOptions {
    /// Handed to the demo program: fewer repetitions.
    pub(crate) fast: bool,
}

/// The text of `cargo xtask help`.
pub(crate) fn help() -> String {
    let parts: String = PARTS
        .iter()
        .map(|part| format!("    {:9}  {}{}\n", part.name, part.about, if part.quick { " *" } else { "" }))
        .collect();
    format!(
        "cargo xtask COMMAND

  demo [--fast]                 builds everything, fetches real weights, and shows two sidecars at work
  test [--quick] [--fail-fast] [--only PART]...
                                runs every part below (with --quick those marked *) and prints one table
  bench local|tcp|paths|channels|pipes|sets|gpu|cluster [--json FILE] [--runs N]
                                measures this machine's limits and Tensorlane against them, or it on the cluster
  bench paths|channels|pipes|sets --only ROW
                                that row alone; again for more
  bench paths --with-gloo       the same with gloo, for which it fetches torch (some 4 GB) where it is not here
  bench python [--with-peers] [--dist] [--json FILE] [--svg FILE] [--runs N] [--only ROW]...
                                measures it from Python beside Ray, torch, vineyard, torchstore, Mooncake and NIXL;
                                with --with-peers fetches those that no Python has (some 8 GB), with --dist by the wheel
                                that ships. Needs root
  soak [--seconds N | --minutes N] [--seed S]
                                random puts, gets, kills and cuts between sidecars for that long (10 minutes), checked
                                against what holds at all times; prints its seed. Needs root
  cluster build|up|down|status  a real Kubernetes of two nodes on this machine; see docs/cluster.md
  cluster kubectl|helm ARGUMENT...
                                speaks to it as an administrator
  cluster load IMAGE            brings an OCI archive, or an image of ours, to every node
  cluster stop|start SERVICE... kills or starts services such as apiserver or node2.kubelet
  cluster cut|mend NODE, cluster slow NODE MBIT
                                what becomes of packets between a node and the other
  images [--fresh | --context-only] [NAME]...
                                makes OCI archives of our programs, without a registry; with --context-only
                                only what docker or podman builds them from
  generate                      writes the generated protocol code and manifests
  house                         checks that doc comments begin with what they document, that the name of a type occurs
                                once in a crate, and that no circle of imports grows
  weights                       fetches the real weights that demo and cluster suites move, where they are not here
  wheel [--dist]                builds the Python package as the tests have it, or as it ships, under target/wheels
  setup                         installs the tools of the system that demo and test need
  help                          prints this

The parts of test, in their order:
{parts}
Logs are kept under target/xtask, tools in the user's cache (~/.cache/tensorlane), weights under target/weights,
histories of the soak under target/soak, the cluster under target/cluster, images under target/images, Pythons with torch
and Ray under target/python.
NO_COLOR=1 turns colours off.
"
    )
}

/// Reads the words after `cargo xtask`.
pub(crate) fn parse(words: &[String]) -> Result<Command, Failure> {
    let Some((command, rest)) = words.split_first() else { return Ok(Command::Help) };
    let passed_on =
        command == "cluster" && rest.first().is_some_and(|word| word == "kubectl" || word == "helm");
    if !passed_on && rest.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(Command::Help);
    }
    match command.as_str() {
        "help" | "--help" | "-h" => Ok(Command::Help),
        "test" => test_options(rest).map(Command::Test),
        "demo" => demo_options(rest).map(Command::Demo),
        "bench" => bench::parse(rest).map(Command::Bench),
        "soak" => soak::parse(rest).map(Command::Soak),
        "cluster" => cluster::parse(rest).map(Command::Cluster),
        "images" => images::parse(rest).map(Command::Images),
        "generate" => nothing_after("generate", rest, Command::Generate),
        "house" => nothing_after("house", rest, Command::House),
        "setup" => nothing_after("setup", rest, Command::Setup),
        "weights" => nothing_after("weights", rest, Command::Weights),
        "wheel" => python::parse(rest).map(Command::Wheel),
        unknown => Err(Failure::usage(format!("there is no command `{unknown}`"))),
    }
}

fn test_options(words: &[String]) -> Result<TestOptions, Failure> {
    let mut options = TestOptions::default();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word.split_once('=').unwrap_or((word, "")) {
            ("--quick", "") => options.quick = true,
            ("--fail-fast", "") => options.fail_fast = true,
            ("--only", "") => {
                let name = words.next().ok_or_else(|| Failure::usage("`--only` needs the name of a part"))?;
                options.only.push(part_named(name)?);
            }
            ("--only", name) => options.only.push(part_named(name)?),
            _ => return Err(Failure::usage(format!("`test` has no option `{word}`"))),
        }
    }
    Ok(options)
}

fn part_named(name: &str) -> Result<&'static str, Failure> {
    let names = || PARTS.iter().map(|part| part.name);
    names().find(|known| *known == name).ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        Failure::usage(format!("there is no part `{name}`; the parts are {known}"))
    })
}

fn demo_options(words: &[String]) -> Result<DemoOptions, Failure> {
    match words {
        [] => Ok(DemoOptions { fast: false }),
        [word] if word == "--fast" => Ok(DemoOptions { fast: true }),
        _ => Err(Failure::usage(format!("`demo` takes `--fast` or nothing, not `{}`", words.join(" ")))),
    }
}

fn nothing_after(command: &str, rest: &[String], parsed: Command) -> Result<Command, Failure> {
    match rest.first() {
        None => Ok(parsed),
        Some(word) => Err(Failure::usage(format!("`{command}` takes no argument, not `{word}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words).map_err(|failure| failure.what().to_owned())
    }

    fn names(options: &TestOptions) -> Vec<&'static str> {
        options.chosen().iter().map(|part| part.name).collect()
    }

    #[test]
    fn no_words_and_every_form_of_help_give_help() {
        for line in ["", "help", "--help", "-h", "test --help", "demo -h"] {
            assert_eq!(parsed(line), Ok(Command::Help), "{line}");
        }
    }

    #[test]
    fn help_names_every_command_and_part() {
        let help = help();
        for word in [
            "demo", "test", "bench", "soak", "cluster", "images", "generate", "house", "setup", "weights",
            "wheel", "help",
        ] {
            assert!(help.contains(&format!("\n  {word} ")), "{word}");
        }
        for part in PARTS {
            assert!(help.contains(part.about), "{}", part.name);
        }
    }

    #[test]
    fn test_runs_all_parts_unless_told_otherwise() {
        assert_eq!(names(&TestOptions::default()).len(), PARTS.len());
        let quick = TestOptions { quick: true, ..TestOptions::default() };
        assert_eq!(names(&quick), ["format", "lint", "local", "unit"]);
    }

    #[test]
    fn only_picks_parts_and_keeps_their_order() {
        let Ok(Command::Test(options)) = parsed("test --only unit --only=format --fail-fast") else {
            panic!()
        };
        assert_eq!(names(&options), ["format", "unit"]);
        assert!(options.fail_fast && !options.quick);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (line, word) in [
            ("tset", "`tset`"),
            ("test --fast", "`--fast`"),
            ("test --quick=yes", "`--quick=yes`"),
            ("test --only", "`--only`"),
            ("test --only everything", "format, generated"),
            ("demo --slow", "`--slow`"),
            ("bench", "`channels`, `pipes`, `sets`, `gpu`, `cluster` or `python`"),
            ("bench udp", "`udp`"),
            ("soak long", "`long`"),
            ("generate now", "`now`"),
        ] {
            let what = parsed(line).unwrap_err();
            assert!(what.contains(word), "{line}: {what}");
        }
    }

    #[test]
    fn help_for_kubectl_is_kubectls() {
        assert!(matches!(parsed("cluster kubectl get --help"), Ok(Command::Cluster(_))));
        assert_eq!(parsed("cluster up --help"), Ok(Command::Help));
    }

    #[test]
    fn the_arguments_of_bench_are_passed_on() {
        let arguments = ["tcp", "--json", "out.json"].map(str::to_owned).to_vec();
        let expected = bench::Options { arguments, with_gloo: false };
        assert_eq!(parsed("bench tcp --json out.json"), Ok(Command::Bench(expected)));
    }
}
