//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use tensorlane_proto::crd::LogLevel;

use crate::annotations::{ARENA_MAX, ARENA_MIN, BASE_MAX, BASE_MIN, cpu, memory};
use crate::plan::Defaults;
use crate::quantity::Amount;

/// Injects Tensorlane's sidecars, and keeps the objects of exchanges and peers.
#[derive(Clone, Debug, Parser)]
#[command(name = "tensorlane-operator", version)]
pub struct Args {
    /// This replica's name: its pod's.
    #[arg(long, env = "POD_NAME")]
    pod_name: String,
    /// The namespace that the operator runs in. Its pods get no sidecars.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// Where the webhook is served.
    #[arg(long, default_value = "0.0.0.0:9443", value_name = "ADDRESS")]
    pub webhook_listen: SocketAddr,
    /// Where /metrics, /livez and /readyz are served.
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
    #[command(flatten)]
    sidecar: Sidecar,
    /// How much is logged: error, warn, info, debug or trace.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    pub log_level: LogLevel,
}

/// What sidecars get where neither pod nor exchange says anything.
#[derive(Clone, Debug, clap::Args)]
struct Sidecar {
    /// The sidecar's image, best with its digest.
    #[arg(long, value_name = "IMAGE")]
    sidecar_image: String,
    /// When the image is pulled: Always, IfNotPresent or Never.
    #[arg(long, value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    sidecar_image_pull_policy: Option<String>,
    /// Bytes that tensors may take.
    #[arg(long, default_value = "1Gi", value_name = "BYTES", value_parser = |text: &str| memory(text, ARENA_MIN, ARENA_MAX))]
    sidecar_arena_size: Amount,
    /// Bytes beside them.
    #[arg(long, default_value = "256Mi", value_name = "BYTES", value_parser = |text: &str| memory(text, BASE_MIN, BASE_MAX))]
    sidecar_memory: Amount,
    /// Processor time to request.
    #[arg(long, default_value = "100m", value_name = "CPU", value_parser = cpu)]
    sidecar_cpu: Amount,
    /// How much sidecars log.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    sidecar_log_level: LogLevel,
    /// The user and group that sidecars run as; 0 leaves it to the platform (OpenShift).
    #[arg(long, default_value_t = 64646, value_name = "UID")]
    sidecar_user: u32,
    /// Pods have IPv6 addresses only.
    #[arg(long)]
    ipv6: bool,
}

impl Args {
    /// Who this replica is.
    pub fn identity(&self) -> String {
        self.pod_name.clone()
    }

    /// What sidecars get where nobody else says anything.
    pub fn defaults(&self) -> Defaults {
        let sidecar = &self.sidecar;
        Defaults {
            image: sidecar.sidecar_image.clone(),
            image_pull_policy: sidecar.sidecar_image_pull_policy.clone(),
            arena: sidecar.sidecar_arena_size,
            base: sidecar.sidecar_memory,
            cpu: sidecar.sidecar_cpu,
            log_level: sidecar.sidecar_log_level,
            user: (sidecar.sidecar_user != 0).then(|| i64::from(sidecar.sidecar_user)),
            ipv6: sidecar.ipv6,
        }
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
    }

    #[test]
    fn our_own_namespace_is_always_excluded() {
        let excluded = args(&["--exclude-namespaces=kube-system,other"]).unwrap().excluded();
        assert_eq!(excluded, ["kube-system", "other", "system"]);
    }

    /// What the installation says must be what the program understands.
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
