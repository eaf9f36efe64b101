//! The programs from outside: the sidecar, and the command.

mod command;
mod routes;
mod sets;
mod sidecar;
