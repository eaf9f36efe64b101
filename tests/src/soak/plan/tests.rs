use std::collections::HashSet;

use super::*;

const STEPS: usize = 5_000;

fn steps(seed: u64) -> Vec<Step> {
    Plan::of(seed).take(STEPS).collect()
}

#[test]
fn a_seed_gives_the_same_steps_each_time_and_another_one_others() {
    assert_eq!(steps(7), steps(7));
    assert_ne!(steps(7), steps(8));
}

#[test]
fn whatever_is_asked_for_was_made_by_an_earlier_step() {
    for seed in 0..20 {
        let mut made = HashSet::new();
        for Step { number, act } in steps(seed) {
            let Act::Call(_, verb) = act else { continue };
            match verb {
                Verb::Put { tensor, .. } | Verb::Reserve { tensor, .. } => {
                    assert!(tensor == number || made.contains(&tensor), "step {number}");
                    made.insert(tensor);
                }
                Verb::Get { tensor, .. } | Verb::Hold { tensor, .. } => assert!(made.contains(&tensor)),
                _ => {}
            }
        }
    }
}

#[test]
fn every_fault_ends_and_at_most_one_of_a_kind_is_there_at_a_time() {
    for seed in 0..20 {
        let (mut fault, mut directory) = (None, None);
        for Step { act, .. } in steps(seed) {
            match act {
                Act::Hurt(Fault::Directory(host)) => assert!(directory.replace(host).is_none()),
                Act::Mend(Fault::Directory(host)) => assert_eq!(directory.take(), Some(host)),
                Act::Hurt(new) => {
                    assert!(fault.replace(new).is_none());
                    assert!(!matches!(new, Fault::Kill(host) if directory == Some(host)), "{new:?}");
                }
                Act::Mend(old) => assert_eq!(fault.take(), Some(old)),
                Act::Settle => assert!(fault.is_none()),
                _ => {}
            }
        }
    }
}

#[test]
fn every_kind_of_step_occurs_in_every_plan() {
    for seed in 0..20 {
        let kinds: HashSet<String> = steps(seed)
            .into_iter()
            .map(|step| match step.act {
                Act::Call(actor, verb) => {
                    let verb = format!("{verb:?}");
                    let word = verb.split([' ', '(']).next().unwrap_or_default().to_owned();
                    if actor.host == STRANGER { format!("stranger's {word}") } else { word }
                }
                Act::Hurt(fault) => format!("{fault:?}").split('(').next().unwrap_or_default().to_owned(),
                other => format!("{other:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
            })
            .collect();
        for word in [
            "Put",
            "Reserve",
            "Seal",
            "Abort",
            "Release",
            "Get",
            "Hold",
            "Look",
            "Drop",
            "KillWorkload",
            "Cut",
            "Lose",
            "Stop",
            "Kill",
            "Directory",
            "Mend",
            "Settle",
            "Pause",
            "Audit",
            "stranger's Put",
            "stranger's Get",
        ] {
            assert!(kinds.contains(word), "{word} is not in the plan of seed {seed}");
        }
    }
}
