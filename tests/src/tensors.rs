//! Tensors whose bytes follow from a number, so that any process can tell whether it sees the right ones.

use std::time::Duration;

use tensorlane_client::{Client, Error, PutOptions, Result, Stored, Tensor};
use tensorlane_proto::{DType, Descriptor, Layout, Metadata, Reason, Shape};

use crate::wait::until;

/// The metadata key under which the number of a pattern travels.
pub const SEED: &str = "seed";

/// A small generator of numbers (splitmix64): the same seed, the same numbers.
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// The numbers of a seed.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next one, below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit
    }
}

/// The `count` bytes that belong to a seed.
pub fn pattern(seed: u64, count: usize) -> Vec<u8> {
    let mut numbers = Numbers::of(seed);
    let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| numbers.draw().to_le_bytes()).collect();
    bytes.truncate(count);
    bytes
}

/// A dense tensor in host memory.
///
/// # Panics
/// Where there can be no such tensor.
pub fn dense(dtype: DType, shape: &[u64]) -> Descriptor {
    let shape = Shape::new(shape).expect("a shape");
    Descriptor::host(Layout::contiguous(dtype, shape).expect("a layout"))
}

/// A row of bytes.
pub fn u8s(count: u64) -> Descriptor {
    dense(DType::U8, &[count])
}

/// A row of bytes whose metadata say which pattern they are.
///
/// # Panics
/// Never: one short entry is no metadata over a limit.
pub fn seeded(seed: u64, count: u64) -> Descriptor {
    let metadata = Metadata::new([(SEED, seed.to_string())]).expect("one short entry");
    Descriptor { metadata, ..u8s(count) }
}

/// Puts the pattern of a seed.
///
/// # Errors
/// As [`Client::put`].
pub fn put_pattern(client: &Client, seed: u64, count: u64, options: &PutOptions) -> Result<Stored> {
    client.put(&seeded(seed, count), &pattern(seed, count as usize), options)
}

/// Puts the patterns of `seed` and the seeds behind it until the arena has no room for one more, and has more than `least`.
///
/// # Panics
/// Where a put fails for another reason, or the arena is never full.
pub fn fill(client: &Client, seed: u64, count: u64, least: usize) -> Vec<Stored> {
    let brief = PutOptions { deadline: Some(Duration::from_secs(1)), ..PutOptions::new() };
    let mut stored = Vec::new();
    until("there is no room", || match put_pattern(client, seed + stored.len() as u64, count, &brief) {
        Ok(one) => {
            stored.push(one);
            false
        }
        Err(error) => {
            // On a busy machine a segment is made too late, or the client hears too late that there is no room.
            let is_full = error.reason() == Some(Reason::ArenaFull);
            let is_late = matches!(error, Error::DeadlineExceeded { .. })
                || error.reason() == Some(Reason::DeadlineExceeded);
            assert!(is_full || is_late, "{error}");
            is_full && stored.len() > least
        }
    });
    stored
}

/// Returns whether a whole tensor shows exactly the bytes that its metadata promise.
///
/// # Panics
/// Where the tensor was not put by [`put_pattern`].
pub fn is_intact(tensor: &Tensor) -> bool {
    let seed = tensor.descriptor().metadata.value(SEED).and_then(|seed| seed.parse().ok());
    tensor.to_vec() == pattern(seed.expect("a seeded tensor"), tensor.packed_len())
}

/// The file behind the bytes of a tensor in this process, and where in it they begin, as `DEVICE:INODE+OFFSET`: whoever has the
/// same maps the same pages.
///
/// # Panics
/// Where the tensor has no bytes, or the kernel does not say.
pub fn pages(tensor: &Tensor) -> String {
    let start = tensor.view().expect("bytes").as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let hex = |digits: &str| usize::from_str_radix(digits, 16).expect("a number");
    let found = maps.lines().find_map(|line| {
        // from-to permissions offset device inode path
        let words: Vec<&str> = line.split_whitespace().collect();
        let (from, to) = words[0].split_once('-')?;
        let (from, to) = (hex(from), hex(to));
        let at = || format!("{}:{}+{}", words[3], words[4], hex(words[2]) + (start - from));
        (from..to).contains(&start).then(at)
    });
    found.expect("it is mapped")
}
