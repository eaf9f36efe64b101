//! Rotation of authorities. Pure: the times at which they were made go in, what to do comes out.
//!
//! ```text
//!   made           signs                 next one made    next one signs          dropped
//!    |--in bundle---|------------------------|------------------|---one leaf's life---|
//!    0              1 h (the first: at once)  8 months           + 1 h
//! ```

use super::authority::LEAF_LIFE_SECONDS;

/// The life of an authority: a year.
pub const AUTHORITY_LIFE_SECONDS: u64 = 365 * 24 * 3600;

/// A new one is made when two thirds of its life are over.
const RENEW_AFTER_SECONDS: u64 = AUTHORITY_LIFE_SECONDS / 3 * 2;

/// Time that an authority is in the bundle before it signs. Every API server sees a bundle in seconds; an hour leaves
/// time to notice that one does not.
pub const SIGN_AFTER_SECONDS: u64 = 3600;

/// Time that an authority stays after the next one has begun to sign: the life of what it signed, and an hour.
const KEEP_AFTER_SECONDS: u64 = LEAF_LIFE_SECONDS + 3600;

/// Step that is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// A new authority is to be made.
    pub make: bool,
    /// Authorities to drop, by the time at which they were made.
    pub drop: Vec<u64>,
    /// Authority that signs; none if there is none at all.
    pub signer: Option<u64>,
}

/// Decides what is to be done with authorities that were made at these times.
pub fn step(now: u64, made: &[u64]) -> Step {
    let mut made = made.to_vec();
    made.sort_unstable();
    let age = |made: u64| now.saturating_sub(made);
    let alive = |made: &u64| age(*made) < AUTHORITY_LIFE_SECONDS;
    let ripe = |made: &&u64| age(**made) >= SIGN_AFTER_SECONDS;
    let living: Vec<u64> = made.iter().copied().filter(alive).collect();
    let signer = living.iter().rev().find(ripe).or(living.first()).copied();
    let make = living.last().is_none_or(|newest| age(*newest) >= RENEW_AFTER_SECONDS);
    // The signer has signed since it was ripe; what came before it is of no use a leaf's life later.
    let settled = signer.is_some_and(|signer| age(signer) >= SIGN_AFTER_SECONDS + KEEP_AFTER_SECONDS);
    let past = |made: &u64| !alive(made) || (settled && signer.is_some_and(|signer| *made < signer));
    Step { make, drop: made.into_iter().filter(past).collect(), signer }
}

/// Returns whether a leaf of this age, of that authority, is to be made again.
pub fn leaf_is_old(now: u64, made: u64, authority: u64, signer: u64) -> bool {
    authority != signer || now.saturating_sub(made) >= LEAF_LIFE_SECONDS / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    #[test]
    fn the_first_authority_signs_at_once() {
        assert_eq!(step(1000, &[]), Step { make: true, drop: vec![], signer: None });
        assert_eq!(step(1000, &[1000]), Step { make: false, drop: vec![], signer: Some(1000) });
    }

    /// Ten years, hour by hour: who serves with what, and who trusts whom.
    #[test]
    fn in_ten_years_no_leaf_is_unknown_to_a_bundle_that_is_an_hour_old() {
        let mut authorities: Vec<u64> = Vec::new();
        let mut seen_an_hour_ago: Vec<u64> = Vec::new();
        // A replica renews its leaf as late as it may.
        let mut leaf: Option<(u64, u64)> = None;
        let mut rotations = 0;
        for now in (0..3650 * DAY).step_by(3600) {
            let step = step(now, &authorities);
            authorities.retain(|made| !step.drop.contains(made));
            if step.make {
                authorities.push(now);
                rotations += 1;
            }
            assert!((1..=2).contains(&authorities.len()), "day {}: {authorities:?}", now / DAY);
            if let Some(signer) = step.signer {
                let (made, authority) = leaf.unwrap_or((now, signer));
                let old = now - made >= LEAF_LIFE_SECONDS - 3600;
                leaf = Some(if old { (now, signer) } else { (made, authority) });
                let authority = leaf.map_or(signer, |(_, authority)| authority);
                assert!(seen_an_hour_ago.contains(&authority), "day {}", now / DAY);
                assert!(authorities.contains(&authority), "day {}", now / DAY);
            }
            seen_an_hour_ago.clone_from(&authorities);
        }
        assert!(rotations > 10, "{rotations}");
    }

    #[test]
    fn an_authority_that_has_expired_while_nobody_looked_is_replaced() {
        let now = 400 * DAY;
        assert_eq!(step(now, &[0]), Step { make: true, drop: vec![0], signer: None });
    }

    #[test]
    fn a_leaf_is_made_again_at_half_its_life_and_with_a_new_signer() {
        assert!(!leaf_is_old(DAY, 0, 5, 5));
        assert!(leaf_is_old(4 * DAY, 0, 5, 5));
        assert!(leaf_is_old(DAY, 0, 5, 6));
    }
}
