//! Operations on sidecars at work: an operator ends them, changes their keys, and looks at their routes. Needs root.

mod drain;
mod rotation;
mod routes;
