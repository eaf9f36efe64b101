//! Bounds on the lists of rows of pulls that are open here. A pull keeps its list until nobody wants its bytes any more.
//!
//! ```text
//!   Pull with rows ──book──> part, in the source of its bytes ──pull is done, or its connection has ended──> back
//!                      '---> LIMIT_EXCEEDED, before anything is leased
//! ```
//! A pull that goes on may find its list of the connection before, and of the way before: it has twice the room.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, PeerName, Reason};

/// Most bytes of lists of one peer: two of the longest, or those of 256 pulls of 8,192 rows each.
const PEER_MAX: u64 = 16 << 20;
/// Most bytes of lists of all peers: so much memory beside the arena, and twice that for as long as pulls go on after lost connections.
const ALL_MAX: u64 = 32 << 20;
/// Part of its bound from which on a peer has much: an eighth. It leaves the last quarter of all to those who have little.
const MUCH: u64 = 8;
/// Bytes of a row in a list.
const ROW_BYTES: u64 = 8;

/// Lists of all pulls that are open here.
#[derive(Debug, Default)]
pub(super) struct RowLists(Mutex<Booked>);

#[derive(Debug, Default)]
struct Booked {
    /// Bytes of each peer that has some.
    peers: HashMap<PeerName, u64>,
    all: u64,
}

/// Part of the bounds that the list of one pull has until this is dropped.
#[derive(Debug)]
pub(super) struct RowListPart {
    lists: Arc<RowLists>,
    peer: PeerName,
    bytes: u64,
}

/// Bytes of the list of rows that a selection keeps, none where it has no such list.
pub(super) fn bytes_of(selection: Option<&v1::Selection>) -> Option<u64> {
    match selection?.kind.as_ref()? {
        v1::selection::Kind::Rows(rows) => Some(rows.indices.len() as u64 * ROW_BYTES),
        v1::selection::Kind::Ranges(_) => None,
    }
}

// === impl RowLists ===

impl RowLists {
    /// Takes room for a list. `resumed`: it is of a pull that was open before.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the bound and the bytes.
    pub(super) fn book(
        self: &Arc<Self>,
        peer: &PeerName,
        bytes: u64,
        resumed: bool,
    ) -> Result<RowListPart, Failure> {
        self.0.lock().book(peer, bytes, resumed)?;
        Ok(RowListPart { lists: Arc::clone(self), peer: peer.clone(), bytes })
    }

    /// Bytes of all lists, and the most that they may have.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.0.lock().all, ALL_MAX)
    }
}

// === impl RowListPart ===

impl Drop for RowListPart {
    fn drop(&mut self) {
        self.lists.0.lock().unbook(&self.peer, self.bytes);
    }
}

// === impl Booked ===

impl Booked {
    fn book(&mut self, peer: &PeerName, bytes: u64, resumed: bool) -> Result<(), Failure> {
        let times = if resumed { 2 } else { 1 };
        let (own, all) = (self.peers.get(peer).copied().unwrap_or(0) + bytes, self.all + bytes);
        let peer_max = PEER_MAX * times;
        if own > peer_max {
            return Err(full("the open pulls of this peer", bytes, peer_max));
        }
        let all_max = if own > peer_max / MUCH { ALL_MAX * times / 4 * 3 } else { ALL_MAX * times };
        if all > all_max {
            return Err(full("the open pulls of all peers", bytes, all_max));
        }
        self.peers.insert(peer.clone(), own);
        self.all = all;
        Ok(())
    }

    fn unbook(&mut self, peer: &PeerName, bytes: u64) {
        self.all -= bytes;
        if let Some(left) = self.peers.get_mut(peer) {
            *left -= bytes;
            if *left == 0 {
                self.peers.remove(peer);
            }
        }
    }
}

/// Refusal of one more list.
fn full(whose: &str, bytes: u64, most: u64) -> Failure {
    let message = format!(
        "a list of rows of {bytes} bytes finds no room: those of {whose} may take {most}; select fewer rows at once, or \
         wait for other pulls of rows to end"
    );
    Failure::new(Reason::LimitExceeded, message).with("bytes", bytes).with("limit", most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn peer(number: u32) -> PeerName {
        format!("p{number}").parse().unwrap()
    }

    /// Limit that a refusal names.
    fn limit(refused: Result<RowListPart, Failure>) -> Option<String> {
        let failure = refused.unwrap_err();
        assert_eq!(failure.reason, Reason::LimitExceeded);
        failure.detail("limit").map(str::to_owned)
    }

    #[test]
    fn lists_of_one_peer_have_a_bound_and_their_room_is_back_when_they_are_dropped() {
        let lists = Arc::new(RowLists::default());
        let first = lists.book(&peer(1), 8 * MIB, false).unwrap();
        let second = lists.book(&peer(1), 8 * MIB, false).unwrap();
        assert_eq!(limit(lists.book(&peer(1), 8, false)), Some(PEER_MAX.to_string()));
        assert_eq!(lists.bytes(), (16 * MIB, ALL_MAX), "what was refused is not booked");
        drop(first);
        let third = lists.book(&peer(1), 8 * MIB, false).unwrap();
        drop((second, third));
        assert_eq!(lists.bytes().0, 0);
        assert!(lists.0.lock().peers.is_empty(), "a peer without lists costs nothing");
    }

    #[test]
    fn peers_with_long_lists_leave_room_for_those_of_others() {
        let lists = Arc::new(RowLists::default());
        let long: Vec<_> = (0..3).map(|number| lists.book(&peer(number), 8 * MIB, false).unwrap()).collect();
        let much = ALL_MAX / 4 * 3;
        assert_eq!(limit(lists.book(&peer(3), 8 * MIB, false)), Some(much.to_string()));
        let little = PEER_MAX / MUCH;
        let short: Vec<_> =
            (10..14).map(|number| lists.book(&peer(number), little, false).unwrap()).collect();
        assert_eq!(limit(lists.book(&peer(20), 8, false)), Some(ALL_MAX.to_string()));
        drop((long, short));
        assert_eq!(lists.bytes().0, 0);
    }

    #[test]
    fn pulls_that_go_on_find_room_beside_their_own_lists_of_the_connection_before() {
        let lists = Arc::new(RowLists::default());
        let book = |resumed| lists.book(&peer(1), 8 * MIB, resumed);
        let before: Vec<_> = (0..2).map(|_| book(false).unwrap()).collect();
        let now: Vec<_> = (0..2).map(|_| book(true).unwrap()).collect();
        assert_eq!(limit(book(true)), Some((2 * PEER_MAX).to_string()));
        assert_eq!(limit(book(false)), Some(PEER_MAX.to_string()), "one that is new has the room of the new");
        drop(before);
        assert!(book(false).is_err());
        drop(now);
        assert!(book(false).is_ok());
    }

    #[test]
    fn a_list_of_rows_is_counted_and_ranges_are_not() {
        let of = |kind| v1::Selection { kind: Some(kind) };
        let rows = of(v1::selection::Kind::Rows(v1::Rows { indices: vec![7; 100] }));
        let ranges = of(v1::selection::Kind::Ranges(v1::Ranges::default()));
        assert_eq!(bytes_of(Some(&rows)), Some(800));
        assert_eq!((bytes_of(Some(&ranges)), bytes_of(None)), (None, None));
    }
}
