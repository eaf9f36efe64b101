//! GPU memory between processes, through a real sidecar, over a stand-in for the driver whose memory is the host's. It proves logic
//! and nothing of speed, and nothing that a real driver does by itself: for that is the suite `gpu_shared`.

use tensorlane_tests::gpu::GpuDriver;

mod hostile;
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
