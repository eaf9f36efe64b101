//! Bytes of messages that were written and nobody has read: who has how many. Pure.

use std::collections::HashMap;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::PIPE_UNREAD_BYTES_MAX;
use tensorlane_proto::ledger::SessionId;

use super::Party;

/// Most bytes of the messages of all writers together, a part of `arena.base`.
const ALL_MAX: u64 = 4 * PIPE_UNREAD_BYTES_MAX;

/// Bytes of messages that are not read, of each writer and of all.
#[derive(Debug, Default)]
pub(in super::super) struct Budget {
    all: u64,
    of: HashMap<SessionId, u64>,
}

impl Budget {
    /// Counts a message that is written.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED: nothing is counted.
    pub(in super::super) fn book(&mut self, writer: &Party, bytes: u64) -> Result<(), Failure> {
        let own = self.of.get(&writer.account).copied().unwrap_or(0);
        let full = |what: &str, there: u64, most: u64| {
            let message = format!(
                "messages of {there} bytes that {what} written to pipes are unread, at most {most}; let some be read first, or put more \
                 into tensors"
            );
            Failure::new(Reason::LimitExceeded, message).with("most", most)
        };
        if own + bytes > PIPE_UNREAD_BYTES_MAX {
            return Err(full(&format!("{writer} has"), own, PIPE_UNREAD_BYTES_MAX));
        }
        if self.all + bytes > ALL_MAX {
            return Err(full("all clients have", self.all, ALL_MAX));
        }
        if bytes > 0 {
            self.all += bytes;
            self.of.insert(writer.account, own + bytes);
        }
        Ok(())
    }

    /// Bytes of so many messages of the writers of these accounts are not kept any more.
    pub(in super::super) fn unbook(&mut self, freed: &[(SessionId, u64)]) {
        for (account, bytes) in freed {
            let Some(own) = self.of.get_mut(account) else { continue };
            *own = own.saturating_sub(*bytes);
            self.all = self.all.saturating_sub(*bytes);
            if *own == 0 {
                self.of.remove(account);
            }
        }
    }

    /// Bytes of all.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.all
    }
}
