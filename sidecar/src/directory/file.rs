//! A directory in a YAML file, for bare machines and the demo.
//!
//! One thread looks at the file once a second: where its change time, size or inode differ from the last look, it is read.
//! Simple on purpose: it works on every file system, follows a file that is replaced by renaming, a symbolic link that is
//! turned, and a file that appears later. A writer should replace the file by renaming; a file caught half-written is no
//! table, so the last good one stays until the next look.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::parse::{FILE_BYTES_MAX, parse};
use super::{Directory, PeerEntry, PeerTable, PublishedOffer};
use crate::metrics::Metrics;
use crate::metrics::label::PanicScope;
use crate::plain;
use crate::threads::Threads;

/// Time after which the file is looked at again; a look costs one `stat`.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The shortest time between two refreshes: strangers who knock must not make us read all day.
pub const REFRESH_EVERY: Duration = Duration::from_millis(200);

/// The peers that a file lists. Dropping it ends its thread.
pub struct FileDirectory {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    path: PathBuf,
    metrics: Arc<Metrics>,
    table: watch::Sender<Arc<PeerTable>>,
    wanted: Mutex<Wanted>,
    wake: Condvar,
    /// Entry that should stand in the file of this peer, and what was last said of that.
    own: Mutex<Option<(PeerEntry, Listed)>>,
}

/// Standing of a peer in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listed {
    Well,
    /// With a key that it has no more, too.
    WithMore,
    /// Without one of its keys.
    WithLess,
    Not,
}

// === impl Listed ===

impl Listed {
    fn of(entry: &PeerEntry, table: &PeerTable) -> Self {
        let Some(listed) = table.peer(&entry.name) else { return Self::Not };
        let missing = entry.fingerprints.iter().any(|key| !listed.fingerprints.contains(key));
        let gone = listed.fingerprints.iter().any(|key| !entry.fingerprints.contains(key));
        match (missing, gone) {
            (false, false) => Self::Well,
            (false, true) => Self::WithMore,
            (true, _) => Self::WithLess,
        }
    }

    /// Reason for which others that read this file refuse the peer, with the line that mends it.
    fn lack(self, file: &Path, entry: &PeerEntry) -> Option<String> {
        let file = file.display();
        match self {
            Self::Well | Self::WithMore => None,
            Self::WithLess => Some(format!(
                "the peers file {file} lacks a key of this peer, so others refuse it: let its line be `- {entry}`"
            )),
            Self::Not => Some(format!(
                "this peer is not in its peers file {file}, so others refuse it: add the line `- {entry}`"
            )),
        }
    }

    fn say(self, file: &Path, entry: &PeerEntry) {
        let file = file.display();
        match self {
            Self::Well => tracing::info!(peer = %entry.name, "this peer is in the peers file"),
            Self::WithMore => {
                tracing::info!(%file, %entry, "the peers file lists a key that this peer has no more");
            }
            Self::WithLess => {
                tracing::warn!(%file, %entry, "the peers file lacks a key of this peer: write it there");
            }
            Self::Not => {
                tracing::warn!(%file, %entry, "this peer is not in the peers file: others refuse it until it is");
            }
        }
    }
}

#[derive(Default)]
struct Wanted {
    refresh: bool,
    stop: bool,
}

/// Stamp that tells one state of the file from another: times of writing and of any change, which nobody can set back, each in seconds
/// and nanoseconds; size, device, inode.
type Stamp = ([i64; 4], u64, u64, u64);

/// The last look at the file.
enum Seen {
    Nothing,
    Stamped(Stamp),
    /// Reason for which it could not be read; told once.
    Wrong(String),
}

impl FileDirectory {
    /// Reads the file once, so that the first table is there when this returns, and goes on looking at it. A file that is
    /// not there yet, or wrong, is logged, counted and looked at again.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(path: &Path, metrics: Arc<Metrics>, threads: &Threads) -> io::Result<FileDirectory> {
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            metrics,
            table: watch::Sender::new(Arc::default()),
            wanted: Mutex::default(),
            wake: Condvar::new(),
            own: Mutex::default(),
        });
        shared.metrics.directory.asked();
        let seen = shared.look(Seen::Nothing, false);
        let looks = Arc::clone(&shared);
        let thread = threads.start("directory", PanicScope::Process, move || looks.run(seen))?;
        Ok(FileDirectory { shared, thread: Some(thread) })
    }
}

impl Directory for FileDirectory {
    /// The file belongs to whoever writes it: what should stand in it is logged.
    fn publish(&self, offer: PublishedOffer) {
        let mut own = self.shared.own.lock();
        let listed = Listed::of(&offer.entry, &self.shared.table.borrow());
        listed.say(&self.shared.path, &offer.entry);
        *own = Some((offer.entry, listed));
    }

    fn watch(&self) -> watch::Receiver<Arc<PeerTable>> {
        self.shared.table.subscribe()
    }

    fn refresh(&self) {
        self.shared.wanted.lock().refresh = true;
        self.shared.wake.notify_one();
    }

    fn own_lack(&self) -> Option<String> {
        let own = self.shared.own.lock();
        own.as_ref().and_then(|(entry, listed)| listed.lack(&self.shared.path, entry))
    }
}

impl Drop for FileDirectory {
    fn drop(&mut self) {
        self.shared.wanted.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been counted.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, mut seen: Seen) {
        let mut refreshed = None;
        while let Some(forced) = self.wait(refreshed) {
            seen = self.look(seen, forced);
            if forced {
                refreshed = Some(Instant::now());
                self.table.send_modify(|_| {});
            }
        }
    }

    /// Sleeps until the next look; whether it was asked for, or none where there is to be no other.
    fn wait(&self, refreshed: Option<Instant>) -> Option<bool> {
        let look_at = Instant::now() + LOOK_EVERY;
        let mut wanted = self.wanted.lock();
        loop {
            let allowed_at = refreshed.map(|at| at + REFRESH_EVERY);
            let allowed = allowed_at.is_none_or(|at| at <= Instant::now());
            if wanted.stop {
                return None;
            }
            if wanted.refresh && allowed {
                wanted.refresh = false;
                return Some(true);
            }
            let until = allowed_at.filter(|_| wanted.refresh).map_or(look_at, |at| at.min(look_at));
            if self.wake.wait_until(&mut wanted, until).timed_out() && look_at <= Instant::now() {
                return Some(false);
            }
        }
    }

    /// Looks at the file, and reads it where it has changed or `forced` says so.
    fn look(&self, seen: Seen, forced: bool) -> Seen {
        let stamp = self.stamp();
        match (&seen, &stamp) {
            (Seen::Stamped(before), Ok(now)) if before == now && !forced => {
                self.metrics.directory.confirmed();
                return seen;
            }
            _ => {}
        }
        match stamp.and_then(|stamp| Ok((stamp, self.read()?))) {
            Ok((stamp, table)) => {
                self.metrics.directory.peers.set(i64::try_from(table.len()).unwrap_or(i64::MAX));
                self.replace(table);
                self.metrics.directory.confirmed();
                Seen::Stamped(stamp)
            }
            Err(wrong) => {
                self.metrics.directory.failed_reads.inc();
                if !matches!(&seen, Seen::Wrong(before) if *before == wrong) {
                    let peers = self.table.borrow().len();
                    tracing::error!(file = %self.path.display(), wrong, peers, "peers file refused: the last good table stays");
                }
                Seen::Wrong(wrong)
            }
        }
    }

    fn replace(&self, table: PeerTable) {
        self.table.send_if_modified(|old| {
            let changed = **old != table;
            if changed {
                tracing::info!(peers = table.len(), before = old.len(), "peer table read");
                *old = Arc::new(table);
            }
            changed
        });
        self.look_for_own();
    }

    /// Says so where what is said of this peer has changed: whoever is taken out of the file finds that nobody knows it.
    fn look_for_own(&self) {
        if let Some((entry, said)) = &mut *self.own.lock() {
            let listed = Listed::of(entry, &self.table.borrow());
            if listed != *said {
                listed.say(&self.path, entry);
                *said = listed;
            }
        }
    }

    fn stamp(&self) -> Result<Stamp, String> {
        let data = std::fs::metadata(&self.path).map_err(|error| error.to_string())?;
        let times = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
        Ok((times, data.len(), data.dev(), data.ino()))
    }

    fn read(&self) -> Result<PeerTable, String> {
        let mut text = String::new();
        let file = plain::open(&self.path).map_err(|error| error.to_string())?;
        let read =
            file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
        if read as u64 > FILE_BYTES_MAX {
            return Err(format!("more than {FILE_BYTES_MAX} bytes"));
        }
        parse(&text).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Scene {
        directory: FileDirectory,
        metrics: Arc<Metrics>,
        watch: watch::Receiver<Arc<PeerTable>>,
        path: PathBuf,
        _folder: tempfile::TempDir,
    }

    fn scene(text: Option<&str>) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers.yaml");
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let metrics = Arc::new(Metrics::new(&Registry::new()).unwrap());
        let directory = FileDirectory::start(&path, Arc::clone(&metrics), &Threads::default()).unwrap();
        let watch = directory.watch();
        Scene { directory, metrics, watch, path, _folder: folder }
    }

    #[test]
    fn who_is_listed_with_other_keys_than_its_own_or_not_at_all_is_told_apart() {
        let table = |text: &str| parse(text).unwrap();
        let entry = |text: &str| table(text).peer(&"a".parse().unwrap()).unwrap().clone();
        let keys = |keys: &[u8]| {
            let keys: Vec<String> = keys.iter().map(|key| format!("'sha256:{key:064x}'")).collect();
            format!("peers:\n- {{name: a, fingerprints: [{}]}}\n", keys.join(", "))
        };
        let own = entry(&keys(&[1, 2]));
        let listed = |text: &str| Listed::of(&own, &table(text));
        assert_eq!(listed(&keys(&[2, 1])), Listed::Well);
        assert_eq!(listed(&keys(&[1])), Listed::WithLess);
        assert_eq!(listed(&keys(&[1, 3])), Listed::WithLess);
        assert_eq!(Listed::of(&entry(&keys(&[1])), &table(&keys(&[1, 2]))), Listed::WithMore);
        assert_eq!(listed(&peers(&["b"])), Listed::Not);
        let lack = |text: &str| listed(text).lack(Path::new("/p.yaml"), &own);
        assert_eq!(lack(&keys(&[2, 1])), None);
        let line = format!("`- {own}`");
        let told = lack(&peers(&["b"])).unwrap();
        assert!(told.contains("not in its peers file /p.yaml") && told.ends_with(&line), "{told}");
        let told = lack(&keys(&[1])).unwrap();
        assert!(told.contains("lacks a key of this peer") && told.ends_with(&line), "{told}");
    }

    fn peers(names: &[&str]) -> String {
        let entry =
            |(i, name): (usize, &&str)| format!("- {{name: {name}, fingerprints: ['sha256:{i:064x}']}}\n");
        format!("peers:\n{}", names.iter().enumerate().map(entry).collect::<String>())
    }

    impl Scene {
        /// Replaces the file as an editor does.
        fn write(&self, text: &str) {
            let draft = self.path.with_extension("new");
            std::fs::write(&draft, text).unwrap();
            std::fs::rename(&draft, &self.path).unwrap();
        }

        fn names(&self) -> Vec<String> {
            self.watch.borrow().iter().map(|entry| entry.name.to_string()).collect()
        }

        async fn until(&mut self, is: impl Fn(&PeerTable) -> bool) {
            let wait = self.watch.wait_for(|table| is(table));
            tokio::time::timeout(PATIENCE, wait).await.expect("no such table came").unwrap();
        }

        /// Asks for a refresh and waits until it is done.
        async fn refreshed(&mut self) {
            self.watch.mark_unchanged();
            self.directory.refresh();
            tokio::time::timeout(PATIENCE, self.watch.changed()).await.expect("no refresh").unwrap();
        }
    }

    #[tokio::test]
    async fn the_first_table_is_there_at_once_and_later_ones_come_by_themselves() {
        let mut scene = scene(Some(&peers(&["a", "b"])));
        assert_eq!(scene.names(), ["a", "b"]);
        scene.write(&peers(&["a", "b", "c"]));
        scene.until(|table| table.len() == 3).await;
        assert_eq!(scene.metrics.directory.peers.get(), 3);
    }

    #[tokio::test]
    async fn a_file_that_appears_later_is_read() {
        let mut scene = scene(None);
        assert!(scene.names().is_empty());
        scene.write(&peers(&["a"]));
        scene.until(|table| table.len() == 1).await;
    }

    #[tokio::test]
    async fn a_file_that_is_written_in_place_with_its_old_length_and_time_is_read() {
        let mut scene = scene(Some(&peers(&["a"])));
        let before = std::fs::metadata(&scene.path).unwrap();
        let changed = |of: &std::fs::Metadata| (of.ctime(), of.ctime_nsec());
        // The file system's clock goes in steps.
        while std::fs::metadata(&scene.path).is_ok_and(|now| changed(&now) == changed(&before)) {
            std::fs::write(&scene.path, peers(&["c"])).unwrap();
            let file = std::fs::File::options().write(true).open(&scene.path).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
        }
        scene.until(|table| table.peer(&"c".parse().unwrap()).is_some()).await;
    }

    #[tokio::test]
    async fn a_bad_or_missing_file_keeps_the_last_good_table_and_is_counted() {
        let mut scene = scene(Some(&peers(&["a"])));
        for text in ["", "peers: [{name: A}]", "peers:"] {
            let before = scene.metrics.directory.failed_reads.get();
            scene.write(text);
            scene.refreshed().await;
            assert_eq!(scene.names(), ["a"], "after {text:?}");
            assert!(scene.metrics.directory.failed_reads.get() > before);
        }
        std::fs::remove_file(&scene.path).unwrap();
        scene.refreshed().await;
        assert_eq!(scene.names(), ["a"]);
        scene.write("peers: []");
        scene.refreshed().await;
        assert!(scene.names().is_empty(), "a file that says so empties the table");
    }

    #[tokio::test]
    async fn refreshes_close_to_each_other_are_one() {
        let mut scene = scene(Some(&peers(&["a"])));
        scene.refreshed().await;
        let start = Instant::now();
        for _ in 0..1000 {
            scene.directory.refresh();
        }
        scene.refreshed().await;
        scene.refreshed().await;
        assert!(start.elapsed() >= REFRESH_EVERY, "refreshed again after {:?}", start.elapsed());
    }

    #[test]
    fn dropping_it_ends_its_thread() {
        let scene = scene(Some(&peers(&["a"])));
        let shared = Arc::downgrade(&scene.directory.shared);
        drop(scene);
        assert!(shared.upgrade().is_none(), "the thread still holds it");
    }
}
