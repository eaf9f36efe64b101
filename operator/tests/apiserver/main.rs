//! What a real API server says: to our definitions, our policies, our pods, and to an operator that runs with no more
//! than its own permissions. Skipped, and said so, where etcd and kube-apiserver have not been built.
#![cfg(feature = "run")]
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
// What compares golden pods is used by another suite.
#[allow(dead_code)]
mod common;

mod asked;
mod definitions;
mod exchanges;
mod foreign;
mod gpus;
mod objects;
mod permissions;
mod restricted;
mod rules;
mod running;
mod server;
