//! Tensors on their way between hosts, as it should go and with an end at any point of it. Needs root.

mod both_ways;
mod channel_nodes;
mod channel_options;
mod channel_resumes;
mod channels;
mod exchange;
mod late_peers;
mod mutable_sets;
mod names;
mod pipe_resumes;
mod pipe_streams;
mod pipes;
mod policies;
mod questions;
mod set_streams;
mod sets;
mod steps;
mod streams;
mod transports;
mod waits;
