//! A real API server on loopback: etcd and kube-apiserver as processes of this test, and nothing else of a cluster.
//!
//! Services get addresses of 127.53.0.0/24, so that the API server can call a webhook on this machine by its Service.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kube::config::AuthInfo;
use kube::{Client, Config};
use tempfile::TempDir;

/// How long a start may take on a loaded machine.
const START: Duration = Duration::from_secs(180);

/// What is needed of a cluster.
const PROGRAMS: [&str; 2] = ["etcd", "kube-apiserver"];

/// The folder with etcd and kube-apiserver; none where nobody has built them.
pub(crate) fn programs() -> Option<PathBuf> {
    let named = std::env::var_os("TENSORLANE_CLUSTER_BIN").map(PathBuf::from);
    let built = Path::new(env!("CARGO_BIN_EXE_tensorlane-operator"))
        .parent()
        .and_then(Path::parent)
        .map(|target| target.join("cluster/bin"));
    chosen(named, built)
}

/// A folder that somebody names has to have everything: a test that skips itself there would prove nothing.
fn chosen(named: Option<PathBuf>, built: Option<PathBuf>) -> Option<PathBuf> {
    let missing = |folder: &Path| PROGRAMS.into_iter().filter(|name| !folder.join(name).is_file()).collect();
    let Some(named) = named else {
        return built.filter(|folder| Vec::<&str>::is_empty(&missing(folder)));
    };
    let missing: Vec<&str> = missing(&named);
    assert!(
        missing.is_empty(),
        "TENSORLANE_CLUSTER_BIN is {}, which has no {}: build it there, or unset the variable to skip this test",
        named.display(),
        missing.join(" and no ")
    );
    Some(named)
}

#[test]
#[should_panic(expected = "which has no kube-apiserver: build it there")]
fn a_named_folder_without_a_program_is_a_mistake() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("etcd"), "").unwrap();
    chosen(Some(folder.path().to_owned()), None);
}

#[test]
fn where_nothing_is_named_and_nothing_is_built_there_is_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(chosen(None, Some(folder.path().to_owned())), None);
    for name in PROGRAMS {
        fs::write(folder.path().join(name), "").unwrap();
    }
    assert_eq!(chosen(None, Some(folder.path().to_owned())), Some(folder.path().to_owned()));
}

/// The processes, and what they need.
pub(crate) struct Server {
    // Ended before the folder goes.
    processes: Vec<Process>,
    folder: TempDir,
    port: u16,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The log of what whoever is watched has asked for; each line is there before its answer.
pub(crate) const AUDIT: &str = "audit.log";

pub(crate) const ADMIN: &str = "admin-of-this-test";

impl Server {
    /// Starts one, or says on standard error that the test is skipped.
    pub(crate) async fn start() -> Option<Server> {
        let Some(programs) = programs() else {
            eprintln!(
                "skipped: TENSORLANE_CLUSTER_BIN is not set, and target/cluster/bin has not etcd and kube-apiserver"
            );
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server { processes: Vec::new(), folder, port: free_port() };
        server.etcd_and_apiserver(&programs);
        server.wait_until_ready().await;
        Some(server)
    }

    fn etcd_and_apiserver(&mut self, programs: &Path) {
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(self.path("sa.key"), key.serialize_pem()).unwrap();
        fs::write(self.path("sa.pub"), key.public_key_pem()).unwrap();
        fs::write(self.path("tokens.csv"), format!("{ADMIN},admin,admin,\"system:masters\"\n")).unwrap();
        fs::write(self.path("audit.json"), crate::permissions::policy().to_string()).unwrap();
        let (clients, peers) = (local(free_port()), local(free_port()));
        let etcd = [
            format!("--data-dir={}", self.path("etcd").display()),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        self.spawn(&programs.join("etcd"), &etcd, "etcd.log");
        let apiserver = [
            format!("--etcd-servers={clients}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--secure-port={}", self.port),
            format!("--cert-dir={}", self.path("certs").display()),
            "--service-cluster-ip-range=127.53.0.0/24".to_owned(),
            format!("--token-auth-file={}", self.path("tokens.csv").display()),
            "--authorization-mode=RBAC".to_owned(),
            // Some platforms have it (OpenShift); it asks for more than RBAC alone.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", self.path("sa.pub").display()),
            format!("--service-account-signing-key-file={}", self.path("sa.key").display()),
            format!("--audit-policy-file={}", self.path("audit.json").display()),
            format!("--audit-log-path={}", self.path(AUDIT).display()),
        ];
        self.spawn(&programs.join("kube-apiserver"), &apiserver, "apiserver.log");
    }

    /// Starts a program that ends with this server, its output in a file.
    pub(crate) fn spawn(&mut self, program: &Path, arguments: &[String], log: &str) {
        let log = fs::File::create(self.path(log)).unwrap();
        let child = Command::new(program)
            .args(arguments)
            .env("KUBECONFIG", self.path("kubeconfig"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.processes.push(Process(child));
    }

    async fn wait_until_ready(&mut self) {
        let client = self.admin();
        let deadline = Instant::now() + START;
        while client.request_text(http_get("/readyz")).await.is_err() {
            let ended = self.processes.iter_mut().any(|process| process.0.try_wait().unwrap().is_some());
            assert!(!ended && Instant::now() < deadline, "no API server:\n{}", self.log("apiserver.log"));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// What a program has written.
    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A client that may do everything.
    pub(crate) fn admin(&self) -> Client {
        self.client(ADMIN)
    }

    /// A client with this token.
    pub(crate) fn client(&self, token: &str) -> Client {
        let mut config = Config::new(self.url().parse().unwrap());
        // The server has made its certificate itself, and is ours, on loopback.
        config.accept_invalid_certs = true;
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        Client::try_from(config).unwrap()
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// A kubeconfig for programs that are started here.
    pub(crate) fn write_kubeconfig(&self, token: &str) {
        self.kubeconfig(token, "kubeconfig");
    }

    /// The same in a file of that name, for whoever is somebody else.
    pub(crate) fn kubeconfig(&self, token: &str, name: &str) -> PathBuf {
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url(), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(self.path(name), config.to_string()).unwrap();
        self.path(name)
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn local(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}
