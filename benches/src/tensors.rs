//! Tensors to measure with.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tensorlane_client::{Client, Item, PutOptions, Status, Stored};
use tensorlane_proto::{DType, Descriptor, Layout, Shape};

use crate::wait;

/// Time that a populator may take to come to rest.
const REST_MAX: Duration = Duration::from_secs(30);
/// A page.
const PAGE: usize = 4096;

/// A tensor of that many bytes, in one dimension.
///
/// # Errors
/// More than a tensor may have.
pub fn bytes(bytes: u64) -> Result<Descriptor> {
    Ok(Descriptor::host(Layout::contiguous(DType::U8, Shape::new(&[bytes])?)?))
}

/// Puts that many tensors of 4 KiB, each with other bytes.
///
/// # Errors
/// One of them was refused.
pub fn put_pages(client: &Client, count: usize) -> Result<Vec<Stored>> {
    let descriptor = bytes(PAGE as u64)?;
    let pages: Vec<Vec<u8>> = (0..count).map(page).collect();
    let item = |bytes| Item { descriptor: &descriptor, bytes, options: PutOptions::new() };
    let items: Vec<Item<'_>> = pages.iter().map(|page| item(page)).collect();
    Ok(client.put_many(&items).into_iter().collect::<Result<_, _>>()?)
}

/// The bytes of one of them.
pub fn page(number: usize) -> Vec<u8> {
    let word = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.repeat(PAGE / word.len())
}

/// Bytes of a large tensor, whose pages are told apart.
pub fn content(bytes: usize) -> Vec<u8> {
    let mut content: Vec<u8> = (0..bytes.div_ceil(PAGE)).flat_map(page).collect();
    content.truncate(bytes);
    content
}

/// Waits until the sidecar has populated what it wants to have ready.
///
/// # Errors
/// It does not come to rest.
pub fn settle(client: &Client) -> Result<()> {
    let mut before = None;
    let rested = wait::until(REST_MAX, || {
        std::thread::sleep(Duration::from_millis(50));
        let populated = client.status()?.arena.context("a status without an arena")?.populated;
        Ok(before.replace(populated) == Some(populated))
    })?;
    if !rested {
        bail!("the sidecar is still populating its arena after {} s", REST_MAX.as_secs());
    }
    Ok(())
}

/// Returns whether all of the arena can be given to anyone, and nothing is known but the present sessions.
pub fn all_is_free(status: &Status) -> bool {
    let free = status.arena.is_some_and(|arena| arena.free == arena.total);
    free && status.tensors == 0 && status.leases == 0
}
