//! What `cargo xtask generate` makes of the `.proto` files: messages, and services behind the feature `grpc`.
#![allow(
    missing_docs,
    unused_qualifications,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the .proto files carry the comments"
)]

include!("generated/tensorlane.v1.rs");

/// The descriptor set, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
