//! Messages of gRPC in the bytes of a body: how much of one has come that is not whole. A pure count.

/// Bytes in front of a message: a flag, and its length in four bytes.
const PREFIX_BYTES: usize = 5;

/// Count of one body.
#[derive(Debug, Default)]
pub(super) struct Framing {
    /// Prefix of the message that has begun.
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of that message so far, its prefix included.
    have: u64,
    /// Bytes of the largest message that became whole.
    largest: u64,
}

// === impl Framing ===

impl Framing {
    /// Bytes of a message that has begun and is not whole: the decoder keeps them.
    pub(super) fn partial(&self) -> usize {
        usize::try_from(self.have).unwrap_or(usize::MAX)
    }

    /// Bytes of the buffer that the decoder has: it grows with the largest message, and is not made smaller.
    pub(super) fn buffer(&self) -> usize {
        usize::try_from(self.have.max(self.largest)).unwrap_or(usize::MAX)
    }

    /// The next bytes of the body. Tells whether a message became whole with them.
    pub(super) fn take(&mut self, mut data: &[u8]) -> bool {
        let mut is_whole = false;
        while !data.is_empty() {
            let have = self.partial();
            if have < PREFIX_BYTES {
                let now = data.len().min(PREFIX_BYTES - have);
                self.prefix[have..have + now].copy_from_slice(&data[..now]);
                data = &data[now..];
                self.have += now as u64;
            } else {
                let left = self.total() - self.have;
                let now = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                data = &data[now..];
                self.have += now as u64;
            }
            if self.have >= PREFIX_BYTES as u64 && self.have == self.total() {
                self.largest = self.largest.max(self.have);
                self.have = 0;
                is_whole = true;
            }
        }
        is_whole
    }

    fn total(&self) -> u64 {
        let [_, length @ ..] = self.prefix;
        PREFIX_BYTES as u64 + u64::from(u32::from_be_bytes(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_whole_is_counted_wherever_the_body_is_cut() {
        let mut body = Vec::new();
        for length in [0_u32, 1, 700, 0, 3] {
            body.push(0);
            body.extend(length.to_be_bytes());
            body.extend(vec![7; length as usize]);
        }
        for step in 1..=body.len() {
            let mut framing = Framing::default();
            let mut whole = 0;
            let ends = [5, 11, 716, 721, 729];
            for (piece, at) in body.chunks(step).zip((0..).step_by(step)) {
                whole += usize::from(framing.take(piece));
                let end = at + piece.len();
                let begun = ends.iter().rev().find(|e| **e <= end).copied().unwrap_or(0);
                assert_eq!(framing.partial(), end - begun, "in steps of {step}, at {end}");
            }
            assert_eq!((framing.partial(), framing.buffer()), (0, 705));
            assert!(whole >= 1);
        }
    }
}
