//! Acquire and get: leasing tensors and mapping them, or copying their bytes out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use tensorlane_memory::View;
use tensorlane_proto::encoded::{self, Alike};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor, Failure, Reason, Selection};

use crate::client::Client;
use crate::connection::{Asked, Connection};
use crate::error::{Error, Result};
use crate::late::Late;
use crate::moved::Moved;
use crate::segments::Segment;
use crate::target::{AcquireOptions, Target, not_as_said};
use crate::tensor::{Lease, Parts, Tensor};
use crate::wait::Wait;
use crate::wire;

/// Requests of one batch that are under way at a time: while the sidecar works on one, this side makes the next and reads the
/// last. Each counts as a call of the session, of which a sidecar takes a thousand.
const REQUESTS_MAX: usize = 8;
/// Fewest items of a request that is not the last: below it a request costs more than it wins.
const ITEMS_MIN: usize = 128;
/// Most items of a request, so that no reply comes near the limit of a frame: with metadata an item may take kilobytes. Whoever
/// waits for names that are not there yet waits for eight times as many at a time.
const ITEMS_MAX: usize = 512;

/// The bytes of a tensor, copied out.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched {
    /// Meaning of the bytes: always row-major and without gaps.
    pub descriptor: Descriptor,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Way in which they came to this peer.
    pub moved: Moved,
}

impl Client {
    /// Leases one tensor and maps it.
    ///
    /// # Errors
    /// The sidecar's refusal (NOT_FOUND, OWNER_LOST, REQUIREMENT_NOT_MET, ...), or what ended the call.
    pub fn acquire(&self, target: impl Into<Target>, options: &AcquireOptions) -> Result<Tensor> {
        let wait = self.wait(options.deadline);
        let acquiring = Acquiring::new(self.connection(&wait)?, options, wait);
        let target = [target.into()];
        let mut tensors = acquiring.answer(acquiring.ask(&target), &target)?;
        tensors.pop().ok_or_else(|| wire::missing("a result"))?
    }

    /// Leases many tensors with the same options, each with a result of its own, in the order of the targets. The deadline is that
    /// of all together. Where the session is lost in the middle, all that have no answer yet fail with that one error.
    pub fn acquire_many(&self, targets: &[Target], options: &AcquireOptions) -> Vec<Result<Tensor>> {
        // One session for all, so that one that is lost is waited for once.
        let wait = self.wait(options.deadline);
        let connection = match self.connection(&wait) {
            Ok(connection) => connection,
            Err(error) => return targets.iter().map(|_| Err(error.clone())).collect(),
        };
        Acquiring::new(connection, options, wait).all(targets)
    }

    /// The bytes of a tensor, or of the selected part, copied out.
    ///
    /// # Errors
    /// As [`Client::acquire`].
    pub fn get(&self, target: impl Into<Target>, options: &AcquireOptions) -> Result<Fetched> {
        let tensor = self.acquire(target, options)?;
        Ok(Fetched { descriptor: packed(&tensor), bytes: tensor.to_vec(), moved: tensor.moved().clone() })
    }

    /// Copies the bytes of a tensor, or of the selected part, into `to`, which must have exactly their length.
    ///
    /// # Errors
    /// As [`Client::acquire`], and [`Error::InvalidArgument`] where the length is another.
    pub fn get_into(
        &self,
        target: impl Into<Target>,
        options: &AcquireOptions,
        to: &mut [u8],
    ) -> Result<(Descriptor, Moved)> {
        let tensor = self.acquire(target, options)?;
        tensor.copy_to(to)?;
        Ok((packed(&tensor), tensor.moved().clone()))
    }
}

/// Tensors that are leased with the same options, in one session.
struct Acquiring<'a> {
    connection: Arc<Connection>,
    options: &'a AcquireOptions,
    /// Wait for all of it, and what was seen of that.
    wait: Wait,
    /// In which memory they must lie.
    memory: Memory,
    /// Error that ended the session.
    lost: RefCell<Option<Error>>,
}

/// The memory that a caller can take a tensor in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Host,
    /// Whichever it lies in.
    #[cfg(feature = "gpu")]
    Any,
}

/// A request that was sent, and how long its reply is waited for.
struct Requested {
    call: Asked,
    wait: Wait,
}

impl<'a> Acquiring<'a> {
    fn new(connection: Arc<Connection>, options: &'a AcquireOptions, wait: Wait) -> Self {
        Self { connection, options, wait, memory: Memory::Host, lost: RefCell::new(None) }
    }

    fn all(&self, targets: &[Target]) -> Vec<Result<Tensor>> {
        let items = targets.len().div_ceil(REQUESTS_MAX).clamp(ITEMS_MIN, ITEMS_MAX);
        let mut tensors = Vec::with_capacity(targets.len());
        let mut under_way = VecDeque::new();
        for batch in targets.chunks(items) {
            if under_way.len() == REQUESTS_MAX
                && let Some((batch, asked)) = under_way.pop_front()
            {
                self.take(&mut tensors, batch, asked);
            }
            under_way.push_back((batch, self.ask(batch)));
        }
        for (batch, asked) in under_way {
            self.take(&mut tensors, batch, asked);
        }
        tensors
    }

    fn adopt(&self, results: Vec<encoded::AcquireResult>) -> Vec<Result<Tensor>> {
        adopt_in(&self.connection, results, self.memory)
    }

    fn ask(&self, targets: &[Target]) -> Result<Requested> {
        let Self { connection, options, .. } = self;
        if let Some(lost) = &*self.lost.borrow() {
            return Err(lost.clone());
        }
        // What nobody saw until here puts the end of the whole off.
        self.wait.check()?;
        let wait = self.wait.part();
        let selection = match &options.selection {
            Selection::All => None,
            part => Some(v1::Selection::from(part)),
        };
        let item = |target: &Target| v1::GetItem {
            target: Some(match options.selection {
                Selection::All => target.to_message(connection.sidecar()),
                _ => target.in_full(),
            }),
            selection: selection.clone(),
        };
        let request = v1::AcquireRequest {
            items: targets.iter().map(item).collect(),
            require: (options.require != Default::default()).then(|| options.require.into()),
            deadline_ms: wait.deadline_ms(),
            wait_ms: u64::try_from(options.wait.as_millis()).unwrap_or(u64::MAX),
            host: self.memory == Memory::Host,
        };
        let call = connection.ask(SessionKind::Acquire, &request, Some(&wait))?;
        self.wait.follows(&wait);
        Ok(Requested { call, wait })
    }

    fn answer(&self, requested: Result<Requested>, targets: &[Target]) -> Result<Vec<Result<Tensor>>> {
        let Requested { call, wait } = requested?;
        wait.follows(&self.wait);
        let reply: Result<encoded::AcquireResponse> = self.connection.answer(&call, &wait, Late::Acquired);
        self.wait.follows(&wait);
        let mut tensors = self.adopt(wire::counted(reply?.results, targets.len())?);
        if self.options.selection != Selection::All {
            return Ok(tensors);
        }
        let sidecar = self.connection.sidecar();
        for (target, outcome) in targets.iter().zip(&mut tensors) {
            let wrong = outcome.as_ref().ok().and_then(|tensor| not_as_said(target, sidecar, tensor));
            if let Some(error) = wrong {
                *outcome = Err(error);
            }
        }
        Ok(tensors)
    }

    /// Takes what one request brings; two of half the size if the reply would be too long, as with very much metadata.
    fn take(&self, to: &mut Vec<Result<Tensor>>, batch: &[Target], requested: Result<Requested>) {
        match self.answer(requested, batch) {
            Ok(acquired) => to.extend(acquired),
            Err(error) if error.reason() == Some(Reason::TooLarge) && batch.len() > 1 => {
                let (one, other) = batch.split_at(batch.len() / 2);
                self.take(to, one, self.ask(one));
                self.take(to, other, self.ask(other));
            }
            Err(error) => {
                let error = self.one_loss(error);
                to.extend(batch.iter().map(|_| Err(error.clone())));
            }
        }
    }

    /// A session is lost once, whatever each of its requests met: all say the same of it.
    fn one_loss(&self, error: Error) -> Error {
        match error {
            Error::SessionLost { .. } | Error::Protocol(_) => {
                self.lost.borrow_mut().get_or_insert(error).clone()
            }
            other => other,
        }
    }
}

fn packed(tensor: &Tensor) -> Descriptor {
    let descriptor = tensor.descriptor();
    Descriptor { layout: descriptor.layout.packed(), ..descriptor.clone() }
}

/// Likeness of the tensor before, of those of a batch: most are like it.
#[derive(Default)]
struct Likeness {
    described: Alike<Descriptor>,
    moved: Alike<Arc<Moved>>,
    segment: Option<(u32, Arc<Segment>)>,
}

impl Likeness {
    fn segment(&mut self, connection: &Connection, number: u32) -> Result<Arc<Segment>> {
        match &self.segment {
            Some((known, segment)) if *known == number => Ok(Arc::clone(segment)),
            _ => {
                let segment = connection.segment(number)?;
                self.segment = Some((number, Arc::clone(&segment)));
                Ok(segment)
            }
        }
    }
}

/// Makes guards of what the sidecar leased.
pub(crate) fn adopt(
    connection: &Arc<Connection>,
    results: Result<Vec<encoded::AcquireResult>>,
) -> Result<Vec<Result<Tensor>>> {
    Ok(adopt_in(connection, results?, Memory::Host))
}

fn adopt_in(
    connection: &Arc<Connection>,
    results: Vec<encoded::AcquireResult>,
    memory: Memory,
) -> Vec<Result<Tensor>> {
    let mut alike = Likeness::default();
    let one = |result: encoded::AcquireResult| match result.outcome {
        Some(encoded::Outcome::Acquired(acquired)) => tensor(connection, acquired, memory, &mut alike),
        Some(encoded::Outcome::Failure(why)) => Err(wire::failure(why)),
        None => Err(wire::missing("an outcome")),
    };
    results.into_iter().map(one).collect()
}

/// Leases one tensor wherever it lies; one in GPU memory without its bytes. `host`: in host memory in any case.
#[cfg(feature = "gpu")]
pub(crate) fn acquire_anywhere(
    connection: &Arc<Connection>,
    target: Target,
    options: &AcquireOptions,
    wait: &Wait,
    host: bool,
) -> Result<Tensor> {
    let mut acquiring = Acquiring::new(Arc::clone(connection), options, wait.part());
    acquiring.memory = if host { Memory::Host } else { Memory::Any };
    let target = [target];
    let mut tensors = acquiring.answer(acquiring.ask(&target), &target)?;
    tensors.pop().ok_or_else(|| wire::missing("a result"))?
}

/// Leases tensors in whichever memory they lie. Those of a GPU come without their bytes.
#[cfg(feature = "gpu")]
pub(crate) fn acquire_any(
    connection: &Arc<Connection>,
    targets: &[Target],
    options: &AcquireOptions,
    wait: Wait,
) -> Vec<Result<Tensor>> {
    let mut acquiring = Acquiring::new(Arc::clone(connection), options, wait);
    acquiring.memory = Memory::Any;
    acquiring.all(targets)
}

/// # Errors
/// A tensor is not in the memory that its caller can take it in.
fn check_memory(memory: Memory, on_gpu: bool, descriptor: &Descriptor) -> Result<()> {
    match memory {
        Memory::Host if on_gpu => {
            let why = format!(
                "the tensor lies in the memory of {}, and this sidecar has nobody copy it to the host; update the sidecar, or take it \
                 with Gpu::acquire",
                descriptor.device
            );
            Err(Failure::new(Reason::NoGpuProcess, why).into())
        }
        _ => Ok(()),
    }
}

fn tensor(
    connection: &Arc<Connection>,
    acquired: encoded::Acquired,
    memory: Memory,
    alike: &mut Likeness,
) -> Result<Tensor> {
    // First of all the guard: whatever goes wrong below, the lease is given back.
    let lease = Lease::new(connection, acquired.id);
    let descriptor = acquired.descriptor.ok_or_else(|| wire::missing("a descriptor"))?;
    let descriptor = alike.described.read(descriptor, wire::described_by)?;
    let needed = descriptor.layout.bytes();
    let on_gpu = acquired.location.filter(|location| needed > 0 && location.segment == 0);
    check_memory(memory, on_gpu.is_some(), &descriptor)?;
    let place = match acquired.location.filter(|_| needed > 0 && on_gpu.is_none()) {
        None if on_gpu.is_some() => None,
        None if needed > 0 => return Err(wire::missing("the place of a tensor")),
        None => None,
        Some(location) => {
            if location.bytes != needed {
                return Err(Error::protocol(format!(
                    "a tensor of {needed} bytes was said to lie in {} bytes",
                    location.bytes
                )));
            }
            let segment = alike.segment(connection, location.segment)?;
            let view = View::new(Arc::clone(segment.mapping()), location.offset, location.bytes)
                .map_err(|error| Error::protocol(format!("a tensor outside its segment: {error}")))?;
            Some((segment, view))
        }
    };
    let moved = acquired.moved.map(|moved| alike.moved.read(moved, wire::moved)).transpose()?;
    Ok(Tensor::new(
        lease,
        Parts { place, on_gpu, descriptor, moved, copied: acquired.copied, crc32c: acquired.crc32c },
    ))
}
