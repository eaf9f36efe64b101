//! Helpers that the tests of this crate share.

use std::process::{Child, Command};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// A child has a copy of every descriptor until it ends, and tests run side by side: whoever wants an end of a pipe or socket to
/// be the only one keeps children away.
static CHILDREN: RwLock<()> = RwLock::new(());

/// No child begins while this is held.
pub(crate) fn without_children() -> RwLockReadGuard<'static, ()> {
    CHILDREN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `check` in a forked child and tells whether it returned true. It must not allocate much nor take locks:
/// other threads of the test binary do not exist in the child.
pub(crate) fn in_child(check: impl FnOnce() -> bool) -> bool {
    exit_code_of(|| i32::from(!check())) == 0
}

/// Runs `run` in a forked child and returns its exit code (or 1000 + signal).
pub(crate) fn exit_code_of(run: impl FnOnce() -> i32) -> i32 {
    let _alone = CHILDREN.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the child only runs `run` and leaves by `_exit`, never returning into the test harness.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "cannot fork");
        if pid == 0 {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(99);
            libc::_exit(code);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + libc::WTERMSIG(status) }
    }
}

/// Starts a program. Until it is another one than this, it has a copy of every descriptor, too.
pub(crate) fn spawned(command: &mut Command) -> Child {
    let _alone = CHILDREN.write().unwrap_or_else(PoisonError::into_inner);
    command.spawn().expect("it can be started")
}

/// Waits for a condition, with a deadline.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::yield_now();
    }
}
