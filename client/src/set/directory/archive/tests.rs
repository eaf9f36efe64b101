//! Archives that are whole, and those that are none, each by what is wrong with it. Sets go through them in the suites with a sidecar.

use std::fs;
use std::path::Path;

use super::pack::Zip;
use super::unpack::Archive;
use super::*;
use crate::set::directory::DirectoryError;

const META: (&str, &[u8]) = ("meta.json", b"{}");
const MOST: u64 = 1 << 20;

fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut zip = Zip::new(&mut out);
    files.iter().for_each(|(name, bytes)| zip.file(name, bytes).unwrap());
    zip.finish().unwrap();
    out
}

/// Names and bytes that unpacking these bytes leaves, or why it was refused.
fn unpacked(archive: &[u8], most: u64) -> Result<Vec<(String, Vec<u8>)>, DirectoryError> {
    let folder = tempfile::tempdir().unwrap();
    let (path, into) = (folder.path().join("a.tdz"), folder.path().join("into"));
    fs::write(&path, archive).unwrap();
    fs::create_dir(&into).unwrap();
    unpack(&path, most, &into)?;
    let mut found = Vec::new();
    list(&into, "", &mut found);
    found.sort();
    Ok(found)
}

fn list(folder: &Path, above: &str, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{above}{}", path.file_name().unwrap().to_str().unwrap());
        match path.is_dir() {
            true => list(&path, &format!("{name}/"), found),
            false => found.push((name, fs::read(&path).unwrap())),
        }
    }
}

fn refused(archive: &[u8]) -> String {
    unpacked(archive, MOST).unwrap_err().to_string()
}

/// The place of a mark, the last one.
fn last(archive: &[u8], mark: u32) -> usize {
    archive.windows(4).rposition(|four| four == mark.to_le_bytes()).unwrap()
}

/// The first place of these bytes.
fn first(archive: &[u8], bytes: &[u8]) -> usize {
    archive.windows(bytes.len()).position(|there| there == bytes).unwrap()
}

#[test]
fn what_was_packed_is_unpacked_byte_for_byte() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    let files: [(&str, &[u8]); 5] = [
        (".tensorlane/set.json", b"[]"),
        META,
        ("n\u{e4}chste/done.memmap", b"\0\x01"),
        ("n\u{e4}chste/meta.json", b""),
        ("obs.memmap", &bytes),
    ];
    let found = unpacked(&packed(&files), MOST).unwrap();
    assert_eq!(found, files.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())));
}

#[test]
fn tensors_lie_at_multiples_of_64_bytes() {
    for length in 1..=130 {
        let name = format!("{}.memmap", "x".repeat(length));
        let archive = packed(&[META, (&name, b"a tensor")]);
        assert_eq!(first(&archive, b"a tensor") % 64, 0, "{length}");
        assert_eq!(unpacked(&archive, MOST).unwrap().len(), 2, "{length}");
    }
}

#[test]
fn an_archive_of_more_entries_than_a_zip_counts_has_its_end_in_64_bits() {
    let names: Vec<String> = (0..70_000).map(|at| format!("{at}.memmap")).collect();
    let mut files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
    files.push(META);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tdz");
    let mut archive = packed(&files);
    fs::write(&path, &archive).unwrap();
    assert_eq!(Archive::open(&path).unwrap().files(MOST).unwrap().len(), 70_001);
    let place = last(&archive, WIDE_PLACE_MARK);
    archive[place] ^= 1;
    assert!(refused(&archive).contains("its end in 64 bits is not there"));
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    let (deep, long) = ("a/".repeat(200) + "x", "b".repeat(256));
    for name in ["../x", "/x", "a/../x", "./x", "a//x", deep.as_str(), long.as_str()] {
        let told = refused(&packed(&[META, (name, b"abcd")]));
        assert!(told.contains("is no path of a file in a directory"), "{name}: {told}");
    }
}

#[test]
fn entries_that_are_no_stored_plain_files_are_refused() {
    let archive = packed(&[META, ("x.memmap", b"abcd")]);
    let line = last(&archive, LISTED_MARK);
    // Of the last line: flags, method, one of two lengths, and kind.
    for (at, byte, told) in [
        (8, 1, "is encrypted"),
        (10, 8, "is deflated, which the Python package reads"),
        (10, 12, "is compressed"),
        (20, 3, "is stored in another number of bytes"),
        (41, 0xa1, "is a link, or no plain file"),
    ] {
        let mut changed = archive.clone();
        changed[line + at] = byte;
        let refused = refused(&changed);
        assert!(refused.contains(told) && refused.contains("x.memmap"), "{told}: {refused}");
    }
}

#[test]
fn archives_that_are_no_directory_of_a_set_are_refused_with_why() {
    let x: (&str, &[u8]) = ("x.memmap", b"abcd");
    assert!(refused(&packed(&[x])).contains("it has no meta.json"));
    assert!(refused(&packed(&[META, x, x])).contains("stands there twice"));
    assert!(refused(&packed(&[META, x, ("x.memmap/y", b"")])).contains("stands in a file"));
    assert!(refused(b"no zip").contains("no end of a zip"));
    let large = packed(&[META, ("x.memmap", &vec![0; 18 << 20])]);
    let told = refused(&large);
    assert!(told.contains("are the most that the sidecar has room for"), "{told}");
    assert!(unpacked(&large, 3 << 20).is_ok());
}

#[test]
fn an_archive_that_was_cut_or_changed_is_damaged() {
    let archive = packed(&[META, ("x.memmap", b"abcd")]);
    for end in 0..archive.len() {
        assert!(refused(&archive[..end]).contains("is damaged"), "{end}");
    }
    let changed = |at: usize, byte: u8| {
        let mut changed = archive.clone();
        changed[at] = byte;
        refused(&changed)
    };
    assert!(changed(first(&archive, b"abcd"), b'b').contains("the checksum of \"x.memmap\""));
    assert!(changed(first(&archive, b"x.memmap"), b'y').contains("is that of another file"));
    // The highest byte of the place of a head.
    let line = last(&archive, LISTED_MARK);
    assert!(changed(line + 45, 0x7f).contains("shorter than it says"));
}
