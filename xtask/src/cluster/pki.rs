//! The cluster's certificates, keys and kubeconfigs, made by `openssl` for one cluster and removed with it.

use std::fs;
use std::path::Path;

use crate::cluster::layout::{API, API_SERVICE, Layout, NODES};
use crate::cluster::tell::told;
use crate::cluster::template::Values;
use crate::failure::Failure;

const KUBECONFIG: &str = include_str!("../../../tests/cluster/config/kubeconfig.yaml");

/// Days that certificates are good for. A cluster lives for minutes, on a developer's machine for days.
const DAYS: &str = "30";

/// Someone with a certificate.
#[derive(Debug, PartialEq, Eq)]
struct Party {
    /// Name of its files.
    file: String,
    /// Subject for which the API server takes it: `/O=GROUP/CN=USER`.
    subject: String,
    /// Under which names and addresses it serves.
    names: String,
    /// Set if it opens the API server, so it gets a kubeconfig.
    opens: bool,
}

fn parties() -> Vec<Party> {
    let party = |file: &str, subject: &str, names: &str, opens| Party {
        file: file.to_owned(),
        subject: subject.to_owned(),
        names: names.to_owned(),
        opens,
    };
    let api = format!(
        "IP:{API},IP:{API_SERVICE},IP:127.0.0.1,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    );
    let mut parties = vec![
        party("apiserver", "/CN=kube-apiserver", &api, false),
        party("kubelet-client", "/CN=apiserver-kubelet-client", "DNS:apiserver", false),
        party("admin", "/O=system:masters/CN=admin", "DNS:admin", true),
    ];
    for name in ["controller-manager", "scheduler", "kube-proxy"] {
        let user = format!("system:kube-{}", name.trim_start_matches("kube-"));
        parties.push(party(name, &format!("/CN={user}"), &format!("DNS:{name}"), true));
    }
    for node in NODES {
        let (name, address) = (node.name(), node.address());
        let subject = format!("/O=system:nodes/CN=system:node:{name}");
        parties.push(party(&name, &subject, &format!("DNS:{name},IP:{address}"), true));
    }
    parties
}

/// Makes all of them.
pub(crate) fn make(layout: &Layout) -> Result<(), Failure> {
    let pki = layout.pki();
    fs::create_dir_all(&pki).map_err(|error| Failure::file("make", &pki, &error))?;
    openssl(
        &pki,
        &format!(
            "req -x509 {NEW_KEY} -keyout ca.key -out ca.crt -days {DAYS} -subj /CN=tensorlane-test-cluster"
        ),
    )?;
    openssl(&pki, "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out accounts.key")?;
    openssl(&pki, "pkey -in accounts.key -pubout -out accounts.pub")?;
    for party in parties() {
        certify(&pki, &party)?;
        if party.opens {
            let values = Values::default()
                .with("api", API)
                .with("pki", pki.display().to_string())
                .with("user", &party.file);
            let path = pki.join(format!("{}.kubeconfig", party.file));
            fs::write(&path, values.fill(KUBECONFIG)?)
                .map_err(|error| Failure::file("write", &path, &error))?;
        }
    }
    Ok(())
}

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

fn certify(pki: &Path, party: &Party) -> Result<(), Failure> {
    let Party { file, subject, names, .. } = party;
    let extensions = pki.join(format!("{file}.ext"));
    let text = format!(
        "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={names}\n"
    );
    fs::write(&extensions, text).map_err(|error| Failure::file("write", &extensions, &error))?;
    openssl(pki, &format!("req {NEW_KEY} -keyout {file}.key -out {file}.csr -subj {subject}"))?;
    openssl(
        pki,
        &format!(
            "x509 -req -in {file}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days {DAYS} -extfile {file}.ext -out {file}.crt"
        ),
    )
}

/// Files are named relative to the directory; no word has a blank.
fn openssl(pki: &Path, words: &str) -> Result<(), Failure> {
    let inside = format!("cd \"$0\" && exec openssl {words}");
    told("sh", ["-c".as_ref(), inside.as_ref(), pki.as_os_str()]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_is_who_kubernetes_expects() {
        let subjects: Vec<_> = parties().into_iter().map(|party| party.subject).collect();
        for subject in [
            "/CN=system:kube-controller-manager",
            "/CN=system:kube-scheduler",
            "/CN=system:kube-proxy",
            "/O=system:nodes/CN=system:node:node2",
        ] {
            assert!(subjects.iter().any(|one| one == subject), "{subject}: {subjects:?}");
        }
    }
}
