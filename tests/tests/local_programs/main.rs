//! The programs from outside: the sidecar, and the command.

mod command;
mod files;
mod generations;
mod peers;
mod routes;
mod sets;
mod sidecar;
mod words;
