//! The admission webhook: an AdmissionReview in, a patch, a warning or a refusal out.
//!
//! `gate` says which calls come from the API server, by the secret part of the path. Theirs are answered so: `review`
//! reads and answers, purely; `lookups` says which names of a review may be looked up, and how many; `facts` fetches
//! what the planner has to know; `handler` joins them under a deadline. All others are answered by `stranger`, from
//! the pod alone, with `rates` by namespace. `server` speaks TLS and HTTP, with bounds on everything that a caller
//! can send; `connections` says who has to go where there is no room. A call that cannot be decided is refused with a
//! reason, never let through: the pod's controller tries again.

mod connections;
mod facts;
mod gate;
mod handler;
mod lookups;
mod notes;
mod rates;
pub mod review;
mod server;
mod stranger;

pub use facts::{FactSource, FactsError, KubeFacts};
pub use gate::Gate;
pub use handler::Handler;
pub use lookups::{BadLookUps, CLAIMS_MAX, Claim, LookUps, Owner};
pub use notes::{NOTES_MAX, Note, Notes};
pub use server::{Bounds, Server};

#[cfg(test)]
mod tests;
