//! Tables for people.

use std::fmt::Write;

use tensorlane_operator::inspect::peers::PeerRow;
use tensorlane_operator::inspect::routes::{Matrix, PairRoute};
use tensorlane_proto::text::printable;

/// The letters of an incarnation that tell two lives apart.
const INCARNATION_LETTERS: usize = 8;

/// A line for each peer; with its namespace, where several were asked for.
pub(crate) fn peers(rows: &[PeerRow], every: bool) -> String {
    let headings =
        ["PEER", "EXCHANGE", "NODE", "READY", "REASON", "SPEAKS", "KEYS", "INCARNATION", "ADDRESSES"];
    let headings: Vec<&str> = every.then_some("NAMESPACE").into_iter().chain(headings).collect();
    let cells = rows.iter().map(|row| {
        let own = [
            row.name.clone(),
            row.exchange.clone(),
            row.node.clone(),
            row.ready.clone(),
            row.reason.clone(),
            row.transports.join(","),
            row.fingerprints.len().to_string(),
            row.incarnation.chars().take(INCARNATION_LETTERS).collect(),
            addresses(row),
        ];
        every.then(|| row.namespace.clone()).into_iter().chain(own).collect()
    });
    table(&headings, &cells.collect::<Vec<_>>())
}

/// Addresses of a peer; those that are not its pod's are marked.
fn addresses(row: &PeerRow) -> String {
    let one = |address: &String| match row.foreign_addresses.contains(address) {
        true => format!("{address}(not its pod's)"),
        false => address.clone(),
    };
    row.addresses.iter().map(one).collect::<Vec<_>>().join(",")
}

/// The matrix of an exchange; each below its name, where every one was asked for.
pub(crate) fn routes(matrices: &[Matrix], every: bool) -> String {
    let all = matrices.iter().map(|Matrix { namespace, exchange, pairs }| match every {
        true => format!("exchange {exchange} of namespace {namespace}\n{}", matrix(pairs)),
        false => matrix(pairs),
    });
    all.collect::<Vec<_>>().join("\n")
}

/// A matrix of peers, and below it the reasons, each once with how many pairs it holds for.
fn matrix(pairs: &[PairRoute]) -> String {
    let mut names: Vec<&str> = pairs.iter().flat_map(|pair| [pair.a.as_str(), pair.b.as_str()]).collect();
    names.sort_unstable();
    names.dedup();
    let cell = |a: &str, b: &str| {
        let pair = pairs.iter().find(|pair| (pair.a == a && pair.b == b) || (pair.a == b && pair.b == a));
        pair.map_or("local", |pair| pair.transport.unwrap_or("none")).to_owned()
    };
    let row = |a: &&str| std::iter::once((*a).to_owned()).chain(names.iter().map(|b| cell(a, b))).collect();
    let headings: Vec<&str> = std::iter::once("PEER").chain(names.iter().copied()).collect();
    let mut text = table(&headings, &names.iter().map(row).collect::<Vec<_>>());
    let mut reasons: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for pair in pairs {
        let transport = pair.transport.unwrap_or("none");
        *reasons.entry(format!("{transport}, {}", pair.refusals.join(", "))).or_default() += 1;
    }
    for (reason, count) in reasons {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{count} x {}", printable(&reason));
    }
    text
}

fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let wide = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(wide).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut text = line(headings.to_vec());
    for row in rows {
        let cells = row.iter().map(|cell| if cell.is_empty() { "-" } else { cell.as_str() });
        text.push('\n');
        text.push_str(&line(cells.collect()));
    }
    text.push('\n');
    printable(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_a_matrix_with_the_reasons_below() {
        let pair = |a: &str, b: &str, transport, why: &str| PairRoute {
            a: a.to_owned(),
            b: b.to_owned(),
            transport,
            refusals: vec![why.to_owned()],
        };
        let pairs = [
            pair("a", "b", Some("tcp"), "not shm: policy"),
            pair("a", "c", None, "c has not published"),
            pair("b", "c", None, "c has not published"),
        ];
        let expected = "PEER  a      b      c\na     local  tcp    none\nb     tcp    local  none\nc     none   none   local\n\
                        2 x none, c has not published\n1 x tcp, not shm: policy\n";
        let of = |namespace: &str| {
            let (namespace, exchange) = (namespace.to_owned(), "default".to_owned());
            Matrix { namespace, exchange, pairs: pairs.to_vec() }
        };
        assert_eq!(routes(&[of("ml")], false), expected);
        let (ml, rl) = ("exchange default of namespace ml", "exchange default of namespace rl");
        assert_eq!(routes(&[of("ml"), of("rl")], true), format!("{ml}\n{expected}\n{rl}\n{expected}"));
        assert_eq!(routes(&[], true), "");
    }

    #[test]
    fn peers_of_several_namespaces_say_which() {
        let row = PeerRow {
            namespace: "ml".to_owned(),
            name: "a".to_owned(),
            exchange: "default".to_owned(),
            node: "n1".to_owned(),
            ready: "True".to_owned(),
            reason: "Published".to_owned(),
            transports: vec!["tcp".to_owned()],
            addresses: vec!["10.0.0.7:9421".to_owned(), "10.0.0.1:6443".to_owned()],
            foreign_addresses: vec!["10.0.0.1:6443".to_owned()],
            fingerprints: vec!["sha256:1".to_owned()],
            incarnation: "0".repeat(32),
        };
        let rows = [row];
        let every = peers(&rows, true);
        assert!(
            every.starts_with("NAMESPACE  PEER  EXCHANGE") && every.contains("\nml         a"),
            "{every}"
        );
        assert!(peers(&rows, false).starts_with("PEER  EXCHANGE"));
        assert!(every.contains("10.0.0.7:9421,10.0.0.1:6443(not its pod's)"), "{every}");
    }
}
