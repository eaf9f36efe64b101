//! The journal of names: what is told of changes, and names as they were.

use proptest::prelude::*;

use super::*;

fn name(id: TensorId, to: &str, replaces: Option<TensorId>) -> Event {
    Event::Name { id, name: spec(to, replaces) }
}

fn told(
    scene: &Scene,
    prefix: &str,
    revision: u64,
) -> Vec<(u64, String, Option<TensorId>, Option<TensorId>)> {
    let changes = scene.ledger.changes_after(prefix, revision, 100, 100).unwrap();
    assert_eq!(changes.until, scene.ledger.revision());
    let told = |change: NameChange| (change.sequence, change.name.to_string(), change.before, change.after);
    changes.changes.into_iter().map(told).collect()
}

#[test]
fn a_name_is_told_as_it_appears_is_replaced_and_goes() {
    let mut s = Scene::new();
    let (old, new) = (s.put(A, leased()), s.put(A, leased()));
    assert_eq!(s.ledger.revision(), 0);
    s.quietly(name(old, "a/n", None));
    s.quietly(name(new, "a/n", Some(old)));
    s.quietly(name(new, "b", None));
    s.quietly(Event::Unname { name: text("a/n") });
    let appeared = (1, "a/n".to_owned(), None, Some(old));
    let replaced = (2, "a/n".to_owned(), Some(old), Some(new));
    let gone = (4, "a/n".to_owned(), Some(new), None);
    assert_eq!(told(&s, "a", 0), [appeared.clone(), replaced.clone(), gone.clone()]);
    assert_eq!(told(&s, "a", 1), [replaced, gone.clone()]);
    assert_eq!(told(&s, "a/n", 3), [gone]);
    assert_eq!(told(&s, "", 4), []);
}

#[test]
fn a_name_given_again_to_its_own_tensor_and_what_is_refused_are_no_changes() {
    let mut s = Scene::new();
    let id = s.put(A, named("n"));
    s.quietly(name(id, "n", Some(id)));
    s.refused(name(id, "n", None));
    s.refused(Event::Unname { name: text("m") });
    assert_eq!(s.ledger.revision(), 1);
}

#[test]
fn a_version_that_is_published_is_told_before_its_name_and_the_one_that_goes_last() {
    let mut ledger = Ledger::new(Limits { names: 8, name_changes: 16, ..LIMITS });
    let mut publish = |version| {
        let mut now = |event| ledger.apply(Millis(1), event, &mut vec![]).unwrap();
        let Answer::Reserved { id, .. } = now(Event::Reserve { by: Some(A), bytes: 1, retry: None }) else {
            panic!("it is reserved")
        };
        now(seal(A, id, leased()));
        let publication =
            Publication { manifest: id, leaves: vec![], name: text("policy"), version, keep: 1 };
        now(Event::Publish(publication));
    };
    publish(1);
    publish(2);
    let changes = ledger.changes_after("policy", 2, 10, 10).unwrap().changes;
    let names: Vec<_> = changes.iter().map(|c| (c.name.as_str(), c.after.is_some())).collect();
    assert_eq!(names, [("policy@2", true), ("policy", true), ("policy@1", false)]);
}

#[test]
fn what_is_forgotten_and_what_never_was_is_said() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    for _ in 0..3 {
        s.quietly(name(id, "n", None));
        s.quietly(Event::Unname { name: text("n") });
    }
    let after = |revision| s.ledger.changes_after("", revision, 10, 10);
    assert_eq!(after(1), Err(NoRevision::Forgotten { oldest: 2 }), "{LIMITS:?}");
    assert_eq!(after(2).unwrap().changes.len(), 4);
    assert_eq!(after(7), Err(NoRevision::Ahead { latest: 6 }));
    assert_eq!(s.ledger.list_at("", None, 10, 1), Err(NoRevision::Forgotten { oldest: 2 }));
    assert_eq!(s.ledger.journal_size(), (4, 4 * (CHANGE_BYTES + 1)));
}

#[test]
fn long_names_take_the_bytes_that_many_short_ones_would() {
    let limits = Limits { name_changes: 100, name_change_bytes: 3 * (CHANGE_BYTES + 512), ..LIMITS };
    let mut s = Scene { ledger: Ledger::new(limits), now: 1000 };
    let (id, long) = (s.put(A, leased()), "x".repeat(512));
    for _ in 0..4 {
        s.quietly(name(id, &long, None));
        s.quietly(Event::Unname { name: text(&long) });
    }
    assert_eq!(s.ledger.journal_size(), (3, limits.name_change_bytes));
}

#[test]
fn an_answer_ends_where_it_is_full_and_goes_on_from_there() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    for to in ["a", "b"] {
        s.quietly(name(id, to, None));
    }
    s.quietly(Event::Unname { name: text("a") });
    let after = |revision, most, looked| s.ledger.changes_after("a", revision, most, looked).unwrap();
    assert_eq!(
        (after(0, 1, 9).until, after(0, 1, 9).changes.len()),
        (2, 1),
        "what is no change of it is passed"
    );
    assert_eq!((after(2, 1, 9).until, after(2, 1, 9).changes.len()), (3, 1));
    assert_eq!((after(1, 1, 1).until, after(1, 1, 1).changes.len()), (2, 0), "no more is looked at");
}

/// Step of the model: a name that is given, moved or taken.
fn step() -> impl Strategy<Value = (usize, usize)> {
    (0..NAMES.len(), 0..3_usize)
}

const NAMES: [&str; 6] = ["a", "a/1", "a/2", "b", "b/1", "c"];

proptest! {
    /// Pages of the names as they were at a revision are one listing of that moment, whatever happens between them; and with the
    /// changes after it they make the names of now.
    #[test]
    fn a_listing_of_a_revision_and_the_changes_after_it_make_the_names_of_now(
        before in prop::collection::vec(step(), 0..20),
        between in prop::collection::vec(prop::collection::vec(step(), 0..6), 1..8),
        prefix in prop::sample::select(vec!["", "a", "a/", "b/1", "zz"]),
        page in 1..4_usize,
    ) {
        let limits = Limits { names: 16, name_changes: 1_000, ..LIMITS };
        let mut ledger = Ledger::new(limits);
        let mut ids = Vec::new();
        for _ in 0..2 {
            let reserve = Event::Reserve { by: Some(A), bytes: 1, retry: None };
            let Ok(Answer::Reserved { id, .. }) = ledger.apply(Millis(1), reserve, &mut vec![]) else { panic!() };
            ledger.apply(Millis(1), seal(A, id, leased()), &mut vec![]).unwrap();
            ids.push(id);
        }
        let take = |ledger: &mut Ledger, (at, to): (usize, usize)| {
            let now = ledger.find(NAMES[at]);
            let event = match ids.get(to) {
                Some(id) => name(*id, NAMES[at], now),
                None => Event::Unname { name: text(NAMES[at]) },
            };
            // A name that there is not cannot be taken.
            let _ = ledger.apply(Millis(1), event, &mut vec![]);
        };
        before.into_iter().for_each(|it| take(&mut ledger, it));
        let (revision, then) = (ledger.revision(), ledger.list(prefix, None, 100));
        let (mut listed, mut steps) = (Vec::new(), between.into_iter());
        loop {
            let after = listed.last().map(|(name, _): &(TensorName, TensorId)| name.clone());
            let names = ledger.list_at(prefix, after.as_ref(), page, revision).unwrap();
            if names.is_empty() {
                break;
            }
            listed.extend(names);
            steps.next().into_iter().flatten().for_each(|it| take(&mut ledger, it));
        }
        steps.flatten().for_each(|it| take(&mut ledger, it));
        prop_assert_eq!(&listed, &then);
        let mut now: BTreeMap<_, _> = listed.into_iter().collect();
        for change in ledger.changes_after(prefix, revision, 10_000, 10_000).unwrap().changes {
            let before = match change.after {
                Some(id) => now.insert(change.name, id),
                None => now.remove(&change.name),
            };
            prop_assert_eq!(before, change.before);
        }
        prop_assert_eq!(now.into_iter().collect::<Vec<_>>(), ledger.list(prefix, None, 100));
    }
}
