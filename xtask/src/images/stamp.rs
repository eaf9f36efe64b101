//! Version, revision and date that an image carries. They come from the checkout, not from the clock, so that the same
//! checkout gives the same image.

use std::env;

use crate::cluster::told;
use crate::failure::Failure;
use crate::place::Place;

/// Stamp of an image: where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Version of the workspace.
    pub(crate) version: String,
    /// The commit, with `-dirty` where the checkout has changes; `unknown` outside of git.
    pub(crate) revision: String,
    /// Seconds since 1970: SOURCE_DATE_EPOCH, else the date of the commit.
    pub(crate) epoch: String,
    /// Time of `epoch` as RFC 3339 writes it.
    pub(crate) created: String,
}

impl Stamp {
    /// Stamp of a checkout.
    pub(crate) fn of(place: &Place) -> Result<Self, Failure> {
        let root = place.root().display().to_string();
        let git = |words: &[&str]| {
            told("git", ["-C", &root].iter().chain(words)).map(|said| said.trim().to_owned()).ok()
        };
        let revision = git(&["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]);
        let epoch =
            env::var("SOURCE_DATE_EPOCH").ok().or_else(|| git(&["show", "-s", "--format=%ct", "HEAD"]));
        let epoch = epoch.unwrap_or_else(|| "0".to_owned());
        let created = told("date", ["-u", "-d", &format!("@{epoch}"), "+%Y-%m-%dT%H:%M:%SZ"])
            .map_err(|failure| failure.remedy("SOURCE_DATE_EPOCH is a number of seconds since 1970"))?;
        Ok(Self {
            version: version().to_owned(),
            revision: revision.unwrap_or_else(|| "unknown".to_owned()),
            epoch,
            created: created.trim().to_owned(),
        })
    }
}

impl Stamp {
    /// Stamp of an image with no program of ours in it: no commit changes it.
    pub(crate) fn of_components() -> Self {
        Self {
            version: version().to_owned(),
            revision: "none".to_owned(),
            epoch: "0".to_owned(),
            created: "1970-01-01T00:00:00Z".to_owned(),
        }
    }
}

/// All crates have one version.
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
