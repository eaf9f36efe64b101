//! Keys that the table of peers does not list, and that came lately: most likely a line is missing in it. Keeps the last one and a
//! number, whoever knocks.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::Fingerprint;

use crate::clock;

/// Time for which a refusal is told of.
const TOLD_FOR: Duration = Duration::from_secs(600);

/// Refusals of keys that nobody lists.
#[derive(Debug, Default)]
pub(super) struct RefusedKeys(Mutex<Option<LastKey>>);

/// The last such key, and how often there was one since the last pause of [`TOLD_FOR`].
#[derive(Debug)]
struct LastKey {
    at: Instant,
    from: IpAddr,
    key: Fingerprint,
    times: u64,
}

// === impl RefusedKeys ===

impl RefusedKeys {
    /// Notes one more.
    pub(super) fn note(&self, from: IpAddr, key: Fingerprint, now: Instant) {
        let mut last = self.0.lock();
        let before = last.take().filter(|last| is_told(last, now)).map_or(0, |last| last.times);
        *last = Some(LastKey { at: now, from, key, times: before + 1 });
    }

    /// Words for those of late, if there were any. `is_listed`: the last one was listed meanwhile.
    pub(super) fn told(&self, now: Instant, is_listed: impl FnOnce(&Fingerprint) -> bool) -> Option<String> {
        let last = self.0.lock();
        let LastKey { at, from, key, times } =
            last.as_ref().filter(|last| is_told(last, now) && !is_listed(&last.key))?;
        let seconds = now.saturating_duration_since(*at).as_secs().max(1);
        let ago = clock::told(Duration::from_secs(seconds));
        let count = if *times == 1 { "once".to_owned() } else { format!("{times} times") };
        Some(format!(
            "a key that no listed peer has was refused here {count}, the last {ago} ago from {from}: if that is a peer, list \
             {key} as its key"
        ))
    }
}

fn is_told(last: &LastKey, now: Instant) -> bool {
    now.saturating_duration_since(last.at) < TOLD_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_nobody_lists_is_told_of_with_its_place_and_number_for_a_while() {
        let (keys, start) = (RefusedKeys::default(), Instant::now());
        let told = |now| keys.told(now, |_| false);
        assert_eq!(told(start), None);
        let from = "192.0.2.7".parse().unwrap();
        keys.note(from, Fingerprint([1; 32]), start);
        let once = told(start + Duration::from_millis(3_400)).unwrap();
        for part in ["refused here once, the last 3s ago from 192.0.2.7", "sha256:0101"] {
            assert!(once.contains(part), "{part} is not in {once}");
        }
        keys.note(from, Fingerprint([2; 32]), start + Duration::from_secs(5));
        let twice = told(start + Duration::from_secs(5)).unwrap();
        assert!(twice.contains("2 times, the last 1s ago") && twice.contains("sha256:0202"), "{twice}");
        // It was listed meanwhile, or is long ago.
        assert_eq!(keys.told(start + Duration::from_secs(5), |key| *key == Fingerprint([2; 32])), None);
        assert_eq!(told(start + Duration::from_secs(5) + TOLD_FOR), None);
        keys.note(from, Fingerprint([1; 32]), start + TOLD_FOR * 2);
        assert!(told(start + TOLD_FOR * 2).unwrap().contains("once"));
    }
}
