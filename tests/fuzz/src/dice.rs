//! Numbers that follow from a seed.

/// A small generator of numbers (splitmix64), with its state. Equal seeds give equal numbers on every machine.
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `sides`, which is at least 1.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    /// Index below `count`, and 0 where that is 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.roll(count.max(1) as u64) as usize
    }

    /// Returns whether one of so many chances came.
    pub fn one_in(&mut self, chances: u64) -> bool {
        self.roll(chances) == 0
    }

    /// Returns whether a chance of so many percent came.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.roll(100) < chance
    }

    /// Pick of several; none of nothing.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { of.get(self.below(of.len())).cloned() }
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll(256) as u8).collect()
    }
}
