//! A thread of a connection that panics ends the connection and nothing else; the clock ends more.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tensorlane_memory::ring::{Deadline, Layout, Read, RingReader, RingWriter};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Incarnation};

use super::keys;
use super::transports::NONE;
use super::world::*;
use crate::admin::{Health, Probe};
use crate::backoff::Backoff;
use crate::cancel::Cancel;
use crate::exchange::alone::alone_as;
use crate::exchange::{Exchange, HostedReader};
use crate::metrics::label::PanicScope;
use crate::peer::transport::lanes::Lanes;
use crate::peer::{Counters, Known, LanesConfig, Me, Peers, PeersConfig, Resolver, Serve};
use crate::threads::Threads;

const BYTES: u64 = 4096;
/// More than one piece of a lane has.
const MANY_BYTES: u64 = 3 << 20;

/// Ways between two peers.
#[derive(Clone, Copy)]
enum By {
    Stream,
    Lane,
    Quic,
    /// A connection of QUIC before anybody needs it.
    QuicAhead,
    Node,
    /// The other one is found by a name.
    Name,
}

/// Thread of a connection, the points at which it panics one after the other, and what has it run.
struct Row {
    thread: &'static str,
    points: &'static [&'static str],
    /// Thread of `a`, which dials, or of `b`.
    is_of_a: bool,
    /// `a` gets a tensor of `b`, or the other way round.
    a_reads: bool,
    by: By,
}

const fn row(
    thread: &'static str,
    points: &'static [&'static str],
    (is_of_a, a_reads): (bool, bool),
    by: By,
) -> Row {
    Row { thread, points, is_of_a, a_reads, by }
}

const ROWS: [Row; 24] = [
    row("tl-peer-in", &["tl-peer-in"], (false, true), By::Stream),
    row("tl-peer-in", &["read", "ways end"], (false, true), By::Stream),
    row("tl-peer-in", &["chunk"], (false, false), By::Stream),
    row("tl-peer-in", &["lane answer"], (false, false), By::Lane),
    row("tl-peer-in", &["lane serves"], (false, true), By::Lane),
    row("tl-peer-in", &["adopted"], (false, true), By::Stream),
    row("tl-peer-out", &["write", "streams end"], (true, true), By::Stream),
    row("tl-peer-dial", &["attempt"], (true, true), By::Stream),
    row("tl-peer-dial", &["adopted"], (true, true), By::Stream),
    row("tl-peer-dial", &["chunk"], (true, true), By::Stream),
    row("tl-peer-dial", &["look up"], (true, true), By::Name),
    row("tl-resolve", &["tl-resolve"], (true, true), By::Name),
    row("tl-lane-in", &["lane"], (true, true), By::Lane),
    row("tl-lane-in", &["lane reads"], (true, true), By::Lane),
    row("tl-lane-in", &["lane answer"], (true, true), By::Lane),
    row("tl-lane-out", &["lane"], (true, false), By::Lane),
    row("tl-lane-out", &["lane serves"], (true, false), By::Lane),
    row("tl-quic-in", &["tl-quic-in"], (false, true), By::Quic),
    row("tl-quic-lane", &["tl-quic-lane"], (false, true), By::Quic),
    row("tl-quic-dial", &["warm"], (true, true), By::QuicAhead),
    row("tl-node", &["node call"], (true, true), By::Node),
    row("tl-node", &["greet"], (false, true), By::Node),
    row("tl-node", &["talk"], (true, true), By::Node),
    row("tl-node", &["talk"], (false, true), By::Node),
];

/// Threads of channels between peers, the point of each, and whether it is of the owner.
const OF_CHANNELS: [(&str, &str, bool); 2] =
    [("tl-channel-out", "pump", true), ("tl-channel-in", "tend", false)];

/// Names of the threads that panic in these tests.
pub(crate) fn tried() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.thread).chain(OF_CHANNELS.iter().map(|(thread, ..)| *thread))
}

impl Row {
    fn scope(&self) -> PanicScope {
        if self.thread == "tl-resolve" { PanicScope::Call } else { PanicScope::Connection }
    }

    fn lanes(&self) -> LanesConfig {
        match self.by {
            By::Lane => LanesConfig { count: 1, ..NONE },
            By::Quic | By::QuicAhead => LanesConfig { quic: 1, ..NONE },
            By::Stream | By::Node | By::Name => NONE,
        }
    }

    /// Returns whether the tensor of the other one comes, whole.
    fn gets(&self, a: &One, b: &One) -> bool {
        let (reader, owner, from) = if self.a_reads { (a, b, "b") } else { (b, a, "a") };
        if let By::QuicAhead = self.by {
            let peer = a.peers.shared.known_peer(&name("b"));
            // Before a get makes the connection itself.
            let Some(link) = peer.and_then(|peer| peer.state.lock().link.clone()) else { return false };
            let _ = link.ways.quic().map(Lanes::is_ready);
        }
        let got = match self.by {
            By::Node => {
                let mapped = reader.mapped(from, 1, MANY_BYTES).ok();
                mapped.map(|block| block.chunk(0..MANY_BYTES).unwrap().to_vec())
            }
            _ => reader.get(from, 1, MANY_BYTES).ok(),
        };
        got.is_some_and(|got| got == owner.own_bytes(1))
    }

    fn run(&self) {
        let what = format!("{} at {:?}", self.thread, self.points);
        let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
        let healths = [Health::new(), Health::new()];
        let threads = healths.clone().map(Threads::new);
        let panicking = &threads[usize::from(!self.is_of_a)];
        self.points.iter().for_each(|point| panicking.fail_at(point));
        let start = |name: &'static str, of: usize| Start {
            threads: threads[of].clone(),
            lanes: self.lanes(),
            node: matches!(self.by, By::Node).then(|| node.path().to_owned()),
            ..Start::new(name)
        };
        let b = start("b", 1).start(&table);
        let address = b.peers.bound_address();
        let resolver = matches!(self.by, By::Name).then(|| {
            table.list_at("b", "b.test:9421", b.fingerprint);
            Resolver::with(threads[0].clone(), move |_| Ok(vec![address]))
        });
        let a = Start { listed: Some(nowhere()), resolver, ..start("a", 0) }.start(&table);
        for one in [&a, &b] {
            one.twin.add(1, sealed(&one.arena, MANY_BYTES, 5), 1);
        }
        let is_counted = || panicking.panics(self.scope()) == self.points.len() as u64;
        until(&format!("{what}: the tensor comes after it"), || {
            let _ = a.peers.ensure(&name("b"), Instant::now() + PATIENCE);
            let before = is_counted();
            self.gets(&a, &b) && before
        });
        let c = Start::new("c").start(&table);
        c.twin.add(2, sealed(&c.arena, BYTES, 7), 1);
        for one in [&a, &b] {
            until(&format!("{what}: another peer is served"), || one.get("c", 2, BYTES).is_ok());
        }
        assert!(is_counted() && healths.iter().all(|health| health.ask(Probe::Alive).is_ok()), "{what}");
        let all = [&a, &b, &c];
        until(&format!("{what}: nothing is leased"), || all.iter().all(|one| one.twin.leased() == 0));
        until(&format!("{what}: nobody is a stranger"), || all.iter().all(|one| one.peers.strangers() == 0));
        all.into_iter().for_each(One::assert_free);
    }
}

#[test]
fn each_thread_of_a_connection_that_panics_is_counted_and_keeps_nothing_and_what_was_asked_for_comes() {
    ROWS.iter().for_each(Row::run);
}

/// A sidecar with its channels, and a way to others.
fn sidecar(peer: &str, table: &Arc<Table>) -> (Arc<Exchange>, Arc<Peers>) {
    let (exchange, ..) = alone_as(peer);
    let keys = keys::keys(&keys::identity());
    let fingerprint = keys.fingerprint;
    let config = PeersConfig {
        backoff: Backoff::new(Duration::from_millis(5), Duration::from_millis(50)),
        lanes: NONE,
        threads: exchange.threads().clone(),
        ..PeersConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let me = Me {
        exchange: "lab".parse().unwrap(),
        peer: name(peer),
        incarnation: Incarnation(1),
        offer: exchange.offer(&["somewhere".to_owned()]),
    };
    let serve: Arc<dyn Serve> = Arc::clone(&exchange) as _;
    let counters = Arc::new(Counters::default());
    let peers = Peers::start(config, keys, Arc::clone(table) as _, me, serve, counters).unwrap();
    table.list(peer, peers.bound_address(), fingerprint);
    exchange.connect(Arc::clone(&peers));
    (exchange, peers)
}

/// Waits for the outcome of what is begun with a way to tell it.
fn outcome<T>(begin: impl FnOnce(mpsc::Sender<T>)) -> T {
    let (tell, told) = mpsc::channel();
    begin(tell);
    told.recv_timeout(2 * PATIENCE).expect("an outcome")
}

fn attach(reader: &Arc<Exchange>) -> Result<(HostedReader, RingReader), Failure> {
    let (name, peer) = ("c".to_owned(), "owner".to_owned());
    let request = v1::ChannelReadRequest { name, peer, wait_ms: 20_000, ..Default::default() };
    outcome(|tell| {
        let done = move |attached| tell.send(attached).unwrap();
        reader.channel_attach_hosted("reads".into(), Cancel::default(), request, done);
    })
}

fn write(ring: &mut RingWriter) -> bool {
    let slot = ring.claim(Layout::Plain, Deadline::Now, &|| false);
    slot.map(|slot| slot.publish(1)).is_ok()
}

#[test]
fn a_thread_of_a_channel_between_peers_that_panics_ends_its_reader_and_holds_up_no_writer() {
    for (thread, point, is_of_owner) in OF_CHANNELS {
        let table = Arc::new(Table::default());
        let [(owner, its_peers), (reader, other_peers)] =
            ["owner", "reader"].map(|peer| sidecar(peer, &table));
        let panicking = if is_of_owner { owner.threads() } else { reader.threads() };
        panicking.fail_at(point);
        let is_counted = || panicking.panics(PanicScope::Connection) == 1;
        let spec =
            v1::ChannelSpec { name: "c".to_owned(), slots: 4, slot_bytes: 64 << 10, ..Default::default() };
        let open = v1::ChannelOpen { spec: Some(spec), ..Default::default() };
        let made = outcome(|tell| {
            let done = move |made| tell.send(made).unwrap();
            owner.channel_create_hosted("writes".into(), Cancel::default(), &open, || {}, done);
        });
        let (hosted, mut ring) = made.unwrap();
        let mut attached = None;
        until(&format!("{thread}: somebody reads, or cannot"), || {
            attached = attach(&reader).ok();
            attached.is_some() || is_counted()
        });
        if let Some((_reads, messages)) = &mut attached {
            let end = messages.read(Deadline::At(Instant::now() + PATIENCE), &|| false);
            assert!(matches!(end, Ok(Read::Lost | Read::Cut)), "{thread}: its reader hears of the end");
        }
        assert!(is_counted(), "{thread}");
        drop(attached);
        let mut written = 0;
        until(&format!("{thread}: the writer waits for nobody"), || {
            written += usize::from(write(&mut ring));
            written == 16
        });
        let mut again = None;
        until(&format!("{thread}: another one reads"), || {
            again = attach(&reader).ok();
            again.is_some()
        });
        until(&format!("{thread}: it is written to"), || write(&mut ring));
        if let Some((_reads, messages)) = &mut again {
            let next = messages.read(Deadline::At(Instant::now() + PATIENCE), &|| false);
            assert!(matches!(next, Ok(Read::Message(_))), "{thread}");
        }
        drop((again, ring, hosted));
        its_peers.stop();
        other_peers.stop();
    }
}

/// Two whose threads tell their panics: `a` dials `b`, and one of them fails at some points.
fn watched(one: usize, points: &[&'static str]) -> (Arc<Table>, [Health; 2], [Threads; 2], One, One) {
    let (table, healths) = (Arc::new(Table::default()), [Health::new(), Health::new()]);
    let threads = healths.clone().map(Threads::new);
    points.iter().for_each(|point| threads[one].fail_at(point));
    let b = Start { threads: threads[1].clone(), ..Start::new("b") }.start(&table);
    let a = Start { threads: threads[0].clone(), listed: Some(nowhere()), ..Start::new("a") }.start(&table);
    b.twin.add(1, sealed(&b.arena, BYTES, 5), 1);
    (table, healths, threads, a, b)
}

#[test]
fn a_connection_whose_thread_panics_is_lost_and_the_next_one_takes_up_its_calls() {
    for (point, at_dialer, cut) in [
        ("read", true, true),
        ("read", false, true),
        ("write", false, true),
        ("adopted", true, true),
        ("adopted", false, true),
        ("dial", true, false),
    ] {
        let (table, healths, threads, a, b) = watched(usize::from(!at_dialer), &[point]);
        let (one, panicking) = if at_dialer { (&a, &threads[0]) } else { (&b, &threads[1]) };
        let bytes = || a.get("b", 1, BYTES).map(|bytes| bytes.len() as u64);
        if cut {
            assert_eq!(bytes(), Ok(BYTES), "{point}");
        } else {
            // A call that was there when the attempt failed has failed with it.
            until("the next attempt succeeds", || bytes() == Ok(BYTES));
        }
        until("it is counted", || panicking.panics(PanicScope::Connection) == 1);
        if cut {
            until("it is counted as ours", || one.peers.counters().closed.count("ours") == 1);
        }
        assert!(healths.iter().all(|health| health.ask(Probe::Alive).is_ok()));
        assert_eq!(table.all().len(), 2);
    }
}

#[test]
fn an_outcome_whose_taker_panics_ends_neither_its_connection_nor_the_clock() {
    let (_table, healths, threads, a, b) = watched(0, &[]);
    a.connect("b");
    let ask = |limit: Duration| {
        let question = v1::Inquire { targets: vec![v1::Target::default()], ..v1::Inquire::default() };
        let deadline = Instant::now() + limit;
        a.peers.inquire(&name("b"), None, question, deadline, |_| panic!("part of the test"));
    };
    let panics = || [PanicScope::Call, PanicScope::Connection].map(|scope| threads[0].panics(scope));
    // On the thread of the connection, which brings the answer.
    ask(PATIENCE);
    until("its answer came", || panics() == [1, 0]);
    // On that of the clock, since no answer comes.
    b.twin.hold_inquiries.store(true, Ordering::SeqCst);
    ask(Duration::from_millis(10));
    until("its time is over", || panics() == [2, 0]);
    assert!(healths.iter().all(|health| health.ask(Probe::Alive).is_ok()));
    assert_eq!(a.get("b", 1, BYTES).map(|bytes| bytes.len() as u64), Ok(BYTES));
    assert_eq!((a.ever_up(), a.links()), (1, 1), "its connection goes on");
    b.twin.held.lock().clear();
}

#[test]
fn a_clock_that_panics_is_the_end_of_being_alive() {
    let (_table, healths, threads, a, b) = watched(0, &[]);
    a.connect("b");
    threads[0].fail_at("clock");
    until("it is known", || healths[0].ask(Probe::Alive).is_err());
    assert_eq!(healths[0].ask(Probe::Alive), Err("tl-peer-clock: its thread has panicked\n".to_owned()));
    assert_eq!(healths[1].ask(Probe::Alive), Ok(()));
    drop((a, b));
}
