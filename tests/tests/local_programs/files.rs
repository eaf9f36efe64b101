//! Files that the command reads and writes: which it takes, what becomes of them while it works, and what it leaves.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tensorlane_client::channel::{ChannelSpec, Timeout};
use tensorlane_tests::process::signal;
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::wait::SetOnDrop;
use tensorlane_tests::{SidecarOptions, until};

use super::command::Desk;

/// A file of these tensors, one behind the other.
pub(super) fn file(tensors: &[(&str, &str, &[u64], &[u8])], metadata: &Value) -> Vec<u8> {
    let mut header = Map::new();
    if !metadata.is_null() {
        header.insert("__metadata__".to_owned(), metadata.clone());
    }
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let end = data.len() + bytes.len();
        let tensor = json!({ "dtype": dtype, "shape": shape, "data_offsets": [data.len(), end] });
        header.insert((*name).to_owned(), tensor);
        data.extend_from_slice(bytes);
    }
    whole(&Value::from(header).to_string(), &data)
}

fn whole(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// All that a file says, and where its bytes begin.
pub(super) fn header(file: &[u8]) -> (Value, usize) {
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&file[8..start]).unwrap(), start)
}

/// The tensors of a file: type, shape and bytes by name.
fn tensors(file: &[u8]) -> Vec<(String, Value, Value, Vec<u8>)> {
    let (header, start) = header(file);
    let of = |(name, tensor): (&String, &Value)| {
        let at = |end: usize| start + tensor["data_offsets"][end].as_u64().unwrap() as usize;
        (name.clone(), tensor["dtype"].clone(), tensor["shape"].clone(), file[at(0)..at(1)].to_vec())
    };
    header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__").map(of).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The command, going on.
pub(super) fn start(desk: &Desk, line: &str) -> Child {
    let mut command = desk.command(line.split(' '));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command's binary")
}

#[test]
fn files_that_the_formats_library_refuses_are_refused_whole_with_key_and_offset() {
    let desk = Desk::new();
    let f32 =
        |begin: u64, end: u64| format!(r#"{{"dtype":"F32","shape":[4],"data_offsets":[{begin},{end}]}}"#);
    let two = |other: String| format!(r#"{{"a":{},"b":{other}}}"#, f32(0, 16));
    for (header, data, part) in [
        (two(f32(0, 16)), 16, r#"tensor "b": its bytes 0 to 16 begin inside of those of "a""#),
        (two(f32(8, 24)), 24, r#"tensor "b": its bytes 8 to 24 begin inside of those of "a""#),
        (two(f32(32, 48)), 48, r#"bytes 16 to 32, before those of "b", belong to no tensor"#),
        (two(f32(16, 32)), 50, r#"bytes 32 to 50, behind those of "b", belong to no tensor"#),
        (two(f32(16, 32)) + "\0\0", 32, "filled up with 2 zero bytes behind the JSON"),
        (
            r#"{"__metadata__":{"alpha":null},"a":"#.to_owned() + &f32(0, 16) + "}",
            16,
            r#"null at the key "alpha""#,
        ),
    ] {
        fs::write(desk.path("bad.safetensors"), whole(&header, &vec![0; data])).unwrap();
        let told = desk.fails("put bad.safetensors --name bad");
        assert!(told.contains("bad.safetensors is not a safetensors file") && told.contains(part), "{told}");
        assert_eq!(desk.json("ls"), json!([]));
    }
    desk.sidecar.assert_all_free();
}

#[test]
fn a_file_with_a_name_that_is_none_is_refused_before_anything_is_put() {
    let desk = Desk::new();
    let long = "x".repeat(600);
    for (name, shown) in [
        ("", r#""""#),
        ("trail/", "trail/"),
        ("new\nline", r"new\nline"),
        ("nul\0", r"nul\0"),
        (&long, "600"),
    ] {
        let file = file(&[("fine", "U8", &[1], b"1"), (name, "U8", &[1], b"2")], &Value::Null);
        fs::write(desk.path("odd.safetensors"), file).unwrap();
        let told = desk.fails("put odd.safetensors --name odd");
        assert!(told.contains("cannot be named so") && (told.contains(shown) || name == long), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert_eq!(desk.json("ls"), json!([]));
    }
    desk.sidecar.assert_all_free();
}

#[test]
fn tensors_of_any_name_type_and_size_come_back_as_they_were_and_aligned() {
    let desk = Desk::new();
    let all: [(&str, &str, &[u64], &[u8]); 15] = [
        ("a", "U8", &[3], b"abc"),
        ("a/a", "F32", &[], b"abcd"),
        ("a.a", "F4", &[2, 8], b"12345678"),
        ("a//b", "F4", &[2, 7], b"1234567"),
        ("../escape", "F6_E2M3", &[4], b"123"),
        ("./here", "F8_E8M0", &[2, 1], b"ab"),
        ("C:\\x", "I64", &[3, 0], b""),
        (" ", "F16", &[1, 8, 0, 128], b""),
        ("/lead", "F64", &[1], b"12345678"),
        ("ключ", "BF16", &[2], b"abcd"),
        ("e\u{301}", "BOOL", &[1], b"\x01"),
        ("\u{e9}", "BOOL", &[1], b"\0"),
        ("-r", "I16", &[1], b"ab"),
        ("tl1:x", "C64", &[1], b"12345678"),
        ("none", "F32", &[0], b""),
    ];
    let before = file(&all, &json!({ "format": "pt" }));
    fs::write(desk.path("before"), &before).unwrap();
    for prefix in ["p", "q/"] {
        desk.works(&format!("put before --name {prefix} --checksum"));
        desk.works(&format!("get -r {prefix} --to after"));
        let after = fs::read(desk.path("after")).unwrap();
        assert_eq!(tensors(&after), tensors(&before));
        let (header, start) = header(&after);
        assert_eq!(header["__metadata__"], json!({ "format": "pt" }));
        for (name, dtype, ..) in all {
            let size = match dtype {
                "F64" | "I64" | "C64" => 8,
                "F32" => 4,
                "F16" | "BF16" | "I16" => 2,
                _ => 1,
            };
            let at = start + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
            assert_eq!(at % size, 0, "{name} begins at {at}");
        }
    }
    desk.works("rm -r p q");
    desk.sidecar.assert_all_free();
}

#[test]
fn a_tensor_of_many_pieces_comes_back_as_it_was_into_a_file_and_into_a_pipe() {
    let desk = Desk::new();
    // Two pieces of 8 MiB, and one of seven bytes.
    let bytes: Vec<u8> = (0..(16_u32 << 20) + 7).map(|at| (at % 251) as u8).collect();
    let before = file(&[("w", "U8", &[bytes.len() as u64], &bytes)], &Value::Null);
    fs::write(desk.path("before"), &before).unwrap();
    for (put, is_verified) in [("put before --name p", false), ("put before --name p --checksum", true)] {
        desk.works(put);
        let got = desk.json("get -r p --to after");
        assert_eq!(got["tensors"][0]["verified"], is_verified, "{put}");
        let after = fs::read(desk.path("after")).unwrap();
        assert!(tensors(&after) == tensors(&before), "{put}: other bytes in the file");
        // A pipe takes what has room in it: the rest is written again and again.
        let piped = start(&desk, "get -r p --to /dev/stdout").wait_with_output().unwrap();
        assert!(piped.status.success(), "{put}: {}", String::from_utf8_lossy(&piped.stderr));
        assert!(piped.stdout == after, "{put}: other bytes in the pipe");
        desk.works("rm -r p");
    }
    desk.sidecar.assert_all_free();
}

#[test]
fn names_below_one_are_those_behind_a_slash_and_no_other_that_begins_so_is_removed_or_got() {
    let desk = Desk::new();
    let keys = ["a", "a/b", "a/b/c", "a.a", "a-b", "ab", "ab/c"];
    let all = keys.map(|key| (key, "U8", &[1_u64] as &[u64], b"1" as &[u8]));
    fs::write(desk.path("keys"), file(&all, &Value::Null)).unwrap();
    desk.works("put keys --name p");
    let left = || -> Vec<String> {
        let listed = desk.json("ls");
        listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    let got = desk.json("get -r p/a");
    let got: Vec<_> = got["tensors"].as_array().unwrap().iter().map(|one| &one["tensor"]).collect();
    // In the file each is called by the rest of its name, and the one that has none by all of it.
    assert_eq!(got, ["p/a", "b", "b/c"]);
    assert_eq!(desk.works("rm -r p/a"), "p/a removed\np/a/b removed\np/a/b/c removed\n");
    assert_eq!(left(), ["p/a-b", "p/a.a", "p/ab", "p/ab/c"]);
    // A slash at the end leaves the name itself out.
    assert_eq!(desk.works("rm -r p/ab/"), "p/ab/c removed\n");
    assert_eq!(left(), ["p/a-b", "p/a.a", "p/ab"]);
    let told = desk.fails("rm -r p/a");
    assert!(told.contains("is below \"p/a\"") && told.ends_with("; nothing was removed\n"), "{told}");
    assert_eq!(desk.works("rm -r p"), "p/a-b removed\np/a.a removed\np/ab removed\n");
    desk.sidecar.assert_all_free();
}

#[test]
fn metadata_that_cannot_be_kept_are_named_in_the_results_and_refused_if_asked() {
    let desk = Desk::new();
    let metadata = json!({ "alpha": "8", "tags": "x".repeat(5_000) });
    fs::write(desk.path("long"), file(&[("t", "U8", &[1], b"1")], &metadata)).unwrap();
    let strict = desk.fails("put long --name p --strict");
    assert!(strict.contains(r#"metadata are left out: "tags" (metadata value"#), "{strict}");
    assert_eq!(desk.json("ls"), json!([]));
    let read = |line: &str| -> (Value, String) {
        let called = desk.call(line);
        assert_eq!(called.code, 0, "{line}: {}", called.errors);
        (serde_json::from_str::<Value>(&called.out).unwrap()["metadata_left_out"].clone(), called.errors)
    };
    let (put, warned) = read("-o json put long --name p");
    assert_eq!((&put[0]["key"], put.as_array().unwrap().len()), (&json!("tags"), 1));
    assert!(warned.contains("metadata are left out"), "{warned}");
    let (got, warned) = read("-o json get -r p --to back");
    assert!(
        got[0]["key"] == "tags" && warned.contains("left out when the tensors were put"),
        "{got} {warned}"
    );
    let (header, _) = header(&fs::read(desk.path("back")).unwrap());
    assert_eq!(header["__metadata__"], json!({ "alpha": "8", "tensorlane.left_out": r#"["tags"]"# }));
    assert!(desk.fails("get -r p --to none --strict").contains("tags"));
    assert_eq!(names(&desk.path("")), ["back", "long", "model.safetensors"]);
    // With the mark of sets nobody could get the tensor.
    fs::write(desk.path("long"), file(&[("t", "U8", &[1], b"1")], &json!({ "tensorlane.set": "1" })))
        .unwrap();
    assert_eq!(read("-o json put long --name marked").0[0]["key"], "tensorlane.set");
    assert_eq!(desk.json("get -r marked")["tensors"][0]["tensor"], "t");
    desk.works("rm -r p marked");
    desk.sidecar.assert_all_free();
}

#[test]
fn a_file_that_is_rewritten_while_it_is_put_is_not_put() {
    let desk = Desk::new();
    let half = vec![1; 16 << 20];
    let tensors: [(&str, &str, &[u64], &[u8]); 2] =
        [("w1", "U8", &[16 << 20], &half), ("w2", "U8", &[16 << 20], &half)];
    let whole = file(&tensors, &Value::Null);
    fs::write(desk.path("torn"), &whole).unwrap();
    for line in ["put torn --name torn", "put torn --name torn --checksum", "put torn --uses 3 --keep 10ms"] {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let _done = SetOnDrop(&done);
            scope.spawn(|| {
                let mut out = File::options().write(true).open(desk.path("torn")).unwrap();
                let mut next = 0;
                while !done.load(Ordering::Relaxed) {
                    next = (next + (1 << 20)) % (32 << 20);
                    let at = SeekFrom::Start((whole.len() - (32 << 20) + next) as u64);
                    out.seek(at).unwrap();
                    out.write_all(&[2; 4_096]).unwrap();
                }
            });
            // One may be done before the writer has a turn.
            until("a put is beside a write", || {
                let called = desk.call(line);
                if called.code == 0 && line.contains("--name") {
                    desk.works("rm -r torn");
                }
                let is_told = called.errors.contains("torn was written to while it was put");
                assert_eq!(called.code, i32::from(is_told), "{line}: {}", called.errors);
                is_told
            });
        });
        assert_eq!(desk.json("ls"), json!([]));
        desk.sidecar.assert_all_free();
    }
    desk.works("put torn --name torn");
    desk.works("rm -r torn");
    desk.sidecar.assert_all_free();
}

#[test]
fn pipes_and_devices_are_written_into_and_stay_what_they_are() {
    let desk = Desk::new();
    desk.works("put model.safetensors --name m");
    desk.works("get -r m --to plain");
    let plain = fs::read(desk.path("plain")).unwrap();
    let make = |line: &str| {
        Command::new("sh").args(["-c", line]).current_dir(desk.path("")).status().unwrap().success()
    };
    assert!(make("mkfifo pipe"));
    symlink("pipe", desk.path("link")).unwrap();
    for to in ["pipe", "link"] {
        thread::scope(|scope| {
            let reader = scope.spawn(|| fs::read(desk.path("pipe")).unwrap());
            desk.works(&format!("get -r m --to {to}"));
            assert_eq!(reader.join().unwrap(), plain);
        });
        assert!(fs::symlink_metadata(desk.path("pipe")).unwrap().file_type().is_fifo());
    }
    // A reader who has seen enough has not got the tensors.
    thread::scope(|scope| {
        scope.spawn(|| File::open(desk.path("pipe")).unwrap().read_exact(&mut [0; 8]).unwrap());
        let told = desk.fails("get -r m --to pipe");
        assert!(told.contains("cannot write pipe: whoever read from it has gone"), "{told}");
    });
    // What is printed does not get into the file.
    symlink("/proc/self/fd/1", desk.path("out")).unwrap();
    let child = start(&desk, "-o json get -r m --to out");
    let called = child.wait_with_output().unwrap();
    assert_eq!((called.status.code(), &called.stdout), (Some(0), &plain));
    assert_eq!(serde_json::from_slice::<Value>(&called.stderr).unwrap()["file"], "out");
    // A file behind it, with or without a name, is written into as well: whoever opened it reads on there.
    let mut opened = tempfile::tempfile_in(desk.path("")).unwrap();
    opened.write_all(b"before").unwrap();
    for to in ["out", "/dev/stdout"] {
        let mut get = desk.command(["get", "-r", "m", "--to", to]);
        let ended = get.stdout(opened.try_clone().unwrap()).status();
        assert!(ended.unwrap().success());
    }
    opened.rewind().unwrap();
    let mut read = Vec::new();
    opened.read_to_end(&mut read).unwrap();
    assert_eq!(read, [&b"before"[..], &plain, &plain].concat());
    // Nobody but root makes devices.
    if make("mknod full c 1 7 2>/dev/null && : > full 2>/dev/null; test -c full -a -w full") {
        assert!(desk.fails("get -r m --to full").contains("cannot write full: No space left on device"));
        assert!(fs::metadata(desk.path("full")).unwrap().file_type().is_char_device());
    }
    assert!(!names(&desk.path("")).iter().any(|name| name.ends_with(".part")));
    desk.works("rm -r m");
    desk.sidecar.assert_all_free();
}

#[test]
fn a_get_that_is_ended_by_a_signal_leaves_no_file() {
    let desk = Desk::new();
    let bytes = vec![1; 64 << 20];
    fs::write(desk.path("large"), file(&[("w", "U8", &[64 << 20], &bytes)], &Value::Null)).unwrap();
    desk.works("put large --name l");
    let folder = fs::canonicalize(desk.path("")).unwrap();
    let before = names(&folder);
    let writes = |pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut paths = open.filter_map(|one| fs::read_link(one.path()).ok());
        paths.any(|path| path.starts_with(&folder))
    };
    for which in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::KILL] {
        // A get may be done before it is noticed.
        until("a get is ended while it writes", || {
            let mut get = start(&desk, "get -r l --to got");
            until("the file is there, or the get is over", || {
                writes(get.id()) || get.try_wait().unwrap().is_some()
            });
            if get.try_wait().unwrap().is_none() {
                signal(get.id(), which);
            }
            let ended = get.wait().unwrap().signal();
            let is_whole = fs::remove_file(desk.path("got")).is_ok();
            assert_eq!(names(&folder), before, "{which:?}");
            !is_whole && ended == Some(which.as_raw())
        });
    }
    desk.works("rm -r l");
    desk.sidecar.assert_all_free();
}

#[test]
fn tickets_that_nobody_was_told_keep_nothing() {
    let desk = Desk::new();
    let put = |out: Stdio, words: &[&str]| {
        let mut command = desk.command(words.iter().copied());
        let ended = command.stdout(out).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for words in
        [&["put", "model.safetensors"][..], &["-o", "json", "put", "model.safetensors", "--uses", "3"]]
    {
        let (code, told) = put(full().into(), words);
        assert!(code == Some(1) && told.contains("so what was put is given up: No space left"), "{told}");
        desk.sidecar.assert_all_free();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, told) = put(writer.into(), words);
        assert!(code == Some(1) && told.contains("cannot tell the tickets"), "{told}");
        desk.sidecar.assert_all_free();
    }
    // Names stay: whoever put them knows them.
    assert_eq!(put(full().into(), &["put", "model.safetensors", "--name", "m", "--keep", "1h"]).0, Some(1));
    desk.works("rm -r m");
    desk.sidecar.assert_all_free();
}

/// A file of so many tensors that a pipe does not take what is told of them.
fn many(desk: &Desk) -> usize {
    let names: Vec<String> = (0..2_000).map(|number| format!("tensor-{number}")).collect();
    let all: Vec<(&str, &str, &[u64], &[u8])> =
        names.iter().map(|name| (name.as_str(), "U8", &[1][..], &b"x"[..])).collect();
    fs::write(desk.path("many"), file(&all, &Value::Null)).unwrap();
    all.len()
}

#[test]
fn a_put_whose_reader_leaves_gives_up_what_it_has_not_told() {
    let desk = Desk::new();
    let all = many(&desk);
    let mut put = start(&desk, "put many");
    let mut lines = BufReader::new(put.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("tl1:"));
    drop(lines);
    let ended = put.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.code() == Some(1) && told.contains(&format!(" of {all} tickets")), "{told}");
    let left = told.split_once("cannot tell ").unwrap().1.split(' ').next().unwrap().parse::<u64>().unwrap();
    let client = desk.sidecar.client();
    until("those are given up", || client.status().unwrap().tickets == all as u64 - left);
}

#[test]
fn a_put_that_is_ended_while_it_tells_tickets_leaves_those_that_were_read() {
    // Where the machine lets the put end before it hears of the signal, another one is begun.
    assert!((0..10).any(|_| ends_while_it_tells()), "no put was ended before it had told all");
}

/// Ends a put while it tells tickets; false if it was done before.
fn ends_while_it_tells() -> bool {
    let desk = Desk::new();
    many(&desk);
    let mut put = start(&desk, "put many");
    let mut out = BufReader::new(put.stdout.take().unwrap());
    let mut told = String::new();
    out.read_line(&mut told).unwrap();
    signal(put.id(), Signal::INT);
    out.read_to_string(&mut told).unwrap();
    let ended = put.wait().unwrap();
    if ended.success() {
        return false;
    }
    assert_eq!(ended.signal(), Some(Signal::INT.as_raw()));
    let client = desk.sidecar.client();
    let told: Vec<&str> =
        told.lines().filter_map(|line| line.split_once("  ")).map(|(first, _)| first).collect();
    // A part that was just going out counts as told.
    let most = told.len() as u64 + 64;
    until("what was not told is given up", || client.status().unwrap().tickets < most);
    let kept = client.status().unwrap().tickets;
    assert!(kept >= told.len() as u64, "{kept} of {}", told.len());
    told.iter().for_each(|ticket| drop(client.redeem(ticket, None).unwrap()));
    true
}

#[test]
fn a_get_of_a_spent_ticket_writes_nothing_into_a_pipe() {
    let desk = Desk::new();
    let put = desk.json("put model.safetensors");
    let [first, second] = [0, 1].map(|at| put["tensors"][at]["ticket"].as_str().unwrap().to_owned());
    let other = desk.sidecar.client();
    let held = other.redeem(&first, None).unwrap();
    desk.works(&format!("get {second}"));
    let mut get = start(&desk, &format!("get {first} --to /dev/stdout"));
    let mut written = Vec::new();
    get.stdout.take().unwrap().read_to_end(&mut written).unwrap();
    assert!(get.wait().unwrap().code() == Some(1) && written.is_empty(), "{written:?}");
    drop(held);
}

#[test]
fn a_put_that_is_ended_while_it_waits_for_room_leaves_no_ticket() {
    let desk = Desk::with(SidecarOptions::default().set("arena.size", "128Mi"));
    let bytes = vec![1; 96 << 20];
    let half: &[u64] = &[96 << 20];
    let both = file(&[("w1", "U8", half, &bytes), ("w2", "U8", half, &bytes)], &Value::Null);
    fs::write(desk.path("large"), both).unwrap();
    let mut put = start(&desk, "put large --deadline 10m");
    let client = desk.sidecar.client();
    until("the second tensor waits for room", || client.status().unwrap().waiting == 1);
    assert_eq!(client.status().unwrap().tickets, 0);
    drop(client);
    signal(put.id(), Signal::INT);
    assert_eq!(put.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
    desk.sidecar.assert_all_free();
}

#[test]
fn a_ticket_is_not_used_by_a_command_that_is_wrong_elsewhere() {
    let desk = Desk::new();
    let put = desk.json("put model.safetensors");
    let ticket = put["tensors"][0]["ticket"].as_str().unwrap();
    for rest in [
        "--to no/such/file",
        "--to .",
        "--rows 100000",
        "no/such",
        "no/such --to got",
        "--peer elsewhere no/such",
    ] {
        desk.fails(&format!("get {ticket} {rest}"));
    }
    assert!(desk.works(&format!("get {ticket} --to got")).contains(" into got in "));
    let spent = desk.fails(&format!("get {ticket} --to again"));
    assert!(spent.contains("the ticket: TICKET_SPENT") || spent.contains("NOT_FOUND"), "{spent}");
    assert!(!desk.path("again").exists());
    let told = desk.call(&format!("describe {ticket}"));
    assert!(told.code == 2 && told.errors.contains("this is a ticket"), "{}", told.errors);
    let other = put["tensors"][1]["ticket"].as_str().unwrap();
    desk.works(&format!("get {other}"));
    desk.sidecar.assert_all_free();
}

#[test]
fn a_file_whose_name_is_no_text_is_written_and_told() {
    let desk = Desk::new();
    desk.works("put model.safetensors --name m");
    let name = std::ffi::OsStr::from_bytes(b"g\xff.st");
    let mut command = Command::new(bin_dir().join("tensorlane"));
    command.args(["-o", "json", "get", "m/w", "--to"]).arg(name).current_dir(desk.path("")).env_clear();
    let called = command.env("TENSORLANE_SOCKETS", desk.sidecar.sockets()).output().unwrap();
    assert_eq!(called.status.code(), Some(0), "{}", String::from_utf8_lossy(&called.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&called.stdout).unwrap()["file"], "g\u{fffd}.st");
    assert!(desk.path("").join(name).exists());
    desk.works("rm -r m");
    desk.sidecar.assert_all_free();
}

#[test]
fn an_empty_name_removes_nothing() {
    let desk = Desk::new();
    desk.works("put model.safetensors --name m");
    let called = desk.call_words(&["rm", "-r", ""]);
    assert!(called.code == 2 && called.errors.contains("at least one character"), "{}", called.errors);
    assert_eq!(desk.json("ls").as_array().unwrap().len(), 2);
    assert_eq!(desk.works("rm -r --all"), "m/b removed\nm/w removed\n");
    desk.sidecar.assert_all_free();
}

/// Nothing comes any more, so that nothing is written that would tell it.
#[test]
fn a_watch_and_a_tail_end_with_whoever_reads_them() {
    let desk = Desk::new();
    desk.works("put model.safetensors --name m");
    let client = desk.sidecar.client();
    let mut writer = client.channel_writer(&ChannelSpec::new("c")).unwrap();
    writer.write_bytes(b"first", Timeout::Default).unwrap();
    for line in ["watch", "channel tail c --oldest"] {
        let mut child = start(&desk, line);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        assert!(!first.is_empty() && child.try_wait().unwrap().is_none(), "{line}: {first}");
        drop(out);
        until("it has noticed", || child.try_wait().unwrap().is_some());
        assert!(child.wait().unwrap().success(), "{line}");
    }
    writer.finish();
    drop(client);
    desk.works("rm -r m");
    desk.sidecar.assert_all_free();
}
