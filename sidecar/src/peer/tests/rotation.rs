//! A peer changes its key while tensors travel.

use std::sync::atomic::{AtomicBool, Ordering};

use super::keys;
use super::world::*;

/// Ends the pulls, also where the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Both listed, then the new one used, then connections made with the old one ended, then the new one alone listed.
#[test]
fn a_key_is_changed_under_pulls_both_ways_without_one_that_fails() {
    let (table, a, b) = two();
    let bytes = 2 << 20;
    for (id, one) in [(1, &a), (1, &b)] {
        one.twin.add(id, sealed(&one.arena, bytes, 5), 1);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pulling = [(&a, "b"), (&b, "a")].map(|(here, there)| {
            let done = &done;
            scope.spawn(move || {
                let mut pulled = 0;
                while !done.load(Ordering::SeqCst) {
                    assert_eq!(here.get(there, 1, bytes).unwrap().len() as u64, bytes);
                    pulled += 1;
                }
                pulled
            })
        });
        let stop = Stop(&done);
        for (one, name) in [(&a, "a"), (&b, "b"), (&a, "a")] {
            let next = keys::identity();
            let last = known_key(&table, name);
            table.rekey(name, next.fingerprint, false);
            one.peers.use_keys(&keys::keys(&next));
            assert_eq!(one.peers.made_with(&next.fingerprint), 0, "connections that are up stay");
            one.peers.end_made_with(&last);
            until("a connection is made with the new key", || one.peers.made_with(&next.fingerprint) == 1);
            table.rekey(name, next.fingerprint, true);
            until("none is made with the old one", || one.peers.made_with(&last) == 0);
        }
        drop(stop);
        for pulling in pulling {
            assert!(pulling.join().unwrap() > 0);
        }
    });
    assert!(a.peers.is_connected(&name("b")) && b.peers.is_connected(&name("a")));
}

fn known_key(table: &Table, peer: &str) -> tensorlane_proto::Fingerprint {
    crate::peer::Known::peer(table, &name(peer)).unwrap().fingerprints[0]
}
