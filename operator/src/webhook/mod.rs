//! The admission webhook: an AdmissionReview in, a patch, a warning or a refusal out.
//!
//! `review` reads and answers, purely; `lookups` says which names of a review may be looked up, and how many; `facts`
//! fetches what the planner has to know; `handler` joins them under a
//! deadline; `server` speaks TLS and HTTP, with bounds on everything that a caller can send; `connections` says who has to go
//! where there is no room. A call that cannot be
//! decided is refused with a reason, never let through: the pod's controller tries again.

mod connections;
mod facts;
mod handler;
mod lookups;
mod notes;
pub mod review;
mod server;

pub use facts::{FactSource, FactsError, KubeFacts};
pub use handler::{Handler, MUTATE_PATH};
pub use lookups::{BadLookUps, CLAIMS_MAX, Claim, LookUps, Owner};
pub use notes::{NOTES_MAX, Note, Notes};
pub use server::{Bounds, Server};

#[cfg(test)]
mod tests;
