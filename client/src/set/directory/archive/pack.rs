//! From the exchange into an archive.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use tensorlane_memory::{OutOfBounds, View};
use tensorlane_proto::checksum::crc32_append;
use tensorlane_proto::set::{LEAF_ENDING, Tree};

use super::super::export::{Export, Files, write_all};
use super::super::{DirectoryError, PIECE_BYTES, at};
use super::{
    END_MARK, HEAD_BYTES, HEAD_MARK, LISTED_MARK, PLAIN_FILE, STORED, WIDE_END_MARK, WIDE_FIELD,
    WIDE_PLACE_MARK, pieces,
};
use crate::tensor::Tensor;

/// Bytes of which the place of a tensor is a multiple, so that elements of any type can be shown where they lie.
const ALIGNMENT: u64 = 64;
/// Number of the extra field that fills the head of an entry.
const PADDING_FIELD: u16 = 0x6c74;
/// Bytes of the extra field with the sizes of an entry in 64 bits.
const SIZES_BYTES: u64 = 20;
/// Version of the format that readers need, of Unix where it says who wrote.
const VERSION: u16 = 45;
const UNIX: u16 = 3 << 8;
/// Flag of names that are UTF-8.
const UTF_8: u16 = 1 << 11;
/// The first day that a zip can say, 1 January 1980: the same set is the same archive.
const DATE: u16 = 0x21;
/// Rights of each file.
const RIGHTS: u32 = PLAIN_FILE | 0o644;

/// Writes a set as an archive, with the files that its directory would have. `wrote` is told of bytes as they are written.
///
/// # Errors
/// [`DirectoryError`], by the path inside of the archive; what was written until then is none.
pub fn pack(
    tree: &Tree<Tensor>,
    out: impl Write,
    wrote: impl FnMut(u64, &str),
) -> Result<Export, DirectoryError> {
    let (export, zip) = write_all(tree, Path::new(""), Zip::new(out), wrote)?;
    zip.finish().map_err(at("the end of the archive"))?;
    Ok(export)
}

/// Zip in the making.
pub(super) struct Zip<W> {
    out: W,
    /// Bytes that were written.
    place: u64,
    /// List of entries that stands at the end.
    listed: Vec<u8>,
    entries: u64,
}

impl<W: Write> Zip<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, place: 0, listed: Vec::new(), entries: 0 }
    }

    /// Writes a file of these bytes.
    pub(super) fn file(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.begin(name, crc32_append(0, bytes), bytes.len() as u64)?;
        self.append(bytes)
    }

    /// Writes the head of a file, whose bytes come next.
    fn begin(&mut self, name: &str, crc: u32, bytes: u64) -> io::Result<()> {
        let long = |_| io::Error::new(ErrorKind::InvalidInput, "its path is longer than a zip can say");
        let length = u16::try_from(name.len()).map_err(long)?;
        let (offset, flags) = (self.place, if name.is_ascii() { 0 } else { UTF_8 });
        let mut extra = Vec::new();
        if name.ends_with(LEAF_ENDING) {
            extra = padding(offset + HEAD_BYTES + u64::from(length) + SIZES_BYTES);
        }
        extra.extend(wide(&[bytes, bytes]));
        let mut head = HEAD_MARK.to_le_bytes().to_vec();
        head.extend(about(flags, crc, u32::MAX, length, extra.len()));
        head.extend_from_slice(name.as_bytes());
        head.extend(extra);
        self.append(&head)?;

        let mut large = Vec::new();
        if is_large(bytes) {
            large.extend([bytes, bytes]);
        }
        if is_large(offset) {
            large.push(offset);
        }
        let extra = if large.is_empty() { Vec::new() } else { wide(&large) };
        self.listed.extend(LISTED_MARK.to_le_bytes());
        self.listed.extend((UNIX | VERSION).to_le_bytes());
        self.listed.extend(about(flags, crc, short(bytes), length, extra.len()));
        // No comment, the first disk, no text.
        self.listed.extend([0_u8; 6]);
        self.listed.extend((RIGHTS << 16).to_le_bytes());
        self.listed.extend(short(offset).to_le_bytes());
        self.listed.extend_from_slice(name.as_bytes());
        self.listed.extend(extra);
        self.entries += 1;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.place += bytes.len() as u64;
        Ok(())
    }

    /// Writes the list of entries and the end.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let (start, listed) = (self.place, std::mem::take(&mut self.listed));
        self.append(&listed)?;
        let (size, entries, place) = (listed.len() as u64, self.entries, self.place);
        let few = u16::try_from(entries).unwrap_or(u16::MAX);
        let mut end = Vec::new();
        if few == u16::MAX || is_large(start) || is_large(size) {
            end.extend(WIDE_END_MARK.to_le_bytes());
            end.extend(44_u64.to_le_bytes());
            end.extend([(UNIX | VERSION).to_le_bytes(), VERSION.to_le_bytes()].concat());
            // The first disk, which has the list.
            end.extend([0_u8; 8]);
            end.extend([entries, entries, size, start].map(u64::to_le_bytes).concat());
            end.extend(WIDE_PLACE_MARK.to_le_bytes());
            end.extend(0_u32.to_le_bytes());
            end.extend(place.to_le_bytes());
            end.extend(1_u32.to_le_bytes());
        }
        end.extend(END_MARK.to_le_bytes());
        end.extend([0, 0, few, few].map(u16::to_le_bytes).concat());
        end.extend([short(size), short(start)].map(u32::to_le_bytes).concat());
        // No comment.
        end.extend(0_u16.to_le_bytes());
        self.append(&end)?;
        self.out.flush()
    }
}

impl<W: Write> Files for Zip<W> {
    /// Does nothing: directories are made of the paths of files.
    fn make(&mut self, _dir: &Path) -> Result<(), DirectoryError> {
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], path: &Path) -> Result<(), DirectoryError> {
        self.file(name(path)?, bytes).map_err(at(path))
    }

    /// Reads the bytes twice: their checksum stands in front of them, and nothing is written again.
    fn write_tensor(
        &mut self,
        view: &View,
        total: u64,
        path: &Path,
        wrote: &mut dyn FnMut(u64),
    ) -> Result<(), DirectoryError> {
        let outside = |error: OutOfBounds| at(path)(io::Error::new(ErrorKind::InvalidInput, error));
        let mut buffer = vec![0; PIECE_BYTES.min(total) as usize];
        let (mut crc, mut written) = (0, 0);
        for (offset, len) in pieces(total) {
            let piece = &mut buffer[..len];
            view.copy_range_to(offset, piece).map_err(outside)?;
            crc = crc32_append(crc, piece);
        }
        self.begin(name(path)?, crc, total).map_err(at(path))?;
        for (offset, len) in pieces(total) {
            let piece = &mut buffer[..len];
            view.copy_range_to(offset, piece).map_err(outside)?;
            written = crc32_append(written, piece);
            self.append(piece).map_err(at(path))?;
            wrote(len as u64);
        }
        if written == crc {
            return Ok(());
        }
        let what = "its bytes were changed while they were written; get the set again";
        Err(at(path)(io::Error::other(what)))
    }

    fn sync(&mut self, _dir: &Path) -> Result<(), DirectoryError> {
        Ok(())
    }
}

/// Name of an entry.
fn name(path: &Path) -> Result<&str, DirectoryError> {
    let what = || at(path)(io::Error::new(ErrorKind::InvalidInput, "its path is no text"));
    path.to_str().ok_or_else(what)
}

/// Fields that the head of an entry and its line in the list share.
fn about(flags: u16, crc: u32, size: u32, name: u16, extra: usize) -> Vec<u8> {
    let mut fields = [VERSION, flags, STORED, 0, DATE].map(u16::to_le_bytes).concat();
    fields.extend([crc, size, size].map(u32::to_le_bytes).concat());
    // Of a padding and three numbers at most.
    fields.extend([name, extra as u16].map(u16::to_le_bytes).concat());
    fields
}

/// Extra field of numbers in 64 bits.
fn wide(numbers: &[u64]) -> Vec<u8> {
    let mut field = [WIDE_FIELD, 8 * numbers.len() as u16].map(u16::to_le_bytes).concat();
    field.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    field
}

/// Extra field of an entry whose bytes would begin at `start`, so that they begin at a multiple of the alignment.
fn padding(start: u64) -> Vec<u8> {
    let missing = start.next_multiple_of(ALIGNMENT) - start;
    if missing == 0 {
        return Vec::new();
    }
    // The field has a head of four bytes itself.
    let whole = if missing < 4 { missing + ALIGNMENT } else { missing };
    let bytes = whole - 4;
    let mut field = [PADDING_FIELD, bytes as u16].map(u16::to_le_bytes).concat();
    field.resize(field.len() + bytes as usize, 0);
    field
}

/// Returns whether a number is said by an extra field, and by the largest one in its place.
fn is_large(number: u64) -> bool {
    number >= u64::from(u32::MAX)
}

fn short(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
