use std::collections::BTreeSet;

use bytes::Bytes;
use tensorlane_proto::allowed::AllowedPeers;
use tensorlane_proto::ledger::{SessionId, TensorName};

use super::super::table::{Effect, Party, Table};
use super::*;

/// Messages of each side.
const MESSAGES: u64 = 6;
/// Writes of each side that are under way at once.
const AT_ONCE: usize = 3;
/// The client at the listener's sidecar.
const TO: SessionId = SessionId(2);
/// Turn of whoever waits there.
const HERE: u64 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Write(u64),
    Read(u64),
}

/// Frame to the peer.
#[derive(Debug, Clone, Copy)]
enum Said {
    Call(u64, Call),
    End(v1::PeerPipeEnd),
    Close(v1::PeerPipeEnd),
}

/// Frame of the peer, with the number of the call.
#[derive(Debug, Clone, Copy)]
enum Told {
    Written(u64),
    Shown(u64, u64),
    End(u64),
    Heard,
}

/// Moment at which the peer notices that a connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notices {
    First,
    AfterTheNext,
    /// And what was on its way comes when the pipe goes on already.
    AfterWhatIsLate,
}

/// Side of the pipe, and what it has done.
#[derive(Default)]
struct Doing {
    begun: u64,
    written: BTreeSet<u64>,
    read: u64,
    reads: bool,
    finished: bool,
    is_end: bool,
}

/// A connector and the table of its peer, with connections that are lost between them.
struct Rig {
    table: Table<(u64, u64)>,
    pipe: u64,
    turn: u64,
    steps: u64,
    crossing: Crossing<Call>,
    calls: BTreeMap<u64, Call>,
    there: VecDeque<Said>,
    back: VecDeque<Told>,
    near: Doing,
    far: Doing,
    closed: bool,
}

fn party(turn: u64) -> Party {
    let peer = Some("there".parse().unwrap());
    Party { session: SessionId(100 + turn), account: SessionId(99), client: "c".into(), peer }
}

impl Doing {
    fn may_write(&self) -> bool {
        self.begun < MESSAGES && (self.begun as usize) < self.written.len() + AT_ONCE
    }

    fn wrote(&mut self, sequence: u64) {
        assert!(self.written.insert(sequence), "the outcome of {sequence} comes twice");
    }

    fn may_finish(&self) -> bool {
        self.written.len() as u64 == MESSAGES && !self.finished
    }

    fn took(&mut self, sequence: u64) {
        assert_eq!(sequence, self.read + 1, "messages come once and in order");
        (self.read, self.reads) = (sequence, false);
    }
}

impl Rig {
    fn new() -> Self {
        let (mut table, name) = (Table::default(), TensorName::new("inbox").unwrap());
        let here = Party { session: TO, account: TO, client: "d".into(), peer: None };
        let (listener, _) = table.listen(here, name.clone(), AllowedPeers::All).unwrap();
        let (pipe, ..) = table.connect(party(1), &name, None).unwrap().unwrap();
        table.accept(TO, listener, (HERE, 0)).unwrap().unwrap();
        table.hear(party(1).session, pipe, 0, (false, false), None);
        let (there, back) = (VecDeque::new(), VecDeque::new());
        let (near, far, calls) = (Doing::default(), Doing::default(), BTreeMap::new());
        let crossing = Crossing::new();
        Self { table, pipe, turn: 1, steps: 0, crossing, calls, there, back, near, far, closed: false }
    }

    fn call(&mut self, call: Call) {
        let number = self.crossing.enter(call).unwrap();
        self.calls.insert(number, call);
        if self.crossing.is_on() {
            self.there.push_back(Said::Call(number, call));
        }
    }

    fn say(&mut self, end: v1::PeerPipeEnd) {
        if self.crossing.note(&end) {
            self.there.push_back(Said::End(end));
        }
    }

    /// Both sides do what they can.
    fn act(&mut self) {
        while self.near.may_write() {
            self.near.begun += 1;
            self.call(Call::Write(self.near.begun));
        }
        if !self.near.reads && !self.near.is_end {
            self.near.reads = true;
            self.call(Call::Read(self.near.read + 1));
        }
        if self.near.may_finish() {
            self.near.finished = true;
            self.say(v1::PeerPipeEnd { finished: true, ..Default::default() });
        }
        if self.near.finished && self.near.is_end && !std::mem::replace(&mut self.closed, true) {
            assert_eq!(self.crossing.close(Ended::Closed), []);
            if self.crossing.is_on() {
                self.there.push_back(Said::Close(self.crossing.last_word()));
            }
        }
        let far = self.pipe + 1;
        while self.far.may_write() {
            self.far.begun += 1;
            let sequence = self.far.begun;
            let written = self.table.write(TO, far, sequence, Bytes::from("m"), (HERE, sequence));
            self.tell(written.unwrap());
        }
        if !self.far.reads && !self.far.is_end {
            self.far.reads = true;
            let read = self.table.read(TO, far, self.far.read + 1, (HERE, 0));
            self.tell(read.unwrap());
        }
        if self.far.may_finish() {
            self.far.finished = true;
            let effects = self.table.finish(TO, far);
            self.tell(effects);
        }
    }

    fn tell(&mut self, effects: Vec<Effect<(u64, u64)>>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Show { to: (HERE, _), sequence, .. } => {
                    self.far.took(sequence);
                    effects.extend(self.table.taken(TO, self.pipe + 1, sequence));
                }
                Effect::Written { to: (HERE, sequence) } => self.far.wrote(sequence),
                Effect::End { to: (HERE, _) } => (self.far.is_end, self.far.reads) = (true, false),
                Effect::Fail { to: (HERE, _), why } => panic!("nothing fails at the listener: {why}"),
                Effect::Show { to: (turn, number), sequence, .. } if turn == self.turn => {
                    self.back.push_back(Told::Shown(number, sequence));
                }
                Effect::Written { to: (turn, number) } if turn == self.turn => {
                    self.back.push_back(Told::Written(number));
                }
                Effect::End { to: (turn, number) } if turn == self.turn => {
                    self.back.push_back(Told::End(number));
                }
                Effect::Fail { to: (turn, _), why } if turn == self.turn => panic!("nothing fails: {why}"),
                // Of a connection that is lost.
                _ => {}
            }
        }
    }

    /// The peer hears something of a turn. Returns what follows; none where it is refused.
    fn hear(&mut self, turn: u64, said: Said) -> Option<Vec<Effect<(u64, u64)>>> {
        let (session, pipe) = (party(turn).session, self.pipe);
        match said {
            Said::Call(number, Call::Write(sequence)) => {
                self.table.write(session, pipe, sequence, Bytes::from("m"), (turn, number)).ok()
            }
            Said::Call(number, Call::Read(from)) => self.table.read(session, pipe, from, (turn, number)).ok(),
            Said::End(end) | Said::Close(end) => {
                let ended = end.closed.then_some(Ended::Closed);
                Some(self.table.hear(session, pipe, end.read, (end.resumed, end.finished), ended))
            }
        }
    }

    fn learn(&mut self, told: Told) {
        let number = match told {
            Told::Heard => return self.crossing.heard(),
            Told::Written(number) | Told::Shown(number, _) | Told::End(number) => number,
        };
        self.crossing.leave(number);
        match (self.calls.remove(&number), told) {
            (Some(Call::Write(sequence)), Told::Written(_)) => self.near.wrote(sequence),
            (Some(Call::Read(_)), Told::Shown(_, sequence)) => {
                self.near.took(sequence);
                self.say(v1::PeerPipeEnd { read: sequence, ..Default::default() });
            }
            (Some(Call::Read(_)), Told::End(_)) => (self.near.is_end, self.near.reads) = (true, false),
            other => panic!("an answer to another call: {other:?}"),
        }
    }

    /// A frame comes, of either side in turns. Returns false where none is on its way.
    fn deliver(&mut self) -> bool {
        self.steps += 1;
        let first_there = self.steps.is_multiple_of(2) || self.back.is_empty();
        if first_there && let Some(said) = self.there.pop_front() {
            let is_close = matches!(said, Said::Close(_));
            let effects = self.hear(self.turn, said).expect("nothing is refused");
            self.tell(effects);
            if is_close {
                self.back.push_back(Told::Heard);
            }
            return true;
        }
        let told = self.back.pop_front();
        let is_some = told.is_some();
        told.into_iter().for_each(|told| self.learn(told));
        is_some || !self.there.is_empty()
    }

    fn lose(&mut self, turn: u64) {
        let (effects, _) = self.table.lose(party(turn).session);
        self.tell(effects);
    }

    /// The connection is lost with all that is on its way, both sides go on, and it is back.
    fn cut(&mut self, notices: Notices) {
        let Some(given_up) = self.crossing.lost() else { return };
        assert_eq!(given_up, []);
        let late = std::mem::take(&mut self.there);
        self.back.clear();
        let before = self.turn;
        self.turn += 1;
        if notices == Notices::First {
            self.lose(before);
        }
        self.act();
        match self.table.resume(&party(self.turn), self.pipe) {
            Ok((_, effects)) => self.tell(effects),
            Err(_) => {
                assert!(self.closed, "only what was closed does not go on");
                assert_eq!(self.crossing.over(), []);
                return;
            }
        }
        if notices == Notices::AfterWhatIsLate {
            for said in late {
                let effects = self.hear(before, said);
                self.tell(effects.unwrap_or_default());
            }
        }
        if notices != Notices::First {
            self.lose(before);
        }
        for word in self.crossing.resumed() {
            self.there.push_back(match word {
                Word::End(end) => Said::End(end),
                Word::Call(number, call) => Said::Call(number, call),
                Word::Close(end) => Said::Close(end),
            });
        }
    }
}

/// Runs a pipe to its end, with losses before these steps; gives the number of steps.
fn run(cuts: &[u64], notices: Notices) -> u64 {
    let mut rig = Rig::new();
    loop {
        rig.act();
        if cuts.contains(&rig.steps) {
            rig.cut(notices);
        }
        if !rig.deliver() {
            break;
        }
    }
    for side in [&rig.near, &rig.far] {
        let all: BTreeSet<u64> = (1..=MESSAGES).collect();
        assert_eq!((side.read, side.is_end, &side.written), (MESSAGES, true, &all), "{cuts:?} {notices:?}");
    }
    assert_eq!(rig.crossing.leg, Leg::Over, "{cuts:?} {notices:?}");
    rig.table.close(TO, rig.pipe + 1, Ended::Closed);
    assert_eq!((rig.table.totals().pipes, rig.table.totals().unread), (0, 0));
    rig.steps
}

const ALL_NOTICES: [Notices; 3] = [Notices::First, Notices::AfterTheNext, Notices::AfterWhatIsLate];

#[test]
fn a_pipe_brings_every_message_once_and_in_order_whichever_frames_are_lost_with_a_connection() {
    for notices in ALL_NOTICES {
        let steps = run(&[], notices);
        for cut in 0..=steps {
            run(&[cut], notices);
            for next in 1..8 {
                run(&[cut, cut + next, cut + 2 * next], notices);
            }
        }
        let all: Vec<u64> = (0..8 * steps).step_by(5).collect();
        run(&all, notices);
    }
}

#[test]
fn a_call_that_is_given_up_while_the_connection_is_lost_is_not_asked_again_and_its_message_is_taken_back() {
    let mut rig = Rig::new();
    rig.call(Call::Write(1));
    rig.call(Call::Write(2));
    while let Some(said) = rig.there.pop_front() {
        let effects = rig.hear(1, said).unwrap();
        rig.tell(effects);
    }
    assert_eq!(rig.crossing.lost(), Some(Vec::new()));
    rig.turn = 2;
    rig.lose(1);
    assert_eq!(rig.table.totals().unread, 2, "what was written can be read meanwhile");
    rig.crossing.leave(1);
    rig.table.resume(&party(2), rig.pipe).unwrap();
    let words = rig.crossing.resumed();
    let last = v1::PeerPipeEnd { resumed: true, ..Default::default() };
    assert_eq!(words, [Word::Call(2, Call::Write(2)), Word::End(last)]);
    assert_eq!(rig.hear(2, Said::Call(2, Call::Write(2))), Some(Vec::new()));
    assert_eq!(rig.table.totals().unread, 2);
    rig.hear(2, Said::End(last));
    assert_eq!(rig.table.totals().unread, 1);
    rig.far.read = 1;
    rig.act();
    assert!(matches!(rig.back.pop_front(), Some(Told::Written(2))), "the second one was read");
}

#[test]
fn an_end_that_is_closed_while_the_connection_is_lost_answers_its_calls_and_says_so_on_the_next_one() {
    let mut crossing = Crossing::new();
    crossing.enter("call").unwrap();
    assert_eq!(crossing.lost(), Some(Vec::new()));
    assert_eq!(crossing.lost(), None, "lost once");
    assert!(!crossing.note(&v1::PeerPipeEnd { finished: true, ..Default::default() }));
    assert_eq!(crossing.close(Ended::Lost), ["call"]);
    assert_eq!(crossing.enter("late"), None);
    let last = v1::PeerPipeEnd { finished: true, lost: true, resumed: true, ..Default::default() };
    assert_eq!(crossing.resumed(), [Word::Close(last)]);
    assert_eq!(crossing.lost(), Some(Vec::new()), "it may not have been heard");
    assert_eq!(crossing.resumed(), [Word::Close(last)]);
    crossing.heard();
    assert_eq!(crossing.lost(), None);
}

#[test]
fn a_pipe_whose_peer_does_not_come_back_gives_its_calls_up_and_takes_no_more() {
    let mut crossing = Crossing::new();
    crossing.enter("first").unwrap();
    crossing.lost();
    crossing.enter("second").unwrap();
    assert_eq!(crossing.over(), ["first", "second"]);
    assert_eq!(crossing.enter("late"), None);
    assert!(!crossing.note(&v1::PeerPipeEnd { read: 1, ..Default::default() }));
}

#[test]
fn reads_that_are_said_again_have_a_bound() {
    let mut crossing = Crossing::<Call>::new();
    for read in 1..=UNREAD_MAX as u64 + 9 {
        assert!(crossing.note(&v1::PeerPipeEnd { read, ..Default::default() }));
    }
    crossing.lost();
    let words = crossing.resumed();
    assert_eq!(words.len(), UNREAD_MAX + 1);
    let first = v1::PeerPipeEnd { read: 10, ..Default::default() };
    assert_eq!(words[0], Word::End(first));
}
