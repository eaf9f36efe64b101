//! Choice of the address to which datagrams for a peer go. Pure.

use std::net::{IpAddr, SocketAddr};

/// Address of a peer that the UDP socket `own` reaches: that of the control connection, else the first one that the peer lists of
/// another family. A name is not looked up for it.
///
/// # Errors
/// None is of a family that the socket takes; in words, with what to do.
pub(super) fn of_datagrams(
    own: SocketAddr,
    control: SocketAddr,
    listed: &[String],
) -> Result<SocketAddr, String> {
    // A socket of every address takes both families.
    let (four, six) = match own.ip() {
        IpAddr::V6(all) if all.is_unspecified() => (true, true),
        ip => (ip.to_canonical().is_ipv4(), ip.to_canonical().is_ipv6()),
    };
    let control = match control.ip().to_canonical() {
        IpAddr::V4(address) => (address, control.port()).into(),
        IpAddr::V6(_) => control,
    };
    let listed = listed.iter().filter_map(|one| one.parse().ok());
    let reached = std::iter::once(control).chain(listed).find(|to| if to.is_ipv4() { four } else { six });
    reached.ok_or_else(|| {
        let (theirs, ours) = if control.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
        format!(
            "quic to {control} does not come up: that is {theirs}, the UDP socket of this sidecar, {own}, is of {ours} alone, and the \
             peer lists no address of that: let peers.listen be [::]:{} (sidecar.ipv6 of the chart)",
            own.port()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(own: &str, control: &str, listed: &[&str]) -> Result<String, String> {
        let listed: Vec<String> = listed.iter().map(|one| (*one).to_owned()).collect();
        of_datagrams(own.parse().unwrap(), control.parse().unwrap(), &listed).map(|to| to.to_string())
    }

    #[test]
    fn datagrams_go_where_the_control_connection_goes_if_the_socket_takes_that_family() {
        for own in ["[::]:9421", "0.0.0.0:9421", "10.0.0.1:9421", "[::ffff:10.0.0.1]:9421"] {
            assert_eq!(chosen(own, "10.0.0.7:9", &["[fd00::7]:9"]).unwrap(), "10.0.0.7:9", "{own}");
            assert_eq!(chosen(own, "[::ffff:10.0.0.7]:9", &[]).unwrap(), "10.0.0.7:9", "{own}");
        }
        for own in ["[::]:9421", "[fd00::1]:9421"] {
            assert_eq!(chosen(own, "[fd00::7]:9", &["10.0.0.7:9"]).unwrap(), "[fd00::7]:9", "{own}");
        }
    }

    #[test]
    fn datagrams_go_to_the_first_other_address_that_the_socket_reaches() {
        let listed = ["name:9", "[fd00::7]:9", "10.0.0.7:9", "10.0.0.8:9"];
        assert_eq!(chosen("0.0.0.0:9421", "[fd00::7]:9", &listed).unwrap(), "10.0.0.7:9");
        assert_eq!(chosen("[fd00::1]:9421", "10.0.0.8:9", &listed).unwrap(), "[fd00::7]:9");
    }

    #[test]
    fn a_peer_without_an_address_of_the_family_is_told_with_both_and_the_setting() {
        for (own, control, listed, parts) in [
            (
                "0.0.0.0:9421",
                "[fd00::7]:9",
                "name:9",
                ["quic to [fd00::7]:9", "that is IPv6", "0.0.0.0:9421, is of IPv4"],
            ),
            (
                "[fd00::1]:9421",
                "10.0.0.7:9",
                "10.0.0.8:9",
                ["quic to 10.0.0.7:9", "that is IPv4", "[fd00::1]:9421, is of IPv6"],
            ),
        ] {
            let why = chosen(own, control, &[listed]).unwrap_err();
            for part in
                parts.into_iter().chain(["does not come up", "peers.listen be [::]:9421", "sidecar.ipv6"])
            {
                assert!(why.contains(part), "{part} is not in {why}");
            }
        }
    }
}
