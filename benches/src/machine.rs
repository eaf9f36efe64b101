//! Facts that are worth knowing of the machine beside its numbers.

use std::fs;

use anyhow::{Context, Result};

use crate::cores::Cores;

/// Line with processor, cores, memory, kernel.
pub fn description(cores: Cores) -> String {
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "an unknown processor".into());
    let memory = field("/proc/meminfo", "MemTotal").and_then(|text| gibibytes(&text));
    let memory = memory.map_or_else(String::new, |gib| format!(", {gib:.0} GiB"));
    let kernel = line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "?".into());
    format!("{processor}, {} cores{memory}, Linux {kernel}", cores.count)
}

/// The congestion control of new TCP connections.
pub fn congestion_control() -> String {
    line("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_else(|| "unknown".into())
}

/// Bytes of a field of a file of the kernel that has them in `kB`, such as `VmPTE:` of `/proc/self/status`.
///
/// # Errors
/// There is no such file or field.
pub fn bytes_of(file: &str, field: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    let value = value.and_then(|value| value.trim().strip_suffix(" kB"));
    let value = value.with_context(|| format!("{file} has no {field}"))?;
    Ok(value.trim().parse::<u64>()? << 10)
}

/// Bytes of memory that may be taken without anything being driven out.
///
/// # Errors
/// The kernel does not say.
pub fn available_memory() -> Result<u64> {
    bytes_of("/proc/meminfo", "MemAvailable:")
}

/// Nanoseconds for which threads of a process that live now have had a core.
///
/// # Errors
/// It is gone, or the kernel does not count.
pub fn processor_ns(process: u32) -> Result<u64> {
    let tasks = format!("/proc/{process}/task");
    let mut sum = 0;
    for task in fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
        let file = task?.path().join("schedstat");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let first = text.split_whitespace().next();
        let first = first.with_context(|| format!("{} is empty", file.display()))?;
        sum += first.parse::<u64>().with_context(|| format!("{} says {text:?}", file.display()))?;
    }
    Ok(sum)
}

fn gibibytes(kibibytes: &str) -> Option<f64> {
    let number: f64 = kibibytes.split_whitespace().next()?.parse().ok()?;
    Some(number / f64::from(1 << 20))
}

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The value of the first line `name : value`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn time_on_a_core_grows_with_work_alone() {
        let used = || processor_ns(std::process::id()).unwrap();
        let before = used();
        let mut sum = 0u64;
        while used() < before + 1_000_000 {
            sum = black_box((0..10_000u64).fold(sum, u64::wrapping_add));
        }
        assert!(processor_ns(u32::MAX).is_err(), "there is no such process");
    }
}
