//! Status and Peers: how this sidecar stands.

use tensorlane_memory::{Owner, Purpose};
use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::{NoRoute, Route};

use super::Exchange;
use super::route::{refusals, shown_candidates};
use crate::peer::PeerView;
use crate::store::{Holding, Program, Tables};

/// Holders that a status shows.
const HOLDERS_SHOWN: usize = 16;

// === impl Exchange ===

impl Exchange {
    /// The state of this sidecar.
    pub fn status(&self) -> v1::StatusResponse {
        let me = self.me();
        let arena = self.store.arena();
        // No session has this number: one that has nothing yet.
        let in_place = arena.room(Owner::Session(u64::MAX), Purpose::Put);
        let copied = arena.room(Owner::Sidecar, Purpose::Put);
        let usage = in_place.usage;
        let (totals, sessions) = self.store.totals();
        let tables = self.store.tables();
        v1::StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            exchange: me.exchange.to_string(),
            peer: me.peer.to_string(),
            incarnation: me.incarnation.to_string(),
            fingerprint: self.fingerprint.lock().to_string(),
            uptime_seconds: self.store.uptime().as_secs_f64(),
            arena: Some(v1::ArenaStatus {
                total: usage.total,
                free: usage.free,
                reserved: usage.reserved,
                sealed: usage.sealed,
                held: usage.held,
                retired: usage.retired,
                inherited: usage.inherited,
                populated: usage.populated,
                largest_put: in_place.in_reach,
                largest_copied_put: copied.in_reach,
            }),
            tensors: totals.tensors as u64,
            copies: totals.copies as u64,
            leases: totals.leases,
            names: totals.names as u64,
            tickets: totals.tickets as u64,
            sessions: sessions as u64,
            waiting: self.waiting_for_room() as u64,
            tables: Some(tables_status(tables)),
            budgets: self.budgets(tables),
            holders: self.store.holdings(HOLDERS_SHOWN).iter().map(holder).collect(),
        }
    }

    /// Has status tell of budgets that others keep, too. Once.
    pub fn tell_budgets(&self, others: impl Fn() -> Vec<v1::BudgetStatus> + Send + Sync + 'static) {
        // A second time would be a mistake of the wiring; the first one stays.
        let _ = self.budgets.set(Box::new(others));
    }

    fn budgets(&self, tables: Tables) -> Vec<v1::BudgetStatus> {
        let Tables { metadata, metadata_max, ledger, ledger_max } = tables;
        let lists = self.peers.get().map(|peers| peers.row_list_bytes());
        let mut told =
            vec![budget("ledger", (ledger, ledger_max)), budget("metadata", (metadata, metadata_max))];
        told.push(budget("waits", (self.waits.bytes(), self.waits.most())));
        told.extend(lists.map(|lists| budget("row_lists", lists)));
        told.extend(self.budgets.get().into_iter().flat_map(|others| others()));
        told
    }

    /// Lists this sidecar, then the others.
    pub fn peers(&self) -> v1::PeersResponse {
        let me = self.me();
        let (addresses, node) = self.peers.get().map(|p| p.listed()).unwrap_or_default();
        let myself = v1::PeerStatus {
            name: me.peer.to_string(),
            state: "self".to_owned(),
            incarnation: me.incarnation.to_string(),
            addresses,
            node: node.unwrap_or_default(),
            route: Some(v1::Moved { transport: v1::Transport::Local.into(), ..v1::Moved::default() }),
            gpus: self.own_gpus(),
            last_error: self.peers.get().map(|p| p.own_error()).unwrap_or_default(),
            ..v1::PeerStatus::default()
        };
        let others = self.peers.get().map(|p| p.status()).unwrap_or_default();
        let mut peers = vec![myself];
        peers.extend(others.into_iter().filter(|p| p.name != me.peer).map(|p| self.peer_status(p)));
        v1::PeersResponse { peers }
    }

    fn peer_status(&self, peer: PeerView) -> v1::PeerStatus {
        let (route, candidates) = self.plain_routes(&peer.name, peer.incarnation);
        v1::PeerStatus {
            name: peer.name.to_string(),
            state: peer.state.as_str().to_owned(),
            incarnation: peer.incarnation.map(|i| i.to_string()).unwrap_or_default(),
            addresses: peer.addresses,
            bytes_in: peer.bytes_in,
            bytes_out: peer.bytes_out,
            last_error: peer.last_error,
            route: Some(shown(&route)),
            node: peer.node.unwrap_or_default(),
            candidates: shown_candidates(&candidates, peer.plain_lanes),
            gpus: self.gpu_routes(&peer.name, peer.incarnation),
        }
    }

    /// Checks that anything can be asked of peers at all.
    pub fn has_peers(&self) -> Result<(), Failure> {
        self.peers_or_fail().map(|_| ())
    }
}

/// Budget by its name, with the bytes that are taken and the most of these.
pub fn budget(name: &str, (used, limit): (u64, u64)) -> v1::BudgetStatus {
    v1::BudgetStatus { name: name.to_owned(), used, limit }
}

fn tables_status(tables: Tables) -> v1::TablesStatus {
    let Tables { metadata, metadata_max, ledger, ledger_max } = tables;
    v1::TablesStatus { metadata, metadata_max, ledger, ledger_max }
}

fn holder(holding: &Holding) -> v1::HolderStatus {
    let (kind, number) = holding.by.kind();
    let Program { name, process, address } = &*holding.program;
    v1::HolderStatus {
        kind: kind.to_owned(),
        number,
        client: name.to_string(),
        process: *process,
        address: address.map(|address| address.to_string()).unwrap_or_default(),
        seconds: holding.age.map_or(0.0, |age| age.as_secs_f64()),
        still_seconds: holding.still.map_or(0.0, |still| still.as_secs_f64()),
        bytes: holding.bytes,
        leases: holding.leases,
        reservations: holding.reservations,
        streams: holding.streams,
    }
}

fn shown(route: &Result<Route, NoRoute>) -> v1::Moved {
    match route {
        Ok(route) => v1::Moved {
            transport: v1::Transport::from(route.transport).into(),
            refusals: refusals(route.refusals.iter().copied()),
            ..v1::Moved::default()
        },
        Err(none) => v1::Moved { refusals: refusals(none.refusals.iter().copied()), ..v1::Moved::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::super::alone::alone;
    use super::*;

    #[test]
    fn status_has_every_budget_by_its_name_with_what_is_taken_and_its_limit() {
        let (exchange, _workers, _) = alone();
        exchange.tell_budgets(|| vec![budget("unread", (5, 10))]);
        let told = exchange.status().budgets;
        let names: Vec<_> = told.iter().map(|budget| budget.name.as_str()).collect();
        assert_eq!(names, ["ledger", "metadata", "waits", "unread"]);
        assert_eq!((told[1].used, told[1].limit), (0, 1 << 20));
        assert_eq!((told[2].used, told[2].limit), (0, 96 << 20));
        assert_eq!((told[3].used, told[3].limit), (5, 10));
    }
}
