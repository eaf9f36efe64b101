//! The rows `set.*`: rows of sets that are read and committed, directories and versions.

mod directories;
mod disk;
mod far;
mod files;
mod pod;
mod replay;
mod table;
mod versions;

use crate::groups::Group;
use crate::rows::sets as rows;

/// All of them.
pub(crate) static GROUPS: [Group; 11] = [
    Group { rows: &[&rows::GATHER_POD], measure: pod::gather },
    Group { rows: &[&rows::GATHER_NET], measure: far::gather },
    Group { rows: &[&rows::COMMIT_POD], measure: pod::commit },
    Group { rows: &[&rows::COMMIT_NET], measure: far::commit },
    Group { rows: &[&rows::COMMIT_DISK], measure: disk::run },
    Group { rows: &[&rows::REPLAY], measure: replay::run },
    Group { rows: &[&rows::SIZE_FREE], measure: pod::size_free },
    Group { rows: &[&rows::CREATE, &rows::REFERENCE], measure: files::run },
    Group { rows: &[&rows::EXPORT_1G, &rows::IMPORT_1G], measure: directories::copies },
    Group { rows: &[&rows::OPEN_10K], measure: directories::open },
    Group { rows: &[&rows::PUBLISH_500], measure: versions::run },
];
