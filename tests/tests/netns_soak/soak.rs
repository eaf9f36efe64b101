//! Half a minute of random puts, gets, kills and cuts whose history is held against the eight lines. `cargo xtask soak` does
//! the same for as long as asked. Needs root.

mod slow {
    use std::sync::Arc;
    use std::time::Duration;

    use tensorlane_tests::soak::history::{Kept, Recorder};
    use tensorlane_tests::soak::lap;
    use tensorlane_tests::soak::orders::Outcome;
    use tensorlane_tests::soak::world::World;

    use crate::TURNS;

    const SEED: &str = "TENSORLANE_TEST_SEED";
    const TIME: Duration = Duration::from_secs(25);

    #[test]
    fn what_holds_at_all_times_holds_under_random_puts_gets_kills_and_cuts() {
        let _turn = TURNS.alone();
        let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or(5);
        eprintln!("repeat with {SEED}={seed}");
        let recorder = Arc::new(Recorder::default());
        let mut world = World::start(&recorder);
        let history = std::env::temp_dir().join(format!("tensorlane-soak-{seed}.jsonl"));
        let kept = Kept { recorder: &recorder, to: &history };
        let report = lap::run(&mut world, &recorder, seed, TIME, &|| false);
        drop(kept);
        eprintln!("{report}");
        if !report.violations.is_empty() {
            report.save(&history).unwrap();
        }
        let told: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
        assert!(told.is_empty(), "seed {seed}, history in {}:\n{}", history.display(), told.join("\n"));
        let got = report.count(|outcome| matches!(outcome, Outcome::Got { .. }));
        assert!(got > 10, "{got} gets are too few to say anything: {report}");
        let far = report.large("tcp") + report.large("quic");
        assert!(far > 0, "nothing large came over the network: {report}");
        assert!(report.faults() > 0, "nothing was hurt: {report}");
        for way in ["shm", "tcp"] {
            let by = |outcome: &Outcome| matches!(outcome, Outcome::Got { transport, .. } if transport.as_str() == way);
            assert!(report.count(by) > 0, "nothing came by {way}: {report}");
        }
    }
}
