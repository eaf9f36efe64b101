//! GPU memory between processes, through a real sidecar, over a stand-in for the driver whose memory is the host's. It proves logic
//! and nothing of speed, and nothing that a real driver does by itself: for that is the suite `gpu_shared`.

use tensorlane_tests::gpu::{GpuDriver, GpuWorkload};
use tensorlane_tests::until;

mod hostile;
mod node;
mod peers;
mod refusals;
mod shared;
mod staged;
mod staging;
mod traces;

/// Driver over which the tests run that any driver must pass.
fn driver() -> GpuDriver {
    GpuDriver::fake()
}

/// As many bytes as the stand-in's smallest allocation has.
const GRANULE: u64 = 2 << 20;

/// Waits until a process has been told that nobody keeps so many bytes, and has kept and then given back all of them.
fn gives_back(producer: &mut GpuWorkload, bytes: u64) {
    let mut left = bytes;
    until("the producer was told, and gave its memory back", || {
        left -= producer.ask("trim", "trimmed").parse::<u64>().unwrap();
        left == 0
    });
}
