//! Pods that exchange tensors between nodes, and a thousand peers beside them.
//!
//! What a thousand peers cost is measured alone.

mod exchange;
mod jobs;
mod many;
mod messages;
mod python;
mod sets;

use tensorlane_tests::turns::Turns;

static TURNS: Turns = Turns::new();
