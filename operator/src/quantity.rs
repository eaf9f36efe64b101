//! Quantities of Kubernetes: `2Gi`, `250m`, `1e9`. They are compared and added here as whole thousandths, rounded up.

use std::fmt;
use std::ops::{Add, Sub};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use thiserror::Error;

/// A quantity in thousandths of its unit (bytes, processors).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

/// A text that is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a quantity such as 500m, 2 or 2Gi")]
pub struct NotAQuantity(pub String);

/// Suffixes of the number, and what each stands for, in thousandths.
const SUFFIXES: [(&str, i128); 15] = [
    ("Ki", 1000 << 10),
    ("Mi", 1000 << 20),
    ("Gi", 1000 << 30),
    ("Ti", 1000 << 40),
    ("Pi", 1000 << 50),
    ("Ei", 1000 << 60),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
    ("n", 0),
    ("u", 0),
];

/// More digits than any quantity has.
const DIGITS_MAX: usize = 18;

impl Amount {
    /// Nothing.
    pub const ZERO: Amount = Amount(0);

    /// Whole units, such as bytes.
    pub const fn whole(units: u64) -> Amount {
        Amount(units as i128 * 1000)
    }

    /// Thousandths, such as of a processor.
    pub const fn milli(thousandths: u64) -> Amount {
        Amount(thousandths as i128)
    }

    /// Reads what Kubernetes writes.
    ///
    /// # Errors
    /// It is no quantity, is negative, or is larger than anything that is counted.
    pub fn parse(text: &str) -> Result<Amount, NotAQuantity> {
        parse(text).ok_or_else(|| NotAQuantity(text.chars().take(80).collect()))
    }

    /// Whole units, rounded up; none where it is more than a machine counts.
    pub fn units(self) -> Option<u64> {
        u64::try_from((self.0 + 999).div_euclid(1000)).ok()
    }

    /// Returns whether it is a whole number of units.
    pub const fn is_whole(self) -> bool {
        self.0 % 1000 == 0
    }

    /// Product with a ratio, in thousandths of a time.
    #[must_use]
    pub fn times(self, ratio: Amount) -> Amount {
        Amount(self.0.saturating_mul(ratio.0) / 1000)
    }

    /// As a quantity of memory: the largest binary unit that divides it.
    pub fn memory(self) -> Quantity {
        Quantity(memory_text(self))
    }

    /// As a quantity of processors.
    pub fn cpu(self) -> Quantity {
        Quantity(self.to_string())
    }
}

fn parse(text: &str) -> Option<Amount> {
    let number_end =
        text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() + fraction.len() > DIGITS_MAX {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let (numerator, denominator) = factor(suffix)?;
    let (numerator, denominator) = (digits.checked_mul(numerator)?, scale.checked_mul(denominator)?);
    Some(Amount(numerator.checked_add(denominator - 1)? / denominator))
}

/// Factor that a suffix stands for in thousandths, as a fraction.
fn factor(suffix: &str) -> Option<(i128, i128)> {
    match suffix {
        "" => return Some((1000, 1)),
        "u" => return Some((1, 1000)),
        "n" => return Some((1, 1_000_000)),
        _ => {}
    }
    if let Some((_, thousandths)) = SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        return Some((*thousandths, 1));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs().min(36))?;
    if exponent < 0 { Some((1000, power)) } else { Some((power.checked_mul(1000)?, 1)) }
}

fn memory_text(amount: Amount) -> String {
    let units = [("Ti", 1000_i128 << 40), ("Gi", 1000 << 30), ("Mi", 1000 << 20), ("Ki", 1000 << 10)];
    let fits = units.into_iter().find(|(_, size)| amount.0 != 0 && amount.0 % size == 0);
    fits.map_or_else(|| amount.to_string(), |(unit, size)| format!("{}{unit}", amount.0 / size))
}

impl Add for Amount {
    type Output = Amount;

    fn add(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }
}

impl Sub for Amount {
    type Output = Amount;

    fn sub(self, other: Amount) -> Amount {
        Amount(self.0.saturating_sub(other.0))
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Amount {
        amounts.fold(Amount::ZERO, Add::add)
    }
}

/// `2`, `250m`
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole() { write!(f, "{}", self.0 / 1000) } else { write!(f, "{}m", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, thousandths) in [
            ("0", 0),
            ("2", 2000),
            ("250m", 250),
            ("0.5", 500),
            (".5", 500),
            ("1.", 1000),
            ("1Ki", 1_024_000),
            ("1.5Gi", 1_610_612_736_000),
            ("1k", 1_000_000),
            ("1e3", 1_000_000),
            ("1E", 1_000_000_000_000_000_000_000),
            ("1E2", 100_000),
            ("100u", 1),
            ("1n", 1),
            ("12e-3", 12),
        ] {
            assert_eq!(Amount::parse(text), Ok(Amount(thousandths)), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "Gi", "-1", "1 Gi", "2GB", "1.2.3", "1ee3", "9999999999999999999", "1e99", "0x10"] {
            assert!(Amount::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_are_written_in_the_largest_unit_that_fits() {
        for (text, memory, cpu) in [
            ("2048Mi", "2Gi", "2147483648"),
            ("2304Mi", "2304Mi", "2415919104"),
            ("2048Gi", "2Ti", "2199023255552"),
            ("1500m", "1500m", "1500m"),
        ] {
            let amount = Amount::parse(text).unwrap();
            assert_eq!((amount.memory().0.as_str(), amount.cpu().0.as_str()), (memory, cpu));
        }
    }
}
