//! The known word that an unknown one was probably meant to be.

/// The nearest of `known`, if it is near enough to be a slip: a third of the letters, and at least two.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).max(2);
    let lower = word.to_lowercase();
    let distances = known.map(|other| (distance(&lower, &other.to_lowercase()), other));
    distances.min_by_key(|(far, _)| *far).filter(|(far, _)| *far <= allowed).map(|(_, other)| other)
}

/// Levenshtein: insertions, deletions and replacements of letters.
pub(super) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_single_letters() {
        for (a, b, far) in [("", "", 0), ("", "abc", 3), ("size", "sise", 1), ("arena", "arean", 2)] {
            assert_eq!((distance(a, b), distance(b, a)), (far, far), "{a} {b}");
        }
    }

    #[test]
    fn a_slip_finds_its_word_and_nonsense_finds_none() {
        let known = ["arena.size", "arena.segment", "gc.ticketTtl"];
        assert_eq!(nearest("arena.sise", known.into_iter()), Some("arena.size"));
        assert_eq!(nearest("gc.ticketTTL", known.into_iter()), Some("gc.ticketTtl"));
        assert_eq!(nearest("kubernetes", known.into_iter()), None);
    }
}
