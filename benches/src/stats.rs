//! Statistics of small samples.

/// The value below which the share `p` (0 to 1) of the samples lies, interpolated. None without samples.
pub fn quantile(samples: &[f64], p: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = p.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

/// The median. None without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// The median, and where the middle 80 % lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// A tenth of the samples lies below.
    pub low: f64,
    /// A tenth of the samples lies above.
    pub high: f64,
}

impl Spread {
    /// Of these samples. None without any.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let at = |p| quantile(samples, p);
        Some(Self { median: at(0.5)?, low: at(0.1)?, high: at(0.9)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_spread_leaves_a_tenth_on_either_side() {
        let samples: Vec<f64> = (0..=10).map(f64::from).collect();
        assert_eq!(Spread::of(&samples), Some(Spread { median: 5.0, low: 1.0, high: 9.0 }));
    }
}
