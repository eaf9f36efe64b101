//! Addresses of a peer that lead to another one, to nobody, or to something else.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;

use super::world::*;

#[test]
fn a_peer_whose_address_leads_elsewhere_says_so_until_it_leads_back() {
    let table = Arc::<Table>::default();
    let a = Start::new("a").start(&table);
    let b = Start { listed: Some(a.peers.bound_address()), looks: true, ..Start::new("b") }.start(&table);
    let says = |parts: &[&str]| {
        until(&format!("it says {parts:?}"), || {
            let told = b.peers.own_error();
            parts.iter().all(|part| told.contains(part))
        });
    };
    says(&[
        &a.peers.bound_address().to_string(),
        "does not lead back to it: a answers there",
        &a.fingerprint.to_string(),
    ]);
    // The other one was never told of anything that is wrong here.
    assert_eq!(a.peers.own_error(), "");
    table.list("b", nowhere(), b.fingerprint);
    says(&["nobody answers this peer at 127.0.0.1:1", "refused"]);
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    table.list("b", web.local_addr().unwrap(), b.fingerprint);
    web.set_nonblocking(true).unwrap();
    // The other one dials it, too.
    let mut callers = Vec::new();
    until("it says that no sidecar answers", || {
        while let Ok((mut caller, _)) = web.accept() {
            caller.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            callers.push(caller);
        }
        b.peers.own_error().contains("does not lead back to it: what answers there is no sidecar")
    });
    table.list("b", b.peers.bound_address(), b.fingerprint);
    until("it leads back", || b.peers.own_error().is_empty());
    assert_eq!(b.peers.counters().auth_refused.all(), [], "an own dial is no refusal");
}
