//! The sidecar from outside: configuration, metrics and health over HTTP, logs, its end.

use std::process::{Command, Output, Stdio};

use tensorlane_client::{AcquireOptions, PutOptions};
use tensorlane_proto::Transport;
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::{pattern, put_pattern};
use tensorlane_tests::{Sidecar, SidecarOptions, http, until};

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(bin_dir().join("tensorlane-sidecar"));
    command.args(arguments).env_clear().envs(variables.iter().copied()).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().expect("the sidecar's binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn the_effective_configuration_says_where_each_value_comes_from_and_can_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sidecar.yaml");
    std::fs::write(&file, "peer: here\narena:\n  size: 128Mi\n").unwrap();
    let file = file.to_str().unwrap();
    let variables = [("TENSORLANE_ARENA_SEGMENT", "32Mi")];
    let (code, printed, errors) = run(&["--config", file, "--print-config"], &variables);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    for expected in ["  size: 128Mi\n", "  segment: 32Mi\n", "Value from: variable TENSORLANE_ARENA_SEGMENT"]
    {
        assert!(printed.contains(expected), "{expected} is not in {printed}");
    }
    std::fs::write(file, &printed).unwrap();
    let (code, again, errors) = run(&["--config", file, "--print-config"], &[]);
    assert_eq!(code, Some(0), "{errors}");
    let values = |yaml: &str| yaml.lines().filter(|line| !line.trim().starts_with('#')).collect::<String>();
    assert_eq!(values(&again), values(&printed));
}

#[test]
fn all_mistakes_are_told_at_once_and_the_exit_code_is_64() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sidecar.yaml");
    let mistakes = "peer: Not_A_Name\narena:\n  size: 3\n  sgment: 1Mi\nadmin:\n  listen: somewhere\n";
    std::fs::write(&file, mistakes).unwrap();
    let variables = [("TENSORLANE_GC_COPY_IDLE", "soon"), ("TENSORLANE_ARENA_SISE", "1Gi")];
    let (code, out, errors) = run(&["--config", file.to_str().unwrap()], &variables);
    assert_eq!((code, out.as_str()), (Some(64), ""));
    let expected =
        ["Not_A_Name", "arena.size", "sgment", "segment", "somewhere", "soon", "TENSORLANE_ARENA_SISE"];
    for word in expected {
        assert!(errors.contains(word), "{word} is not in {errors}");
    }
    assert!(errors.contains("6 mistakes"), "{errors}");
    assert_eq!(run(&["--config", "/there/is/no/such/file"], &[]).0, Some(64));
    assert_eq!(run(&["--no-such-option"], &[]).0, Some(64));
}

#[test]
fn sidecars_whose_printed_lines_are_the_peers_file_exchange_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.yaml");
    // An address of the loopback network that no other process of these tests has.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let start = |peer: &str, port: u16| {
        let options = SidecarOptions::default().set("peer", peer).set("peers.file", file.display());
        let options = options.set("gc.copyIdle", "500ms");
        Sidecar::with(options.set("peers.listen", format!("127.{high}.{low}.9:{port}")))
    };
    let both = [start("a", 9431), start("b", 9432)];
    let line = |sidecar: &Sidecar| {
        let config = sidecar.folder().join("config.yaml");
        let (code, line, errors) = run(&["--print-peer", "--config", config.to_str().unwrap()], &[]);
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        line
    };
    let whole = format!("peers:\n{}{}", line(&both[0]), line(&both[1]));
    std::fs::write(folder.path().join("new"), whole).unwrap();
    std::fs::rename(folder.path().join("new"), &file).unwrap();

    let (writer, reader) = (both[0].client(), both[1].client());
    until("they are connected", || reader.peers().unwrap().iter().any(|peer| peer.state == "connected"));
    let stored = put_pattern(&writer, 3, 100_000, &PutOptions::new()).unwrap();
    let got = reader.acquire(stored.reference(), &AcquireOptions::new()).unwrap();
    assert_eq!(got.moved().transport, Some(Transport::Tcp));
    assert!(got.to_vec() == pattern(3, 100_000));
    drop((got, stored, writer, reader));
    both.iter().for_each(Sidecar::assert_all_free);
}

#[test]
fn metrics_and_health_are_served_over_http() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    for probe in ["/livez", "/readyz", "/startupz"] {
        until("the probe says yes", || http::get(sidecar.admin(), probe).0 == 200);
    }
    assert_eq!(http::get(sidecar.admin(), "/nothing").0, 404);
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 1 << 20, &PutOptions::named("seen")).unwrap();
    let own = ["kind=\"own\""];
    assert_eq!(sidecar.metric("tensorlane_ledger_live_tensors", &own), 1.0);
    assert_eq!(sidecar.metric("tensorlane_ledger_live_leases", &[]), 1.0);
    assert_eq!(sidecar.metric("tensorlane_ledger_live_names", &[]), 1.0);
    assert_eq!(sidecar.metric("tensorlane_arena_bytes", &["state=\"sealed\""]), f64::from(1 << 20));
    let all = sidecar.metric("tensorlane_arena_bytes", &[]);
    assert_eq!(all, sidecar.metric("tensorlane_arena_size_bytes", &[]), "the states make up the whole");
    assert_eq!(sidecar.metric("tensorlane_session_open_sessions", &["carrier=\"socket\""]), 1.0);
    drop(stored);
    client.unname(&["seen"]).unwrap();
    until("it is gone", || sidecar.metric("tensorlane_ledger_live_tensors", &own) == 0.0);
    sidecar.assert_all_free();
}

#[test]
fn no_label_of_a_metric_grows_with_tensors_or_names() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let client = sidecar.client();
    let series = || http::get(sidecar.admin(), "/metrics").1.lines().count();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    client.name(stored.reference(), "first", None).unwrap();
    let before = series();
    for i in 0..500 {
        client.name(stored.reference(), &format!("name/{i}"), None).unwrap();
    }
    let others: Vec<_> = (0..500).map(|i| put_pattern(&client, i, 64, &PutOptions::new()).unwrap()).collect();
    assert_eq!(series(), before);
    client.unname(&["first"]).unwrap();
    client.unname(&(0..500).map(|i| format!("name/{i}")).collect::<Vec<_>>()).unwrap();
    drop((stored, others));
    sidecar.assert_all_free();
}

#[test]
fn every_line_of_the_log_is_json_and_the_end_has_a_reason() {
    let mut sidecar = Sidecar::with(SidecarOptions::default().admin().set("log.level", "debug"));
    let client = sidecar.client();
    drop(put_pattern(&client, 1, 1 << 20, &PutOptions::new()).unwrap());
    assert_eq!(sidecar.terminate().code(), Some(0));
    drop(client);
    let log = sidecar.log();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert!(lines.len() > 4, "{log}");
    for key in ["timestamp", "level", "target", "message"] {
        assert!(lines.iter().all(|line| line[key].is_string()), "{key} is missing in {log}");
    }
    let last = lines.last().unwrap();
    assert_eq!((&last["message"], &last["reason"]), (&"sidecar ended".into(), &"SIGTERM".into()));
}

#[test]
fn a_log_for_people_is_no_json() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("log.format", "text"));
    until("it says that it has started", || sidecar.log().contains("sidecar started"));
    let log = sidecar.log();
    assert!(log.contains("sidecar started") && !log.contains('{'), "{log}");
}

#[test]
fn a_configuration_whose_reader_has_gone_was_printed_well() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(bin_dir().join("tensorlane-sidecar"));
    let ended = command.arg("--print-config").env_clear().stdout(writer).output().unwrap();
    assert_eq!((ended.status.code(), &ended.stderr[..]), (Some(0), &b""[..]));
}

#[test]
fn a_start_that_fails_says_at_which_path_or_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none/deeper").display().to_string();
    let absent = format!(
        "make the directory {none} (sets.root): No such file or directory (os error 2); make the one above it"
    );
    let in_use = |variable: &str| {
        format!(". Another program listens there, such as another sidecar: end it, or set {variable}")
    };
    for (setting, value, parts) in [
        ("sets.root", none.clone(), [absent, String::new()]),
        (
            "grpc.listen",
            taken.to_string(),
            [format!("{taken}: Address already in use"), in_use("grpc.listen (TENSORLANE_GRPC_LISTEN)")],
        ),
        (
            "peers.listen",
            taken.to_string(),
            [format!("{taken}: Address already in use"), in_use("peers.listen (TENSORLANE_PEERS_LISTEN)")],
        ),
    ] {
        let (status, log) = Sidecar::refused(SidecarOptions::default().set(setting, value));
        let has_all = parts.iter().all(|part| log.contains(part.as_str()));
        assert!(!status.success() && has_all, "{parts:?} is not in {log}");
    }
}

#[test]
fn the_directory_of_sets_is_made_where_only_its_last_part_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("sets");
    let _sidecar = Sidecar::with(SidecarOptions::default().set("sets.root", root.display()));
    assert!(root.is_dir());
}

#[test]
fn a_limit_on_the_size_of_files_is_a_refusal_and_not_the_end() {
    let options = SidecarOptions::default().set("arena.size", "512Mi");
    let sidecar = Sidecar::with(options.prefix(["prlimit", "--fsize=100000000", "--"]));
    let client = sidecar.client();
    let small = put_pattern(&client, 1, 1_000, &PutOptions::new()).unwrap();
    let large = client.with_deadline(std::time::Duration::from_secs(1));
    put_pattern(&large, 2, 200_000_000, &PutOptions::new()).unwrap_err();
    assert!(sidecar.is_running());
    drop(put_pattern(&client, 3, 1_000, &PutOptions::new()).unwrap());
    drop((small, large, client));
    sidecar.assert_all_free();
}
