//! Sides of peers that come back on another connection: what they may not have heard, and how they go on. Pure.
//!
//! ```text
//!   on a connection ──lose──> away ──resume──> on another one: writes and reads come again, then the word that this is all
//!          └──────────────resume──────────────┘                  └── sweep: what was not written again is taken back
//! ```
//! A connection is a session of the table, so whatever comes late of an earlier one is of a session that has no such pipe. Messages
//! stay while a side is away, and can be read; nobody waits for them. A write that comes again gets the outcome that it had.

use std::collections::VecDeque;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{SessionId, TensorName};

use super::{Effect, Ended, Party, Side, Table, UNREAD_MAX, both, gone, no_pipe, out_of_order, side};

/// Outcomes of writes that their writer may not have heard. Answers come in order, and a side has [`UNREAD_MAX`] writes under way: of
/// those that it has not heard all are among the last so many. Costs 1 KiB a side at most.
#[derive(Debug, Default)]
pub(in super::super) struct Outcomes {
    /// The peer has said that it knows of the pipe. Before that the pipe ends with its connection.
    is_known: bool,
    /// Sequences, and whether they were read; else they were shown and may have been.
    last: VecDeque<(u64, bool)>,
    /// Highest sequence whose outcome is not kept any more.
    forgotten: u64,
}

// === impl Outcomes ===

impl Outcomes {
    fn note(&mut self, sequence: u64, read: bool) {
        if self.last.len() >= UNREAD_MAX
            && let Some((oldest, _)) = self.last.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.last.push_back((sequence, read));
    }

    /// Returns whether a message was read, or else may have been; none where it was not taken in.
    fn of(&self, sequence: u64) -> Option<bool> {
        let known = self.last.iter().find(|(noted, _)| *noted == sequence).map(|(_, read)| *read);
        known.or((1..=self.forgotten).contains(&sequence).then_some(false))
    }
}

// === impl Side ===

impl<W> Side<W> {
    /// Keeps the outcome of a write, where its writer may ask again.
    pub(super) fn note(&mut self, sequence: u64, read: bool) {
        if let Some(outcomes) = &mut self.outcomes {
            outcomes.note(sequence, read);
        }
    }

    /// A message that was written on a connection before is written again, or never was.
    pub(super) fn write_again(
        &mut self,
        name: &TensorName,
        other: &Self,
        sequence: u64,
        writer: W,
    ) -> Result<Vec<Effect<W>>, Failure> {
        if let Some(unread) = self.unread.get_mut(&sequence).filter(|unread| unread.writer.is_none()) {
            unread.writer = Some(writer);
            return Ok(Vec::new());
        }
        let why = other.ended.map(|how| gone(name, &other.party, how));
        match self.outcomes.as_ref().and_then(|outcomes| outcomes.of(sequence)) {
            Some(true) => Ok(vec![Effect::Written { to: writer }]),
            Some(false) => Err(why.unwrap_or_else(|| not_read(sequence)).with("delivered", "unknown")),
            None => Err(why.unwrap_or_else(|| out_of_order(sequence, self.last))),
        }
    }

    /// Takes messages back whose writer has given them up meanwhile. Returns their bytes.
    pub(super) fn sweep(&mut self) -> u64 {
        let before = self.bytes();
        self.unread.retain(|_, unread| unread.writer.is_some());
        before - self.bytes()
    }

    /// Lets those go who wait on a connection that is lost. Its messages stay.
    fn let_go(&mut self) -> Vec<Effect<W>> {
        let lost =
            Failure::new(Reason::PipeLost, "the connection is lost; the pipe goes on over another one");
        let writers = self.unread.values_mut().filter_map(|unread| unread.writer.take());
        let readers = self.readers.drain(..).map(|(_, to)| to);
        writers.chain(readers).map(|to| Effect::Fail { to, why: lost.clone() }).collect()
    }
}

// === impl Table ===

impl<W> Table<W> {
    /// The connection of a peer is lost. Its sides are away, where it can come back; others have ended. Returns whether some are
    /// away, which end by [`Table::end_session`] if they are waited for no longer.
    pub(in super::super) fn lose(&mut self, session: SessionId) -> (Vec<Effect<W>>, bool) {
        let (mut effects, mut is_awaited) = (Vec::new(), false);
        for (number, at) in self.open_ends(|party| party.session == session) {
            let own = self.pipes.get_mut(&number).map(|pipe| &mut pipe.sides[at]);
            let stays =
                |side: &&mut Side<W>| side.outcomes.as_ref().is_some_and(|outcomes| outcomes.is_known);
            match own.filter(stays) {
                Some(own) => {
                    is_awaited = true;
                    effects.extend(own.let_go());
                }
                None => effects.extend(self.close_side(number, at, Ended::Lost)),
            }
        }
        (effects, is_awaited)
    }

    /// A peer goes on with its side of a pipe on another connection, the session of `party`: the other side, and what follows.
    ///
    /// # Errors
    /// NOT_FOUND where the peer has no such side in this life, or has gone on with it on a later connection.
    pub(in super::super) fn resume(
        &mut self,
        party: &Party,
        number: u64,
    ) -> Result<(Party, Vec<Effect<W>>), Failure> {
        let at = usize::from(!number.is_multiple_of(2));
        let pipe = self.pipes.get_mut(&(number / 2)).ok_or_else(|| no_pipe(number))?;
        let [own, other] = both(&mut pipe.sides, at);
        let is_open = own.party.account == party.account && own.ended.is_none();
        let is_later = own.party.session < party.session;
        let outcomes = own.outcomes.as_mut().filter(|_| is_open && is_later);
        let outcomes = outcomes.ok_or_else(|| no_pipe(number))?;
        outcomes.is_known = true;
        own.party.session = party.session;
        self.resumed += 1;
        Ok((other.party.clone(), own.let_go()))
    }

    /// A session knows of a pipe that was opened for it.
    pub(super) fn knows(&mut self, session: SessionId, number: u64) {
        if let Ok((pipe, at)) = side(&mut self.pipes, session, number)
            && let Some(outcomes) = &mut pipe.sides[at].outcomes
        {
            outcomes.is_known = true;
        }
    }

    /// A session has written again all that it wants to: the rest is taken back.
    pub(super) fn sweep(&mut self, session: SessionId, number: u64) {
        let Ok((pipe, at)) = side(&mut self.pipes, session, number) else { return };
        let own = &mut pipe.sides[at];
        self.budget.unbook(&[(own.party.account, own.sweep())]);
    }

    /// A life of a peer is over: so are its sides, on whatever connection.
    pub(in super::super) fn end_account(&mut self, account: SessionId) -> Vec<Effect<W>> {
        let mut effects = Vec::new();
        for (pipe, at) in self.open_ends(|party| party.account == account) {
            effects.extend(self.close_side(pipe, at, Ended::Lost));
        }
        effects
    }
}

fn not_read(sequence: u64) -> Failure {
    let message = format!(
        "message {sequence} was shown and not read in its time; its outcome was lost with a connection"
    );
    Failure::new(Reason::DeadlineExceeded, message).with("sequence", sequence)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tensorlane_proto::allowed::AllowedPeers;

    use super::super::Waits;
    use super::*;

    const TO: SessionId = SessionId(2);

    type Told = Effect<&'static str>;

    /// The peer on its connection of that number.
    fn peer(link: u64) -> Party {
        let peer = Some("there".parse().unwrap());
        Party { session: SessionId(link), account: SessionId(99), client: "c".into(), peer }
    }

    /// A pipe of a peer on connection 11 that knows of it, if so.
    fn one(is_known: bool) -> (Table<&'static str>, u64) {
        let (mut table, name) = (Table::default(), TensorName::new("inbox").unwrap());
        let here = Party { session: TO, account: TO, client: "d".into(), peer: None };
        let (listener, _) = table.listen(here, name.clone(), AllowedPeers::All).unwrap();
        let (pipe, ..) = table.connect(peer(11), &name, None).unwrap().unwrap();
        table.accept(TO, listener, "a").unwrap().unwrap();
        if is_known {
            table.knows(SessionId(11), pipe);
        }
        (table, pipe)
    }

    fn write(
        table: &mut Table<&'static str>,
        link: u64,
        pipe: u64,
        sequence: u64,
    ) -> Result<Vec<Told>, Failure> {
        table.write(SessionId(link), pipe, sequence, Bytes::from("m"), "w")
    }

    /// The reason and the delivery that a failure states.
    fn stated(failed: Result<Vec<Told>, Failure>) -> (Reason, Option<String>) {
        let failure = failed.unwrap_err();
        (failure.reason, failure.detail("delivered").map(str::to_owned))
    }

    #[test]
    fn a_pipe_that_its_connector_has_not_heard_of_ends_with_the_connection() {
        let (mut table, pipe) = one(false);
        assert_eq!(table.lose(SessionId(11)), (Vec::new(), false));
        assert_eq!(table.resume(&peer(12), pipe).unwrap_err().reason, Reason::NotFound);
        assert_eq!(table.read(TO, pipe + 1, 1, "r").unwrap_err().reason, Reason::PipeLost);
    }

    #[test]
    fn a_pipe_goes_on_for_its_peer_alone_and_on_a_later_connection_alone() {
        let (mut table, pipe) = one(true);
        let stranger = Party { account: SessionId(98), ..peer(12) };
        for (party, number) in
            [(&stranger, pipe), (&peer(11), pipe), (&peer(10), pipe), (&peer(12), pipe + 1), (&peer(12), 0)]
        {
            assert_eq!(table.resume(party, number).unwrap_err().reason, Reason::NotFound);
        }
        table.resume(&peer(12), pipe).unwrap();
        assert_eq!(table.lose(SessionId(11)), (Vec::new(), false), "it has gone on");
        assert_eq!(write(&mut table, 11, pipe, 1).unwrap_err().reason, Reason::NotFound);
        assert_eq!(write(&mut table, 12, pipe, 1), Ok(Vec::new()));
        table.lose(SessionId(12));
        table.end_session(SessionId(12));
        assert_eq!(table.resume(&peer(13), pipe).unwrap_err().reason, Reason::NotFound, "the grace is over");
    }

    #[test]
    fn a_write_that_comes_again_has_the_outcome_that_it_had() {
        let (mut table, pipe) = one(true);
        (1..=4).for_each(|sequence| drop(write(&mut table, 11, pipe, sequence).unwrap()));
        table.read(TO, pipe + 1, 1, "r").unwrap();
        table.read(TO, pipe + 1, 2, "r").unwrap();
        table.taken(TO, pipe + 1, 1);
        let (effects, is_awaited) = table.lose(SessionId(11));
        assert_eq!((effects.len(), is_awaited), (3, true), "who waits on the connection is let go");
        table.resume(&peer(12), pipe).unwrap();
        assert_eq!(write(&mut table, 12, pipe, 1), Ok(vec![Effect::Written { to: "w" }]), "it was read");
        assert_eq!(write(&mut table, 12, pipe, 2), Ok(Vec::new()), "it waits again");
        assert_eq!(stated(write(&mut table, 12, pipe, 2)), (Reason::InvalidArgument, None), "once");
        assert_eq!(table.taken(TO, pipe + 1, 2), [Effect::Written { to: "w" }]);
        // Its reader ends: one was shown, the other one was not, and the fifth one comes too late.
        table.read(TO, pipe + 1, 3, "r").unwrap();
        table.close(TO, pipe + 1, Ended::Closed);
        let unknown = (Reason::PipeClosed, Some("unknown".to_owned()));
        assert_eq!(stated(write(&mut table, 12, pipe, 3)), unknown);
        for sequence in [4, 5] {
            assert_eq!(stated(write(&mut table, 12, pipe, sequence)), (Reason::PipeClosed, None));
        }
    }

    #[test]
    fn a_write_that_ended_after_its_message_was_shown_is_unknown_when_it_comes_again() {
        let (mut table, pipe) = one(true);
        write(&mut table, 11, pipe, 1).unwrap();
        table.read(TO, pipe + 1, 1, "r").unwrap();
        assert_eq!(table.forget(&Waits::Reader(pipe, 1), |_| true), Some(true));
        table.resume(&peer(12), pipe).unwrap();
        let unknown = (Reason::DeadlineExceeded, Some("unknown".to_owned()));
        assert_eq!(stated(write(&mut table, 12, pipe, 1)), unknown);
    }

    #[test]
    fn messages_that_were_given_up_while_their_writer_was_away_take_no_room_from_those_that_come_next() {
        let (mut table, pipe) = one(true);
        let all = UNREAD_MAX as u64;
        (1..=all).for_each(|sequence| drop(write(&mut table, 11, pipe, sequence).unwrap()));
        table.lose(SessionId(11));
        table.resume(&peer(12), pipe).unwrap();
        assert_eq!(write(&mut table, 12, pipe, 2), Ok(Vec::new()), "one comes again");
        (1..all).for_each(|next| drop(write(&mut table, 12, pipe, all + next).unwrap()));
        assert_eq!(write(&mut table, 12, pipe, 2 * all).unwrap_err().reason, Reason::LimitExceeded);
        assert_eq!((table.totals().unread, table.budget.bytes()), (UNREAD_MAX, all));
        assert_eq!(table.read(TO, pipe + 1, 1, "r").unwrap().len(), 1);
        assert_eq!(table.taken(TO, pipe + 1, 2), [Effect::Written { to: "w" }]);
    }

    #[test]
    fn an_end_of_a_peer_that_leaves_messages_unwritten_is_no_orderly_end() {
        for (how, reason) in [(Ended::Closed, Reason::PipeClosed), (Ended::Lost, Reason::PipeLost)] {
            let (mut table, pipe) = one(true);
            write(&mut table, 11, pipe, 1).unwrap();
            table.finish(SessionId(11), pipe);
            table.lose(SessionId(11));
            table.resume(&peer(12), pipe).unwrap();
            assert_eq!(table.hear(SessionId(12), pipe, 0, (true, true), Some(how)), []);
            assert_eq!(table.read(TO, pipe + 1, 1, "r").unwrap_err().reason, reason);
            assert_eq!((table.totals().unread, table.budget.bytes()), (0, 0));
        }
    }

    #[test]
    fn outcomes_are_kept_of_as_many_writes_as_may_be_under_way() {
        let mut outcomes = Outcomes::default();
        for sequence in 1..=UNREAD_MAX as u64 {
            outcomes.note(sequence, true);
        }
        assert_eq!([0, 1, 65].map(|sequence| outcomes.of(sequence)), [None, Some(true), None]);
        outcomes.note(65, true);
        assert_eq!([1, 2, 65].map(|sequence| outcomes.of(sequence)), [Some(false), Some(true), Some(true)]);
        assert_eq!(outcomes.last.len(), UNREAD_MAX);
    }

    #[test]
    fn a_peer_has_the_limits_of_one_session_on_all_its_connections_and_nothing_when_its_life_is_over() {
        let (mut table, pipe) = one(true);
        let name = TensorName::new("inbox").unwrap();
        table.write(SessionId(11), pipe, 1, Bytes::from(vec![0; 8 << 20]), "w").unwrap();
        table.lose(SessionId(11));
        let (next, ..) = table.connect(peer(12), &name, None).unwrap().unwrap();
        assert_eq!(stated(write(&mut table, 12, next, 1)), (Reason::LimitExceeded, None));
        assert_eq!(table.ends_of(SessionId(99)), 2, "the one that is away counts");
        table.end_account(SessionId(99));
        assert_eq!((table.totals().pipes, table.budget.bytes()), (1, 0), "the accepted one is heard of");
    }
}
