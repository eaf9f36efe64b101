//! An API server that answers what it was told, over HTTP on loopback, and nothing else.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use tempfile::TempDir;

type Answers = Arc<Mutex<BTreeMap<String, Value>>>;

/// Server that ends when it is dropped.
pub(crate) struct Served {
    folder: TempDir,
    address: SocketAddr,
    answers: Answers,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A list of objects.
pub(crate) fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})
}

/// Refusal to read.
pub(crate) fn forbidden(what: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": format!("{what} is forbidden: User \"x\" cannot list it"), "metadata": {},
    })
}

impl Served {
    pub(crate) fn start() -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Answers::default();
        let folder = tempfile::tempdir().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "users": [{"name": "x", "user": {}}],
        });
        std::fs::write(folder.path().join("kubeconfig"), config.to_string()).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let (known, over) = (Arc::clone(&answers), Arc::clone(&ended));
        let thread = std::thread::spawn(move || serve(&listener, &known, &over));
        Served { folder, address, answers, ended, thread: Some(thread) }
    }

    /// From now on this is what is there.
    pub(crate) fn has(&self, path: &str, object: Value) {
        self.answers.lock().unwrap().insert(path.to_owned(), object);
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Path of a kubeconfig that names an address at which nobody listens.
    pub(crate) fn kubeconfig_of_nobody(&self) -> String {
        let text = std::fs::read_to_string(self.kubeconfig()).unwrap();
        let file = self.folder.path().join("of-nobody");
        // Port 1 is nobody's, and a connection to it is refused at once.
        std::fs::write(&file, text.replace(&self.address.to_string(), "127.0.0.1:1")).unwrap();
        file.display().to_string()
    }

    /// The command, about this server.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_kubectl-tensorlane")));
        command.args(line.split(' ')).env_clear().env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// Text that one call prints, which must end with this code.
    pub(crate) fn says(&self, line: &str, code: i32) -> String {
        let output = self.command(line).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {text}");
        text
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // So that it looks. A connection on which nothing is said ends nothing by itself.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves one request a connection, a thread each: a client may open one more than it uses.
fn serve(listener: &TcpListener, answers: &Answers, ended: &AtomicBool) {
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            if ended.load(Ordering::Acquire) {
                return;
            }
            scope.spawn(move || answer(&stream, answers));
        }
    });
}

/// Answers the request of a connection, if there is one.
fn answer(stream: &TcpStream, answers: &Answers) {
    let Some(first) = request(&mut BufReader::new(stream)) else { return };
    let target = first.split(' ').nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let found = answers.lock().unwrap().get(path).cloned().map(|object| selected(object, query));
    let missing = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "not here", "metadata": {},
    });
    let body = found.unwrap_or(missing);
    // What is refused is a Status with a code.
    let status = body["code"].as_u64().unwrap_or(200);
    let body = body.to_string();
    let head = "Content-Type: application/json\r\nConnection: close";
    // Whoever asked may have gone.
    let _ =
        write!(&*stream, "HTTP/1.1 {status} Told\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
}

/// Of a list what a selector of the name leaves.
fn selected(mut object: Value, query: &str) -> Value {
    let selectors = query.split('&').filter_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D"));
    for name in selectors {
        if let Some(items) = object["items"].as_array_mut() {
            items.retain(|item| item["metadata"]["name"] == name);
        }
    }
    object
}

/// The first line of a request, which is read to the end: a connection that is closed on what nobody read is reset.
fn request(from: &mut impl BufRead) -> Option<String> {
    let mut lines = from.by_ref().lines().map_while(Result::ok);
    let first = lines.next()?;
    let length = |line: String| line.to_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok();
    let bytes = lines.take_while(|line| !line.is_empty()).filter_map(length).sum();
    let mut body = vec![0; bytes];
    from.read_exact(&mut body).ok()?;
    Some(first)
}
