//! Injection: by the command from a file, and what a sidecar makes of it.

mod command;
mod sidecar;
