//! A crowd: two thousand peers with few seats each, in a time that exists only here. What is real: who gives way (`seats`), and
//! when a peer is dialed (`dial`). What is told again in short: that a dial meets a lack of seats before TLS or after it, that
//! a connection is used for a moment, and that one which gives way ends at the other end a moment later.
//!
//! Every need is met, no end has more connections than it may, and nobody is dialed whom nobody needs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::Dice;
use crate::peer::dial::{Dial, Due};
use crate::peer::seats::{NoSeat, Seating, Sitter, Taken, seating};

const MS: u64 = 1000;
const SHORTEST: Duration = Duration::from_millis(100);
/// Time from one end to the other, and for TLS.
const WAY: u64 = MS;
const TLS: u64 = 3 * MS;
/// Time between two looks for a seat at the end that dials.
const LOOK: u64 = 50 * MS;

#[derive(Debug, Clone, Copy)]
enum Happening {
    /// An end needs the other one.
    Need(usize, usize),
    /// Time to dial.
    Dial(usize, usize),
    /// A connection has come in, on which nothing was said.
    Arrive(usize, usize),
    /// TLS is done, and Hello is to be said.
    Greet(usize, usize),
    /// The first end uses the connection no more.
    Done(usize, usize, u64),
    /// The first end has said that it gives way; the second hears it.
    Left(usize, usize, u64),
}

/// An end of a connection.
#[derive(Debug, Clone, Copy)]
struct Seat {
    wire: u64,
    uses: usize,
    dialed: bool,
    spoken: bool,
    used: u64,
}

#[derive(Default)]
struct Node {
    seats: BTreeMap<usize, Seat>,
    leaving: usize,
    dials: HashMap<usize, Dial>,
    /// Needs that are not met, by the peer.
    needs: BTreeMap<usize, usize>,
}

struct Crowd {
    dice: Dice,
    base: Instant,
    now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    nodes: Vec<Node>,
    most: usize,
    /// Time for which a need uses a connection.
    uses: u64,
    wires: u64,
    /// Pairs of which one end needed the other.
    wanted: BTreeSet<(usize, usize)>,
    met: usize,
    dials: usize,
    told: usize,
    gave_way: usize,
    largest: usize,
}

impl Crowd {
    fn new(seed: u64, peers: usize, most: usize, uses: u64) -> Self {
        Self {
            dice: Dice(seed),
            base: Instant::now(),
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            nodes: (0..peers).map(|_| Node::default()).collect(),
            most,
            uses,
            wires: 0,
            wanted: BTreeSet::new(),
            met: 0,
            dials: 0,
            told: 0,
            gave_way: 0,
            largest: 0,
        }
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    fn after(&mut self, time: u64, what: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + time, self.sequence), what);
    }

    /// Runs until nothing happens any more.
    fn run(&mut self, end: u64) {
        while let Some(((at, _), what)) = self.queue.pop_first() {
            assert!(at < end, "it does not come to its end: {what:?}");
            self.now = at;
            match what {
                Happening::Need(a, b) => self.need(a, b),
                Happening::Dial(a, b) => self.dial(a, b),
                Happening::Arrive(a, b) => self.arrive(a, b),
                Happening::Greet(a, b) => self.greet(a, b),
                Happening::Done(a, b, wire) => self.done(a, b, wire),
                Happening::Left(a, b, wire) => self.left(a, b, wire),
            }
        }
    }

    fn seating(&self, at: usize) -> (Vec<usize>, Seating) {
        let node = &self.nodes[at];
        let sitter = |seat: &Seat| Sitter {
            in_use: seat.uses > 0,
            is_unspoken: !seat.spoken && !seat.dialed,
            unused: Duration::from_micros(self.now - seat.used),
        };
        let sitters: Vec<Sitter> = node.seats.values().map(sitter).collect();
        let taken = Taken { most: self.most, coming: 0, leaving: node.leaving, sitters: &sitters };
        (node.seats.keys().copied().collect(), seating(taken, true))
    }

    /// Makes room at one end for the other.
    fn seat(&mut self, at: usize, other: usize) -> Result<(), NoSeat> {
        if self.nodes[at].seats.contains_key(&other) {
            return Ok(());
        }
        let (sitters, answer) = self.seating(at);
        match answer {
            Seating::Free => Ok(()),
            Seating::Full(told) => Err(told),
            Seating::GivesWay(which) => {
                let gone = sitters[which];
                let seat = self.nodes[at].seats.remove(&gone).expect("it sits there");
                assert_eq!(seat.uses, 0, "a connection in use gave way");
                self.nodes[at].leaving += 1;
                self.gave_way += 1;
                self.after(WAY, Happening::Left(at, gone, seat.wire));
                Ok(())
            }
        }
    }

    fn need(&mut self, a: usize, b: usize) {
        self.wanted.insert((a, b));
        *self.nodes[a].needs.entry(b).or_default() += 1;
        self.go_on(a, b);
    }

    /// Uses the connection for what waits, or has it made.
    fn go_on(&mut self, a: usize, b: usize) {
        let now = self.now;
        let node = &mut self.nodes[a];
        if let Some(seat) = node.seats.get_mut(&b) {
            let Some(count) = node.needs.remove(&b) else { return };
            let wire = seat.wire;
            seat.uses += count;
            seat.used = now;
            let uses = self.uses;
            (0..count).for_each(|_| self.after(uses, Happening::Done(a, b, wire)));
            if let Some(there) = self.nodes[b].seats.get_mut(&a).filter(|there| there.wire == wire) {
                (there.spoken, there.used) = (true, now);
                there.uses += count;
            }
            return;
        }
        let (now, needed) = (self.instant(), self.nodes[a].needs.contains_key(&b));
        let due = self.nodes[a].dials.entry(b).or_default().due(false, needed, now, SHORTEST);
        match due {
            Due::Now => self.after(0, Happening::Dial(a, b)),
            Due::At(at) => {
                let wait = u64::try_from((at - now).as_micros()).unwrap_or(u64::MAX);
                self.after(wait.saturating_add(1), Happening::Dial(a, b));
            }
            Due::Never => {}
        }
    }

    fn dial(&mut self, a: usize, b: usize) {
        let now = self.instant();
        let is_needed = self.nodes[a].needs.contains_key(&b) && !self.nodes[a].seats.contains_key(&b);
        let due = self.nodes[a].dials.entry(b).or_default().due(false, is_needed, now, SHORTEST);
        if due != Due::Now {
            return;
        }
        if matches!(self.seating(a).1, Seating::Full(_)) {
            return self.after(LOOK, Happening::Dial(a, b));
        }
        assert!(self.wanted.contains(&(a, b)), "{a} dials {b}, which it does not need");
        self.nodes[a].dials.entry(b).or_default().begin(now);
        self.dials += 1;
        self.after(WAY, Happening::Arrive(a, b));
    }

    fn arrive(&mut self, a: usize, b: usize) {
        match self.seating(b).1 {
            Seating::Full(told) if !self.nodes[b].seats.contains_key(&a) => self.no_seat(a, b, told),
            _ => self.after(TLS, Happening::Greet(a, b)),
        }
    }

    fn greet(&mut self, a: usize, b: usize) {
        let seated = self.seat(a, b).and_then(|()| self.seat(b, a));
        if let Err(told) = seated {
            return self.no_seat(a, b, told);
        }
        self.wires += 1;
        for (here, there, dialed) in [(a, b, true), (b, a, false)] {
            let seat = Seat { wire: self.wires, uses: 0, dialed, spoken: false, used: self.now };
            self.nodes[here].seats.insert(there, seat);
            self.nodes[here].dials.entry(there).or_default().connected();
            let node = &self.nodes[here];
            self.largest = self.largest.max(node.seats.len() + node.leaving);
            assert!(node.seats.len() <= self.most, "{here} has more connections than seats");
        }
        self.nodes[a].dials.entry(b).or_default().end();
        self.go_on(a, b);
        self.go_on(b, a);
    }

    fn no_seat(&mut self, a: usize, b: usize, told: NoSeat) {
        let (now, chance) = (self.instant(), self.dice.roll(1000) as f64 / 1000.0);
        let told = NoSeat::of_record(&told.record()).expect("what is told is understood");
        self.nodes[a].dials.entry(b).or_default().no_seat(told, now, chance);
        self.told += 1;
        self.go_on(a, b);
    }

    fn done(&mut self, a: usize, b: usize, wire: u64) {
        let now = self.now;
        self.met += 1;
        for (here, there) in [(a, b), (b, a)] {
            if let Some(seat) = self.nodes[here].seats.get_mut(&there).filter(|seat| seat.wire == wire) {
                seat.uses -= 1;
                seat.used = now;
            }
        }
    }

    fn left(&mut self, a: usize, b: usize, wire: u64) {
        self.nodes[a].leaving -= 1;
        let is_it = self.nodes[b].seats.get(&a).is_some_and(|seat| seat.wire == wire);
        if is_it {
            self.nodes[b].seats.remove(&a);
        }
        // What was asked of it in that moment is asked again.
        self.go_on(b, a);
        self.go_on(a, b);
    }
}

#[test]
fn two_thousand_peers_with_sixteen_seats_meet_every_need_and_connect_nobody_else() {
    for seed in 0..4 {
        let (peers, most) = (2000, 16);
        let mut crowd = Crowd::new(seed, peers, most, 200 * MS);
        let mut asked = 0;
        for a in 0..peers {
            for _ in 0..5 {
                // Two thirds of all want one of fifty.
                let among = if crowd.dice.one_in(3) { peers } else { 50 };
                let b = crowd.dice.roll(among as u64) as usize;
                if a != b {
                    let at = crowd.dice.roll(1000 * MS);
                    crowd.after(at, Happening::Need(a, b));
                    asked += 1;
                }
            }
        }
        crowd.run(600_000 * MS);
        assert_eq!(crowd.met, asked, "every need is met");
        assert!(crowd.nodes.iter().all(|node| node.needs.is_empty() && node.leaving == 0));
        let Crowd { gave_way, told, largest, .. } = crowd;
        assert!(
            gave_way > 0 && told > 0 && largest <= 2 * most,
            "{gave_way} gave way, {told} told, {largest} at most"
        );
        assert!(crowd.dials < 20 * asked, "{} dials for {asked} needs", crowd.dials);
        println!(
            "{asked} needs, {} dials, {} without a seat, {} gave way, over after {} ms",
            crowd.dials,
            crowd.told,
            crowd.gave_way,
            crowd.now / MS
        );
    }
}

#[test]
fn peers_with_one_seat_that_all_need_each_other_come_to_an_end() {
    for seed in 0..50 {
        let mut crowd = Crowd::new(seed, 6, 1, 20 * MS);
        for a in 0..6 {
            (0..6).filter(|b| *b != a).for_each(|b| crowd.after(0, Happening::Need(a, b)));
        }
        crowd.run(600_000 * MS);
        assert_eq!((crowd.met, crowd.nodes.iter().all(|node| node.needs.is_empty())), (30, true));
    }
}
