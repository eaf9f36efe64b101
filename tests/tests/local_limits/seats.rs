//! An exchange with more members than one sidecar has seats for, of real processes on loopback.

use std::process::{Command, Stdio};

use tensorlane_client::{AcquireOptions, PutOptions, Stored};
use tensorlane_proto::Reference;
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::{is_intact, put_pattern};
use tensorlane_tests::wait::{PATIENCE, until_within};
use tensorlane_tests::{Sidecar, SidecarOptions, where_the_machine_runs_on};

/// Members that there are, unless `TENSORLANE_TEST_MEMBERS` says how many.
const MEMBERS: usize = 64;
const SEATS: usize = 16;
/// Members that each one asks, one after the other: more than it has seats, and others than its neighbours ask.
const ASKED: usize = 20;
/// Members that ask at the same time.
const TOGETHER: usize = 8;

/// The line of a sidecar for the file of peers.
fn line(sidecar: &Sidecar) -> String {
    let mut command = Command::new(bin_dir().join("tensorlane-sidecar"));
    command.arg("--print-peer").arg("--config").arg(sidecar.folder().join("config.yaml"));
    let output = command.env_clear().stdin(Stdio::null()).output().expect("the sidecar's binary");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn members() -> usize {
    let asked = std::env::var("TENSORLANE_TEST_MEMBERS");
    asked.map_or(MEMBERS, |text| text.parse().expect("a number of members"))
}

#[test]
fn sixty_four_members_with_sixteen_seats_each_all_reach_whom_they_need() {
    let members = members();
    where_the_machine_runs_on(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("peers.yaml");
        // An address of the loopback network that no other process of these tests has.
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let start = |member: usize| {
            let options = SidecarOptions::default().set("peer", format!("m{member}"));
            let options = options.set("peers.file", file.display()).set("peers.max", SEATS);
            let options = options.set("arena.size", "16Mi").set("gc.copyIdle", "200ms");
            Sidecar::with(options.set("peers.listen", format!("127.{high}.{low}.8:{}", 9500 + member)))
        };
        let all: Vec<Sidecar> = (0..members).map(start).collect();
        let whole = format!("peers:\n{}", all.iter().map(line).collect::<String>());
        std::fs::write(folder.path().join("new"), whole).unwrap();
        std::fs::rename(folder.path().join("new"), &file).unwrap();

        let owners: Vec<_> = all.iter().map(Sidecar::client).collect();
        let stored: Vec<Stored> = owners
            .iter()
            .enumerate()
            .map(|(member, owner)| put_pattern(owner, member as u64, 10_000, &PutOptions::new()).unwrap())
            .collect();
        let references: Vec<Reference> = stored.iter().map(|one| one.reference().clone()).collect();
        until_within(3 * PATIENCE, "every member lists itself and all others", || {
            owners.iter().all(|owner| owner.peers().is_ok_and(|peers| peers.len() == members))
        });
        for some in (0..members).collect::<Vec<_>>().chunks(TOGETHER) {
            std::thread::scope(|scope| {
                for member in some {
                    let (reader, references) = (&owners[*member], &references);
                    scope.spawn(move || {
                        for step in 1..=ASKED {
                            let other = (member + 3 * step) % members;
                            let got = reader.acquire(&references[other], &AcquireOptions::new());
                            let got =
                                got.unwrap_or_else(|error| panic!("m{member} from m{other}: {error:?}"));
                            assert!(is_intact(&got), "m{member} from m{other}");
                            let peers = reader.peers().unwrap();
                            let connected = peers.iter().filter(|peer| peer.state == "connected").count();
                            // One that gave its seat away is seen until it has ended.
                            assert!(
                                (1..=2 * SEATS).contains(&connected),
                                "m{member} has {connected} connected"
                            );
                        }
                    });
                }
            });
        }
        drop((stored, owners));
        all.iter().for_each(Sidecar::assert_all_free);
    });
}
