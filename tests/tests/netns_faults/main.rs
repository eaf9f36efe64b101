//! Hosts, sidecars, wires and cables that fail: right bytes or a reason in time, and nothing left. Needs root.

mod faults;
mod hurt;
mod owner_gone;
mod sets;
