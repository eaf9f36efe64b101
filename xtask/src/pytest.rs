//! Reading of what pytest says about its tests, in the short form (`-q`).

use std::time::Duration;

use crate::counts::Counts;

/// Name of pytest among suites.
pub(crate) const NAME: &str = "pytest";

/// `3 failed, 100 passed, 4 skipped, 1 warning in 115.25s (0:01:55)`, with rules of `=` around it or not.
pub(crate) fn closing_line(line: &str) -> Option<(Counts, Duration)> {
    let (numbers, time) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    let seconds = time.split_whitespace().next()?.strip_suffix('s')?.parse().ok()?;
    let mut counts = Counts::default();
    let mut known = 0;
    for item in numbers.split(", ") {
        let (number, what) = item.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        match what {
            "passed" | "xfailed" => counts.passed += number,
            "failed" | "error" | "errors" | "xpassed" => counts.failed += number,
            "skipped" => counts.skipped += number,
            "warning" | "warnings" | "deselected" => continue,
            _ => return None,
        }
        known += 1;
    }
    let took = Duration::try_from_secs_f64(seconds).ok()?;
    (known > 0).then_some((counts, took))
}

/// The test in `FAILED python/tests/test_views.py::test_a_view_outlives - AssertionError: ...`, and in one of `ERROR`.
pub(crate) fn failed(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
    let name = rest.split_once(" - ").map_or(rest, |(name, _)| name);
    name.split_once(".py").is_some_and(|(_, test)| test.is_empty() || test.starts_with("::")).then_some(name)
}

/// Place and reason in `SKIPPED [2] python/tests/test_ray.py:21: could not import 'ray'`.
pub(crate) fn skipped(line: &str) -> Option<&str> {
    let (count, rest) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
    count.parse::<u64>().is_ok().then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts { passed, failed, skipped }
    }

    #[test]
    fn a_closing_line_is_read_with_and_without_rules_around_it() {
        let of = |line: &str| closing_line(line).map(|(counts, took)| (counts, took.as_millis()));
        assert_eq!(
            of("12 passed, 1 failed, 2 skipped in 3.20s"),
            Some((counts(12, 1, 2), 3_200)),
            "in any order"
        );
        assert_eq!(
            of("=== 1 failed, 2 errors, 9 warnings in 75.5s (0:01:15) ==="),
            Some((counts(0, 3, 0), 75_500))
        );
        assert_eq!(of("5 passed, 3 deselected, 1 xfailed, 1 xpassed in 0.01s"), Some((counts(6, 1, 0), 10)));
    }

    #[test]
    fn other_lines_are_none() {
        for line in [
            "",
            "no tests ran in 0.01s",
            "test result: ok. 3 passed; 0 failed; finished in 0.00s",
            "4 leases in 3s",
            "9 warnings in 3.00s",
            "1 passed in a while",
        ] {
            assert!(closing_line(line).is_none(), "{line}");
        }
    }

    #[test]
    fn tests_that_failed_or_were_left_out_are_named() {
        let name = "python/tests/test_views.py::test_a_view_outlives[numpy]";
        assert_eq!(failed(&format!("FAILED {name} - assert 1 == 2 - no")), Some(name));
        assert_eq!(failed(&format!("ERROR {name}")), Some(name));
        assert_eq!(failed("ERROR python/tests/test_ray.py"), Some("python/tests/test_ray.py"));
        assert_eq!(failed("ERROR of a sidecar: cannot write x.pyc"), None);
        assert_eq!(failed("FAILED to start"), None);
        assert_eq!(
            skipped("SKIPPED [2] tests/test_ray.py:21: needs ray"),
            Some("tests/test_ray.py:21: needs ray")
        );
        assert_eq!(skipped("SKIPPED part"), None);
    }
}
