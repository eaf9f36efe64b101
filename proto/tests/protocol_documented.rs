//! The page of the protocols has every number that is on the wire.

use std::collections::BTreeSet;

use tensorlane_proto::DType;
use tensorlane_proto::frame::{PeerKind, SessionKind};

const PAGE: &str = include_str!("../../docs/protocol.md");

/// The lines of one section.
fn section(heading: &str) -> impl Iterator<Item = &'static str> {
    let heading = heading.to_owned();
    let begun = PAGE.lines().skip_while(move |line| *line != heading).skip(1);
    begun.take_while(|line| !line.starts_with('#'))
}

/// The first two cells of each row of a section's tables: name and number.
fn kinds(of: &str) -> BTreeSet<(String, u16)> {
    let after = PAGE.split(of).nth(1).unwrap_or_else(|| panic!("there is no {of}"));
    let table = after.split("### Kinds").nth(1).expect("its kinds have a section");
    let rows = table.lines().skip(1).take_while(|line| !line.starts_with('#'));
    let rows = rows.filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(name, rest)| {
        let number = rest.split(" |").next().and_then(|cell| cell.parse().ok());
        (name.to_owned(), number.unwrap_or_else(|| panic!("{name} has no number")))
    })
    .collect()
}

#[test]
fn every_kind_of_frame_has_its_row() {
    let session = (0..=u16::MAX).filter_map(|number| Some((SessionKind::try_from(number).ok()?, number)));
    let session: BTreeSet<_> = session.map(|(kind, number)| (format!("{kind:?}"), number)).collect();
    assert_eq!(kinds("\n## The session socket\n"), session);
    let peer = (0..=u16::MAX).filter_map(|number| Some((PeerKind::try_from(number).ok()?, number)));
    let peer: BTreeSet<_> = peer.map(|(kind, number)| (format!("{kind:?}"), number)).collect();
    assert_eq!(kinds("\n## The peer protocol\n"), peer);
}

#[test]
fn every_element_type_has_its_row() {
    let rows: Vec<&str> = section("## Element types").filter(|line| line.starts_with("| ")).skip(1).collect();
    assert_eq!(rows.len(), DType::ALL.len());
    for (row, dtype) in rows.into_iter().zip(DType::ALL) {
        let safetensors = dtype.safetensors_name().map_or("–".to_owned(), |name| format!("`{name}`"));
        let (code, _, _) = dtype.dlpack();
        let begins = format!("| {} | `{dtype}` | {} | {safetensors} | {code} | ", dtype.code(), dtype.bits());
        assert!(row.starts_with(&begins), "{row} should begin with {begins}");
    }
}
