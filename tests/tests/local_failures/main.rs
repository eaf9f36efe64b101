//! Clients and sidecars that die, and what lives on.

mod death;
mod file_sets;
mod restart;
mod sets;

use tensorlane_client::AcquireOptions;

fn all() -> AcquireOptions {
    AcquireOptions::new()
}
