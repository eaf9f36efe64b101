//! Numbers for people: three digits and a unit.

use std::time::Duration;

/// `90.9 MB`: decimal units, as rates have them.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        _ => scaled(bytes as f64, &["B", "kB", "MB", "GB", "TB"]),
    }
}

/// `12.4 GB/s`.
pub fn rate(bytes_per_second: f64) -> String {
    scaled(bytes_per_second, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// `41.2 ms`.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s >= 1.0 => format!("{} s", digits(s)),
        s if s >= 1e-3 => format!("{} ms", digits(s * 1e3)),
        s => format!("{} µs", digits(s * 1e6)),
    }
}

/// Three digits that count: `1.23`, `12.3`, `123`.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn scaled(value: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut at = 0;
    while value >= 999.5 && at + 1 < units.len() {
        value /= 1000.0;
        at += 1;
    }
    format!("{} {}", digits(value), units[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits_and_change_their_unit_in_time() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(90_868_376), "90.9 MB");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(rate(12_345_678_901.0), "12.3 GB/s");
        assert_eq!(time(Duration::from_micros(41)), "41.0 µs");
        assert_eq!(time(Duration::from_millis(1500)), "1.50 s");
    }

    #[test]
    fn large_counts_are_grouped() {
        assert_eq!([grouped(7), grouped(1000), grouped(1_234_567)], ["7", "1,000", "1,234,567"]);
    }
}
