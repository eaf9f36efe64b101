//! The heap of this process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Gives memory of the heap that is free back to the kernel. The allocator keeps what small objects left, for the next ones: a crowd of
/// them that is gone stays charged otherwise. Takes milliseconds where there is much.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call may be made at any time, by any thread; nothing that is in use moves.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Allocations of all threads of this process so far, where [`CountingAllocator`] is its allocator.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, which counts what is asked of it: for programs that prove that something allocates nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct CountingAllocator;

impl CountingAllocator {
    /// Allocations so far, those included that made another one larger. 0 where another allocator is used.
    #[must_use]
    pub fn allocations() -> u64 {
        ALLOCATIONS.load(Ordering::Relaxed)
    }
}

// SAFETY: every call goes to the system's allocator as it came. Counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise; the pointer is the system's.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; the pointer is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}
