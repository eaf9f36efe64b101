//! The rows of `bench sets`.

use super::{Bound, Row, row};

pub(crate) static GATHER_POD: Row = row(
    "set.gather_pod",
    "ms",
    "1,000 random rows of 16 KiB copied out of a warm map of 1 GiB by a C program, plus one Unix round trip",
    Bound::RatioAtMost(1.4),
);
pub(crate) static GATHER_NET: Row = row(
    "set.gather_net",
    "ms",
    "as many bytes over one socket with the same TLS library and memfds, plus one TCP round trip",
    Bound::RatioAtMost(1.4),
);
pub(crate) static COMMIT_POD: Row = row(
    "set.commit_pod",
    "ms",
    "two best warm copies of the 5 rows of 1.2 MB, plus two Unix round trips",
    Bound::RatioAtMost(1.5),
);
pub(crate) static COMMIT_NET: Row = row(
    "set.commit_net",
    "ms",
    "as many bytes over one socket with the same TLS library, one best warm copy of them, plus two TCP round trips",
    Bound::RatioAtMost(1.5),
);
pub(crate) static COMMIT_DISK: Row = row(
    "set.commit_disk",
    "us",
    "a pwrite of a row of 16 KiB into a file beside it and an fdatasync; ours a commit of one with durability `disk`",
    Bound::RatioAtMost(1.5),
);
pub(crate) static REPLAY: Row = row(
    "set.replay",
    "rows/s",
    "torch RPC to the better of TorchRL's memory-mapped storage and a mapped tensor; each: 4 writers extend a buffer of another host by 256 rows of 7 KB at once, then 1,024 random ones are read",
    Bound::RatioAtLeast(2.0),
);
pub(crate) static SIZE_FREE: Row = row(
    "set.size_free",
    "us",
    "a commit of 16 random rows of 4 KiB in a set of 10 MiB; ours in one of 10 GiB, or as there is memory",
    Bound::RatioAtMost(1.3),
);
pub(crate) static CREATE: Row = row(
    "set.create",
    "ms",
    "a mkdir and an ftruncate; ours a set of 140,625 rows of 1.2 MB (173 GB) on files, which take 1 MiB at most",
    Bound::ValueAtMost(20.0),
);
pub(crate) static REFERENCE: Row = row(
    "set.reference",
    "bytes",
    "none; the reference that is passed for a set, where exchange and peer have names of 63 letters",
    Bound::ValueAtMost(400.0),
);
pub(crate) static EXPORT_1G: Row =
    row("set.export_1g", "GB/s", "`cp -r` of the same files, on the same tmpfs", Bound::RatioAtLeast(0.85));
pub(crate) static IMPORT_1G: Row = row("set.import_1g", "GB/s", "the same `cp -r`", Bound::Reported);
pub(crate) static OPEN_10K: Row = row(
    "set.open_10k",
    "ms",
    "reading every meta.json and asking for the length of every file, of 10,000 leaves in 100 trees",
    Bound::RatioAtMost(3.0),
);
pub(crate) static PUBLISH_500: Row = row(
    "set.publish_500",
    "us",
    "two Unix round trips; ours the next version of a set of 500 leaves that are there",
    Bound::RatioAtMost(2.0),
);
