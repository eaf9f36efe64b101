//! Pods of one node that share memory, and what they bring from elsewhere once for all of them. Needs root.

mod full;
mod neighbours;
mod shared;
mod strangers;
