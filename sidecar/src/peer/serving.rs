//! Answers to what the peer asks of us: leases taken and given back through `Serve`, answers written. Runs on the
//! reader thread, so nothing here waits.
//!
//! A pull of theirs is known by its call from `open` to `done`, across connections: after a reconnection the same call
//! comes again and continues under a new lease, and the old one is ended only then: so it is nothing new, also for a sidecar
//! that takes nothing new any more. What does not come again within the grace was over, and the PullDone lost.

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message;
use tensorlane_memory::{Block, BlockError};
use tensorlane_proto::frame::{
    self, FAILED, FrameError, Header, ITEMS_MAX, LOST_MAX, PEER_BODY_MAX, PROOFS_MAX, PROOFS_SINCE, PeerKind,
    QUESTIONS_SINCE, REPLY, SET_CALLS_SINCE,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor, Failure, Reason, Selection, wire};

use super::api::{
    Asked, AskedLoan, Found, Holders, LostHolder, PeerKey, RelayRequest, RelaySource, Served, Sought,
};
use super::channels;
use super::gather_frame::GatherFrame;
use super::give_way;
use super::gpus::{self, LentMemory, ServedOnGpu};
use super::lending::LENDS_SINCE;
use super::link::{Ended, Link};
use super::lost;
use super::parse::decode;
use super::partial::RelayToken;
use super::pipe_calls;
use super::questions;
use super::received::ReceivedRanges;
use super::record_writer::OutgoingPull;
use super::relay::{self, HOLDERS_SINCE};
use super::remote::{CALLS_MAX, InboundPull, Inquiry};
use super::row_lists;
use super::send_error::SendError;
use super::sets;
use super::shared::{Shared, count_out};
use super::small::SmallAnswer;
use super::source::Source;
use super::transport::Way;
use super::transport::shm::MAPS_MAX;
use crate::cancel::Cancel;

/// Most pulls of one peer that are open here: what it may have on a connection, twice, since those of the connection
/// before may not have been ended yet.
const OPEN_MAX: usize = 2 * CALLS_MAX;

pub(super) fn failed(kind: PeerKind, call: u64, failure: &Failure) -> Vec<u8> {
    frame::encode(kind.into(), REPLY | FAILED, call, &v1::Failure::from(&failure.clone().for_peer()))
}

/// Frame of an answer; of a failure if it does not fit one. `remedy`: what to ask for then.
pub(super) fn reply(kind: PeerKind, call: u64, answer: &impl Message, remedy: &str) -> Vec<u8> {
    let reply = frame::encode(kind.into(), REPLY, call, answer);
    if reply.len() <= frame::HEADER_BYTES + PEER_BODY_MAX as usize {
        return reply;
    }
    let message = format!("the answer does not fit a frame; {remedy}");
    failed(kind, call, &Failure::new(Reason::TooLarge, message))
}

/// Serves one question.
pub(super) fn question(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    kind: PeerKind,
    header: Header,
    body: &[u8],
) -> Result<(), Ended> {
    if header.call == 0 {
        return Err(FrameError::OutOfPlace(header.kind).into());
    }
    match kind {
        PeerKind::Pull => pull(shared, link, header, decode(header, body)?),
        PeerKind::PullDone => {
            let done: v1::PullDone = decode(header, body)?;
            let open = link.peer.state.lock().done(link.incarnation, header.call, done.id, link.id);
            closed(shared, link, header.call, open, done.holds);
            Ok(())
        }
        PeerKind::Seek => seek(shared, link, header, &decode(header, body)?),
        PeerKind::Proofs if link.version >= PROOFS_SINCE => {
            proofs(shared, link, header, &decode(header, body)?)
        }
        PeerKind::PullMany => many(shared, link, header, decode(header, body)?),
        PeerKind::Inquire => inquire(shared, link, header, decode(header, body)?),
        PeerKind::ChannelAttach => channels::attach(shared, link, header, &decode(header, body)?),
        PeerKind::PipeConnect => pipe_calls::connect(shared, link, header, decode(header, body)?),
        PeerKind::SetCall if link.version >= SET_CALLS_SINCE => {
            sets::call(shared, link, header, decode(header, body)?)
        }
        PeerKind::Redeem if link.version >= QUESTIONS_SINCE => {
            questions::redeem(shared, link, header, &decode(header, body)?)
        }
        PeerKind::Watch if link.version >= QUESTIONS_SINCE => {
            questions::watch(shared, link, header, decode(header, body)?)
        }
        PeerKind::Cancel => {
            let _: v1::Cancel = decode(header, body)?;
            cancel(shared, link, header.call);
            Ok(())
        }
        _ => Err(FrameError::OutOfPlace(header.kind).into()),
    }
}

/// A map that was asked for at the node's socket: what is to be answered there, if anything.
pub(super) fn map_at_node(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    body: &[u8],
) -> Result<Option<Vec<u8>>, Ended> {
    let (call, asked) = (header.call, decode::<v1::Pull>(header, body)?);
    let shm = link.ways.shm().filter(|_| Way::try_from(asked.way) == Ok(Way::Shm));
    let shm = shm.ok_or(FrameError::OutOfPlace(header.kind))?;
    if let Some(limit) = refused(link, header, Way::Shm)? {
        return Ok(Some(failed(PeerKind::Pull, call, &limit)));
    }
    let opened = match open_shared(shared, link, header, &asked)? {
        Ok(opened) => opened,
        Err(failure) => {
            close(shared, link, call);
            return Ok(Some(failed(PeerKind::Pull, call, &failure)));
        }
    };
    let bulk = OutgoingPull { call, ..opened.bulk };
    let pull = InboundPull {
        id: opened.id,
        link: link.id,
        way: Way::Shm,
        mapped: bulk.source.block().map(|block| (block.segment_id(), shm.holder())),
        leased: opened.leased,
        spreads: false,
        proven: false,
        hashing: false,
    };
    // Before it is known: whoever ends it takes its block from there. What was kept before went with its connection.
    let kept = shm.keep(&bulk).is_ok();
    let entered = if kept { link.peer.state.lock().open_at_node(call, pull) } else { Err(()) };
    match entered {
        Ok(before) => {
            // Not its block: what has the number of the call by now is this one's.
            let before = before.map(|before| InboundPull { way: Way::Stream, ..before });
            closed(shared, link, call, before, false);
            Ok(Some(frame::encode(PeerKind::Pull.into(), REPLY, call, &opened.head)))
        }
        Err(()) => {
            stop_sending(link, call, Way::Shm, None);
            release(shared, link, &pull);
            Ok(None)
        }
    }
}

/// Refusal of a pull that cannot be opened: there are too many.
pub(super) fn refused(link: &Link, header: Header, way: Way) -> Result<Option<Failure>, Ended> {
    let state = link.peer.state.lock();
    let open = state.open.get(&header.call);
    // A second time on one connection only to give up another way.
    if open.is_some_and(|open| open.link == link.id && !way.may_follow(open.way)) {
        return Err(FrameError::OutOfPlace(header.kind).into());
    }
    let most = if way == Way::Shm { MAPS_MAX } else { OPEN_MAX };
    let full = open.is_none() && is_full(&state.open, way, most);
    Ok(full.then(|| Failure::new(Reason::LimitExceeded, format!("a peer may have {most} pulls open"))))
}

/// Leases what is mapped: a tensor of ours, or our copy of another peer's.
fn open_shared(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    asked: &v1::Pull,
) -> Result<Result<Opened, Failure>, Ended> {
    let opened = match asked.owner {
        Some(_) if link.version < LENDS_SINCE => return Err(FrameError::Malformed(header.kind).into()),
        // Both ends may see a meeting end at different times.
        Some(_) if !link.ways.maps() => Err(not_met()),
        Some(_) => open_loan(shared, link, asked),
        None => open_map(shared, link, asked),
    };
    Ok(opened.and_then(|opened| {
        let lent = link.ways.shm().zip(opened.bulk.source.block());
        let may = lent.map_or(Ok(()), |(shm, block)| shm.check_lent(&link.peer.name, block));
        may.inspect_err(|_| {
            if let Some(leased) = opened.leased {
                shared.serve.done(&link.key(), leased);
            }
        })?;
        Ok(opened)
    }))
}

fn pull(shared: &Arc<Shared>, link: &Arc<Link>, header: Header, asked: v1::Pull) -> Result<(), Ended> {
    let call = header.call;
    let way = Way::try_from(asked.way).map_err(|_| FrameError::Malformed(header.kind))?;
    let transport = link.ways.of(way).ok_or(FrameError::OutOfPlace(header.kind))?;
    let on_lanes = matches!(way, Way::Lanes | Way::Quic);
    let spreads = asked.spreads && on_lanes && asked.selection.is_none() && link.version >= HOLDERS_SINCE;
    if let Some(limit) = refused(link, header, way)? {
        link.submit(failed(PeerKind::Pull, call, &limit));
        return Ok(());
    }
    let resumed = link.peer.state.lock().open.get(&call).is_some_and(|open| open.id == asked.id);
    let opened = match way {
        Way::Shm => open_shared(shared, link, header, &asked)?,
        Way::Stream | Way::Lanes | Way::Quic if asked.owner.is_some() => {
            if !on_lanes || link.version < HOLDERS_SINCE {
                return Err(FrameError::Malformed(header.kind).into());
            }
            open_aid(shared, link, &asked)
        }
        Way::Stream | Way::Lanes | Way::Quic => open(shared, link, asked, resumed, spreads),
    };
    match opened {
        Err(failure) => {
            // A continued pull that cannot go on gives its first lease back.
            close(shared, link, call);
            link.submit(failed(PeerKind::Pull, call, &failure));
        }
        Ok(Opened { id, leased, head, bulk }) => {
            let bulk = OutgoingPull { call, ..bulk };
            let shm = link.ways.shm().filter(|_| way == Way::Shm);
            let mapped = shm.zip(bulk.source.block()).map(|(shm, block)| (block.segment_id(), shm.holder()));
            let pull = InboundPull {
                id,
                link: link.id,
                way,
                mapped,
                leased,
                spreads,
                proven: false,
                hashing: false,
            };
            let entered = link.peer.state.lock().open_here(call, pull);
            let Ok(before) = entered else {
                not_entered(shared, link, &pull);
                return Ok(());
            };
            if let Some(before) = before {
                stop_sending(link, call, before.way, None);
                if before.spreads && !spreads {
                    shared.serve.left(&link.key(), before.id, false);
                }
                release(shared, link, &before);
            }
            let head = frame::encode(PeerKind::Pull.into(), REPLY, call, &head);
            match transport.serve(head, bulk) {
                // Closed: the lease stays for the asker's return, or until its grace is over.
                Ok(()) | Err(SendError::Closed) => {}
                Err(error) => link.end(error.into()),
            }
        }
    }
    Ok(())
}

/// Gives back what was leased for a pull that came on a connection whose place another one has taken.
pub(super) fn not_entered(shared: &Shared, link: &Link, pull: &InboundPull) {
    let (lives, pulls) = {
        let state = link.peer.state.lock();
        (state.incarnation == Some(link.incarnation), state.pulls(pull.id))
    };
    if !lives {
        // Also what it got since it was over.
        return shared.serve.peer_over(&link.key());
    }
    if pull.spreads && !pulls {
        shared.serve.left(&link.key(), pull.id, false);
    }
    release(shared, link, pull);
}

/// Returns whether a peer has as many open as it may. What it maps does not count as what it pulls.
fn is_full(open: &HashMap<u64, InboundPull>, way: Way, most: usize) -> bool {
    let same = |open: &&InboundPull| (open.way == Way::Shm) == (way == Way::Shm);
    open.len() >= most && open.values().filter(same).count() >= most
}

/// No more bytes of a pull are wanted.
fn stop_sending(link: &Arc<Link>, call: u64, way: Way, end: Option<Vec<u8>>) {
    let closed = link.ways.of(way).map_or(Ok(()), |transport| transport.close(call, end));
    match closed {
        Ok(()) | Err(SendError::Closed) => {}
        Err(error) => link.end(error.into()),
    }
}

/// A pull that can be served.
struct Opened {
    /// The tensor, as the reader calls it.
    id: u64,
    leased: Option<u64>,
    head: v1::PullHead,
    bulk: OutgoingPull,
}

/// The holders that a reader names as lost, as many as may be named.
fn lost_of(lives: &[v1::Life]) -> Vec<LostHolder> {
    lives.iter().take(LOST_MAX).filter_map(lost::holder).collect()
}

/// Leases the tensor and finds its bytes.
fn open(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    asked: v1::Pull,
    resumed: bool,
    spreads: bool,
) -> Result<Opened, Failure> {
    let lost = lost_of(&asked.lost);
    let v1::Pull { id, selection, from, bytes, stored, ahead, .. } = asked;
    let list = row_lists::bytes_of(selection.as_ref());
    let list = list.map(|bytes| shared.row_lists.book(&link.peer.name, bytes, resumed)).transpose()?;
    let selection = wire::selection(selection)?;
    let ahead = ReceivedRanges::told(&ahead, from, bytes).filter(|_| from <= bytes).ok_or_else(|| {
        let message =
            format!("a pull of {bytes} bytes cannot go on from byte {from} with what it says has landed");
        Failure::new(Reason::InvalidArgument, message)
    })?;
    let key = link.key();
    let asked = Asked { id, selection, bytes, stored, resumed, spreads, lost };
    let mut served = shared.serve.open(&key, &asked)?;
    let leased = served.staged.unwrap_or(id);
    let ours = served.descriptor.layout.bytes();
    if ours != bytes {
        shared.serve.done(&key, leased);
        let message = format!("the selection has {ours} bytes here, and the reader expects {bytes}");
        return Err(Failure::new(Reason::LayoutMismatch, message).with("bytes", ours));
    }
    served.source.skip(from);
    let (head, source) = headed(served);
    let source = match list {
        Some(part) => source.booked(part),
        None => source,
    };
    let bulk = OutgoingPull { call: 0, source, at: from, end: bytes, ahead, relayed: false, gpu: None };
    Ok(Opened { id, leased: Some(leased), head, bulk })
}

/// Head that is said first of what is served.
fn headed(served: Served) -> (v1::PullHead, Source) {
    let Served { descriptor, crc32c, source, holders, staged } = served;
    let descriptor = Some((&descriptor).into());
    let head = v1::PullHead { descriptor, crc32c, staged: staged.is_some(), ..v1::PullHead::default() };
    let Some(Holders { pass, peers, spares }) = holders else { return (head, source) };
    let (holders, spares) = (relay::lives(&peers), relay::lives(&spares));
    (v1::PullHead { holders, spares, pass: pass.to_vec().into(), ..head }, source)
}

/// Finds what is here of another peer's tensor.
fn open_aid(shared: &Arc<Shared>, link: &Arc<Link>, asked: &v1::Pull) -> Result<Opened, Failure> {
    let v1::Pull { id, from, bytes, .. } = *asked;
    let invalid = |what: &str| Failure::new(Reason::InvalidArgument, what.to_owned());
    let owner = owner(asked)?;
    let pass = RelayToken::try_from(&asked.pass[..]).map_err(|_| invalid("a pass has 16 bytes"))?;
    if asked.selection.is_some() || from != 0 {
        return Err(invalid("a tensor is passed on as a whole"));
    }
    let wanted = RelayRequest { owner, id, bytes, pass, whole: asked.whole };
    let RelaySource { served, leased } = shared.serve.relay(&link.key(), &wanted)?;
    let (head, source) = headed(served);
    Ok(Opened {
        id,
        leased,
        head,
        bulk: OutgoingPull {
            call: 0,
            source,
            at: 0,
            end: bytes,
            ahead: ReceivedRanges::default(),
            relayed: true,
            gpu: None,
        },
    })
}

/// A reader wants to know more of the owner. One whose pull is not open has ended it.
fn seek(shared: &Arc<Shared>, link: &Arc<Link>, header: Header, asked: &v1::Seek) -> Result<(), Ended> {
    let call = header.call;
    let open = {
        let mut state = link.peer.state.lock();
        let open = state.open.get_mut(&call).filter(|open| open.id == asked.id && open.link == link.id);
        // Who fell back to the control connection may still have bytes of others to be proven.
        let open = open.filter(|open| open.spreads || asked.proof);
        if let Some(open) = open.as_ref().filter(|open| open.proven && asked.proof) {
            tracing::debug!(peer = %link.peer.name, id = open.id, "a checksum is asked for twice");
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        open.map(|open| {
            open.proven |= asked.proof;
            *open
        })
    };
    let Some(open) = open else {
        link.submit(frame::encode(PeerKind::Seek.into(), REPLY, call, &v1::Sought::default()));
        return Ok(());
    };
    let sought = if asked.proof { Sought::Proof } else { Sought::Holders(lost_of(&asked.lost)) };
    let answering = Arc::downgrade(link);
    shared.serve.seek(
        &link.key(),
        open.id,
        sought,
        Box::new(move |found| {
            let Some(link) = answering.upgrade() else { return };
            link.submit(match found {
                Ok(Found { peers, spares, crc32c }) => {
                    let (holders, spares) = (relay::lives(&peers), relay::lives(&spares));
                    let sought = v1::Sought { holders, crc32c, spares };
                    frame::encode(PeerKind::Seek.into(), REPLY, call, &sought)
                }
                Err(failure) => failed(PeerKind::Seek, call, &failure),
            });
        }),
    );
    Ok(())
}

/// A reader wants to know of the owner what granules hash to that others send. One whose pull is not open has ended it.
fn proofs(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    asked: &v1::PeerProofs,
) -> Result<(), Ended> {
    let (call, v1::PeerProofs { id, first, count }) = (header.call, *asked);
    let malformed = FrameError::Malformed(header.kind);
    let end =
        first.checked_add(count.into()).filter(|_| (1..=PROOFS_MAX).contains(&count)).ok_or(malformed)?;
    let leased = {
        let mut state = link.peer.state.lock();
        let open = state.open.get_mut(&call).filter(|open| open.id == id && open.link == link.id);
        let open = open.filter(|open| open.spreads);
        if open.as_ref().is_some_and(|open| open.hashing) {
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        open.and_then(|open| {
            open.hashing = true;
            open.leased
        })
    };
    let Some(leased) = leased else {
        let failure = Failure::new(Reason::NotFound, "no pull of the tensor is open here");
        link.submit(failed(PeerKind::Proofs, call, &failure));
        return Ok(());
    };
    let answering = Arc::downgrade(link);
    shared.serve.prove(
        leased,
        first..end,
        Box::new(move |proven| {
            let Some(link) = answering.upgrade() else { return };
            if let Some(open) = link.peer.state.lock().open.get_mut(&call).filter(|open| open.link == link.id)
            {
                open.hashing = false;
            }
            link.submit(match proven {
                Ok(hashes) => {
                    let proven = v1::PeerProven { hashes: hashes.into() };
                    frame::encode(PeerKind::Proofs.into(), REPLY, call, &proven)
                }
                Err(failure) => failed(PeerKind::Proofs, call, &failure),
            });
        }),
    );
    Ok(())
}

/// Ends the lease of a pull, if it has one.
fn release(shared: &Shared, link: &Link, open: &InboundPull) {
    if let Some(leased) = open.leased {
        shared.serve.done(&link.key(), leased);
    }
}

/// Leases the tensor and says where it lies.
fn open_map(shared: &Arc<Shared>, link: &Arc<Link>, asked: &v1::Pull) -> Result<Opened, Failure> {
    let v1::Pull { id, bytes, .. } = *asked;
    if asked.selection.is_some() || asked.from != 0 {
        return Err(Failure::new(Reason::InvalidArgument, "a tensor is mapped as a whole"));
    }
    if let Some(opened) = open_on_gpu(shared, link, asked)? {
        return Ok(opened);
    }
    let served = shared.serve.map(&link.key(), id, bytes)?;
    let leased = served.staged.unwrap_or(id);
    Ok(placed(served, id, Some(leased), bytes))
}

/// Leases our copy of another peer's tensor and says where it lies.
fn open_loan(shared: &Arc<Shared>, link: &Arc<Link>, asked: &v1::Pull) -> Result<Opened, Failure> {
    let v1::Pull { id, bytes, .. } = *asked;
    if asked.selection.is_some() || asked.from != 0 {
        return Err(Failure::new(Reason::InvalidArgument, "a copy is mapped as a whole"));
    }
    let owner = owner(asked)?;
    let RelaySource { served, leased } = shared.serve.lend(&link.key(), &AskedLoan { owner, id, bytes })?;
    Ok(placed(served, id, leased, bytes))
}

/// Answer for bytes that stay at their place.
fn placed(served: Served, id: u64, leased: Option<u64>, bytes: u64) -> Opened {
    let (head, source) = headed(served);
    let place = source.block().map(|block| v1::Place {
        segment: block.segment_id(),
        offset: block.offset(),
        bytes: block.len(),
    });
    Opened { id, leased, head: v1::PullHead { place, ..head }, bulk: kept(source, bytes, None) }
}

/// Nothing to be sent: the bytes stay where they are.
fn kept(source: Source, bytes: u64, gpu: Option<LentMemory>) -> OutgoingPull {
    let ahead = ReceivedRanges::default();
    OutgoingPull { call: 0, source, at: 0, end: bytes, ahead, relayed: false, gpu }
}

/// Leases a tensor that lies on a GPU which the reader says that both reach; none where it lies elsewhere, or no more is lent.
fn open_on_gpu(shared: &Arc<Shared>, link: &Arc<Link>, asked: &v1::Pull) -> Result<Option<Opened>, Failure> {
    if asked.cuda_uuids.is_empty() {
        return Ok(None);
    }
    let (id, gpus) = (asked.id, gpus::named(&asked.cuda_uuids)?);
    let Some(served) = shared.serve.map_on_gpu(&link.key(), id, &gpus)? else { return Ok(None) };
    let ServedOnGpu { descriptor, memory } = served;
    if !link.ways.shm().is_some_and(|shm| shm.may_lend_gpu(&link.peer.name, &memory)) {
        shared.serve.done(&link.key(), id);
        return Ok(None);
    }
    let ours = descriptor.layout.bytes();
    let opened = source_of_none(&descriptor).and_then(|source| {
        if ours != asked.bytes {
            let message = format!("the tensor has {ours} bytes here, and the reader expects {}", asked.bytes);
            return Err(Failure::new(Reason::LayoutMismatch, message).with("bytes", ours));
        }
        let (gpu_allocation_bytes, descriptor) = (memory.bytes, Some((&descriptor).into()));
        let head = v1::PullHead { descriptor, gpu_allocation_bytes, ..v1::PullHead::default() };
        Ok(Opened { id, leased: Some(id), head, bulk: kept(source, asked.bytes, Some(memory)) })
    });
    opened.map(Some).inspect_err(|_| shared.serve.done(&link.key(), id))
}

/// Source of a tensor whose bytes are none of the host's.
fn source_of_none(descriptor: &Descriptor) -> Result<Source, Failure> {
    let unreadable = |error: BlockError| Failure::new(Reason::Internal, error.to_string());
    let block = Block::nothing();
    block.mark_sealed().map_err(unreadable)?;
    let runs = Selection::All.resolve(&descriptor.layout.packed())?.runs();
    Source::new(block, runs).map_err(unreadable)
}

/// Copies are lent on one node.
fn not_met() -> Failure {
    Failure::new(Reason::NotFound, "it is not proven that both peers are on one node, where copies are lent")
}

/// Owner of the tensor that is asked for.
fn owner(asked: &v1::Pull) -> Result<PeerKey, Failure> {
    let owner = asked.owner.as_ref().and_then(relay::key);
    owner.ok_or_else(|| {
        let message = "the owner of the tensor is not the name and life of a peer";
        Failure::new(Reason::InvalidArgument, message)
    })
}

/// Ends the lease of an open pull. One that is not known was ended before.
fn close(shared: &Arc<Shared>, link: &Arc<Link>, call: u64) {
    let open = link.peer.state.lock().close(link.incarnation, call, None);
    closed(shared, link, call, open, false);
}

/// A pull is not open any more.
fn closed(shared: &Arc<Shared>, link: &Arc<Link>, call: u64, open: Option<InboundPull>, holds: bool) {
    let Some(open) = open else { return };
    stop_sending(link, call, open.way, None);
    if open.spreads {
        shared.serve.left(&link.key(), open.id, holds);
    }
    release(shared, link, &open);
}

/// Ends the leases of pulls that are not on this connection: the word that they are over was lost with the one before,
/// or they would have been asked for again. But for maps: those that are done are not asked for again, and somebody uses them
/// until the witness of their segment has ended.
pub(super) fn end_forgotten(shared: &Shared, link: &Link) {
    let before = link.peer.state.lock().forgotten(link.id);
    let is_mapped = |open: &InboundPull| {
        let arena = shared.node.as_ref().map(|node| node.arena());
        open.mapped.zip(arena).is_some_and(|((segment, holder), arena)| arena.is_witnessed(segment, holder))
    };
    for (call, open) in before.into_iter().filter(|(_, open)| !is_mapped(open)) {
        let removed = link.peer.state.lock().close_forgotten(call, &open);
        if let Some(open) = removed {
            if open.spreads {
                shared.serve.left(&link.key(), open.id, false);
            }
            release(shared, link, &open);
        }
    }
}

fn cancel(shared: &Arc<Shared>, link: &Arc<Link>, call: u64) {
    let cancelled = Failure::new(Reason::Cancelled, "the reader withdrew the call");
    let inquiry = link.peer.state.lock().inquiries.remove(&call);
    if let Some(Inquiry { gone, kind, .. }) = inquiry {
        gone.cancel();
        link.submit(failed(kind, call, &cancelled));
        return;
    }
    if link.pipes.withdraw(call) {
        return;
    }
    let way = link.peer.state.lock().open.get(&call).map_or(Way::Stream, |open| open.way);
    stop_sending(link, call, way, Some(failed(PeerKind::Pull, call, &cancelled)));
    close(shared, link, call);
}

fn many(shared: &Arc<Shared>, link: &Arc<Link>, header: Header, asked: v1::PullMany) -> Result<(), Ended> {
    let is_stated = asked.stored.is_empty() || asked.stored.len() == asked.ids.len();
    if asked.ids.len() > ITEMS_MAX || !is_stated {
        return Err(FrameError::Malformed(header.kind).into());
    }
    let call = header.call;
    if !link.outbox.is_late() {
        link.submit_gathered(small_answer(shared, link, call, &asked));
        give_way();
        return Ok(());
    }
    if link.outbox.late() >= CALLS_MAX {
        return Err(Ended::Backlog);
    }
    let (shared, answering) = (Arc::clone(shared), Arc::downgrade(link));
    let bytes = size_of_val(&*asked.ids) + size_of_val(&*asked.stored);
    link.submit_late(bytes, move || {
        answering.upgrade().map(|link| small_answer(&shared, &link, call, &asked)).unwrap_or_default()
    });
    Ok(())
}

fn small_answer(shared: &Arc<Shared>, link: &Arc<Link>, call: u64, asked: &v1::PullMany) -> GatherFrame {
    let mut answer = SmallAnswer::new(asked.ids.len());
    shared.serve.small(&link.key(), asked, &mut answer);
    let (frame, bytes) = answer.into_frame(call);
    count_out(&shared.counters, &link.peer, bytes);
    frame
}

/// Enters a call that is answered later. Its cancel comes when the peer withdraws it, or its connection ends.
pub(super) fn enter_inquiry(link: &Link, header: Header, kind: PeerKind) -> Result<Cancel, Ended> {
    enter(link, header, kind, false)
}

/// Enters a call that is answered later. `yields`: the peer can do without the answer.
fn enter(link: &Link, header: Header, kind: PeerKind, yields: bool) -> Result<Cancel, Ended> {
    let gone = Cancel::default();
    let mut state = link.peer.state.lock();
    if !state.is_present(link.id) {
        // It was read late, from a connection that another one has replaced: its caller asks again there, by the same number.
        gone.cancel();
        return Ok(gone);
    }
    let inquiry = Inquiry { gone: gone.clone(), kind, yields };
    if state.inquiries.insert(header.call, inquiry).is_some() {
        return Err(FrameError::OutOfPlace(header.kind).into());
    }
    if state.inquiries.len() > CALLS_MAX {
        return Err(Ended::Backlog);
    }
    Ok(gone)
}

/// Takes out a call that is answered now. Returns whether the peer still waits for it, on this connection.
pub(super) fn take_inquiry(link: &Link, call: u64) -> bool {
    let mut state = link.peer.state.lock();
    state.is_present(link.id) && state.inquiries.remove(&call).is_some()
}

fn inquire(shared: &Arc<Shared>, link: &Arc<Link>, header: Header, asked: v1::Inquire) -> Result<(), Ended> {
    if asked.targets.len() > ITEMS_MAX {
        return Err(FrameError::Malformed(header.kind).into());
    }
    let call = header.call;
    if asked.copies && (link.version < LENDS_SINCE || !link.ways.maps()) {
        link.submit(failed(PeerKind::Inquire, call, &not_met()));
        return Ok(());
    }
    let gone = enter(link, header, PeerKind::Inquire, asked.yields)?;
    let answering = Arc::downgrade(link);
    shared.serve.inquire(
        &link.key(),
        asked,
        gone,
        Box::new(move |answer| {
            let Some(link) = answering.upgrade() else { return };
            if !take_inquiry(&link, call) {
                return;
            }
            link.submit(reply(PeerKind::Inquire, call, &answer, "ask for fewer"));
        }),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_maps_does_not_count_as_what_it_pulls_and_each_has_its_bound() {
        let open = |way| InboundPull {
            id: 1,
            link: 1,
            way,
            mapped: None,
            leased: Some(1),
            spreads: false,
            proven: false,
            hashing: false,
        };
        let (maps, pulls) = (0..MAPS_MAX as u64, 1 << 32..(1 << 32) + OPEN_MAX as u64);
        let mut all: HashMap<_, _> = maps.clone().skip(1).map(|call| (call, open(Way::Shm))).collect();
        all.extend(pulls.clone().skip(1).map(|call| (call, open(Way::Lanes))));
        let is_full =
            |all: &HashMap<_, _>| (is_full(all, Way::Shm, MAPS_MAX), is_full(all, Way::Stream, OPEN_MAX));
        assert_eq!(is_full(&all), (false, false));
        all.insert(maps.start, open(Way::Shm));
        assert_eq!(is_full(&all), (true, false));
        all.insert(pulls.start, open(Way::Stream));
        assert_eq!(is_full(&all), (true, true));
        all.remove(&(MAPS_MAX as u64 - 1));
        assert_eq!(is_full(&all), (false, true));
    }
}
