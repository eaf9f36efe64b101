//! The peers file: YAML to entries, with every mistake at once.
//!
//! ```yaml
//! peers:
//!   - name: trainer-0
//!     addresses: ["10.0.0.7:9421"]
//!     fingerprints: ["sha256:…64 digits…"]
//!     node: node-a                         # optional
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_yaml::{Mapping, Value};

use super::table::{PeerEntry, PeerTable, TableError};
use crate::config::{Mistake, host_port};

/// The most bytes of the file: 10,000 peers of four hundred.
pub(super) const FILE_BYTES_MAX: u64 = 4 << 20;

/// Fields of a peer in the file, and in the table that was kept.
const FIELDS: &[&str] = &["name", "addresses", "fingerprints", "node"];
const KEPT_FIELDS: &[&str] = &["name", "addresses", "fingerprints", "node", "awaits_ip"];

/// A peers file that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParseError(pub(super) Vec<Mistake>);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("; "))
    }
}

/// The table that a text says, in which nobody has the key of another one.
pub(super) fn parse(text: &str) -> Result<PeerTable, ParseError> {
    PeerTable::new(entries(text, FIELDS)?).map_err(|errors| contradictions(&errors))
}

/// The table that was kept of what peers said of themselves.
pub(super) fn parse_claims(text: &str) -> Result<PeerTable, ParseError> {
    PeerTable::of_claims(entries(text, KEPT_FIELDS)?.into_iter().map(Arc::new).collect())
        .map_err(|errors| contradictions(&errors))
}

fn contradictions(errors: &[TableError]) -> ParseError {
    ParseError(errors.iter().map(|error| Mistake::new("peers", "", error.to_string())).collect())
}

/// The entries of a text. An empty text says nothing, so it is a mistake; `peers: []` says that nobody is there.
fn entries(text: &str, known: &[&str]) -> Result<Vec<PeerEntry>, ParseError> {
    let single = |wrong: String| ParseError(vec![Mistake::new("the file", "", wrong)]);
    let value: Value = serde_yaml::from_str(text).map_err(|error| single(format!("not YAML: {error}")))?;
    let mut mistakes = Vec::new();
    let fields = fields(&value, "the file", &["peers"], &mut mistakes);
    let Some(Value::Sequence(list)) = fields.and_then(|fields| fields.get("peers")) else {
        mistakes.push(Mistake::new("peers", "", "no list of peers; write `peers: []` if there are none"));
        return Err(ParseError(mistakes));
    };
    let entries: Vec<_> = list
        .iter()
        .enumerate()
        .map(|(i, value)| entry(value, &format!("peers[{i}]"), known, &mut mistakes))
        .collect();
    if mistakes.is_empty() { Ok(entries.into_iter().flatten().collect()) } else { Err(ParseError(mistakes)) }
}

fn entry(value: &Value, place: &str, known: &[&str], mistakes: &mut Vec<Mistake>) -> Option<PeerEntry> {
    let fields = fields(value, place, known, mistakes)?;
    let name = match fields.get("name") {
        Some(value) => one(value, &format!("{place}.name"), mistakes, read),
        None => {
            mistakes.push(Mistake::new(format!("{place}.name"), "", "missing"));
            None
        }
    };
    let addresses = list(fields, place, "addresses", mistakes, |text| host_port(text, false));
    let fingerprints = list(fields, place, "fingerprints", mistakes, read);
    let node = match fields.get("node") {
        None | Some(Value::Null) => None,
        Some(value) => one(value, &format!("{place}.node"), mistakes, |text| Ok(text.to_owned())),
    };
    let awaits_ip = match fields.get("awaits_ip") {
        None => false,
        Some(Value::Bool(awaits)) => *awaits,
        Some(_) => {
            mistakes.push(Mistake::new(format!("{place}.awaits_ip"), "", "not true or false"));
            false
        }
    };
    Some(PeerEntry { name: name?, addresses, fingerprints, node, awaits_ip })
}

/// A mapping with known keys only.
fn fields<'a>(
    value: &'a Value,
    place: &str,
    known: &[&str],
    mistakes: &mut Vec<Mistake>,
) -> Option<&'a Mapping> {
    let Value::Mapping(fields) = value else {
        mistakes.push(Mistake::new(place, "", format!("not a mapping with {}", known.join(", "))));
        return None;
    };
    let strange = fields.keys().filter(|key| !key.as_str().is_some_and(|key| known.contains(&key)));
    for key in strange {
        let key = key.as_str().unwrap_or("a key that is no text");
        mistakes.push(Mistake::new(place, key, "no such field").accepted(known.join(", ")));
    }
    Some(fields)
}

fn list<T>(
    fields: &Mapping,
    place: &str,
    field: &str,
    mistakes: &mut Vec<Mistake>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Vec<T> {
    let place = format!("{place}.{field}");
    match fields.get(field) {
        None => Vec::new(),
        Some(Value::Sequence(values)) => {
            let numbered = values.iter().enumerate();
            numbered.filter_map(|(i, value)| one(value, &format!("{place}[{i}]"), mistakes, &read)).collect()
        }
        Some(_) => {
            mistakes.push(Mistake::new(place, "", "not a list"));
            Vec::new()
        }
    }
}

fn one<T>(
    value: &Value,
    place: &str,
    mistakes: &mut Vec<Mistake>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Option<T> {
    let Value::String(text) = value else {
        mistakes.push(Mistake::new(place, "", "not a text; numbers need quotes"));
        return None;
    };
    read(text).map_err(|wrong| mistakes.push(Mistake::new(place, text, wrong))).ok()
}

fn read<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

#[cfg(test)]
mod tests {
    use tensorlane_fuzz::{Target, fuzz};
    use tensorlane_memory::heap::MeteringAllocator;

    use super::*;

    #[test]
    fn mutated_files_are_a_table_or_mistakes_within_their_memory() {
        let key = |digits: &str| format!("sha256:{}", digits.repeat(32));
        let flow = format!(
            "peers:\n- {{name: a, addresses: ['h:1', '[::1]:2'], fingerprints: ['{}'], node: n}}\n",
            key("0a")
        );
        let block = format!(
            "peers:\n- name: b\n  addresses: [\"10.0.0.7:9421\"]\n  fingerprints: [\"{}\"]\n",
            key("0b")
        );
        let corpus = vec![flow.into_bytes(), block.into_bytes(), b"peers: []".to_vec()];
        // A value of YAML in two bytes, and a mistake that shows it.
        let (times, spare, meter) = (1024, 256 << 10, MeteringAllocator::peak_of as tensorlane_fuzz::Meter);
        fuzz(Target { name: "the peers file", corpus, times, spare, meter }, |bytes| {
            let Ok(text) = str::from_utf8(bytes) else { return false };
            parse(text).is_ok()
        });
    }

    #[test]
    fn a_file_says_who_is_there() {
        let key = format!("sha256:{}", "0a".repeat(32));
        let text = format!(
            "peers:\n- {{name: a, addresses: ['h:1', '[::1]:2'], fingerprints: ['{key}'], node: n}}\n"
        );
        let table = parse(&text).unwrap();
        let entry = table.peer(&"a".parse().unwrap()).unwrap();
        assert_eq!(entry.addresses, ["h:1", "[::1]:2"]);
        assert_eq!((entry.fingerprints[0].to_string(), entry.node.as_deref()), (key, Some("n")));
        assert!(parse("peers: []").unwrap().is_empty());
    }

    #[test]
    fn a_peer_that_waits_for_its_ip_stands_in_a_table_that_was_kept_and_in_no_file() {
        let key = format!("sha256:{}", "0a".repeat(32));
        let text = |awaits: &str| {
            format!("peers: [{{name: a, addresses: [], fingerprints: ['{key}'], awaits_ip: {awaits}}}]")
        };
        let waits = |awaits| {
            parse_claims(&text(awaits)).map(|table| table.peer(&"a".parse().unwrap()).unwrap().awaits_ip)
        };
        assert_eq!((waits("true"), waits("false")), (Ok(true), Ok(false)));
        assert!(waits("7").unwrap_err().to_string().contains("peers[0].awaits_ip"));
        assert!(parse(&text("true")).unwrap_err().to_string().contains("no such field"));
    }

    #[test]
    fn a_file_that_says_nothing_is_a_mistake_and_not_an_empty_table() {
        for text in ["", "# nobody\n", "peers:", "peers: {}", "[]", "peers: [", "{}"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let text = "peers:\n- {name: A, addresses: ['h:0', h], fingerprints: ['sha256:12']}\n- 7\n\
                    - {nam: b, addresses: 'h:1', node: 3}\n- {name: c}\nversion: 1\n";
        let told = parse(text).unwrap_err().to_string();
        for part in [
            "the file = \"version\": no such field",
            "peers[0].name = \"A\"",
            "peers[0].addresses[0] = \"h:0\"",
            "peers[0].addresses[1] = \"h\"",
            "peers[0].fingerprints[0] = \"sha256:12\"",
            "peers[1]: not a mapping",
            "peers[2] = \"nam\": no such field",
            "peers[2].name: missing",
            "peers[2].addresses: not a list",
            "peers[2].node: not a text",
        ] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        assert!(parse("peers: [{name: c}]").unwrap_err().to_string().contains("c has 0 fingerprints"));
    }
}
