//! Calls about mutable sets between two peers, and the rows that were packed for their answers.
//!
//! ```text
//!   owner                                            reader
//!     packs rows, leases them for the reader
//!     notes them with the connection   -- answer ->  pulls them              -- release -> leases end
//!                                                    call was withdrawn      -- release -> leases end
//!     answer is not wanted: leases end
//!     connection is lost:   leases end               asks again: for the answer, or for rows that are gone
//! ```
//! A pull that has begun has a lease of its own, and goes on on the next connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_proto::frame::{self, Header, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason, Reference};

use super::calls::Kind;
use super::link::{Ended, Link};
use super::parse::decode;
use super::remote::State;
use super::serving::{enter_inquiry, failed};
use super::shared::Shared;

/// Most tensors of packed rows that one peer may have and not have released.
const PACKED_MAX: usize = 65_536;
/// Time in which an owner can be told that rows are not wanted. Nobody waits for it, and the end of the connection says it as well.
const RELEASE: Duration = Duration::from_secs(60);

/// Tensors of packed rows that a peer has not released.
#[derive(Default)]
pub(super) struct Packed {
    /// Each with the connection that its answer went on, and its bytes.
    tensors: HashMap<u64, (u64, u64)>,
    bytes: u64,
}

// === impl Packed ===

impl Packed {
    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Notes tensors of an answer that goes on a connection, each with its bytes. Returns whether there is room for them, of
    /// `most` bytes.
    fn note(&mut self, tensors: &[(u64, u64)], link: u64, most: u64) -> bool {
        let bytes = tensors.iter().fold(self.bytes, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let fits = self.tensors.len() + tensors.len() <= PACKED_MAX && bytes <= most;
        if fits {
            self.tensors.extend(tensors.iter().map(|(id, bytes)| (*id, (link, *bytes))));
            self.bytes = bytes;
        }
        fits
    }

    /// Takes out what the reader releases: those of its tensors that are still here.
    fn release(&mut self, ids: &[u64]) -> Vec<u64> {
        let mut released = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some((_, bytes)) = self.tensors.remove(id) {
                self.bytes -= bytes;
                released.push(*id);
            }
        }
        released
    }

    /// Takes out what went on a connection that has ended.
    pub(super) fn lost(&mut self, link: u64) -> Vec<u64> {
        let lost: Vec<_> = self.tensors.extract_if(|_, (on, _)| *on == link).collect();
        self.bytes -= lost.iter().map(|(_, (_, bytes))| bytes).sum::<u64>();
        lost.into_iter().map(|(id, _)| id).collect()
    }
}

/// Outcome of an answer at its owner.
enum Told {
    /// Answer that is to be sent.
    Wanted,
    /// Answer for which nobody waits on this connection.
    Unwanted,
    /// Answer whose reader keeps too many rows.
    Full,
}

/// Serves a call about a mutable set of ours.
pub(super) fn call(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    asked: v1::SetCall,
) -> Result<(), Ended> {
    let call = header.call;
    if let Some(v1::set_call::Kind::Release(release)) = asked.kind {
        let ids = link.peer.state.lock().packed.release(&release.ids);
        ids.into_iter().for_each(|id| shared.serve.done(&link.key(), id));
        let kind = Some(v1::set_answer::Kind::Released(v1::SetRelease::default()));
        link.submit(frame::encode(PeerKind::SetCall.into(), REPLY, call, &v1::SetAnswer { kind }));
        return Ok(());
    }
    let gone = enter_inquiry(link, header, PeerKind::SetCall)?;
    let (answering, key, served) = (Arc::downgrade(link), link.key(), Arc::clone(shared));
    let reply = Box::new(move |answer: Result<v1::SetAnswer, Failure>| {
        let tensors = answer.as_ref().map(packed).unwrap_or_default();
        let (link, most) = (answering.upgrade(), served.config.packed_max);
        let take = |link: &Arc<Link>| take(&mut link.peer.state.lock(), link, call, &tensors, most);
        let told = link.as_ref().map_or(Told::Unwanted, take);
        if !matches!(told, Told::Wanted) {
            tensors.into_iter().for_each(|(id, _)| served.serve.done(&key, id));
        }
        let Some(link) = link else { return };
        match (told, answer) {
            (Told::Unwanted, _) => {}
            (Told::Full, _) => {
                let what = format!(
                    "a peer has {PACKED_MAX} tensors of rows at most that it has not released, and {most} bytes; read less at a time"
                );
                let failure = Failure::new(Reason::LimitExceeded, what).with("limit", most);
                link.submit(failed(PeerKind::SetCall, call, &failure));
            }
            (Told::Wanted, Ok(answer)) => {
                link.submit(frame::encode(PeerKind::SetCall.into(), REPLY, call, &answer));
            }
            (Told::Wanted, Err(failure)) => link.submit(failed(PeerKind::SetCall, call, &failure)),
        }
    });
    shared.serve.set_call(&link.key(), asked, gone, reply);
    Ok(())
}

/// Takes out a call that is answered now, and notes what was packed for it: in one step, so that the end of the connection comes
/// before both or after both.
fn take(state: &mut State, link: &Link, call: u64, tensors: &[(u64, u64)], most: u64) -> Told {
    if !state.is_present(link.id) || state.inquiries.remove(&call).is_none() {
        return Told::Unwanted;
    }
    if state.packed.note(tensors, link.id, most) { Told::Wanted } else { Told::Full }
}

/// Takes the answer to a call of ours. Rows of one that nobody waits for any more are given back.
pub(super) fn answered(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    body: &[u8],
) -> Result<(), Ended> {
    let message: v1::SetAnswer = decode(header, body)?;
    let (call, mut effects) = link.peer.state.lock().over(header.call, false);
    let ids = match call.map(|call| call.kind) {
        Some(Kind::Set { done: Some(done), .. }) => {
            effects.finish.push(Box::new(move || done(Ok(message))));
            Vec::new()
        }
        _ => packed(&message).into_iter().map(|(id, _)| id).collect(),
    };
    shared.perform(effects);
    if !ids.is_empty() {
        let kind = Some(v1::set_call::Kind::Release(v1::SetRelease { ids }));
        let (message, done) = (Box::new(v1::SetCall { kind }), Some(Box::new(drop) as super::calls::SetDone));
        let deadline = Instant::now() + RELEASE;
        shared.call(&link.peer.name, Some(link.incarnation), deadline, Kind::Set { message, done });
    }
    Ok(())
}

/// Numbers and bytes of the tensors of packed rows that an answer has.
fn packed(answer: &v1::SetAnswer) -> Vec<(u64, u64)> {
    let Some(v1::set_answer::Kind::Packed(packed)) = &answer.kind else { return Vec::new() };
    packed
        .references
        .iter()
        .filter_map(|text| text.parse::<Reference>().ok())
        .map(|one| (one.id(), one.bytes()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_rows_are_released_once_or_go_with_their_connection_and_have_a_bound() {
        let mut packed = Packed::default();
        let of = |ids: &[u64]| ids.iter().map(|id| (*id, 10)).collect::<Vec<_>>();
        assert!(packed.note(&of(&[1, 2, 3]), 10, 40) && packed.note(&of(&[4]), 11, 40));
        assert!(!packed.note(&of(&[5]), 11, 40), "of 40 bytes all are taken");
        assert_eq!(packed.release(&[2, 9]), [2], "what it does not have is nothing");
        assert_eq!(packed.release(&[2]), [0_u64; 0]);
        let mut lost = packed.lost(10);
        lost.sort_unstable();
        assert_eq!((lost, packed.lost(10)), (vec![1, 3], vec![]));
        let many = of(&(100..100 + PACKED_MAX as u64).collect::<Vec<_>>());
        assert!(!packed.note(&many, 11, u64::MAX), "with the one that there is they are too many");
        assert_eq!(packed.lost(11), [4], "and none of them is noted");
        assert_eq!(packed.bytes, 0);
        assert!(packed.note(&many, 12, u64::MAX));
    }
}
