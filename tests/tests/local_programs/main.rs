//! The programs from outside: the sidecar, and the command.

mod command;
mod generations;
mod routes;
mod sidecar;
