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
