//! Verbs of a client: one file for each group.

mod acquire;
mod inquire;
mod name;
mod put;
mod reserve;
mod ticket;

pub use acquire::Fetched;
pub(crate) use acquire::adopt;
#[cfg(feature = "gpu")]
pub(crate) use acquire::{acquire_any, acquire_anywhere};
pub use inquire::Names;
pub use name::Naming;
#[cfg(feature = "gpu")]
pub(crate) use put::stored;
pub use put::{Item, PutOptions, Stored};
pub use reserve::Reservation;
