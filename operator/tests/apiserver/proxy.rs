//! A TCP proxy in front of the API server, which can be closed for a while.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Dropping it ends what it carries.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    open: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// Carries every connection to this address.
    pub(crate) async fn start(to: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, opened) = watch::channel(true);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, to, opened));
        Proxy { address, open, _accepting: accepting }
    }

    /// Ends what is carried; whoever comes after that waits.
    pub(crate) fn close(&self) {
        self.open.send_replace(false);
    }

    /// Carries whoever waits, and whoever comes.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, open: watch::Receiver<bool>) {
    let mut carried = JoinSet::new();
    loop {
        let (near, _) = listener.accept().await.unwrap();
        carried.spawn(carry(near, to, open.clone()));
        while carried.try_join_next().is_some() {}
    }
}

async fn carry(mut near: TcpStream, to: SocketAddr, mut open: watch::Receiver<bool>) {
    if open.wait_for(|open| *open).await.is_err() {
        return;
    }
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = open.wait_for(|open| !*open) => {}
    }
}
