//! Sets on files that are made, and references of sets.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, ensure};
use tensorlane_benches::pairs::{Pair, interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_client::Client;
use tensorlane_client::set::mutable::{SetFiles, SetSpec};
use tensorlane_proto::DType;

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, sets};

const ARENA: u64 = 64 << 20;
/// Frames of 640 x 640 in colour: 173 GB.
const ROWS: u64 = 140_625;
const ROW: [u64; 3] = [640, 640, 3];
const LEAF: &str = "frames";
/// Bytes of the disk that a set may take that has no row yet.
const DISK_MAX: u64 = 1 << 20;
/// Letters of a name as Kubernetes gives them.
const LETTERS: usize = 63;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("sets of 173 GB on files");
    let scratch = Scratch::make()?;
    let root = scratch.directory("sets")?;
    let [peer, exchange] = ["p", "e"].map(|letter| letter.repeat(LETTERS));
    let settings = format!("exchange: {exchange}\nsets:\n  root: {}\n", root.display());
    let options = SidecarOptions { settings: &settings, ..SidecarOptions::new(&peer, ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let made = create(&client, &root)?;
    let lengths =
        [spec("in-files").files(&files("in-files")), SetSpec::new("in-memory", 8).leaf("x", DType::U8, &[8])]
            .map(|spec| anyhow::Ok(client.create_set(&spec)?.reference().len()));
    let mut longest = 0;
    for length in lengths {
        longest = longest.max(length?);
    }
    drop(client);
    sidecar.end()?;
    let reference = vec![Pair { value: longest as f64, limit: None }];
    Ok(vec![made, Measured::new(&sets::REFERENCE, reference)])
}

fn files(name: &str) -> SetFiles {
    SetFiles { directory: name.to_owned(), ..SetFiles::default() }
}

fn spec(name: &str) -> SetSpec {
    SetSpec::new(name, ROWS).leaf(LEAF, DType::U8, &ROW)
}

fn create(client: &Client, root: &Path) -> Result<Measured> {
    let mut disk = 0;
    let mut number = 0;
    let ours = || {
        number += 1;
        let name = format!("set-{number}");
        let spec = spec(&name).files(&files(&name));
        let took = seconds(|| {
            client.create_set(&spec)?;
            Ok(())
        })?;
        let directory = root.join(&name);
        let bytes = fs::metadata(directory.join(format!("{LEAF}.memmap")))?.len();
        ensure!(bytes >= ROWS * ROW.iter().product::<u64>(), "the file has {bytes} bytes");
        disk = disk.max(taken(&directory)?);
        client.drop_set(&name)?;
        fs::remove_dir_all(directory)?;
        Ok(took * 1e3)
    };
    let limit = || {
        let directory = root.with_file_name("limit");
        let took = seconds(|| {
            fs::create_dir(&directory)?;
            let file = File::create_new(directory.join("frames.memmap"))?;
            Ok(file.set_len(ROWS * ROW.iter().product::<u64>())?)
        })?;
        fs::remove_dir_all(directory)?;
        Ok(took * 1e3)
    };
    let pairs = interleaved(PAIRS, WARM_UP, limit, ours)?;
    let said = format!("a new set takes {} KiB of the disk", disk >> 10);
    let breach = (disk > DISK_MAX).then(|| said.clone());
    Ok(Measured { note: Some(said), breach, ..Measured::new(&sets::CREATE, pairs) })
}

/// Bytes of the disk that a directory takes with all that is in it.
fn taken(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        bytes += entry.metadata()?.blocks() * 512;
        if entry.file_type()?.is_dir() {
            bytes += taken(&entry.path())?;
        }
    }
    Ok(bytes)
}
