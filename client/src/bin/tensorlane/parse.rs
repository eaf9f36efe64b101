//! Words of the command line as values.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use tensorlane_client::Target;
use tensorlane_client::channel::Policy;
use tensorlane_proto::dtype::DTypeError;
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::set::torch_dtype;
use tensorlane_proto::{DType, Range, Reference, Selection};

/// Beginning of a reference; nothing that begins so is taken for a name.
pub(crate) const REFERENCE_BEGINS: &str = "tl1:";

/// Character between a ticket's reference and its secret.
pub(crate) const TICKET_MARK: char = '#';

/// Requirement that a route may have to satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Requirement {
    /// No byte copied between the block and this process.
    ZeroCopy,
    /// The bytes do not leave the node.
    SameNode,
    /// The bytes are encrypted wherever they leave the node.
    Encrypted,
}

/// All requirements together.
pub(crate) fn require(all: &[Requirement]) -> Require {
    Require {
        zero_copy: all.contains(&Requirement::ZeroCopy),
        same_node: all.contains(&Requirement::SameNode),
        encrypted: all.contains(&Requirement::Encrypted),
    }
}

/// Policy of a channel.
pub(crate) fn policy(text: &str) -> Result<Policy, String> {
    Policy::named(text).ok_or_else(|| format!("{text:?} is no policy; write block, drop_oldest or latest"))
}

/// `500ms`, `30s`, `10m`, `2h`, `1d`, or several together: `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write such as 500ms, 30s, 10m or 1h30m");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        total = total.saturating_add(Duration::from_millis(number.checked_mul(unit).ok_or_else(wrong)?));
        rest = &rest[end..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// `4096`, `64KiB`, `1MiB`, `2GiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write such as 4096, 64KiB, 1MiB or 2GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match &text[digits..] {
        "" | "B" => 0,
        "KiB" | "Ki" => 10,
        "MiB" | "Mi" => 20,
        "GiB" | "Gi" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

/// A leaf of a mutable set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) key: String,
    pub(crate) dtype: DType,
    /// Sizes of the dimensions of one row.
    pub(crate) row_shape: Vec<u64>,
}

/// `obs:u8:480,480,3`, or `reward:f32` where a row is one element. A key may have colons itself.
pub(crate) fn leaf(text: &str) -> Result<Leaf, String> {
    let wrong =
        || format!("{text:?} is not a leaf; write KEY:DTYPE:SHAPE such as obs:u8:480,480,3, or reward:f32");
    let (head, last) = text.rsplit_once(':').ok_or_else(wrong)?;
    let (key, dtype, row_shape) = match dtype(last) {
        Ok(dtype) => (head, dtype, Vec::new()),
        Err(_) => {
            let (key, name) = head.rsplit_once(':').ok_or_else(wrong)?;
            let dtype = dtype(name).map_err(|error| format!("{text:?}: {error}"))?;
            let sizes = last.split(',').filter(|_| !last.is_empty());
            let row_shape =
                sizes.map(|size| size.trim().parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
            (key, dtype, row_shape)
        }
    };
    if key.is_empty() {
        return Err(wrong());
    }
    Ok(Leaf { key: key.to_owned(), dtype, row_shape })
}

/// The type of `u8`, or of `uint8` as numpy and torch call it.
fn dtype(name: &str) -> Result<DType, DTypeError> {
    name.parse().or_else(|unknown| torch_dtype(&format!("torch.{name}")).ok_or(unknown))
}

/// The shortest time between two looks: each is a call of the sidecar.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// A duration that is not too short to look so often.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < INTERVAL_MIN {
        return Err(format!("{text:?} is shorter than {INTERVAL_MIN:?}"));
    }
    Ok(interval)
}

/// A name that is given, or the beginning of names: none is empty, as a variable that is not set is.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a name has at least one character (`tensorlane ls` tells the names)".to_owned());
    }
    Ok(text.to_owned())
}

/// A file or directory. Others' mark of the standard streams is none.
pub(crate) fn path(path: PathBuf) -> Result<PathBuf, String> {
    if path.as_os_str() == "-" {
        return Err("it stands for no stream here: put takes plain files, and get writes into /dev/stdout, too; channel \
                    write reads standard input where no file is given; a file that is called so is ./-"
            .to_owned());
    }
    Ok(path)
}

/// A reference or else a name.
pub(crate) fn target(text: &str) -> Result<Target, String> {
    if !text.starts_with(REFERENCE_BEGINS) {
        return name(text).map(Target::name);
    }
    if text.contains(TICKET_MARK) {
        return Err(
            "this is a ticket, which `tensorlane get` uses; what stands before the # is its reference"
                .to_owned(),
        );
    }
    text.parse::<Reference>().map(Target::from).map_err(|error| error.to_string())
}

/// A name, a reference or a ticket, as it is written; what can be neither is refused.
pub(crate) fn wanted(text: &str) -> Result<String, String> {
    if text.starts_with(REFERENCE_BEGINS) {
        let reference = text.split_once(TICKET_MARK).map_or(text, |(reference, _)| reference);
        reference.parse::<Reference>().map_err(|error| error.to_string())?;
    }
    name(text)
}

/// `3,7,10-19`: rows in the order given, both ends of a range included.
pub(crate) fn rows(text: &str) -> Result<Selection, String> {
    let wrong = |part: &str| format!("{part:?} is not a row; write such as 3,7,10-19");
    let mut rows = Vec::new();
    for part in text.split(',') {
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong(part));
        match part.split_once('-') {
            None => rows.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                let most = tensorlane_proto::selection::MAX_ROWS as u64;
                if last < first {
                    return Err(format!(
                        "{part:?} is reversed; write {last}-{first}, or each row for another order"
                    ));
                }
                if last - first >= most {
                    return Err(format!("{part:?} is not a range of at most {most} rows"));
                }
                rows.extend(first..=last);
            }
        }
    }
    let selection = Selection::rows(rows);
    selection.check_limits().map_err(|error| error.to_string())?;
    Ok(selection)
}

/// `0:10,::2,5`: for each leading dimension START:STOP:STEP, where each may be missing, or one index.
pub(crate) fn ranges(text: &str) -> Result<Selection, String> {
    let selection = Selection::Ranges(text.split(',').map(range).collect::<Result<_, _>>()?);
    selection.check_limits().map_err(|error| error.to_string())?;
    Ok(selection)
}

fn range(text: &str) -> Result<Range, String> {
    let wrong = || format!("{text:?} is not a range; write such as 0:10, ::2 or 5");
    let number = |part: &str| match part.trim() {
        "" => Ok(None),
        digits => digits.parse::<u64>().map(Some).map_err(|_| wrong()),
    };
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [index] => {
            let index = number(index)?.ok_or_else(wrong)?;
            Ok(Range::new(index, index.checked_add(1).ok_or_else(wrong)?))
        }
        [start, stop] => Ok(Range { start: number(start)?, stop: number(stop)?, step: 1 }),
        [start, stop, step] => {
            Ok(Range { start: number(start)?, stop: number(stop)?, step: number(step)?.unwrap_or(1) })
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_has_a_key_a_type_and_the_shape_of_a_row() {
        let leaf_of = |key: &str, dtype, row_shape: &[u64]| Leaf {
            key: key.into(),
            dtype,
            row_shape: row_shape.into(),
        };
        assert_eq!(leaf("obs:u8:480,480,3"), Ok(leaf_of("obs", DType::U8, &[480, 480, 3])));
        assert_eq!(leaf("next/reward:f32"), Ok(leaf_of("next/reward", DType::F32, &[])));
        assert_eq!(leaf("next/reward:f32:"), leaf("next/reward:f32"));
        assert_eq!(leaf("a:b:u8:2"), Ok(leaf_of("a:b", DType::U8, &[2])));
        assert_eq!(leaf("obs:uint8:2"), leaf("obs:u8:2"));
        assert_eq!(leaf("reward:float32"), leaf("reward:f32"));
        for text in ["", "a", "a:3", ":u8", "a:u8:x", "a:u8:-1", "a:u7:3", "a:u8:1,,2"] {
            assert!(leaf(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_with_their_units_and_nonsense_is_refused() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!((bytes("64KiB"), bytes("2GiB")), (Ok(64 << 10), Ok(2 << 30)));
        for wrong in ["", "KiB", "1.5MiB", "-1", "0", "1TB", "99999999999GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "5", "s", "5x", "-5s", "5 s", "99999999999999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_begins_as_a_reference_must_be_one() {
        assert_eq!(target("model/weights"), Ok(Target::name("model/weights")));
        assert!(target("tl1:nonsense").is_err());
        // A ticket is not said to be damaged.
        assert!(target("tl1:abc#0123").is_err_and(|told| told.contains("is a ticket")));
    }

    #[test]
    fn a_name_or_path_that_stands_for_nothing_is_refused() {
        assert!(name("").is_err() && target("").is_err() && wanted("").is_err());
        assert_eq!(name("a/b").as_deref(), Ok("a/b"));
        assert!(path("-".into()).is_err_and(|told| told.contains("./-")));
        assert_eq!(path("./-".into()), Ok("./-".into()));
    }

    #[test]
    fn rows_keep_their_order() {
        assert_eq!(rows("7,3,10-12"), Ok(Selection::rows([7, 3, 10, 11, 12])));
        for wrong in ["", "1,", "5-3", "a", "0-99999999"] {
            assert!(rows(wrong).is_err(), "{wrong}");
        }
        assert!(rows("9-3").is_err_and(|told| told.contains("reversed") && told.contains("write 3-9")));
    }

    #[test]
    fn ranges_are_written_as_in_python() {
        let every_second = Range { start: None, stop: None, step: 2 };
        assert_eq!(
            ranges("0:10,::2,5"),
            Ok(Selection::Ranges(vec![Range::new(0, 10), every_second, Range::new(5, 6)]))
        );
        for wrong in ["", "a", "1:2:3:4", "-1", "18446744073709551615"] {
            assert!(ranges(wrong).is_err(), "{wrong}");
        }
    }
}
