//! Parsers of the text of a setting. Each parser says what is wrong; the table says what is accepted.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tensorlane_proto::crd::{Prefer, TransportKind};
use tensorlane_proto::negotiate::{Encryption, Require, Transport, TransportSet};

use super::{LogFormat, PeersDirectory};

pub(super) const KI: u64 = 1 << 10;
pub(super) const MI: u64 = 1 << 20;
pub(super) const GI: u64 = 1 << 30;

/// Pages are what the kernel gives; sizes are whole ones.
const PAGE: u64 = 4 * KI;

/// The longest path of a Unix socket, without its closing zero (`sun_path` of unix(7)).
const SOCKET_PATH_MAX: usize = 107;

type Parsed<T> = Result<T, String>;

/// Bytes: a whole number, with Ki, Mi, Gi or Ti after it or nothing; a multiple of 4Ki, at least `min`.
pub(super) fn bytes(text: &str, min: u64) -> Parsed<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "Ki" => KI,
        "Mi" => MI,
        "Gi" => GI,
        "Ti" => GI << 10,
        _ if digits.is_empty() => return Err("not a size: it begins with no number".to_owned()),
        other => {
            return Err(format!("{other:?} is not a unit: Ki, Mi, Gi and Ti are, and nothing for bytes"));
        }
    };
    let count = whole(digits)?;
    let bytes = count.checked_mul(unit).ok_or("more bytes than can be counted")?;
    if bytes < min {
        return Err(format!("less than {}", bytes_text(min)));
    }
    if !bytes.is_multiple_of(PAGE) {
        return Err("not a multiple of 4Ki".to_owned());
    }
    Ok(bytes)
}

/// The shortest text that [`bytes`] reads as the same number.
pub(super) fn bytes_text(bytes: u64) -> String {
    let units = [(GI << 10, "Ti"), (GI, "Gi"), (MI, "Mi"), (KI, "Ki")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

/// A duration above zero, at most a day: a whole number and ms, s, m or h.
pub(super) fn duration(text: &str) -> Parsed<Duration> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ if digits.is_empty() => return Err("not a duration: it begins with no number".to_owned()),
        "" => return Err("no unit: write ms, s, m or h behind it".to_owned()),
        other => return Err(format!("{other:?} is not a unit: ms, s, m and h are")),
    };
    let duration = whole(digits)?.checked_mul(unit).map(Duration::from_millis);
    match duration {
        Some(Duration::ZERO) => Err("must be above zero".to_owned()),
        Some(duration) if duration <= DAY => Ok(duration),
        _ => Err("longer than a day".to_owned()),
    }
}

/// A duration as [`duration`] reads it, or `off`.
pub(super) fn duration_or_off(text: &str) -> Parsed<Option<Duration>> {
    if text == "off" { Ok(None) } else { duration(text).map(Some) }
}

/// A whole number from 1 to `max`.
pub(super) fn count(text: &str, max: usize) -> Parsed<usize> {
    let number = usize::try_from(whole(text)?).map_err(|_| "too large".to_owned())?;
    match number {
        0 => Err("must be at least 1".to_owned()),
        number if number > max => Err(format!("more than {max}")),
        number => Ok(number),
    }
}

/// A number that may be none.
pub(super) fn count_or_none(text: &str, max: usize) -> Parsed<usize> {
    if whole(text)? == 0 { Ok(0) } else { count(text, max) }
}

fn whole(digits: &str) -> Parsed<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a whole number".to_owned());
    }
    digits.parse().map_err(|_| "too large".to_owned())
}

/// A name, an address: anything whose own parser explains itself.
pub(super) fn parsed<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Parsed<T> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// An address of this machine itself.
pub(super) fn loopback(text: &str) -> Parsed<SocketAddr> {
    let address = socket_address(text)?;
    if !address.ip().is_loopback() {
        let why = "gRPC carries no identity, so whoever reaches it is trusted: only this pod may";
        return Err(format!("not a loopback address ({why})"));
    }
    Ok(address)
}

/// An IP address and a port.
pub(super) fn socket_address(text: &str) -> Parsed<SocketAddr> {
    text.parse().map_err(|_| "not an IP address and a port".to_owned())
}

/// An address as [`socket_address`] reads it, or `off`.
pub(super) fn socket_address_or_off(text: &str) -> Parsed<Option<SocketAddr>> {
    if text == "off" { Ok(None) } else { socket_address(text).map(Some) }
}

/// A host name or IP address, and a port above zero unless `any_port`.
pub(crate) fn host_port(text: &str, any_port: bool) -> Parsed<String> {
    let (host, port) = text.rsplit_once(':').filter(|_| !text.ends_with(']')).ok_or("no port")?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_is_right = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_host_name(host),
    };
    if !host_is_right {
        return Err(wrong_host(host, port));
    }
    match port.parse::<u16>() {
        Ok(0) if !any_port => Err("port 0 reaches nobody".to_owned()),
        Ok(_) if port.bytes().all(|byte| byte.is_ascii_digit()) => Ok(text.to_owned()),
        _ => Err(format!("{port:?} is not a port")),
    }
}

/// Words for a host that is none, with what to write where that is plain.
fn wrong_host(host: &str, port: &str) -> String {
    if let Some((_, scope)) = host.trim_end_matches(']').split_once('%') {
        return format!(
            "{host:?} has a scope, and %{scope} is of one host alone: take an address that all hosts know"
        );
    }
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("put the IPv6 address into brackets: [{host}]:{port}"),
        Err(_) => format!("{host:?} is no host name, IPv4 address or [IPv6 address]"),
    }
}

/// Addresses that a peer is listed with, at most.
const ADVERTISED_MAX: usize = 8;

/// Addresses with commas between them: each a host and a port, or an IP address alone.
pub(super) fn addresses(text: &str) -> Parsed<Vec<String>> {
    let all: Vec<&str> = text.split(',').collect();
    if all.len() > ADVERTISED_MAX {
        return Err(format!("{} addresses, and a peer has {ADVERTISED_MAX} at most", all.len()));
    }
    let one = |text: &&str| match text.parse::<std::net::IpAddr>() {
        Ok(_) => Ok((*text).to_owned()),
        Err(_) => host_port(text, false),
    };
    all.iter().map(one).collect()
}

/// The letters that names of hosts are made of; whether it exists is found out by asking.
fn is_host_name(host: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=253).contains(&host.len()) && host.bytes().all(letter)
}

/// An absolute path.
pub(super) fn path(text: &str) -> Parsed<PathBuf> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("not an absolute path".to_owned()) }
}

/// Transports between peers, with commas between them; each once, at least one.
pub(super) fn transports(text: &str) -> Parsed<TransportSet> {
    text.split(',').try_fold(TransportSet::EMPTY, |set, word| {
        let kind: TransportKind = parsed(word)?;
        let transport: Transport = parsed(kind.as_str())?;
        if set.contains(transport) {
            Err(format!("{word:?} stands there twice"))
        } else {
            Ok(set.with(transport))
        }
    })
}

/// Requirements with commas between them, or `none`.
pub(super) fn require(text: &str) -> Parsed<Require> {
    match text {
        "none" => Ok(Require::NONE),
        "" => Err("nothing; say none".to_owned()),
        words => parsed(words),
    }
}

/// Reads whether something is done.
pub(super) fn on_or_off(text: &str) -> Parsed<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("no such choice".to_owned()),
    }
}

/// Reads whether bulk bytes are encrypted.
pub(super) fn encryption(text: &str) -> Parsed<Encryption> {
    match text {
        "required" => Ok(Encryption::Tls),
        "none" => Ok(Encryption::None),
        _ => Err("no such choice".to_owned()),
    }
}

/// Reads which of two transports brings large tensors.
pub(super) fn prefer(text: &str) -> Parsed<Option<Transport>> {
    Ok(match parsed(text)? {
        Prefer::Measured => None,
        Prefer::Tcp => Some(Transport::Tcp),
        Prefer::Quic => Some(Transport::Quic),
    })
}

/// Reads where the peer table comes from.
pub(super) fn peers_directory(text: &str) -> Parsed<PeersDirectory> {
    match text {
        "none" => Ok(PeersDirectory::None),
        "file" => Ok(PeersDirectory::File),
        "kubernetes" => Ok(PeersDirectory::Kubernetes),
        _ => Err("no such directory".to_owned()),
    }
}

/// The name of a namespace (RFC 1123).
pub(super) fn namespace(text: &str) -> Parsed<String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let whole = (1..=63).contains(&text.len()) && text.bytes().all(inner);
    if whole && !text.starts_with('-') && !text.ends_with('-') {
        Ok(text.to_owned())
    } else {
        Err("no name of a namespace".to_owned())
    }
}

/// A directory whose sockets' paths fit into what the kernel takes.
pub(super) fn sockets_directory(text: &str) -> Parsed<PathBuf> {
    let directory = path(text)?;
    let longest = directory.join("session.sock").as_os_str().len();
    if longest > SOCKET_PATH_MAX {
        return Err(format!(
            "{longest} bytes with session.sock in it, and a socket's path has {SOCKET_PATH_MAX}"
        ));
    }
    Ok(directory)
}

/// A level, then `module=level` after commas.
pub(super) fn log_level(text: &str) -> Parsed<String> {
    let is_level = |word: &str| matches!(word, "error" | "warn" | "info" | "debug" | "trace");
    let mut words = text.split(',');
    let first = words.next().unwrap_or_default();
    if !is_level(first) {
        return Err(format!("{first:?} is not a level"));
    }
    let is_directive = |word: &str| {
        let module = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
        word.split_once('=').is_some_and(|(target, level)| {
            !target.is_empty() && target.bytes().all(module) && is_level(level)
        })
    };
    match words.find(|word| !is_directive(word)) {
        Some(word) => Err(format!("{word:?} is not module=level")),
        None => Ok(text.to_owned()),
    }
}

/// The shape of a line of the log.
pub(super) fn log_format(text: &str) -> Parsed<LogFormat> {
    match text {
        "json" => Ok(LogFormat::Json),
        "text" => Ok(LogFormat::Text),
        _ => Err("no such format".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_binary_units_and_whole_pages() {
        assert_eq!(bytes("16Mi", 0), Ok(16 * MI));
        assert_eq!(bytes("8192", 0), Ok(8192));
        assert_eq!(bytes("2Ti", 0), Ok(2048 * GI));
        let refused =
            ["", "Mi", "1.5Gi", "-1Gi", "+1Gi", "1 Gi", "1G", "1gi", "1000", "99999999999Ti", "1KiKi"];
        for text in refused {
            assert!(bytes(text, 0).is_err(), "{text}");
        }
        assert_eq!(bytes("15Mi", 16 * MI), Err("less than 16Mi".to_owned()));
    }

    #[test]
    fn printed_bytes_are_read_back_as_the_same_number() {
        for number in [4096, 12 * KI, 16 * MI, 3 * GI / 2, 5 * GI, GI << 11] {
            assert_eq!(bytes(&bytes_text(number), 0), Ok(number));
        }
    }

    #[test]
    fn durations_need_a_unit_and_stay_within_a_day() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        for text in ["", "10", "0s", "25h", "1d", "1.5s", "-1s", "s", "18446744073709551615h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn grpc_listens_on_loopback_only_and_says_why() {
        assert!(loopback("127.0.0.1:7000").is_ok());
        assert!(loopback("[::1]:0").is_ok());
        assert!(loopback("0.0.0.0:7000").is_err_and(|wrong| wrong.contains("carries no identity")));
        assert!(loopback("localhost:7000").is_err());
    }

    #[test]
    fn addresses_of_peers_have_a_host_and_a_port() {
        for text in ["10.0.0.1:9421", "[fe80::1]:1", "trainer-0.ml.svc:65535"] {
            assert_eq!(host_port(text, false).as_deref(), Ok(text));
        }
        assert!(host_port("0.0.0.0:0", true).is_ok());
        for text in ["10.0.0.1", ":1", "a:0", "a:70000", "a:+1", "fe80::1:1", "[zz]:1", "a b:1", "a:"] {
            assert!(host_port(text, false).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_of_ipv6_that_are_spelled_wrongly_are_told_what_is_right() {
        for (text, part) in [
            ("::1:9454", "put the IPv6 address into brackets: [::1]:9454"),
            ("fd00::1:2:9421", "brackets: [fd00::1:2]:9421"),
            ("fe80::1%eth0:9454", "%eth0 is of one host alone"),
            ("[fe80::1%eth0]:9454", "%eth0 is of one host alone"),
            ("[::1]", "no port"),
            ("1.2.3.4:9421,[::1]:9421", "is no host name, IPv4 address or [IPv6 address]"),
        ] {
            let wrong = host_port(text, true).unwrap_err();
            assert!(wrong.contains(part), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_slip_in_a_level_is_not_taken_for_a_module() {
        assert!(log_level("info").is_ok());
        assert!(log_level("warn,tensorlane_sidecar::peer=debug").is_ok());
        for text in ["", "inf", "info,", "info,peer", "info,peer=loud", "peer=debug"] {
            assert!(log_level(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_routes_may_and_must_be_is_said_in_the_words_of_exchanges() {
        let tcp_and_quic = TransportSet::EMPTY.with(Transport::Tcp).with(Transport::Quic);
        assert_eq!(transports("quic,tcp"), Ok(tcp_and_quic));
        for text in ["", "tcp,", "tcp,tcp", "local", "rdma", "tcp, quic", "TCP"] {
            assert!(transports(text).is_err(), "{text}");
        }
        assert_eq!(require("none"), Ok(Require::NONE));
        assert_eq!(require("encrypted,same_node"), Ok(Require::SAME_NODE.and(Require::ENCRYPTED)));
        for text in ["", "fast", "none,encrypted", "zero-copy"] {
            assert!(require(text).is_err(), "{text}");
        }
        assert_eq!((encryption("required"), encryption("none")), (Ok(Encryption::Tls), Ok(Encryption::None)));
        assert!(encryption("tls").is_err());
        assert_eq!((on_or_off("on"), on_or_off("off")), (Ok(true), Ok(false)));
        assert!(on_or_off("none").is_err());
        assert_eq!((prefer("measured"), prefer("quic")), (Ok(None), Ok(Some(Transport::Quic))));
        assert!(prefer("shm").is_err());
    }

    #[test]
    fn namespaces_are_labels_of_the_dns() {
        for text in ["ml", "a", "team-7", &"a".repeat(63)] {
            assert_eq!(namespace(text).as_deref(), Ok(text));
        }
        for text in ["", "-a", "a-", "A", "a.b", "a/b", &"a".repeat(64)] {
            assert!(namespace(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_socket_directory_leaves_room_for_the_names_of_its_sockets() {
        assert!(sockets_directory("/run/tensorlane").is_ok());
        assert!(sockets_directory("run").is_err());
        assert!(sockets_directory(&format!("/{}", "d".repeat(SOCKET_PATH_MAX - 14))).is_ok());
        assert!(sockets_directory(&format!("/{}", "d".repeat(SOCKET_PATH_MAX - 13))).is_err());
    }
}
