//! Probes while others flood the admin port: whoever reaches the pod can, and a sidecar whose probes fail is started again,
//! without its tensors.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensorlane_tests::wait::SetOnDrop;
use tensorlane_tests::{Sidecar, SidecarOptions, http, until, where_the_machine_runs_on};

/// Time that a probe has: that of Kubernetes, which the webhook leaves as it is.
const PROBE: Duration = Duration::from_secs(1);
const PROBES: usize = 100;
/// Connections that a flood keeps open: more than the sidecar has places.
const KEPT: usize = 800;

/// Words that a flood says on each connection, and whether it reads the answer.
#[derive(Debug, Clone, Copy)]
struct Flood {
    says: &'static str,
    reads: bool,
}

const SILENT: Flood = Flood { says: "", reads: false };
const HALF: Flood = Flood { says: "GET /livez HTTP/1.1\r\nHost: x\r\n", reads: false };
const UNREAD: Flood = Flood { says: "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", reads: false };
const WHOLE: Flood =
    Flood { says: "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", reads: true };

impl Flood {
    /// Opens connections until it is over; `opened` counts them.
    fn run(self, address: SocketAddr, opened: &AtomicUsize, over: &AtomicBool) {
        let mut kept = VecDeque::new();
        while !over.load(Ordering::Relaxed) {
            let Ok(mut stream) = TcpStream::connect(address) else { continue };
            // Reset when it is dropped: a port would be kept for a minute.
            set_socket_linger(&stream, Some(Duration::ZERO)).expect("an option of the socket");
            opened.fetch_add(1, Ordering::Relaxed);
            // It may be closed by now, which is the sidecar's right.
            let said = stream.write_all(self.says.as_bytes());
            if self.reads {
                let _ = said.and_then(|()| stream.read_to_end(&mut Vec::new()));
                continue;
            }
            kept.push_back(stream);
            if kept.len() > KEPT {
                kept.pop_front();
            }
        }
    }
}

/// Asks as a kubelet does. Returns the status, or what went wrong, and how long it took.
fn probe(address: SocketAddr) -> (Result<u16, ErrorKind>, Duration) {
    let began = Instant::now();
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, PROBE)?;
        stream.set_read_timeout(Some(PROBE))?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(ErrorKind::UnexpectedEof.into())
    };
    let status = ask().map_err(|error: std::io::Error| error.kind());
    (status, began.elapsed())
}

fn raise_descriptors() {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).expect("more descriptors");
}

#[test]
fn probes_are_answered_in_time_whatever_others_do_at_their_port() {
    where_the_machine_runs_on(|| {
        raise_descriptors();
        let sidecar = Sidecar::with(SidecarOptions::default().admin());
        let address = sidecar.admin();
        let floods: [&[Flood]; 5] = [&[SILENT], &[HALF], &[UNREAD], &[WHOLE], &[SILENT, HALF, UNREAD, WHOLE]];
        let mut wrong = Vec::new();
        for floods in floods {
            let (opened, over) = (AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                for flood in floods {
                    scope.spawn(|| flood.run(address, &opened, &over));
                }
                let _over = SetOnDrop(&over);
                until("the flood has taken what it can", || opened.load(Ordering::Relaxed) > 2 * KEPT);
                let (mut cut, mut late, mut slowest) = (0, vec![false], Duration::ZERO);
                for _ in 0..PROBES {
                    let (status, took) = probe(address);
                    late.push(took >= PROBE);
                    cut += usize::from(status != Ok(200) && took < PROBE);
                    slowest = slowest.max(took);
                }
                // The kernel may drop the first packet of a connection, which is sent again after a second. It is no place that is missing.
                let misses = late.iter().filter(|late| **late).count();
                let again = late.windows(2).any(|pair| pair == [true, true]);
                println!(
                    "{floods:?}: {cut} of {PROBES} probes cut, {misses} late, the slowest took {slowest:?}"
                );
                if cut > 0 || again {
                    wrong.push((floods, cut, misses));
                }
            });
        }
        assert!(wrong.is_empty(), "probes were cut, or late twice in a row: {wrong:?}");
        // What nobody reads has ended, and whoever scrapes is answered again.
        until("metrics are served", || http::get(address, "/metrics").0 == 200);
    });
}
