//! Replies to calls that were given up: what they hold must be given back, or it would be held until the session ends.

use tensorlane_proto::encoded;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;

use crate::connection::Connection;
use crate::reader::Frame;
use crate::wire;

/// Things that a late reply would hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// Nothing, or what the caller may still ask for with the same retry id.
    Nothing,
    /// Leases of acquired or redeemed tensors.
    Acquired,
    /// Leases of names.
    Named,
    /// Leases of tensors that were put or sealed.
    Stored,
    /// Reservations.
    Reserved,
    /// A channel.
    Created,
    /// A reader of a channel.
    Attached,
    /// An extent of the channel of that number.
    Extent(u64),
    /// A listener.
    Listener,
    /// An end of a pipe.
    Pipe,
}

/// Gives back what the late reply `frame` holds. One that cannot be read holds nothing that we could give back.
pub(crate) fn give_back(connection: &Connection, late: Late, frame: &Frame) {
    if frame.header.is_failed() {
        return;
    }
    match late {
        Late::Nothing => {}
        Late::Acquired => {
            let reply: encoded::AcquireResponse =
                wire::decode(SessionKind::Acquire, &frame.body[..]).unwrap_or_default();
            for result in reply.results {
                if let Some(encoded::Outcome::Acquired(acquired)) = result.outcome {
                    connection.releases().push(acquired.id, false);
                }
            }
        }
        Late::Named => {
            let reply: v1::ListResponse =
                wire::decode(SessionKind::List, &frame.body[..]).unwrap_or_default();
            for id in reply.entries.into_iter().filter_map(|entry| entry.lease) {
                connection.releases().push(id, false);
            }
        }
        Late::Stored => {
            let reply: v1::PutResponse = wire::decode(SessionKind::Put, &frame.body[..]).unwrap_or_default();
            for result in reply.results {
                if let Some(v1::stored_result::Outcome::Stored(stored)) = result.outcome {
                    connection.releases().push(stored.id, false);
                }
            }
        }
        Late::Reserved => {
            let reply: v1::ReserveResponse =
                wire::decode(SessionKind::Reserve, &frame.body[..]).unwrap_or_default();
            for result in reply.results {
                if let Some(v1::reserve_result::Outcome::Reserved(reserved)) = result.outcome {
                    connection.releases().push_abort(reserved.id);
                }
            }
        }
        Late::Created => {
            let reply: v1::ChannelCreateResponse =
                wire::decode(SessionKind::ChannelCreate, &frame.body[..]).unwrap_or_default();
            let end = v1::ChannelDetachRequest { channel: reply.channel, ..Default::default() };
            connection.releases().push_detach(end);
        }
        Late::Attached => {
            let reply: v1::ChannelAttachResponse =
                wire::decode(SessionKind::ChannelAttach, &frame.body[..]).unwrap_or_default();
            let end = v1::ChannelDetachRequest { reader: reply.reader, ..Default::default() };
            connection.releases().push_detach(end);
        }
        Late::Extent(channel) => {
            let reply: v1::ChannelExtentResponse =
                wire::decode(SessionKind::ChannelExtent, &frame.body[..]).unwrap_or_default();
            // Without its number the word would end the channel.
            if reply.extent > 0 {
                let end = v1::ChannelDetachRequest { channel, extent: reply.extent, ..Default::default() };
                connection.releases().push_detach(end);
            }
        }
        Late::Listener => {
            let reply: v1::PipeListenResponse =
                wire::decode(SessionKind::PipeListen, &frame.body[..]).unwrap_or_default();
            let end = v1::PipeEndRequest { listener: reply.listener, ..Default::default() };
            // A session that is lost has ended it.
            let _ = connection.say(SessionKind::PipeEnd, &end);
        }
        Late::Pipe => {
            let reply: v1::PipeOpened =
                wire::decode(SessionKind::PipeConnect, &frame.body[..]).unwrap_or_default();
            let end = v1::PipeEndRequest { pipe: reply.pipe, closed: true, ..Default::default() };
            let _ = connection.say(SessionKind::PipeEnd, &end);
        }
    }
}
