//! Limits to what one connection may ask of this process, and what each limit costs.

use std::time::Duration;

use tonic::transport::Server;

/// The longest message that is read: a chunk of 1 MiB, or a list of a million rows. Costs a buffer of that size for each
/// call that is receiving one. A message may become some 250 times as much, if it has two million empty parts of two bytes each: that
/// is in the budget of requests before it is decoded (`weighed`).
pub(super) const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The longest message of a question about health, or about the services themselves.
pub(super) const QUESTION_BYTES_MAX: usize = 16 << 10;

/// Calls of one connection at a time; the next one waits at its client. With [`MESSAGE_BYTES_MAX`] a connection costs
/// 512 MiB at worst, and 8 KiB a call in practice. Those of all connections have a bound of their own (`open_calls`).
const STREAMS_MAX: u32 = 128;

/// Calls that a client may have given up and the server not yet taken notice of. Beyond it the connection is closed (the
/// "rapid reset" attack); a client that gives up everything it has at once must stay below.
const RESETS_MAX: usize = 2 * STREAMS_MAX as usize;

/// The longest frame that a client may send. Longer ones save system calls; one is buffered for each connection.
const FRAME_BYTES_MAX: u32 = 256 << 10;

/// Metadata of one call, all keys and values. Costs as much for each call that begins.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// Bytes that may be on their way in for one call before it has read them: two chunks, so that one is written while the
/// next one comes.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;

/// Bytes that may be on their way in for all calls of a connection together. Costs as much for each connection.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// A silent connection is asked whether anyone is there. The kernel tells of a dead process at once; this finds one
/// that is stopped, and costs a wake-up of both sides.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Timeout of keep-alive. A connection that has not answered by then is closed, and its sessions begin their grace.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// HTTP/2 with these limits.
pub(super) fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .max_frame_size(FRAME_BYTES_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}
