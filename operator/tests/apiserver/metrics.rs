//! Tests of what a running operator counts.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::objects::until;

/// The metrics at the port of an operator's probes.
pub(crate) fn scrape(port: u16) -> String {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

/// The value of one series, `tensorlane_operator_` left out; none where nothing was counted.
pub(crate) fn value(port: u16, series: &str) -> Option<u64> {
    let start = format!("tensorlane_operator_{series} ");
    let text = scrape(port);
    let value = text.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(value.parse().unwrap())
}

/// Waits until a series has that value: an effect is there before it is counted.
pub(crate) async fn shows(port: u16, series: &str, wanted: u64) {
    until(&format!("{series} is {wanted}"), || async { (value(port, series) == Some(wanted)).then_some(()) })
        .await;
}

/// Pods that the webhook was asked about, with this result.
pub(crate) fn injections(port: u16, result: &str) -> u64 {
    value(port, &format!("injections_total{{result=\"{result}\"}}")).unwrap_or(0)
}

/// After two pods have got their peers, of which one is ready.
pub(crate) async fn the_leader_counts_what_it_does(port: u16) {
    shows(port, "leader", 1).await;
    for kind in ["exchange", "role_binding", "peer", "peer_status", "exchange_status", "webhooks"] {
        let series = format!("reconciles_total{{kind=\"{kind}\",result=\"ok\"}}");
        // An effect is there before it is counted.
        until(&format!("{kind} is counted"), || async { (value(port, &series) > Some(0)).then_some(()) })
            .await;
    }
    until("one peer is ready and one is not", || async {
        let peers = |state: &str| value(port, &format!("peers{{state=\"{state}\"}}"));
        (peers("ready") == Some(1) && peers("not_ready") == Some(1)).then_some(())
    })
    .await;
    assert_eq!(value(port, "events_dropped_total"), Some(0));
}
