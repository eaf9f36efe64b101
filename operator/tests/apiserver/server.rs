//! A real API server on loopback: etcd and kube-apiserver as processes of this test, on request a collector of garbage, and
//! nothing else of a cluster.
//!
//! Services get addresses of 127.53.0.0/24, so that the API server can call a webhook on this machine by its Service.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use kube::config::AuthInfo;
use kube::{Client, Config};
use tempfile::TempDir;

/// Longest time that a start may take on a loaded machine.
const START: Duration = Duration::from_secs(180);

/// Programs that are needed of a cluster.
const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kube-controller-manager"];

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
        "TENSORLANE_CLUSTER_BIN is {}, which has no {}: build it there, or leave this test out",
        named.display(),
        missing.join(" and no ")
    );
    Some(named)
}

#[test]
#[should_panic(expected = "which has no kube-apiserver and no kube-controller-manager: build it there")]
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
    /// etcd and the API server.
    storing: Vec<Process>,
    /// Programs that call them.
    processes: Vec<Process>,
    folder: TempDir,
    port: u16,
    /// Arguments of etcd, and of the API server.
    arguments: [Vec<String>; 2],
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
    /// Starts one. Whoever has not the programs leaves such tests out: each ignores itself unless it is asked for.
    pub(crate) async fn start() -> Server {
        Server::start_with(&[]).await
    }

    /// Starts one with these arguments of the API server besides.
    pub(crate) async fn start_with(more: &[&str]) -> Server {
        let Some(programs) = programs() else {
            panic!("target/cluster/bin has not all of {PROGRAMS:?}: `cargo xtask cluster up` builds them");
        };
        let folder = tempfile::tempdir().unwrap();
        let (storing, processes) = (Vec::new(), Vec::new());
        let mut server =
            Server { storing, processes, folder, port: free_port(), arguments: Default::default() };
        server.prepare(more);
        server.begin(&programs);
        server.wait_until_ready().await;
        server
    }

    /// Writes what both read.
    fn prepare(&mut self, more: &[&str]) {
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
        let more: Vec<String> = more.iter().map(|&argument| argument.to_owned()).collect();
        self.arguments = [etcd.into(), [&apiserver[..], &more].concat()];
    }

    fn begin(&mut self, programs: &Path) {
        let [etcd, apiserver] = self.arguments.clone();
        let callers = self.processes.len();
        self.spawn(&programs.join("etcd"), &etcd, "etcd.log");
        self.spawn(&programs.join("kube-apiserver"), &apiserver, "apiserver.log");
        self.storing = self.processes.split_off(callers);
    }

    /// Ends both, copies all that is stored from one folder into another one's place, and starts them again. Whoever calls them goes on.
    async fn copy_while_ended(&mut self, from: &str, to: &str) {
        self.storing.clear();
        let (from, to) = (self.path(from), self.path(to));
        let _ = fs::remove_dir_all(&to);
        let copied = Command::new("cp").arg("-r").args([&from, &to]).status().unwrap();
        assert!(copied.success());
        let Some(programs) = programs() else { panic!("they were there when the server was started") };
        self.begin(&programs);
        self.wait_until_ready().await;
    }

    /// Makes a backup of all that is stored.
    pub(crate) async fn back_up(&mut self) {
        self.copy_while_ended("etcd", "backup").await;
    }

    /// Puts the backup into the place of all that is stored.
    pub(crate) async fn restore(&mut self) {
        self.copy_while_ended("backup", "etcd").await;
    }

    /// Starts a program that ends with this server, its output in a file; gives the number of its process.
    pub(crate) fn spawn(&mut self, program: &Path, arguments: &[String], log: &str) -> u32 {
        let log = fs::File::create(self.path(log)).unwrap();
        let child = Command::new(program)
            .args(arguments)
            .env("KUBECONFIG", self.path("kubeconfig"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let number = child.id();
        self.processes.push(Process(child));
        number
    }

    /// Starts to delete what has lost all of its owners, and nothing else that a cluster does.
    pub(crate) fn collect_garbage(&mut self) {
        self.control("garbage-collector-controller");
    }

    /// Starts to gather the rules of roles that are made of others, and nothing else that a cluster does.
    pub(crate) fn aggregate_roles(&mut self) {
        self.control("clusterrole-aggregation-controller");
    }

    fn control(&mut self, controller: &str) {
        let Some(programs) = programs() else { panic!("they were there when the server was started") };
        let kubeconfig = self.kubeconfig(ADMIN, "controller.kubeconfig");
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--controllers={controller}"),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        self.spawn(&programs.join("kube-controller-manager"), &arguments, "controller.log");
    }

    async fn wait_until_ready(&mut self) {
        let client = self.admin();
        let deadline = Instant::now() + START;
        while client.request_text(http_get("/readyz")).await.is_err() {
            let ended = self.storing.iter_mut().any(|process| process.0.try_wait().unwrap().is_some());
            assert!(
                !ended && Instant::now() < deadline,
                "no API server:\n{}{}",
                self.log("etcd.log"),
                self.log("apiserver.log")
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Text that a program has written.
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
        Client::try_from(self.config(token)).unwrap()
    }

    /// A client with this token, which does not try again by itself what is refused for now.
    pub(crate) fn client_that_tries_once(&self, token: &str) -> Client {
        let mut config = self.config(token);
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    fn config(&self, token: &str) -> Config {
        let mut config = Config::new(self.url().parse().unwrap());
        // The server has made its certificate itself, and is ours, on loopback.
        config.accept_invalid_certs = true;
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        config
    }

    /// Address at which the API server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// A kubeconfig for programs that are started here.
    pub(crate) fn write_kubeconfig(&self, token: &str) {
        self.kubeconfig(token, "kubeconfig");
    }

    /// A kubeconfig in a file of that name, for whoever is somebody else.
    pub(crate) fn kubeconfig(&self, token: &str, name: &str) -> PathBuf {
        self.kubeconfig_of(&serde_json::json!({"token": token}), name)
    }

    /// Kubeconfig with the token in a file, which is read again as that of a pod is; gives that file, too.
    pub(crate) fn kubeconfig_of_file(&self, token: &str, name: &str) -> [PathBuf; 2] {
        let file = self.path(&format!("{name}.token"));
        fs::write(&file, token).unwrap();
        [self.kubeconfig_of(&serde_json::json!({"tokenFile": file}), name), file]
    }

    fn kubeconfig_of(&self, user: &serde_json::Value, name: &str) -> PathBuf {
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url(), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(self.path(name), config.to_string()).unwrap();
        self.path(name)
    }
}

/// A port that nobody has now. Of those below the ones that the kernel gives to connections, one of which could take it before the
/// program does that is told of it; and each once.
pub(crate) fn free_port() -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Other processes of these tests mostly begin elsewhere.
    let first = 12_000 + u16::try_from(std::process::id() % 64).unwrap() * 256;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..256)
        .map(|_| first + GIVEN.fetch_add(1, Ordering::Relaxed) % 256)
        .find(is_free)
        .expect("one of 256 ports is free")
}

fn local(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}
