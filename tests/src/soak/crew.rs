//! The workloads: each a process of its own behind a thread that gives it its orders one by one and writes down what became
//! of them.
//!
//! A workload that was killed is started anew by the order after the one that finds it dead. It does not know what the orders mean.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::history::{Recorder, What};
use super::orders::{Actor, Order, Outcome, Verb, Who};
use crate::dialogue::Dialogue;
use crate::process::Orphan;
use crate::sidecar::bin_dir;

/// Orders that a workload is behind at most; then the one who drives waits.
const BEHIND: usize = 3;
/// The longest that any order takes: its deadline, a put's wait for room twice, and a busy machine.
const LONGEST: Duration = Duration::from_secs(75);

/// Board that everyone in the crew shares.
#[derive(Debug, Default)]
struct Board {
    /// Answers to the steps that make a tensor: its reference, or none. A step that is under way is not there.
    references: Mutex<HashMap<u64, Option<String>>>,
    changed: Condvar,
    /// Orders given and not answered.
    open: Mutex<usize>,
}

/// A single workload.
struct Member {
    orders: Option<SyncSender<(u64, Verb)>>,
    process: Arc<Mutex<Option<u32>>>,
    thread: Option<JoinHandle<()>>,
}

/// All of them. Dropping it ends them.
pub struct Crew {
    members: HashMap<Actor, Member>,
    board: Arc<Board>,
    recorder: Arc<Recorder>,
}

/// State on the thread of a workload.
struct Shell {
    actor: Actor,
    sockets: PathBuf,
    process: Arc<Mutex<Option<u32>>>,
    board: Arc<Board>,
    recorder: Arc<Recorder>,
    running: Option<(Child, Dialogue)>,
}

// === impl Crew ===

impl Crew {
    /// Workloads with the folders of the sockets of their sidecars. Their processes begin with their first orders.
    ///
    /// # Panics
    /// Where no thread can be started.
    pub fn new(actors: impl IntoIterator<Item = (Actor, PathBuf)>, recorder: &Arc<Recorder>) -> Self {
        let board = Arc::new(Board::default());
        let member = |(actor, sockets)| {
            let (orders, received) = sync_channel(BEHIND);
            let process = Arc::default();
            let shell = Shell {
                actor,
                sockets,
                process: Arc::clone(&process),
                board: Arc::clone(&board),
                recorder: Arc::clone(recorder),
                running: None,
            };
            let thread = Some(std::thread::spawn(move || shell.run(&received)));
            (actor, Member { orders: Some(orders), process, thread })
        };
        let members = actors.into_iter().map(member).collect();
        Self { members, board, recorder: Arc::clone(recorder) }
    }

    /// Gives an order; waits where the workload is too far behind.
    ///
    /// # Panics
    /// Where there is no such workload.
    pub fn tell(&self, actor: Actor, step: u64, verb: Verb) {
        *self.board.open.lock().expect("no panic") += 1;
        let orders = self.members[&actor].orders.as_ref().expect("it was not ended");
        orders.send((step, verb)).expect("its thread runs");
    }

    /// Waits until every order was answered.
    ///
    /// # Panics
    /// Where one takes longer than any may.
    pub fn await_idle(&self) {
        let deadline = Instant::now() + LONGEST * (BEHIND as u32 + 1);
        let mut open = self.board.open.lock().expect("no panic");
        while *open > 0 {
            assert!(Instant::now() < deadline, "{open} orders are not answered");
            open = self.board.changed.wait_timeout(open, Duration::from_millis(100)).expect("no panic").0;
        }
    }

    /// Kills a workload, whatever it does; whether there was one.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn kill(&self, actor: Actor) -> bool {
        // Locked, so that the id is not that of another process by now: its thread waits for it under the same lock.
        let process = self.members[&actor].process.lock().expect("no panic");
        let Some(pid) = *process else { return false };
        let who = Who::Workload(actor);
        let orphan = Orphan::adopt(pid);
        self.recorder.note(What::Killing { who });
        orphan.kill();
        self.recorder.note(What::Gone { who });
        true
    }

    /// The reference that a step was answered with; none where it has failed or is under way.
    ///
    /// # Panics
    /// Where a thread panicked.
    pub fn reference(&self, step: u64) -> Option<String> {
        self.board.references.lock().expect("no panic").get(&step).cloned().flatten()
    }

    /// Ends every workload in order.
    pub fn end(mut self) {
        self.close();
    }

    fn close(&mut self) {
        for member in self.members.values_mut() {
            member.orders = None;
        }
        for member in self.members.values_mut() {
            if let Some(thread) = member.thread.take() {
                // It has told why by now, if it panicked.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.close();
    }
}

// === impl Shell ===

impl Shell {
    fn run(mut self, orders: &Receiver<(u64, Verb)>) {
        for (step, verb) in orders {
            let reference = self.asked_for(step, verb);
            if self.running.is_none() {
                self.start();
            }
            let (call, actor) = (step, self.actor);
            self.recorder.note(What::Began { call, actor, verb, reference: reference.clone() });
            let outcome = self.perform(&Order { verb, reference });
            self.recorder.note(What::Ended { call: step, outcome: outcome.clone() });
            self.post(step, verb, &outcome);
        }
        if let Some((mut child, mut dialogue)) = self.running.take() {
            dialogue.close();
            *self.process.lock().expect("no panic") = None;
            // Its input has ended, and so does it.
            let _ = child.wait();
        }
    }

    /// The reference of the tensor that an order is about. The step that makes it came earlier, so that it ends.
    fn asked_for(&self, step: u64, verb: Verb) -> Option<String> {
        let (Verb::Get { tensor, .. } | Verb::Hold { tensor, .. }) = verb else { return None };
        let mut references = self.board.references.lock().expect("no panic");
        let deadline = Instant::now() + LONGEST * (BEHIND as u32 + 1);
        loop {
            if let Some(reference) = references.get(&tensor) {
                return reference.clone();
            }
            assert!(Instant::now() < deadline, "step {tensor}, which step {step} is about, is not answered");
            references =
                self.board.changed.wait_timeout(references, Duration::from_millis(100)).expect("no panic").0;
        }
    }

    fn start(&mut self) {
        let mut command = Command::new(bin_dir().join("actor"));
        command.arg(&self.sockets).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().expect("the actor's binary; build it first: cargo build --release --bins");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut dialogue = Dialogue::new(input.expect("its input"), output.expect("its output"));
        dialogue.expect("ready");
        let (who, life) = (Who::Workload(self.actor), child.id().to_string());
        self.recorder.note(What::Born { who, life });
        *self.process.lock().expect("no panic") = Some(child.id());
        self.running = Some((child, dialogue));
    }

    fn perform(&mut self, order: &Order) -> Outcome {
        let line = serde_json::to_string(order).expect("an order is JSON");
        let Some((_, dialogue)) = &mut self.running else { return Outcome::Died };
        let answer = dialogue.try_tell(&line).then(|| dialogue.try_answer(LONGEST)).flatten();
        if let Some(outcome) = answer.and_then(|answer| serde_json::from_str(&answer).ok()) {
            return outcome;
        }
        self.buried()
    }

    /// Outcome of a workload that has died or says nothing: which of the two decides whether that was our doing.
    fn buried(&mut self) -> Outcome {
        let mut process = self.process.lock().expect("no panic");
        let Some((mut child, _)) = self.running.take() else { return Outcome::Died };
        let hung = child.try_wait().is_ok_and(|ended| ended.is_none());
        // It may have ended in between.
        let _ = child.kill();
        let status = child.wait();
        *process = None;
        match status {
            Ok(status) if !hung && std::os::unix::process::ExitStatusExt::signal(&status) == Some(9) => {
                Outcome::Died
            }
            status => Outcome::Failed {
                reason: "other".to_owned(),
                told: if hung {
                    format!("no answer in {LONGEST:?}")
                } else {
                    format!("it ended by itself: {status:?}")
                },
            },
        }
    }

    fn post(&self, step: u64, verb: Verb, outcome: &Outcome) {
        let makes = match verb {
            Verb::Put { tensor, .. } | Verb::Reserve { tensor, .. } => tensor == step,
            _ => false,
        };
        if makes {
            let reference = match outcome {
                Outcome::Stored { reference } | Outcome::Reserved { reference } => Some(reference.clone()),
                _ => None,
            };
            self.board.references.lock().expect("no panic").insert(step, reference);
        }
        *self.board.open.lock().expect("no panic") -= 1;
        self.board.changed.notify_all();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            *self.process.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
