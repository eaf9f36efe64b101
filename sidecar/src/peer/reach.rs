//! Dials of peers: attempts at all addresses of one side by side (`race` says which begins when), of which the first one
//! whose other end proves to be the peer becomes its connection. The others are cut.
//!
//! ```text
//!   dial ── Race ──> thread: TCP, TLS, whose key ──┐
//!                ──> thread: TCP, TLS, whose key ──┼──> dial: Hello on the first, the others are cut
//!                ──> thread: a name is looked up ──┘
//! ```
//! A peer with one address is dialed on the thread of the dial alone. One deadline is for all of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use tracing::debug;

use super::connect::{self, Refused};
use super::handshake;
use super::hello::{self, EstablishedConnection, PendingConnection};
use super::race::{Next, Race};
use super::remote::Peer;
use super::seats::{LackingSide, NoSeat};
use super::shared::{Registered, Shared};

/// Time after the deadline in which attempts tell that theirs is over.
const TOLD_WITHIN: Duration = Duration::from_millis(200);

/// News of the threads of one dial.
enum News {
    /// A listed `host:port` stands for these addresses.
    LookedUp(String, Result<Vec<SocketAddr>, Refused>),
    /// An attempt that began then has proven whose the connection is, or failed.
    Tried { address: SocketAddr, begun: Instant, tried: Result<Box<PendingConnection>, Refused> },
}

/// Outcome of a dial without a connection.
enum Missed {
    /// Another connection is there for it.
    Beside,
    /// Lack of a seat, at one end.
    NoSeat(LackingSide, NoSeat),
    /// Reasons of all attempts.
    Failed(String),
}

/// Dial of a peer.
struct Reach<'a> {
    shared: &'a Arc<Shared>,
    peer: &'a Arc<Peer>,
    until: Instant,
    race: Race,
    tell: Sender<News>,
    told: Receiver<News>,
    /// Address and number of the socket of each attempt under way.
    under_way: Vec<(SocketAddr, u64)>,
    /// Reasons so far, with the address.
    failed: Vec<String>,
    /// Lack of a seat that one of the attempts was told.
    no_seat: Option<(LackingSide, NoSeat)>,
}

/// Dials a peer at its addresses; the connection, which this thread is to run. `attempt` is what `Dial::begin` gave.
pub(super) fn dial(shared: &Arc<Shared>, peer: &Arc<Peer>, attempt: u64) -> Option<EstablishedConnection> {
    let addresses = shared.known.peer(&peer.name).map(|known| known.addresses).unwrap_or_default();
    match Reach::new(shared, peer).run(addresses) {
        Ok((up, address)) => {
            peer.state.lock().dial.won = Some(address);
            shared.dial_ended(peer);
            return Some(up);
        }
        Err(Missed::Beside) => shared.dial_ended(peer),
        Err(Missed::NoSeat(side, told)) => {
            debug!(peer = %peer.name, ?side, %told, "no seat for the connection");
            shared.dial_found_no_seat(peer, side, told);
        }
        Err(Missed::Failed(error)) => {
            debug!(peer = %peer.name, error, "peer not reached");
            shared.dial_failed(peer, attempt, &error);
        }
    }
    None
}

impl<'a> Reach<'a> {
    fn new(shared: &'a Arc<Shared>, peer: &'a Arc<Peer>) -> Self {
        let until = Instant::now() + shared.config.handshake;
        let (tell, told) = mpsc::channel();
        let (race, under_way, failed) = (Race::default(), Vec::new(), Vec::new());
        Self { shared, peer, until, race, tell, told, under_way, failed, no_seat: None }
    }

    fn run(mut self, listed: Vec<String>) -> Result<(EstablishedConnection, SocketAddr), Missed> {
        let (numbers, names): (Vec<_>, Vec<_>) =
            listed.into_iter().partition(|one| one.parse::<SocketAddr>().is_ok());
        let numbers: Vec<SocketAddr> = numbers.iter().filter_map(|one| one.parse().ok()).collect();
        let is_one = names.is_empty() && numbers.len() == 1;
        self.race = Race::new(names.len(), self.peer.state.lock().dial.won);
        self.race.add(&numbers);
        names.into_iter().for_each(|name| self.look_up(name));
        loop {
            let now = Instant::now();
            let wait_until = match self.race.next(now) {
                _ if now >= self.until + TOLD_WITHIN => return Err(self.over()),
                Next::Begin(address) if now < self.until => {
                    self.begin(address, is_one);
                    continue;
                }
                Next::At(then) => then.min(self.until + TOLD_WITHIN),
                Next::Over if self.under_way.is_empty() => return Err(self.over()),
                Next::Begin(_) | Next::Wait | Next::Over => self.until + TOLD_WITHIN,
            };
            match self.told.recv_timeout(wait_until.saturating_duration_since(now)) {
                Ok(news) => {
                    if let Some(outcome) = self.hear(news) {
                        self.cut_others();
                        return outcome;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Looks up a name on a thread of its own, so that no address waits for it.
    fn look_up(&self, name: String) {
        let (shared, tell, until) = (Arc::clone(self.shared), self.tell.clone(), self.until);
        let address = name.clone();
        let begun = self.shared.spawn("tl-peer-dial", move || {
            let resolve = || shared.config.resolver.resolve(&name, until);
            let found = shared.caught("look up", resolve).unwrap_or_else(|| Err(broke_off()));
            let found = found.map_err(Refused::Unresolved);
            // Nobody hears it where another address has won.
            let _ = tell.send(News::LookedUp(name, found));
        });
        if !begun {
            let _ = self.tell.send(News::LookedUp(address, Err(no_thread())));
        }
    }

    /// Begins an attempt. `here`: it is the only one, and needs no thread.
    fn begin(&mut self, address: SocketAddr, here: bool) {
        let begun = Instant::now();
        let told = |tried| News::Tried { address, begun, tried };
        let segment = self.peer.standstill.lock().segment_of_control(begun);
        let (socket, guard) = match connect::open(self.shared, &address, segment) {
            Ok(opened) => opened,
            Err(error) => {
                self.under_way.push((address, 0));
                let _ = self.tell.send(told(Err(error.into())));
                return;
            }
        };
        self.under_way.push((address, guard.number()));
        let (shared, peer, until) = (Arc::clone(self.shared), Arc::clone(self.peer), self.until);
        let attempt = move || {
            let tried = shared.caught("attempt", || attempt(&shared, &peer, (socket, guard), address, until));
            tried.unwrap_or_else(|| Err(Refused::Socket(broke_off()))).map(Box::new)
        };
        if here {
            let _ = self.tell.send(told(attempt()));
            return;
        }
        let tell = self.tell.clone();
        let spawned = self.shared.spawn("tl-peer-dial", move || {
            // Nobody hears it where another address has won: then it ends here.
            let _ = tell.send(News::Tried { address, begun, tried: attempt() });
        });
        if !spawned {
            let _ = self.tell.send(told(Err(no_thread())));
        }
    }

    /// Takes news of an attempt or a lookup; how the dial ends, if it does.
    fn hear(&mut self, news: News) -> Option<Result<(EstablishedConnection, SocketAddr), Missed>> {
        let (address, begun, tried) = match news {
            News::LookedUp(name, found) => {
                self.race.looked_up(found.as_deref().unwrap_or_default());
                if let Err(refused) = found {
                    self.fail(&name, &refused);
                }
                return None;
            }
            News::Tried { address, begun, tried } => (address, begun, tried),
        };
        self.under_way.retain(|(under_way, _)| *under_way != address);
        let until = self.hello_until();
        let up = tried.and_then(|talk| hello::dialed(self.shared, *talk, &self.peer.name, until));
        match up {
            Ok(up) => Some(Ok((up, address))),
            Err(Refused::Double | Refused::Late) => Some(Err(Missed::Beside)),
            Err(Refused::ByPeer(failure)) if failure.reason == hello::DOUBLE => Some(Err(Missed::Beside)),
            Err(refused) => {
                self.race.failed();
                self.no_seat = self.no_seat.or(refused.no_seat());
                let refused = refused.after(self.until.saturating_duration_since(begun));
                if refused.no_seat().is_none() {
                    self.shared.count_refusal(&refused);
                }
                self.fail(&address.to_string(), &refused);
                None
            }
        }
    }

    /// End of the time of a Hello: a third of all while another address may do, where it would be heard.
    fn hello_until(&self) -> Instant {
        let alone = self.under_way.is_empty() && self.race.untried() == 0;
        let third = Instant::now() + self.shared.config.handshake / 3;
        if alone { self.until } else { self.until.min(third) }
    }

    fn fail(&mut self, address: &str, refused: &Refused) {
        self.failed.push(format!("at {address}: {refused}"));
    }

    fn cut_others(&self) {
        self.under_way.iter().for_each(|(_, number)| self.shared.cut(*number));
    }

    /// Ends without a connection: tells of every attempt.
    fn over(mut self) -> Missed {
        self.cut_others();
        let after = crate::clock::told(self.shared.config.handshake);
        for (address, _) in std::mem::take(&mut self.under_way) {
            self.failed.push(format!("at {address}: the peer did not answer within {after}"));
        }
        if let Some((side, told)) = self.no_seat {
            return Missed::NoSeat(side, told);
        }
        let name = &self.peer.name;
        if self.failed.is_empty() && self.race.untried() == 0 {
            return Missed::Failed(format!("{name} has no address in the directory"));
        }
        let mut told = format!("{name} {}", self.failed.join("; "));
        if let untried @ 1.. = self.race.untried() {
            told.push_str(&format!("; {untried} more of its addresses were not tried"));
        }
        Missed::Failed(told)
    }
}

/// Attempt at one address: TCP, TLS, whose key it is.
fn attempt(
    shared: &Arc<Shared>,
    peer: &Peer,
    (socket, mut guard): (std::net::TcpStream, Registered),
    address: SocketAddr,
    until: Instant,
) -> Result<PendingConnection, Refused> {
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    connect::finish(&socket, &mut guard, &address, left)?;
    let keys = shared.keys();
    let secured = handshake::client(&keys.client, &socket, until)?;
    PendingConnection::begin(shared, socket, &keys, secured, guard, Some(&peer.name))
}

fn broke_off() -> std::io::Error {
    std::io::Error::other("a mistake of this sidecar: its thread has panicked")
}

fn no_thread() -> Refused {
    Refused::Socket(std::io::Error::other("no thread for it"))
}
