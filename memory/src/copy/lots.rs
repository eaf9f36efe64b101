//! Copies that lie scattered, in lots. A lot is made by one thread, in order, and lots beside each other, with all cores where that pays.
//!
//! Together they are more than the caches hold, so they are written past them.

use super::{PARALLEL_FROM, Pool};

/// Bytes from which on a lot of runs is full: what one core may be behind the others at the end.
const LOT_BYTES: usize = 256 << 10;

/// Run of bytes that is copied.
#[derive(Debug, Clone, Copy)]
pub enum RunSource<'a> {
    /// Bytes that are there.
    Bytes(&'a [u8]),
    /// So many zeros.
    Zeros(usize),
}

impl RunSource<'_> {
    fn len(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(len) => len,
        }
    }
}

/// Copies runs one behind the other that together are more than the caches hold: past them, with all cores where that pays.
///
/// # Panics
/// Where they are not as long as `to` together.
pub fn copy_runs(to: &mut [u8], runs: &[RunSource<'_>]) {
    let len: usize = runs.iter().map(|run| run.len()).sum();
    assert_eq!(to.len(), len, "runs are as long as what they are copied to");
    let (mut lots, mut rest, mut full) = (Lots::default(), to, 0);
    for run in runs {
        if lots.len >= full {
            lots.begin();
            full = lots.len + LOT_BYTES;
        }
        let (to, behind) = std::mem::take(&mut rest).split_at_mut(run.len());
        rest = behind;
        let from = match run {
            RunSource::Bytes(bytes) => Some(bytes.as_ptr()),
            RunSource::Zeros(_) => None,
        };
        lots.add(OneCopy { to: to.as_mut_ptr(), from, len: run.len() });
    }
    // SAFETY: each copy has a part of `to` for itself, which is borrowed uniquely, so that no source overlaps with it.
    unsafe { lots.make() };
}

/// Copy of bytes, or of zeros where it is from nowhere.
pub(crate) struct OneCopy {
    pub(crate) to: *mut u8,
    pub(crate) from: Option<*const u8>,
    pub(crate) len: usize,
}

impl OneCopy {
    /// # Safety
    /// Both ranges are valid and do not overlap.
    pub(super) unsafe fn make(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.from {
                Some(from) => std::ptr::copy_nonoverlapping(from, self.to, self.len),
                None => std::ptr::write_bytes(self.to, 0, self.len),
            }
        }
    }
}

/// Copies in lots.
#[derive(Default)]
pub(crate) struct Lots {
    copies: Vec<OneCopy>,
    /// Bytes before each lot, and the index of its first copy.
    begun: Vec<(usize, usize)>,
    /// Bytes of all copies.
    len: usize,
}

impl Lots {
    /// Begins a lot, to which copies are added from now on.
    pub(crate) fn begin(&mut self) {
        self.begun.push((self.len, self.copies.len()));
    }

    /// Adds a copy to the lot that was begun last.
    pub(crate) fn add(&mut self, copy: OneCopy) {
        self.len += copy.len;
        self.copies.push(copy);
    }

    /// Makes all copies.
    ///
    /// # Safety
    /// All ranges are valid until this returns, and nobody else writes them or reads a destination. No source overlaps with a
    /// destination, and destinations of two lots do not overlap.
    pub(crate) unsafe fn make(&self) {
        let pool = if self.len >= PARALLEL_FROM && self.begun.len() > 1 { Pool::here() } else { None };
        let of = std::ptr::from_ref(self).cast();
        match pool {
            // SAFETY: the caller's promise; each lot begins in one piece, and `share` returns after the last helper let go.
            Some(pool) => unsafe { pool.share(of, make_piece, self.len) },
            // SAFETY: the caller's promise.
            None => unsafe { make_piece(of, 0, self.len) },
        }
    }

    /// Copies of the lots that begin in a piece.
    fn beginning_in(&self, at: usize, len: usize) -> &[OneCopy] {
        let first_copy = |at: usize| {
            let lot = self.begun.partition_point(|(before, _)| *before < at);
            self.begun.get(lot).map_or(self.copies.len(), |(_, first)| *first)
        };
        &self.copies[first_copy(at)..first_copy(at + len)]
    }
}

/// Makes the copies of the lots that begin in a piece.
///
/// # Safety
/// `of` is [`Lots`] that may be made, and nobody else makes this piece.
unsafe fn make_piece(of: *const (), at: usize, len: usize) {
    // SAFETY: the caller's promise.
    let lots = unsafe { &*of.cast::<Lots>() };
    let copies = lots.beginning_in(at, len);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise, on a processor with AVX.
        return unsafe { super::stream::copy_all(copies) };
    }
    for copy in copies {
        // SAFETY: the caller's promise.
        unsafe { copy.make() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]).collect()
    }

    #[test]
    fn runs_arrive_whole_wherever_they_begin() {
        let from = pattern(1 << 17);
        for len in [0, 1, 1023, 1024, 1025, 16 << 10, (64 << 10) + 7] {
            for at in [0, 1, 77] {
                let mut to = vec![9; at + 2 * len + 1];
                let runs = [RunSource::Bytes(&from[at..at + len]), RunSource::Bytes(&from[..len])];
                copy_runs(&mut to[at..at + 2 * len], &runs);
                assert!(to[at..at + len] == from[at..at + len], "{len} at {at}");
                assert!(to[at + len..at + 2 * len] == from[..len], "{len} at {at}");
                assert!(to[..at].iter().chain(&to[at + 2 * len..]).all(|byte| *byte == 9));
            }
        }
    }

    #[test]
    fn runs_of_every_length_and_zeros_arrive_in_their_order_by_all_cores() {
        let from = pattern(3 << 20);
        let lengths = [0, 7, 1 << 20, 4096, 1025, 300 << 10, 1, (2 << 20) + 13, 0, 64 << 10, 0];
        let (mut runs, mut due) = (Vec::new(), Vec::new());
        for (index, len) in lengths.into_iter().cycle().take(5 * lengths.len()).enumerate() {
            if index % 4 == 3 {
                runs.push(RunSource::Zeros(len));
                due.resize(due.len() + len, 0);
            } else {
                runs.push(RunSource::Bytes(&from[index..index + len]));
                due.extend_from_slice(&from[index..index + len]);
            }
        }
        assert!(due.len() > PARALLEL_FROM);
        let mut to = vec![1; due.len()];
        copy_runs(&mut to, &runs);
        assert!(to == due);
        copy_runs(&mut [], &[]);
    }

    #[test]
    #[should_panic(expected = "as long as what they are copied to")]
    fn runs_that_are_not_as_long_as_their_place_are_refused() {
        copy_runs(&mut [0; 3], &[RunSource::Zeros(2)]);
    }

    #[test]
    fn each_lot_begins_in_one_piece() {
        let mut lots = Lots::default();
        for (lot, len) in [3, 0, 5, 0].into_iter().enumerate() {
            lots.begin();
            // Its destination says which lot it is, and is never written.
            lots.add(OneCopy { to: std::ptr::without_provenance_mut(lot + 1), from: None, len });
        }
        let begun = |at, len| lots.beginning_in(at, len).iter().map(|one| one.to.addr()).collect::<Vec<_>>();
        assert_eq!((begun(0, 1), begun(1, 2), begun(3, 5)), (vec![1], vec![], vec![2, 3]));
        assert_eq!(begun(0, 8), [1, 2, 3], "the last one has no bytes");
    }
}
