//! Signals that end the command undo first what it has begun: a file or directory in the making, tickets that nobody
//! was told. A second signal ends it at once. Nothing helps against SIGKILL; see [`Sink`](crate::sink::Sink) for what
//! does.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::{SigId, flag, low_level};

/// Signals from outside that end a process that does not expect them, but for SIGIO, SIGPWR, SIGSTKFLT and real-time ones:
/// nobody ends a command by those. SIGPIPE is an error of the write instead, as in every Rust program.
const ENDING: [i32; 11] =
    [SIGALRM, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ];

/// Waits for signals, on a thread of its own that ends when this is dropped.
///
/// Signals that come after that are lost, so it must live until the command is done.
#[derive(Debug)]
pub(crate) struct Cleaner {
    begun: Arc<Mutex<Begun>>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    /// Handlers by which a second signal ends the process at once.
    ends: Vec<SigId>,
}

/// Step that undoes another.
pub(crate) type Undo = Box<dyn FnOnce() + Send>;

/// Steps that undo what was made and is not settled.
#[derive(Default)]
struct Begun(Vec<Undo>);

impl Begun {
    fn undo(&mut self) {
        self.0.drain(..).for_each(|undo| undo());
    }
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Begun").field(&self.0.len()).finish()
    }
}

impl Cleaner {
    pub(crate) fn start() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let begun = Arc::new(Mutex::new(Begun::default()));
        let ending: Vec<i32> = ENDING.into_iter().filter(|signal| !is_ignored(&status, *signal)).collect();
        let is_undoing = Arc::new(AtomicBool::new(false));
        let end = |signal: &i32| flag::register_conditional_default(*signal, Arc::clone(&is_undoing));
        let ends = ending.iter().map(end).collect::<io::Result<_>>()?;
        let mut signals = Signals::new(&ending)?;
        let handle = signals.handle();
        let shared = Arc::clone(&begun);
        let wait = move || {
            for signal in signals.forever() {
                set_soon(Arc::clone(&is_undoing));
                // Held until the end: nothing is settled meanwhile.
                let mut begun = shared.lock();
                begun.undo();
                // The parent sees that it was this signal.
                let _ = low_level::emulate_default_handler(signal);
            }
        };
        let thread = thread::Builder::new().name("signals".into()).spawn(wait)?;
        Ok(Self { begun, handle, thread: Some(thread), ends })
    }

    /// Makes what a signal undoes from now on.
    pub(crate) fn begin<T, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        undo: impl FnOnce(&T) -> Undo,
    ) -> Result<T, E> {
        let mut begun = self.begun.lock();
        let made = make()?;
        begun.0.push(undo(&made));
        Ok(made)
    }

    /// Makes a file of this name; a signal removes it from now on.
    pub(crate) fn make<T>(&self, part: &Path, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.begin(make, |_| removal(part))
    }

    /// Makes a directory, which tells its name; a signal removes it from now on, with what is in it.
    pub(crate) fn make_directory<T, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        path: impl FnOnce(&T) -> &Path,
    ) -> Result<T, E> {
        self.begin(make, |made| removal(path(made)))
    }

    /// Does a step before any undoing. Where a signal has that begun, it is never done: the process ends.
    pub(crate) fn before<T>(&self, step: impl FnOnce() -> T) -> T {
        let _begun = self.begun.lock();
        step()
    }

    /// Does the last step, such as giving a file its name; no signal undoes anything of it.
    pub(crate) fn settle<E>(&self, last: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut begun = self.begun.lock();
        last()?;
        begun.0.clear();
        Ok(())
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        // First: a signal waits for it, and ends the process then.
        self.begun.lock().undo();
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
        for end in self.ends.drain(..) {
            low_level::unregister(end);
        }
    }
}

/// Time in which a second signal is the first one again: `timeout` sends its signal to the command, and to its group.
const ONE_SIGNAL: Duration = Duration::from_millis(100);

/// Sets a flag when the next signal is a second one. Without a thread for it none is.
fn set_soon(flag: Arc<AtomicBool>) {
    let set = move || {
        thread::sleep(ONE_SIGNAL);
        flag.store(true, Ordering::SeqCst);
    };
    let _ = thread::Builder::new().name("second signal".into()).spawn(set);
}

/// Step that removes a file or directory.
fn removal(part: &Path) -> Undo {
    let part = part.to_owned();
    Box::new(move || remove(&part))
}

/// Times that a directory is removed anew, where files are still being made in it.
const REMOVALS_MAX: u32 = 1_000;

fn remove(part: &Path) {
    // It may stay behind if even that fails; its name says what it is.
    if fs::symlink_metadata(part).is_ok_and(|about| about.is_dir()) {
        let is_left =
            || fs::remove_dir_all(part).is_err_and(|error| error.kind() == ErrorKind::DirectoryNotEmpty);
        (0..REMOVALS_MAX).any(|_| !is_left());
    } else {
        let _ = fs::remove_file(part);
    }
}

/// Returns whether the one that started the command wants it to survive a signal, as `nohup` does. A line of the
/// process's status has the mask.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// Tells the child of a test which file it is to make.
    const PART: &str = "TENSORLANE_TEST_PART";

    /// The child of the test below: makes a file and waits for its signal.
    fn make_and_wait(part: &Path) {
        let cleaner = Cleaner::start().unwrap();
        cleaner.make(part, || fs::write(part, b"half")).unwrap();
        eprintln!("made");
        loop {
            thread::park();
        }
    }

    /// The child of the other test: undoing never ends.
    fn undo_for_ever() {
        let cleaner = Cleaner::start().unwrap();
        let undo = || -> Undo {
            Box::new(|| {
                eprintln!("undoing");
                loop {
                    thread::park();
                }
            })
        };
        cleaner.begin(|| Ok::<_, io::Error>(()), |()| undo()).unwrap();
        eprintln!("made");
        loop {
            thread::park();
        }
    }

    /// Test of this module as a process of its own, and what it says.
    fn child(test: &str, part: &Path) -> (Child, impl Iterator<Item = String>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("signals::tests::{test}"), "--nocapture"])
            .env(PART, part)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        (child, said)
    }

    fn kill(child: &Child, number: i32) {
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::from_named_raw(number).unwrap()).unwrap();
    }

    #[test]
    fn a_signal_that_ends_the_process_removes_the_file_first() {
        if let Some(part) = std::env::var_os(PART) {
            return make_and_wait(Path::new(&part));
        }
        let directory = tempfile::tempdir().unwrap();
        let part = directory.path().join("f.part");
        // Whoever started the test may ignore some, as `nohup` does, and so does the child then.
        let status = fs::read_to_string("/proc/self/status").unwrap();
        for number in ENDING.into_iter().filter(|number| !is_ignored(&status, *number)) {
            let (mut child, mut said) = child("a_signal_that_ends_the_process_removes_the_file_first", &part);
            assert!(said.any(|line| line == "made") && part.exists());
            kill(&child, number);
            let ended = child.wait().unwrap();
            assert!(ended.signal() == Some(number) && !part.exists(), "{number}: {ended}");
        }
    }

    #[test]
    fn a_second_signal_ends_a_process_that_is_still_undoing() {
        if std::env::var_os(PART).is_some() {
            return undo_for_ever();
        }
        let (mut child, mut said) =
            child("a_second_signal_ends_a_process_that_is_still_undoing", Path::new(""));
        assert!(said.any(|line| line == "made"));
        kill(&child, SIGTERM);
        assert!(said.any(|line| line == "undoing"));
        // The first ones may still be taken for the same.
        let until = Instant::now() + Duration::from_secs(30);
        while child.try_wait().unwrap().is_none() && Instant::now() < until {
            kill(&child, SIGINT);
            thread::park_timeout(Duration::from_millis(10));
        }
        assert_eq!(child.try_wait().unwrap().and_then(|ended| ended.signal()), Some(SIGINT));
    }

    #[test]
    fn signals_that_are_ignored_are_read_from_the_status() {
        let status = "Name:\tx\nSigBlk:\t0000000000004000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP) && !is_ignored(status, SIGTERM) && !is_ignored("", SIGHUP));
    }
}
