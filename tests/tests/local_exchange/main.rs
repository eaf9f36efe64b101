//! Sidecar and its sessions: every verb, requests that are repeated, and sets.

mod exchange;
mod repeats;
mod sets;
