//! Installing, upgrading and removing: by the chart, and word by word as the docs say.
//!
//! There is one installation in a cluster, so the tests take turns. None of them uses `installed::install`: that installs once a
//! process, and these remove what is installed.

mod chart;
mod page;

use tensorlane_tests::turns::Turns;

static TURNS: Turns = Turns::new();
