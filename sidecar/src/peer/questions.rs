//! Questions to another peer that have one answer each: a ticket of it is redeemed, its names are watched.
//!
//! ```text
//!   asker                                        owner
//!     Redeem { ticket }  ------------------------> uses it, leases the tensor for the asker; the call is open
//!     lost connection: asked again, same number -> is open already: nothing is used
//!     <------------------------------- redeemed ---
//!     pulls the tensor, or not; asks again on each new connection, so that it is not taken for forgotten
//!     PullDone, or Cancel -----------------------> lease ends
//! ```
//! A call that is open is one of the pulls of that peer, without bytes: it counts as one, and ends as one.

use std::sync::Arc;
use std::time::Duration;

use tensorlane_proto::frame::{self, FrameError, Header, PeerKind, QUESTIONS_SINCE, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, PeerName, Reason};

use super::calls::Kind;
use super::link::{Ended, Link};
use super::parse::decode;
use super::pull_guard::PullGuard;
use super::remote::InboundPull;
use super::serving::{enter_inquiry, failed, not_entered, refused, reply, take_inquiry};
use super::shared::Shared;
use super::transport::Way;

/// Most events of an answer, as many as a session may ask for.
const EVENTS_MAX: usize = 10_000;
/// Time that the answer of a watch takes to come, at most.
const ANSWER: Duration = Duration::from_secs(2);

/// Milliseconds after which the owner says that nothing has changed, of the time that is left: that answer has to come, too.
pub(super) fn wait_ms(left: Duration) -> u64 {
    let told = left.saturating_sub(ANSWER.min(left / 4)).max(Duration::from_millis(1));
    u64::try_from(told.as_millis()).unwrap_or(u64::MAX)
}

/// Refusal of a question to a peer of an earlier release.
pub(super) fn unsupported(peer: &PeerName) -> Failure {
    let message = format!(
        "{peer} speaks a version of the peer protocol before {QUESTIONS_SINCE}, which redeems no tickets of others and tells no \
         names to who watches them: update its sidecar"
    );
    Failure::new(Reason::Unsupported, message).with("peer", peer)
}

/// Redeems a ticket of ours for a peer.
pub(super) fn redeem(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    asked: &v1::PeerRedeem,
) -> Result<(), Ended> {
    let call = header.call;
    let answer = frame::encode(PeerKind::Redeem.into(), REPLY, call, &v1::PeerRedeemed {});
    let refusal = refused(link, header, Way::Stream)?;
    // No connection takes the place of this one meanwhile: a ticket would be used for an answer that is lost.
    let handover = link.peer.handover.lock();
    let is_open = {
        let mut state = link.peer.state.lock();
        if !state.is_present(link.id) {
            // It was read late, and is asked again.
            return Ok(());
        }
        state.open.get_mut(&call).map(|open| open.link = link.id).is_some()
    };
    if is_open {
        link.submit(answer);
        return Ok(());
    }
    let redeemed = refusal.map_or_else(|| shared.serve.redeem(&link.key(), asked), Err);
    let id = match redeemed {
        Ok(id) => id,
        Err(failure) => {
            link.submit(failed(PeerKind::Redeem, call, &failure));
            return Ok(());
        }
    };
    let (way, leased) = (Way::Stream, Some(id));
    let pull = InboundPull {
        id,
        link: link.id,
        way,
        mapped: None,
        leased,
        spreads: false,
        proven: false,
        hashing: false,
    };
    let entered = link.peer.state.lock().open_here(call, pull);
    drop(handover);
    match entered {
        Ok(_) => link.submit(answer),
        // It is no connection any more.
        Err(()) => not_entered(shared, link, &pull),
    }
    Ok(())
}

/// Takes the answer to a ticket of ours that a peer has redeemed. A lease that nobody waits for any more ends at once.
pub(super) fn redeemed(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    body: &[u8],
) -> Result<(), Ended> {
    let _: v1::PeerRedeemed = decode(header, body)?;
    let (call, mut effects) = {
        let mut state = link.peer.state.lock();
        let (call, effects) = state.over(header.call, false);
        if let Some(Kind::Redeem { message, done: Some(_), .. }) = call.as_ref().map(|call| &call.kind) {
            state.keep_redeemed(header.call, message.clone());
        }
        (call, effects)
    };
    if let Some(call) = call {
        let (number, expected) = (call.number, call.expected);
        if let Kind::Redeem { id, home: Some((shared, peer)), done, .. } = call.kind {
            effects.finish.push(Box::new(move || {
                let guard = PullGuard::new((shared, peer), (number, id), expected);
                if let Some(done) = done {
                    done(Ok(guard));
                }
            }));
        }
    }
    shared.perform(effects);
    Ok(())
}

/// Tells names of ours to a peer that watches them.
pub(super) fn watch(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    asked: v1::WatchRequest,
) -> Result<(), Ended> {
    let call = header.call;
    let gone = enter_inquiry(link, header, PeerKind::Watch)?;
    let answering = Arc::downgrade(link);
    let answered = Box::new(move |answer: Result<v1::WatchResponse, Failure>| {
        let Some(link) = answering.upgrade().filter(|link| take_inquiry(link, call)) else { return };
        link.submit(match answer {
            Ok(answer) => reply(PeerKind::Watch, call, &answer, "ask for smaller pages"),
            Err(failure) => failed(PeerKind::Watch, call, &failure),
        });
    });
    shared.serve.watch(&link.key(), asked, gone, answered);
    Ok(())
}

/// Takes names of a peer that are watched here.
pub(super) fn watched(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    body: &[u8],
) -> Result<(), Ended> {
    if frame::top_level_items(body) > EVENTS_MAX {
        return Err(FrameError::Malformed(header.kind).into());
    }
    let message: v1::WatchResponse = decode(header, body)?;
    let (call, mut effects) = link.peer.state.lock().over(header.call, false);
    if let Some(Kind::Watch { done: Some(done), .. }) = call.map(|call| call.kind) {
        effects.finish.push(Box::new(move || done(Ok(message))));
    }
    shared.perform(effects);
    Ok(())
}
