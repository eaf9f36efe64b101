//! The network in front of the twin: one address that can be closed, which cuts what is open, and opened again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 128;

pub(super) struct Gate {
    pub(super) address: SocketAddr,
    /// Bound and never listened on: nobody else gets the port while the gate is closed.
    _port: TcpSocket,
    behind: SocketAddr,
    open: Arc<AtomicUsize>,
    serving: Option<JoinHandle<()>>,
}

impl Gate {
    pub(super) async fn open_before(behind: SocketAddr) -> Gate {
        let port = bound(([127, 0, 0, 1], 0).into());
        let address = port.local_addr().unwrap();
        let mut gate = Gate { address, _port: port, behind, open: Arc::default(), serving: None };
        gate.open().await;
        gate
    }

    pub(super) async fn open(&mut self) {
        let listener = bound(self.address).listen(BACKLOG).unwrap();
        let (behind, open) = (self.behind, Arc::clone(&self.open));
        self.serving = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let counted = Counted::new(&open);
                connections.spawn(async move {
                    let _counted = counted;
                    let mut server = TcpStream::connect(behind).await.unwrap();
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        }));
    }

    /// From now on connections are refused; when this returns none is open.
    pub(super) async fn close(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
    }

    /// Connections that are open.
    pub(super) fn connections(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

/// A socket at an address, which only others of this kind may share.
fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(open: &Arc<AtomicUsize>) -> Counted {
        open.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(open))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
