//! Sidecar and its sessions: every verb, channels, also over gRPC, requests that are repeated, and sets.

mod channels;
mod exchange;
mod file_sets;
mod mutable_sets;
mod pipe_streams;
mod pipes;
mod policies;
mod repeats;
mod sets;
mod streams;
mod watch;
