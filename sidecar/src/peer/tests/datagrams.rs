//! A proxy for datagrams on loopback: loses them, flips bits in them, holds them back, ends at a byte, and sends them from
//! another port.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;

use super::meter::{Meter, Wire};
use super::proxy::Hurt;

/// Between two looks whether it is over.
const LOOK: Duration = Duration::from_millis(5);

/// Controls of what is done with what goes towards the dialing side, and counted in both directions; shared with the
/// proxy of connections.
#[derive(Clone)]
pub(super) struct Taps {
    pub(super) back: Arc<Wire>,
    pub(super) out: Arc<Wire>,
    pub(super) flip_at: Arc<AtomicU64>,
    pub(super) hold: Arc<AtomicBool>,
    pub(super) stall: Arc<AtomicBool>,
    pub(super) hurt_at: Arc<Mutex<Option<(u64, Hurt)>>>,
}

/// Carries datagrams between whoever sends them to it and `to`.
pub(crate) struct Datagrams {
    near: UdpSocket,
    /// Socket that `to` sees them come from.
    far: Mutex<Arc<UdpSocket>>,
    to: SocketAddr,
    client: Mutex<Option<SocketAddr>>,
    /// Carries nothing.
    pub(crate) mute: AtomicBool,
    over: AtomicBool,
    taps: Taps,
}

impl Datagrams {
    /// At this address, until [`Datagrams::end`].
    pub(super) fn start(
        at: SocketAddr,
        to: SocketAddr,
        taps: Taps,
    ) -> io::Result<(Arc<Self>, [JoinHandle<()>; 2])> {
        let near = UdpSocket::bind(at)?;
        near.set_read_timeout(Some(LOOK))?;
        SockRef::from(&near).set_recv_buffer_size(4 << 20)?;
        let (client, mute, over) = (Mutex::new(None), AtomicBool::new(false), AtomicBool::new(false));
        let far = Mutex::new(Arc::new(far(to)?));
        let this = Arc::new(Self { near, far, to, client, mute, over, taps });
        let (out, back) = (Arc::clone(&this), Arc::clone(&this));
        Ok((
            this,
            [std::thread::spawn(move || out.carry_out()), std::thread::spawn(move || back.carry_back())],
        ))
    }

    /// From now on `to` sees them come from another port, as after a NAT has forgotten the flow.
    pub(crate) fn rebind(&self) {
        *self.far.lock() = Arc::new(far(self.to).unwrap());
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    fn is_lost(&self) -> bool {
        self.mute.load(Ordering::SeqCst) || self.taps.hold.load(Ordering::SeqCst)
    }

    fn carry_out(&self) {
        let mut room = vec![0; 64 << 10];
        while !self.over.load(Ordering::SeqCst) {
            let Ok((bytes, from)) = self.near.recv_from(&mut room) else { continue };
            *self.client.lock() = Some(from);
            if self.is_lost() {
                continue;
            }
            let (_, left) = self.fail(&self.taps.out, bytes);
            let far = Arc::clone(&self.far.lock());
            // Lost where the other end is gone.
            let _ = far.send(&room[..left]);
        }
    }

    fn carry_back(&self) {
        let mut room = vec![0; 64 << 10];
        while !self.over.load(Ordering::SeqCst) {
            let far = Arc::clone(&self.far.lock());
            let Ok(bytes) = far.recv(&mut room) else { continue };
            while self.taps.stall.load(Ordering::SeqCst) && !self.over.load(Ordering::SeqCst) {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            if self.is_lost() {
                continue;
            }
            let carried = self.tap(&mut room[..bytes]);
            if let Some(client) = *self.client.lock() {
                for datagram in carried {
                    let _ = self.near.send_to(&datagram, client);
                }
            }
        }
    }

    /// Counts a datagram: how many bytes came before it, and how many of its own come through. Where a connection would be cut,
    /// the flow goes on from another port; where datagrams alone are to end, nothing comes after this one.
    fn fail(&self, wire: &Wire, bytes: usize) -> (u64, usize) {
        let take = |meter: &Meter| meter.take(bytes as u64, false);
        let (before, moves) = take(&wire.all);
        if moves.is_some() {
            self.rebind();
        }
        let ends = take(&wire.datagrams).1;
        if ends.is_some() {
            self.mute.store(true, Ordering::SeqCst);
        }
        (before, ends.map_or(bytes, |left| left as usize))
    }

    /// Flips a bit or does something else where it is time. What is carried on.
    fn tap(&self, bytes: &mut [u8]) -> Vec<Vec<u8>> {
        let (before, left) = self.fail(&self.taps.back, bytes.len());
        let at = self.taps.flip_at.load(Ordering::SeqCst);
        if at >= before && at - before < bytes.len() as u64 {
            bytes[(at - before) as usize] ^= 4;
        }
        if left < bytes.len() {
            return vec![bytes[..left].to_vec()];
        }
        let mut hurting = self.taps.hurt_at.lock();
        match *hurting {
            Some((at, hurt)) if at < before + bytes.len() as u64 => {
                *hurting = None;
                match hurt {
                    Hurt::Repeated => vec![bytes.to_vec(), bytes.to_vec()],
                    Hurt::Reordered | Hurt::Overlapping => vec![hurt.apply(bytes)],
                }
            }
            _ => vec![bytes.to_vec()],
        }
    }
}

fn far(to: SocketAddr) -> io::Result<UdpSocket> {
    let far = UdpSocket::bind("127.0.0.1:0")?;
    far.connect(to)?;
    far.set_read_timeout(Some(LOOK))?;
    SockRef::from(&far).set_recv_buffer_size(4 << 20)?;
    Ok(far)
}
