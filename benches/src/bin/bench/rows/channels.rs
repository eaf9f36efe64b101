//! The rows of `bench channels`.

use super::{Bound, Row, row};

pub(crate) static PINGPONG_POD: Row = row(
    "chan.pingpong_pod",
    "us",
    "64 bytes there and back between two C processes that wake each other by futex",
    Bound::RatioAtMost(1.5),
);
pub(crate) static PINGPONG_SPIN: Row = row(
    "chan.pingpong_spin",
    "us",
    "64 bytes there and back between two C processes that never sleep; ours sleep; where there are more than 2 cores",
    Bound::Reported,
);
pub(crate) static FANOUT_8: Row = row(
    "chan.fanout_8",
    "us",
    "64 bytes to eight C processes, after one wake by futex, and the answers of all",
    Bound::Reported,
);
pub(crate) static COPY_64M: Row = row(
    "chan.copy_64m",
    "GB/s",
    "the best warm memcpy with all cores; ours until another process has read it and looked at both its ends",
    Bound::RatioAtLeast(0.9),
);
pub(crate) static LOAN_1G: Row = row(
    "chan.loan_1g",
    "us",
    "a message of 64 bytes; both written in place, from publishing until another process has it",
    Bound::Reported,
);
pub(crate) static PER_MESSAGE: Row = row(
    "chan.per_message",
    "allocs",
    "none; of both processes in 1,000,000 messages of 64 bytes; to their sidecar, which is stopped, they say nothing",
    Bound::ValueAtMost(0.0),
);
pub(crate) static RATE_64B: Row = row("chan.rate_64b", "msgs/s", "none; the same messages", Bound::Reported);
pub(crate) static IDLE_64: Row = row(
    "chan.idle_64",
    "%",
    "none; of one core, what 64 processes take that wait for a message",
    Bound::Reported,
);
pub(crate) static DEATH: Row = row(
    "chan.death",
    "ms",
    "none; from SIGKILL of the reader that a write waits for until the write is done",
    Bound::ValueAtMost(10.0),
);
pub(crate) static PINGPONG_NODE: Row = row(
    "chan.pingpong_node",
    "us",
    "the C processes of chan.pingpong_pod; ours in two pods of one node",
    Bound::Reported,
);
pub(crate) static PINGPONG_NET: Row = row(
    "chan.pingpong_net",
    "us",
    "64 bytes there and back over TCP, plus two ping-pongs of the C processes of chan.pingpong_pod",
    Bound::RatioAtMost(2.0),
);
pub(crate) static STREAM_64M_NET: Row = row(
    "chan.stream_64m_net",
    "GB/s",
    "256 MiB over one socket with the same TLS library and memfds, nothing else; ours in 4 messages",
    Bound::RatioAtLeast(0.8),
);
pub(crate) static STREAM_1M_NET: Row =
    row("chan.stream_1m_net", "GB/s", "the same; ours in 256 messages", Bound::Reported);
pub(crate) static CABLE_8: Row = row(
    "chan.cable_8",
    "x",
    "none; bytes that leave the writer's host for 8 readers of one other host, by the 64 MiB of the message",
    Bound::ValueAtMost(1.2),
);
pub(crate) static AGE_LATEST: Row = row(
    "chan.age_latest",
    "ms",
    "half a round trip of 64 bytes over TCP; ours is the age of what a reader at 10 Hz gets of 10,000 messages a second",
    Bound::Reported,
);
