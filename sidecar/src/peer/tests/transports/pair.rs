//! Two peers that get tensors of each other in one way.

use super::get::Get;
use super::*;
use crate::peer::tests::meter::Wire;

/// Two peers with a connection between them, which `a` dialed through the proxy; what it says at their node goes through it, too.
pub(in crate::peer::tests) struct Pair {
    pub(super) table: Arc<Table>,
    pub(in crate::peer::tests) a: One,
    pub(in crate::peer::tests) b: One,
    pub(in crate::peer::tests) proxy: Proxy,
    pub(super) way: &'static Way,
    pub(super) node: tempfile::TempDir,
}

impl Pair {
    pub(in crate::peer::tests) fn new(way: &'static Way) -> Self {
        let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
        let b = start("b", way, &node).start(&table);
        let proxy = Proxy::new(b.peers.bound_address());
        table.list("b", proxy.address, b.fingerprint);
        let between = Some(proxy.node.between());
        let a = Start { listed: Some(nowhere()), between, ..start("a", way, &node) }.start(&table);
        let pair = Self { table, a, b, proxy, way, node };
        pair.meet();
        pair
    }

    /// Waits until they are connected, and have met where they are to. Who can dial does.
    pub(in crate::peer::tests) fn meet(&self) {
        until("a reached b through the proxy", || {
            let _ = self.a.peers.ensure(&name("b"), Instant::now() + PATIENCE);
            let met = self.way.lands() || (self.a.shares("b") && self.b.shares("a"));
            met && self.a.peers.is_connected(&name("b")) && self.b.peers.is_connected(&name("a"))
        });
    }

    /// A further peer, which takes the same way.
    pub(super) fn another(&self, name: &'static str) -> One {
        start(name, self.way, &self.node).start(&self.table)
    }

    /// Begins to get all of a tensor in this way.
    pub(super) fn begin(&self, reader: &One, from: &str, id: u64, bytes: u64) -> Get {
        self.begin_until(reader, from, id, bytes, Instant::now() + PATIENCE)
    }

    pub(super) fn begin_until(
        &self,
        reader: &One,
        from: &str,
        id: u64,
        bytes: u64,
        deadline: Instant,
    ) -> Get {
        match self.way.lands() {
            true => Get::landing(reader.pull_until(from, None, id, Selection::All, bytes, deadline)),
            false => Get::map(reader.map_until(from, id, bytes, deadline)),
        }
    }

    /// All bytes of a tensor, in this way; or in the next best one, as the verbs do where it is lost.
    pub(super) fn get(&self, reader: &One, from: &str, id: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        match self.begin(reader, from, id, bytes).outcome() {
            Ok(got) => Ok(got.bytes()),
            Err(failed) if failed.for_want_of_the_way => reader.get(from, id, bytes),
            Err(failed) => Err(failed.failure),
        }
    }

    /// Nothing is left of anything.
    pub(in crate::peer::tests) fn assert_over(&self) {
        let name = self.way.name;
        until(&format!("{name}: all leases have ended"), || {
            self.a.twin.leased() == 0 && self.b.twin.leased() == 0
        });
        self.a.assert_free();
        self.b.assert_free();
    }

    /// The reader, the owner and its name, in both directions.
    pub(in crate::peer::tests) fn both_ways(&self) -> [(&One, &One, &'static str); 2] {
        [(&self.a, &self.b, "b"), (&self.b, &self.a, "a")]
    }

    /// Returns one of the two directions.
    pub(super) fn one_way(&self, turned: bool) -> (&One, &One, &'static str) {
        self.both_ways()[usize::from(turned)]
    }

    /// Wires of what comes to the reader of a direction, and what it asks by.
    pub(super) fn wires(&self, turned: bool) -> [&Wire; 2] {
        let [back, out] = [&*self.proxy.back, &*self.proxy.out];
        if turned { [out, back] } else { [back, out] }
    }

    pub(super) fn go_on(&self) {
        self.wires(false).into_iter().for_each(Wire::go_on);
    }
}

fn start(name: &'static str, way: &Way, node: &tempfile::TempDir) -> Start<'static> {
    let node = (!way.lands()).then(|| node.path().to_owned());
    Start { lanes: way.lanes, node, version: way.maps.unwrap_or(PEER_VERSION), ..Start::new(name) }
}
