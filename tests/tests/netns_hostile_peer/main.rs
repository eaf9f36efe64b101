//! Peers that lie, break the rules or flood: they are refused, and nobody else is worse off. Needs root.
//!
//! The flood takes all that the machine has, so it runs alone.

mod chunks;
mod flood;
mod lies;
mod pipes;

use tensorlane_tests::turns::Turns;

static TURNS: Turns = Turns::new();
