//! From an archive into a directory, which is opened as any other then.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tensorlane_proto::checksum::crc32_append;

use super::super::{DirectoryError, META, PIECE_BYTES, at};
use super::{
    END_MARK, HEAD_BYTES, HEAD_MARK, KIND_BITS, LISTED_MARK, PLAIN_FILE, STORED, WIDE_END_MARK, WIDE_FIELD,
    WIDE_PLACE_MARK, pieces,
};

/// Entries of an archive: a set of 65,536 leaves has fewer files and directories, but for trees without leaves.
const ENTRIES_MAX: u64 = 1 << 18;
/// Bytes of the list of entries, which is in memory.
const LISTED_BYTES_MAX: u64 = 64 << 20;
/// Bytes of all that is no tensor, as of a directory.
const META_BYTES_MAX: u64 = 16 << 20;
/// Names in each other: 64 trees, each of which may be a tensorclass, and a file.
const DEPTH_MAX: usize = 2 * 64 + 1;
const NAME_BYTES_MAX: usize = 255;
/// Bytes of the end without its comment, of the record that says where the one in 64 bits is, and of that.
const END_BYTES: usize = 22;
const WIDE_PLACE_BYTES: u64 = 20;
const WIDE_END_BYTES: u64 = 56;
const ENCRYPTED: u16 = 1;
const DEFLATED: u16 = 8;

/// Unpacks an archive into a directory that is empty and of this process alone. Before anything is written every entry was looked at:
/// plain files of plain names alone, stored, and of no more bytes of tensors than `most`.
///
/// # Errors
/// [`DirectoryError`]. What was unpacked until then is there.
pub fn unpack(path: &Path, most: u64, into: &Path) -> Result<(), DirectoryError> {
    let archive = Archive::open(path)?;
    let files = archive.files(most)?;
    files.iter().try_for_each(|file| archive.unpack(file, into))
}

pub(super) struct Archive<'a> {
    path: &'a Path,
    file: File,
    bytes: u64,
}

/// Place, length and number of entries of the list.
struct ListEnd {
    place: u64,
    bytes: u64,
    entries: u64,
}

/// Line of the list.
struct EntryLine<'a> {
    name: &'a [u8],
    flags: u16,
    method: u16,
    kind: u32,
    crc: u32,
    packed: u64,
    bytes: u64,
    head: u64,
}

/// File in an archive.
pub(super) struct Packed {
    name: String,
    crc: u32,
    bytes: u64,
    /// Place of its head.
    head: u64,
}

impl<'a> Archive<'a> {
    pub(super) fn open(path: &'a Path) -> Result<Self, DirectoryError> {
        // A pipe would be waited for.
        let about = fs::metadata(path).map_err(at(path))?;
        if !about.is_file() {
            return Err(DirectoryError::NotPlain { path: path.to_owned(), wanted: "file" });
        }
        let file = File::open(path).map_err(at(path))?;
        Ok(Self { path, file, bytes: about.len() })
    }

    /// Files that can be unpacked: nothing else is in the archive, and they have so many bytes at most.
    pub(super) fn files(&self, most: u64) -> Result<Vec<Packed>, DirectoryError> {
        let ListEnd { place, bytes, entries } = self.end()?;
        if entries > ENTRIES_MAX || bytes > LISTED_BYTES_MAX {
            let what = format!("a list of {entries} entries and {bytes} bytes; {ENTRIES_MAX} are the most");
            return Err(self.damaged(what));
        }
        let listed = self.read(place, bytes)?;
        let (mut fields, mut files, mut names) = (Fields(&listed), Vec::new(), HashSet::new());
        for _ in 0..entries {
            let entry = read_line(&mut fields).ok_or_else(|| self.damaged("an entry is not read"))?;
            // Directories are made of the paths of files.
            if entry.name.ends_with(b"/") {
                continue;
            }
            let name = String::from_utf8_lossy(entry.name).into_owned();
            if let Some(what) = fault(&entry) {
                return Err(self.refused(name, what));
            }
            if !names.insert(name.clone()) {
                return Err(self.refused(name, "stands there twice"));
            }
            files.push(Packed { name, crc: entry.crc, bytes: entry.bytes, head: entry.head });
        }
        if !names.contains(META) {
            return Err(self.damaged("it has no meta.json"));
        }
        for name in &names {
            let mut above = name.as_str();
            while let Some((outer, _)) = above.rsplit_once('/') {
                if names.contains(outer) {
                    return Err(self.refused(name.clone(), "stands in a file"));
                }
                above = outer;
            }
        }
        let bytes = files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.bytes));
        if bytes > most.saturating_add(META_BYTES_MAX) {
            return Err(DirectoryError::TooLarge { path: self.path.to_owned(), bytes, most });
        }
        Ok(files)
    }

    fn end(&self) -> Result<ListEnd, DirectoryError> {
        let tail_bytes = self.bytes.min(END_BYTES as u64 + u64::from(u16::MAX));
        let tail = self.read(self.bytes - tail_bytes, tail_bytes)?;
        let last = tail.len().checked_sub(END_BYTES);
        let found = last.and_then(|last| (0..=last).rev().find(|at| is_end(&tail[*at..])));
        let found = found.ok_or_else(|| self.damaged("it has no end of a zip"))?;
        let place = self.bytes - (tail.len() - found) as u64;
        let short =
            read_end(&mut Fields(&tail[found..])).ok_or_else(|| self.damaged("it is of several disks"))?;
        let is_whole = short.entries < u64::from(u16::MAX)
            && short.bytes < u64::from(u32::MAX)
            && short.place < u64::from(u32::MAX);
        let end = if is_whole { short } else { self.wide_end(place)? };
        match end.place.checked_add(end.bytes) {
            Some(behind) if behind <= place => Ok(end),
            _ => Err(self.damaged("the list of its entries is not there")),
        }
    }

    /// The end in 64 bits, which a record in front of the other one leads to.
    fn wide_end(&self, end: u64) -> Result<ListEnd, DirectoryError> {
        let lacking = || self.damaged("its end in 64 bits is not there");
        let record = end.checked_sub(WIDE_PLACE_BYTES).ok_or_else(lacking)?;
        let place =
            read_wide_place(&mut Fields(&self.read(record, WIDE_PLACE_BYTES)?)).ok_or_else(lacking)?;
        read_wide_end(&mut Fields(&self.read(place, WIDE_END_BYTES)?)).ok_or_else(lacking)
    }

    fn unpack(&self, file: &Packed, into: &Path) -> Result<(), DirectoryError> {
        let head = self.read(file.head, HEAD_BYTES)?;
        let lengths = read_lengths(&mut Fields(&head));
        let (name, extra) = lengths.ok_or_else(|| self.damaged(format!("{:?} has no head", file.name)))?;
        let named = self.read(file.head + HEAD_BYTES, name)?;
        if named != file.name.as_bytes() {
            return Err(self.damaged(format!("the head of {:?} is that of another file", file.name)));
        }
        let start = file.head + HEAD_BYTES + name + extra;
        if start.checked_add(file.bytes).is_none_or(|behind| behind > self.bytes) {
            return Err(self.damaged(format!("{:?} ends behind the archive", file.name)));
        }
        let path = into.join(&file.name);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(at(above))?;
        }
        let mut out = File::create_new(&path).map_err(at(&path))?;
        let mut buffer = vec![0; PIECE_BYTES.min(file.bytes) as usize];
        let mut crc = 0;
        for (offset, len) in pieces(file.bytes) {
            let piece = &mut buffer[..len];
            self.file.read_exact_at(piece, start + offset).map_err(at(self.path))?;
            crc = crc32_append(crc, piece);
            out.write_all(piece).map_err(at(&path))?;
        }
        if crc != file.crc {
            return Err(self.damaged(format!("the checksum of {:?} is another one", file.name)));
        }
        Ok(())
    }

    /// Bytes of the archive, few.
    fn read(&self, place: u64, bytes: u64) -> Result<Vec<u8>, DirectoryError> {
        if place.checked_add(bytes).is_none_or(|behind| behind > self.bytes) {
            return Err(self.damaged("it is shorter than it says"));
        }
        let mut read = vec![0; bytes as usize];
        self.file.read_exact_at(&mut read, place).map_err(at(self.path))?;
        Ok(read)
    }

    fn damaged(&self, what: impl Into<String>) -> DirectoryError {
        DirectoryError::Damaged { path: self.path.to_owned(), what: what.into() }
    }

    fn refused(&self, entry: String, what: &'static str) -> DirectoryError {
        DirectoryError::Entry { path: self.path.to_owned(), entry, what }
    }
}

/// Says of an entry what no file of a directory of tensordict is.
fn fault(entry: &EntryLine<'_>) -> Option<&'static str> {
    let is_odd = |part: &[u8]| matches!(part, b"" | b"." | b"..") || part.len() > NAME_BYTES_MAX;
    let parts = || entry.name.split(|byte| *byte == b'/');
    if std::str::from_utf8(entry.name).is_err() || parts().any(is_odd) || parts().count() > DEPTH_MAX {
        return Some("is no path of a file in a directory");
    }
    // Of other systems it may have other bits, which say nothing here.
    if !matches!(entry.kind, 0 | PLAIN_FILE) {
        return Some("is a link, or no plain file");
    }
    if entry.flags & ENCRYPTED != 0 {
        return Some("is encrypted");
    }
    match entry.method {
        STORED if entry.packed == entry.bytes => None,
        STORED => Some("is stored in another number of bytes than it has"),
        DEFLATED => Some("is deflated, which the Python package reads and this does not"),
        _ => Some("is compressed"),
    }
}

/// Numbers of a record, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }

    fn mark(&mut self, mark: u32) -> Option<()> {
        (self.u32()? == mark).then_some(())
    }
}

/// Returns whether an end begins here and has all that is behind as its comment.
fn is_end(bytes: &[u8]) -> bool {
    let mut fields = Fields(bytes);
    let mut comment = || {
        fields.mark(END_MARK)?;
        fields.take(END_BYTES - 6)?;
        fields.u16()
    };
    comment().is_some_and(|comment| usize::from(comment) == bytes.len() - END_BYTES)
}

fn read_end(fields: &mut Fields<'_>) -> Option<ListEnd> {
    fields.mark(END_MARK)?;
    let (disk, first, _here, entries) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
    let (bytes, place) = (fields.u32()?, fields.u32()?);
    let end = ListEnd { place: place.into(), bytes: bytes.into(), entries: entries.into() };
    (disk == 0 && first == 0).then_some(end)
}

fn read_wide_place(fields: &mut Fields<'_>) -> Option<u64> {
    fields.mark(WIDE_PLACE_MARK)?;
    fields.u32()?;
    fields.u64()
}

fn read_wide_end(fields: &mut Fields<'_>) -> Option<ListEnd> {
    fields.mark(WIDE_END_MARK)?;
    // Its length, who wrote it and for whom, and the disks.
    fields.take(8 + 4 + 8)?;
    let (_here, entries, bytes, place) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
    Some(ListEnd { place, bytes, entries })
}

/// Lengths of the name and of the extra fields that follow the head of an entry.
fn read_lengths(fields: &mut Fields<'_>) -> Option<(u64, u64)> {
    fields.mark(HEAD_MARK)?;
    fields.take(22)?;
    Some((fields.u16()?.into(), fields.u16()?.into()))
}

fn read_line<'a>(fields: &mut Fields<'a>) -> Option<EntryLine<'a>> {
    fields.mark(LISTED_MARK)?;
    let (_by, _needed, flags, method) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
    let _time = fields.u32()?;
    let (crc, packed, bytes) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let (name, extra, comment) = (fields.u16()?, fields.u16()?, fields.u16()?);
    let _disk_and_text = fields.u32()?;
    let (rights, head) = (fields.u32()?, fields.u32()?);
    let name = fields.take(name.into())?;
    let mut wide = Fields(wide_numbers(fields.take(extra.into())?));
    fields.take(comment.into())?;
    let mut whole = |short: u32| if short == u32::MAX { wide.u64() } else { Some(short.into()) };
    // In this order they stand there.
    let (bytes, packed, head) = (whole(bytes)?, whole(packed)?, whole(head)?);
    Some(EntryLine { name, flags, method, kind: (rights >> 16) & KIND_BITS, crc, packed, bytes, head })
}

/// Numbers of an entry that need 64 bits; none where no extra field has them.
fn wide_numbers(extra: &[u8]) -> &[u8] {
    let mut fields = Fields(extra);
    while let (Some(number), Some(bytes)) = (fields.u16(), fields.u16()) {
        let Some(field) = fields.take(bytes.into()) else { break };
        if number == WIDE_FIELD {
            return field;
        }
    }
    &[]
}
