//! Forks of this process: their number, and tokens of the process that made something.
//!
//! A forked child has the parent's maps, descriptors and guards, but not its threads and not its standing with the
//! sidecar. So a guard remembers who made it, and a thread pool is not used where its threads do not exist.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Forks seen by this process, as parent or as child.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Number of forks between the first process that counted and this one.
static DEPTH: AtomicU64 = AtomicU64::new(0);
static REGISTER: Once = Once::new();

/// Counted before the fork as well as after it, so that what another thread drops in between is seen as shared.
extern "C" fn around_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    DEPTH.fetch_add(1, Ordering::Relaxed);
}

fn register() {
    REGISTER.call_once(|| {
        // SAFETY: the handlers only add to atomics, which is allowed between fork and exec. A failure (no memory)
        // leaves the counters still, and tokens fall back on the process id.
        let _ = unsafe { libc::pthread_atfork(Some(around_fork), Some(around_fork), Some(in_child)) };
    });
}

/// Number of times that this process was forked since the first call, counted in parent and child alike. What was made
/// at another count may be shared with a child.
#[must_use]
pub fn fork_count() -> u64 {
    register();
    FORKS.load(Ordering::Relaxed)
}

/// Runs `run` in a forked child, which ends with its result as the exit code; gives the child's process id. For tests:
/// the child has no thread but the caller's, so `run` must wait for nothing that another thread would do.
///
/// # Errors
/// The process cannot be forked.
#[cfg(feature = "testing")]
pub fn spawn_child(run: impl FnOnce() -> i32) -> std::io::Result<u32> {
    // SAFETY: the child runs `run` and leaves by `_exit`, never returning into code that was the parent's. What the
    // standard library allocates and prints there works, since the C library readies its own locks around a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(101);
        // SAFETY: it ends the process and touches nothing.
        unsafe { libc::_exit(code) };
    }
    // Only -1 is no process id.
    u32::try_from(pid).map_err(|_| std::io::Error::last_os_error())
}

/// Remembers the process that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessToken {
    pid: u32,
    depth: u64,
}

impl ProcessToken {
    /// A token of this process.
    #[must_use]
    pub fn current() -> Self {
        register();
        // The depth also tells apart a child whose process id is that of its dead grandparent.
        Self { pid: std::process::id(), depth: DEPTH.load(Ordering::Relaxed) }
    }
}

/// Returns whether the token was made by this very process.
#[must_use]
pub fn is_same_process(token: ProcessToken) -> bool {
    token == ProcessToken::current()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;

    #[test]
    fn a_fork_is_counted_in_parent_and_child_and_only_the_child_is_another_process() {
        let before = fork_count();
        let token = ProcessToken::current();
        let child = in_child(|| fork_count() > before && !is_same_process(token));
        assert!(child, "the child did not notice that it is one");
        assert!(fork_count() > before);
        assert!(is_same_process(token));
    }
}
