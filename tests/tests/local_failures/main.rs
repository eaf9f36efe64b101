//! Clients and sidecars that die, and what lives on.

mod death;
mod descriptors;
mod file_sets;
mod hangs;
mod log;
mod restart;
mod set_maps;
mod sets;

use tensorlane_client::AcquireOptions;

fn all() -> AcquireOptions {
    AcquireOptions::new()
}
