//! One sidecar and its sessions: every verb, and requests that are repeated.

mod exchange;
mod repeats;
