//! Memory like ours: memfds whose pages exist and whose page tables are full.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use tensorlane_memory::{
    Arena, ArenaOptions, Block, Chunk, Fallocate, Landing, Mapping, Purpose, View, round_to_pages,
    segment::Unsealed,
};

/// A byte that is no page's first content.
const FILLER: u8 = 0x5a;

/// Blocks of these sizes, side by side in an arena of their own.
fn blocks(sizes: &[u64]) -> Result<(Arc<Arena>, Vec<Block>)> {
    let rounded = sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(round_to_pages(*size)?));
    let bytes = rounded.context("more bytes than can be counted")?;
    let options =
        ArenaOptions { segment_bytes: bytes, pull_share: 0.0, ready_bytes: 0, ..ArenaOptions::new(bytes) };
    let arena = Arena::start(options, Arc::new(|| {}))?;
    let blocks = sizes.iter().map(|size| arena.allocate_or_grow(Purpose::Put, *size));
    let blocks = blocks.collect::<Result<_, _>>()?;
    Ok((arena, blocks))
}

fn landing(block: &Block, filler: u8) -> Result<Landing> {
    let mut landing = block.landing().context("a new block is not writable")?;
    // Written once, so that nothing about it is new.
    landing.chunk_mut(0..block.len())?.fill(filler);
    Ok(landing)
}

/// Bytes to read from.
///
/// # Errors
/// There is not so much memory.
pub fn source(bytes: u64) -> Result<(Arc<Arena>, Chunk)> {
    let (arena, blocks) = blocks(&[bytes])?;
    let block = blocks.first().context("an arena without a block")?;
    drop(landing(block, FILLER)?);
    block.mark_sealed()?;
    Ok((arena, block.owned_chunk(0..bytes)?))
}

/// Bytes to write into, in pieces of these sizes.
///
/// # Errors
/// There is not so much memory.
pub fn targets(sizes: impl Iterator<Item = u64>) -> Result<(Arc<Arena>, Vec<Landing>)> {
    let (arena, blocks) = blocks(&sizes.collect::<Vec<_>>())?;
    let landings = blocks.iter().map(|block| landing(block, 0)).collect::<Result<_>>()?;
    Ok((arena, landings))
}

/// A map like the one a reader has of a segment.
///
/// # Errors
/// There is not so much memory.
pub fn reader_view(bytes: u64) -> Result<View> {
    let sealed = Unsealed::create(bytes, &Fallocate)?.seal()?;
    let mapping = Mapping::reader(sealed.reader_fd().as_fd(), bytes)?;
    mapping.populate();
    Ok(View::new(Arc::new(mapping), 0, bytes).map_err(io::Error::other)?)
}
