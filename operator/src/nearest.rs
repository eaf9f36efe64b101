//! "Did you mean": the nearest of a few known words.

/// The known word that is at most a third of its letters away.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.map(|other| (distance(word, other), other));
    scored.filter(|(far, other)| far * 3 <= other.len()).min().map(|(_, other)| other)
}

/// Letters to add, take away or change (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_a_strange_word_finds_none() {
        let known = || ["arena-size", "exchange", "inject"].into_iter();
        assert_eq!(nearest("arena-sise", known()), Some("arena-size"));
        assert_eq!(nearest("arenasize", known()), Some("arena-size"));
        assert_eq!(nearest("injct", known()), Some("inject"));
        assert_eq!(nearest("colour", known()), None);
    }
}
