//! The heap of this process.

/// Gives memory of the heap that is free back to the kernel. The allocator keeps what small objects left, for the next ones: a crowd of
/// them that is gone stays charged otherwise. Takes milliseconds where there is much.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call may be made at any time, by any thread; nothing that is in use moves.
    let _ = unsafe { libc::malloc_trim(0) };
}
