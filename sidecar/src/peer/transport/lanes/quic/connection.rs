//! The QUIC connection of two peers: made when the first lane wants it, bound to their control connection by what is said on
//! its first stream, ended with it. A source port that changes on the way is quinn's to survive; it is counted here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quinn::{Connection, Incoming, RecvStream, SendStream};
use rustls::pki_types::CertificateDer;
use tensorlane_proto::frame::{FrameError, PeerKind, REPLY};
use tensorlane_proto::generated as v1;

use super::super::Lanes;
use super::super::bind::{self, progress};
use super::super::key::{LaneName, Nonce, Role, nonce};
use super::flow::Flow;
use super::wire::{Cut, QuicWire};
use super::{LINGER, QuicEndpoint};
use crate::peer::claim::Claim;
use crate::peer::connect::Refused;
use crate::peer::counters::Counters;
use crate::peer::hello::{self, FirstFrame};
use crate::peer::link::Link;
use crate::peer::shared::{Registered, Shared};

/// The name that the first stream proves.
const FIRST: LaneName = LaneName { number: 0, serves: false };
/// Number of times that no byte may come for the progress deadline until a connection is taken for dead.
const SILENCES: u32 = 3;
/// Time for which a connection that was asked for, and that nobody waits for, is not asked for again.
const ASKED: Duration = Duration::from_secs(30);

/// The connection of one control connection, while there is one.
pub(in crate::peer) struct QuicConnection {
    endpoint: Arc<QuicEndpoint>,
    /// Held by whoever makes a connection.
    dialing: Mutex<()>,
    state: Mutex<State>,
    /// Bytes that each lane should have asked for, as far as that is known.
    ahead: AtomicU64,
    lanes: usize,
}

struct State {
    connection: Option<Connection>,
    /// Address at which its other end was when it was last looked at.
    seen: Option<SocketAddr>,
    /// Record of what had come and gone when something last came, or nothing was under way.
    heard: Option<Heard>,
    /// Time at which it was last asked for without anybody waiting.
    asked: Option<Instant>,
    /// Since when no lane has been on it.
    unused: Option<Instant>,
    /// The last connection that was closed because nothing came on it.
    silent: Option<usize>,
    flow: Flow,
    /// True if pulls of ours are under way.
    expects: bool,
    ended: bool,
}

impl State {
    /// Takes the connection away, with what was counted on it.
    fn take(&mut self) -> Option<Connection> {
        self.flow.begin();
        self.connection.take()
    }
}

/// State of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::peer) struct Standing {
    /// Bytes that may come and that nobody has read.
    pub(in crate::peer) receive: u64,
    /// Bytes that may have gone and that are not known to have come.
    pub(in crate::peer) send: u64,
    /// Bytes of a datagram, as far as the path is known.
    pub(in crate::peer) datagram: u16,
}

/// Amounts of what had come of a connection, and what had gone that is answered, at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heard {
    /// Datagrams.
    received: u64,
    /// Frames that the other end acknowledges. Acknowledgements are none: nobody answers the last one.
    asked: u64,
    at: Instant,
}

impl Heard {
    /// Record that is remembered after another look. None: nothing has come for so long although something was asked.
    fn next(self, now: Self, patience: Duration) -> Option<Self> {
        if self.received != now.received || self.asked == now.asked {
            return Some(now);
        }
        (now.at.saturating_duration_since(self.at) < patience).then_some(self)
    }
}

/// Closes a connection, unless it was kept.
struct Closing(Option<Connection>);

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.close(0_u32.into(), b"");
        }
    }
}

/// Set to true if what is asked for was asked for before, and has not come.
pub(in crate::peer) struct InVain(pub(in crate::peer) bool);

impl QuicConnection {
    /// For so many lanes in each direction.
    pub(in crate::peer) fn new(endpoint: Arc<QuicEndpoint>, lanes: usize) -> Self {
        let state = State {
            connection: None,
            seen: None,
            heard: None,
            asked: None,
            unused: None,
            silent: None,
            flow: Flow::new(lanes, endpoint.spare()),
            expects: false,
            ended: false,
        };
        let (dialing, ahead) = (Mutex::default(), AtomicU64::new(0));
        Self { endpoint, dialing, state: Mutex::new(state), ahead, lanes: lanes.max(1) }
    }

    fn live(&self) -> Option<Connection> {
        self.state.lock().connection.clone().filter(|connection| connection.close_reason().is_none())
    }

    /// Returns whether lanes can be opened without waiting for a connection.
    pub(in crate::peer) fn is_up(&self) -> bool {
        self.live().is_some()
    }

    /// Decides whether it should be asked for, though nobody waits for it: once in a while.
    pub(in crate::peer) fn is_to_be_asked_for(&self, now: Instant) -> Option<InVain> {
        let mut state = self.state.lock();
        let before = state.asked;
        if state.ended || before.is_some_and(|asked| now.saturating_duration_since(asked) < ASKED) {
            return None;
        }
        state.asked = Some(now);
        Some(InVain(before.is_some()))
    }

    /// Takes a connection that has proven that it belongs here. One before it has lost its other end.
    fn adopt(&self, connection: &Connection) -> bool {
        let mut state = self.state.lock();
        if state.ended {
            return false;
        }
        let before = state.take();
        let expects = state.expects;
        state.flow.tell(connection, expects);
        state.seen = Some(connection.remote_address());
        (state.heard, state.unused) = (None, None);
        // Its number may be that of one that is gone.
        state.silent = state.silent.filter(|silent| *silent != connection.stable_id());
        state.connection = Some(connection.clone());
        state.asked = None;
        drop(state);
        drop(Closing(before));
        true
    }

    /// Nothing came on a connection although something was due: the next lane is to have another one. `id`: which, for it may
    /// have been replaced already.
    pub(in crate::peer) fn distrust(&self, id: usize) {
        let mut state = self.state.lock();
        let is_present = state.connection.as_ref().is_some_and(|present| present.stable_id() == id);
        let connection = if is_present { state.take() } else { None };
        if is_present {
            state.silent = Some(id);
        }
        drop(state);
        drop(Closing(connection));
    }

    /// Returns whether a connection was closed because nothing came on it. Of its lanes one finds that, and the others only that it
    /// is gone.
    pub(in crate::peer) fn was_silent(&self, id: usize) -> bool {
        self.state.lock().silent == Some(id)
    }

    /// Pulls of ours come on it, or none do.
    pub(in crate::peer) fn expect(&self, pulls: bool) {
        let mut state = self.state.lock();
        let State { connection, flow, expects, .. } = &mut *state;
        if let Some(connection) = connection {
            flow.tell(connection, pulls);
        }
        *expects = pulls;
    }

    /// Bytes that each lane should have asked for, so that the link is full. Nothing where nothing was measured.
    pub(in crate::peer) fn ahead(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// State of its connection, while there is one.
    pub(in crate::peer) fn view(&self) -> Option<Standing> {
        let state = self.state.lock();
        let connection =
            state.connection.as_ref().filter(|connection| connection.close_reason().is_none())?;
        let (receive, send) = state.flow.sizes();
        Some(Standing { receive, send, datagram: connection.stats().path.current_mtu })
    }

    pub(in crate::peer) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let connection = state.take();
        drop(state);
        drop(Closing(connection));
    }

    /// Looks whether the other end has moved, whether it is still there, and whether anybody needs it. What goes out while
    /// nothing comes is what QUIC sends again and again, and it would be kept for ever. `used`: a lane is on it.
    pub(in crate::peer) fn look(&self, counters: &Counters, progress: Duration, used: bool) {
        let mut state = self.state.lock();
        let State { connection: Some(connection), flow, expects, .. } = &mut *state else { return };
        let (id, address, stats) = (connection.stable_id(), connection.remote_address(), connection.stats());
        let at = Instant::now();
        flow.look(connection, &stats, at, *expects);
        self.ahead.store(flow.ahead() / self.lanes as u64, Ordering::Relaxed);
        if state.seen.replace(address).is_some_and(|before| before != address) {
            counters.quic_migrations.fetch_add(1, Ordering::Relaxed);
        }
        // Where all that may be under way has gone, QUIC probes with a frame that carries nothing.
        let asked = stats.frame_tx.stream + stats.frame_tx.ping + stats.frame_tx.immediate_ack;
        let now = Heard { received: stats.udp_rx.datagrams, asked, at };
        // Of a link that loses much, a few datagrams in a row are nothing.
        let heard = state.heard.unwrap_or(now).next(now, SILENCES * progress);
        let unused = if used { None } else { Some(state.unused.unwrap_or(at)) };
        (state.heard, state.unused) = (heard, unused);
        let is_over = unused.is_some_and(|since| at.saturating_duration_since(since) >= LINGER);
        if heard.is_none() {
            state.silent = Some(id);
        }
        if heard.is_none() || is_over {
            let connection = state.take();
            drop(state);
            drop(Closing(connection));
        }
    }

    /// The connection, made now where there is none. Where we dialed the control connection only.
    pub(in crate::peer) fn connection(
        &self,
        shared: &Arc<Shared>,
        link: &Arc<Link>,
        lanes: &Lanes,
        until: Instant,
    ) -> Result<Connection, Refused> {
        let begun = Instant::now();
        let late = || Refused::Socket(std::io::ErrorKind::TimedOut.into());
        let _one_at_a_time = self.dialing.try_lock_until(until).ok_or_else(late)?;
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        let listed = shared.known.peer(&link.peer.name).map(|known| known.addresses).unwrap_or_default();
        let address = self.endpoint.reached(link.other_end()?, &listed)?;
        let made = self.make(shared, link, lanes, (address, until));
        let mut path = link.peer.standstill.lock();
        match &made {
            Ok(_) => path.quic_came(),
            // The control connection ended meanwhile, which says nothing of QUIC.
            Err(Refused::Lane(_)) => {}
            Err(refused) => path.quic_failed(
                format!(
                    "quic to {address} does not come up: {}",
                    told(refused, until.saturating_duration_since(begun))
                ),
                Instant::now(),
            ),
        }
        drop(path);
        made
    }

    /// Makes the connection, and binds it to its control connection.
    fn make(
        &self,
        shared: &Arc<Shared>,
        link: &Arc<Link>,
        lanes: &Lanes,
        (address, until): (SocketAddr, Instant),
    ) -> Result<Connection, Refused> {
        let connecting = self.endpoint.connect(address)?;
        let connection = self.endpoint.within(until, connecting)??;
        let mut closing = Closing(Some(connection.clone()));
        hello::who(shared, &shared.keys(), &certificate(&connection)?, Some(&link.peer.name))?;
        let (mut wire, _cut) = self.open(shared, &connection, until)?;
        let nonce = nonce();
        let hello = v1::LaneHello {
            lane: FIRST.number.into(),
            serves: FIRST.serves,
            nonce: nonce.to_vec().into(),
            proof: lanes.key.prove(Role::Quic, FIRST, &[nonce]).to_vec().into(),
        };
        wire.introduce(&hello, until)?;
        if !self.adopt(&connection) {
            return Err(Refused::Lane("its control connection has ended"));
        }
        closing.0 = None;
        shared.counters.quic_opened.add("us");
        Ok(connection)
    }

    /// Opens a further stream of it.
    pub(in crate::peer) fn open(
        &self,
        shared: &Shared,
        connection: &Connection,
        until: Instant,
    ) -> Result<(QuicWire, Cut), Refused> {
        let streams = self.endpoint.within(until, connection.open_bi())??;
        Ok(QuicWire::new(Arc::clone(&self.endpoint), streams, progress(shared)))
    }
}

/// Runs a connection that came in, until it ends: finds out whose it is, lets it bind, and gives each stream a thread.
pub(super) fn arrived(
    shared: &Arc<Shared>,
    endpoint: &Arc<QuicEndpoint>,
    incoming: Incoming,
    guard: Registered,
    until: Instant,
) -> Result<(), Refused> {
    let connection = endpoint.within(until, endpoint.accept(incoming)?)??;
    let _closing = Closing(Some(connection.clone()));
    let claim = hello::who(shared, &shared.keys(), &certificate(&connection)?, None)?;
    let streams = endpoint.within(until, connection.accept_bi())??;
    let (mut wire, _cut) = QuicWire::new(Arc::clone(endpoint), streams, progress(shared));
    let FirstFrame::Lane(hello) = wire.hear(until)? else { return Err(out_of_place()) };
    let link = link_of(shared, &claim, &hello)?;
    let lanes = link.ways.quic().ok_or(Refused::Lane("its connection has no QUIC"))?;
    let quic = lanes.quic_connection().ok_or(Refused::Lane("its connection has no QUIC"))?;
    if !quic.adopt(&connection) {
        return Err(Refused::Lane("its control connection has ended"));
    }
    shared.counters.quic_opened.add("them");
    wire.say(PeerKind::LaneHello, REPLY, &v1::LaneHello::default())?;
    drop(guard);
    while let Ok(streams) = endpoint.wait(connection.accept_bi()) {
        lane_arrived(shared, endpoint, &link, connection.stable_id(), streams);
    }
    Ok(())
}

/// The control connection that it belongs to: where several peers claim its key, the proof says whose it is.
fn link_of(shared: &Shared, claim: &Claim, hello: &v1::LaneHello) -> Result<Arc<Link>, Refused> {
    let nonce: Nonce = hello.nonce[..].try_into().map_err(|_| Refused::Lane("its nonce is not 32 bytes"))?;
    let named = u32::from(FIRST.number) == hello.lane && FIRST.serves == hello.serves;
    let mut refused = Refused::Lane("its connection is not up");
    for peer in claim.names().iter().filter_map(|peer| shared.known_peer(peer)) {
        let Some(link) = peer.state.lock().link.clone().filter(|link| !link.dialed) else { continue };
        refused = match link.ways.quic() {
            None => Refused::Lane("its connection has no QUIC"),
            Some(lanes) if named && lanes.key.is_proven(Role::Quic, FIRST, &[nonce], &hello.proof) => {
                return Ok(link);
            }
            Some(_) => Refused::Lane("it does not prove that it belongs to the connection"),
        };
    }
    Err(refused)
}

/// Gives a stream that came in on a connection a thread, which finds out which lane it is and runs it.
fn lane_arrived(
    shared: &Arc<Shared>,
    endpoint: &Arc<QuicEndpoint>,
    link: &Arc<Link>,
    connection: usize,
    streams: (SendStream, RecvStream),
) {
    let (on_thread, endpoint, link) = (Arc::clone(shared), Arc::clone(endpoint), Arc::clone(link));
    shared.spawn("tl-quic-lane", move || {
        let most = on_thread.config.handshake;
        let wire = QuicWire::new(endpoint, streams, progress(&on_thread));
        if let Err(refused) = bind::arrived_stream(&on_thread, &link, connection, wire, Instant::now() + most)
        {
            let refused = refused.after(most);
            on_thread.count_refusal(&refused);
            tracing::debug!(peer = %link.peer.name, %refused, "a lane on QUIC was refused");
        }
    });
}

/// Reason for which a connection did not come up in so much time.
fn told(refused: &Refused, after: Duration) -> String {
    let is_silent = match refused {
        Refused::Socket(error) => error.kind() == std::io::ErrorKind::TimedOut,
        Refused::Quic(error) => matches!(error, quinn::ConnectionError::TimedOut),
        _ => false,
    };
    if !is_silent {
        return refused.to_string();
    }
    format!("no answer within {}; does the network carry UDP?", crate::clock::told(after))
}

/// Certificate that the other end showed, and proved to have the key of.
fn certificate(connection: &Connection) -> Result<CertificateDer<'static>, Refused> {
    let shown =
        connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    shown.and_then(|chain| chain.into_iter().next()).ok_or(Refused::NoKey)
}

fn out_of_place() -> Refused {
    FrameError::OutOfPlace(PeerKind::LaneHello.into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_dead_that_hears_nothing_for_long_although_it_has_asked() {
        let (begun, patience) = (Instant::now(), Duration::from_secs(6));
        let heard =
            |received, asked, seconds| Heard { received, asked, at: begun + Duration::from_secs(seconds) };
        let first = heard(5, 7, 0);
        assert_eq!(first.next(heard(5, 7, 60), patience), Some(heard(5, 7, 60)), "nobody has asked");
        assert_eq!(first.next(heard(6, 9, 60), patience), Some(heard(6, 9, 60)), "something came");
        assert_eq!(first.next(heard(5, 8, 5), patience), Some(first), "it may still come");
        assert_eq!(first.next(heard(5, 9, 6), patience), None);
    }
}
