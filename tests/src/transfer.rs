//! Tensor on its way between two hosts, slowly enough to do something in the middle.

use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use tensorlane_client::{AcquireOptions, Client, PutOptions, Result, Stored, Tensor};
use tensorlane_proto::{DType, Reference};

use crate::netns::Peers;
use crate::standstill;
use crate::tensors::{dense, pattern};
use crate::wait::until;

/// Mebibyte, in bytes.
pub const MI: u64 = 1 << 20;
/// Slow enough to be in the middle of [`LARGE`] for seven seconds: a busy machine may stand still for one.
pub const SLOW_MBIT: u32 = 50;
/// Bytes of the tensor that takes its time.
pub const LARGE: u64 = 48 * MI;

/// A get that may take that long.
pub fn seconds(count: u64) -> AcquireOptions {
    AcquireOptions::new().deadline(Duration::from_secs(count))
}

/// Puts bytes that follow from `seed`.
///
/// # Panics
/// Where they are not taken.
pub fn put(client: &Client, seed: u64, count: u64) -> Stored {
    let bytes = pattern(seed, usize::try_from(count).expect("it fits"));
    client.put(&dense(DType::U8, &[count]), &bytes, &PutOptions::new()).expect("it is put")
}

/// Returns whether these are the bytes that follow from `seed`.
pub fn is(tensor: &Tensor, seed: u64, count: u64) -> bool {
    let is = usize::try_from(count).is_ok_and(|count| tensor.to_vec() == pattern(seed, count));
    if !is {
        standstill::never_right();
    }
    is
}

/// Bytes of tensors that a host has sent.
pub fn sent(peers: &Peers, host: usize) -> u64 {
    peers.metric(host, "tensorlane_peer_bytes_total", &["direction=\"out\""]) as u64
}

/// Bytes of tensors that have come to a host, from whomever.
pub fn came(peers: &Peers, host: usize) -> u64 {
    peers.metric(host, "tensorlane_peer_bytes_total", &["direction=\"in\""]) as u64
}

/// Waits until every byte that has come is counted as sent, too: that happens after it is on the wire.
pub fn await_counted(peers: &Peers) {
    let all =
        |of: fn(&Peers, usize) -> u64| (0..peers.sidecars.len()).map(|host| of(peers, host)).sum::<u64>();
    until("what has come is counted as sent", || all(sent) >= all(came));
}

/// From whom to whom something goes.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The host that owns it.
    pub owner: usize,
    /// The host that gets it.
    pub reader: usize,
}

/// Between two hosts: who dials, and so which end is asked to open lanes, follows from their keys and not from this.
pub const ROUTES: [Route; 2] = [Route { owner: 0, reader: 1 }, Route { owner: 1, reader: 0 }];

/// Host 1 gets something of host 0 over a slow cable; returns when it is in the middle.
pub fn in_the_middle<'scope>(
    scope: &'scope Scope<'scope, '_>,
    peers: &Peers,
    reader: &'scope Client,
    reference: &'scope Reference,
    options: &'scope AcquireOptions,
) -> ScopedJoinHandle<'scope, Result<Tensor>> {
    in_the_middle_of(scope, peers, ROUTES[0], (reader, reference, options))
}

/// Gets something from anyone to anyone; returns when it is in the middle.
pub fn in_the_middle_of<'scope>(
    scope: &'scope Scope<'scope, '_>,
    peers: &Peers,
    Route { owner, reader }: Route,
    (client, reference, options): (&'scope Client, &'scope Reference, &'scope AcquireOptions),
) -> ScopedJoinHandle<'scope, Result<Tensor>> {
    let before = peers.seen(reader, owner).bytes_in;
    peers.network.slow(owner, SLOW_MBIT);
    let pulling = scope.spawn(move || client.acquire(reference, options));
    until("some bytes have come", || peers.seen(reader, owner).bytes_in - before > 4 * MI);
    pulling
}
