//! The test cluster itself: what it is while it is up, and that `down` leaves nothing of it.

mod down;
mod nodes;
