//! Verbs of a client: one file for each group.

mod acquire;
mod inquire;
mod name;
mod put;
mod reserve;
mod ticket;

pub use acquire::Fetched;
pub use inquire::Names;
pub use name::Naming;
pub use put::{Item, PutOptions, Stored};
pub use reserve::Reservation;
