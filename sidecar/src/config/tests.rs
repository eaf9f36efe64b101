use std::path::PathBuf;
use std::time::Duration;

use super::settings::SETTINGS;
use super::*;

fn sources(yaml: &str, variables: &[(&str, &str)]) -> Sources {
    Sources {
        file: Some((PathBuf::from("t.yaml"), yaml.to_owned())),
        variables: variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
        host_name: "Trainer-0".to_owned(),
    }
}

fn mistakes(yaml: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let Mistakes(mistakes) = sources(yaml, variables).load().unwrap_err();
    mistakes.iter().map(ToString::to_string).collect()
}

#[test]
fn every_default_is_valid_and_the_variables_are_distinct() {
    let config = sources("", &[]).load().unwrap().config;
    assert_eq!(config.exchange.as_str(), "default");
    assert_eq!(config.peer.as_str(), "trainer-0");
    assert_eq!((config.arena.size, config.arena.ready), (1 << 30, 1 << 28));
    assert_eq!(config.admin.listen, Some(([127, 0, 0, 1], 9420).into()));
    assert_eq!((config.peers.listen, config.grpc.listen), (None, None));
    let names: std::collections::BTreeSet<_> =
        SETTINGS.iter().map(|setting| variable(setting.path)).collect();
    assert_eq!(names.len(), SETTINGS.len());
    assert!(names.contains("TENSORLANE_LIMITS_LEASES_PER_SESSION"));
}

#[test]
fn the_smallest_arena_starts_without_another_word() {
    for (size, segment) in [("16Mi", 4 << 20), ("100Mi", 25 << 20), ("256Mi", 64 << 20), ("8Gi", 64 << 20)] {
        let arena = sources("", &[("TENSORLANE_ARENA_SIZE", size)]).load().unwrap().config.arena;
        assert_eq!(arena.segment, segment, "{size}");
    }
}

#[test]
fn the_environment_beats_the_file_and_the_file_the_default() {
    let yaml = "arena: {size: 8Gi, base: 1Gi}\npeers:\n  max: 7\n  listen:\nadmin: {listen: off}\n";
    let loaded = sources(yaml, &[("TENSORLANE_ARENA_BASE", "2Gi")]).load().unwrap();
    let config = loaded.config;
    assert_eq!((config.arena.size, config.arena.base, config.arena.ready), (8 << 30, 2 << 30, 1 << 30));
    assert_eq!((config.peers.max, config.peers.listen, config.admin.listen), (7, None, None));
}

#[test]
fn every_setting_can_be_set_from_either_side() {
    let other = |path: &str| match path {
        "exchange" | "peer" => "other",
        "grpc.listen" | "admin.listen" => "127.0.0.1:1",
        "log.level" => "warn",
        "identity.rotateEvery" => "7h",
        "identity.overlap" => "7m",
        "transports" | "prefer" => "quic",
        "require" => "same_node",
        "encryption" | "gpu.mode" => "none",
        "peers.directory" => "file",
        "peers.namespace" => "elsewhere",
        "peers.kubeconfig" => "/elsewhere",
        "log.format" => "text",
        "limits.unreadBytes" => "32Mi",
        "limits.lentBytes" | "limits.gpuLentBytes" | "limits.setJournalBytes" => "8Mi",
        // At least two by default.
        "peers.lanes" => "1",
        "peers.fanOut" => "3",
        "security.neighbours" => "off",
        "peers.fanOutFrom" => "64Mi",
        path if path.starts_with("arena.") => "32Mi",
        "sets.root" => "/elsewhere",
        path if path.ends_with("directory") || path.ends_with("file") => "/elsewhere",
        path if path.starts_with("peers.") && path != "peers.max" => "a:1",
        path if path.starts_with("gc.") || path.starts_with("deadlines.") => "7s",
        _ => "7",
    };
    let mut by_file = serde_yaml::Mapping::new();
    let mut by_variable = Vec::new();
    for setting in SETTINGS {
        let text = other(setting.path);
        by_variable.push((variable(setting.path), text));
        match setting.path.split_once('.') {
            None => _ = by_file.insert(setting.path.into(), text.into()),
            Some((section, name)) => {
                let entry =
                    by_file.entry(section.into()).or_insert_with(|| serde_yaml::Mapping::new().into());
                _ = entry.as_mapping_mut().unwrap().insert(name.into(), text.into());
            }
        }
    }
    let pairs: Vec<_> = by_variable.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    let from_variables = sources("", &pairs).load().unwrap();
    let from_file = sources(&serde_yaml::to_string(&by_file).unwrap(), &[]).load().unwrap();
    assert_eq!(from_variables.config, from_file.config);
    let default = sources("", &[]).load().unwrap();
    for ((setting, text, origin), (_, before, _)) in from_file.effective.iter().zip(&default.effective) {
        assert!(text != before && *origin != Origin::Default, "{} was not changed", setting.path);
    }
    // Each row writes its own field: changing it alone changes the configuration.
    for (name, text) in pairs {
        let mut alone = vec![(name, text)];
        match name {
            "TENSORLANE_ARENA_SIZE" => alone.push(("TENSORLANE_ARENA_SEGMENT", "16Mi")),
            // It needs a file, and a file alone says it already.
            "TENSORLANE_PEERS_DIRECTORY" => {
                alone = vec![(name, "kubernetes"), ("TENSORLANE_PEERS_LISTEN", "b:2")];
            }
            "TENSORLANE_PEERS_FILE" | "TENSORLANE_PEERS_ADVERTISE" => {
                alone.push(("TENSORLANE_PEERS_LISTEN", "b:2"));
            }
            _ => {}
        }
        let changed = sources("", &alone).load().unwrap().config;
        assert_ne!(changed, default.config, "{name} changes nothing");
    }
}

#[test]
fn all_mistakes_are_told_at_once_with_what_is_accepted() {
    let yaml = "arena: {size: 1G, sise: 1Gi}\nlimits: {sessions: 0}\ngrpc: {listen: 0.0.0.0:1}\narenas: {size: 1Gi}\n\
                gc: 7\npeers: [a]\nlog: {level: {deep: 1}}\nadmin: {listen: 1.5}\ntransports: [rdma, tcp]\n\
                state: {directory: []}\ndeadlines: {map: soon, drain: [5s]}\nexchange: 0x10\n";
    let told = mistakes(
        yaml,
        &[
            ("TENSORLANE_GC_TICKET_TTL", "60"),
            ("TENSORLANE_PEERS_LANES", "9"),
            ("TENSORLANE_PEERS_MAXIMUM", "1"),
        ],
    );
    let expected = [
        ("arena.size (t.yaml) = \"1G\": \"G\" is not a unit", "8Gi"),
        ("arena.sise (t.yaml): no such setting", "did you mean arena.size?"),
        ("limits.sessions (t.yaml) = \"0\": must be at least 1", "from 1 to 65536"),
        ("grpc.listen (t.yaml)", "carries no identity"),
        ("arenas (t.yaml): no such setting", "did you mean arena?"),
        ("gc (t.yaml) = \"7\": a section", "ticketTtl, leaseGrace, copyIdle"),
        ("peers (t.yaml)", "a section"),
        ("log.level (t.yaml): a mapping, where one value belongs", "accepted: error, warn"),
        (
            "transports (t.yaml) = \"rdma,tcp\": a list",
            "with commas; accepted: some of shm, cuda_ipc, tcp and quic",
        ),
        ("state.directory (t.yaml): a list", "an absolute path"),
        ("deadlines.map (t.yaml) = \"soon\": not a duration", "such as 500ms"),
        ("deadlines.drain (t.yaml) = \"5s\": a list", "such as 500ms"),
        ("admin.listen (t.yaml) = \"1.5\"", "in quotes"),
        ("exchange (t.yaml) = \"16\": read as a number", "in quotes"),
        ("gc.ticketTtl (variable TENSORLANE_GC_TICKET_TTL) = \"60\": no unit", "500ms"),
        ("peers.lanes (variable TENSORLANE_PEERS_LANES) = \"9\": more than 8", "from 0 to 8"),
        ("variable TENSORLANE_PEERS_MAXIMUM", "did you mean TENSORLANE_PEERS_MAX?"),
    ];
    for (start, part) in expected {
        let found = told.iter().any(|line| line.starts_with(start) && line.contains(part));
        assert!(found, "{start} ... {part} is not in {told:#?}");
    }
    assert_eq!(told.len(), expected.len(), "{told:#?}");
}

#[test]
fn a_mistake_in_an_overridden_value_is_still_told() {
    let told = mistakes("arena: {size: big}", &[("TENSORLANE_ARENA_SIZE", "2Gi")]);
    assert!(told.len() == 1 && told[0].starts_with("arena.size (t.yaml) = \"big\": not a size"), "{told:?}");
    assert!(told[0].contains("such as 8Gi"), "{told:?}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let yaml = "arena: {size: 32Mi, segment: 64Mi, ready: 1Gi}\npeers: {advertise: 'a:1'}";
    let told = mistakes(yaml, &[]);
    assert!(told[0].contains("64Mi is more than arena.size 32Mi"), "{told:?}");
    assert!(told[1].contains("1Gi is more than arena.size 32Mi"), "{told:?}");
    assert!(told[2].contains("set peers.listen"), "{told:?}");
}

#[test]
fn variables_of_others_are_left_alone() {
    let others = [
        ("TENSORLANE_SOCKETS", "/run/tensorlane"),
        ("TENSORLANE_OPERATOR_SERVICE_HOST", "10.0.0.1"),
        ("TENSORLANE_PEERS_PORT_443_TCP_ADDR", "10.0.0.1"),
        ("TENSORLANE_PEERS_SERVICE_PORT_HTTPS", "443"),
        ("TENSORLANE_ARENA_PORT", "tcp://10.0.0.1:443"),
        ("HOME", "/home"),
    ];
    assert!(sources("", &others).load().is_ok());
    assert_eq!(mistakes("", &[("TENSORLANE_EXCHANG", "a")]).len(), 1);
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    for (yaml, part) in [
        ("- a", "not a mapping"),
        ("arena: {size: 1Gi", "not YAML"),
        ("arena: {size: 1Gi}\narena: {size: 2Gi}", "duplicate"),
        ("1: 2", "a key that is no text"),
    ] {
        let told = mistakes(yaml, &[]);
        assert!(told.len() == 1 && told[0].contains(part), "{told:?}");
    }
}

#[test]
fn a_bomb_of_aliases_is_refused() {
    let mut yaml = String::from("a: &a [x,x,x,x,x,x,x,x,x,x]\n");
    for (letter, before) in ('b'..='z').zip('a'..) {
        let list = vec![format!("*{before}"); 10].join(",");
        yaml.push_str(&format!("{letter}: &{letter} [{list}]\n"));
    }
    assert!(mistakes(&yaml, &[])[0].contains("not YAML"));
}

#[test]
fn a_file_above_the_limit_is_refused_and_one_at_the_limit_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.yaml");
    let limit = usize::try_from(FILE_BYTES_MAX).unwrap();
    std::fs::write(&path, "#".repeat(limit)).unwrap();
    assert!(Sources::read(Some(&path)).is_ok());
    std::fs::write(&path, "#".repeat(limit + 1)).unwrap();
    let told = Sources::read(Some(&path)).unwrap_err().to_string();
    assert!(told.contains("more than 1048576 bytes"), "{told}");
    assert!(Sources::read(Some(&directory.path().join("absent"))).is_err());
}

#[test]
fn the_printed_configuration_is_read_back_as_the_same() {
    let yaml = "peer: '0x10'\npeers: {listen: '[::]:0', max: 3}\nlog: {level: 'info,a::b=debug'}";
    let loaded = sources(yaml, &[("TENSORLANE_GC_LEASE_GRACE", "1500ms")]).load().unwrap();
    let printed = loaded.to_yaml();
    assert_eq!(sources(&printed, &[]).load().unwrap().config, loaded.config, "{printed}");
    for line in [
        "peer: \"0x10\"",
        "  leaseGrace: 1500ms",
        "  advertise: null",
        "Value from: file t.yaml",
        "Value from: variable TENSORLANE_GC_LEASE_GRACE",
        "Value from: default",
    ] {
        assert!(printed.contains(line), "{line} is not in {printed}");
    }
}

#[test]
fn a_host_name_that_is_no_peer_name_is_told_with_what_to_do() {
    let mut sources = sources("", &[]);
    sources.host_name = "my_host".to_owned();
    let told = sources.load().unwrap_err().to_string();
    assert!(told.contains("peer (by default; set it) = \"my_host\""), "{told}");
}

#[test]
fn pairs_make_a_configuration_for_tests() {
    let config = Config::of(&[("arena.size", "128Mi"), ("deadlines.progress", "250ms")]).unwrap();
    assert_eq!((config.arena.size, config.deadlines.progress), (128 << 20, Duration::from_millis(250)));
    assert!(Config::of(&[("arena.size", "1")]).is_err());
}

#[test]
fn keys_are_changed_daily_in_kubernetes_and_the_overlap_is_shorter_than_their_life() {
    let every = |pairs: &[(&str, &str)]| Config::of(pairs).map(|config| config.identity.rotate_every);
    assert_eq!(every(&[]), Ok(None));
    let kubernetes = ("peers.directory", "kubernetes");
    let listen = ("peers.listen", "0.0.0.0:9421");
    assert_eq!(every(&[kubernetes, listen]), Ok(Some(Duration::from_secs(86_400))));
    assert_eq!(every(&[kubernetes, listen, ("identity.rotateEvery", "off")]), Ok(None));
    let told = every(&[("identity.rotateEvery", "2m")]).unwrap_err().to_string();
    assert!(told.contains("not shorter than identity.rotateEvery"), "{told}");
}

#[test]
fn in_kubernetes_an_address_is_told_and_no_name() {
    let kubernetes = [("peers.directory", "kubernetes"), ("peers.listen", "0.0.0.0:9421")];
    let of = |address| Config::of(&[&kubernetes[..], &[("peers.advertise", address)]].concat());
    assert!(of("10.0.0.7:9421").is_ok() && of("[fd00::7]:9421").is_ok());
    assert!(of("10.0.0.7,fd00::7").is_ok() && of("10.0.0.7:9421,[fd00::7]:9421").is_ok());
    let nine = ["10.0.0.7"; 9].join(",");
    let many = [("peers.listen", "0.0.0.0:9421"), ("peers.advertise", nine.as_str())];
    assert!(of("10.0.0.7,").is_err() && Config::of(&many).is_err());
    let told = of("trainer-0:9421").unwrap_err().to_string();
    assert!(told.contains("trainer-0:9421 is a name: in Kubernetes peers take IP addresses alone"), "{told}");
    assert!(Config::of(&[("peers.listen", "0.0.0.0:9421"), ("peers.advertise", "trainer-0:9421")]).is_ok());
}

#[test]
fn the_peers_file_and_the_directory_must_agree() {
    let of = |pairs: &[(&str, &str)]| Config::of(pairs).map(|config| config.peers.directory);
    assert_eq!(of(&[]), Ok(PeersDirectory::None));
    let listen = ("peers.listen", "127.0.0.1:9421");
    assert_eq!(of(&[("peers.file", "/p.yaml"), listen]), Ok(PeersDirectory::File));
    assert_eq!(of(&[("peers.directory", "kubernetes"), listen]), Ok(PeersDirectory::Kubernetes));
    let unheard =
        "it needs peers.listen, without which no peer is connected: set that (TENSORLANE_PEERS_LISTEN)";
    for (pairs, part) in [
        (&[("peers.file", "/p.yaml")][..], unheard),
        (&[("peers.directory", "kubernetes")], unheard),
        (&[("peers.directory", "file")], "set peers.file"),
        (&[("peers.directory", "kubernetes"), ("peers.file", "/p.yaml")], "would not be read"),
        (&[("peers.directory", "none"), ("peers.file", "/p.yaml")], "would not be read"),
        (&[("peers.directory", "etcd")], "none, file or kubernetes"),
    ] {
        let told = of(pairs).unwrap_err().to_string();
        assert!(told.contains(part), "{part} is not in {told}");
    }
}
