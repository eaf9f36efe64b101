//! Certificates as a caller sees them: by a handshake with the bundle and nothing else.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::*;

const NAME: &str = "tensorlane-webhook.tensorlane-system.svc";

/// True if a caller that trusts `bundle` talks to a server that shows `current`.
fn trusts(bundle: &str, current: &Current, name: &'static str) -> Result<(), rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap));
    let client =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let client = client.with_root_certificates(roots).with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let server = server.with_no_client_auth().with_cert_resolver(Arc::new(current.clone()));
    let mut client = ClientConnection::new(Arc::new(client), ServerName::try_from(name).unwrap())?;
    let mut server = ServerConnection::new(Arc::new(server))?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

fn leaf(kept: &Kept, now: u64) -> Leaf {
    let signer = kept.step(now).signer.unwrap();
    kept.authority(signer).unwrap().sign(&[NAME.to_owned()], now).unwrap()
}

fn first(now: u64) -> Kept {
    let kept = Kept::default();
    kept.after(&kept.step(now), now).unwrap().unwrap()
}

#[test]
fn a_leaf_is_trusted_by_the_bundle_also_after_the_secret_was_read_back() {
    let now = now();
    let kept = first(now);
    let kept = Kept::read(&kept.to_bytes().unwrap()).unwrap();
    let current = Current::default();
    assert!(trusts(&kept.bundle(), &current, NAME).is_err(), "nothing is shown yet");
    current.set(leaf(&kept, now));
    trusts(&kept.bundle(), &current, NAME).unwrap();
    assert!(trusts(&kept.bundle(), &current, "other.tensorlane-system.svc").is_err());
    assert!(trusts(&first(now).bundle(), &current, NAME).is_err(), "another authority with the same name");
}

#[test]
fn while_an_authority_is_replaced_old_and_new_leaves_are_trusted() {
    // The clock of the handshake is real, so the authority is as old as it has to be now.
    let now = now();
    let old = first(now - rotation::AUTHORITY_LIFE_SECONDS / 3 * 2);
    let current = Current::default();
    current.set(leaf(&old, now));
    let both = old.after(&old.step(now), now).unwrap().unwrap();
    trusts(&both.bundle(), &current, NAME).unwrap();
    assert_eq!(
        leaf(&both, now).authority,
        current.leaf().unwrap().authority,
        "the new one does not sign yet"
    );
    let later = now + rotation::SIGN_AFTER_SECONDS;
    current.set(leaf(&both, later));
    assert_ne!(current.leaf().unwrap().authority, leaf(&old, now).authority);
    trusts(&both.bundle(), &current, NAME).unwrap();
    assert!(trusts(&old.bundle(), &current, NAME).is_err(), "the bundle must come first");
}

#[test]
fn files_of_somebody_else_are_served_and_missing_ones_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = read_files(directory.path(), 0).unwrap_err().to_string();
    assert!(error.contains("tls.crt cannot be read"), "{error}");
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    std::fs::write(directory.path().join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(directory.path().join("tls.key"), "nothing").unwrap();
    let error = read_files(directory.path(), 0).unwrap_err().to_string();
    assert!(error.contains("tls.key has no key in PEM"), "{error}");
    std::fs::write(directory.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let current = Current::default();
    let leaf = read_files(directory.path(), 0).unwrap();
    // What rcgen makes without being told otherwise ends in the year 4096.
    assert_eq!(leaf.until, 67_090_118_400);
    current.set(leaf);
    trusts(&made.cert.pem(), &current, NAME).unwrap();
}

#[test]
fn a_secret_with_something_else_in_it_says_what_to_do() {
    assert!(Kept::read(b"{}x").unwrap_err().to_string().contains("delete the Secret"));
}
