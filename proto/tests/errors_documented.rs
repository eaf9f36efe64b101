//! The page of errors is complete: whoever meets a reason finds its paragraph.

use std::collections::BTreeSet;

use tensorlane_proto::failure::Reason;

const PAGE: &str = include_str!("../../docs/errors.md");

/// The paragraphs of the page: heading and text.
fn paragraphs() -> Vec<(&'static str, &'static str)> {
    let parts = PAGE.split("\n## ").skip(1);
    parts.map(|part| part.split_once('\n').expect("a heading has a line of its own")).collect()
}

#[test]
fn every_reason_has_a_paragraph_and_every_paragraph_a_reason() {
    let reasons: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    let headings: BTreeSet<&str> = paragraphs().into_iter().map(|(heading, _)| heading.trim()).collect();
    assert_eq!(headings, reasons);
    assert_eq!(paragraphs().len(), Reason::ALL.len(), "a heading stands twice");
}

#[test]
fn every_paragraph_begins_with_the_code_and_says_whether_waiting_may_help() {
    for (word, text) in paragraphs() {
        let reason: Reason = word.trim().parse().expect("headings are reasons");
        let line = text.trim_start().lines().next().expect("a paragraph is not empty");
        assert!(line.starts_with(&format!("`{}`", reason.code())), "{word}: {line}");
        let said = line.starts_with(&format!("`{}`, transient.", reason.code()));
        assert_eq!(said, reason.is_transient(), "{word}: {line}");
    }
}
