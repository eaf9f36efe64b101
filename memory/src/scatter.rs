//! Runs of bytes that are written into many landings at once.

use crate::copy::{Lots, OneCopy};
use crate::{Landing, OutOfBounds};

/// Runs that are written into a landing in their order, each at its offset.
#[derive(Debug)]
pub struct Scattered<'a> {
    /// The landing.
    pub landing: &'a mut Landing,
    /// Offset of each run, and its bytes.
    pub runs: Vec<(u64, &'a [u8])>,
}

/// Writes runs that together are more than the caches hold: past them, with all cores where that pays. Each landing is written by one
/// thread. All runs are proven to fit before the first one is written.
///
/// # Errors
/// The first run that does not fit; then nothing is written.
pub fn scatter_runs(all: &mut [Scattered<'_>]) -> Result<(), OutOfBounds> {
    let mut lots = Lots::default();
    for Scattered { landing, runs } in all.iter() {
        lots.begin();
        for (offset, from) in runs {
            OutOfBounds::check(*offset, from.len() as u64, landing.len())?;
            let Some(start) = landing.start() else { continue };
            // SAFETY: the run lies inside the landing's block.
            let to = unsafe { start.add(*offset as usize) };
            lots.add(OneCopy { to, from: Some(from.as_ptr()), len: from.len() });
        }
    }
    // SAFETY: each destination lies inside a landing, which is borrowed uniquely and is the only one of its block. Sources are of
    // other memory: as long as the landing is borrowed, nobody has a slice of its bytes.
    unsafe { lots.make() };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Arena, ArenaOptions, Block, Purpose};

    const BYTES: u64 = 2 << 20;

    fn blocks() -> (Arc<Arena>, [Block; 3]) {
        let options = ArenaOptions { ready_bytes: 0, ..ArenaOptions::new(16 << 20) };
        let arena = Arena::start(options, Arc::new(|| {})).unwrap();
        let block = |_| arena.allocate_or_grow(Purpose::Put, BYTES).unwrap();
        let blocks = [0, 1, 2].map(block);
        blocks.iter().for_each(|block| block.landing().unwrap().chunk_mut(0..BYTES).unwrap().fill(0));
        (arena, blocks)
    }

    #[test]
    fn runs_are_written_in_their_order_and_nothing_beside_them() {
        let (_arena, blocks) = blocks();
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at >> 7) as u8 | 1).collect();
        let mut landings = blocks.each_ref().map(|block| block.landing().unwrap());
        let whole = vec![(0, &bytes[..])];
        // Where two runs meet, the later one stays.
        let twice = vec![(5, &[7_u8; 5000][..]), (3, &bytes[..2000]), (BYTES, &bytes[..0])];
        let runs = [whole.clone(), twice, whole];
        let mut all: Vec<_> =
            landings.iter_mut().zip(runs).map(|(landing, runs)| Scattered { landing, runs }).collect();
        scatter_runs(&mut all).unwrap();
        for at in [0, 2] {
            assert!(landings[at].chunk(0..BYTES).unwrap() == bytes, "block {at}");
        }
        let written = landings[1].chunk(0..BYTES).unwrap();
        assert!(written[3..2003] == bytes[..2000] && written[2003..5005] == [7; 3002]);
        assert!(written[..3].iter().chain(&written[5005..]).all(|byte| *byte == 0));
    }

    #[test]
    fn a_run_that_does_not_fit_is_refused_before_any_is_written() {
        let (_arena, blocks) = blocks();
        let [mut first, mut second] = [0, 1].map(|at: usize| blocks[at].landing().unwrap());
        let mut all = [
            Scattered { landing: &mut first, runs: vec![(0, &[1; 8][..])] },
            Scattered { landing: &mut second, runs: vec![(BYTES - 7, &[1; 8][..])] },
        ];
        let refused = scatter_runs(&mut all).unwrap_err();
        assert_eq!(refused, OutOfBounds { offset: BYTES - 7, len: 8, within: BYTES });
        assert_eq!(first.chunk(0..8).unwrap(), [0; 8]);
    }
}
