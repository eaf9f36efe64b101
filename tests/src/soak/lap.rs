//! Lap: a plan is carried out for a while, everything is given back, and what was written down is checked. The world
//! goes on from lap to lap, so that what is left of one is found in the next; the history begins anew.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::check::{Violation, check};
use super::crew::Crew;
use super::history::{Event, Recorder, What, save_to};
use super::orders::{Fault, Outcome, Verb};
use super::plan::{Act, LARGE, MEMBERS, Plan, actors};
use super::world::World;
use crate::tensors::Numbers;

/// Time that the owner is asked about the tensor of a killed workload.
const PROBE: Duration = Duration::from_millis(700);

/// Outcome of a lap.
#[derive(Debug)]
pub struct Report {
    /// Seed from which its plan followed.
    pub seed: u64,
    /// Steps of the plan that were done.
    pub steps: u64,
    /// Everything that happened.
    pub events: Vec<Event>,
    /// The lines that were not kept to.
    pub violations: Vec<Violation>,
    /// Resident bytes of all sidecars at its end.
    pub resident: u64,
}

/// The seed of a lap: that of the first is the one that was asked for, so that any lap can be repeated alone.
pub fn seed_of(seed: u64, lap: u64) -> u64 {
    if lap == 0 { seed } else { Numbers::of(seed ^ lap.rotate_left(32)).draw() }
}

/// Carries the plan of a seed out until the time is over or `stop` says so.
///
/// # Panics
/// Where the machine refuses what a lap needs.
pub fn run(
    world: &mut World,
    recorder: &Arc<Recorder>,
    seed: u64,
    time: Duration,
    stop: &dyn Fn() -> bool,
) -> Report {
    drop(recorder.take());
    world.introduce(seed);
    let crew = Crew::new(actors().map(|actor| (actor, world.sockets(actor.host))), recorder);
    let (deadline, mut faults, mut steps) = (Instant::now() + time, Vec::new(), 0);
    for step in Plan::of(seed) {
        if Instant::now() >= deadline || stop() {
            break;
        }
        steps = step.number;
        if !perform(world, &crew, step.number, step.act, &mut faults) {
            break;
        }
    }
    for fault in faults.drain(..).rev() {
        world.mend(fault);
    }
    crew.await_idle();
    world.settle();
    for (index, actor) in actors().enumerate() {
        crew.tell(actor, u64::MAX - index as u64, Verb::Clear);
    }
    crew.await_idle();
    // Who lost its session meanwhile hears of it once: the second is answered.
    for (index, actor) in actors().enumerate() {
        crew.tell(actor, u64::MAX - 1000 - index as u64, Verb::Clear);
    }
    crew.end();
    (0..MEMBERS).for_each(|host| world.last_audit(host));
    // It stays with the recorder: whoever checks may panic, too.
    let events = recorder.events();
    let violations = check(&events);
    Report { seed, steps, events, violations, resident: world.resident() }
}

/// Does one step; whether it makes sense to go on.
fn perform(world: &mut World, crew: &Crew, number: u64, act: Act, faults: &mut Vec<Fault>) -> bool {
    match act {
        Act::Call(actor, verb) => crew.tell(actor, number, verb),
        Act::KillWorkload(actor, kept) => {
            if crew.kill(actor)
                && let Some(reference) = kept.and_then(|kept| crew.reference(kept))
            {
                world.probe(actor.host, &reference, PROBE);
            }
        }
        Act::Hurt(fault) => {
            faults.push(fault);
            world.hurt(fault);
        }
        Act::Mend(fault) => {
            faults.retain(|other| *other != fault);
            world.mend(fault);
        }
        Act::Settle => {
            crew.await_idle();
            return world.settle();
        }
        Act::Pause(milliseconds) => std::thread::park_timeout(Duration::from_millis(milliseconds)),
        Act::Audit(host) => world.audit(host),
    }
    true
}

impl Report {
    /// Writes the history to a file.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn save(&self, to: &Path) -> std::io::Result<()> {
        save_to(&self.events, to)
    }

    /// Number of calls that ended so that the outcome fits.
    pub fn count(&self, fits: impl Fn(&Outcome) -> bool) -> usize {
        let ended = |event: &&Event| matches!(&event.what, What::Ended { outcome, .. } if fits(outcome));
        self.events.iter().filter(ended).count()
    }

    /// Number of large tensors that came over a transport.
    pub fn large(&self, by: &str) -> usize {
        self.count(|outcome| match outcome {
            Outcome::Got { transport, moved, .. } => *moved >= LARGE && transport == by,
            _ => false,
        })
    }

    /// Number of faults of hosts and of the network between them.
    pub fn faults(&self) -> usize {
        self.events.iter().filter(|event| matches!(event.what, What::Hurt { .. })).count()
    }
}

/// `seed 7: 812 steps, 310 gets, 17 large by TCP, 4 by QUIC, 120 looks, 190 puts, 44 refused, 6 faults, 5 cut short, 203 MiB resident, 0 lines broken`
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gets = self.count(|outcome| matches!(outcome, Outcome::Got { .. }));
        let looks = self.count(|outcome| matches!(outcome, Outcome::Seen { .. }));
        let puts = self.count(|outcome| matches!(outcome, Outcome::Stored { .. }));
        let refused = self.count(|outcome| matches!(outcome, Outcome::Failed { .. }));
        let died = self.count(|outcome| matches!(outcome, Outcome::Died));
        write!(
            f,
            "seed {}: {} steps, {gets} gets, {} large by TCP, {} by QUIC, {looks} looks, {puts} puts, {refused} refused, \
             {died} cut short, {} faults, {} MiB resident, {} lines broken",
            self.seed,
            self.steps,
            self.large("tcp"),
            self.large("quic"),
            self.faults(),
            self.resident >> 20,
            self.violations.len()
        )
    }
}
