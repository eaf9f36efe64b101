//! Everything at once between three hosts: writers, readers, channels, pipes, and faults in a random order that its seed repeats.
//! As much load as there can be, and nothing written down; `soak` does less at a time and checks a history of it.
//! Needs root.

mod slow {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use rustix::process::Signal;
    use tensorlane_client::{AcquireOptions, Client, Error, PutOptions, Stored};
    use tensorlane_proto::selection::Range;
    use tensorlane_proto::{Reason, Reference, Selection};
    use tensorlane_tests::netns::Peers;
    use tensorlane_tests::process::{signal, stop};
    use tensorlane_tests::tensors::{Numbers, pattern, put_pattern};

    use crate::TURNS;
    use crate::messages::Messages;

    const HOSTS: usize = 3;
    /// Names of their peers.
    const NAMES: [&str; HOSTS] = ["a", "b", "c"];
    const FAULTS: u64 = 12;
    /// Tensors that a writer keeps at a time.
    const KEPT: usize = 6;
    const SEED: &str = "TENSORLANE_TEST_SEED";

    /// Tensor that there is to read.
    #[derive(Clone)]
    struct Posted {
        reference: Reference,
        seed: u64,
        count: u64,
    }

    #[derive(Default)]
    struct Board {
        posted: Mutex<Vec<Posted>>,
        stop: AtomicBool,
        read: AtomicU64,
        refused: AtomicU64,
    }

    fn write(client: &Client, host: usize, seed: u64, board: &Board) {
        let mut numbers = Numbers::of(seed);
        let mut kept: Vec<Stored> = Vec::new();
        let options = PutOptions { deadline: Some(Duration::from_secs(2)), ..PutOptions::new() };
        while !board.stop.load(Ordering::Relaxed) {
            let count = if numbers.below(3) == 0 { numbers.below(60_000) } else { numbers.below(6 << 20) };
            let seed = numbers.draw() ^ host as u64;
            match put_pattern(client, seed, count, &options) {
                Ok(stored) => {
                    let reference = stored.reference().clone();
                    let mut posted = board.posted.lock().unwrap();
                    posted.push(Posted { reference, seed, count });
                    let surplus = posted.len().saturating_sub(2 * KEPT * HOSTS);
                    posted.drain(..surplus);
                    drop(posted);
                    kept.push(stored);
                }
                Err(error) => assert_excused(&error),
            }
            if kept.len() > KEPT {
                drop(kept.remove(numbers.below(KEPT as u64) as usize));
            }
            std::thread::park_timeout(Duration::from_millis(numbers.below(30)));
        }
    }

    fn read(client: &Client, seed: u64, board: &Board) {
        let mut numbers = Numbers::of(seed);
        while !board.stop.load(Ordering::Relaxed) {
            let chosen = {
                let posted = board.posted.lock().unwrap();
                let at = numbers.below(posted.len().max(1) as u64) as usize;
                posted.get(at).cloned()
            };
            let Some(Posted { reference, seed, count }) = chosen else {
                std::thread::park_timeout(Duration::from_millis(5));
                continue;
            };
            let mut options =
                AcquireOptions::new().deadline(Duration::from_millis(500 + numbers.below(3000)));
            let mut expected = 0..count as usize;
            if numbers.below(4) == 0 && count > 0 {
                let from = numbers.below(count);
                let to = from + numbers.below(count - from);
                expected = from as usize..to as usize;
                options = options.selection(Selection::Ranges(vec![Range::new(from, to)]));
            }
            match client.acquire(&reference, &options) {
                Ok(tensor) => {
                    let right = pattern(seed, count as usize);
                    assert!(tensor.to_vec() == right[expected], "wrong bytes of {reference}");
                    board.read.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    assert_excused(&error);
                    board.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Faults explain these, and nothing else.
    #[track_caller]
    fn assert_excused(error: &Error) {
        let excused = match error {
            Error::SessionLost { .. } | Error::SidecarUnreachable { .. } | Error::DeadlineExceeded { .. } => {
                true
            }
            Error::Refused(failure) => matches!(
                failure.reason,
                Reason::NotFound
                    | Reason::OwnerLost
                    | Reason::PeerUnreachable
                    | Reason::DeadlineExceeded
                    | Reason::ArenaFull
            ),
            _ => false,
        };
        assert!(excused, "{error}");
    }

    fn wait(numbers: &mut Numbers, at_most: u64) {
        std::thread::park_timeout(Duration::from_millis(100 + numbers.below(at_most)));
    }

    fn fault(peers: &mut Peers, numbers: &mut Numbers) {
        let host = numbers.below(HOSTS as u64) as usize;
        let other = (host + 1 + numbers.below(HOSTS as u64 - 1) as usize) % HOSTS;
        let kind = numbers.below(4);
        eprintln!("fault {kind} at {host} (and {other})");
        match kind {
            0 => {
                peers.network.cut(host);
                wait(numbers, 2500);
                peers.network.mend(host);
            }
            1 => {
                peers.network.lose(host, other);
                wait(numbers, 2500);
                peers.network.find(host, other);
            }
            2 => {
                peers.sidecars[host].kill();
                wait(numbers, 500);
                peers.sidecars[host].start_again();
            }
            _ => {
                stop(peers.sidecars[host].pid());
                wait(numbers, 1500);
                signal(peers.sidecars[host].pid(), Signal::CONT);
            }
        }
        wait(numbers, 1000);
    }

    #[test]
    fn random_faults_give_right_bytes_or_typed_errors_and_leave_nothing() {
        let _turn = TURNS.alone();
        let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
        eprintln!("repeat with {SEED}={seed}");
        let mut peers = Peers::start(HOSTS, |_, options| options.set("arena.size", "128Mi"));
        let (board, messages) = (Board::default(), Messages::default());
        let clients: Vec<Client> = (0..HOSTS).map(|host| peers.client(host)).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .iter()
                .enumerate()
                .flat_map(|(host, client)| {
                    let seed = seed.wrapping_add(host as u64 * 1000);
                    let (board, messages) = (&board, &messages);
                    let next = NAMES[(host + 1) % HOSTS];
                    [
                        scope.spawn(move || messages.write_channels(client)),
                        scope.spawn(move || messages.read_channels(client, next)),
                        scope.spawn(move || messages.write_pipes(client, next)),
                        scope.spawn(move || messages.read_pipes(client)),
                        scope.spawn(move || write(client, host, seed, board)),
                        scope.spawn(move || read(client, seed + 1, board)),
                        scope.spawn(move || read(client, seed + 2, board)),
                    ]
                })
                .collect();
            let mut numbers = Numbers::of(seed);
            for _ in 0..FAULTS {
                fault(&mut peers, &mut numbers);
                if threads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                    break;
                }
            }
            board.stop.store(true, Ordering::Relaxed);
            messages.stop.store(true, Ordering::Relaxed);
        });
        eprintln!("{messages:?}");
        let [of_channels, written, taken] =
            [messages.of_channels, messages.written, messages.read].map(AtomicU64::into_inner);
        assert!(of_channels > 0 && written > 0, "the faults left no time for a message");
        assert!(written <= taken, "{written} writes were done, and {taken} messages read");
        let (read, refused) = (board.read.into_inner(), board.refused.into_inner());
        eprintln!("{read} read, {refused} refused");
        assert!(read > 100, "{read} read and {refused} refused: the faults left no time for anything");
        peers.await_connected();
        for (host, client) in clients.iter().enumerate() {
            let from = &clients[(host + 1) % HOSTS];
            let stored = put_pattern(from, host as u64, 1 << 20, &PutOptions::new()).unwrap();
            let began = Instant::now();
            let tensor = client.acquire(stored.reference(), &AcquireOptions::new()).unwrap();
            assert!(tensor.to_vec() == pattern(host as u64, 1 << 20));
            assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
        }
        drop(clients);
        peers.assert_all_free();
    }
}
