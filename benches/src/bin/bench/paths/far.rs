//! Two sidecars on two hosts, and what one gets of the other, each time anew.

use std::time::Duration;

use anyhow::{Result, bail};
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::pairs::seconds;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::Sidecar;
use tensorlane_benches::tensors::{self, page};
use tensorlane_benches::wait;
use tensorlane_client::{AcquireOptions, Client, PutOptions, Stored, Target};
use tensorlane_proto::Transport;

use crate::context::Bench;
use crate::tcp::two_sidecars;

/// A copy that nobody holds goes at once, so that the next get moves all bytes again. No pull tries QUIC.
pub(crate) const TLS: &str = "gc:\n  copyIdle: 1ms\nprefer: tcp\n";
/// Settings with plain lanes.
pub(crate) const PLAIN: &str = "gc:\n  copyIdle: 1ms\nencryption: none\nprefer: tcp\n";
/// Settings for QUIC.
pub(crate) const QUIC: &str = "gc:\n  copyIdle: 1ms\nprefer: quic\n";
/// Time that a copy may stay once nobody holds it.
const COPY_MAX: Duration = Duration::from_secs(10);
/// The smallest arena.
const ARENA_MIN: u64 = 256 << 20;
/// Tensors of one call.
const PAGES: usize = 1000;
const PAGE: u64 = 4096;

/// Two sidecars; one has a tensor that the other gets.
pub(crate) struct Far {
    ends: [Sidecar; 2],
    reader: Client,
    target: Target,
    content: Vec<u8>,
    // Else it would be freed.
    stored: Stored,
    writer: Client,
    _scratch: Scratch,
}

/// A get that is over.
pub(crate) struct Get {
    pub(crate) seconds: f64,
    /// Transport that carried the bytes.
    pub(crate) transport: Option<Transport>,
}

impl Far {
    pub(crate) fn start(bench: &Bench, hosts: &TwoHosts, bytes: u64, settings: &'static str) -> Result<Self> {
        let scratch = Scratch::make()?;
        // Room for the tensor, and for another while its copy goes.
        let arena = (bytes * 5 / 2).max(ARENA_MIN);
        let ends = two_sidecars(bench, hosts, &scratch, arena, [None; 2], settings)?;
        let (writer, reader) = (ends[0].client()?, ends[1].client()?);
        let content: Vec<u8> = (0..(bytes / PAGE) as usize).flat_map(page).collect();
        let stored = writer.put(&tensors::bytes(bytes)?, &content, &PutOptions::new())?;
        let target = Target::from(stored.reference());
        tensors::settle(&reader)?;
        Ok(Self { ends, reader, target, content, stored, writer, _scratch: scratch })
    }

    /// The seconds of one get.
    pub(crate) fn seconds(&self) -> Result<f64> {
        Ok(self.get()?.seconds)
    }

    /// Gets once.
    pub(crate) fn get(&self) -> Result<Get> {
        without_copies(&self.reader)?;
        let mut tensor = None;
        let seconds = seconds(|| {
            tensor = Some(self.reader.acquire(&self.target, &AcquireOptions::new())?);
            Ok(())
        })?;
        let bytes = self.content.len() as u64;
        match tensor.as_ref().map(tensorlane_client::Tensor::moved) {
            Some(moved) if moved.bytes == bytes => Ok(Get { seconds, transport: moved.transport }),
            moved => bail!("{bytes} bytes should have come from the other peer: {moved:?}"),
        }
    }

    /// Ends them, if what comes over is what was put; says which way it came.
    pub(crate) fn end(self) -> Result<String> {
        without_copies(&self.reader)?;
        let fetched = self.reader.get(&self.target, &AcquireOptions::new())?;
        if fetched.bytes != self.content {
            bail!("what came over is not what was put");
        }
        let Self { ends: [a, b], reader, stored, writer, .. } = self;
        drop((reader, stored, writer));
        a.end()?;
        b.end()?;
        Ok(fetched.moved.to_string())
    }
}

/// Two sidecars; one has a thousand small tensors that the other gets in one call.
pub(crate) struct Pages {
    ends: [Sidecar; 2],
    reader: Client,
    targets: Vec<Target>,
    stored: Vec<Stored>,
    writer: Client,
    _scratch: Scratch,
}

impl Pages {
    pub(crate) fn start(bench: &Bench, hosts: &TwoHosts) -> Result<Self> {
        let scratch = Scratch::make()?;
        let ends = two_sidecars(bench, hosts, &scratch, ARENA_MIN, [None; 2], TLS)?;
        let (writer, reader) = (ends[0].client()?, ends[1].client()?);
        let stored = tensors::put_pages(&writer, PAGES)?;
        let targets = stored.iter().map(|stored| Target::from(stored.reference())).collect();
        tensors::settle(&reader)?;
        Ok(Self { ends, reader, targets, stored, writer, _scratch: scratch })
    }

    /// Tensors a second of one call.
    pub(crate) fn tensors_a_second(&self) -> Result<f64> {
        without_copies(&self.reader)?;
        let mut tensors = Vec::new();
        let took = seconds(|| {
            tensors = self.reader.acquire_many(&self.targets, &AcquireOptions::new());
            Ok(())
        })?;
        for (number, tensor) in tensors.into_iter().enumerate() {
            let tensor = tensor?;
            let is_its_way = tensor.moved().transport == Some(Transport::Tcp);
            if tensor.moved().bytes != PAGE || !is_its_way || tensor.to_vec() != page(number) {
                bail!("tensor {number} did not come from the other peer as it was put: {}", tensor.moved());
            }
        }
        Ok(PAGES as f64 / took)
    }

    pub(crate) fn end(self) -> Result<()> {
        let Self { ends: [a, b], reader, stored, writer, .. } = self;
        drop((reader, stored, writer));
        a.end()?;
        b.end()
    }
}

/// Waits until the sidecar has no copy of another peer's tensor.
pub(crate) fn without_copies(client: &Client) -> Result<()> {
    client.flush()?;
    if !wait::until(COPY_MAX, || Ok(client.status()?.copies == 0))? {
        bail!("copies stay although nobody holds them: {:?}", client.status()?);
    }
    Ok(())
}
