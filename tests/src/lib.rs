//! Parts that the suites share: sidecars and workloads as real processes, and waiting for conditions.
//!
//! The file of a suite says what it needs: `local_*` one machine, `netns_*` root and network namespaces, `cluster_*` a
//! Kubernetes, `gpu_*` a GPU, `fake_gpu` a compiler of C. Everything that a test starts ends with it, by its id.

pub mod asked;
pub mod cgroup;
pub mod channels;
pub mod chart;
pub mod cluster;
pub mod dialogue;
pub mod far;
pub mod gpu;
pub mod hostile;
pub mod http;
pub mod installed;
pub mod kubernetes;
pub mod netns;
pub mod oci;
pub mod other;
pub mod outage;
pub mod pipes;
pub mod pod;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod refused;
pub mod set_streams;
pub mod sidecar;
pub mod soak;
pub mod standstill;
pub mod streams;
pub mod tensors;
pub mod transfer;
pub mod turns;
pub mod wait;
pub mod watching;
pub mod ways;
pub mod weather;
pub mod wire;
pub mod workload;

pub use refused::{failure, failure_in_time, reason};
pub use sidecar::{Sidecar, SidecarOptions};
pub use standstill::where_the_machine_runs_on;
pub use wait::until;
pub use workload::Workload;
