//! What an operator does to sidecars at work: ends them, changes their keys, and looks at their routes. Needs root.

mod drain;
mod rotation;
mod routes;
