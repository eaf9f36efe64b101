//! Output: what is printed, and how.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde_json::{Value, json};
use tensorlane_client::{Description, Moved, Way};
use tensorlane_proto::Layout;
pub(crate) use tensorlane_proto::text::printable;

use crate::complaint;
use crate::watch::Flow;

/// Format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Standard output, or standard error in its place. Every write can fail, and a reader who has seen enough is no
/// failure (see main).
#[derive(Clone, Debug)]
pub(crate) struct Output {
    format: Format,
    colours: bool,
    on_errors: bool,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, colours: wants_colours(&io::stdout()), on_errors: false }
    }

    /// Standard error, written as this output is.
    pub(crate) fn on_errors(&self) -> Self {
        Self { format: self.format, colours: wants_colours(&io::stderr()), on_errors: true }
    }

    /// Says on standard error what is worth knowing.
    pub(crate) fn warn(&self, what: &str) {
        complaint::warn(what, self.format);
    }

    /// Says on standard error what was done.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn note(&self, what: &str) {
        complaint::note(what, self.format);
    }

    /// Text that a watch prints of one state: the JSON in one line, or else what `text` prints.
    pub(crate) fn state(
        &self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<Vec<u8>> {
        match self.format {
            Format::Json => Ok(format!("{}\n", json()).into()),
            Format::Text => shown(text),
        }
    }

    /// Flow of the states of a watch, one after another.
    pub(crate) fn flow(&self) -> Flow {
        match self.format {
            Format::Json => Flow::Lines,
            Format::Text if io::stdout().is_terminal() => Flow::InPlace,
            Format::Text => Flow::Blocks,
        }
    }

    /// Prints the JSON, or else what `text` prints.
    pub(crate) fn print(
        &self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        self.send(&self.printed(json, text)?)
    }

    /// Prints the JSON, or else a document for programs, as it is.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn print_document(&self, json: impl FnOnce() -> Value, document: &str) -> io::Result<()> {
        match self.format {
            Format::Json => self.send(&self.printed(json, |_| Ok(()))?),
            Format::Text => self.send(document.as_bytes()),
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out: Box<dyn Write> =
            if self.on_errors { Box::new(io::stderr().lock()) } else { Box::new(io::stdout().lock()) };
        out.write_all(bytes)?;
        out.flush()
    }

    /// Text that [`print`](Self::print) prints.
    pub(crate) fn printed(
        &self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<Vec<u8>> {
        match self.format {
            // Standard error has one object a line, beside warnings and errors.
            Format::Json if self.on_errors => Ok(format!("{}\n", json()).into()),
            Format::Json => Ok(format!("{:#}\n", json()).into()),
            Format::Text => shown(text),
        }
    }

    /// Writes to standard output, in whole lines as far as a pipe takes them at once. Tells how many bytes it took
    /// where it did not take all. Just before each part goes out, and not while its reader is waited for, `going` is
    /// told where it ends.
    pub(crate) fn write(bytes: &[u8], going: impl Fn(usize)) -> Result<(), (usize, io::Error)> {
        let mut taken = 0;
        while taken < bytes.len() {
            let part = part(&bytes[taken..]);
            // An error is told by the write.
            while poll(&mut [PollFd::new(&io::stdout(), PollFlags::OUT)], None) == Err(Errno::INTR) {}
            going(taken + part.len());
            match rustix::io::write(io::stdout(), part) {
                Ok(0) => return Err((taken, io::ErrorKind::WriteZero.into())),
                Ok(more) => taken += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err((taken, error.into())),
            }
        }
        Ok(())
    }

    /// Prints rows below their headings, every column as wide as it must be; columns of numbers to the right.
    pub(crate) fn table(
        &self,
        out: &mut dyn Write,
        headings: &[&str],
        rows: &[Vec<String>],
    ) -> io::Result<()> {
        let wide = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([headings[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..headings.len()).map(wide).collect();
        let numeric = |column: usize| {
            !rows.is_empty() && rows.iter().all(|row| row[column].starts_with(|c: char| c.is_ascii_digit()))
        };
        let right: Vec<bool> = (0..headings.len()).map(numeric).collect();
        let line = |cells: &[&str]| {
            let cell = |(column, cell): (usize, &&str)| {
                let width = widths[column];
                if right[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            };
            cells.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ")
        };
        let (bold, plain) = if self.colours { (BOLD, PLAIN) } else { ("", "") };
        writeln!(out, "{bold}{}{plain}", line(headings).trim_end())?;
        for row in rows {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            writeln!(out, "{}", line(&cells).trim_end())?;
        }
        Ok(())
    }
}

/// Letters from here on are bold.
const BOLD: &str = "\x1b[1m";
/// Letters from here on are plain.
const PLAIN: &str = "\x1b[0m";

/// Text that `text` writes, as a terminal may have it: of what others wrote, nothing but bold letters comes through.
fn shown(text: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut written = Vec::new();
    text(&mut written)?;
    let text = String::from_utf8_lossy(&written);
    let parts = text.split(BOLD).map(|part| part.split(PLAIN).map(printable).collect::<Vec<_>>().join(PLAIN));
    Ok(parts.collect::<Vec<_>>().join(BOLD).into())
}

/// Outcome of printing, where the exit code says more than that a reader has left.
pub(crate) fn even_unread(printed: io::Result<()>) -> io::Result<()> {
    printed.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// Bytes that a pipe takes whole once it takes any: its `PIPE_BUF`.
const PART_BYTES: usize = 4_096;

/// The lines that are written at once, or what is long enough of one that is longer.
fn part(bytes: &[u8]) -> &[u8] {
    let most = &bytes[..bytes.len().min(PART_BYTES)];
    let end = most.iter().rposition(|byte| *byte == b'\n').filter(|_| most.len() < bytes.len());
    end.map_or(most, |end| &most[..=end])
}

/// Returns whether a stream is watched by somebody who likes colours.
pub(crate) fn wants_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// `1.5 GiB`; exact below a kibibyte.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// `1 tensor`, `2 tensors`.
pub(crate) fn tensors(count: usize) -> String {
    if count == 1 { "1 tensor".into() } else { format!("{count} tensors") }
}

/// `1.2 GB/s`: rates are decimal, as those of disks and networks.
pub(crate) fn rate(bytes: u64, took: Duration) -> String {
    let per_second = bytes as f64 / took.as_secs_f64().max(1e-9);
    match per_second {
        giga if giga >= 1e9 => format!("{:.2} GB/s", giga / 1e9),
        mega if mega >= 1e6 => format!("{:.1} MB/s", mega / 1e6),
        other => format!("{:.1} kB/s", other / 1e3),
    }
}

/// `2d 3h`, `4m 5s`, `1.25 s`.
pub(crate) fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.2} s"),
        60..3_600 => format!("{}m {}s", whole / 60, whole % 60),
        3_600..86_400 => format!("{}h {}m", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{}d {}h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

/// `f32[2, 3]` as JSON fields.
pub(crate) fn layout(layout: &Layout) -> Value {
    json!({
        "dtype": layout.dtype().name(),
        "shape": layout.shape().to_vec(),
        "strides": layout.strides().map(|strides| strides.to_vec()),
        "bytes": layout.bytes(),
    })
}

/// Description of a tensor, as JSON.
pub(crate) fn description(of: &Description) -> Value {
    let mut value = layout(&of.descriptor.layout);
    let metadata: serde_json::Map<String, Value> =
        of.descriptor.metadata.iter().map(|(key, text)| (key.to_owned(), text.into())).collect();
    let more = json!({
        "reference": of.reference.encode(),
        "device": of.descriptor.device.to_string(),
        "metadata": metadata,
        "sealed": of.sealed,
        "names": of.names,
        "leases": of.leases,
        "tickets": of.tickets,
        "crc32c": of.crc32c.map(|crc| format!("{crc:08x}")),
        "here": of.here,
    });
    merge(&mut value, more);
    value
}

/// Way in which bytes came, as JSON.
pub(crate) fn moved(moved: &Moved) -> Value {
    let word =
        |transport: Option<tensorlane_proto::Transport>| transport.map_or("unknown", |known| known.as_str());
    let refusals: Vec<Value> = moved
        .refusals
        .iter()
        .map(|refused| json!({ "transport": word(refused.transport), "why": refused.why }))
        .collect();
    let paths: Vec<Value> = moved
        .paths
        .iter()
        .map(|path| {
            let way = path.way.map_or("unknown", Way::as_str);
            json!({
                "way": way,
                "bytes": path.bytes,
                "lanes": path.lanes,
                "plain_bytes": path.plain_bytes,
                "left": path.left,
            })
        })
        .collect();
    json!({
        "transport": word(moved.transport),
        "bytes": moved.bytes,
        "seconds": moved.took.as_secs_f64(),
        "refusals": refusals,
        "paths": paths,
        "senders": moved.senders.iter().map(|(peer, bytes)| json!({ "peer": peer, "bytes": bytes })).collect::<Vec<_>>(),
    })
}

/// Adds the fields of one object to another.
pub(crate) fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_well() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(rate(2_000_000_000, Duration::from_secs(1)), "2.00 GB/s");
        assert_eq!(span(0.5), "0.50 s");
        assert_eq!(span(3_700.0), "1h 1m");
    }

    #[test]
    fn text_of_others_cannot_move_the_cursor_and_headings_are_bold() {
        let output = Output { format: Format::Text, colours: true, on_errors: false };
        let rows = [vec!["a\x1b[2Jb".to_owned()]];
        let text = |out: &mut dyn Write| {
            writeln!(out, "\x1b]0;title\x07")?;
            output.table(out, &["NAME"], &rows)
        };
        let expected = "\\u{1b}]0;title\\u{7}\n\x1b[1mNAME\x1b[0m\na\\u{1b}[2Jb\n";
        for shown in [output.printed(|| json!({}), text), output.state(|| json!({}), text)] {
            assert_eq!(String::from_utf8(shown.unwrap()).unwrap(), expected);
        }
    }

    #[test]
    fn json_is_one_line_on_standard_error() {
        let output = Output { format: Format::Json, colours: false, on_errors: false };
        let printed = |output: &Output| {
            String::from_utf8(output.printed(|| json!({"a": 1, "b": 2}), |_| Ok(())).unwrap()).unwrap()
        };
        assert_eq!(printed(&output).lines().count(), 4);
        assert_eq!(printed(&output.on_errors()), "{\"a\":1,\"b\":2}\n");
    }

    #[test]
    fn a_reader_who_has_left_is_no_fault_and_a_full_disk_is() {
        assert!(even_unread(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert!(even_unread(Err(io::ErrorKind::StorageFull.into())).is_err());
    }

    #[test]
    fn columns_line_up_and_numbers_stand_to_the_right() {
        let output = Output { format: Format::Text, colours: false, on_errors: false };
        let rows = vec![vec!["a".into(), "7".into()], vec!["long".into(), "100".into()]];
        let mut out = Vec::new();
        output.table(&mut out, &["NAME", "LEASES"], &rows).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME  LEASES\na          7\nlong     100\n");
    }
}
