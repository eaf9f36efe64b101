//! Commits to a set on files that are on the disk when they are answered.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Result;
use tensorlane_benches::pairs::{interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::tensors;
use tensorlane_client::set::mutable::{Durability, SetFiles};

use super::pod::{Commits, median};
use super::table::{Picks, Table};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, sets};

const ARENA: u64 = 128 << 20;
const TABLE: Table = Table { rows: 1_024, row_bytes: 16 << 10 };
/// Commits of one value.
const TIMES: usize = 15;
/// Type of a file system in memory, as `statfs` tells it.
const TMPFS: i64 = 0x0102_1994;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("commits of 16 KiB that are on the disk: all cores, sidecar and limit alike");
    let scratch = Scratch::make()?;
    let root = scratch.directory("sets")?;
    let settings = format!("sets:\n  root: {}\n", root.display());
    let options = SidecarOptions { settings: &settings, ..SidecarOptions::new("disk", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let durability = Some(Durability::Disk);
    let files = SetFiles { directory: "rows".to_owned(), durability, ..SetFiles::default() };
    let set = client.create_set(&TABLE.spec("rows").files(&files))?;
    TABLE.fill(&set)?;
    tensors::settle(&client)?;
    let file = limit_file(&scratch.path().join("limit"))?;
    let (row, mut picks) = (TABLE.content([1], 1), Picks::new());
    let limit = || {
        median(TIMES, || {
            let at = picks.rows(1, TABLE.rows)[0] * TABLE.row_bytes;
            let took = seconds(|| {
                file.write_all_at(&row, at)?;
                Ok(file.sync_data()?)
            })?;
            Ok(took * 1e6)
        })
    };
    let mut commits = Commits::new(TABLE, &set, 1);
    let pairs = interleaved(PAIRS, WARM_UP, limit, || commits.us(TIMES))?;
    drop((set, client));
    sidecar.end()?;
    let is_in_memory = rustix::fs::statfs(&root)?.f_type == TMPFS;
    let note = is_in_memory.then(|| "files are on tmpfs here, which waits for no disk".to_owned());
    Ok(vec![Measured { note, ..Measured::new(&sets::COMMIT_DISK, pairs) }])
}

/// A file as large as the set, all of it written.
fn limit_file(path: &Path) -> Result<File> {
    let file = File::create_new(path)?;
    file.write_all_at(&TABLE.content(0..TABLE.rows, 0), 0)?;
    file.sync_all()?;
    Ok(file)
}
