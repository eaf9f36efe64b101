//! The rows of `bench pipes`.

use super::{Bound, Row, row};

pub(crate) static RTT_64B_POD: Row = row(
    "pipe.rtt_64b_pod",
    "us",
    "64 bytes there and back between two C processes that wake each other by futex",
    Bound::Reported,
);
pub(crate) static RTT_64B_NET: Row = row(
    "pipe.rtt_64b_net",
    "us",
    "64 bytes there and back over TCP, plus two ping-pongs of those C processes",
    Bound::Reported,
);
pub(crate) static TENSOR_64M_MAP: Row = row(
    "pipe.tensor_64m_map",
    "us",
    "the same message and answer without the tensor of 64 MiB, which its reader maps",
    Bound::Reported,
);
pub(crate) static TENSOR_64M_HEAP: Row = row(
    "pipe.tensor_64m_heap",
    "GB/s",
    "two of the best warm memcpy with all cores, one after the other; ours from the writer's heap into the reader's",
    Bound::Reported,
);
pub(crate) static TENSOR_1G_NET: Row = row(
    "pipe.tensor_1g_net",
    "GB/s",
    "the same sockets with the same TLS library, over the best of 1, 2 or 4, and nothing else",
    Bound::RatioAtLeast(0.8),
);
pub(crate) static RATE_256B_POD: Row = row(
    "pipe.rate_256b_pod",
    "msgs/s",
    "none; 32 messages of 256 bytes under way at a time",
    Bound::Reported,
);
pub(crate) static RATE_256B_NET: Row =
    row("pipe.rate_256b_net", "msgs/s", "none; the same to another host", Bound::Reported);
pub(crate) static UNREAD: Row = row(
    "pipe.unread",
    "MiB",
    "none; memory of both sidecars and of the reader's arena for 64 unread messages of the writer's tensor of 256 MiB",
    Bound::ValueAtMost(2.0),
);
pub(crate) static CONNECT: Row = row(
    "pipe.connect",
    "us",
    "three raw Unix-socket round trips of 64 bytes; ours until the first message was read",
    Bound::Reported,
);
pub(crate) static CONNECT_NET: Row = row(
    "pipe.connect_net",
    "us",
    "three of those round trips, and two over TCP; ours to another host",
    Bound::Reported,
);
