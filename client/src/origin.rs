//! Process that a connection or a guard belongs to, and whether that process has forked since.
//!
//! A forked child inherits the socket and every guard, but none of the threads, and the locks as they happened to be.
//! It must touch neither socket nor lock: both belong to its parent.

use tensorlane_memory::fork::fork_count;

/// A process, and how often it had forked at some instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    process: u32,
    forks: u64,
}

/// Standing of this process to an [`Origin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Process of the origin, and it has no child made since.
    Same,
    /// Process of the origin; a child made since may still map what it mapped.
    Forked,
    /// A child of it.
    Child,
}

impl Origin {
    /// Origin of this process, now.
    pub(crate) fn here() -> Self {
        Self { process: std::process::id(), forks: fork_count() }
    }

    /// Origin of this process, anew. To be called in that process only; costs no system call.
    pub(crate) fn again(&self) -> Self {
        Self { process: self.process, forks: fork_count() }
    }

    /// Standing of this process to the origin. Costs no system call while nobody forks.
    pub(crate) fn standing(&self) -> Standing {
        if fork_count() == self.forks {
            Standing::Same
        } else if std::process::id() == self.process {
            Standing::Forked
        } else {
            Standing::Child
        }
    }

    /// True if this is a forked child of the origin.
    pub(crate) fn is_child(&self) -> bool {
        self.standing() == Standing::Child
    }
}

#[cfg(test)]
impl Origin {
    /// The parent of this process, as its child would remember it.
    pub(crate) fn parent() -> Self {
        Self { process: std::process::id() + 1, forks: fork_count().wrapping_sub(1) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_forked_and_a_child_are_told_apart() {
        let before = Origin::here();
        // A user id makes the standard library fork instead of spawning.
        assert!(Command::new("true").uid(rustix::process::getuid().as_raw()).status().unwrap().success());
        assert_eq!(before.standing(), Standing::Forked);
        assert_eq!(Origin::parent().standing(), Standing::Child);
    }
}
