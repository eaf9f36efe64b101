//! A get, whichever way it goes: begun, given up, over; and the points at which something can be done to it.

use std::sync::mpsc::TryRecvError;

use tensorlane_memory::Block;

use super::*;
use crate::peer::{CallHandle, MapFailed, Paths};

/// A get that was begun.
pub(super) struct Get {
    kind: Kind,
    handle: CallHandle,
    over: Option<Result<Got, NotGot>>,
}

enum Kind {
    Landing(Told, Block),
    Map(ToldMap),
}

/// A tensor that was got, until this is dropped.
pub(super) struct Got {
    block: Block,
    paths: Paths,
    transport: Transport,
}

/// Reason for which it was not got.
#[derive(Debug)]
pub(super) struct NotGot {
    pub(super) failure: Failure,
    /// Another way may do.
    pub(super) for_want_of_the_way: bool,
}

/// Progress of a get.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The question is stuck on its way.
    Asking,
    /// Answer that is stuck, behind so many bytes. Where fewer are said it is over.
    Answered(u64),
    /// So many tenths of its bytes have landed.
    Landed(u64),
}

impl Step {
    /// Begins a get, and waits until it is so far, or over.
    pub(super) fn of(self, pair: &Pair, turned: bool, begin: impl FnOnce() -> Get) -> Get {
        let [comes, asks] = pair.wires(turned);
        let (reader, owner, _) = pair.one_way(turned);
        let (before, bytes) = (bytes_in(reader), owner.twin.bytes_of(7));
        match self {
            Self::Asking => asks.stop_after(0),
            Self::Answered(after) => comes.stop_after(after),
            Self::Landed(_) => {}
        }
        let mut get = begin();
        until(&format!("{}: it has come so far: {self:?}", pair.way.name), || {
            get.is_over()
                || match self {
                    Self::Asking => asks.is_stuck(),
                    Self::Answered(_) => comes.is_stuck(),
                    Self::Landed(tenths) => bytes_in(reader) - before >= bytes * tenths / 10,
                }
        });
        get
    }
}

impl Get {
    pub(super) fn landing((told, handle, block): (Told, CallHandle, Block)) -> Self {
        Self { kind: Kind::Landing(told, block), handle, over: None }
    }

    pub(super) fn map((told, handle): (ToldMap, CallHandle)) -> Self {
        Self { kind: Kind::Map(told), handle, over: None }
    }

    pub(super) fn cancel(&self) {
        self.handle.cancel();
    }

    pub(super) fn is_over(&mut self) -> bool {
        self.over = self.over.take().or_else(|| match &self.kind {
            Kind::Landing(told, block) => match told.try_recv() {
                Ok(outcome) => Some(landed(outcome, block)),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => panic!("a pull without an outcome"),
            },
            Kind::Map(told) => match told.try_recv() {
                Ok(outcome) => Some(mapped(outcome)),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => panic!("a map without an outcome"),
            },
        });
        self.over.is_some()
    }

    /// Returns whether nobody can see a byte of it yet.
    pub(super) fn is_hidden(&self) -> bool {
        match &self.kind {
            Kind::Landing(_, block) => block.mark_sealed().is_err(),
            Kind::Map(_) => true,
        }
    }

    /// Waits for the outcome, which every get has.
    pub(super) fn outcome(mut self) -> Result<Got, NotGot> {
        until("a get has its outcome", || self.is_over());
        self.over.take().expect("it is over")
    }
}

fn landed(
    outcome: Result<crate::peer::Pulled, crate::peer::PullFailed>,
    block: &Block,
) -> Result<Got, NotGot> {
    match outcome {
        Ok(pulled) => {
            assert_eq!(pulled.descriptor.layout.bytes(), block.len());
            drop(pulled.landing);
            block.mark_sealed().unwrap();
            let got = Got { block: block.clone(), paths: pulled.paths, transport: pulled.transport };
            if let Some(crc32c) = pulled.crc32c {
                assert_eq!(crc32c, crc32c::crc32c(&got.bytes()));
            }
            Ok(got)
        }
        Err(failed) => {
            assert_eq!(failed.landing.len(), block.len(), "the landing is given back");
            Err(NotGot { failure: failed.failure, for_want_of_the_way: false })
        }
    }
}

fn mapped(outcome: Result<crate::peer::Mapped, MapFailed>) -> Result<Got, NotGot> {
    let not_got = |failure, for_want_of_the_way| NotGot { failure, for_want_of_the_way };
    match outcome {
        Ok(mapped) => {
            let (block, paths) = (mapped.block, Paths::default());
            assert_eq!(mapped.descriptor.layout.bytes(), block.len());
            Ok(Got { block, paths, transport: Transport::Shm })
        }
        Err(MapFailed::Owner(failure)) => Err(not_got(failure, false)),
        Err(MapFailed::Way(failure)) => Err(not_got(failure, true)),
    }
}

impl Got {
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.block.chunk(0..self.block.len()).unwrap().to_vec()
    }

    /// Returns whether it lies in the memory of its owner.
    pub(super) fn is_mapped(&self) -> bool {
        self.block.is_foreign()
    }

    pub(super) fn paths(&self) -> &[Path] {
        self.paths.as_slice()
    }

    pub(super) fn transport(&self) -> Transport {
        self.transport
    }
}
