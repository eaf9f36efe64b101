//! Nobody reads the log any more.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use tensorlane_client::PutOptions;
use tensorlane_tests::tensors::{pattern, seeded};
use tensorlane_tests::{Sidecar, SidecarOptions};

use super::all;

/// A named pipe that is full and has a reader, who stands still.
fn full_pipe(path: &Path) -> File {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let nonblocking = OFlags::NONBLOCK.bits().try_into().unwrap();
    let mut pipe = File::options().read(true).write(true).custom_flags(nonblocking).open(path).unwrap();
    loop {
        match pipe.write(&[b'\n'; 4096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return pipe,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_log_that_nobody_reads_stops_neither_calls_nor_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("standard-error");
    let _pipe = full_pipe(&path);
    let into_pipe = ["sh".to_owned(), "-c".into(), format!("exec \"$@\" 2>{}", path.display()), "sh".into()];
    let options = SidecarOptions::default().set("log.level", "trace").prefix(into_pipe);
    let mut sidecar = Sidecar::with(options);
    for seed in 0..200 {
        let client = sidecar.client();
        let stored = client.put(&seeded(seed, 100), &pattern(seed, 100), &PutOptions::new()).unwrap();
        assert_eq!(client.get(stored.reference(), &all()).unwrap().bytes, pattern(seed, 100));
    }
    assert!(sidecar.terminate().success());
}
