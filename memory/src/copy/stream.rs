//! Stores that bypass the caches, two cache lines at a time.

use std::arch::x86_64::{
    __m256i, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256,
};
use std::ptr::{copy_nonoverlapping, null, null_mut};

use super::lots::OneCopy;

const STRIDE: usize = 128;
/// Distance ahead of the loads at which lines are asked for.
const AHEAD: usize = 1024;
/// From here on a copy of many is written past the caches.
const MANY_FROM: usize = 1 << 10;
/// Bytes of the next copy that are fetched while one is made: a part of the inner caches.
const FETCH: usize = 32 << 10;

/// Copies one range.
///
/// # Safety
/// As `copy_nonoverlapping`, on a processor with AVX.
#[target_feature(enable = "avx")]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        store(from, to, len, (null(), 0));
        // Such stores are ordered with nothing; from here on they are seen by whoever is told of them.
        _mm_sfence();
    }
}

/// Makes copies in their order: where two destinations meet, the later one stays. While one is made, the next one's bytes are fetched.
///
/// # Safety
/// Both ranges of each copy are valid and do not overlap; on a processor with AVX.
#[target_feature(enable = "avx")]
pub(super) unsafe fn copy_all(copies: &[OneCopy]) {
    // SAFETY: the caller's promise.
    unsafe {
        // End of what was written since the last fence.
        let mut end: *mut u8 = null_mut();
        for (index, one) in copies.iter().enumerate() {
            if one.to < end {
                // Such stores are ordered with no later ones, not even with those to the same place.
                _mm_sfence();
                end = null_mut();
            }
            end = end.max(one.to.wrapping_add(one.len));
            match one.from {
                Some(from) if one.len >= MANY_FROM => {
                    let next = copies.get(index + 1).and_then(|next| Some((next.from?, next.len)));
                    store(from, one.to, one.len, next.unwrap_or((null(), 0)));
                }
                _ => one.make(),
            }
        }
        // As above, once for all of them.
        _mm_sfence();
    }
}

/// Copies one range by such stores. Line by line behind its own, the first bytes of `next` are fetched, so that both are under way at
/// once: where they lie is nothing that the processor foresees.
///
/// # Safety
/// As `copy_nonoverlapping`, on a processor with AVX. A fence follows before anybody is told.
#[target_feature(enable = "avx")]
unsafe fn store(from: *const u8, to: *mut u8, len: usize, (next, next_len): (*const u8, usize)) {
    let head = to.align_offset(STRIDE).min(len);
    let body = (len - head) / STRIDE * STRIDE;
    let tail = len - head - body;
    // With the last bytes of this one, as many as are fetched.
    let fetch_from = len - next_len.min(FETCH).min(len);
    // SAFETY: head, body and tail are the whole of both ranges, which are the caller's. The body's stores are
    // aligned, since the head ends where the destination is. A prefetch touches no memory, wherever it is.
    unsafe {
        copy_nonoverlapping(from, to, head);
        for at in (head..head + body).step_by(STRIDE) {
            let (source, target) = (from.add(at), to.add(at));
            _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(AHEAD).cast());
            _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(AHEAD + 64).cast());
            if at >= fetch_from {
                let fetched = next.wrapping_add(at - fetch_from);
                _mm_prefetch::<_MM_HINT_T1>(fetched.cast());
                _mm_prefetch::<_MM_HINT_T1>(fetched.wrapping_add(64).cast());
            }
            let (source, target) = (source.cast::<__m256i>(), target.cast::<__m256i>());
            let lines = [0, 1, 2, 3].map(|at| _mm256_loadu_si256(source.add(at)));
            for (at, line) in lines.into_iter().enumerate() {
                _mm256_stream_si256(target.add(at), line);
            }
        }
        copy_nonoverlapping(from.add(head + body), to.add(head + body), tail);
    }
}
