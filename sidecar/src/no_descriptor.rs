//! Failure of a client that cannot have a descriptor of a segment.

use std::io;

use rustix::io::Errno;
use tensorlane_proto::{Failure, Reason};

/// A segment cannot be opened for a client, and what is to be done.
pub(crate) fn no_descriptor(error: &io::Error) -> Failure {
    let remedy = match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => "raise the sidecar's limit of open files",
        // The pipes that say which process maps what have their names there.
        Some(Errno::NOENT) => {
            "has its state directory (state.directory) been removed? start the sidecar again"
        }
        _ => "its state directory (state.directory) must be there and writable",
    };
    Failure::new(Reason::Internal, format!("no descriptor can be opened for the segment ({error}); {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_that_of_the_cause() {
        let told = |number| no_descriptor(&io::Error::from_raw_os_error(number)).message;
        assert!(told(Errno::MFILE.raw_os_error()).ends_with("limit of open files"));
        assert!(told(Errno::NOENT.raw_os_error()).contains("been removed"));
        assert!(told(Errno::NOSPC.raw_os_error()).contains("writable"));
    }
}
