use super::*;

const ROOMY: Limits = Limits { tensors: 64, holders: 16, leases_per_holder: 64, names: 16, ..LIMITS };

fn scene(limits: Limits) -> Scene {
    Scene { ledger: Ledger::new(limits), now: 1000 }
}

fn publish(manifest: TensorId, leaves: &[TensorId], version: u64, keep: u32) -> Event {
    Event::Publish(Publication { manifest, leaves: leaves.to_vec(), name: text("policy"), version, keep })
}

impl Scene {
    /// A manifest and two leaves that session A holds.
    fn set(&mut self) -> (TensorId, [TensorId; 2]) {
        (self.put(A, leased()), [self.put(A, leased()), self.put(A, leased())])
    }

    fn published(&mut self, version: u64, keep: u32) -> (TensorId, [TensorId; 2]) {
        let (manifest, leaves) = self.set();
        self.quietly(publish(manifest, &leaves, version, keep));
        (manifest, leaves)
    }

    fn versions(&self) -> Vec<u64> {
        self.ledger.versions(&text("policy")).into_iter().map(|(version, _)| version).collect()
    }
}

#[test]
fn leaves_live_as_long_as_their_manifest() {
    let mut scene = scene(ROOMY);
    let (manifest, [one, two]) = scene.published(1, 1);
    assert_eq!(scene.freeing(gone(A)), [], "two names keep the manifest, and it keeps its leaves");
    scene.quietly(Event::Lease { by: B, id: manifest });
    scene.quietly(Event::Unname { name: text("policy@1") });
    scene.quietly(Event::Unname { name: text("policy") });
    assert_eq!(scene.ledger.state(one), Some(State::Sealed), "a reader holds the manifest");
    let freed = scene.freeing(gone(B));
    assert_eq!(freed, [manifest, one, two].map(|id| (id, Cause::HolderGone)));
    assert_eq!(scene.ledger.totals(), Totals::default());
}

#[test]
fn a_version_takes_the_name_and_the_oldest_ones_lose_theirs() {
    let mut scene = scene(ROOMY);
    let (first, [one, two]) = scene.published(1, 2);
    let (second, _) = scene.published(2, 2);
    assert_eq!(scene.ledger.find("policy"), Some(second));
    assert_eq!(scene.ledger.find("policy@1"), Some(first));
    scene.quietly(gone(A));
    let (third, leaves) = scene.set();
    let freed = scene.freeing(publish(third, &leaves, 3, 2));
    assert_eq!(freed, [first, one, two].map(|id| (id, Cause::Unnamed)));
    assert_eq!(scene.versions(), [2, 3]);
}

#[test]
fn a_leaf_of_two_versions_outlives_the_first() {
    let mut scene = scene(ROOMY);
    let (first, [shared, own]) = scene.published(1, 1);
    let (second, unused) = scene.set();
    scene.quietly(publish(second, &[shared], 2, 2));
    assert_eq!(scene.freeing(gone(A)), unused.map(|id| (id, Cause::HolderGone)));
    let freed = scene.freeing(Event::Unname { name: text("policy@1") });
    assert_eq!(freed, [first, own].map(|id| (id, Cause::Unnamed)));
    assert_eq!(scene.ledger.state(shared), Some(State::Sealed));
}

#[test]
fn only_the_next_version_is_published() {
    let mut scene = scene(ROOMY);
    scene.published(1, 1);
    let (manifest, leaves) = scene.set();
    for asked in [0, 1, 3, u64::MAX] {
        let refused = scene.refused(publish(manifest, &leaves, asked, 1));
        assert_eq!(refused, Refusal::VersionChanged { name: text("policy"), latest: 1, asked });
    }
    scene.quietly(publish(manifest, &leaves, 2, 9));
    assert_eq!(scene.versions(), [1, 2], "each version says how many are kept from then on");
    let (manifest, leaves) = scene.set();
    let (_, freed) = scene.try_to(publish(manifest, &leaves, 3, 0));
    assert_eq!(freed, [], "their writer still leases them");
    assert_eq!(scene.versions(), [3]);
}

#[test]
fn a_name_that_ended_goes_on_with_its_versions() {
    let mut scene = scene(ROOMY);
    scene.published(1, 3);
    scene.published(2, 3);
    scene.quietly(Event::Unname { name: text("policy") });
    let (manifest, leaves) = scene.set();
    assert!(matches!(
        scene.refused(publish(manifest, &leaves, 1, 1)),
        Refusal::VersionChanged { latest: 2, .. }
    ));
    scene.quietly(publish(manifest, &leaves, 3, 3));
}

#[test]
fn a_set_takes_no_name_of_another_tensor() {
    let mut scene = scene(ROOMY);
    let other = scene.put(A, named("policy"));
    let (manifest, leaves) = scene.set();
    let refused = scene.refused(publish(manifest, &leaves, 1, 1));
    assert_eq!(refused, Refusal::NameTaken { name: text("policy"), by: other });
    assert!(!scene.ledger.is_manifest(manifest));
    assert_eq!(scene.freeing(Event::Unname { name: text("policy") }), [(other, Cause::Unnamed)]);
    let other = scene.put(A, named("policy@1"));
    let refused = scene.refused(publish(manifest, &leaves, 1, 1));
    assert_eq!(refused, Refusal::NameTaken { name: text("policy@1"), by: other });
}

#[test]
fn a_set_of_what_is_not_here_is_refused_and_nothing_is_leased() {
    let mut scene = scene(ROOMY);
    let (published, _) = scene.published(1, 1);
    let (manifest, [leaf, _]) = scene.set();
    let copy = scene.copy(1, A);
    let open = scene.reserve(A);
    let nothing = TensorId(u64::MAX);
    let refusals = [
        (manifest, copy, Refusal::NotOwned { id: copy, origin: origin(1) }),
        (manifest, open, Refusal::NotSealed { id: open }),
        (manifest, nothing, Refusal::NotFound { id: nothing }),
        (manifest, manifest, Refusal::LeafIsManifest { id: manifest }),
        (manifest, published, Refusal::LeafIsManifest { id: published }),
        (published, leaf, Refusal::ManifestPublished { id: published }),
        (open, leaf, Refusal::NotSealed { id: open }),
    ];
    for (manifest, wrong, refusal) in refusals {
        assert_eq!(scene.refused(publish(manifest, &[leaf, wrong], 2, 1)), refusal);
    }
    assert_eq!(scene.ledger.leases_of(Holder::Manifest(manifest)).count(), 0);
}

#[test]
fn a_set_stays_within_the_limits() {
    let mut scene = scene(Limits { leases_per_holder: 4, ..ROOMY });
    let (manifest, [leaf, _]) = scene.set();
    let refused = scene.refused(publish(manifest, &[leaf; 5], 1, 1));
    assert_eq!(refused, Refusal::TooManyLeases { by: Holder::Manifest(manifest), limit: 4 });
    scene.quietly(publish(manifest, &[leaf; 4], 1, 1));

    let mut scene = self::scene(Limits { names: 1, ..ROOMY });
    let (manifest, leaves) = scene.set();
    assert_eq!(scene.refused(publish(manifest, &leaves, 1, 1)), Refusal::TooManyNames { limit: 1 });

    let mut scene = self::scene(Limits { holders: 1, ..ROOMY });
    let (manifest, leaves) = scene.set();
    assert_eq!(scene.refused(publish(manifest, &leaves, 1, 1)), Refusal::TooManyHolders { limit: 1 });

    let mut scene = self::scene(ROOMY);
    let (manifest, leaves) = scene.set();
    let name = text(&"n".repeat(511));
    let long = Publication { manifest, leaves: leaves.to_vec(), name: name.clone(), version: 1, keep: 1 };
    assert_eq!(scene.refused(Event::Publish(long)), Refusal::NameTooLong { name });
}

#[test]
fn a_set_is_not_named_as_a_version_is() {
    let mut scene = scene(ROOMY);
    scene.published(1, 1);
    let (manifest, leaves) = scene.set();
    let name = text("policy@1");
    let publication =
        Publication { manifest, leaves: leaves.to_vec(), name: name.clone(), version: 1, keep: 1 };
    assert_eq!(scene.refused(Event::Publish(publication)), Refusal::NameIsVersion { name });
}

#[test]
fn names_that_look_like_versions_and_are_none_stay() {
    let mut scene = scene(ROOMY);
    for name in ["policy@x", "policy@07", "policy@+1", "policy@"] {
        scene.put(None, named(name));
    }
    scene.published(1, 1);
    scene.published(2, 1);
    assert_eq!(scene.versions(), [2]);
    for name in ["policy@x", "policy@07", "policy@+1", "policy@"] {
        assert!(scene.ledger.find(name).is_some(), "{name}");
    }
}
