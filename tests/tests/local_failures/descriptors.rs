//! Processes at their limit of open files: they are told of it, and it costs nobody else a descriptor.

use std::fs;
use std::process::{Command, Output};

use tensorlane_client::PutOptions;
use tensorlane_client::channel::{ChannelSpec, Timeout};
use tensorlane_tests::gpu::descriptors;
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::put_pattern;
use tensorlane_tests::{Sidecar, SidecarOptions, until};

/// Tensors that are got, in small segments of which a process at its limit has room for a few.
const TENSORS: u64 = 1000;
const BYTES: u64 = 64_000;

/// The command in a process that may have so many open files.
fn within(limit: u32, sidecar: &Sidecar, words: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -n {limit} && exec \"$0\" \"$@\""));
    command.arg(bin_dir().join("tensorlane")).args(words);
    command.env("TENSORLANE_SOCKETS", sidecar.sockets()).output().expect("a shell")
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_command_at_its_limit_of_open_files_names_it_and_costs_the_sidecar_no_descriptor() {
    // None is prepared ahead: what is open follows from what was asked for.
    let options = SidecarOptions::default().set("arena.segment", "4Mi").set("arena.ready", "0");
    let sidecar = Sidecar::with(options);
    let client = sidecar.client();
    let names: Vec<String> = (0..TENSORS).map(|seed| format!("many/{seed:04}")).collect();
    for (seed, name) in (0..TENSORS).zip(&names) {
        let options = PutOptions { no_lease: true, ..PutOptions::named(name) };
        drop(put_pattern(&client, seed, BYTES, &options).unwrap());
    }
    client.flush().unwrap();
    let goes = |limit: u32, words: &[&str], said: &str| {
        let got = within(limit, &sidecar, words);
        let (out, told) = texts(&got);
        assert!(got.status.success() && out.contains(said), "{out}{told}");
        until("its session has ended", || client.status().unwrap().sessions == 1);
    };
    goes(256, &["get", "-r", "many"], "1000 tensors, ");
    let open = || descriptors(sidecar.pid(), "");
    let before = open();
    for _ in 0..5 {
        let refused = within(16, &sidecar, &["get", "-r", "many"]);
        let (out, told) = texts(&refused);
        assert_eq!((refused.status.code(), out.as_str()), (Some(1), ""), "{told}");
        for part in ["error: ", "raise its limit of open files", "Too many open files"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        until("its session has ended, with its leases", || {
            let status = client.status().unwrap();
            (status.sessions, status.leases) == (1, 0)
        });
        until("the sidecar has as many descriptors as before", || open() <= before);
    }
    // What fits is got at the same limit, and all of it without.
    goes(16, &["get", "many/0000"], "1 tensor, ");
    goes(256, &["get", "-r", "many"], "1000 tensors, ");
    client.unname(&names).unwrap();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_set_of_many_leaves_is_put_and_got_by_a_command_that_may_open_fewer_files() {
    const LEAVES: u16 = 600;
    let (sidecar, folder) = (Sidecar::start(), tempfile::tempdir().unwrap());
    let [saved, got] = ["saved", "got"].map(|name| folder.path().join(name));
    let of = |number: u16| format!("leaf-{number}");
    let about = r#"{"device": "cpu", "shape": [2], "dtype": "torch.uint8", "is_nested": false}"#;
    let leaves: Vec<String> = (0..LEAVES).map(|number| format!("{:?}: {about}", of(number))).collect();
    fs::create_dir(&saved).unwrap();
    let end = r#""shape": [], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>""#;
    fs::write(saved.join("meta.json"), format!("{{{}, {end}}}", leaves.join(", "))).unwrap();
    let file = |number: u16| format!("{}.memmap", of(number));
    for number in 0..LEAVES {
        fs::write(saved.join(file(number)), number.to_le_bytes()).unwrap();
    }
    let [from, to] = [&saved, &got].map(|path| path.display().to_string());
    for words in [["set", "put", &from, "--name", "many"], ["set", "get", "many", "--to", &to]] {
        let ended = within(256, &sidecar, &words);
        let (out, told) = texts(&ended);
        assert!(ended.status.success(), "{out}{told}");
    }
    for number in 0..LEAVES {
        assert_eq!(fs::read(got.join(file(number))).unwrap(), number.to_le_bytes(), "{number}");
    }
}

#[test]
fn a_reader_of_a_channel_at_its_limit_of_open_files_reads_or_says_why_not_and_holds_up_nobody() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("arena.ready", "0"));
    let client = sidecar.client();
    let mut writer = client.channel_writer(&ChannelSpec::new("c").slots(2).slot_bytes(64)).unwrap();
    writer.write_bytes(b"one", Timeout::Default).unwrap();
    let reads = |limit: u32| {
        let got =
            within(limit, &sidecar, &["channel", "tail", "c", "--oldest", "-n", "1", "--timeout", "60s"]);
        let (out, told) = texts(&got);
        let has_read = got.status.success() && out == "0  3 B\n";
        assert!(has_read || (!got.status.success() && !told.is_empty()), "at {limit}: {out}{told}");
        until("its session has ended", || client.status().unwrap().sessions == 1);
        until("its writer waits for nobody", || writer.readers() == 0);
        has_read
    };
    assert!(reads(256));
    let open = || descriptors(sidecar.pid(), "");
    let before = open();
    // With the fewest no program starts, and with the most it reads: somewhere between there is one too few for the attach.
    let outcomes: Vec<bool> = (4..=24).map(reads).collect();
    assert!(!outcomes[0] && outcomes[20], "{outcomes:?}");
    until("the sidecar has as many descriptors as before", || open() <= before);
    drop((writer, client));
    sidecar.assert_all_free();
}
