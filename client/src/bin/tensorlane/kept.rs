//! Metadata between files and tensors: which are kept, and which are left out, by name.
//!
//! Each tensor carries the metadata of its file within the limits of the exchange. If some go beyond, the small ones are
//! kept, and a list of the others stands at the key [`LEFT_OUT`]. The file that the tensors are got into has it, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tensorlane_proto::Metadata;
use tensorlane_proto::descriptor::{MAX_METADATA_BYTES, MAX_METADATA_ENTRIES};
use tensorlane_proto::set::SET_METADATA;

use crate::output::Output;

/// Key of the list of keys that were left out, as JSON.
pub(crate) const LEFT_OUT: &str = "tensorlane.left_out";
/// Longest such list, in bytes. Other metadata have as much less room.
const LIST_BYTES_MAX: usize = 2_048;

/// A key whose value is not in what was made, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) key: String,
    pub(crate) why: String,
}

impl LeftOut {
    pub(crate) fn new(key: &str, why: impl Into<String>) -> Self {
        Self { key: key.to_owned(), why: why.into() }
    }
}

/// The metadata of a file, as its tensors carry them. The mark of sets is left out: tensors that have it are not got as such.
pub(crate) fn of_file(mut entries: BTreeMap<String, String>) -> (Metadata, Vec<LeftOut>) {
    let mark = entries.remove(SET_METADATA);
    if mark.is_none()
        && !entries.contains_key(LEFT_OUT)
        && let Ok(all) = Metadata::new(&entries)
    {
        return (all, Vec::new());
    }
    let earlier = entries.remove(LEFT_OUT).map(|list| listed(&list)).unwrap_or_default();
    let mut left: Vec<LeftOut> =
        earlier.iter().map(|key| LeftOut::new(key, "the file says that it was left out before")).collect();
    left.extend(mark.map(|_| LeftOut::new(SET_METADATA, "it marks a set, which no tensor of a file is")));
    let (most, room) = (MAX_METADATA_ENTRIES - 1, MAX_METADATA_BYTES - LEFT_OUT.len() - LIST_BYTES_MAX);
    let mut sorted: Vec<(&String, &String)> = entries.iter().collect();
    sorted.sort_by_key(|(key, value)| key.len() + value.len());
    let mut kept = BTreeMap::new();
    let mut bytes = 0;
    for (key, value) in sorted {
        let size = key.len() + value.len();
        match Metadata::new([(key, value)]) {
            Err(error) => left.push(LeftOut::new(key, error.to_string())),
            Ok(_) if kept.len() == most => {
                left.push(LeftOut::new(key, format!("more than {most} others are shorter")));
            }
            Ok(_) if bytes + size > room => {
                left.push(LeftOut::new(
                    key,
                    format!("the shorter ones have {bytes} bytes of {room} already"),
                ));
            }
            Ok(_) => {
                bytes += size;
                kept.insert(key.clone(), value.clone());
            }
        }
    }
    if !left.is_empty() {
        kept.insert(LEFT_OUT.to_owned(), list(left.iter().map(|one| one.key.as_str())));
    }
    // Within all limits, by what was counted above.
    (Metadata::new(kept).unwrap_or_default(), left)
}

/// Gathers the metadata of a file: what all tensors say alike, which is as it was if they came from one.
pub(crate) fn of_tensors(tensors: &[&Metadata]) -> (BTreeMap<String, String>, Vec<LeftOut>) {
    let keys: BTreeSet<&str> = tensors.iter().flat_map(|one| one.iter().map(|(key, _)| key)).collect();
    let mut kept = BTreeMap::new();
    let mut left = Vec::new();
    let mut lost = BTreeSet::new();
    for key in keys {
        if key == LEFT_OUT {
            lost.extend(tensors.iter().filter_map(|one| one.value(key)).flat_map(listed));
            continue;
        }
        let mut values = tensors.iter().map(|one| one.value(key));
        match values.next().flatten() {
            Some(first) if values.all(|value| value == Some(first)) => {
                kept.insert(key.to_owned(), first.to_owned());
            }
            _ => left.push(LeftOut::new(key, "the tensors do not agree on it")),
        }
    }
    if !lost.is_empty() {
        kept.insert(LEFT_OUT.to_owned(), list(lost.iter().map(String::as_str)));
    }
    left.extend(lost.iter().map(|key| LeftOut::new(key, "it was left out when the tensors were put")));
    (kept, left)
}

/// As much of a list of keys as fits, as JSON.
fn list<'a>(keys: impl Iterator<Item = &'a str>) -> String {
    let mut list: Vec<String> = Vec::new();
    // The brackets, and the last word.
    let mut bytes = 32;
    let mut rest = 0;
    for key in keys {
        bytes += json!(key).to_string().len() + 1;
        if bytes > LIST_BYTES_MAX {
            rest += 1;
        } else {
            list.push(key.to_owned());
        }
    }
    if rest > 0 {
        list.push(format!("and {rest} more"));
    }
    json!(list).to_string()
}

/// The keys of such a list; a text that is none counts as one key.
fn listed(list: &str) -> Vec<String> {
    serde_json::from_str(list).unwrap_or_else(|_| vec![list.to_owned()])
}

/// The field of a result: every key that was left out, and why.
pub(crate) fn field(left: &[LeftOut]) -> Value {
    left.iter().map(|one| json!({ "key": one.key, "why": one.why })).collect()
}

/// Warns of what is left out of a path, which `of` names; or fails, if nothing may be.
pub(crate) fn tell(output: &Output, of: &str, left: &[LeftOut], strict: bool, path: &Path) -> Result<()> {
    match sentence(of, left) {
        Some(told) if strict => bail!("{}: {told}; without --strict it is done all the same", path.display()),
        Some(told) => output.warn(&format!("{}: {told}", path.display())),
        None => {}
    }
    Ok(())
}

/// The sentence for people, of the first few; none if nothing was left out.
fn sentence(of: &str, left: &[LeftOut]) -> Option<String> {
    const TOLD_MAX: usize = 3;
    let told: Vec<String> =
        left.iter().take(TOLD_MAX).map(|one| format!("{:?} ({})", one.key, one.why)).collect();
    let more = left.len().saturating_sub(TOLD_MAX);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!left.is_empty()).then(|| format!("{of} are left out: {}{more}", told.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn keys(left: &[LeftOut]) -> Vec<&str> {
        left.iter().map(|one| one.key.as_str()).collect()
    }

    #[test]
    fn metadata_within_the_limits_are_kept_as_they_are() {
        let all = entries(&[("format", "pt"), ("alpha", "8")]);
        assert_eq!(of_file(all.clone()), (Metadata::new(&all).unwrap(), Vec::new()));
    }

    #[test]
    fn a_value_that_is_too_long_goes_alone_and_is_named_on_the_way_back() {
        let (kept, left) =
            of_file(entries(&[("alpha", "8"), ("tags", &"x".repeat(5_000)), ("", "nameless")]));
        assert_eq!((kept.value("alpha"), kept.value("tags")), (Some("8"), None));
        assert_eq!(keys(&left), ["", "tags"]);
        assert!(left[1].why.contains("5000 bytes; at most 4096"), "{left:?}");
        let (back, left) = of_tensors(&[&kept, &kept]);
        assert_eq!(keys(&left), ["", "tags"]);
        assert_eq!(back, entries(&[("alpha", "8"), (LEFT_OUT, "[\"\",\"tags\"]")]));
        let (again, left) = of_file(back);
        assert_eq!((again, keys(&left)), (kept, vec!["", "tags"]));
    }

    /// Such a tensor would be refused by `get`, as a set, and its set would be none.
    #[test]
    fn the_mark_of_sets_is_no_metadata_of_a_file() {
        let (kept, left) = of_file(entries(&[("format", "pt"), (SET_METADATA, "1")]));
        assert_eq!((kept.value("format"), kept.value(SET_METADATA)), (Some("pt"), None));
        assert_eq!(keys(&left), [SET_METADATA]);
        let (back, left) = of_tensors(&[&kept]);
        assert_eq!((back[LEFT_OUT].as_str(), keys(&left)), (r#"["tensorlane.set"]"#, vec![SET_METADATA]));
    }

    #[test]
    fn of_very_many_as_many_are_kept_as_can_be_and_the_rest_is_counted() {
        let many = |count: usize, bytes: usize| {
            (0..count).map(|at| (format!("tag_{at:05}"), "1".repeat(bytes))).collect::<BTreeMap<_, _>>()
        };
        for (count, bytes, stay) in [(400, 1, 63), (60, 1_000, 14), (64, 4_096, 3), (20_000, 0, 63)] {
            let (kept, left) = of_file(many(count, bytes));
            assert_eq!((kept.len(), left.len()), (stay + 1, count - stay), "{count} of {bytes}");
            let list = listed(kept.value(LEFT_OUT).unwrap());
            assert!(list.len() == left.len() || list.last().unwrap().ends_with("more"), "{list:?}");
        }
    }

    #[test]
    fn what_tensors_do_not_agree_on_is_named() {
        let one = Metadata::new([("format", "pt"), ("n", "1"), ("only", "here")]).unwrap();
        let other = Metadata::new([("format", "pt"), ("n", "2")]).unwrap();
        let (kept, left) = of_tensors(&[&one, &other]);
        assert_eq!((kept, keys(&left)), (entries(&[("format", "pt")]), vec!["n", "only"]));
        assert_eq!(
            sentence("metadata", &left[..1]).unwrap(),
            "metadata are left out: \"n\" (the tensors do not agree on it)"
        );
        assert_eq!(sentence("metadata", &[]), None);
    }
}
