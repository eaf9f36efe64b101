//! Cores that a thread may run on: for benchmarks with both ends of a round trip on different cores.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores this thread may run on, ascending.
///
/// # Errors
/// What the kernel says.
pub fn cores() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Keeps this thread on one core.
///
/// # Errors
/// `InvalidInput` where the process may not use that core.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_run_on_its_core_alone() {
        let pinned = std::thread::spawn(|| {
            let last = *cores().unwrap().last().unwrap();
            pin_to_core(last).unwrap();
            (last, cores().unwrap())
        });
        let (core, now) = pinned.join().unwrap();
        assert_eq!(now, vec![core]);
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        assert!(pin_to_core(usize::MAX).is_err());
    }
}
