//! The process from outside: arguments, exit codes, signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

fn sidecar(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorlane-sidecar"));
    command.env_clear().env("TENSORLANE_PEER", "here");
    command.args(arguments).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = sidecar(arguments, variables).output().expect("the sidecar runs");
    let text = |bytes| String::from_utf8(bytes).expect("it writes text");
    (status.code().expect("no signal ended it"), text(stdout), text(stderr))
}

/// A child that is ended and collected, whatever the test does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_bad_configuration_ends_with_64_and_tells_every_mistake() {
    let variables = [("TENSORLANE_ARENA_SIZE", "much"), ("TENSORLANE_LOG_LEVEL", "loud")];
    let (code, stdout, stderr) = output(&[], &variables);
    assert_eq!((code, stdout.as_str()), (64, ""), "{stderr}");
    assert!(
        stderr.contains("2 mistakes") && stderr.contains("\"much\"") && stderr.contains("\"loud\""),
        "{stderr}"
    );
    assert_eq!(output(&["--config", "/nowhere.yaml"], &[]).0, 64);
    assert_eq!(output(&["--konfig"], &[]).0, 64);
    assert_eq!(output(&["--version"], &[]).0, 0);
}

#[test]
fn the_printed_configuration_is_a_configuration() {
    let (code, printed, stderr) = output(&["--print-config"], &[("TENSORLANE_ARENA_SIZE", "128Mi")]);
    assert_eq!(code, 0, "{stderr}");
    assert!(printed.contains("\n  size: 128Mi\n"), "{printed}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sidecar.yaml");
    std::fs::write(&path, &printed).unwrap();
    let (code, again, stderr) = output(&["--config", path.to_str().unwrap(), "--print-config"], &[]);
    assert_eq!(code, 0, "{stderr}");
    let values = |yaml: &str| yaml.lines().filter(|line| !line.trim().starts_with('#')).collect::<String>();
    assert_eq!(values(&again), values(&printed));
}

#[test]
fn the_printed_peer_belongs_into_the_peers_file_and_is_the_one_that_then_runs() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (state, sockets, file) = (at("state"), at("sockets"), at("peers.yaml"));
    let here = [
        ("TENSORLANE_STATE_DIRECTORY", state.as_str()),
        ("TENSORLANE_SOCKETS_DIRECTORY", &sockets),
        ("TENSORLANE_PEERS_LISTEN", "127.0.0.1:0"),
        ("TENSORLANE_PEERS_ADVERTISE", "127.0.0.1:9431"),
        ("TENSORLANE_PEERS_FILE", &file),
        ("TENSORLANE_ADMIN_LISTEN", "off"),
    ];
    let (code, line, stderr) = output(&["--print-peer"], &here);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(output(&["--print-peer"], &here).1, line, "the key is made once");
    std::fs::write(&file, format!("peers:\n{line}")).unwrap();

    let mut child = Running(sidecar(&[], &here).spawn().unwrap());
    let log = BufReader::new(child.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut log = log.map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap());
    let found = log.find(|line| line["message"].as_str().unwrap().starts_with("this peer is ")).unwrap();
    assert_eq!(found["message"], "this peer is in the peers file");
    let started = log.find(|line| line["message"] == "sidecar started").unwrap();
    assert!(line.contains(started["fingerprint"].as_str().unwrap()), "{line} {started}");
    assert!(line.contains("\"127.0.0.1:9431\""), "{line}");
}

#[test]
fn a_peer_that_nobody_could_connect_to_is_not_printed() {
    let directory = tempfile::tempdir().unwrap();
    let state = ("TENSORLANE_STATE_DIRECTORY", directory.path().to_str().unwrap());
    let (code, stdout, stderr) = output(&["--print-peer"], &[state]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("peers.listen is not set"), "{stderr}");
    let (code, _, stderr) = output(&["--print-peer"], &[state, ("TENSORLANE_PEERS_LISTEN", "0.0.0.0:9421")]);
    assert_eq!(code, 1);
    assert!(stderr.contains("0.0.0.0:9421") && stderr.contains("peers.advertise"), "{stderr}");
}

#[test]
fn sigterm_ends_it_with_0_and_the_reason_in_the_log() {
    let mut child = Running(sidecar(&[], &[("TENSORLANE_ADMIN_LISTEN", "127.0.0.1:0")]).spawn().unwrap());
    let log = BufReader::new(child.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut log = log.map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap());
    let admin = log.find(|line| line["message"] == "metrics and health are served").unwrap();
    log.find(|line| line["message"] == "sidecar started").expect("the sidecar did not start");

    let mut stream = TcpStream::connect(admin["address"].as_str().unwrap()).unwrap();
    stream.write_all(b"GET /startupz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");

    let pid = child.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    let last = log.last().unwrap();
    assert_eq!((&last["message"], &last["reason"]), (&"sidecar ended".into(), &"SIGTERM".into()));
}
