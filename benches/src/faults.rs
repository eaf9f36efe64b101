//! Page faults, counted by the kernel: a copy into memory that is ready makes none.

use std::fs;

use anyhow::{Context, Result};

/// Page faults of a process so far, all its threads together: those without and with a disk.
///
/// # Errors
/// There is no such process.
pub fn of(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse(&stat).with_context(|| format!("{path} has no count of page faults"))
}

/// Fields 10 (minflt) and 12 (majflt) of proc_pid_stat(5). The name, field 2, may hold blanks and brackets.
fn parse(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(7);
    let minor: u64 = fields.next()?.parse().ok()?;
    let major: u64 = fields.nth(1)?.parse().ok()?;
    Some(minor + major)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strange_name_does_not_shift_the_fields() {
        assert_eq!(parse("7 (a) b) S 1 7 7 0 -1 4194560 120 9 3 1 0 0"), Some(123));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn touching_fresh_memory_is_seen() {
        let before = of(std::process::id()).unwrap();
        // Seen by nobody, the memory would not be touched at all.
        let fresh = std::hint::black_box(vec![1u8; 4 << 20]);
        let after = of(std::process::id()).unwrap();
        assert!(after - before >= 1000, "{} faults for {} bytes", after - before, fresh.len());
    }
}
