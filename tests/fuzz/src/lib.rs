//! Fuzzing of decoders within the tests, on the stable toolchain: valid inputs, mutated by a seed, and the bounds that a decoder keeps
//! with all of them.
//!
//! ```text
//!   corpus (valid) --mutate(seed)--> input --> decode: taken or refused
//!                                               never a panic, never more memory than stated, never for long
//! ```
//! Round trips are the decoder's own part: what it takes it encodes, and decodes again to the same.
//!
//! `TENSORLANE_FUZZ_SEED=7` repeats one input of each target; `TENSORLANE_FUZZ_RUNS=1000000` makes so many, from a seed that is
//! drawn by the clock.

mod dice;
mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

pub use self::dice::Dice;
pub use self::mutate::{INPUT_MAX, mutate};

/// Inputs of a target where no other number is asked for.
const RUNS: u64 = 4000;
/// Repeats one input: its seed.
const SEED: &str = "TENSORLANE_FUZZ_SEED";
/// Makes so many inputs, from a seed drawn by the clock.
const ASKED: &str = "TENSORLANE_FUZZ_RUNS";
/// Time that a decoder may take for one input. A machine that stands still takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a decoder and tells the most bytes of the heap that it had at a time.
pub type Meter = fn(&mut dyn FnMut()) -> usize;

/// A decoder under test, and its bounds.
pub struct Target {
    /// Name of the decoder, in messages.
    pub name: &'static str,
    /// Valid inputs: each has to be taken as it is.
    pub corpus: Vec<Vec<u8>>,
    /// Most bytes of the heap for each byte of an input.
    pub times: usize,
    /// Bytes of the heap that it may have besides, however short the input.
    pub spare: usize,
    /// Meter of the heap.
    pub meter: Meter,
}

/// Fuzzes a decoder, which says whether it took an input.
///
/// # Panics
/// A bound was broken: the message has the target, the seed and the input.
pub fn fuzz(target: Target, decode: impl Fn(&[u8]) -> bool + Send + 'static) {
    let name = target.name;
    let (tell, told) = channel();
    let seeds = seeds();
    println!("{name}: seeds {} to {}", seeds.start, seeds.end - 1);
    let worker = std::thread::spawn(move || {
        for input in &target.corpus {
            assert!(target.met(input, &decode), "{name}: a valid input was refused: {}", shown(input));
        }
        for seed in seeds {
            let mut dice = Dice(seed);
            let chosen = dice.below(target.corpus.len());
            let input = mutate(&target.corpus[chosen], &target.corpus, &mut dice);
            // Nobody hears it any more where an input before took too long.
            let _ = tell.send((seed, input.clone()));
            let outcome = catch_unwind(AssertUnwindSafe(|| target.met(&input, &decode)));
            assert!(outcome.is_ok(), "{name}: seed {seed}, input {}", shown(&input));
        }
    });
    let mut present = None;
    loop {
        match told.recv_timeout(PATIENCE) {
            Ok(begun) => present = Some(begun),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let (seed, input) = present.unwrap_or_default();
                panic!("{name}: seed {seed} goes on for more than {PATIENCE:?}, input {}", shown(&input));
            }
        }
    }
    assert!(worker.join().is_ok(), "{name}: see above");
}

impl Target {
    /// Decodes one input within its bound; whether it was taken.
    fn met(&self, input: &[u8], decode: &impl Fn(&[u8]) -> bool) -> bool {
        let mut taken = false;
        let bytes = (self.meter)(&mut || taken = decode(input));
        let most = self.times * input.len() + self.spare;
        assert!(
            bytes <= most,
            "{}: {bytes} bytes of memory for {} of input, at most {most}",
            self.name,
            input.len()
        );
        taken
    }
}

/// Seeds of this run: always the same where nothing is asked for.
pub fn seeds() -> std::ops::Range<u64> {
    let asked = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = asked(SEED) {
        return seed..seed + 1;
    }
    let Some(runs) = asked(ASKED) else { return 0..RUNS };
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    // Far below the end of the numbers.
    let first = now.as_nanos() as u64 >> 8;
    first..first + runs
}

/// An input as a literal of Rust, for a test that keeps it.
fn shown(input: &[u8]) -> String {
    format!("b\"{}\"", input.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Meter that is told what to say: a byte for each that was read.
    fn by_length(run: &mut dyn FnMut()) -> usize {
        run();
        READ.with(std::cell::Cell::take)
    }

    thread_local! {
        static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    fn target(times: usize) -> Target {
        let corpus = vec![b"tensor".to_vec(), b"lane".to_vec()];
        Target { name: "a test", corpus, times, spare: 0, meter: by_length }
    }

    fn read(input: &[u8]) -> bool {
        READ.with(|read| read.set(2 * input.len()));
        true
    }

    #[test]
    fn a_decoder_within_its_bounds_passes() {
        fuzz(target(2), read);
    }

    #[test]
    #[should_panic(expected = "a test: see above")]
    fn one_that_takes_more_memory_fails() {
        fuzz(target(1), read);
    }

    #[test]
    #[should_panic(expected = "a test: see above")]
    fn one_that_panics_for_one_of_the_inputs_fails() {
        fuzz(target(2), |input| {
            assert!(!input.is_empty(), "an input of no bytes");
            read(input)
        });
    }

    #[test]
    fn a_seed_makes_the_same_input_always_and_another_one_another() {
        let (input, others) = (b"tensorlane".to_vec(), vec![b"exchange".to_vec()]);
        let made = |seed| mutate(&input, &others, &mut Dice(seed));
        assert_eq!(made(7), made(7));
        let different: std::collections::BTreeSet<Vec<u8>> = (0..200).map(made).collect();
        assert!(different.len() > 150, "{}", different.len());
        assert!((0..4000).all(|seed| made(seed).len() <= INPUT_MAX));
    }
}
