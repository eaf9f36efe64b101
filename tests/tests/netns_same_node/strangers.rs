//! A process that belongs to no exchange and knows no key, but reaches the directories of two nodes, and passes bytes between their
//! sidecars. The nodes are two file systems of memory on one kernel, as two clones of a machine have one boot id. Needs root.

use std::io::IoSlice;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{FallocateFlags, MemfdFlags};
use tempfile::TempDir;
use tensorlane_client::PutOptions;
use tensorlane_memory::{passing, seals};
use tensorlane_proto::Transport;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::tensors::{is_intact, put_pattern};
use tensorlane_tests::transfer::{MI, seconds};
use tensorlane_tests::{until, where_the_machine_runs_on};

/// Directory of a node: a file system of its own, in memory.
struct NodeDirectory(TempDir);

impl NodeDirectory {
    fn mounted() -> Self {
        let dir = tempfile::Builder::new().prefix("tensorlane-node-").tempdir().unwrap();
        let words = ["-t", "tmpfs", "-o", "inode64,mode=1777", "node"];
        assert!(Command::new("mount").args(words).arg(dir.path()).status().unwrap().success());
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Uses so many numbers of inodes up.
    fn use_up(&self, inodes: usize) {
        for _ in 0..inodes {
            let file = self.path().join("used");
            std::fs::write(&file, "").unwrap();
            std::fs::remove_file(file).unwrap();
        }
    }

    /// The socket of its sidecar: path and inode.
    fn socket(&self) -> (PathBuf, u64) {
        let mut files = std::fs::read_dir(self.path()).unwrap().map(|file| file.unwrap());
        let file = files.next().expect("a socket");
        assert!(files.next().is_none(), "no other file");
        (file.path(), file.metadata().unwrap().ino())
    }

    /// A socket with a number of an inode that was not there yet.
    fn forge(&self, name: &Path, inode: u64) -> UnixListener {
        let path = self.path().join(name.file_name().unwrap());
        loop {
            let socket = UnixListener::bind(&path).unwrap();
            let made = std::fs::symlink_metadata(&path).unwrap().ino();
            assert!(made <= inode, "inode {inode} was there before: {made}");
            if made == inode {
                return socket;
            }
            std::fs::remove_file(&path).unwrap();
        }
    }
}

impl Drop for NodeDirectory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

/// Sights of the stranger.
#[derive(Default)]
struct Seen {
    bytes: AtomicUsize,
    descriptors: AtomicUsize,
}

/// Sockets at which the stranger stands in the place of another one's, and its threads.
struct Relay {
    seen: Arc<Seen>,
    doors: Vec<(UnixListener, JoinHandle<()>)>,
}

impl Relay {
    fn new() -> Self {
        Self { seen: Arc::default(), doors: Vec::new() }
    }

    /// Callers at a socket meet the one at a path.
    fn stand(&mut self, at: UnixListener, before: PathBuf) {
        let (seen, listening) = (Arc::clone(&self.seen), at.try_clone().unwrap());
        let accepting = move || {
            let mut passing = Vec::new();
            while let Ok((near, _)) = listening.accept() {
                let Ok(far) = UnixStream::connect(&before) else { continue };
                let copies = (near.try_clone().unwrap(), far.try_clone().unwrap());
                for (from, to) in [(near, far), (copies.1, copies.0)] {
                    let seen = Arc::clone(&seen);
                    passing.push(std::thread::spawn(move || pass(&from, &to, &seen)));
                }
            }
            passing.into_iter().for_each(|thread| thread.join().unwrap());
        };
        self.doors.push((at, std::thread::spawn(accepting)));
    }

    /// Ends its threads. The sidecars must have ended, and their sockets with them.
    fn end(self) {
        for (door, thread) in self.doors {
            let _ = rustix::net::shutdown(&door, rustix::net::Shutdown::Both);
            thread.join().unwrap();
        }
    }
}

/// Passes on what is said, and memory of its own in the place of what was given.
fn pass(from: &UnixStream, to: &UnixStream, seen: &Seen) {
    let (mut byte, mut fds) = ([0], Vec::new());
    while let Ok(1) = passing::receive(from.as_fd(), &mut byte, &mut fds) {
        seen.bytes.fetch_add(1, Ordering::SeqCst);
        if let Some(memory) = fds.first() {
            seen.descriptors.fetch_add(fds.len(), Ordering::SeqCst);
            let bytes = rustix::fs::fstat(memory).unwrap().st_size as u64;
            fds = vec![own_memory(bytes), passing::pipe().unwrap().1];
        }
        let given: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        if passing::send(to.as_fd(), &[IoSlice::new(&byte)], &given).is_err() {
            break;
        }
        drop(given);
        fds.clear();
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Sealed memory of other bytes, every page there.
fn own_memory(bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("own", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
    seals::add(&file, seals::FOR_READERS).unwrap();
    file
}

fn route(peers: &Peers, from: usize, to: usize) -> String {
    let route = peers.seen(from, to).route;
    route.map(|route| tensorlane_client::Moved::from(route).to_string()).unwrap_or_default()
}

#[test]
fn a_stranger_that_passes_bytes_between_two_nodes_gets_no_memory_and_none_of_its_bytes_is_believed() {
    where_the_machine_runs_on(|| {
        let nodes = [NodeDirectory::mounted(), NodeDirectory::mounted()];
        nodes[0].use_up(1000);
        let mut relay = Relay::new();
        {
            let mut peers = Peers::start(2, |host, options| {
                let options = options.set("node.directory", nodes[host].path().display());
                options.set("arena.size", "64Mi").set("arena.segment", "16Mi")
            });
            // In the directory of each it stands at the name of the other one's socket, with the same inode. Numbers only count up, so
            // the second sidecar starts anew behind the number of the first.
            let [first, second] = [0, 1].map(|host: usize| nodes[host].socket());
            drop(second);
            peers.sidecars[1].terminate();
            relay.stand(nodes[1].forge(&first.0, first.1), first.0.clone());
            peers.sidecars[1].start_again();
            let mut sockets = std::fs::read_dir(nodes[1].path()).unwrap().map(|file| file.unwrap());
            let second = sockets.find(|file| file.file_name() != first.0.file_name().unwrap()).unwrap();
            relay.stand(nodes[0].forge(&second.path(), second.metadata().unwrap().ino()), second.path());
            // They look for each other's sockets when they connect.
            peers.network.cut(1);
            until("the cut is noticed", || {
                (0..2).all(|host| peers.seen(host, 1 - host).state != "connected")
            });
            peers.network.mend(1);
            peers.await_connected();
            until("it is known whether they share memory", || {
                (0..2).all(|host| {
                    !["", "tcp, not shm: node_unproven"].contains(&&*route(&peers, host, 1 - host))
                })
            });
            for (owner, reader) in [(0, 1), (1, 0)] {
                let stored = put_pattern(&peers.client(owner), 7, 3 * MI, &PutOptions::new()).unwrap();
                let tensor = peers.client(reader).acquire(stored.reference(), &seconds(20)).unwrap();
                assert!(is_intact(&tensor), "bytes of the stranger, by {}", tensor.moved());
                assert_eq!(tensor.moved().transport, Some(Transport::Tcp));
                assert_eq!(route(&peers, reader, owner), "tcp, not shm: other_node");
            }
            let refused = |host: usize| {
                let reason = ["reason=\"other_directory\""];
                peers.metric(host, "tensorlane_peer_refused_node_connections_total", &reason)
            };
            assert!(refused(0) >= 1.0 && refused(1) >= 1.0);
            peers.assert_all_free();
        }
        let seen = Arc::clone(&relay.seen);
        relay.end();
        // Whoever starts looks whether somebody listens there, and says nothing.
        assert_eq!((seen.descriptors.load(Ordering::SeqCst), seen.bytes.load(Ordering::SeqCst)), (0, 0));
    });
}
