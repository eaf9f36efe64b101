//! Line 4. Every audit adds up; the last one of each host shows nothing in use.

use super::Violation;
use super::timeline::Timeline;
use crate::soak::history::{Books, What};

pub(super) fn check(timeline: &Timeline<'_>) -> Vec<Violation> {
    let audits = timeline.events.iter().enumerate().filter_map(|(index, event)| match &event.what {
        What::Audited { host, books, last } => Some((index, *host, *books, *last)),
        _ => None,
    });
    audits.filter_map(|(index, host, books, last)| wrong(index, host, books, last)).collect()
}

fn wrong(index: usize, host: usize, books: Books, last: bool) -> Option<Violation> {
    let Books { total, free, reserved, sealed, held, retired, .. } = books;
    let sum = free + reserved + sealed + held + retired;
    let what = if total == 0 {
        format!("host {host} does not say what its arena has")
    } else if sum != total {
        format!("host {host} has an arena of {total} bytes and accounts for {sum}: {books:?}")
    } else if last && !books.all_free() {
        format!("something is left at host {host} after all holders are gone: {books:?}")
    } else {
        return None;
    };
    Some(Violation::new(4, [index], what))
}
