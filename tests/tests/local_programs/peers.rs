//! Peers that are not set up alike, from outside: what the tools say at both ends, and that it ends once they are.

use std::path::Path;

use tempfile::TempDir;
use tensorlane_tests::watching::command;
use tensorlane_tests::{Sidecar, SidecarOptions, until};

/// Two sidecars, a and z, of one peers file; z has a setting of its own.
struct Pair {
    a: Sidecar,
    z: Sidecar,
    folder: TempDir,
}

impl Pair {
    /// `ports` tell the pairs of the tests apart: the address is one of the loopback network that no other process has.
    fn new(ports: [u16; 2], of_z: (&str, &str)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let start = |peer: &str, port: u16, (setting, value): (&str, &str)| {
            let options = SidecarOptions::default().set("peer", peer).set(setting, value);
            let options = options.set("peers.file", folder.path().join("peers.yaml").display());
            Sidecar::with(options.set("peers.listen", address(port)))
        };
        let a = start("a", ports[0], ("exchange", "default"));
        let z = start("z", ports[1], of_z);
        Self { a, z, folder }
    }

    /// Lists these.
    fn list(&self, peers: &[&Sidecar]) {
        let line = |sidecar: &&Sidecar| {
            let config = sidecar.folder().join("config.yaml");
            let mut command =
                std::process::Command::new(tensorlane_tests::sidecar::bin_dir().join("tensorlane-sidecar"));
            let printed =
                command.arg("--print-peer").arg("--config").arg(config).env_clear().output().unwrap();
            String::from_utf8(printed.stdout).unwrap()
        };
        let lines: String = peers.iter().map(line).collect();
        let file = |name: &str| self.folder.path().join(name);
        std::fs::write(file("new"), format!("peers:\n{lines}")).unwrap();
        std::fs::rename(file("new"), file("peers.yaml")).unwrap();
    }
}

/// Address of these suites with that port.
fn address(port: u16) -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    format!("127.{high}.{low}.11:{port}")
}

/// Exit code and all words of a call of the command.
fn told(sockets: &Path, words: &[&str]) -> (Option<i32>, String) {
    let output = command(sockets, words).output().expect("the command's binary");
    let words = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
    (output.status.code(), words)
}

/// Waits until a call ends with this code and says all of this. Gives all that it says.
fn says(sockets: &Path, words: &[&str], code: i32, parts: &[&str]) -> String {
    let mut last = (None, String::new());
    until(&format!("{words:?} ends with {code} and says {parts:?}"), || {
        last = told(sockets, words);
        last.0 == Some(code) && parts.iter().all(|part| last.1.contains(part))
    });
    last.1
}

#[test]
fn a_peer_that_the_peers_file_lacks_is_told_so_with_its_line_and_so_are_those_that_refuse_it() {
    let pair = Pair::new([9431, 9432], ("exchange", "default"));
    let (a, z) = (pair.a.sockets(), pair.z.sockets());
    pair.list(&[&pair.a]);
    let key = pair.z.client().status().unwrap().fingerprint;
    // Before any call.
    let lacks = "this peer is not in its peers file";
    let check = says(
        &z,
        &["check"],
        1,
        &[lacks, "so others refuse it: add the line `- {name: \"z\",", &key, "-> write that line"],
    );
    assert!(!check.contains("none refused"), "{check}");
    // Whichever end of the connection is seen first, the words are the same.
    let refused =
        says(&z, &["get", "--peer", "a", "x"], 1, &["PEER_UNREACHABLE", "does not list our key", lacks]);
    assert!(!refused.contains("os error"), "{refused}");
    says(&z, &["check"], 1, &["a is not reached", "a key is not pinned on both sides"]);
    let noted = says(&a, &["check"], 0, &["a key that no listed peer has was refused here", &key]);
    assert!(!noted.contains("none refused"), "{noted}");
    let warned = || pair.a.logged("a peer was refused, and is until settings are changed");
    until("it warns", || warned().is_some());
    let line = warned().expect("a warning");
    assert!(line["refused"].as_str().is_some_and(|refused| refused.contains(&key)), "{line}");
    pair.list(&[&pair.a, &pair.z]);
    for sockets in [&a, &z] {
        says(sockets, &["check"], 0, &["1 of 1 connected, none refused"]);
    }
}

#[test]
fn a_name_that_is_none_is_told_with_what_is_below_it_at_another_peer() {
    let pair = Pair::new([9437, 9438], ("exchange", "default"));
    pair.list(&[&pair.a, &pair.z]);
    let (a, z) = (pair.a.sockets(), pair.z.sockets());
    let header = br#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let file = pair.folder.path().join("model.safetensors");
    std::fs::write(&file, [&(header.len() as u64).to_le_bytes()[..], header, b"x"].concat()).unwrap();
    says(&a, &["put", file.to_str().unwrap(), "--name", "v"], 0, &[]);
    let below = "nothing is named v, but v/w is at a: get --peer a v/w gets it, and get -r beside a, with";
    for words in [&["get", "v"][..], &["get", "--peer", "a", "v"], &["describe", "v"]] {
        says(&z, words, 1, &["NOT_FOUND", below]);
    }
    says(&z, &["get", "--peer", "a", "v/w"], 0, &[]);
    // Of names of its own a peer tells first.
    says(
        &a,
        &["get", "v"],
        1,
        &["nothing is named v, but v/w is; get and rm take all that is below v with -r"],
    );
    says(&a, &["rm", "-r", "v"], 0, &[]);
}

#[test]
fn peers_of_two_exchanges_are_told_both_and_that_the_setting_must_be_alike() {
    let pair = Pair::new([9433, 9434], ("exchange", "ml"));
    pair.list(&[&pair.a, &pair.z]);
    let both = [r#"of the exchange "ml""#, r#"of the exchange "default""#];
    for (sidecar, other) in [(&pair.a, "z"), (&pair.z, "a")] {
        let sockets = sidecar.sockets();
        // Either may be told by the other, or say it itself.
        let remedy = "-> it belongs to another exchange: set `exchange` (TENSORLANE_EXCHANGE) alike on both";
        until("somebody dials", || {
            told(&sockets, &["get", "--peer", other, "x"]).1.contains("set `exchange` alike on both")
        });
        let check = says(&sockets, &["check"], 1, &[&format!("{other} is not reached"), remedy]);
        assert!(both.iter().any(|part| check.contains(part)), "{check}");
        assert!(check.contains("\"ml\"") && check.contains("\"default\""), "{check}");
    }
}

#[test]
fn a_peer_whose_address_leads_to_another_says_so_at_its_start_and_in_check_also_once_it_is_connected() {
    // Everybody's bridge has this address: z says it, and a listens there.
    let shared = address(9435);
    let pair = Pair::new([9435, 9436], ("peers.advertise", &shared));
    pair.list(&[&pair.a, &pair.z]);
    let (a, z) = (pair.a.sockets(), pair.z.sockets());
    let key = pair.a.client().status().unwrap().fingerprint;
    let leads = format!(
        "the address {shared} that others are told for this peer does not lead back to it: a answers there"
    );
    let remedy = "-> correct `peers.advertise` (TENSORLANE_PEERS_ADVERTISE) of this sidecar";
    says(&z, &["check"], 1, &[&leads, &key, remedy]);
    until("it warns", || {
        let warned = pair.z.logged("an own address leads elsewhere");
        warned.is_some_and(|line| line["told"].as_str().is_some_and(|told| told.contains(&leads)))
    });
    // It dials, so that nobody has to find it.
    until("they are connected", || {
        // There is no such tensor.
        told(&z, &["get", "--peer", "a", "x"]).1.contains("NOT_FOUND")
    });
    says(&z, &["check"], 1, &[&leads, remedy]);
    says(&a, &["check"], 0, &["1 of 1 connected"]);
}
