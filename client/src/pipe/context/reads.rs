//! Worker that reads: a descriptor, then what its user makes of it, then the next one.

use std::sync::{Arc, Weak};

use super::super::{Allocation, Descriptor, Incoming, Place, ReadFailed, Received};
use super::dispatcher::Callback;
use super::lane;
use super::pipe::Shared;
use crate::channel::Timeout;
use crate::error::{Error, Result};

/// Place for a tensor of a message, which the pipe has until the read is over.
#[derive(Debug, Default)]
pub enum OwnedPlace {
    /// A map, read-only and without a copy.
    #[default]
    Map,
    /// Bytes for a copy, row-major and without gaps; exactly as many as the tensor has.
    Bytes(Vec<u8>),
    /// No place: the tensor is not wanted.
    Skip,
}

/// Places for the tensors of a message, which the pipe has until the read is over. Payloads come by themselves.
#[derive(Debug, Default)]
pub struct OwnedAllocation {
    places: Option<Vec<OwnedPlace>>,
}

/// Outcome of a read: the allocation comes back in any case.
#[derive(Debug)]
pub struct ReadDone {
    /// The message, or the error with the descriptor. [`Tensor::Copied`](super::super::Tensor::Copied) lies in the place of its number.
    pub outcome: std::result::Result<Received, Box<ReadFailed>>,
    /// Places as they were given, with the bytes where they were copied.
    pub allocation: OwnedAllocation,
}

pub(super) enum Job {
    Next(Callback<Result<Incoming>>),
    Read(Descriptor, OwnedAllocation, Callback<ReadDone>),
}

/// Turn of a descriptor that was given out. Its drop lets the next one come.
struct Turn(Weak<Shared>);

impl OwnedAllocation {
    /// Maps every tensor.
    pub fn map() -> Self {
        Self::default()
    }

    /// A place for each tensor, in order.
    pub fn new(places: Vec<OwnedPlace>) -> Self {
        Self { places: Some(places) }
    }

    /// The places; none where every tensor is mapped.
    pub fn into_places(self) -> Vec<OwnedPlace> {
        self.places.unwrap_or_default()
    }

    fn lend(&mut self) -> Allocation<'_> {
        let Some(places) = &mut self.places else { return Allocation::map() };
        let lend = |place| match place {
            &mut OwnedPlace::Map => Place::Map,
            OwnedPlace::Bytes(bytes) => Place::Bytes(bytes),
            OwnedPlace::Skip => Place::Skip,
        };
        Allocation::new(places.iter_mut().map(lend).collect())
    }
}

/// Works until the end is closed and nothing is left to do.
pub(super) fn run(shared: &Arc<Shared>) {
    loop {
        while let Some(job) = shared.reads.take() {
            match job {
                Job::Next(done) => done.post(next(shared)),
                Job::Read(descriptor, allocation, done) => done.post(read(shared, descriptor, allocation)),
            }
        }
        if shared.reads.leave() {
            return;
        }
    }
}

fn next(shared: &Arc<Shared>) -> Result<Incoming> {
    let pipe = shared.opened.get()?;
    let incoming = pipe.read_descriptor(Timeout::Never).map_err(|error| shared.opened.explain(error))?;
    Ok(match incoming {
        Incoming::Message(mut descriptor) => {
            shared.reads.show(true);
            descriptor.turn = Some(Box::new(Turn(Arc::downgrade(shared))));
            Incoming::Message(descriptor)
        }
        Incoming::End => Incoming::End,
    })
}

fn read(shared: &Shared, descriptor: Descriptor, mut allocation: OwnedAllocation) -> ReadDone {
    let outcome = match shared.opened.get() {
        Ok(pipe) => pipe.read(descriptor, allocation.lend()).map_err(|mut failed| {
            failed.error = shared.opened.explain(failed.error);
            failed
        }),
        Err(error) => Err(Box::new(ReadFailed { descriptor, error })),
    };
    ReadDone { outcome, allocation }
}

impl lane::Job for Job {
    /// The next descriptor waits for the read of the one that is shown.
    fn is_urgent(&self) -> bool {
        matches!(self, Self::Read(..))
    }

    fn fail(self, error: Error) {
        match self {
            Self::Next(done) => done.post(Err(error)),
            Self::Read(descriptor, allocation, done) => {
                let outcome = Err(Box::new(ReadFailed { descriptor, error }));
                done.post(ReadDone { outcome, allocation });
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade()
            && !shared.opened.core.is_child()
        {
            shared.reads.show(false);
        }
    }
}
