//! A frame of which parts are still where they lie: it is put together in the records that it is sealed into, so that the bytes
//! of tensors are not copied on the way there.

use tensorlane_memory::Chunk;

/// Bytes of its own, with pieces of tensors between them.
#[derive(Default)]
pub(super) struct GatherFrame {
    own: Vec<u8>,
    /// Each with how many of the own bytes come before it.
    pieces: Vec<(usize, Chunk)>,
    /// Bytes of all pieces.
    lying: usize,
}

// === impl GatherFrame ===

impl GatherFrame {
    /// Returns the number of its bytes, all together.
    pub(super) fn len(&self) -> usize {
        self.own.len() + self.lying
    }

    /// Bytes of its own so far, to be written to.
    pub(super) fn own(&mut self) -> &mut Vec<u8> {
        &mut self.own
    }

    /// Adds a piece of a tensor, which comes next.
    pub(super) fn piece(&mut self, chunk: Chunk) {
        self.lying += chunk.as_ref().len();
        self.pieces.push((self.own.len(), chunk));
    }

    /// All parts, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.pieces.iter().map(|(at, _)| *at));
        let with_pieces = self
            .pieces
            .iter()
            .zip(starts)
            .flat_map(|((at, chunk), from)| [&self.own[from..*at], chunk.as_ref()]);
        let last = self.pieces.last().map_or(0, |(at, _)| *at);
        with_pieces.chain([&self.own[last..]])
    }

    /// The frame in one piece, for one that waits: it keeps no block.
    pub(super) fn together(self) -> Vec<u8> {
        if self.pieces.is_empty() {
            return self.own;
        }
        let mut all = Vec::with_capacity(self.len());
        self.parts().for_each(|part| all.extend_from_slice(part));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::tests::world::{arena, sealed};

    #[test]
    fn the_parts_come_in_the_order_in_which_they_were_put() {
        let arena = arena(1 << 20);
        let block = sealed(&arena, 4096, 1);
        let piece = |from: u64, to: u64| block.owned_chunk(from..to).unwrap();
        let mut frame = GatherFrame::default();
        frame.piece(piece(0, 2));
        frame.own().extend_from_slice(b"head");
        frame.piece(piece(7, 9));
        frame.piece(piece(0, 4096));
        frame.own().extend_from_slice(b"tail");
        let bytes = block.chunk(0..4096).unwrap();
        let all = [&bytes[..2], b"head", &bytes[7..9], bytes, b"tail"].concat();
        assert_eq!((frame.len(), frame.parts().collect::<Vec<_>>().concat()), (all.len(), all.clone()));
        assert_eq!(frame.together(), all);
        drop(block);
        arena.stop();
    }
}
