//! The command `tensorlane` from outside: what it prints, where, and with which exit code.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::{Sidecar, SidecarOptions, until, where_the_machine_runs_on};

/// A sidecar, a file of two tensors, and the command.
pub(super) struct Desk {
    pub(super) sidecar: Sidecar,
    folder: TempDir,
}

/// Outcome of one call of the command.
pub(super) struct Called {
    pub(super) code: i32,
    pub(super) out: String,
    pub(super) errors: String,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self::with(SidecarOptions::default())
    }

    pub(super) fn with(options: SidecarOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let header = br#"{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[100000],"data_offsets":[24,100024]}}"#;
        let data: Vec<u8> = (0..100_024_u32).map(|at| at as u8).collect();
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &data].concat();
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        Self { sidecar: Sidecar::with(options), folder }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn call(&self, line: &str) -> Called {
        self.call_words(&line.split(' ').collect::<Vec<_>>())
    }

    /// The command, which is not started.
    pub(super) fn command<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(bin_dir().join("tensorlane"));
        command.args(words).current_dir(self.folder.path()).env_clear();
        command.env("TENSORLANE_SOCKETS", self.sidecar.sockets()).stdin(Stdio::null());
        command
    }

    pub(super) fn call_words(&self, words: &[&str]) -> Called {
        let output = self.command(words.iter().copied()).output();
        let Output { status, stdout, stderr } = output.expect("the command's binary");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let called = Called { code: status.code().unwrap(), out: text(stdout), errors: text(stderr) };
        let both = [&called.out, &called.errors];
        assert!(!both.iter().any(|text| text.contains('\u{1b}')), "colours where nobody looks: {both:?}");
        called
    }

    /// A call that must work; what it prints.
    pub(super) fn works(&self, line: &str) -> String {
        let called = self.call(line);
        assert_eq!((called.code, called.errors.as_str()), (0, ""), "{line}");
        called.out
    }

    /// A call that must fail; what it says.
    pub(super) fn fails(&self, line: &str) -> String {
        let called = self.call(line);
        assert_eq!((called.code, called.out.as_str()), (1, ""), "{line}: {}", called.errors);
        called.errors
    }

    pub(super) fn json(&self, line: &str) -> Value {
        let printed = self.works(&format!("-o json {line}"));
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{line}: {error}: {printed}"))
    }
}

pub(super) fn tensors(file: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = std::fs::read(file).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let of = |(name, entry): (&String, &Value)| {
        let at = |end: usize| start + entry["data_offsets"][end].as_u64().unwrap() as usize;
        (name.clone(), bytes[at(0)..at(1)].to_vec())
    };
    header.as_object().unwrap().iter().map(of).collect()
}

#[test]
fn what_is_put_from_a_file_is_got_into_a_file_and_nothing_stays_after_rm() {
    let desk = Desk::new();
    assert!(desk.works("put model.safetensors --name m").contains("\n2 tensors, 97.7 KiB in "));
    assert!(
        desk.works("get -r m --to copy.safetensors").contains("2 tensors, 97.7 KiB into copy.safetensors")
    );
    assert_eq!(tensors(&desk.path("copy.safetensors")), tensors(&desk.path("model.safetensors")));
    let got = desk.works("get m/w");
    assert!(got.starts_with("m/w  f32[2, 3]  local\n1 tensor, 24 B mapped in "), "{got}");
    assert!(desk.works("get m/b --rows 3").contains("1 B packed and mapped in "));
    assert!(desk.works("ls m/").contains("m/w   f32[2, 3]"));
    assert!(desk.works("describe m/w").contains("names     m/w"));
    assert_eq!(desk.works("rm -r m"), "m/b removed\nm/w removed\n");
    desk.sidecar.assert_all_free();
}

#[test]
fn every_command_prints_json_for_programs() {
    let desk = Desk::new();
    let put = desk.json("put model.safetensors --name m --checksum");
    assert_eq!((put["tensors"][0]["name"].as_str(), put["bytes"].as_u64()), (Some("m/b"), Some(100_024)));
    let got = desk.json("get m/w m/b");
    assert_eq!((got["tensors"][1]["verified"].as_bool(), got["bytes"].as_u64()), (Some(true), Some(100_024)));
    assert_eq!(desk.json("ls")[0]["name"], "m/b");
    assert_eq!(desk.json("describe m/w")[0]["shape"], serde_json::json!([2, 3]));
    let status = desk.json("status");
    for budget in ["ledger", "metadata", "requests", "unread"] {
        let (used, limit) = (&status["budgets"][budget]["used"], &status["budgets"][budget]["limit"]);
        assert!(used.as_u64() <= limit.as_u64() && limit.as_u64() >= Some(1 << 20), "{budget}: {status}");
    }
    let arena = &status["arena"];
    assert!(arena["largest_put"].as_u64() > Some(1 << 20) && arena["largest_copied_put"].is_u64(), "{arena}");
    assert_eq!(desk.json("peers")[0]["state"], "self");
    assert_eq!(desk.json("rm m/w m/b")["removed"], serde_json::json!(["m/w", "m/b"]));
    desk.sidecar.assert_all_free();
}

#[test]
fn errors_say_what_was_wrong_once_and_what_to_do() {
    let desk = Desk::new();
    desk.works("put model.safetensors --name m");
    let nowhere = "error: NOT_FOUND: nothing is named no/such here or at any connected peer; `tensorlane ls` (List) shows the \
                   names of a peer, and a call with a wait (`--wait 10s`) waits until the name is given\n";
    assert_eq!(desk.fails("get no/such"), nowhere);
    assert_eq!(desk.fails("describe m/w no/such"), nowhere);
    let gone =
        "error: NOT_FOUND: nothing is named no/such; `tensorlane ls` (List) shows the names of a peer\n";
    assert_eq!(desk.fails("rm no/such"), gone);
    // What stands below a name that is none is told.
    for verb in ["get m", "describe m", "rm m"] {
        let below =
            "error: NOT_FOUND: nothing is named m, but m/b is; get and rm take all that is below m with -r\n";
        assert_eq!(desk.fails(verb), below);
    }
    let partly = desk.fails("rm -r m no/such");
    assert!(partly.ends_with("; nothing was removed\n"), "{partly}");
    assert!(desk.works("ls m/").contains("m/w"));
    let put = desk.json("put model.safetensors --name other");
    let reference = put["tensors"][0]["reference"].as_str().unwrap().to_owned();
    desk.works("rm -r m other");
    // The number that is told is the one that stands in the reference.
    let id = reference.split('/').nth(3).unwrap();
    for verb in ["get", "describe"] {
        let told = desk.fails(&format!("{verb} {reference}"));
        let expected = format!(
            "error: {reference}: NOT_FOUND: tensor {id} does not exist (any more): a reference keeps nothing, a lease, a name or \
             a ticket does\n"
        );
        assert_eq!(told, expected);
        let altered = reference.replacen(&format!("/{id}/"), &format!("/{id}7/"), 1);
        let cut = &reference[..reference.len() - 3];
        for (wrong, part) in [(altered.as_str(), "was altered or cut"), (cut, "was cut or altered")] {
            let called = desk.call(&format!("{verb} {wrong}"));
            assert!(called.code == 2 && called.errors.contains(part), "{}", called.errors);
        }
    }
    desk.sidecar.assert_all_free();
}

#[test]
fn messages_that_were_written_for_nobody_are_told() {
    let desk = Desk::new();
    let called = desk.call("channel write lines model.safetensors model.safetensors");
    assert_eq!((called.code, called.out.as_str()), (0, "2 messages, 195.6 KiB\n"), "{}", called.errors);
    let told = "warning: all messages were written while nobody read the channel; --expect-readers 1 waits for a reader\n";
    assert_eq!(called.errors, told);
    let refused = desk.fails("channel write others model.safetensors --expect-readers 1 --timeout 100ms");
    assert!(
        refused.contains("0 of the 1 readers that the channel \"others\" expects are there"),
        "{refused}"
    );
    desk.sidecar.assert_all_free();
}

#[test]
fn control_characters_of_others_do_not_reach_the_terminal() {
    let desk = Desk::new();
    for line in ["get bad\u{1b}[31m", "put no\u{1b}]0;file", "rm \u{7}"] {
        let called = desk.call(line);
        assert_ne!(called.code, 0);
        assert!(!called.errors.contains(['\u{1b}', '\u{7}']), "{:?}", called.errors);
    }
    desk.sidecar.assert_all_free();
}

#[test]
fn an_error_is_json_where_json_was_asked_for() {
    let desk = Desk::new();
    desk.works("put model.safetensors --name m");
    let read = |errors: String| -> Value {
        serde_json::from_str(&errors).unwrap_or_else(|error| panic!("{error}: {errors}"))
    };
    let nowhere = read(desk.fails("-o json get no/such"));
    assert_eq!((&nowhere["code"], &nowhere["reason"]), (&"NOT_FOUND".into(), &"NOT_FOUND".into()));
    assert_eq!(nowhere["details"]["name"], "no/such");
    assert!(nowhere["message"].as_str().unwrap().starts_with("nothing is named no/such here"), "{nowhere}");
    let taken = read(desk.fails("put model.safetensors --name m --output json"));
    assert_eq!(taken["reason"], "NAME_TAKEN");
    assert!(taken["hint"].as_str().unwrap().contains("--replace"), "{taken}");
    let unreached = read(desk.fails("-o json --sockets /there/is/nothing status"));
    assert_eq!((&unreached["code"], &unreached["reason"]), (&"UNAVAILABLE".into(), &Value::Null));
    // Called wrongly, the exit code stays what it is without JSON.
    let wrong = desk.call("-o json get m/w --rows 9-3");
    assert_eq!((wrong.code, wrong.out.as_str()), (2, ""));
    assert!(read(wrong.errors)["message"].as_str().unwrap().contains("reversed"));
    assert_eq!(read(desk.call("-o json routes").errors)["warning"], "no other peer is known");
    desk.works("rm -r m");
    desk.sidecar.assert_all_free();
}

#[test]
fn a_taken_name_is_replaced_only_if_one_says_so() {
    let desk = Desk::new();
    desk.works("put model.safetensors --name m");
    let taken = desk.fails("put model.safetensors --name m");
    assert!(
        taken.starts_with("error: NAME_TAKEN: the name m/b is taken by") && taken.contains("--replace"),
        "{taken}"
    );
    desk.works("put model.safetensors --name m --replace");
    desk.works("rm -r m");
    desk.sidecar.assert_all_free();
}

#[test]
fn a_file_of_another_kind_is_refused_in_words() {
    let desk = Desk::new();
    std::fs::write(desk.path("x.bin"), b"\x7fELF\x02\x01\x01 and so on").unwrap();
    std::fs::write(desk.path("y.bin"), b"abc").unwrap();
    let other = desk.fails("put x.bin");
    assert!(other.contains("x.bin is not a safetensors file: it does not begin with"), "{other}");
    assert!(!other.contains(|c: char| c.is_ascii_digit()), "no number that says nothing: {other}");
    assert!(desk.fails("put y.bin").contains("it has 3 bytes"));
    assert!(desk.fails("put z.bin").contains("cannot open z.bin: No such file"));
    std::fs::create_dir(desk.path("folder")).unwrap();
    assert!(desk.fails("put folder").contains("folder is a directory; put takes one safetensors file"));
    assert!(desk.fails("put /dev/null").contains("/dev/null is no plain file"));
    let empty = |header: &str| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    for (bytes, part) in [
        (Vec::new(), "it is empty"),
        (empty("weights"), "its header is not the JSON of that format"),
        (empty("{\"w\":{\"dtype\":\"F32\"}}"), "tensor \"w\": missing field `shape`"),
        (
            empty("{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"),
            "are not inside the file",
        ),
    ] {
        std::fs::write(desk.path("w.bin"), bytes).unwrap();
        let told = desk.fails("put w.bin");
        assert!(told.contains("w.bin is not a safetensors file") && told.contains(part), "{told}");
    }
    std::fs::write(desk.path("w.bin"), empty("{}")).unwrap();
    assert_eq!(desk.call("put w.bin").errors, "warning: w.bin has no tensors, so nothing is put\n");
    let nameless = desk.call_words(&["get", ""]);
    assert_eq!(nameless.code, 2);
    assert!(nameless.errors.contains("a name has at least one character"), "{}", nameless.errors);
    desk.sidecar.assert_all_free();
}

#[test]
fn recursion_is_over_names_of_this_peer() {
    let desk = Desk::new();
    let put = desk.json("put model.safetensors --name m");
    let reference = put["tensors"][0]["reference"].as_str().unwrap();
    desk.works(&format!("get {reference}"));
    assert!(desk.fails(&format!("get -r {reference}")).contains("get it without -r"));
    assert!(desk.fails("get -r elsewhere").contains("-r knows the names of this peer only"));
    desk.works("rm -r m");
    desk.sidecar.assert_all_free();
}

#[test]
fn a_sidecar_that_stands_still_is_waited_for_no_longer_than_the_deadline() {
    where_the_machine_runs_on(|| {
        let desk = Desk::new();
        stop(desk.sidecar.pid());
        // It would be five seconds until it is taken for dead.
        let begun = std::time::Instant::now();
        let told = desk.fails("--deadline 1s status");
        let took = begun.elapsed();
        signal(desk.sidecar.pid(), Signal::CONT);
        assert!(told.contains("no answer in 1.5s"), "{told}");
        assert!(took < Duration::from_millis(4_500), "{took:?}");
        desk.sidecar.assert_all_free();
    });
}

#[test]
fn a_deadline_ends_a_wait() {
    where_the_machine_runs_on(|| {
        let desk = Desk::new();
        // It would be ten minutes, which no test has.
        let begun = std::time::Instant::now();
        for words in ["get later --wait 10m --deadline 100ms", "--deadline 100ms describe later --wait 10m"] {
            // Where the machine is slow, the command gives up before the sidecar has said so.
            until("the sidecar says so in time", || desk.fails(words).contains("NOT_FOUND"));
        }
        assert!(begun.elapsed() < Duration::from_secs(300));
        desk.sidecar.assert_all_free();
    });
}

#[test]
fn a_check_says_what_is_wrong_and_its_exit_code_says_whether() {
    let mut desk = Desk::new();
    let well = desk.works("check");
    for part in ["a sidecar answers in", "free", "no other peer of exchange default"] {
        assert!(well.contains(part), "{part} is not in {well}");
    }
    let json: Value = serde_json::from_str(&desk.works("check -o json")).unwrap();
    assert_eq!((&json["problems"], &json["findings"][0]["level"]), (&0.into(), &"ok".into()));
    let nowhere = desk.call("--sockets /there/is/nothing check");
    assert_eq!(nowhere.code, 1);
    assert!(nowhere.out.contains("there is no directory /there/is/nothing"), "{}", nowhere.out);
    desk.sidecar.assert_all_free();
    desk.sidecar.kill();
    let dead = desk.call("check");
    assert_eq!(dead.code, 1);
    assert!(dead.out.contains("does not answer") && dead.out.contains("-> "), "{}", dead.out);
}
