//! Sidecar and its sessions: every verb, channels, also over gRPC, requests that are repeated, and sets.

mod channels;
mod directories;
mod evictions;
mod exchange;
mod file_sets;
mod growth;
mod mutable_sets;
mod pipe_contexts;
mod pipe_streams;
mod pipes;
mod policies;
mod repeats;
mod set_maps;
mod set_snapshots;
mod set_streams;
mod sets;
mod streams;
mod watch;
