//! The network in front of the twin: one address that can be closed, which cuts what is open, and opened again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

pub(super) struct Gate {
    pub(super) address: SocketAddr,
    behind: SocketAddr,
    open: Arc<AtomicUsize>,
    serving: Option<JoinHandle<()>>,
}

impl Gate {
    pub(super) async fn open_before(behind: SocketAddr) -> Gate {
        let mut gate =
            Gate { address: ([127, 0, 0, 1], 0).into(), behind, open: Arc::default(), serving: None };
        gate.open().await;
        gate
    }

    pub(super) async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
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
