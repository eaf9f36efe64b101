//! Room on the disk. What fails for want of it says so in a hundred ways ("closed pipe", an evicted pod), and rarely in
//! these words.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::place::Place;

/// Room for everything from nothing: programs and tests 6, Python with torch and Ray 6, Go's cache 5, its modules 2,
/// Kubernetes, images and pods 2; with a reserve, because kubelets evict pods from a disk that is nearly full.
const WHOLE_RUN: u64 = 26 * GB;

/// With less than this even a run that has everything built fails somewhere.
const LEAST: u64 = 2 * GB;

const GB: u64 = 1_000_000_000;

/// Outlook: what is known before a run.
#[derive(Debug, PartialEq, Eq)]
enum Outlook {
    Enough,
    /// Scarce but perhaps enough; what was built before needs less.
    Scarce(String),
    TooLittle(Failure),
}

/// Refuses a run that cannot end well, and gives a note for one that may not.
pub(crate) fn before(place: &Place) -> Result<Option<String>, Failure> {
    let is_cold = !place.cluster().join("bin").is_dir();
    match free(place.root()).map(|free| outlook(free, is_cold)) {
        Some(Outlook::TooLittle(failure)) => Err(failure),
        Some(Outlook::Scarce(note)) => Ok(Some(note)),
        // Where nobody can tell, the run itself will.
        Some(Outlook::Enough) | None => Ok(None),
    }
}

/// Refuses to fetch what there is no room for.
pub(crate) fn at_least(bytes: u64, what: &str, place: &Place) -> Result<(), Failure> {
    match free(place.root()).filter(|free| *free < bytes) {
        Some(free) => Err(Failure::new(format!("the disk has {} free", shown(free)))
            .remedy(format!("make room: {what} take up to {}", shown(bytes)))),
        None => Ok(()),
    }
}

/// Cause that may be behind a failure.
pub(crate) fn after_failure(place: &Place) -> Option<String> {
    let free = free(place.root()).filter(|free| *free < LEAST)?;
    Some(format!("the disk has only {} free: this may be why it failed", shown(free)))
}

fn outlook(free: u64, is_cold: bool) -> Outlook {
    let left = format!("the disk has {} free", shown(free));
    if free < LEAST {
        let remedy = format!("make room: a whole run on a fresh machine takes up to {}", shown(WHOLE_RUN));
        return Outlook::TooLittle(Failure::new(left).remedy(remedy));
    }
    if is_cold && free < WHOLE_RUN {
        return Outlook::Scarce(format!(
            "{left}, a whole run that builds all takes up to {}",
            shown(WHOLE_RUN)
        ));
    }
    Outlook::Enough
}

fn shown(bytes: u64) -> String {
    format!("{}.{} GB", bytes / GB, bytes % GB / (GB / 10))
}

/// Free bytes of the file system that a directory is on, for users without privilege as `df` tells it.
fn free(directory: &Path) -> Option<u64> {
    let mut command = Command::new("df");
    command.args(["--output=avail", "--block-size=1"]).arg(directory).stderr(Stdio::null());
    let output = command.output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_refuses_and_a_scarce_one_is_noted_where_all_is_to_be_built() {
        let Outlook::TooLittle(failure) = outlook(1_940_000_000, false) else { panic!("it must refuse") };
        assert_eq!(failure.what(), "the disk has 1.9 GB free");
        assert!(matches!(outlook(7 * GB, true), Outlook::Scarce(note) if note.contains("7.0 GB")));
        assert_eq!(outlook(7 * GB, false), Outlook::Enough);
        assert_eq!(outlook(WHOLE_RUN, true), Outlook::Enough);
    }

    #[test]
    fn the_disk_of_a_directory_is_asked_and_one_that_is_not_there_has_none() {
        assert!(free(&std::env::temp_dir()).is_some());
        assert_eq!(free(Path::new("/no/such/directory")), None);
    }

    #[test]
    fn what_there_is_no_room_for_is_refused_with_both_numbers() {
        let place = Place::at(&std::env::temp_dir());
        assert_eq!(at_least(0, "nothing", &place), Ok(()));
        let failure = at_least(u64::MAX, "torch", &place).unwrap_err();
        assert!(failure.what().starts_with("the disk has "), "{failure:?}");
    }
}
