//! A directory of the node that somebody has filled: no memory is shared, everything else goes on, and it is told. Needs root.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tensorlane_client::AcquireOptions;
use tensorlane_proto::{Reason, Transport};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::transfer::{MI, is, put, seconds};
use tensorlane_tests::{failure, until};

use crate::shared::{at, on_node, route};

/// File system in memory as `tensorlane-node` mounts it, with room for few files; unmounted when dropped.
struct SmallFileSystem(TempDir);

impl SmallFileSystem {
    fn mounted() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        let options = ["-t", "tmpfs", "-o", "size=64k,nr_inodes=16,mode=1777", "tensorlane"];
        assert!(Command::new("mount").args(options).arg(this.0.path()).status().unwrap().success());
        this
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes files until there is room for no more.
    fn fill(&self) {
        let full = (0..).find_map(|number: u32| File::create(self.path().join(number.to_string())).err());
        assert_eq!(full.map(|error| error.kind()), Some(std::io::ErrorKind::StorageFull));
    }

    /// Removes what is no socket.
    fn empty(&self) {
        for entry in self.path().read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none() {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // Its directory is removed below it.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

#[test]
fn whoever_fills_the_directory_costs_others_their_shared_memory_alone_and_it_is_back_when_there_is_room() {
    let small = SmallFileSystem::mounted();
    small.fill();
    let peers = Peers::start(2, |_, options| at(small.path(), options.steady()));
    {
        let (owner, reader) = (peers.client(0), peers.client(1));
        let stored = put(&owner, 1, 5 * MI);
        let get = |options: &AcquireOptions| reader.acquire(stored.reference(), options);
        let copied = get(&seconds(20)).unwrap();
        assert_eq!(copied.moved().transport, Some(Transport::Tcp));
        assert!(is(&copied, 1, 5 * MI));
        assert!(copied.moved().to_string().contains("not shm: "), "{}", copied.moved());
        // Of the first one a copy is here.
        let other = put(&owner, 2, 5 * MI);
        let map_other = || reader.acquire(other.reference(), &on_node());
        assert_eq!(failure(map_other()).reason, Reason::RequirementNotMet);
        for host in 0..2 {
            let told = peers.sidecars[host].logged("no socket in the node's directory: no memory is shared");
            let why = told.expect("the log tells").to_string();
            assert!(why.contains("No space left on device"), "{why}");
        }
        drop(copied);

        small.empty();
        until("they have met", || route(&peers, 1, 0) == "shm");
        let mapped = map_other().unwrap();
        assert_eq!(mapped.moved().transport, Some(Transport::Shm));
        drop(mapped);
    }
    peers.assert_all_free();
    drop(peers);
    drop(small);
}
