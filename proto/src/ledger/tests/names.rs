//! Names: given, replaced, listed.

use super::*;

#[test]
fn a_name_keeps_a_tensor_when_nobody_holds_it() {
    let mut s = Scene::new();
    let id = s.put(A, named("n"));
    s.quietly(gone(A));
    assert_eq!(s.ledger.find("n"), Some(id));
    assert_eq!(s.freeing(Event::Unname { name: text("n") }), [(id, Cause::Unnamed)]);
    assert_eq!(s.refused(Event::Unname { name: text("n") }), Refusal::NameUnknown { name: text("n") });
}

#[test]
fn a_taken_name_is_given_only_to_who_knows_the_tensor_that_has_it() {
    let mut s = Scene::new();
    let (old, new) = (s.put(A, named("n")), s.put(A, leased()));
    let name = text("n");
    let taken = Refusal::NameTaken { name: name.clone(), by: old };
    assert_eq!(s.refused(Event::Name { id: new, name: spec("n", None) }), taken);
    let changed = Refusal::NameChanged { name, now: Some(old) };
    assert_eq!(s.refused(Event::Name { id: new, name: spec("n", Some(new)) }), changed);
    let free = Refusal::NameChanged { name: text("m"), now: None };
    assert_eq!(s.refused(Event::Name { id: new, name: spec("m", Some(old)) }), free);
    assert_eq!(s.freeing(Event::Name { id: new, name: spec("n", Some(old)) }), [(old, Cause::Replaced)]);
    assert_eq!(s.ledger.find("n"), Some(new));
}

#[test]
fn a_replaced_tensor_lives_on_while_leased() {
    let mut s = Scene::new();
    let old = s.put(A, Keep { lease: true, ..named("n") });
    let new = s.reserve(B);
    let keep = Keep { name: Some(spec("n", Some(old))), ..Keep::default() };
    s.quietly(seal(B, new, keep));
    assert_eq!(s.ledger.find("n"), Some(new));
    assert_eq!(s.freeing(release(A, old, 1)), [(old, Cause::Released)]);
}

#[test]
fn a_tensor_may_replace_itself() {
    let mut s = Scene::new();
    let id = s.put(A, named("n"));
    let answer = s.quietly(Event::Name { id, name: spec("n", Some(id)) });
    assert_eq!(answer, Answer::Named { replaced: Some(id) });
    assert_eq!(s.ledger.find("n"), Some(id));
    assert_eq!(s.freeing(Event::Unname { name: text("n") }), [(id, Cause::Unnamed)]);
}

#[test]
fn a_tensor_with_two_names_lives_until_both_have_ended() {
    let mut s = Scene::new();
    let id = s.put(A, named("n"));
    s.quietly(Event::Name { id, name: spec("m", None) });
    s.quietly(Event::Unname { name: text("n") });
    let names: Vec<_> = s.ledger.entry(id).unwrap().names().cloned().collect();
    assert_eq!(names, [text("m")]);
    assert_eq!(s.freeing(Event::Unname { name: text("m") }), [(id, Cause::Unnamed)]);
}

#[test]
fn a_list_is_in_order_and_goes_on_after_a_page() {
    let mut ledger = Ledger::new(Limits::default());
    let mut effects = vec![];
    for name in ["b", "a/2", "a/10", "a", "ab"] {
        let reserved =
            ledger.apply(Millis(0), Event::Reserve { by: None, bytes: 0, retry: None }, &mut effects);
        let Ok(Answer::Reserved { id, .. }) = reserved else { panic!("{reserved:?}") };
        ledger.apply(Millis(0), seal(None, id, named(name)), &mut effects).unwrap();
    }
    let list = |prefix, after: Option<&str>, limit| -> Vec<String> {
        let rows = ledger.list(prefix, after.map(text).as_ref(), limit);
        rows.into_iter().map(|(name, _)| name.to_string()).collect()
    };
    assert_eq!(list("", None, 9), ["a", "a/10", "a/2", "ab", "b"]);
    assert_eq!(list("a/", None, 1), ["a/10"]);
    assert_eq!(list("a/", Some("a/10"), 9), ["a/2"]);
    assert_eq!(list("a/", Some("a"), 9), ["a/10", "a/2"]);
    assert_eq!(list("a/", Some("b"), 9), [""; 0]);
}

fn together(items: &[(TensorId, &str, Option<TensorId>)]) -> Event {
    let item = |&(id, name, replaces): &(TensorId, &str, Option<TensorId>)| (Some(id), spec(name, replaces));
    Event::NameTogether { items: items.iter().map(item).collect() }
}

fn lease_names(prefix: &str, most: usize) -> Event {
    Event::LeaseNames { by: A, prefix: prefix.into(), most }
}

#[test]
fn names_given_together_are_all_given_or_none() {
    let mut s = Scene::new();
    let (old, other) = (s.put(A, named("a")), s.put(A, named("b")));
    let (first, second) = (s.put(B, leased()), s.put(B, leased()));
    // The last item is refused: its name stands for another tensor, or is given twice, or is one too many.
    let changed = Refusal::NameChanged { name: text("b"), now: Some(other) };
    assert_eq!(s.refused(together(&[(first, "a", Some(old)), (second, "b", Some(old))])), changed);
    let twice = Refusal::NameTwice { name: text("a") };
    assert_eq!(s.refused(together(&[(first, "a", Some(old)), (second, "a", Some(old))])), twice);
    let many = Refusal::TooManyNames { limit: 2 };
    assert_eq!(s.refused(together(&[(first, "a", Some(old)), (second, "c", None)])), many);
    assert_eq!((s.ledger.find("a"), s.ledger.find("b")), (Some(old), Some(other)));
    let all = together(&[(first, "a", Some(old)), (second, "b", Some(other))]);
    assert_eq!(s.freeing(all), [(old, Cause::Replaced), (other, Cause::Replaced)]);
    assert_eq!((s.ledger.find("a"), s.ledger.find("b")), (Some(first), Some(second)));
}

#[test]
fn a_name_that_no_tensor_gets_ends_in_the_step_in_which_others_are_given() {
    let mut s = Scene::new();
    let (old, stale) = (s.put(A, named("a")), s.put(A, named("b")));
    let new = s.put(B, leased());
    let step = |end: Option<TensorId>| Event::NameTogether {
        items: vec![(Some(new), spec("a", Some(old))), (None, spec("b", end))],
    };
    // Somebody has given it to another tensor meanwhile: nothing changes.
    let changed = Refusal::NameChanged { name: text("b"), now: Some(stale) };
    assert_eq!(s.refused(step(Some(old))), changed);
    assert_eq!((s.ledger.find("a"), s.ledger.find("b")), (Some(old), Some(stale)));
    assert_eq!(s.freeing(step(Some(stale))), [(old, Cause::Replaced), (stale, Cause::Unnamed)]);
    assert_eq!((s.ledger.find("a"), s.ledger.find("b")), (Some(new), None));
    // Its place is free again.
    s.quietly(Event::Name { id: new, name: spec("c", None) });
}

#[test]
fn new_names_given_together_stay_below_the_limit() {
    let mut s = Scene::new();
    let id = s.put(A, named("a"));
    let many = Refusal::TooManyNames { limit: 2 };
    assert_eq!(s.refused(together(&[(id, "b", None), (id, "c", None)])), many);
    assert_eq!(s.ledger.find("b"), None);
}

#[test]
fn tensors_that_swap_their_names_in_one_step_live_on() {
    let mut s = Scene::new();
    let (a, b) = (s.put(A, named("a")), s.put(A, named("b")));
    s.quietly(together(&[(b, "a", Some(a)), (a, "b", Some(b))]));
    assert_eq!((s.ledger.find("a"), s.ledger.find("b")), (Some(b), Some(a)));
    assert_eq!(s.freeing(Event::Unname { name: text("a") }), [(b, Cause::Unnamed)]);
}

#[test]
fn all_names_of_a_prefix_are_leased_or_none() {
    let mut s = Scene::new();
    let (first, second) = (s.put(None, named("m/a")), s.put(None, named("m/b")));
    let many = Refusal::TooManyBelow { prefix: "m/".into(), most: 1 };
    assert_eq!(s.refused(lease_names("m/", 1)), many);
    let names = vec![(text("m/a"), first), (text("m/b"), second)];
    assert_eq!(s.quietly(lease_names("m/", 2)), Answer::NamesLeased { names: names.clone() });
    assert_eq!(s.quietly(lease_names("m/", 2)), Answer::NamesLeased { names });
    // The holder has four leases, and may have no more.
    assert_eq!(s.refused(lease_names("m/", 2)), Refusal::TooManyLeases { by: A, limit: 4 });
    assert_eq!(s.quietly(lease_names("x/", 2)), Answer::NamesLeased { names: vec![] });
    // What was leased outlives its name.
    s.quietly(Event::Unname { name: text("m/a") });
    assert_eq!(s.freeing(release(A, first, 2)), [(first, Cause::Released)]);
}
