//! Answers of a real API server: to our definitions, our policies, our pods, and to an operator that runs with no more
//! than its own permissions. Ignored unless asked for (`-- --include-ignored`), because not everybody has the programs of
//! Kubernetes; `cargo xtask test` asks where it finds them, and names what it leaves out where it does not.
#![cfg(feature = "run")]
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
// What compares golden pods is used by another suite.
#[allow(dead_code)]
mod common;

mod asked;
mod certificates;
mod definitions;
mod directory;
mod exchanges;
mod foreign;
mod gpus;
mod guard;
mod leases;
mod lists;
mod metrics;
mod namesake;
mod needed;
mod objects;
mod orphans;
mod pages;
mod paused;
mod people;
mod permissions;
mod proxy;
mod renewal;
mod resized;
mod restored;
mod restricted;
mod rights;
mod rules;
mod running;
mod server;
mod skipped;
mod tokens;
mod training;
mod tried;
