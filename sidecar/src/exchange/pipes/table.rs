//! The table of pipes: who listens, who is connected to whom, and which messages are not read yet. Pure; `W` is somebody who waits.
//!
//! ```text
//!   listen ──> connect ──> accept            each side of a pipe: write ──> unread ──read──> shown ──taken──> written
//!                 └── waits for a listener                                     └──── withdraw, or an end ───> not delivered
//! ```
//! A write is over when the other side has taken its message. Whoever waits is named in an [`Effect`] once, and waits no more then.

mod budget;
mod listeners;
mod returns;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tensorlane_proto::allowed::AllowedPeers;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{SessionId, TensorName};

pub(super) use self::budget::Budget;
pub(super) use self::returns::Outcomes;

/// Listeners of one sidecar at most. Each costs some 300 bytes beside its list of peers.
const LISTENERS_MAX: usize = 4_096;
/// Listeners of one session at most.
const SESSION_LISTENERS_MAX: usize = 1_024;
/// Pipes of one sidecar at most. Each costs some 400 bytes beside its messages.
pub(super) const PIPES_MAX: usize = 16_384;
/// Pipes of one session at most, of both kinds, also those to its listeners that it has not accepted. The clients of one other peer
/// together are one.
pub(super) const SESSION_PIPES_MAX: usize = 1_024;
/// Messages of one side that are not read, at most.
pub(super) const UNREAD_MAX: usize = 64;

/// A session with the name that its client gave itself. A connection of another peer is one, for all of its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Party {
    pub(super) session: SessionId,
    /// Number by which limits are counted: the session, or the life of a peer that comes back on other connections.
    pub(super) account: SessionId,
    pub(super) client: Arc<str>,
    /// The peer, if it is another one.
    pub(super) peer: Option<PeerName>,
}

/// An end of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect<W> {
    /// A pipe was connected to the listener.
    Accepted { to: W, pipe: u64, other: Party },
    /// The listener is there: connect again.
    Listens { to: W },
    /// A message can be read.
    Show { to: W, sequence: u64, message: Bytes },
    /// No message comes any more: the other side has finished.
    End { to: W },
    /// The other side has read the message.
    Written { to: W },
    /// The wait came to nothing.
    Fail { to: W, why: Failure },
}

/// The number of a new end, the other end, and what follows.
pub(super) type Connected<W> = (u64, Party, Vec<Effect<W>>);

/// Way in which a side of a pipe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Side that was closed.
    Closed,
    /// Side whose session has ended.
    Lost,
}

/// A message that is not read.
struct Unread<W> {
    message: Bytes,
    /// None while the connection of its writer is lost.
    writer: Option<W>,
    shown: bool,
}

/// Side of a pipe, with what it writes.
struct Side<W> {
    party: Party,
    ended: Option<Ended>,
    /// Nothing more will be written.
    finished: bool,
    last: u64,
    unread: BTreeMap<u64, Unread<W>>,
    /// Readers that wait for messages of the other side, each with the first sequence that is wanted.
    readers: VecDeque<(u64, W)>,
    /// Outcomes of its writes that it may not have heard; none for a side that ends with its session.
    outcomes: Option<Outcomes>,
}

struct Pipe<W> {
    name: TensorName,
    /// Side that connected, and side that listened.
    sides: [Side<W>; 2],
}

struct Listener<W> {
    name: TensorName,
    party: Party,
    /// Other peers that may connect.
    allowed: AllowedPeers,
    /// Set if it ends with its first pipe, or with the wait for that.
    once: bool,
    backlog: VecDeque<u64>,
    accepting: VecDeque<W>,
}

/// All pipes and listeners of a sidecar.
pub(super) struct Table<W> {
    listeners: BTreeMap<u64, Listener<W>>,
    names: HashMap<TensorName, u64>,
    waiting: HashMap<TensorName, Vec<W>>,
    pipes: BTreeMap<u64, Pipe<W>>,
    last: u64,
    /// Messages that were read, in the life of the sidecar.
    written: u64,
    /// Pipes that went on over another connection, in the life of the sidecar.
    resumed: u64,
    /// Bytes of messages that are not read.
    budget: Budget,
}

/// Numbers at this moment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PipeTotals {
    /// Listeners.
    pub listeners: usize,
    /// Pipes of which at least one end is open.
    pub pipes: usize,
    /// Messages that are not read.
    pub unread: usize,
    /// Messages that were read, in the life of the sidecar.
    pub messages: u64,
    /// Pipes that went on over another connection, in the life of the sidecar.
    pub resumed: u64,
}

impl<W> Default for Table<W> {
    fn default() -> Self {
        let (listeners, pipes) = (BTreeMap::new(), BTreeMap::new());
        let (names, waiting, budget) = (HashMap::new(), HashMap::new(), Budget::default());
        Self { listeners, names, waiting, pipes, last: 0, written: 0, resumed: 0, budget }
    }
}

impl<W> Table<W> {
    /// Connects to a listener: the pipe and the other side. None where there is no listener: `wait` is told when there is.
    ///
    /// # Errors
    /// PERMISSION_DENIED for a peer that the listener does not allow, LIMIT_EXCEEDED.
    pub(super) fn connect(
        &mut self,
        party: Party,
        name: &TensorName,
        wait: Option<W>,
    ) -> Result<Option<Connected<W>>, Failure> {
        let Some(id) = self.names.get(name).copied() else {
            if let Some(wait) = wait {
                self.waiting.entry(name.clone()).or_default().push(wait);
            }
            return Ok(None);
        };
        let Some(listener) = self.listeners.get(&id) else { return Ok(None) };
        if let Some(peer) = party.peer.as_ref().filter(|peer| !listener.allowed.allow(peer)) {
            let message =
                format!("{peer} may not connect to {name}; its listener names those that may (allow)");
            return Err(Failure::new(Reason::PermissionDenied, message).with("peer", peer));
        }
        if self.pipes.len() >= PIPES_MAX {
            return Err(limit(&format!("{PIPES_MAX} pipes are here already"), PIPES_MAX));
        }
        for account in [party.account, listener.party.account] {
            if self.ends_of(account) >= SESSION_PIPES_MAX {
                let what = format!("session {} has {SESSION_PIPES_MAX} ends of pipes already", account.0);
                return Err(limit(&what, SESSION_PIPES_MAX));
            }
        }
        self.check_share(listener, &party)?;
        let other = listener.party.clone();
        let pipe = self.number();
        let effects = self.hand_out(id, pipe, &party);
        let sides = [Side::new(party), Side::new(other.clone())];
        self.pipes.insert(pipe, Pipe { name: name.clone(), sides });
        self.end_once(id);
        Ok(Some((end(pipe, 0), other, effects)))
    }

    /// Takes the next pipe of a listener; `wait` is told where there is none yet.
    ///
    /// # Errors
    /// NOT_FOUND for a listener that the session does not have.
    pub(super) fn accept(
        &mut self,
        session: SessionId,
        id: u64,
        wait: W,
    ) -> Result<Option<(u64, Party)>, Failure> {
        let listener = self.listeners.get_mut(&id).filter(|listener| listener.party.session == session);
        let listener = listener.ok_or_else(|| no_listener(id))?;
        while let Some(number) = listener.backlog.pop_front() {
            // One that was closed meanwhile is handed out, too: what its end said is to be heard.
            let Some(pipe) = self.pipes.get(&number) else { continue };
            return Ok(Some((end(number, 1), pipe.sides[0].party.clone())));
        }
        listener.accepting.push_back(wait);
        Ok(None)
    }

    /// A session writes a message.
    ///
    /// # Errors
    /// NOT_FOUND, PIPE_CLOSED, PIPE_LOST, LIMIT_EXCEEDED with who does not read; INVALID_ARGUMENT for a sequence that is not above
    /// the last one.
    pub(super) fn write(
        &mut self,
        session: SessionId,
        number: u64,
        sequence: u64,
        message: Bytes,
        writer: W,
    ) -> Result<Vec<Effect<W>>, Failure> {
        let (pipe, at) = side(&mut self.pipes, session, number)?;
        let [own, other] = both(&mut pipe.sides, at);
        if own.outcomes.is_some() {
            if sequence <= own.last {
                return own.write_again(&pipe.name, other, sequence, writer);
            }
            // Messages come again in their order: those before have.
            self.budget.unbook(&[(own.party.account, own.sweep())]);
        }
        if let Some(ended) = other.ended {
            return Err(gone(&pipe.name, &other.party, ended));
        }
        if own.finished {
            let message = "nothing can be written after finish; connect again";
            return Err(Failure::new(Reason::PipeClosed, message));
        }
        if sequence <= own.last || sequence == u64::MAX {
            return Err(out_of_order(sequence, own.last));
        }
        if own.unread.len() >= UNREAD_MAX {
            let what = format!(
                "{UNREAD_MAX} messages of the pipe {} are unread; {} does not read them",
                pipe.name, other.party
            );
            return Err(limit(&what, UNREAD_MAX).with("client", &other.party.client));
        }
        self.budget.book(&own.party, message.len() as u64)?;
        own.last = sequence;
        let mut unread = Unread { message, writer: Some(writer), shown: false };
        let mut effects = Vec::new();
        // To all of them: one may have asked for it and another only after an earlier one, and a reader knows what it has had.
        for (from, to) in std::mem::take(&mut other.readers) {
            if from > sequence {
                other.readers.push_back((from, to));
                continue;
            }
            unread.shown = true;
            effects.push(Effect::Show { to, sequence, message: unread.message.clone() });
        }
        own.unread.insert(sequence, unread);
        Ok(effects)
    }

    /// A session asks for the first message from a sequence on that is not read; `reader` is told.
    ///
    /// # Errors
    /// NOT_FOUND, PIPE_CLOSED, PIPE_LOST, LIMIT_EXCEEDED.
    pub(super) fn read(
        &mut self,
        session: SessionId,
        number: u64,
        from: u64,
        reader: W,
    ) -> Result<Vec<Effect<W>>, Failure> {
        let (pipe, at) = self.side(session, number)?;
        let [own, other] = both(&mut pipe.sides, at);
        if let Some((sequence, unread)) = other.unread.range_mut(from..).next() {
            unread.shown = true;
            return Ok(vec![Effect::Show {
                to: reader,
                sequence: *sequence,
                message: unread.message.clone(),
            }]);
        }
        if other.finished {
            return Ok(vec![Effect::End { to: reader }]);
        }
        if let Some(ended) = other.ended {
            return Err(gone(&pipe.name, &other.party, ended));
        }
        if own.readers.len() >= UNREAD_MAX {
            let what = format!("{UNREAD_MAX} reads of the pipe {} wait already", pipe.name);
            return Err(limit(&what, UNREAD_MAX));
        }
        own.readers.push_back((from, reader));
        Ok(Vec::new())
    }

    /// A session has read a message of the other side. One that was taken back meanwhile is nothing.
    pub(super) fn taken(&mut self, session: SessionId, number: u64, sequence: u64) -> Vec<Effect<W>> {
        let Ok((pipe, at)) = self.side(session, number) else { return Vec::new() };
        let [_, other] = both(&mut pipe.sides, at);
        let account = other.party.account;
        // What nobody was shown, nobody has read.
        if !other.unread.get(&sequence).is_some_and(|unread| unread.shown) {
            return Vec::new();
        }
        let Some(unread) = other.unread.remove(&sequence) else { return Vec::new() };
        other.note(sequence, true);
        self.written += 1;
        self.budget.unbook(&[(account, unread.message.len() as u64)]);
        unread.writer.map(|to| Effect::Written { to }).into_iter().collect()
    }

    /// A session writes nothing more: the other side gets the end behind what is not read.
    pub(super) fn finish(&mut self, session: SessionId, number: u64) -> Vec<Effect<W>> {
        let Ok((pipe, at)) = self.side(session, number) else { return Vec::new() };
        let [own, other] = both(&mut pipe.sides, at);
        own.finished = true;
        // Whoever waits was shown what there is: nothing is left for it.
        other.readers.drain(..).map(|(_, to)| Effect::End { to }).collect()
    }

    /// Hears what a session says of a pipe at once: a message that it has read (0: none), that all was said again which it wants on
    /// this connection, that it finishes, that its side ends.
    pub(super) fn hear(
        &mut self,
        session: SessionId,
        number: u64,
        read: u64,
        (resumed, finished): (bool, bool),
        ended: Option<Ended>,
    ) -> Vec<Effect<W>> {
        let mut effects = Vec::new();
        self.knows(session, number);
        if read > 0 {
            effects.extend(self.taken(session, number, read));
        }
        if resumed && ended.is_none() {
            // With an end they are lost, as those that are under way.
            self.sweep(session, number);
        }
        if finished {
            effects.extend(self.finish(session, number));
        }
        if let Some(how) = ended {
            effects.extend(self.close(session, number, how));
        }
        effects
    }

    /// A side of a pipe ends.
    pub(super) fn close(&mut self, session: SessionId, number: u64, how: Ended) -> Vec<Effect<W>> {
        let Ok((_, at)) = self.side(session, number) else { return Vec::new() };
        self.close_side(number / 2, at, how)
    }

    fn close_side(&mut self, number: u64, at: usize, how: Ended) -> Vec<Effect<W>> {
        let Some(pipe) = self.pipes.get_mut(&number) else { return Vec::new() };
        let name = pipe.name.clone();
        let [own, other] = both(&mut pipe.sides, at);
        own.ended = Some(how);
        // Messages that are lost with this end are no orderly end, whatever was said before.
        own.finished &= own.unread.is_empty();
        let mut effects = Vec::new();
        let freed: Vec<_> = [&*own, &*other].map(|side| (side.party.account, side.bytes())).into();
        let here = Failure::new(Reason::PipeClosed, format!("this end of the pipe {name} was closed"));
        for (_, unread) in std::mem::take(&mut own.unread) {
            effects.extend(undelivered(unread, &here));
        }
        effects.extend(own.readers.drain(..).map(|(_, to)| Effect::Fail { to, why: here.clone() }));
        let there = gone(&name, &own.party, how);
        for (sequence, unread) in std::mem::take(&mut other.unread) {
            if unread.shown {
                other.note(sequence, false);
            }
            effects.extend(undelivered(unread, &there));
        }
        if !own.finished {
            effects.extend(other.readers.drain(..).map(|(_, to)| Effect::Fail { to, why: there.clone() }));
        }
        // An end of this pod that died before it was accepted is heard of; one that came from a peer may have come again.
        let says_nothing = !own.finished && (how == Ended::Closed || own.party.peer.is_some());
        let is_over = other.ended.is_some();
        let leaves = is_over || (at == 0 && says_nothing);
        if leaves && (self.leave_backlog(&name, number) || is_over) {
            self.pipes.remove(&number);
        }
        self.budget.unbook(&freed);
        effects
    }

    /// Number of ends that an account has. Ended ones too, while the other end has its own: whoever connects and closes again and again
    /// fills no listener.
    fn ends_of(&self, account: SessionId) -> usize {
        let sides = self.pipes.values().flat_map(|pipe| &pipe.sides);
        sides.filter(|side| side.party.account == account).count()
    }

    /// Returns whether a session has an end of a pipe that it has not closed.
    pub(super) fn has_any(&self, session: SessionId) -> bool {
        let is_open = |side: &Side<W>| side.party.session == session && side.ended.is_none();
        self.pipes.values().flat_map(|pipe| &pipe.sides).any(is_open)
    }

    /// A session has ended: so has all that it had.
    pub(super) fn end_session(&mut self, session: SessionId) -> Vec<Effect<W>> {
        let is_its = |party: &Party| party.session == session;
        let listeners: Vec<u64> =
            self.listeners.iter().filter(|(_, l)| is_its(&l.party)).map(|(id, _)| *id).collect();
        let mut effects = Vec::new();
        for id in listeners {
            effects.extend(self.end_listener(session, id, Ended::Lost));
        }
        for (pipe, at) in self.open_ends(is_its) {
            effects.extend(self.close_side(pipe, at, Ended::Lost));
        }
        effects
    }

    /// Ends that are open of the parties that are meant: the pipe, and which side.
    fn open_ends(&self, is_meant: impl Fn(&Party) -> bool) -> Vec<(u64, usize)> {
        let is_open = |side: &Side<W>| is_meant(&side.party) && side.ended.is_none();
        let mut ends = Vec::new();
        for (id, pipe) in &self.pipes {
            ends.extend((0..2).filter(|at| is_open(&pipe.sides[*at])).map(|at| (*id, at)));
        }
        ends
    }

    /// Somebody waits no more. What it waited with, if it did: whether its message was shown, for a writer.
    pub(super) fn forget(&mut self, waits: &Waits, is_it: impl Fn(&W) -> bool) -> Option<bool> {
        match waits {
            Waits::Listener(name) => {
                let all = self.waiting.get_mut(name)?;
                let at = all.iter().position(is_it)?;
                all.swap_remove(at);
                if all.is_empty() {
                    self.waiting.remove(name);
                }
            }
            Waits::Pipe(listener) => {
                let accepting = &mut self.listeners.get_mut(listener)?.accepting;
                let at = accepting.iter().position(is_it)?;
                accepting.remove(at);
                self.end_once(*listener);
            }
            Waits::Message(pipe) => {
                let readers = &mut self.end_of(*pipe)?.readers;
                let at = readers.iter().position(|(_, reader)| is_it(reader))?;
                readers.remove(at);
            }
            Waits::Reader(pipe, sequence) => {
                let own = self.end_of(*pipe)?;
                own.unread.get(sequence).filter(|unread| unread.writer.as_ref().is_some_and(&is_it))?;
                let (account, unread) = (own.party.account, own.unread.remove(sequence)?);
                if unread.shown {
                    own.note(*sequence, false);
                }
                self.budget.unbook(&[(account, unread.message.len() as u64)]);
                return Some(unread.shown);
            }
        }
        Some(false)
    }

    /// Name of a pipe, whoever has its other end, and the messages that are not read there.
    pub(super) fn describe(&self, number: u64) -> Option<(TensorName, Party, usize)> {
        let pipe = self.pipes.get(&(number / 2))?;
        let [own, other] = if number.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        Some((pipe.name.clone(), pipe.sides[other].party.clone(), pipe.sides[own].unread.len()))
    }

    /// Numbers, for telling people.
    pub(super) fn totals(&self) -> PipeTotals {
        PipeTotals {
            listeners: self.listeners.len(),
            pipes: self.pipes.len(),
            unread: self.pipes.values().flat_map(|pipe| &pipe.sides).map(|side| side.unread.len()).sum(),
            messages: self.written,
            resumed: self.resumed,
        }
    }

    /// The pipe of an end that a session has open, and which side that is.
    fn side(&mut self, session: SessionId, number: u64) -> Result<(&mut Pipe<W>, usize), Failure> {
        side(&mut self.pipes, session, number)
    }

    fn end_of(&mut self, number: u64) -> Option<&mut Side<W>> {
        self.pipes.get_mut(&(number / 2)).map(|pipe| &mut pipe.sides[usize::from(!number.is_multiple_of(2))])
    }
}

fn side<W>(
    pipes: &mut BTreeMap<u64, Pipe<W>>,
    session: SessionId,
    number: u64,
) -> Result<(&mut Pipe<W>, usize), Failure> {
    let at = usize::from(!number.is_multiple_of(2));
    let is_its = |side: &Side<W>| side.party.session == session && side.ended.is_none();
    let pipe = pipes.get_mut(&(number / 2)).filter(|pipe| is_its(&pipe.sides[at]));
    pipe.map(|pipe| (pipe, at)).ok_or_else(|| no_pipe(number))
}

/// Number of an end of a pipe, as its session knows it.
fn end(pipe: u64, side: u64) -> u64 {
    pipe * 2 + side
}

/// Thing that a caller waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Waits {
    /// A listener of this name.
    Listener(TensorName),
    /// A pipe to a listener.
    Pipe(u64),
    /// A message of a pipe.
    Message(u64),
    /// Somebody who reads its message.
    Reader(u64, u64),
}

impl<W> Side<W> {
    fn new(party: Party) -> Self {
        let (unread, readers) = (BTreeMap::new(), VecDeque::new());
        let outcomes = (party.account != party.session).then(Outcomes::default);
        Self { party, ended: None, finished: false, last: 0, unread, readers, outcomes }
    }

    /// Bytes of its messages that are not read.
    fn bytes(&self) -> u64 {
        self.unread.values().map(|unread| unread.message.len() as u64).sum()
    }
}

impl Party {
    /// Returns whether both have one share: the same session, or the same other peer by whatever connection.
    fn shares_with(&self, other: &Self) -> bool {
        match (&self.peer, &other.peer) {
            (Some(peer), Some(other)) => peer == other,
            (None, None) => self.session == other.session,
            _ => false,
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {:?}", self.client)?;
        self.peer.as_ref().map_or(Ok(()), |peer| write!(f, " of peer {peer}"))
    }
}

/// The side at an index, and the other one.
fn both<W>([first, second]: &mut [Side<W>; 2], at: usize) -> [&mut Side<W>; 2] {
    if at == 0 { [first, second] } else { [second, first] }
}

fn undelivered<W>(unread: Unread<W>, why: &Failure) -> Option<Effect<W>> {
    let delivered = if unread.shown { "unknown" } else { "no" };
    unread.writer.map(|to| Effect::Fail { to, why: why.clone().with("delivered", delivered) })
}

/// A write whose sequence does not come after the last one.
fn out_of_order(sequence: u64, last: u64) -> Failure {
    let message = format!("message {sequence} comes after message {last}; count up from 1");
    Failure::new(Reason::InvalidArgument, message).with("sequence", sequence)
}

fn gone(name: &TensorName, party: &Party, how: Ended) -> Failure {
    let (reason, message) = match how {
        Ended::Closed => {
            let why = format!("{party} has closed the pipe {name}; connect again");
            (Reason::PipeClosed, why)
        }
        Ended::Lost => {
            let why = match party.peer {
                None => format!("{party}, the other end of the pipe {name}, is gone; connect again"),
                Some(_) => format!(
                    "{party}, the other end of the pipe {name}, is gone, or the connection to it is lost; connect again"
                ),
            };
            (Reason::PipeLost, why)
        }
    };
    Failure::new(reason, message).with("client", &party.client)
}

/// The session has no such pipe.
pub(super) fn no_pipe(number: u64) -> Failure {
    let message = format!("this session has no open end of a pipe {number}; connect again");
    Failure::new(Reason::NotFound, message).with("pipe", number)
}

pub(super) fn no_listener(id: u64) -> Failure {
    let message = format!("this session has no listener {id}; listen again");
    Failure::new(Reason::NotFound, message).with("listener", id)
}

pub(super) fn limit(what: &str, most: usize) -> Failure {
    let message = format!("{what}, at most {most}; end or read some first");
    Failure::new(Reason::LimitExceeded, message).with("most", most)
}

#[cfg(test)]
mod tests;
