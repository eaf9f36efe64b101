//! Arguments that the command understands.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use tensorlane_operator::dns::{Label, Subdomain};
use tensorlane_proto::crd::DEFAULT_EXCHANGE;

/// Look at Tensorlane in a cluster. Changes nothing.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl tensorlane",
    bin_name = "kubectl tensorlane",
    version,
    disable_help_subcommand = true
)]
pub(crate) struct Args {
    /// The namespace that is asked about [default: that of the context].
    #[arg(short, long, global = true, value_parser = label, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Every namespace that Tensorlane is used in, whatever --namespace says. Not for `explain`.
    #[arg(short = 'A', long, global = true)]
    pub(crate) all_namespaces: bool,
    /// The context of the kubeconfig [default: the current one].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// The kubeconfig [default: $KUBECONFIG, or ~/.kube/config].
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The user to ask as, as kubectl has it.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) as_user: Option<String>,
    /// A group to ask as; may be given several times.
    #[arg(long, global = true, value_name = "GROUP", requires = "as_user")]
    pub(crate) as_group: Vec<String>,
    /// The namespace of the operator.
    #[arg(long, global = true, default_value = "tensorlane-system", value_parser = label, value_name = "NAME")]
    pub(crate) operator_namespace: String,
    /// Format of results.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub(crate) output: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Faults of the installation and of this namespace, and what to do.
    Check,
    /// Reasons why a pod, or what makes pods, has a sidecar or not.
    Explain {
        /// pod/NAME, deployment/NAME, or whatever else makes pods: job/NAME, raycluster/NAME, jobs.batch.volcano.sh/NAME.
        #[arg(value_name = "KIND/NAME", value_parser = Object::parse)]
        object: Object,
    },
    /// The peers of this namespace.
    Peers {
        /// Only those of this exchange.
        #[arg(long, value_name = "NAME")]
        exchange: Option<String>,
    },
    /// Routes that bytes would take between the peers of an exchange, and why not a better one.
    Routes {
        /// The exchange [default: default; with --all-namespaces every one].
        #[arg(long, value_name = "NAME")]
        exchange: Option<String>,
        /// Go on, and show what changes: on a terminal in place, into a pipe or file each state below the one before, with
        /// -o json each in a line of its own. Ends with Ctrl-C, or with whoever reads.
        #[arg(short, long)]
        watch: bool,
        /// Time between two looks, such as 500ms, 5s or 1m; 100ms at least. Each look reads peers, exchanges and pods.
        #[arg(long, default_value = "2s", value_parser = interval, value_name = "DURATION", requires = "watch")]
        interval: Duration,
    },
}

impl Args {
    /// The command line, checked for what one option says of another.
    pub(crate) fn checked(mut self) -> Result<Self, clap::Error> {
        match &mut self.command {
            Command::Explain { .. } if self.all_namespaces => Err(Args::command().error(
                ErrorKind::ArgumentConflict,
                "explain is about one object, which has one namespace: say --namespace NAME in place of --all-namespaces",
            )),
            Command::Routes { exchange: exchange @ None, .. } if !self.all_namespaces => {
                *exchange = Some(DEFAULT_EXCHANGE.to_owned());
                Ok(self)
            }
            _ => Ok(self),
        }
    }
}

/// The name of a namespace, which becomes a part of a path.
fn label(text: &str) -> Result<String, String> {
    Label::new("the namespace", text).map(|label| label.to_string()).map_err(|error| error.to_string())
}

/// The shortest time between two looks: each is several calls of the API server.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// `500ms`, `5s` or `1m`.
fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write such as 500ms, 5s or 1m");
    let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..unit].parse().map_err(|_| wrong())?;
    let milliseconds = match &text[unit..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err(wrong()),
    };
    let interval = Duration::from_millis(number.checked_mul(milliseconds).ok_or_else(wrong)?);
    if interval < INTERVAL_MIN {
        return Err(format!("{text:?} is shorter than {INTERVAL_MIN:?}"));
    }
    Ok(interval)
}

/// An object that can be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

/// Kind of an object, as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Kind of Kubernetes itself: its name, and the group and version of its API.
    OfKubernetes(&'static str, &'static str),
    /// Word for another kind, such as `raycluster` or `jobs.batch.volcano.sh`, which the API server has to know.
    Other(String),
}

/// The words of each kind, as kubectl knows them.
const KINDS: [(&[&str], &str, &str); 7] = [
    (&["pod", "pods", "po"], "Pod", "v1"),
    (&["deployment", "deployments", "deploy"], "Deployment", "apps/v1"),
    (&["statefulset", "statefulsets", "sts"], "StatefulSet", "apps/v1"),
    (&["daemonset", "daemonsets", "ds"], "DaemonSet", "apps/v1"),
    (&["replicaset", "replicasets", "rs"], "ReplicaSet", "apps/v1"),
    (&["job", "jobs"], "Job", "batch/v1"),
    (&["cronjob", "cronjobs", "cj"], "CronJob", "batch/v1"),
];

impl Object {
    fn parse(text: &str) -> Result<Object, String> {
        let (word, name) = text.split_once('/').ok_or("say KIND/NAME, such as pod/trainer-0")?;
        if word.is_empty() || !word.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-') {
            return Err(format!("{word:?} is no kind"));
        }
        Subdomain::new("the object", name).map_err(|error| error.to_string())?;
        let word = word.to_lowercase();
        let found = KINDS.iter().find(|(words, ..)| words.contains(&word.as_str()));
        let kind = found.map_or(Kind::Other(word), |(_, kind, version)| Kind::OfKubernetes(kind, version));
        Ok(Object { kind, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn all_namespaces_are_asked_for_as_kubectl_has_it() {
        let args = |line: &str| Args::try_parse_from(line.split(' ')).and_then(Args::checked);
        for line in ["x peers -A", "x -A check", "x routes --all-namespaces -n ml"] {
            assert!(args(line).unwrap().all_namespaces, "{line}");
        }
        let refused = args("x explain pod/a -A").unwrap_err();
        assert_eq!((refused.kind(), refused.exit_code()), (ErrorKind::ArgumentConflict, 2));
        let exchange = |line: &str| match args(line).unwrap().command {
            Command::Routes { exchange, .. } => exchange,
            other => unreachable!("{other:?}"),
        };
        assert_eq!(exchange("x routes").as_deref(), Some("default"));
        assert_eq!(exchange("x routes -A --exchange default").as_deref(), Some("default"));
        assert_eq!(exchange("x routes -A"), None, "every one");
    }

    #[test]
    fn an_interval_is_a_number_and_a_unit_and_not_too_short() {
        let parsed = |text| interval(text).map(|interval| interval.as_millis());
        assert_eq!([parsed("100ms"), parsed("2s"), parsed("1m")], [Ok(100), Ok(2_000), Ok(60_000)]);
        for wrong in ["", "5", "s", "99ms", "1h", "-1s", "99999999999999999999s", "9999999999999999m"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert!(Args::try_parse_from(["x", "routes", "--interval", "1s"]).is_err(), "only with --watch");
    }

    #[test]
    fn objects_are_named_as_kubectl_names_them() {
        let parsed = |text| Object::parse(text).map(|object| (object.kind, object.name));
        assert_eq!(parsed("po/a"), Ok((Kind::OfKubernetes("Pod", "v1"), "a".to_owned())));
        assert_eq!(parsed("Deploy/b"), Ok((Kind::OfKubernetes("Deployment", "apps/v1"), "b".to_owned())));
        let other = Kind::Other("jobs.batch.volcano.sh".to_owned());
        assert_eq!(parsed("Jobs.batch.volcano.sh/c"), Ok((other, "c".to_owned())));
        for wrong in ["a", "pod/", "pod/a/b", "/a", "pod/a?watch=true", "pod/..", "a b/c", "\u{1b}/c"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
