//! Tests of annotations: the meaning of each, and the values that make no sense.

use super::*;

fn said(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned())).collect()
}

#[test]
fn every_annotation_is_read_into_its_field() {
    let wishes = read(&said(&[
        ("inject", "enabled"),
        ("exchange", "ml"),
        ("arena-size", "2Gi"),
        ("gpu", "broker"),
        ("transports", "shm, tcp"),
        ("require", "encrypted"),
        ("containers", "trainer, eval"),
        ("after", "istio-proxy"),
        ("sets", "data/sets/mine"),
        ("cpu", "200m"),
        ("memory", "256Mi"),
        ("log-level", "debug"),
        ("share-process-namespace", "true"),
    ]));
    let expected = Wishes {
        inject: Some(true),
        exchange: Some("ml".to_owned()),
        arena: Some(Amount::whole(2 << 30)),
        gpu: Some(GpuMode::Broker),
        transports: Some(vec![TransportKind::Shm, TransportKind::Tcp]),
        require: Some(vec![Requirement::Encrypted]),
        containers: Some(vec!["trainer".to_owned(), "eval".to_owned()]),
        after: Some(vec!["istio-proxy".to_owned()]),
        sets: Some(SetsVolume {
            volume: Label::new("volume", "data").unwrap(),
            sub_path: Some("sets/mine".to_owned()),
        }),
        cpu: Some(Amount::milli(200)),
        memory: Some(Amount::whole(256 << 20)),
        log_level: Some(LogLevel::Debug),
        share_process_namespace: Some(true),
    };
    assert_eq!(wishes, Ok(expected));
    assert_eq!(read(&BTreeMap::new()), Ok(Wishes::default()));
    assert_eq!(read(&said(&[("require", "none")])).unwrap().require, Some(Vec::new()));
}

#[test]
fn every_value_that_makes_no_sense_is_named_at_once() {
    let wrong = [
        ("inject", "true"),
        ("exchange", "ML!"),
        ("arena-size", "2GB"),
        ("gpu", "all"),
        ("transports", "tcp,tcp"),
        ("require", "speed"),
        ("containers", "a,,b"),
        ("after", ","),
        ("sets", "data//sets"),
        ("cpu", "0"),
        ("memory", "1Mi"),
        ("log-level", "loud"),
        ("share-process-namespace", "yes"),
    ];
    assert_eq!(wrong.len(), KEYS.len(), "one for each key");
    let bad = read(&said(&wrong)).unwrap_err();
    let keys: Vec<_> = bad.iter().map(|one| one.key.trim_start_matches(PREFIX)).collect();
    assert_eq!(keys, wrong.map(|(key, _)| key));
}

#[test]
fn what_a_pod_requires_is_read_although_something_else_makes_no_sense() {
    let of = |text| required(&said(&[("require", text), ("arena-size", "2GB")]));
    assert_eq!(of("none"), Ok(Vec::new()));
    assert_eq!(of("zero_copy, encrypted"), Ok(vec![Requirement::ZeroCopy, Requirement::Encrypted]));
    assert_eq!(required(&BTreeMap::new()), Ok(Vec::new()));
    let wrong = of("speed").unwrap_err().to_string();
    assert!(wrong.starts_with("tensorlane.dev/require: \"speed\" is wrong ("), "{wrong}");
    assert!(wrong.contains("say some of zero_copy"), "{wrong}");
}

#[test]
fn a_path_of_sets_stays_in_its_volume() {
    let of = |text: &str| read(&said(&[("sets", text)])).map(|wishes| wishes.sets.unwrap().sub_path);
    assert_eq!(of("data"), Ok(None));
    assert_eq!(of("data/..a/b.."), Ok(Some("..a/b..".to_owned())));
    for text in ["", "/data", "data/", "data/..", "data/../x", "data/./x", "Data", "a.b"] {
        assert!(of(text).is_err(), "{text}");
    }
    assert!(of(&format!("data/{}", "x".repeat(600))).is_err());
}

#[test]
fn sizes_that_a_sidecar_would_refuse_are_refused_here() {
    for text in ["15Mi", "17Ti", "16777217", "100.5Mi500", "1.0000001Gi"] {
        assert!(read(&said(&[("arena-size", text)])).is_err(), "{text}");
    }
    assert!(read(&said(&[("arena-size", "2147483648")])).is_ok());
}

#[test]
fn a_key_that_nobody_knows_is_a_warning_with_the_nearest_one() {
    let warnings = unknown(&said(&[("arena-sise", "2Gi"), ("colour", "red"), ("inject", "enabled")]));
    assert_eq!(
        warnings,
        [
            "the annotation tensorlane.dev/arena-sise is not known and has no effect; did you mean tensorlane.dev/arena-size?",
            "the annotation tensorlane.dev/colour is not known and has no effect",
        ]
    );
}
