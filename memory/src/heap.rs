//! The heap of this process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
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

/// Bytes that a thread has of the heap, and the most that it had: both since it was last asked. What it frees of others counts, too.
#[derive(Debug, Default, Clone, Copy)]
struct HeapShare {
    now: isize,
    most: isize,
}

thread_local! {
    static HEAP: Cell<HeapShare> = const { Cell::new(HeapShare { now: 0, most: 0 }) };
}

/// The system's allocator, which measures what each thread holds: for tests of what an input may cost.
#[derive(Debug, Default, Clone, Copy)]
pub struct MeteringAllocator;

impl MeteringAllocator {
    /// Runs something and returns the most bytes of the heap that it held at a time, on this thread. 0 where another allocator is
    /// used.
    pub fn peak_of(run: &mut dyn FnMut()) -> usize {
        HEAP.with(|held| held.set(HeapShare::default()));
        run();
        HEAP.with(|held| usize::try_from(held.get().most).unwrap_or(0))
    }

    /// The thread has so many bytes more, or less.
    fn changed(by: isize) {
        // A thread that is ending holds nothing that is measured.
        let _ = HEAP.try_with(|held| {
            let HeapShare { now, most } = held.get();
            let now = now.wrapping_add(by);
            held.set(HeapShare { now, most: most.max(now) });
        });
    }
}

// SAFETY: every call goes to the system's allocator as it came. Measuring allocates nothing.
unsafe impl GlobalAlloc for MeteringAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::changed(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::changed(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Both are there while one is copied into the other.
        Self::changed(bytes as isize);
        // SAFETY: the caller's promise; the pointer is the system's.
        let larger = unsafe { System.realloc(pointer, layout, bytes) };
        Self::changed(-(layout.size() as isize));
        larger
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::changed(-(layout.size() as isize));
        // SAFETY: the caller's promise; the pointer is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}
