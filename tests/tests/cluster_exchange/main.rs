//! Pods that exchange tensors between nodes, and a thousand peers beside them.
//!
//! What a thousand peers cost is measured alone.

mod exchange;
mod many;
mod messages;
mod python;

use tensorlane_tests::turns::Turns;

static TURNS: Turns = Turns::new();
