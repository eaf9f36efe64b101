//! Actions of an operator to sidecars at work: ends them, changes their keys, and looks at their routes. Needs root.

mod drain;
mod hangs;
mod rotation;
mod routes;
