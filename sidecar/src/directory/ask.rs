//! Asking a directory again from a thread that may wait.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::{Directory, PeerTable};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Has the directory read its source again and gives the table that is there then; after `patience`, the one that is there
/// anyway. Blocks: not for asynchronous code, which awaits [`Directory::watch`] itself.
pub fn table_after_refresh(directory: &dyn Directory, patience: Duration) -> Arc<PeerTable> {
    let deadline = Instant::now() + patience;
    let mut watch = directory.watch();
    watch.mark_unchanged();
    directory.refresh();
    {
        let mut changed = pin!(watch.changed());
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        while changed.as_mut().poll(&mut context).is_pending() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
    }
    Arc::clone(&watch.borrow())
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::super::{MemoryDirectory, PublishedOffer};
    use super::*;

    /// Directory whose table is read only when somebody asks, on another thread and a while later.
    struct Late(MemoryDirectory);

    impl Directory for Late {
        fn publish(&self, offer: PublishedOffer) {
            self.0.publish(offer);
        }

        fn watch(&self) -> watch::Receiver<Arc<PeerTable>> {
            self.0.watch()
        }

        fn refresh(&self) {
            let late = self.0.clone();
            std::thread::spawn(move || {
                std::thread::yield_now();
                let entry = crate::directory::PeerEntry {
                    name: "late".parse().unwrap(),
                    addresses: Vec::new(),
                    fingerprints: vec![tensorlane_proto::identity::Fingerprint([1; 32])],
                    node: None,
                    awaits_ip: false,
                };
                late.set(vec![entry]).unwrap();
            });
        }
    }

    /// Directory that never answers.
    struct Silent(MemoryDirectory);

    impl Directory for Silent {
        fn publish(&self, _offer: PublishedOffer) {}

        fn watch(&self) -> watch::Receiver<Arc<PeerTable>> {
            self.0.watch()
        }

        fn refresh(&self) {}
    }

    #[test]
    fn it_waits_for_the_table_that_the_refresh_brings() {
        let late = Late(MemoryDirectory::new());
        assert_eq!(table_after_refresh(&late, Duration::from_secs(20)).len(), 1);
    }

    #[test]
    fn it_waits_no_longer_than_its_patience() {
        let silent = Silent(MemoryDirectory::new());
        assert!(table_after_refresh(&silent, Duration::from_millis(10)).is_empty());
    }
}
