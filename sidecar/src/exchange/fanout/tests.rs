use proptest::prelude::*;
use tensorlane_proto::{Incarnation, PeerName};

use super::*;

const PASS: Pass = [1; 16];

fn peer(number: usize) -> PeerKey {
    PeerKey { name: PeerName::new(&format!("p{number}")).unwrap(), incarnation: Incarnation(1) }
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
    assert_eq!(fanout.seek(7, &peer(3), &[peer(2)]), [peer(1)]);
    // Also where its own connection with the owner is well.
    let mut fanout = Fanout::new(1);
    (0..5).for_each(|number| drop(enter(&mut fanout, number)));
    assert_eq!(fanout.seek(7, &peer(3), &[peer(2)]), [peer(1)]);
    // The first one dies: the next one is the owner's.
    fanout.gone(&peer(0));
    assert!(fanout.seek(7, &peer(1), &[peer(0)]).is_empty());
}

#[test]
fn a_reader_is_never_given_to_one_that_waits_for_it() {
    let mut fanout = Fanout::new(1);
    (0..4).for_each(|number| drop(enter(&mut fanout, number)));
    // 3 has a place, and gets its bytes from 1.
    assert!(fanout.seek(7, &peer(1), &[peer(0)]).is_empty());
    assert_eq!(fanout.seek(7, &peer(3), &[]), [peer(2)]);
}

#[test]
fn a_reader_whose_connection_with_the_owner_is_another_one_keeps_its_holder() {
    let mut fanout = Fanout::new(1);
    (0..3).for_each(|number| drop(enter(&mut fanout, number)));
    fanout.left(7, &peer(0), true);
    fanout.away(&peer(2), true);
    assert_eq!(enter(&mut fanout, 2), [peer(1)], "though another one has it all by now");
    let told = fanout.enter(7, &peer(2), &[peer(1)], PASS).unwrap().peers;
    assert_eq!(told, [peer(0)]);
}

#[test]
fn a_holder_that_has_let_it_go_is_forgotten_and_one_that_comes_back_is_not() {
    let mut fanout = Fanout::new(1);
    enter(&mut fanout, 0);
    fanout.left(7, &peer(0), true);
    assert_eq!(enter(&mut fanout, 1), [peer(0)]);
    assert!(fanout.seek(7, &peer(1), &[peer(0)]).is_empty());
    fanout.left(7, &peer(1), true);
    fanout.away(&peer(1), true);
    assert!(enter(&mut fanout, 2).is_empty());
    fanout.left(7, &peer(2), false);
    fanout.away(&peer(1), false);
    assert_eq!(enter(&mut fanout, 2), [peer(1)]);
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
    Seek(usize),
    Left(usize, bool),
    Away(usize, bool),
    Gone(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0usize..12;
    prop_oneof![
        4 => who.clone().prop_map(Step::Enter),
        3 => who.clone().prop_map(Step::Seek),
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
            let told = match step {
                Step::Enter(who) => Some((who, None, fanout.enter(7, &peer(who), &[], PASS).unwrap().peers)),
                Step::Seek(who) => {
                    let from = fanout.tensors.get(&7).and_then(|readers| {
                        readers.all.iter().find(|reader| reader.peer == peer(who)).map(|r| r.from.clone())
                    });
                    match from {
                        Some(From::Peer(lost)) => {
                            let told = fanout.seek(7, &peer(who), std::slice::from_ref(&lost));
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
                if let Some(holder) = told.first() {
                    prop_assert!(Some(holder) != lost.as_ref());
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
