//! The table of pipes, for the simulation of peers (`peer::sim`), which names its sessions and those who wait by numbers.

use bytes::Bytes;
use tensorlane_proto::allowed::AllowedPeers;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{SessionId, TensorName};

use super::PipeTotals;
use super::table::{Effect, Ended, Party, Table};

/// Pipes of one life of a peer.
#[derive(Default)]
pub(crate) struct SimPipes(Table<u64>);

/// News for somebody who waits, once.
#[derive(Debug)]
pub(crate) enum PipeNews {
    /// A pipe was connected to the listener.
    Accepted {
        /// End of it that is the listener's.
        pipe: u64,
    },
    /// A message can be read.
    Show {
        /// Sequence of the message.
        sequence: u64,
        /// Bytes of the message.
        message: Bytes,
    },
    /// The other side has finished, and all was read.
    End,
    /// The other side has read the message.
    Written,
    /// The wait came to nothing.
    Fail(Failure),
}

/// News with who waits for them.
pub(crate) type ToldPipes = Vec<(u64, PipeNews)>;

fn news(effects: Vec<Effect<u64>>) -> ToldPipes {
    let told = |effect: Effect<u64>| match effect {
        Effect::Accepted { to, pipe, .. } => (to, PipeNews::Accepted { pipe }),
        Effect::Show { to, sequence, message } => (to, PipeNews::Show { sequence, message }),
        Effect::End { to } => (to, PipeNews::End),
        Effect::Written { to } => (to, PipeNews::Written),
        Effect::Fail { to, why } => (to, PipeNews::Fail(why)),
        Effect::Listens { to } => panic!("{to} waits for no listener"),
    };
    effects.into_iter().map(told).collect()
}

/// A session whose pipes end with it.
fn party(session: u64, client: &str, peer: Option<PeerName>) -> Party {
    let session = SessionId(session);
    Party { session, account: session, client: client.into(), peer }
}

fn name() -> TensorName {
    TensorName::new("inbox").expect("a name")
}

// === impl SimPipes ===

impl SimPipes {
    /// A session listens. Returns the listener.
    pub(crate) fn listen(&mut self, session: u64) -> u64 {
        let party = party(session, "listens", None);
        let (listener, effects) =
            self.0.listen(party, name(), AllowedPeers::All).expect("nobody else listens");
        assert_eq!(effects, [], "nobody waits for a listener");
        listener
    }

    /// A session takes the next pipe of its listener; `to` is told of one that comes.
    pub(crate) fn accept(&mut self, session: u64, listener: u64, to: u64) -> Option<u64> {
        let accepted = self.0.accept(SessionId(session), listener, to).expect("it listens");
        accepted.map(|(pipe, _)| pipe)
    }

    /// A peer connects to the listener here. Returns its end.
    pub(crate) fn connect(&mut self, session: u64, peer: &PeerName) -> Result<(u64, ToldPipes), Failure> {
        let party = party(session, "connects", Some(peer.clone()));
        let connected = self.0.connect(party, &name(), None)?;
        let (pipe, _, effects) =
            connected.ok_or_else(|| Failure::new(Reason::NotFound, "nobody listens at this peer"))?;
        Ok((pipe, news(effects)))
    }

    /// A session writes a message; `to` is told when it was read.
    pub(crate) fn write(
        &mut self,
        session: u64,
        request: v1::PipeWriteRequest,
        to: u64,
    ) -> Result<ToldPipes, Failure> {
        let v1::PipeWriteRequest { pipe, sequence, message, .. } = request;
        self.0.write(SessionId(session), pipe, sequence, message, to).map(news)
    }

    /// A session asks for the first message from a sequence on; `to` is told.
    pub(crate) fn read(&mut self, session: u64, pipe: u64, from: u64, to: u64) -> Result<ToldPipes, Failure> {
        self.0.read(SessionId(session), pipe, from, to).map(news)
    }

    /// A session says what it has read, that it finishes, or that it closes its end.
    pub(crate) fn hear(&mut self, session: u64, said: &v1::PeerPipeEnd) -> ToldPipes {
        let v1::PeerPipeEnd { pipe, read, finished, closed, .. } = *said;
        let ended = closed.then_some(Ended::Closed);
        news(self.0.hear(SessionId(session), pipe, read, (false, finished), ended))
    }

    /// A listener ends.
    pub(crate) fn stop_listening(&mut self, session: u64, listener: u64) -> ToldPipes {
        news(self.0.end_listener(SessionId(session), listener, Ended::Closed))
    }

    /// A session has ended, and all that it had.
    pub(crate) fn end_session(&mut self, session: u64) -> ToldPipes {
        news(self.0.end_session(SessionId(session)))
    }

    /// Checks that nothing is left.
    pub(crate) fn assert_empty(&self) {
        let totals = self.0.totals();
        let messages = totals.messages;
        assert_eq!(totals, PipeTotals { messages, ..PipeTotals::default() }, "something of pipes is left");
    }
}
