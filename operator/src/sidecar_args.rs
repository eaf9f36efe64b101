//! Arguments for what sidecars get if neither pod nor exchange says anything, on a command line: the operator's, and
//! that of whoever asks what the operator would do.

use tensorlane_proto::crd::LogLevel;

use crate::annotations::{ARENA_MAX, ARENA_MIN, BASE_MAX, BASE_MIN, SEATS, SEATS_MAX, cpu, memory};
use crate::plan::Defaults;
use crate::quantity::Amount;

/// Arguments for what sidecars get if neither pod nor exchange says anything.
#[derive(Clone, Debug, clap::Args)]
pub struct SidecarArgs {
    /// When the sidecar's image is pulled: Always, IfNotPresent or Never.
    #[arg(long, value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    sidecar_image_pull_policy: Option<String>,
    /// Bytes that tensors may take.
    #[arg(long, default_value = "1Gi", value_name = "BYTES", value_parser = |text: &str| memory(text, ARENA_MIN, ARENA_MAX))]
    sidecar_arena_size: Amount,
    /// Bytes beside them, for up to 256 seats; each further one adds 1Mi.
    #[arg(long, default_value = "256Mi", value_name = "BYTES", value_parser = |text: &str| memory(text, BASE_MIN, BASE_MAX))]
    sidecar_memory: Amount,
    /// Seats: peers that a sidecar has connected at once.
    #[arg(long, default_value_t = SEATS, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(SEATS_MAX)))]
    sidecar_peers_max: u32,
    /// Processor time to request.
    #[arg(long, default_value = "100m", value_name = "CPU", value_parser = cpu)]
    sidecar_cpu: Amount,
    /// Level of the sidecars' log: error, warn, info, debug or trace.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    sidecar_log_level: LogLevel,
    /// The user and group that sidecars run as; 0 leaves it to the platform (OpenShift).
    #[arg(long, default_value_t = 64646, value_name = "UID")]
    sidecar_user: u32,
    /// Pods have IPv6 addresses, alone or beside those of IPv4.
    #[arg(long)]
    ipv6: bool,
}

/// The name of an image: anything without spaces, which a registry checks.
///
/// # Errors
/// The text is empty or has spaces.
pub fn image(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(char::is_whitespace) {
        true => Err(
            "it is no image: write its repository and tag or digest, such as registry.example.org/sidecar:1"
                .to_owned(),
        ),
        false => Ok(text.to_owned()),
    }
}

impl SidecarArgs {
    /// Defaults of the planner, with this image.
    pub fn defaults(&self, image: String) -> Defaults {
        Defaults {
            image,
            image_pull_policy: self.sidecar_image_pull_policy.clone(),
            arena: self.sidecar_arena_size,
            base: self.sidecar_memory,
            seats: self.sidecar_peers_max,
            cpu: self.sidecar_cpu,
            log_level: self.sidecar_log_level,
            user: (self.sidecar_user != 0).then(|| i64::from(self.sidecar_user)),
            ipv6: self.ipv6,
        }
    }
}
