//! Load and faults at random for half a minute and more. Needs root.
//!
//! Each test takes all that the machine has, so they take turns.

mod chaos;
mod messages;
mod soak;

use tensorlane_tests::turns::Turns;

static TURNS: Turns = Turns::new();
