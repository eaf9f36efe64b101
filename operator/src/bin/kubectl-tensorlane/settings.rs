//! Settings that the operator was given on its command line, read from its Deployment. By them the planner of this
//! command decides as the operator's does.

use clap::Parser;
use serde_json::Value;
use tensorlane_operator::app::Args;
use tensorlane_operator::inspect::Seen;
use tensorlane_operator::plan::Defaults;

/// The settings that decide who is served, and how.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) defaults: Defaults,
    pub(crate) excluded: Vec<String>,
}

impl Settings {
    /// Reads the settings of a Deployment, or says why there are none.
    pub(crate) fn of(deployment: &Seen, namespace: &str) -> Result<Settings, String> {
        let deployment = match deployment {
            Seen::There(deployment) => deployment,
            Seen::Missing => {
                return Err(format!("there is no Deployment tensorlane-operator in {namespace}"));
            }
            Seen::Hidden(why) => return Err(why.clone()),
        };
        let said = deployment.pointer("/spec/template/spec/containers/0/args").and_then(Value::as_array);
        let said = said.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        let begin = ["operator".to_owned(), "--pod-name=-".to_owned(), format!("--namespace={namespace}")];
        let args = Args::try_parse_from(begin.into_iter().chain(said)).map_err(|error| {
            let sentence = error.to_string();
            format!(
                "its arguments are those of another release ({})",
                sentence.lines().next().unwrap_or_default()
            )
        })?;
        Ok(Settings { defaults: args.defaults(), excluded: args.excluded() })
    }

    /// Settings of an installation that changes nothing.
    pub(crate) fn usual(namespace: &str) -> Settings {
        Settings {
            defaults: Defaults::default(),
            excluded: vec!["kube-system".to_owned(), namespace.to_owned()],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(args: &Value) -> Seen {
        Seen::There(json!({"spec": {"template": {"spec": {"containers": [{"args": args}]}}}}))
    }

    #[test]
    fn the_settings_are_those_of_the_deployment() {
        let said = json!(["--sidecar-image=x", "--sidecar-arena-size=4Gi", "--exclude-namespaces=a"]);
        let settings = Settings::of(&deployment(&said), "system").unwrap();
        assert_eq!(
            (settings.defaults.image.as_str(), settings.excluded),
            ("x", vec!["a".to_owned(), "system".to_owned()])
        );
        assert_eq!(settings.defaults.arena.memory().0, "4Gi");
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let why =
            Settings::of(&deployment(&json!(["--sidecar-image=x", "--of-tomorrow"])), "system").unwrap_err();
        assert!(why.contains("another release") && why.contains("--of-tomorrow"), "{why}");
        assert!(Settings::of(&Seen::Missing, "system").unwrap_err().contains("no Deployment"));
    }
}
