//! Tables of a sidecar in a container that has arena and base and no byte more: what they may take is refused, and nobody is
//! killed.

use std::path::Path;
use std::process::{Command, Stdio};

use prost::Message;
use tensorlane_client::{Client, Item, PutOptions, Stored};
use tensorlane_proto::frame::{Header, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::TablesStatus;
use tensorlane_proto::{Descriptor, Failure, Metadata, Reason};
use tensorlane_tests::cgroup::MemoryCgroup;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::u8s;
use tensorlane_tests::{Sidecar, SidecarOptions, failure, until, where_the_machine_runs_on};

const MIB: u64 = 1 << 20;
/// An arena that is populated from the start, so that the base is all that is left.
const ARENA: u64 = 128 * MIB;
/// The default.
const BASE: u64 = 256 * MIB;
/// Puts of one request.
const TOGETHER: usize = 500;

/// A sidecar at default limits in its container.
fn in_a_container(container: &MemoryCgroup) -> Sidecar {
    let options = SidecarOptions::default().admin().set("arena.size", ARENA).set("arena.ready", ARENA);
    let sidecar = Sidecar::with(options.prefix(container.prefix()));
    until("the arena is populated", || {
        sidecar.metric("tensorlane_arena_populated_bytes", &[]) >= ARENA as f64
    });
    sidecar
}

fn tables(client: &Client) -> TablesStatus {
    client.status().unwrap().tables.unwrap()
}

/// Puts tensors of no bytes until one is refused; what was stored, and the refusal.
fn fill(
    client: &Client,
    most: usize,
    descriptor: impl Fn(usize) -> Descriptor,
    name: impl Fn(usize) -> Option<String>,
) -> (Vec<Stored>, Option<Failure>) {
    let mut stored = Vec::new();
    while stored.len() < most {
        let numbers = stored.len()..stored.len() + TOGETHER;
        let described: Vec<_> = numbers.map(|n| (descriptor(n), name(n))).collect();
        let items = described.iter().map(|(descriptor, name)| Item {
            descriptor,
            bytes: &[],
            options: name.clone().map_or_else(PutOptions::new, PutOptions::named),
        });
        let items: Vec<_> = items.collect();
        for outcome in client.put_many(&items) {
            match outcome {
                Ok(one) => stored.push(one),
                refused => return (stored, Some(failure(refused))),
            }
        }
    }
    (stored, None)
}

/// About 16 KiB of metadata, which differ with the number.
fn much(number: usize) -> Metadata {
    let entries = (0..4).map(|n| (n.to_string(), format!("{number:08}").repeat(500)));
    Metadata::new(entries).unwrap()
}

/// Takes the names away and gives the leases up; then nothing is left of anything.
fn clear(client: &Client, stored: Vec<Stored>, names: &[String]) {
    drop(stored);
    for some in names.chunks(TOGETHER) {
        client.unname(some).unwrap();
    }
    client.flush().unwrap();
    until("the tables are empty", || {
        let now = tables(client);
        (now.metadata, now.ledger) == (0, 0)
    });
}

/// A file of so many tensors of no bytes, with as much metadata as an exchange keeps.
fn write_file(path: &Path, tensors: usize) {
    let metadata: Vec<_> = (0..4).map(|n| format!("\"{n}\":\"{}\"", "m".repeat(4_000))).collect();
    let tensor = |n| format!(",\"{n}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let tensors: String = (0..tensors).map(tensor).collect();
    let header = format!("{{\"__metadata__\":{{{}}}{tensors}}}", metadata.join(","));
    std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
}

fn command(sidecar: &Sidecar, words: &[&str]) {
    let mut command = Command::new(bin_dir().join("tensorlane"));
    command.args(words).env_clear().env("TENSORLANE_SOCKETS", sidecar.sockets()).stdin(Stdio::null());
    let output = command.output().expect("the command's binary");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_file_of_20_000_tensors_has_its_metadata_once_and_they_go_with_it() {
    let Some(container) = MemoryCgroup::limited(ARENA + BASE) else { return };
    let sidecar = in_a_container(&container);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.safetensors");
    write_file(&path, 20_000);
    let path = path.to_str().unwrap();
    let before = container.usage();
    command(&sidecar, &["put", path, "--name", "file"]);
    let full = container.usage();
    let client = sidecar.client();
    let (now, status) = (tables(&client), client.status().unwrap());
    assert_eq!((status.tensors, status.names), (20_000, 20_000));
    assert!((16_000..20_000).contains(&now.metadata), "{} bytes of metadata", now.metadata);
    assert_eq!(now.metadata_max, BASE / 8);
    let metric = |table| sidecar.metric("tensorlane_sidecar_table_bytes", &[&format!("table=\"{table}\"")]);
    assert_eq!((metric("metadata"), metric("ledger")), (now.metadata as f64, now.ledger as f64));
    let grown = full.saturating_sub(before);
    assert!(grown <= now.ledger + now.metadata + 48 * MIB, "{grown} bytes for {now:?}");
    command(&sidecar, &["rm", "-r", "file"]);
    until("the metrics are back at nothing", || metric("metadata") + metric("ledger") == 0.0);
    println!("container: {before} before, {full} with the file, {} after", container.usage());
    assert_eq!(container.kills(), 0);
    drop(client);
    sidecar.assert_all_free();
    drop(sidecar);
}

#[test]
fn tables_that_are_all_full_are_refused_at_their_bounds_and_nobody_is_killed() {
    let Some(container) = MemoryCgroup::limited(ARENA + BASE) else { return };
    let sidecar = in_a_container(&container);
    let client = sidecar.client();

    // Metadata that all differ.
    let described = |n| Descriptor { metadata: much(n), ..u8s(0) };
    let (mut stored, refused) = fill(&client, 10_000, described, |_| None);
    let refused = refused.expect("a bound on the metadata");
    assert_eq!(refused.reason, Reason::LimitExceeded, "{refused}");
    assert!(refused.message.contains("an eighth of arena.base"), "{refused}");
    assert_eq!(refused.detail("metadata_bytes_max"), Some(&*(BASE / 8).to_string()));
    let now = tables(&client);
    assert!(now.metadata > now.metadata_max - 20_000 && now.metadata <= now.metadata_max, "{now:?}");
    // The same metadata again cost nothing.
    let (again, none) = fill(&client, TOGETHER, |n| described(n % 2), |_| None);
    assert_eq!((none, tables(&client).metadata), (None, now.metadata));
    stored.extend(again);

    // Tickets, then tensors with the longest names.
    let first = stored[0].reference().clone();
    for _ in 0..5_000 {
        client.ticket(&first, None, 1).unwrap();
    }
    let name = |n: usize| format!("{n:0>512}");
    let (named, refused) = fill(&client, 1_000_000, |_| u8s(0), |n| Some(name(n)));
    let refused = refused.expect("a bound on tensors and names");
    assert_eq!(refused.reason, Reason::LimitExceeded, "{refused}");
    assert!(refused.message.contains("a quarter of arena.base"), "{refused}");
    let names: Vec<_> = (0..named.len()).map(name).collect();
    stored.extend(named);
    let now = tables(&client);
    let entries_max = now.ledger_max - now.ledger_max / 8;
    assert!(now.ledger > entries_max - 4_096 && now.ledger <= entries_max, "{now:?}");
    assert_eq!(now.ledger_max, BASE / 4);

    // Nothing can be added, and all that is there can be had; what goes makes room.
    let none_left = client.put(&u8s(0), &[], &PutOptions::named(name(names.len())));
    assert_eq!(failure(none_left).reason, Reason::LimitExceeded);
    assert!(client.describe(&first).is_ok());
    let other = sidecar.client();
    drop(other.acquire(&first, &tensorlane_client::AcquireOptions::new()).unwrap());
    drop(other);
    println!("container: {} of {} with {} tensors: {now:?}", container.usage(), ARENA + BASE, stored.len());
    assert_eq!(container.kills(), 0);
    clear_but_tickets(&client, stored, &names);
    println!("container: {} after", container.usage());
    drop(client);
    drop(sidecar);
    assert_eq!(container.kills(), 0);
}

/// Clears as [`clear`], where tickets keep one tensor.
fn clear_but_tickets(client: &Client, stored: Vec<Stored>, names: &[String]) {
    drop(stored);
    for some in names.chunks(TOGETHER) {
        client.unname(some).unwrap();
    }
    client.flush().unwrap();
    until("one tensor is left", || client.status().unwrap().tensors == 1);
    assert!(tables(client).metadata < 20_000);
}

#[test]
fn leases_of_many_sessions_are_refused_at_the_bound_of_the_tables() {
    let Some(container) = MemoryCgroup::limited(ARENA + BASE) else { return };
    let sidecar = in_a_container(&container);
    let client = sidecar.client();
    let (stored, none) = fill(&client, 20_000, |_| u8s(0), |n| Some(format!("{n}")));
    assert_eq!(none, None);
    let mut sessions = Vec::new();
    let refused = loop {
        let session = sidecar.client();
        let refused = session.lease_names("").map(|leases| sessions.push((session, leases)));
        match refused {
            Ok(()) => assert!(sessions.len() < 256, "no bound on the leases of all"),
            refused => break failure(refused),
        }
    };
    assert_eq!(refused.reason, Reason::LimitExceeded, "{refused}");
    assert!(refused.message.contains("a quarter of arena.base"), "{refused}");
    assert_eq!(container.kills(), 0);
    let names: Vec<_> = (0..stored.len()).map(|n| format!("{n}")).collect();
    drop(sessions);
    clear(&client, stored, &names);
    drop(client);
    sidecar.assert_all_free();
    drop(sidecar);
}

#[test]
fn requests_that_many_sessions_begin_and_do_not_end_take_their_part_and_nobody_is_killed() {
    const SESSIONS: usize = 40;
    let Some(container) = MemoryCgroup::limited(ARENA + BASE) else { return };
    let sidecar = in_a_container(&container);
    let client = sidecar.client();
    let metric = |name| sidecar.metric(name, &["table=\"requests\""]);
    let most = metric("tensorlane_sidecar_table_limit_bytes");
    assert_eq!(most, (BASE / 8) as f64);
    let half = vec![0; 15 << 20];
    let begun: Vec<_> = std::thread::scope(|scope| {
        let begin = || {
            let mut session = RawSession::begin(&sidecar);
            let kind = SessionKind::Put.into();
            session.send_bytes(&Header { length: 16 << 20, kind, flags: 0, call: 1 }.encode());
            // Taken in, or read over once its turn did not come.
            session.send_bytes(&half);
            session
        };
        let all: Vec<_> = (0..SESSIONS).map(|_| scope.spawn(begin)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let taken = metric("tensorlane_sidecar_table_bytes");
    assert!(taken >= (16 * MIB) as f64 && taken <= most, "{taken} of {most}");
    // Short requests are served, and a long one hears why it is not.
    let stored = client.put(&u8s(9), &[1; 9], &PutOptions::new()).unwrap();
    let described: Vec<_> = (0..600).map(|n| Descriptor { metadata: much(n), ..u8s(0) }).collect();
    let item = |descriptor| Item { descriptor, bytes: &[], options: PutOptions::new() };
    let many = client.put_many(&described.iter().map(item).collect::<Vec<_>>());
    let taken = many.iter().filter(|outcome| outcome.is_ok()).count();
    let refused: Vec<_> = many.into_iter().filter(Result::is_err).map(failure).collect();
    assert_eq!(taken + refused.len(), 600);
    assert!(
        refused
            .iter()
            .all(|one| one.reason == Reason::LimitExceeded && one.message.contains("found no room"))
    );
    drop(begun);
    until("their bytes are back", || metric("tensorlane_sidecar_table_bytes") == 0.0);
    assert_eq!(container.kills(), 0);
    drop(stored);
    drop(client);
    sidecar.assert_all_free();
    drop(sidecar);
}

/// Items of two bytes each, beside one that waits for a name: little to send, and much once it is decoded.
#[test]
fn requests_that_become_much_wait_or_are_refused_by_what_they_become_and_nobody_is_killed() {
    where_the_machine_runs_on(|| {
        const SESSIONS: usize = 8;
        const ITEMS: usize = 40_000;
        let Some(container) = MemoryCgroup::limited(ARENA + BASE) else { return };
        let sidecar = in_a_container(&container);
        let client = sidecar.client();
        let metric = |name| sidecar.metric(name, &["table=\"requests\""]);
        let most = metric("tensorlane_sidecar_table_limit_bytes");
        let kind = Some(v1::target::Kind::Name("never".to_owned()));
        let waits = v1::GetItem { target: Some(v1::Target { kind, ..Default::default() }), selection: None };
        let items = [vec![waits], vec![v1::GetItem::default(); ITEMS]].concat();
        let request =
            v1::AcquireRequest { items, wait_ms: 10_000, deadline_ms: 10_000, ..Default::default() };
        assert!(request.encoded_len() < MIB as usize, "little to send");

        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let ask =
                || RawSession::begin(&sidecar).call::<v1::AcquireResponse>(SessionKind::Acquire, &request);
            let all: Vec<_> = (0..SESSIONS).map(|_| scope.spawn(ask)).collect();
            // One of them, at least: and all that wait, no more than there is room for.
            until("some are decoded, and wait for the name", || {
                metric("tensorlane_sidecar_table_bytes") > (ITEMS * 64) as f64
            });
            assert!(metric("tensorlane_sidecar_table_bytes") <= most);
            // Short requests are served meanwhile.
            drop(client.put(&u8s(9), &[1; 9], &PutOptions::new()).unwrap());
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert!(
            !refused.is_empty() && refused.len() < SESSIONS,
            "{} of {SESSIONS} are refused",
            refused.len()
        );
        assert!(
            refused
                .iter()
                .all(|one| one.reason == Reason::LimitExceeded && one.message.contains("found no room"))
        );
        until("their bytes are back", || metric("tensorlane_sidecar_table_bytes") == 0.0);
        assert_eq!(container.kills(), 0);
        drop(client);
        sidecar.assert_all_free();
        drop(sidecar);
    });
}
