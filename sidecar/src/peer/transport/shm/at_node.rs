//! Frames at the node's socket: maps are asked for and answered there, and nothing else. A round trip there has no encryption and
//! no network in it. What the questions and answers mean is `serving`'s and `receive`'s.

use std::sync::Arc;

use tensorlane_proto::frame::{FrameError, HEADER_BYTES, Header, PeerKind};

use super::wire::{FRAME_MAX, MetSocket, NodeEnd};
use crate::peer::link::{Ended, Link};
use crate::peer::parse::{Body, Sink};
use crate::peer::receive::Receiver;
use crate::peer::serving;
use crate::peer::shared::Shared;

/// Takes a frame that came. An answer is sent here, and waited for until the other end takes it.
pub(super) fn take(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    socket: &MetSocket,
    frame: &[u8],
) -> Result<(), NodeEnd> {
    let (header, body) = parts(frame)?;
    if header.is_reply() {
        // What was asked for on the control connection may be under that thread's hands.
        if !link.peer.state.lock().awaits_node(header.call, link.id) {
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        let taken = Receiver::new(shared, link).message(PeerKind::Pull, header, Body::Lies(body));
        return taken.map(|_| ()).map_err(NodeEnd::from);
    }
    match serving::map_at_node(shared, link, header, body)? {
        Some(answer) => Ok(socket.send_frame(&answer, true)?),
        None => Ok(()),
    }
}

/// The header and the body of a frame of the one kind that has its place here.
fn parts(frame: &[u8]) -> Result<(Header, &[u8]), FrameError> {
    let out_of_place = FrameError::OutOfPlace(PeerKind::Pull.into());
    let (head, body) = frame.split_first_chunk::<HEADER_BYTES>().ok_or(out_of_place)?;
    let header = Header::decode(head, FRAME_MAX as u32)?;
    if header.length as usize != body.len() || header.kind != u16::from(PeerKind::Pull) || header.call == 0 {
        return Err(FrameError::OutOfPlace(header.kind));
    }
    Ok((header, body))
}

impl From<Ended> for NodeEnd {
    fn from(ended: Ended) -> Self {
        Self::Frame(ended.to_string())
    }
}

impl From<FrameError> for NodeEnd {
    fn from(error: FrameError) -> Self {
        Self::Frame(error.to_string())
    }
}
