//! Small tensors on the QUIC connection of a pair: when they go there, what becomes of them when it ends, and peers that do there
//! what they may not.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use prost::Message;
use quinn::{Connection, RecvStream, SendStream};
use tensorlane_proto::encoded::{PulledMany, PulledSmall};
use tensorlane_proto::frame::{
    self, CALLS_STREAM, HEADER_BYTES, Header, PEER_BODY_MAX, PEER_VERSION, PeerKind, REPLY,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Transport};

use super::hostile::Raw;
use super::keys;
use super::quic::hello;
use super::transports::{NONE, Pair, Way};
use super::world::*;
use crate::identity::Identity;
use crate::peer::exporter;
use crate::peer::transport::lanes::key::{LaneKey, Role, Use};
use crate::peer::transport::lanes::quic::QuicEndpoint;
use crate::peer::{CameSmall, LanesConfig, Way as Taken};

const MIB: u64 = 1 << 20;
const QUIC: LanesConfig = LanesConfig { quic: 2, ..NONE };
const WAY: Way = Way { counted: "quic", name: "calls on QUIC", lanes: QUIC, maps: None };
/// The last version without calls on QUIC.
const BEFORE_CALLS: u32 = 6;

/// A large tensor by a transport, which small ones follow.
fn large(reader: &One, from: &str, transport: Transport) {
    let (told, _, block) = reader.pull_by(from, 7, MIB, transport);
    drop((told.recv_timeout(PATIENCE).unwrap().unwrap().landing, block));
}

/// Two of which each can get tensors of the other: one of a MiB, 7, and small ones, 1 and 2.
fn pair() -> Pair {
    let pair = Pair::new(&WAY);
    for one in [&pair.a, &pair.b] {
        one.twin.add(7, sealed(&one.arena, MIB, 1), 1);
        one.twin.add(1, sealed(&one.arena, 4096, 2), 1);
        one.twin.add(2, sealed(&one.arena, 5, 3), 1);
    }
    pair
}

/// Gets small tensors until they come on QUIC, whose streams come up by themselves.
fn until_on_quic(reader: &One, from: &str) {
    until("small tensors come on QUIC", || reader.came_small(from, &[1]).unwrap().way == Taken::Quic);
}

/// Asks for a small tensor so often at once; where the outcomes come.
fn asked(
    reader: &One,
    from: &str,
    count: usize,
    deadline: Instant,
) -> mpsc::Receiver<Result<CameSmall, Failure>> {
    let (tell, told) = mpsc::channel();
    for _ in 0..count {
        let tell = tell.clone();
        reader.peers.pull_small(&name(from), None, many(&[1]), deadline, move |came| {
            let _ = tell.send(came);
        });
    }
    told
}

fn calls(one: &One, outcome: &str) -> u64 {
    one.peers.counters().quic_calls.count(outcome)
}

#[test]
fn small_tensors_come_on_quic_where_large_ones_do_and_on_tcp_before_and_after() {
    let pair = pair();
    for (reader, owner, from) in pair.both_ways() {
        assert_eq!(reader.came_small(from, &[1]).unwrap().way, Taken::Stream, "nothing has come yet");
        assert_eq!(calls(reader, "answered"), 0);
        large(reader, from, Transport::Quic);
        until_on_quic(reader, from);
        let (before, counted) = (calls(reader, "answered"), bytes_in(reader));
        let came = reader.came_small(from, &[1, 9, 2]).unwrap();
        let [first, none, second] = &came.tensors[..] else { panic!("{} came", came.tensors.len()) };
        assert!(first.data == owner.own_bytes(1) && second.data == owner.own_bytes(2));
        assert_eq!(none.failure.as_ref().unwrap().reason, "NOT_FOUND");
        assert_eq!((came.way, calls(reader, "answered") - before), (Taken::Quic, 1));
        assert_eq!(bytes_in(reader) - counted, 4101);
        large(reader, from, Transport::Tcp);
        assert_eq!(reader.came_small(from, &[1]).unwrap().way, Taken::Stream, "large ones come by TCP");
        assert_eq!(calls(reader, "again"), 0);
    }
    pair.assert_over();
}

#[test]
fn thousands_of_calls_both_ways_at_once_are_all_answered_while_the_source_port_changes() {
    const CALLS: usize = 3000;
    let pair = pair();
    let (tell, told) = mpsc::channel::<Result<CameSmall, Failure>>();
    for (reader, _, from) in pair.both_ways() {
        large(reader, from, Transport::Quic);
        until_on_quic(reader, from);
    }
    for number in 0..CALLS {
        for (reader, _, from) in pair.both_ways() {
            let tell = tell.clone();
            reader.peers.pull_small(
                &name(from),
                None,
                many(&[1; 4]),
                Instant::now() + 3 * PATIENCE,
                move |came| {
                    let _ = tell.send(came);
                },
            );
        }
        if number % 1000 == 0 {
            pair.proxy.datagrams.rebind();
        }
    }
    let mut on_quic = 0;
    for _ in 0..2 * CALLS {
        let came = told.recv_timeout(PATIENCE).unwrap().unwrap();
        assert!(came.tensors.iter().all(|small| small.data.len() == 4096) && came.tensors.len() == 4);
        on_quic += usize::from(came.way == Taken::Quic);
    }
    assert!(on_quic > CALLS / 2, "{on_quic} came on QUIC");
    assert!(
        pair.a.peers.counters().closed.all().is_empty() && pair.b.peers.counters().closed.all().is_empty()
    );
    pair.assert_over();
}

#[test]
fn what_has_no_answer_when_datagrams_stop_is_asked_again_on_the_control_connection() {
    for (deadline, most) in [(PATIENCE, PATIENCE), (Duration::from_secs(8), Duration::from_secs(7))] {
        for turned in [0, 1] {
            let pair = pair();
            let (reader, _, from) = pair.both_ways()[turned];
            large(reader, from, Transport::Quic);
            until_on_quic(reader, from);
            pair.proxy.datagrams.mute.store(true, Ordering::SeqCst);
            let begun = Instant::now();
            let told = asked(reader, from, 50, begun + deadline);
            for _ in 0..50 {
                let came = told.recv_timeout(PATIENCE).unwrap().unwrap();
                assert_eq!(came.way, Taken::Stream);
            }
            assert!(begun.elapsed() < most, "{:?} of {deadline:?}", begun.elapsed());
            assert!((1..=50).contains(&calls(reader, "again")), "{}", calls(reader, "again"));
            assert!(reader.peers.counters().closed.all().is_empty(), "nothing is answered twice");
            // Where datagrams come through again so do calls, on this connection or the next one.
            pair.proxy.datagrams.mute.store(false, Ordering::SeqCst);
            until("they come on QUIC again", || {
                large(reader, from, Transport::Quic);
                reader.came_small(from, &[1]).unwrap().way == Taken::Quic
            });
            pair.assert_over();
        }
    }
}

#[test]
fn whoever_gives_up_what_was_asked_on_quic_is_told_at_once_and_nothing_is_asked_again() {
    let pair = pair();
    large(&pair.a, "b", Transport::Quic);
    until_on_quic(&pair.a, "b");
    pair.proxy.datagrams.mute.store(true, Ordering::SeqCst);
    let told = asked(&pair.a, "b", 1, Instant::now() + Duration::from_millis(200));
    let failure = told.recv_timeout(PATIENCE).unwrap().map(|came| came.way).unwrap_err();
    assert_eq!(failure.reason.as_str(), "DEADLINE_EXCEEDED");
    until("the connection is given up", || pair.a.came_small("b", &[1]).unwrap().way == Taken::Stream);
    assert!(calls(&pair.a, "again") <= 1, "only what somebody waits for");
    pair.assert_over();
}

#[test]
fn a_control_connection_that_ends_takes_its_calls_on_quic_with_it_to_the_next_one() {
    let pair = pair();
    for (reader, _, from) in pair.both_ways() {
        large(reader, from, Transport::Quic);
        until_on_quic(reader, from);
        pair.proxy.datagrams.mute.store(true, Ordering::SeqCst);
        let told = asked(reader, from, 20, Instant::now() + PATIENCE);
        let before = pair.a.ever_up();
        pair.proxy.cut();
        // One of them alone can dial, and only the calls of that one make it. Neither may have seen yet that the old one is cut.
        until("there is another connection", || {
            pair.meet();
            pair.a.ever_up() > before
        });
        for _ in 0..20 {
            assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap().tensors.len(), 1);
        }
        assert!(calls(reader, "answered") > 0);
        assert_eq!(calls(reader, "again"), 0, "that is not the end of a stream alone");
        pair.proxy.datagrams.mute.store(false, Ordering::SeqCst);
    }
    pair.assert_over();
}

#[test]
fn a_panic_where_an_answer_is_taken_costs_a_second_on_quic_and_nobody_elses_answer() {
    let pair = pair();
    large(&pair.a, "b", Transport::Quic);
    until_on_quic(&pair.a, "b");
    pair.a.peers.pull_small(&name("b"), None, many(&[1]), Instant::now() + PATIENCE, |_| {
        panic!("a panic that the test makes");
    });
    let told = asked(&pair.a, "b", 20, Instant::now() + PATIENCE);
    for _ in 0..20 {
        assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap().tensors.len(), 1);
    }
    until_on_quic(&pair.a, "b");
    pair.assert_over();
}

#[test]
fn whoever_does_not_know_calls_on_quic_is_asked_on_the_control_connection() {
    let table = Arc::<Table>::default();
    let b = Start { lanes: QUIC, version: BEFORE_CALLS, ..Start::new("b") }.start(&table);
    let a = Start { lanes: QUIC, listed: Some(nowhere()), ..Start::new("a") }.start(&table);
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    b.twin.add(1, sealed(&b.arena, 10, 1), 1);
    a.connect("b");
    for _ in 0..3 {
        large(&a, "b", Transport::Quic);
        assert_eq!(a.came_small("b", &[1]).unwrap().way, Taken::Stream);
    }
    assert_eq!(a.peers.counters().quic_opened.count("us"), 1);
    assert_eq!(b.peers.counters().auth_refused.all(), []);
}

/// A peer that dialed `a`, and has bound a QUIC connection; it has answered nothing yet.
struct Evil {
    a: One,
    control: Raw,
    endpoint: Arc<QuicEndpoint>,
    connection: Connection,
    until: Instant,
    _bound: (SendStream, RecvStream),
    _table: Arc<Table>,
}

/// Stream of the connection.
struct Stream<'a> {
    evil: &'a Evil,
    send: SendStream,
    receive: RecvStream,
}

impl Evil {
    fn new(version: u32) -> Self {
        let table: Arc<Table> = Arc::default();
        let a = Start { lanes: QUIC, progress: PATIENCE * 6, ..Start::new("a") }.start(&table);
        let evil = keys::identity();
        table.list("evil", nowhere(), evil.fingerprint);
        let (control, key) = greeted(&a, &evil, version);
        a.twin.add(1, sealed(&a.arena, 10, 1), 1);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let endpoint =
            QuicEndpoint::open(socket, &keys::keys(&evil), Duration::from_secs(60), &Default::default())
                .unwrap();
        let until = Instant::now() + PATIENCE * 3;
        let connecting = endpoint.connect(a.peers.bound_address()).unwrap();
        let first = frame::encode(PeerKind::LaneHello.into(), 0, 0, &hello(&key, Role::Quic));
        let bound = endpoint.within(until, async {
            let connection = connecting.await.unwrap();
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&first).await.unwrap();
            receive.read_exact(&mut [0; HEADER_BYTES]).await.unwrap();
            (connection, (send, receive))
        });
        let (connection, bound) = bound.unwrap();
        Self { a, control, endpoint, connection, until, _bound: bound, _table: table }
    }

    /// A stream for calls. `serves`: the evil peer answers on it.
    fn stream(&self, serves: bool) -> Stream<'_> {
        let (send, receive) = self.endpoint.within(self.until, self.connection.open_bi()).unwrap().unwrap();
        let mut stream = Stream { evil: self, send, receive };
        let hello = v1::LaneHello { lane: CALLS_STREAM, serves, ..v1::LaneHello::default() };
        stream.say(PeerKind::LaneHello, 0, 0, &hello);
        stream
    }

    /// A stream on which `a` has asked for tensor 1; the number of the call, and where its outcome comes.
    fn asked(&self) -> (Stream<'_>, u64, mpsc::Receiver<Result<usize, Failure>>) {
        let mut stream = self.stream(true);
        assert_eq!(stream.next().unwrap().0.flags, REPLY);
        // It gets nothing of it, and small tensors follow.
        let _large = self.a.pull_by("evil", 7, MIB, Transport::Quic);
        let (tell, told) = mpsc::channel();
        self.a.peers.pull_small(&name("evil"), None, many(&[1]), Instant::now() + PATIENCE, move |came| {
            let _ = tell.send(came.map(|came| came.tensors.len()));
        });
        let (header, body) = stream.next().unwrap();
        assert_eq!((header.kind, header.flags), (PeerKind::PullMany.into(), 0));
        assert_eq!(v1::PullMany::decode(&body[..]).unwrap().ids, [1]);
        (stream, header.call, told)
    }

    fn is_connected(&self) -> bool {
        self.a.peers.is_connected(&name("evil"))
    }

    fn refused(&self, label: &str) -> u64 {
        self.a.peers.counters().frames_refused.count(label)
    }
}

impl Drop for Evil {
    fn drop(&mut self) {
        self.endpoint.end();
    }
}

impl Stream<'_> {
    fn say(&mut self, kind: PeerKind, flags: u16, call: u64, message: &impl Message) {
        let frame = frame::encode(kind.into(), flags, call, message);
        // Who is closed is found out by what it hears.
        let _ = self.evil.endpoint.within(self.evil.until, self.send.write_all(&frame)).unwrap();
    }

    /// The next frame; none where the stream is over.
    fn next(&mut self) -> Option<(Header, Vec<u8>)> {
        let read = async {
            let mut head = [0; HEADER_BYTES];
            self.receive.read_exact(&mut head).await.ok()?;
            let header = Header::decode(&head, PEER_BODY_MAX).unwrap();
            let mut body = vec![0; header.length as usize];
            self.receive.read_exact(&mut body).await.ok()?;
            Some((header, body))
        };
        self.evil.endpoint.within(self.evil.until, read).unwrap()
    }
}

/// A control connection of the evil peer, and the key of its lanes.
fn greeted(at: &One, evil: &Identity, version: u32) -> (Raw, LaneKey) {
    let mut control = Raw::connect(at, keys::client(evil));
    let said = v1::PeerHello { quic_lanes: 2, ..Raw::hello("default", "evil", version) };
    control.send(PeerKind::Hello, 0, 0, &said);
    let (_, body) = control.next_of(PeerKind::Hello).unwrap();
    let told = v1::PeerHello::decode(&body[..]).unwrap().lane_key[..].try_into().unwrap();
    until("it is connected", || at.peers.is_connected(&name("evil")));
    let exported = control.tls.conn.export_keying_material([0; 32], exporter::LABEL, None).unwrap();
    (control, LaneKey::mixed(&exported, &told, Use::Lanes))
}

#[test]
fn an_answer_on_another_carrier_than_was_asked_on_ends_the_connection() {
    let mut evil = Evil::new(PEER_VERSION);
    let (_stream, call, told) = evil.asked();
    let answer = PulledMany { tensors: vec![PulledSmall::default()] };
    evil.control.send(PeerKind::PullMany, REPLY, call, &answer);
    assert!(evil.control.is_closed());
    until("it is counted", || evil.refused("out_of_place") == 1);
    assert!(told.try_recv().is_err(), "the call waits for the peer to come back");
}

#[test]
fn what_may_not_be_said_on_a_stream_for_calls_ends_the_connection() {
    type Say = fn(&mut Stream<'_>, u64);
    let answers: [(&str, &str, Say); 5] = [
        ("the answer to a call that was not asked", "out_of_place", |stream, call| {
            stream.say(
                PeerKind::PullMany,
                REPLY,
                call + 1,
                &PulledMany { tensors: vec![PulledSmall::default()] },
            );
        }),
        ("too few tensors", "malformed", |stream, call| {
            stream.say(PeerKind::PullMany, REPLY, call, &PulledMany { tensors: vec![] });
        }),
        ("a question on a stream for answers", "out_of_place", |stream, call| {
            stream.say(PeerKind::PullMany, 0, call, &many(&[1]));
        }),
        ("the head of a pull", "out_of_place", |stream, call| {
            stream.say(PeerKind::Pull, REPLY, call, &v1::PullHead::default());
        }),
        ("a chunk", "out_of_place", |stream, call| {
            let header = Header { length: 9, kind: PeerKind::Chunk.into(), flags: 0, call };
            let bytes = [&header.encode()[..], &[0; 9]].concat();
            let _ = stream.evil.endpoint.within(stream.evil.until, stream.send.write_all(&bytes)).unwrap();
        }),
    ];
    for (what, label, say) in answers {
        let evil = Evil::new(PEER_VERSION);
        let (mut stream, call, _told) = evil.asked();
        say(&mut stream, call);
        assert!(stream.next().is_none(), "{what}");
        until(what, || evil.refused(label) == 1 && !evil.is_connected());
    }
    let questions: [(&str, &str, Say); 4] = [
        ("a ping", "out_of_place", |stream, _| stream.say(PeerKind::Ping, 0, 1, &v1::Ping {})),
        ("an answer to nothing", "out_of_place", |stream, _| {
            stream.say(PeerKind::PullMany, REPLY, 1, &PulledMany { tensors: vec![] });
        }),
        ("no call", "out_of_place", |stream, _| stream.say(PeerKind::PullMany, 0, 0, &many(&[1]))),
        ("too many tensors", "malformed", |stream, _| {
            stream.say(PeerKind::PullMany, 0, 1, &many(&[1; frame::ITEMS_MAX + 1]));
        }),
    ];
    for (what, label, say) in questions {
        let evil = Evil::new(PEER_VERSION);
        let mut stream = evil.stream(false);
        assert_eq!(stream.next().unwrap().0.flags, REPLY, "{what}");
        stream.say(PeerKind::PullMany, 0, 5, &many(&[1]));
        let (header, body) = stream.next().unwrap();
        assert_eq!((header.call, header.flags), (5, REPLY), "{what}");
        assert_eq!(PulledMany::decode(&body[..]).unwrap().tensors[0].data, evil.a.own_bytes(1));
        say(&mut stream, 6);
        assert!(stream.next().is_none(), "{what}");
        until(what, || evil.refused(label) == 1 && !evil.is_connected());
    }
}

#[test]
fn there_is_one_stream_for_calls_in_each_direction_and_none_before_version_7() {
    let evil = Evil::new(PEER_VERSION);
    for serves in [true, false] {
        let mut first = evil.stream(serves);
        assert_eq!(first.next().unwrap().0.flags, REPLY);
        let mut second = evil.stream(serves);
        assert!(second.next().is_none(), "{serves}");
        // Another one may come when it is over.
        drop((first, second));
        until("there is a place again", || evil.stream(serves).next().is_some());
    }
    assert!(evil.is_connected());
    let old = Evil::new(BEFORE_CALLS);
    assert!(old.stream(true).next().is_none() && old.stream(false).next().is_none());
    until("they were counted", || old.a.peers.counters().auth_refused.count("lane") == 2);
    assert!(old.is_connected());
}

#[test]
fn an_owner_that_does_not_answer_on_quic_is_asked_again_on_the_control_connection() {
    let mut evil = Evil::new(PEER_VERSION);
    let (stream, call, told) = evil.asked();
    drop(stream);
    let (header, body) = evil.control.next_of(PeerKind::PullMany).unwrap();
    assert_eq!((header.call, v1::PullMany::decode(&body[..]).unwrap().ids), (call, vec![1]));
    evil.control.send(PeerKind::PullMany, REPLY, call, &PulledMany { tensors: vec![PulledSmall::default()] });
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap(), 1);
    assert_eq!((calls(&evil.a, "again"), calls(&evil.a, "answered")), (1, 0));
}
