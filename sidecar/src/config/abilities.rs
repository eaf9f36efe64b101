//! Abilities of this release, of all that can be asked for.
//!
//! The words of an exchange are older than some of what they speak of. What may be used and is not there yet is a
//! transport less, and every reply names it; what is insisted on and cannot be had is refused at the start, all of it at
//! once, before anybody relies on it. Requirements of routes are no part of this: a route that does not meet them is
//! refused to whoever asks for it.

use std::fmt;

use tensorlane_proto::crd::GpuMode;
use tensorlane_proto::negotiate::Transport;

use super::Config;

/// Things that are asked for and cannot be had; at least one thing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Unable(pub Vec<Lack>);

/// A thing that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The setting.
    pub setting: &'static str,
    /// Value of the setting.
    pub value: String,
    /// Text of what is missing and what to do.
    pub wrong: &'static str,
}

/// Refuses a configuration that insists on what this release cannot do.
///
/// # Errors
/// All of it, each with what to do.
pub fn check_abilities(config: &Config) -> Result<(), Unable> {
    let all = [transports(config), gpu(config)];
    let lacks: Vec<Lack> = all.into_iter().flatten().collect();
    if lacks.is_empty() { Ok(()) } else { Err(Unable(lacks)) }
}

fn transports(config: &Config) -> Option<Lack> {
    let allowed = config.routes.transports?;
    let value = words(allowed.iter());
    let wrong = "quic carries nothing but the bytes of large tensors: add tcp, or shm for pods of one node";
    let is_enough = allowed.contains(Transport::Tcp) || allowed.contains(Transport::Shm);
    (!is_enough).then_some(Lack { setting: "transports", value, wrong })
}

fn gpu(config: &Config) -> Option<Lack> {
    let mode = config.gpu.mode;
    let wrong = "this release shares memory of GPUs by auto alone: say auto or none";
    let lack = Lack { setting: "gpu.mode", value: mode.to_string(), wrong };
    matches!(mode, GpuMode::Broker | GpuMode::LegacyIpc).then_some(lack)
}

fn words(all: impl Iterator<Item = Transport>) -> String {
    all.map(Transport::as_str).collect::<Vec<_>>().join(",")
}

/// `gpu.mode = broker: this release ...`
impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.setting, self.value, self.wrong)
    }
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration asks for what this release cannot do:")?;
        self.0.iter().try_for_each(|lack| write!(f, "\n  {lack}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks(pairs: &[(&str, &str)]) -> Vec<String> {
        let checked = check_abilities(&Config::of(pairs).unwrap());
        checked.err().map(|Unable(all)| all.iter().map(ToString::to_string).collect()).unwrap_or_default()
    }

    #[test]
    fn what_can_be_had_is_taken() {
        assert!(lacks(&[]).is_empty());
        for (setting, value) in [
            ("transports", "tcp"),
            ("transports", "shm,tcp,quic"),
            ("transports", "shm"),
            ("require", "encrypted"),
            ("require", "same_node,zero_copy"),
            ("encryption", "required"),
            ("encryption", "none"),
            ("gpu.mode", "none"),
            ("node.directory", "/n"),
        ] {
            assert!(lacks(&[(setting, value)]).is_empty(), "{setting}: {value}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_told_all_at_once_with_what_to_do() {
        let asked = [("transports", "cuda_ipc,quic"), ("gpu.mode", "broker")];
        let told = lacks(&asked);
        let expected = [("transports = cuda_ipc,quic", "add tcp"), ("gpu.mode = broker", "say auto or none")];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (told, (start, part)) in told.iter().zip(expected) {
            assert!(told.starts_with(start) && told.contains(part), "{told}");
        }
        assert_eq!(lacks(&[("gpu.mode", "legacy_ipc")]).len(), 1);
    }
}
