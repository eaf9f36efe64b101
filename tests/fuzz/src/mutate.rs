//! Mutations: what becomes of a valid input before a decoder sees it.

use std::ops::Range;

use crate::dice::Dice;

/// Longest input that is made, in bytes.
pub const INPUT_MAX: usize = 64 << 10;
/// Most mutations of one input.
const MUTATIONS_MAX: u64 = 4;
/// Numbers that lie at an edge of some type or limit.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];
/// Words of texts that are numbers, or end something.
const WORDS: [&[u8]; 12] = [
    b"0",
    b"-1",
    b"18446744073709551615",
    b"99999999999999999999",
    b"1e999",
    b"[[",
    b"]",
    b"{",
    b"}",
    b"\"",
    b",",
    b"null",
];

/// Another input, made of one that is valid by one to four mutations. `others`: valid ones, of which pieces are taken.
pub fn mutate(input: &[u8], others: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=dice.roll(MUTATIONS_MAX) {
        mutate_once(&mut bytes, others, dice);
        bytes.truncate(INPUT_MAX);
    }
    bytes
}

fn mutate_once(bytes: &mut Vec<u8>, others: &[Vec<u8>], dice: &mut Dice) {
    match dice.roll(10) {
        0 => flip(bytes, dice),
        1 => overwrite(bytes, dice),
        2 => drop(bytes.drain(piece(bytes.len(), dice))),
        3 => repeat(bytes, dice),
        4 => {
            let (at, count) = (dice.below(bytes.len() + 1), 1 + dice.below(16));
            replace(bytes, at..at, &dice.bytes(count));
        }
        5 => bytes.truncate(dice.below(bytes.len() + 1)),
        6 => {
            let other = dice.pick(others).unwrap_or_default();
            let new = &other[piece(other.len(), dice)];
            replace(bytes, piece(bytes.len(), dice), new);
        }
        7 => {
            let (from, at) = (piece(bytes.len(), dice), dice.below(bytes.len() + 1));
            let copied = bytes[from].to_vec();
            replace(bytes, at..at, &copied);
        }
        8 => {
            let word = dice.pick(&WORDS).unwrap_or_default();
            replace(bytes, short(bytes.len(), dice), word);
        }
        _ => {
            let at = dice.below(bytes.len());
            let by = 1 + dice.roll(16) as u8;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = byte.wrapping_add(by);
            }
        }
    }
}

fn flip(bytes: &mut [u8], dice: &mut Dice) {
    let at = dice.below(bytes.len());
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << dice.roll(8);
    }
}

/// Writes a number from an edge over 1, 2, 4 or 8 bytes, in either order.
fn overwrite(bytes: &mut [u8], dice: &mut Dice) {
    let value = dice.pick(&EDGES).unwrap_or_default();
    let width = 1 << dice.roll(4);
    let written = match dice.one_in(2) {
        true => value.to_le_bytes()[..width].to_vec(),
        false => value.to_be_bytes()[8 - width..].to_vec(),
    };
    let at = dice.below(bytes.len());
    for (to, from) in bytes.iter_mut().skip(at).zip(written) {
        *to = from;
    }
}

/// Repeats a short piece many times: what costs little to say, and may cost much to keep.
fn repeat(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let of = short(bytes.len(), dice);
    if of.is_empty() {
        return;
    }
    let most = INPUT_MAX.saturating_sub(bytes.len()) / of.len();
    let times = match dice.one_in(4) {
        true => most,
        false => most.min(1 + dice.below(200)),
    };
    let (at, repeated) = (of.end, bytes[of].repeat(times));
    replace(bytes, at..at, &repeated);
}

/// Puts other bytes in the place of a piece.
fn replace(bytes: &mut Vec<u8>, piece: Range<usize>, by: &[u8]) {
    drop(bytes.splice(piece, by.iter().copied()));
}

/// A piece of so many bytes.
fn piece(length: usize, dice: &mut Dice) -> Range<usize> {
    let (one, other) = (dice.below(length + 1), dice.below(length + 1));
    one.min(other)..one.max(other)
}

/// A piece of at most 16 bytes.
fn short(length: usize, dice: &mut Dice) -> Range<usize> {
    let start = dice.below(length + 1);
    start..length.min(start + dice.below(17))
}
