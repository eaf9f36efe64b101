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
pub(crate) static TENSOR_1G_NET: Row = row(
    "pipe.tensor_1g_net",
    "GB/s",
    "the same sockets with the same TLS library, over the best of 1, 2 or 4, and nothing else",
    Bound::RatioAtLeast(0.8),
);
pub(crate) static UNREAD: Row = row(
    "pipe.unread",
    "MiB",
    "none; memory of both sidecars and of the reader's arena for 64 unread messages of the writer's tensor of 256 MiB",
    Bound::ValueAtMost(2.0),
);
