//! GPU memory between processes, through a real sidecar, over the machine's own driver. Without a GPU nothing here can pass:
//! `cargo xtask test --only gpu` looks for one first.

use tensorlane_tests::gpu::GpuDriver;

#[path = "fake_gpu/shared.rs"]
mod shared;
#[path = "fake_gpu/staged.rs"]
mod staged;

fn driver() -> GpuDriver {
    GpuDriver::real()
}
