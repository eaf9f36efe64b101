//! Account of an arena: it balances whatever is done, and all is free at the end.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    Put(u64, u64),
    Pull(u64),
    Give(prop::sample::Index),
    Drop(prop::sample::Index),
    Seal(prop::sample::Index),
    Retire(prop::sample::Index),
    Witness(u64, prop::sample::Index),
    EndWitness(prop::sample::Index),
    Pin(u64, prop::sample::Index),
    EndSession(u64),
    Reclaim(u64),
}

fn steps() -> impl Strategy<Value = Step> {
    use Step::*;
    let any = any::<prop::sample::Index>;
    let bytes = || prop_oneof![0u64..2000, 30_000u64..200_000];
    prop_oneof![
        4 => (0u64..3, bytes()).prop_map(|(who, bytes)| Put(who, bytes)),
        3 => bytes().prop_map(Pull),
        1 => any().prop_map(Give),
        4 => any().prop_map(Drop),
        2 => any().prop_map(Seal),
        1 => any().prop_map(Retire),
        2 => (0u64..3, any()).prop_map(|(who, which)| Witness(who, which)),
        2 => any().prop_map(EndWitness),
        1 => (0u64..3, any()).prop_map(|(who, which)| Pin(who, which)),
        1 => (0u64..3).prop_map(EndSession),
        1 => (1u64..300_000).prop_map(Reclaim),
    ]
}

/// State that the property test holds of an arena.
struct World {
    arena: Arc<Arena>,
    blocks: Vec<Block>,
    grants: Vec<Grant>,
    witnesses: Vec<std::os::fd::OwnedFd>,
    sessions: [u64; 3],
}

impl World {
    fn take<T>(from: &mut Vec<T>, which: prop::sample::Index) -> Option<T> {
        (!from.is_empty()).then(|| from.swap_remove(which.index(from.len())))
    }

    fn step(&mut self, step: Step) {
        let arena = &self.arena;
        match step {
            Step::Put(who, bytes) => {
                self.blocks.extend(put(arena, self.sessions[who as usize], bytes));
            }
            Step::Pull(bytes) => match arena.allocate_or_grow(Purpose::Pull, bytes) {
                Ok(block) => self.blocks.push(block),
                Err(GrowError::NoRoom(_)) => {}
                Err(error) => panic!("{error}"),
            },
            Step::Give(which) => {
                drop(Self::take(&mut self.grants, which));
                let owner = Owner::Session(self.sessions[0]);
                self.grants.extend(arena.admit(owner, Purpose::Put, 50_000));
            }
            Step::Drop(which) => drop(Self::take(&mut self.blocks, which)),
            Step::Seal(which) => drop(Self::take(&mut self.blocks, which).map(|block| {
                let _ = block.mark_sealed();
                self.blocks.push(block);
            })),
            Step::Retire(which) => drop(Self::take(&mut self.blocks, which).map(|block| {
                block.mark_retired();
                self.blocks.push(block);
            })),
            Step::Witness(who, which) => {
                if let Some(block) = Self::take(&mut self.blocks, which) {
                    self.witnesses.extend(arena.witness(block.segment_id(), self.sessions[who as usize]));
                    self.blocks.push(block);
                }
            }
            Step::EndWitness(which) => drop(Self::take(&mut self.witnesses, which)),
            Step::Pin(who, which) => {
                if let Some(block) = Self::take(&mut self.blocks, which) {
                    arena.pin_until_witness_ends(
                        block.segment_id(),
                        self.sessions[who as usize],
                        vec![block],
                    );
                }
            }
            Step::EndSession(who) => {
                arena.session_ended(self.sessions[who as usize]);
                self.sessions[who as usize] += 3;
            }
            Step::Reclaim(want) => drop(arena.reclaim_held(want)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn the_account_balances_at_every_step_and_all_is_free_at_the_end(take_over in any::<bool>(), steps in prop::collection::vec(steps(), 1..80)) {
        let ready = ArenaOptions { ready_bytes: 128 * KI, pull_share: 0.1, take_over, ..options(KI << 10, 64 * KI) };
        let arena = start(ready);
        let mut world = World {
            arena: Arc::clone(&arena), blocks: vec![], grants: vec![], witnesses: vec![], sessions: [1, 2, 3],
        };
        for step in steps {
            world.step(step);
            let usage = arena.usage();
            prop_assert!(usage.balances(), "{:?}", usage);
            prop_assert!(usage.populated <= usage.total, "{:?}", usage);
            prop_assert!(usage.ready <= usage.free, "{:?}", usage);
            // Blocks never overlap, and their bytes are counted exactly.
            let mut places: Vec<_> = world.blocks.iter().filter(|block| !block.is_empty())
                .map(|block| (block.segment_id(), block.offset(), block.len().next_multiple_of(64))).collect();
            places.sort_unstable();
            for pair in places.windows(2) {
                prop_assert!(pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1, "{:?}", pair);
            }
            let sum: u64 = places.iter().map(|place| place.2).sum();
            prop_assert!(usage.reserved + usage.sealed + usage.retired >= sum);
        }
        let World { blocks, grants, witnesses, sessions, .. } = world;
        drop((blocks, grants, witnesses));
        for session in sessions {
            arena.session_ended(session);
        }
        all_is_free(&arena);
        until("no witness is watched", || arena.watcher().watching() == 0);
    }
}
