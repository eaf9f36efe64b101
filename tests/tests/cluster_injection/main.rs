//! Injection on a real cluster: who gets a sidecar, and what others change after it.

mod admission;
mod reinvoked;
