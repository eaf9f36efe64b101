//! Check whether the arena fits into the container.
//!
//! Populating memory beyond the container's limit is no error that could be handled: the kernel kills. So it is
//! refused before the first page.

use tensorlane_memory::limits::MemoryLimit;

use super::Config;
use super::values::{GI, KI, MI, bytes_text};

/// The arena does not fit into the container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "arena.size {} and arena.base {} need {} bytes, and the container's memory limit is {} bytes ({}): \
     raise the limit to at least {}, or set TENSORLANE_ARENA_SIZE to at most {}",
    bytes_text(*size), bytes_text(*base), needed(*size, *base), limit.bytes, limit.path.display(),
    mebibytes_up(needed(*size, *base)), mebibytes_down(limit.bytes.saturating_sub(*base))
)]
pub struct ArenaAboveLimit {
    /// `arena.size`, bytes.
    pub size: u64,
    /// `arena.base`, bytes.
    pub base: u64,
    /// Limit that there is.
    pub limit: MemoryLimit,
}

/// Refuses an arena that, with the memory beside it, is above the container's limit. Without a limit all is well.
///
/// # Errors
/// Both numbers, and what to set.
pub fn check_memory(config: &Config, limit: Option<MemoryLimit>) -> Result<(), ArenaAboveLimit> {
    let (size, base) = (config.arena.size, config.arena.base);
    match limit {
        Some(limit) if needed(size, base) > limit.bytes => Err(ArenaAboveLimit { size, base, limit }),
        _ => Ok(()),
    }
}

/// Bytes that arena and the memory beside it need, and those of the machine, where it has fewer. No limit would say so,
/// and no start fails: others may need less than they have, and swap is not counted.
#[must_use]
pub fn above_machine(config: &Config, meminfo: &str) -> Option<(u64, u64)> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = total.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.saturating_mul(KI);
    let needed = needed(config.arena.size, config.arena.base);
    (needed > total).then_some((needed, total))
}

fn needed(size: u64, base: u64) -> u64 {
    size.saturating_add(base)
}

fn mebibytes_up(bytes: u64) -> String {
    bytes_text(bytes.div_ceil(MI).saturating_mul(MI))
}

fn mebibytes_down(bytes: u64) -> String {
    let whole = if bytes >= GI { bytes / (64 * MI) * (64 * MI) } else { bytes / MI * MI };
    bytes_text(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(bytes: u64) -> Option<MemoryLimit> {
        Some(MemoryLimit { bytes, path: "/sys/fs/cgroup/memory.max".into() })
    }

    #[test]
    fn an_arena_above_the_memory_of_the_machine_is_told() {
        let config = Config::of(&[("arena.size", "2Gi"), ("arena.base", "256Mi")]).unwrap();
        let needed = 2 * GI + 256 * MI;
        let above =
            |bytes: u64| above_machine(&config, &format!("MemTotal:   {} kB\nMemFree: 1 kB\n", bytes / KI));
        assert_eq!((above(needed), above(needed - KI)), (None, Some((needed, needed - KI))));
        assert_eq!(above_machine(&config, ""), None);
    }

    #[test]
    fn an_arena_above_the_limit_is_refused_with_both_numbers_and_what_to_set() {
        let config = Config::of(&[("arena.size", "2Gi"), ("arena.base", "256Mi")]).unwrap();
        assert!(check_memory(&config, None).is_ok());
        assert!(check_memory(&config, limit(2 * GI + 256 * MI)).is_ok());
        let error = check_memory(&config, limit(2 * GI)).unwrap_err().to_string();
        for part in ["2415919104", "2147483648", "memory.max", "2304Mi", "TENSORLANE_ARENA_SIZE", "1792Mi"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
}
