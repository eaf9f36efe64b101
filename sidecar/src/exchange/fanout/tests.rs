use proptest::prelude::*;
use tensorlane_proto::{Incarnation, PeerName};

use super::readers::{ALTERED_MAX, KEPT_MAX};
use super::*;

const PASS: RelayToken = [1; 16];

fn peer(number: usize) -> PeerKey {
    PeerKey { name: PeerName::new(&format!("p{number}")).unwrap(), incarnation: Incarnation(1) }
}

fn lost_for(number: usize, why: HolderLost) -> LostHolder {
    LostHolder { peer: peer(number), why: Some(why) }
}

/// Lost holder that had let the tensor go.
fn lost(number: usize) -> LostHolder {
    lost_for(number, HolderLost::Refused)
}

fn enter(fanout: &mut Fanout, number: usize) -> Vec<PeerKey> {
    fanout.enter(7, &peer(number), &[], PASS).unwrap().peers
}

#[test]
fn readers_that_come_together_form_a_chain_and_the_owner_serves_one() {
    let mut fanout = Fanout::new(1);
    assert!(enter(&mut fanout, 0).is_empty());
    for number in 1..8 {
        assert_eq!(enter(&mut fanout, number), [peer(number - 1)]);
    }
}

#[test]
fn of_degree_two_they_form_a_tree() {
    let mut fanout = Fanout::new(2);
    assert!(enter(&mut fanout, 0).is_empty() && enter(&mut fanout, 1).is_empty());
    let parents: Vec<_> = (2..8).map(|number| enter(&mut fanout, number)).collect();
    let expected = [0, 0, 1, 1, 2, 2].map(|number| vec![peer(number)]);
    assert_eq!(parents, expected);
}

#[test]
fn a_late_reader_is_given_to_whoever_has_it_and_the_owner_is_spared() {
    let mut fanout = Fanout::new(1);
    enter(&mut fanout, 0);
    enter(&mut fanout, 1);
    fanout.left(7, &peer(0), true);
    fanout.left(7, &peer(1), true);
    assert_eq!(enter(&mut fanout, 2), [peer(1)], "the latest");
    assert_eq!(enter(&mut fanout, 3), [peer(0)], "the one with a place");
    assert!(enter(&mut fanout, 4).is_empty(), "the owner has a place, and is nearer than a reader");
    assert_eq!(enter(&mut fanout, 5), [peer(4)], "the reader that is nearest to the owner");
}

#[test]
fn the_readers_of_one_that_died_go_on_from_the_one_before_it() {
    let mut fanout = Fanout::new(1);
    (0..5).for_each(|number| drop(enter(&mut fanout, number)));
    fanout.away(&peer(2), true);
    assert_eq!(fanout.seek(7, &peer(3), &[lost_for(2, HolderLost::Unreachable)]), [peer(1)]);
    // Also where its own connection with the owner is well, if it gave nothing.
    for why in [HolderLost::Refused, HolderLost::Stalled, HolderLost::Starved] {
        let mut fanout = Fanout::new(1);
        (0..5).for_each(|number| drop(enter(&mut fanout, number)));
        assert_eq!(fanout.seek(7, &peer(3), &[lost_for(2, why)]), [peer(1)]);
    }
    // The first one dies: the next one is the owner's.
    fanout.gone(&peer(0));
    assert!(fanout.seek(7, &peer(1), &[lost(0)]).is_empty());
}

#[test]
fn a_reader_is_never_given_to_one_that_waits_for_it() {
    let mut fanout = Fanout::new(1);
    (0..4).for_each(|number| drop(enter(&mut fanout, number)));
    // 3 has a place, and gets its bytes from 1.
    assert!(fanout.seek(7, &peer(1), &[lost(0)]).is_empty());
    assert_eq!(fanout.seek(7, &peer(3), &[]), [peer(2)]);
}

#[test]
fn a_reader_whose_connection_with_the_owner_is_another_one_keeps_its_holder() {
    let mut fanout = Fanout::new(1);
    (0..3).for_each(|number| drop(enter(&mut fanout, number)));
    fanout.left(7, &peer(0), true);
    fanout.away(&peer(2), true);
    assert_eq!(enter(&mut fanout, 2), [peer(1)], "though another one has it all by now");
    let told = fanout.enter(7, &peer(2), &[lost(1)], PASS).unwrap().peers;
    assert_eq!(told, [peer(0)]);
}

#[test]
fn a_holder_that_has_let_it_go_is_forgotten_and_one_that_comes_back_is_not() {
    let mut fanout = Fanout::new(1);
    enter(&mut fanout, 0);
    fanout.left(7, &peer(0), true);
    assert_eq!(enter(&mut fanout, 1), [peer(0)]);
    assert!(fanout.seek(7, &peer(1), &[lost(0)]).is_empty());
    fanout.left(7, &peer(1), true);
    fanout.away(&peer(1), true);
    assert!(enter(&mut fanout, 2).is_empty());
    fanout.left(7, &peer(2), false);
    fanout.away(&peer(1), false);
    assert_eq!(enter(&mut fanout, 2), [peer(1)]);
}

/// Readers that had it and have let it go, which nobody knows.
fn stale(numbers: std::ops::Range<usize>) -> Fanout {
    let mut fanout = Fanout::new(1);
    for number in numbers {
        enter(&mut fanout, number);
        fanout.left(7, &peer(number), true);
    }
    fanout
}

#[test]
fn a_reader_that_was_refused_is_given_to_the_same_one_where_that_is_getting_it_by_now() {
    let mut fanout = stale(0..3);
    assert_eq!(enter(&mut fanout, 0), [peer(2)]);
    assert_eq!(enter(&mut fanout, 2), [peer(1)]);
    assert!(enter(&mut fanout, 1).is_empty());
    assert_eq!(fanout.seek(7, &peer(0), &[lost(2)]), [peer(2)], "not the owner, which serves 1");
    // Nor is it held against 2, so that others have places as before.
    assert_eq!(enter(&mut fanout, 3), [peer(0)]);
    // It refuses once more: then it does not do.
    assert_eq!(fanout.seek(7, &peer(0), &[lost(2)]), [peer(1)]);
}

#[test]
fn a_reader_that_came_first_and_was_refused_goes_behind_those_who_do_not_wait_for_it() {
    let mut fanout = stale(2..3);
    assert_eq!(enter(&mut fanout, 0), [peer(2)]);
    assert!(enter(&mut fanout, 1).is_empty());
    assert_eq!(fanout.seek(7, &peer(0), &[lost(2)]), [peer(1)]);
    assert_eq!(enter(&mut fanout, 2), [peer(0)]);
}

#[test]
fn a_reader_that_many_refuse_asks_on_and_there_is_an_end() {
    let mut fanout = stale(0..12);
    let mut refused = Vec::new();
    let mut holder = enter(&mut fanout, 0);
    for asked in 1..8 {
        refused.push(LostHolder { peer: holder[0].clone(), why: Some(HolderLost::Refused) });
        holder = fanout.seek(7, &peer(0), &refused);
        assert!(!holder.is_empty(), "{asked} were asked, and others may have it");
    }
    refused.push(LostHolder { peer: holder[0].clone(), why: Some(HolderLost::Refused) });
    assert!(fanout.seek(7, &peer(0), &refused).is_empty(), "eight were asked");
}

#[test]
fn readers_that_all_had_it_and_let_it_go_form_a_chain_whenever_their_asks_come() {
    // Each of 8 begins when those in front of it have begun, and is refused by whoever has not begun by then.
    for heard_after in 0..8 {
        let mut fanout = stale(0..8);
        let mut asks: Vec<(usize, Vec<PeerKey>, Vec<LostHolder>)> = Vec::new();
        for begun in 0..8 + heard_after {
            if begun < 8 {
                asks.push((begun, enter(&mut fanout, begun), Vec::new()));
            }
            let Some(reader) = begun.checked_sub(heard_after) else { continue };
            let (number, holder, refused) = &mut asks[reader];
            let has_begun = |holder: &PeerKey| (0..=begun.min(7)).any(|number| peer(number) == *holder);
            while let Some(holder_now) = holder.first().filter(|holder| !has_begun(holder)).cloned() {
                refused.push(LostHolder { peer: holder_now, why: Some(HolderLost::Refused) });
                *holder = fanout.seek(7, &peer(*number), refused);
            }
        }
        let all = &fanout.tensors[&7].all;
        let direct = all.iter().filter(|reader| reader.from == From::Owner).count();
        assert!(direct == 1 && all.iter().all(Reader::is_well), "{heard_after}: {all:?}");
        let of = |at: usize| fanout.tensors[&7].served_by(at, usize::MAX);
        assert!((0..8).all(|at| of(at) <= 1), "{heard_after}: {all:?}");
    }
}

#[test]
fn whoever_is_not_reached_by_one_reader_serves_the_others() {
    for why in [HolderLost::Unreachable, HolderLost::Slow, HolderLost::Stalled] {
        let mut fanout = Fanout::new(2);
        enter(&mut fanout, 0);
        fanout.left(7, &peer(0), true);
        assert_eq!(enter(&mut fanout, 1), [peer(0)]);
        assert!(fanout.seek(7, &peer(1), &[lost_for(0, why)]).is_empty());
        assert_eq!(enter(&mut fanout, 2), [peer(0)], "{why:?}");
    }
    // Likewise one that is getting it.
    let mut fanout = Fanout::new(1);
    (0..2).for_each(|number| drop(enter(&mut fanout, number)));
    assert!(fanout.seek(7, &peer(1), &[lost_for(0, HolderLost::Unreachable)]).is_empty());
    assert_eq!(enter(&mut fanout, 2), [peer(0)]);
}

#[test]
fn whoever_altered_a_tensor_is_not_named_for_it_again_and_for_others_it_is() {
    let mut fanout = Fanout::new(1);
    enter(&mut fanout, 0);
    fanout.left(7, &peer(0), true);
    assert_eq!(enter(&mut fanout, 1), [peer(0)]);
    fanout.left(7, &peer(1), false);
    fanout.blame(7, &[lost_for(0, HolderLost::Altered)], PASS);
    assert!(enter(&mut fanout, 2).is_empty());
    fanout.left(7, &peer(2), false);
    // Nor when it gets it again, from its beginning, nor by who had it from it before.
    assert!(enter(&mut fanout, 0).is_empty());
    assert!(enter(&mut fanout, 3).is_empty(), "the owner serves one more");
    fanout.left(7, &peer(0), true);
    assert_eq!(enter(&mut fanout, 4), [peer(3)]);
    fanout.enter(8, &peer(0), &[], PASS).unwrap();
    assert_eq!(fanout.enter(8, &peer(1), &[], PASS).unwrap().peers, [peer(0)]);
    // Its next life is another one, and what is remembered of this one ends.
    fanout.gone(&peer(0));
    assert!(fanout.tensors[&7].altered.is_empty());
}

#[test]
fn blame_is_remembered_where_nobody_reads_and_ends_where_its_limit_is() {
    let mut fanout = Fanout::new(1);
    let blamed = |number| lost_for(number, HolderLost::Altered);
    fanout.blame(7, &[lost(98)], PASS);
    assert!(fanout.tensors.is_empty(), "nobody altered it");
    fanout.blame(7, &[blamed(99)], PASS);
    fanout.blame(7, &[blamed(99)], PASS);
    assert_eq!(fanout.tensors[&7].altered, [peer(99)]);
    (0..2).for_each(|number| drop(enter(&mut fanout, number)));
    (2..ALTERED_MAX + 10).for_each(|number| fanout.blame(7, &[blamed(number)], PASS));
    assert_eq!(fanout.tensors[&7].altered.len(), ALTERED_MAX);
    assert!(enter(&mut fanout, 1_000).is_empty(), "nobody is believed any more");
}

#[test]
fn a_reader_is_told_who_else_has_all_in_case_that_the_owner_is_lost() {
    let mut fanout = Fanout::new(1);
    let spares = |fanout: &mut Fanout, number, lost: &[LostHolder]| {
        fanout.enter(7, &peer(number), lost, PASS).unwrap().spares
    };
    assert!(spares(&mut fanout, 0, &[]).is_empty());
    assert!(spares(&mut fanout, 1, &[]).is_empty(), "what is on its way may end with the owner");
    (2..8).for_each(|number| drop(enter(&mut fanout, number)));
    (0..7).for_each(|number| fanout.left(7, &peer(number), true));
    // 7 gets it from 6, which so has no place.
    assert_eq!(enter(&mut fanout, 8), [peer(5)]);
    assert_eq!(spares(&mut fanout, 8, &[]), [4, 3, 2, 1].map(peer), "those with a place, the latest first");
    fanout.away(&peer(4), true);
    fanout.blame(7, &[lost_for(3, HolderLost::Altered)], PASS);
    let lost = [lost_for(2, HolderLost::Unreachable)];
    assert_eq!(spares(&mut fanout, 8, &lost), [1, 0, 6].map(peer));
    assert_eq!(fanout.seek(7, &peer(8), &[lost_for(5, HolderLost::Slow)]), [peer(2)]);
    let spares = fanout.spares(7, &peer(8), &[lost_for(5, HolderLost::Slow)], &[peer(2)]);
    assert_eq!(spares, [1, 0, 6].map(peer));
    assert!(fanout.spares(8, &peer(8), &[], &[]).is_empty(), "nothing is known of that one");
}

#[test]
fn a_reader_that_has_lost_two_holders_takes_the_rest_from_the_owner() {
    let mut fanout = Fanout::new(1);
    (0..5).for_each(|number| drop(enter(&mut fanout, number)));
    fanout.left(7, &peer(4), true);
    let slow = |number| lost_for(number, HolderLost::Slow);
    assert_eq!(fanout.seek(7, &peer(3), &[slow(2)]), [peer(4)]);
    assert!(fanout.seek(7, &peer(3), &[slow(2), slow(4)]).is_empty());
    let again = fanout.enter(7, &peer(3), &[slow(2), slow(4)], PASS).unwrap();
    assert!(again.peers.is_empty(), "also over another connection");
}

#[test]
fn a_reader_is_given_to_one_that_came_before_it_or_to_the_owner() {
    let mut fanout = Fanout::new(2);
    (0..6).for_each(|number| drop(enter(&mut fanout, number)));
    // 3 has places and does not wait for 2, but it came later; 1 serves 4 and 5.
    assert!(fanout.seek(7, &peer(2), &[lost_for(0, HolderLost::Slow)]).is_empty());
    fanout.left(7, &peer(3), true);
    assert_eq!(fanout.seek(7, &peer(2), &[lost_for(0, HolderLost::Slow)]), [peer(3)], "it has all");
}

#[test]
fn readers_that_all_lost_the_owner_go_on_as_before_in_whatever_order_they_are_back() {
    for order in [[0usize, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let mut fanout = Fanout::new(1);
        (0..4).for_each(|number| drop(enter(&mut fanout, number)));
        (0..4).for_each(|number| fanout.away(&peer(number), true));
        for number in order {
            let expected: Vec<_> = number.checked_sub(1).map(peer).into_iter().collect();
            assert_eq!(enter(&mut fanout, number), expected, "{order:?}");
        }
    }
}

#[test]
fn what_is_remembered_ends_where_its_limits_are() {
    let mut fanout = Fanout::new(1);
    for id in 0..TENSORS_MAX as u64 {
        fanout.enter(id, &peer(0), &[], PASS).unwrap();
    }
    assert_eq!(fanout.enter(9_999, &peer(0), &[], PASS), None, "everything is being read");
    fanout.left(5, &peer(0), true);
    assert!(fanout.enter(9_999, &peer(0), &[], PASS).is_some());
    assert!(!fanout.tensors.contains_key(&5));
    let mut fanout = Fanout::new(1);
    for number in 0..2 * KEPT_MAX {
        enter(&mut fanout, number);
        fanout.left(7, &peer(number), true);
    }
    assert_eq!(fanout.tensors[&7].all.len(), KEPT_MAX);
    assert!(Fanout::new(0).enter(7, &peer(0), &[], PASS).is_none());
}

#[derive(Debug, Clone)]
enum Step {
    Enter(usize),
    Seek(usize, Option<HolderLost>),
    Left(usize, bool),
    Away(usize, bool),
    Gone(usize),
}

fn why() -> impl Strategy<Value = Option<HolderLost>> {
    use HolderLost::{Altered, Refused, Slow, Stalled, Starved, Unreachable};
    prop::sample::select(
        &[None, Some(Unreachable), Some(Refused), Some(Stalled), Some(Starved), Some(Slow), Some(Altered)][..],
    )
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0usize..12;
    prop_oneof![
        4 => who.clone().prop_map(Step::Enter),
        3 => (who.clone(), why()).prop_map(|(who, why)| Step::Seek(who, why)),
        2 => (who.clone(), any::<bool>()).prop_map(|(who, holds)| Step::Left(who, holds)),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, away)| Step::Away(who, away)),
        1 => who.prop_map(Step::Gone),
    ]
}

/// Follows the readers up to somebody who has the bytes.
fn ends_somewhere(readers: &Readers, mut at: usize) -> bool {
    for _ in 0..=readers.all.len() {
        let From::Peer(from) = &readers.all[at].from else { return true };
        match readers.all.iter().position(|other| other.peer == *from) {
            Some(next) => at = next,
            None => return true,
        }
    }
    false
}

proptest! {
    #[test]
    fn nobody_waits_for_itself_and_nobody_serves_more_than_it_may(
        degree in 1usize..4,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut fanout = Fanout::new(degree);
        for step in steps {
            let refused = matches!(step, Step::Seek(_, Some(HolderLost::Refused)));
            let before = fanout.tensors.get(&7).map(|readers| readers.all.clone()).unwrap_or_default();
            let told = match step {
                Step::Enter(who) => Some((who, None, fanout.enter(7, &peer(who), &[], PASS).unwrap().peers)),
                Step::Seek(who, why) => {
                    let from = fanout.tensors.get(&7).and_then(|readers| {
                        readers.all.iter().find(|reader| reader.peer == peer(who)).map(|r| r.from.clone())
                    });
                    match from {
                        Some(From::Peer(lost)) => {
                            let told = fanout.seek(7, &peer(who), &[LostHolder { peer: lost.clone(), why }]);
                            Some((who, Some(lost), told))
                        }
                        _ => None,
                    }
                }
                Step::Left(who, holds) => { fanout.left(7, &peer(who), holds); None }
                Step::Away(who, away) => { fanout.away(&peer(who), away); None }
                Step::Gone(who) => { fanout.gone(&peer(who)); None }
            };
            let Some(readers) = fanout.tensors.get(&7) else { continue };
            for at in 0..readers.all.len() {
                prop_assert!(ends_somewhere(readers, at), "{:?}", readers);
            }
            if let Some((who, lost, told)) = told {
                prop_assert!(told.len() <= 1 && !told.contains(&peer(who)));
                for spare in fanout.spares(7, &peer(who), &[], &told) {
                    let known = readers.all.iter().find(|other| other.peer == spare).unwrap();
                    prop_assert!(known.has_all() && known.is_well() && !told.contains(&spare) && spare != peer(who));
                }
                let was = before.iter().find(|reader| reader.peer == peer(who)).map(|reader| &reader.from);
                let is_new = |holder: &&PeerKey| was != Some(&From::Peer((*holder).clone()));
                // Nor the one that it has lost, but where that one begins anew.
                prop_assert!(told.first() != lost.as_ref() || lost.is_none() || refused);
                // One that it has already it keeps, however that one is.
                if let Some(holder) = told.first().filter(is_new) {
                    let at = readers.all.iter().position(|reader| reader.peer == *holder).unwrap();
                    prop_assert!(readers.all[at].is_well());
                    prop_assert!(readers.served_by(at, usize::MAX) <= degree);
                }
            }
        }
    }

    #[test]
    fn of_readers_that_come_together_the_owner_serves_as_many_as_it_may_and_no_more(
        degree in 1usize..5,
        count in 1usize..60,
    ) {
        let mut fanout = Fanout::new(degree);
        let direct = (0..count).filter(|number| enter(&mut fanout, *number).is_empty()).count();
        prop_assert_eq!(direct, count.min(degree));
    }
}

/// A reader as it is: whom it takes its bytes from, whatever anybody remembers of that.
#[derive(Debug, Clone, Default)]
struct Naive {
    /// Set if it pulls the tensor.
    reads: bool,
    /// Set if its connection with the owner is up.
    online: bool,
    from: Option<PeerKey>,
    /// Number of that one's pull from which it takes them.
    of: u32,
    /// Set if it has asked that one, and was answered.
    answered: bool,
    /// Number of times that it has begun.
    pulls: u32,
    /// Set if it has all of what it pulled last.
    copy: bool,
    lost: Vec<LostHolder>,
    /// Peers that else have all, as it was last told.
    spares: Vec<PeerKey>,
}

/// Event of readers of one tensor.
#[derive(Debug, Clone, Copy)]
enum Happens {
    Begins(usize),
    LosesOwner(usize),
    AllLoseOwner,
    IsBack(usize),
    LosesHolder(usize, Option<HolderLost>),
    /// The owner is lost, and nobody brings it anything.
    TurnsToSpare(usize),
    Ends(usize, bool),
    /// The owner's grace forgets it, and it does not know that yet.
    IsForgotten(usize),
    /// Arrival, at its holder, of what it asks there.
    IsHeard(usize),
    /// Release of its copy, of which it tells nobody.
    LetsGo(usize),
}

fn happens() -> impl Strategy<Value = Happens> {
    let who = 0usize..10;
    prop_oneof![
        6 => who.clone().prop_map(Happens::Begins),
        2 => who.clone().prop_map(Happens::LosesOwner),
        1 => Just(Happens::AllLoseOwner),
        6 => who.clone().prop_map(Happens::IsBack),
        2 => (who.clone(), why()).prop_map(|(who, why)| Happens::LosesHolder(who, why)),
        3 => who.clone().prop_map(Happens::TurnsToSpare),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, holds)| Happens::Ends(who, holds)),
        1 => who.clone().prop_map(Happens::IsForgotten),
        4 => who.clone().prop_map(Happens::IsHeard),
        2 => who.prop_map(Happens::LetsGo),
    ]
}

/// The owner's record and the readers as they are.
struct World {
    fanout: Fanout,
    readers: Vec<Naive>,
}

impl World {
    fn happens(&mut self, what: Happens) {
        match what {
            Happens::Begins(who) if !self.readers[who].reads => {
                let pulls = self.readers[who].pulls + 1;
                self.readers[who] = Naive { reads: true, pulls, ..Naive::default() };
                self.asks(who);
            }
            Happens::LosesOwner(who) => self.loses_owner(who),
            Happens::AllLoseOwner => (0..self.readers.len()).for_each(|who| self.loses_owner(who)),
            Happens::IsBack(who) if self.readers[who].reads && !self.readers[who].online => {
                self.fanout.away(&peer(who), false);
                self.asks(who);
            }
            Happens::LosesHolder(who, why) => self.loses_holder(who, why),
            Happens::TurnsToSpare(who) if self.readers[who].reads && !self.readers[who].online => {
                self.turns_to_spare(who);
            }
            Happens::Ends(who, holds) if self.readers[who].reads && self.readers[who].online => {
                self.fanout.left(7, &peer(who), holds);
                self.readers[who] = Naive { pulls: self.readers[who].pulls, copy: holds, ..Naive::default() };
                if !holds {
                    // What it was getting is gone, and those who were served from that are told so at once.
                    let served = |other: &usize| {
                        let other = &self.readers[*other];
                        other.from == Some(peer(who)) && other.answered
                    };
                    let served: Vec<usize> = (0..self.readers.len()).filter(served).collect();
                    served.into_iter().for_each(|other| self.loses_holder(other, Some(HolderLost::Refused)));
                }
            }
            Happens::IsForgotten(who) if !self.readers[who].online => self.fanout.left(7, &peer(who), false),
            Happens::IsHeard(who) if !self.readers[who].answered => self.is_heard(who),
            // What others are getting from it stays until they have it.
            Happens::LetsGo(who) => self.readers[who].copy = false,
            _ => {}
        }
    }

    /// Has its holder give it what it is getting, or has, by then.
    fn is_heard(&mut self, who: usize) {
        let Some(holder) = self.holder_of(who) else { return };
        let Naive { reads, copy, pulls, .. } = self.readers[holder];
        if !reads && !copy {
            return self.loses_holder(who, Some(HolderLost::Refused));
        }
        (self.readers[who].answered, self.readers[who].of) = (true, pulls);
    }

    /// Turns to a spare: it is given a copy at once, or nothing.
    fn turns_to_spare(&mut self, who: usize) {
        let reader = &mut self.readers[who];
        if reader.from.is_some() || reader.spares.is_empty() {
            return;
        }
        let spare = reader.spares.remove(0);
        let at = (0..self.readers.len()).find(|at| peer(*at) == spare).unwrap();
        let Naive { copy, pulls, .. } = self.readers[at];
        let reader = &mut self.readers[who];
        if copy {
            (reader.from, reader.answered, reader.of) = (Some(spare), true, pulls);
        } else {
            reader.lost.push(LostHolder { peer: spare, why: Some(HolderLost::Refused) });
        }
    }

    fn holder_of(&self, who: usize) -> Option<usize> {
        let from = self.readers[who].from.as_ref()?;
        (0..self.readers.len()).find(|other| peer(*other) == *from)
    }

    /// Asks with its Pull, and follows the head.
    fn asks(&mut self, who: usize) {
        let reader = &mut self.readers[who];
        reader.online = true;
        let Holders { peers, spares, .. } = self.fanout.enter(7, &peer(who), &reader.lost, PASS).unwrap();
        reader.spares = spares;
        self.takes(who, peers);
    }

    /// Takes what it is told. One that it has already it keeps, for it asked before.
    fn takes(&mut self, who: usize, told: Vec<PeerKey>) {
        let from = told.into_iter().next();
        let again =
            |lost: &LostHolder| lost.why == Some(HolderLost::Refused) && Some(&lost.peer) == from.as_ref();
        self.readers[who].lost.retain(|lost| !again(lost));
        if from != self.readers[who].from {
            (self.readers[who].from, self.readers[who].answered) = (from, false);
        }
    }

    fn loses_owner(&mut self, who: usize) {
        if std::mem::take(&mut self.readers[who].online) {
            self.fanout.away(&peer(who), true);
        }
    }

    fn loses_holder(&mut self, who: usize, why: Option<HolderLost>) {
        let reader = &mut self.readers[who];
        let Some(holder) = reader.from.take() else { return };
        reader.lost.push(LostHolder { peer: holder, why });
        if reader.online {
            let told = self.fanout.seek(7, &peer(who), &reader.lost);
            self.takes(who, told);
        }
    }

    /// Number of those that lie between a reader and one that has the bytes; none if it waits for itself.
    fn depth(&self, who: usize) -> Option<usize> {
        let mut at = who;
        for depth in 0..=self.readers.len() {
            let Some(next) = self.holder_of(at) else { return Some(depth) };
            // What was not heard yet may be answered by what its holder is getting by then.
            if self.readers[at].answered && self.readers[next].pulls != self.readers[at].of {
                // It has the bytes of that one's pull before, which are all there.
                return Some(depth);
            }
            at = next;
        }
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn in_whatever_order_connections_are_lost_and_come_back_nobody_waits_for_itself(
        degree in 1usize..3,
        steps in prop::collection::vec(happens(), 1..150),
    ) {
        let mut world = World { fanout: Fanout::new(degree), readers: vec![Naive::default(); 10] };
        for step in steps {
            world.happens(step);
            for who in 0..world.readers.len() {
                prop_assert!(world.depth(who).is_some(), "{:?} waits for itself after {:?}", who, step);
                // Whoever the owner reaches does what the owner remembers.
                let reader = &world.readers[who];
                if !reader.reads || !reader.online {
                    continue;
                }
                let known = world.fanout.tensors[&7].all.iter().find(|other| other.peer == peer(who)).unwrap();
                let from = reader.from.clone().map_or(From::Owner, From::Peer);
                prop_assert_eq!(&known.from, &from, "{} after {:?}", who, step);
            }
        }
    }
}
