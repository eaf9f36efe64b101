//! Certificates whose time is over, or has not begun: dates decide nothing and keys everything, over TCP and over QUIC.

use std::sync::Arc;

use tensorlane_proto::Transport;

use super::hostile::Raw;
use super::keys;
use super::quic::{Stranger, hello};
use super::transports::NONE;
use super::world::*;
use crate::identity::Identity;
use crate::peer::LanesConfig;
use crate::peer::transport::lanes::key::{LaneKey, Role};

const MIB: u64 = 1 << 20;
const QUIC: LanesConfig = LanesConfig { quic: 2, patience: PATIENCE, ..NONE };
/// First and last year.
const TIMES: [(i32, i32); 2] = [(1990, 1991), (2190, 2191)];

#[test]
fn a_key_of_the_table_is_taken_whatever_the_dates_of_its_certificate_are() {
    for years in TIMES {
        let table = Arc::default();
        // Both are listed before either dials.
        let start = |name, identity| {
            Start { identity, lanes: QUIC, listed: Some(nowhere()), ..Start::new(name) }.start(&table)
        };
        let a = start("a", Identity::valid_in(years));
        let b = start("b", keys::identity());
        for (name, one) in [("a", &a), ("b", &b)] {
            table.list(name, one.peers.bound_address(), one.fingerprint);
        }
        connect(&a, &b);
        for (reader, owner, from) in [(&a, &b, "b"), (&b, &a, "a")] {
            owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
            let (told, _, block) = reader.pull_by(from, 7, 9 * MIB, Transport::Quic);
            let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
            assert_eq!(pulled.transport, Transport::Quic, "{years:?}");
            drop(pulled.landing);
            block.mark_sealed().unwrap();
            assert!(block.chunk(0..9 * MIB).unwrap() == owner.own_bytes(7));
        }
        assert_eq!(
            (a.peers.counters().auth_refused.all(), b.peers.counters().auth_refused.all()),
            (vec![], vec![])
        );
    }
}

#[test]
fn a_key_that_nobody_lists_is_refused_whatever_the_dates_of_its_certificate_are() {
    let table = Arc::default();
    let a = Start { lanes: QUIC, ..Start::new("a") }.start(&table);
    let refused = || a.peers.counters().auth_refused.count("unknown_key");
    for (round, years) in (0..).zip(TIMES) {
        let nobody = Identity::valid_in(years);
        assert!(Raw::dial(&a, &nobody, "evil").is_closed());
        until("it was counted over TCP", || refused() == 2 * round + 1);
        assert!(Stranger::new(&nobody).is_refused(&a, &hello(&LaneKey::random(), Role::Quic)));
        until("it was counted over QUIC", || refused() == 2 * round + 2);
    }
    until("nobody is a stranger", || a.peers.strangers() == 0);
}
