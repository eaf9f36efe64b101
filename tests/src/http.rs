//! A single HTTP request, and metrics out of its answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::wait::PATIENCE;

/// Status and body of a GET.
///
/// # Panics
/// Where nobody answers with HTTP.
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the admin port");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// The sum of all series of a metric in Prometheus text that have all the `labels`, such as `kind="own"`.
///
/// # Panics
/// Where there is no such series.
pub fn metric(text: &str, name: &str, labels: &[&str]) -> f64 {
    let mut found = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (metric, having) = series.split_once('{').unwrap_or((series, ""));
        let fits = metric == name && labels.iter().all(|label| having.contains(label));
        fits.then(|| value.parse::<f64>().expect("a value"))
    });
    let first = found.next().unwrap_or_else(|| panic!("no series {name} {labels:?} in:\n{text}"));
    first + found.sum::<f64>()
}
