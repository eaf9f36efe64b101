//! Way `quic`: lanes that are streams of one QUIC connection. What a lane carries and who takes which piece is as on every
//! other lane; this module knows the UDP socket (`endpoint`), the connection of a pair (`connection`), how much of it may be under way
//! (`flow`), and a stream (`wire`).
//!
//! ```text
//!   QuicEndpoint (one a sidecar: UDP socket, runtime, its threads) ── QuicConnection (one a control connection) ── QuicWire (one a lane)
//! ```
//! quinn is asynchronous and lanes are threads: a lane waits in the runtime's name for its stream, while the endpoint's threads
//! move datagrams, open and seal them, and find out what was lost. Bytes that come are copied twice, out of quinn's buffer and
//! into the tensor's memory; bytes that go are copied once, from there into the datagram.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use socket2::SockRef;
use tensorlane_proto::frame::{LANES_MAX, PIECE_BYTES_MAX};

mod address;
pub(super) mod connection;
mod endpoint;
mod flow;
mod warm;
mod window;
mod window_budget;
mod wire;

pub(in crate::peer) use connection::QuicConnection;
pub(in crate::peer) use endpoint::QuicEndpoint;
pub(super) use wire::{Cut, QuicWire};

/// The protocol that both ends must name in the handshake.
const ALPN: &[u8] = b"tensorlane/2";
/// Bytes that the kernel takes as datagrams in one call: what a packet of IPv4 carries, less its header and that of UDP. A longer
/// call is refused as a whole, and to quinn, which takes that for a datagram longer than the path, all of it is lost without a word.
const BATCH_BYTES_MAX: u16 = u16::MAX - 20 - 8;
/// Datagrams that quinn hands over in one call, at most (its `MAX_TRANSMIT_SEGMENTS`).
const BATCH_MAX: u16 = 10;
/// The largest datagram that is probed for: so many that a whole batch is taken. Jumbo frames carry larger ones, but then every
/// batch of eight and more would be lost, and with it every step beyond some 70 kB under way: nothing without delay, a few
/// hundred kB a second where the way is long.
const DATAGRAM_MAX: u16 = BATCH_BYTES_MAX / BATCH_MAX;
/// Time for which the smallest datagrams are sent when larger ones seem to vanish, before it is looked for again what
/// comes through. A burst that overflows a buffer looks the same, and looking costs some datagrams that nobody waits
/// for.
const SEARCHED_AGAIN: Duration = Duration::from_secs(5);
/// Bytes of a lane that may wait for its thread, on a link without delay: all that it asks for at a time, so that an owner
/// never waits for credit while there is an ask. The window of a connection is never smaller than that of all its lanes.
const LANE_WINDOW: u64 = 2 * PIECE_BYTES_MAX as u64 + (64 << 10);
/// Bytes of all streams of a connection that may wait, at most, however long the way is: a window of twice the product is
/// full at 10 Gb/s × 27 ms. It costs as much memory beside the arena while the lanes' threads are slower than the link.
/// Likewise of what was sent and is not known to have come; those bytes stay in the tensor's own memory. One stream may fill
/// the window of its connection: what a lane asks for bounds it.
const WINDOW_MAX: u64 = 64 << 20;
/// Bytes that the windows of all connections may have together beyond those for links without delay. It bounds what
/// peers far away cost: where it is spent, the others stay at what their lanes ask for at a time.
const SPARE: u64 = 64 << 20;
/// The window of whoever has not bound yet, and until the first pull of ours: nobody may fill memory with what was not asked
/// for.
const NARROW_WINDOW: u32 = 64 << 10;
/// Time for which a connection stays after the last lane on it ended.
const LINGER: Duration = Duration::from_secs(30);
/// Time for which nothing may go out from the side that dialed before it says something, while the connection is up:
/// where its address has changed on the way, the other end learns the new one by it. Less than the 2 seconds that a
/// lane waits.
const KEEP_ALIVE: Duration = Duration::from_millis(500);

/// Bytes that the kernel is asked to keep of datagrams that nobody has read, and that are not sent: a burst. It gives
/// what its limits allow (`net.core.rmem_max`, `wmem_max`).
const SOCKET_BUFFER: usize = 8 << 20;

/// Settings of quinn and its socket. `idle`: how long a lane may have nothing to do. What quinn measures by itself
/// (round trips, losses, the size of datagrams) is left to it.
///
/// # Errors
/// None that is known: the size of datagrams is one that quinn takes.
pub fn quic_settings(
    socket: &UdpSocket,
    idle: Duration,
) -> io::Result<(EndpointConfig, Arc<TransportConfig>)> {
    // Smaller buffers cost datagrams that are sent again, not correctness.
    let _ = SockRef::from(socket).set_recv_buffer_size(SOCKET_BUFFER);
    let _ = SockRef::from(socket).set_send_buffer_size(SOCKET_BUFFER);
    let mut endpoint = EndpointConfig::default();
    endpoint.max_udp_payload_size(DATAGRAM_MAX).map_err(io::Error::other)?;
    Ok((endpoint, Arc::new(transport(idle, WINDOW_MAX as u32))))
}

/// For connections that we dial: the other end opens no streams on them.
fn dialed(idle: Duration) -> Arc<TransportConfig> {
    let mut config = transport(idle, NARROW_WINDOW);
    config.max_concurrent_bidi_streams(VarInt::from_u32(0)).keep_alive_interval(Some(KEEP_ALIVE));
    Arc::new(config)
}

fn transport(idle: Duration, window: u32) -> TransportConfig {
    let mut probing = MtuDiscoveryConfig::default();
    probing.upper_bound(DATAGRAM_MAX).black_hole_cooldown(SEARCHED_AGAIN);
    let mut config = TransportConfig::default();
    config
        // A stream that binds, and the lanes of both directions, each of which may be replaced.
        .max_concurrent_bidi_streams(VarInt::from_u32(1 + 4 * LANES_MAX as u32))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(WINDOW_MAX as u32))
        .receive_window(VarInt::from_u32(window))
        .send_window(WINDOW_MAX)
        .mtu_discovery_config(Some(probing))
        .max_idle_timeout(IdleTimeout::try_from(idle + LINGER).ok());
    config
}
