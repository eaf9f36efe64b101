//! What is said where a client cannot have a descriptor of a segment.

use std::io;

use tensorlane_proto::{Failure, Reason};

/// A segment cannot be opened for a client, and what is to be done.
pub(crate) fn no_descriptor(error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        // The pipes that say which process maps what have their names there.
        io::ErrorKind::NotFound => {
            "its state directory (state.directory) has been removed: start the sidecar again"
        }
        _ => "raise the sidecar's limit of open files",
    };
    Failure::new(Reason::Internal, format!("no descriptor can be opened for the segment ({error}); {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_that_of_the_cause() {
        let told = |number| no_descriptor(&io::Error::from_raw_os_error(number)).message;
        assert!(told(rustix::io::Errno::MFILE.raw_os_error()).ends_with("limit of open files"));
        assert!(told(rustix::io::Errno::NOENT.raw_os_error()).contains("state.directory"));
    }
}
