//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use tensorlane_proto::crd::LogLevel;

use crate::plan::Defaults;
use crate::sidecar_args::{SidecarArgs, image};

/// Injects Tensorlane's sidecars, and keeps the objects of exchanges and peers.
#[derive(Clone, Debug, Parser)]
#[command(name = "tensorlane-operator", version)]
pub struct Args {
    /// Name of this replica: that of its pod.
    #[arg(long, env = "POD_NAME")]
    pod_name: String,
    /// The namespace that the operator runs in. Its pods get no sidecars.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// Address to serve the webhook on.
    #[arg(long, default_value = "0.0.0.0:9443", value_name = "ADDRESS")]
    pub webhook_listen: SocketAddr,
    /// Address to serve /metrics, /livez and /readyz on.
    #[arg(long, default_value = "0.0.0.0:9420", value_name = "ADDRESS")]
    pub admin_listen: SocketAddr,
    /// The Service in front of the webhook.
    #[arg(long, default_value = "tensorlane-webhook", value_name = "NAME")]
    pub webhook_service: String,
    /// The MutatingWebhookConfiguration that calls it.
    #[arg(long, default_value = "tensorlane", value_name = "NAME")]
    pub webhook_configuration: String,
    /// The Secret in which the webhook's authorities are kept.
    #[arg(long, default_value = "tensorlane-webhook-ca", value_name = "NAME")]
    pub webhook_secret: String,
    /// Serve tls.crt and tls.key of this directory instead, and leave the bundle to who made them (cert-manager).
    #[arg(long, value_name = "DIR")]
    pub webhook_certificates: Option<PathBuf>,
    /// The Lease by which one replica leads.
    #[arg(long, default_value = "tensorlane-operator", value_name = "NAME")]
    pub lease: String,
    /// Namespaces whose pods get no sidecars, besides our own.
    #[arg(long, default_value = "kube-system", value_delimiter = ',', value_name = "NAMES")]
    exclude_namespaces: Vec<String>,
    /// The sidecar's image, best with its digest.
    #[arg(long, value_name = "IMAGE", value_parser = image)]
    sidecar_image: String,
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Level of the log: error, warn, info, debug or trace.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    pub log_level: LogLevel,
}

impl Args {
    /// Identity of this replica.
    pub fn identity(&self) -> String {
        self.pod_name.clone()
    }

    /// Defaults that sidecars get if nobody else says anything.
    pub fn defaults(&self) -> Defaults {
        self.sidecar.defaults(self.sidecar_image.clone())
    }

    /// The namespaces whose pods get no sidecars.
    pub fn excluded(&self) -> Vec<String> {
        self.exclude_namespaces.iter().cloned().chain([self.namespace.clone()]).collect()
    }

    /// The names under which the API server may call the webhook.
    pub fn webhook_names(&self) -> Vec<String> {
        let name = format!("{}.{}.svc", self.webhook_service, self.namespace);
        vec![name.clone(), format!("{name}.cluster.local")]
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn args(more: &[&str]) -> Result<Args, clap::Error> {
        let least = ["operator", "--pod-name=a", "--namespace=system", "--sidecar-image=x"];
        Args::try_parse_from(least.iter().chain(more))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_planner() {
        let defaults = args(&[]).unwrap().defaults();
        assert_eq!(defaults, Defaults { image: "x".to_owned(), ..Defaults::default() });
        assert_eq!(args(&["--sidecar-user=0"]).unwrap().defaults().user, None);
    }

    #[test]
    fn sizes_that_a_sidecar_would_refuse_are_refused() {
        assert!(args(&["--sidecar-arena-size=1Mi"]).is_err());
        assert!(args(&["--sidecar-cpu=0"]).is_err());
        assert!(args(&["--sidecar-peers-max=0"]).is_err() && args(&["--sidecar-peers-max=10001"]).is_err());
        assert_eq!(args(&["--sidecar-peers-max=10000"]).unwrap().defaults().seats, 10_000);
        let image = |text| {
            Args::try_parse_from(["operator", "--pod-name=a", "--namespace=system", "--sidecar-image", text])
        };
        assert!(image("").is_err() && image("a b").is_err() && image("a:1").is_ok());
    }

    #[test]
    fn our_own_namespace_is_always_excluded() {
        let excluded = args(&["--exclude-namespaces=kube-system,other"]).unwrap().excluded();
        assert_eq!(excluded, ["kube-system", "other", "system"]);
    }

    /// Arguments that the installation gives must be what the program understands.
    #[test]
    fn the_arguments_of_the_installation_are_understood() {
        let all = crate::manifests::objects(&crate::manifests::Installation::default());
        let deployment = all.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let said = container["args"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
        let words = ["operator", "--pod-name=a", "--namespace=tensorlane-system"].into_iter().chain(said);
        Args::try_parse_from(words).unwrap();
    }
}
