//! A QUIC connection that is made before anybody waits for it, so that a trial of QUIC does not.

use std::sync::Arc;
use std::time::Instant;

use tensorlane_proto::Transport;
use tensorlane_proto::frame::{self, PeerKind};
use tensorlane_proto::generated as v1;

use super::super::Lanes;
use super::connection::InVain;
use crate::peer::connect::Refused;
use crate::peer::link::Link;
use crate::peer::shared::Shared;

impl Lanes {
    /// Returns whether a pull would find lanes without waiting for a connection. Where it would not, it is made now and
    /// then, so that a later one does.
    pub(in crate::peer) fn is_ready(&self) -> bool {
        let Some(quic) = self.quic_connection() else { return true };
        if quic.is_up() {
            return true;
        }
        let (Some(shared), Some(link)) = (self.shared.upgrade(), self.link.upgrade()) else { return false };
        if let Some(InVain(in_vain)) = quic.is_to_be_asked_for(Instant::now()) {
            if link.dialed {
                warm(&shared, &link);
            } else {
                if in_vain {
                    does_not_come_up(&link, "the other end was asked to make it, and none came");
                    return false;
                }
                let nothing = v1::Lanes { way: v1::Way::Quic.into(), ..v1::Lanes::default() };
                link.submit(frame::encode(PeerKind::Lanes.into(), 0, 0, &nothing));
            }
        }
        false
    }

    /// The other end wants a connection that we dial, and nobody waits for it.
    pub(in super::super) fn asked_to_be_ready(&self, shared: &Arc<Shared>, link: &Arc<Link>) {
        let Some(quic) = self.quic_connection() else { return };
        if !quic.is_up() && quic.is_to_be_asked_for(Instant::now()).is_some() {
            warm(shared, link);
        }
    }
}

/// Makes the connection on a thread of its own.
fn warm(shared: &Arc<Shared>, link: &Arc<Link>) {
    let (on_thread, dialed) = (Arc::clone(shared), Arc::clone(link));
    // Where there is no thread for it, a later pull asks again.
    shared.spawn("tl-quic-dial", move || {
        let Some(lanes) = dialed.ways.quic() else { return };
        let Some(quic) = lanes.quic_connection() else { return };
        let until = Instant::now() + on_thread.config.handshake;
        let made = on_thread.caught("warm", || quic.connection(&on_thread, &dialed, lanes, until));
        let Some(made) = made else { return does_not_come_up(&dialed, "its thread has panicked") };
        match made {
            Ok(_) => {}
            // The control connection ended meanwhile, or the other end does not know it: that says nothing of QUIC.
            Err(refused) if matches!(refused, Refused::Lane(_)) || !dialed.is_present() => {
                tracing::debug!(peer = %dialed.peer.name, %refused, "no QUIC connection");
            }
            Err(refused) => does_not_come_up(&dialed, &refused.to_string()),
        }
    });
}

/// A trial that cannot begin is one that failed: it is left alone for a while, and shown so.
fn does_not_come_up(link: &Link, why: &str) {
    tracing::info!(peer = %link.peer.name, why, "no QUIC connection comes up; does the network carry UDP?");
    link.peer.goodput.lock().failed(Transport::Quic, Instant::now());
}
