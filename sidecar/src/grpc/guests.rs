//! Connections to the gRPC sockets, which whoever has the socket may open: how many there are. Knows no HTTP/2, only whether
//! anything was ever said.
//!
//! ```text
//!   accepted --> silent --first byte--> heard --> closed by either end
//!                   '-- there is no room, and it is the oldest of these: shown out, it reads the end of the connection
//! ```
//!
//! Whoever means well speaks at once, so those who do not make room first. Where all have spoken the new one is turned away: a
//! call that is under way is not cut for another one.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Connections beside one for each session: calls without a session, probes, and whoever has just come. Each takes a descriptor and a
/// few KiB while nothing is asked.
const BESIDE_SESSIONS: usize = 64;

/// All that are open, of both listeners.
#[derive(Debug)]
pub(super) struct Guests {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// By the order in which they came.
    seats: BTreeMap<u64, Arc<Seat>>,
    next: u64,
    /// One was turned away since there was room last, and this was told.
    told: bool,
}

/// The place of one connection.
#[derive(Debug)]
struct Seat(Mutex<Standing>);

#[derive(Debug)]
enum Standing {
    /// It has said nothing; who is to be woken when it has to go.
    Silent(Option<Waker>),
    Heard,
    /// It was silent, and goes.
    ShownOut,
}

/// A connection that has a place among them until it is dropped.
#[derive(Debug)]
pub(super) struct Guest<S> {
    io: S,
    seat: Arc<Seat>,
    id: u64,
    guests: Arc<Guests>,
    /// Spares the look at the seat.
    heard: bool,
}

// === impl Guests ===

impl Guests {
    /// For so many sessions.
    pub(super) fn new(sessions_max: usize) -> Arc<Self> {
        let most = sessions_max.saturating_add(BESIDE_SESSIONS);
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// Lets a connection in; none where there is no room for it, upon which it is closed.
    pub(super) fn admit<S>(self: &Arc<Self>, io: S) -> Option<Guest<S>> {
        let mut open = self.open.lock();
        // Those who go are there until they have read that they do.
        if open.seats.len() >= self.most.saturating_mul(2) || !open.make_room(self.most) {
            if !std::mem::replace(&mut open.told, true) {
                let most = self.most;
                tracing::warn!(most, "no more gRPC connections are taken: limits.sessions and 64 are open");
            }
            return None;
        }
        open.told = false;
        open.next += 1;
        let (id, seat) = (open.next, Arc::new(Seat(Mutex::new(Standing::Silent(None)))));
        open.seats.insert(id, Arc::clone(&seat));
        Some(Guest { io, seat, id, guests: Arc::clone(self), heard: false })
    }
}

// === impl Open ===

impl Open {
    /// Whether fewer than `most` stay, now that the oldest silent one has been shown out where there were as many.
    fn make_room(&self, most: usize) -> bool {
        let stays = self.seats.values().filter(|seat| !seat.goes()).count();
        stays < most || self.seats.values().any(|seat| seat.show_out())
    }
}

// === impl Seat ===

impl Seat {
    fn goes(&self) -> bool {
        matches!(*self.0.lock(), Standing::ShownOut)
    }

    /// Whether it was silent, so that it goes now.
    fn show_out(&self) -> bool {
        let mut standing = self.0.lock();
        let Standing::Silent(waker) = &mut *standing else { return false };
        let waker = waker.take();
        *standing = Standing::ShownOut;
        drop(standing);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Whether it goes; else `waker` is woken when it has to.
    fn goes_or_wakes(&self, waker: &Waker) -> bool {
        let mut standing = self.0.lock();
        match &mut *standing {
            Standing::Silent(waiting) => *waiting = Some(waker.clone()),
            Standing::Heard => {}
            Standing::ShownOut => return true,
        }
        false
    }

    /// It has said something. Whether it may stay.
    fn hear(&self) -> bool {
        let mut standing = self.0.lock();
        if matches!(*standing, Standing::ShownOut) {
            return false;
        }
        *standing = Standing::Heard;
        true
    }
}

// === impl Guest ===

impl<S> Drop for Guest<S> {
    fn drop(&mut self) {
        self.guests.open.lock().seats.remove(&self.id);
    }
}

impl<S: Connected> Connected for Guest<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guest<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.heard {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        if self.seat.goes_or_wakes(cx.waker()) {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.heard = self.seat.hear();
            if !self.heard {
                // Too late by a moment: as if it had not been read.
                buf.set_filled(before);
                return Poll::Ready(Ok(()));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guest<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn guests(most: usize) -> Arc<Guests> {
        Arc::new(Guests { most, open: Mutex::default() })
    }

    /// A connection, and its other end.
    fn one(guests: &Arc<Guests>) -> Option<(Guest<DuplexStream>, DuplexStream)> {
        let (here, there) = duplex(64);
        Some((guests.admit(here)?, there))
    }

    async fn says_something((guest, there): &mut (Guest<DuplexStream>, DuplexStream)) {
        there.write_all(b"x").await.unwrap();
        assert_eq!(guest.read_u8().await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn the_oldest_that_has_said_nothing_makes_room_and_reads_the_end() {
        let guests = guests(3);
        let [mut heard, mut oldest, mut other] = [(); 3].map(|()| one(&guests).unwrap());
        says_something(&mut heard).await;
        let (mut guest, _there) = (oldest.0, &mut oldest.1);
        let waits = tokio::spawn(async move { guest.read(&mut [0; 8]).await.map(|read| (read, guest)) });
        tokio::task::yield_now().await;
        let mut new = one(&guests).unwrap();
        let (read, _guest) = waits.await.unwrap().unwrap();
        assert_eq!(read, 0, "it was woken, and is at its end");
        for stays in [&mut heard, &mut other, &mut new] {
            says_something(stays).await;
        }
    }

    #[tokio::test]
    async fn nobody_who_has_spoken_is_cut_and_a_place_that_is_given_back_is_free() {
        let guests = guests(2);
        let mut both = [(); 2].map(|()| one(&guests).unwrap());
        for guest in &mut both {
            says_something(guest).await;
        }
        assert!(one(&guests).is_none() && one(&guests).is_none());
        let [_stays, goes] = both;
        drop(goes);
        assert!(one(&guests).is_some());
    }

    #[tokio::test]
    async fn what_comes_after_it_was_shown_out_is_not_read() {
        let guests = guests(1);
        let (mut guest, mut there) = one(&guests).unwrap();
        there.write_all(b"late").await.unwrap();
        let _new = one(&guests).unwrap();
        assert_eq!(guest.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn those_who_go_are_bounded_too() {
        let guests = guests(2);
        let all: Vec<_> = std::iter::from_fn(|| one(&guests)).collect();
        assert_eq!(all.len(), 4, "two stay, and two have not noticed yet that they go");
    }
}
