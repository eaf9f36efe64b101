//! The channels that a connection writes, and what the sidecar says of their readers.
//!
//! A reader comes or goes by a frame on the socket, whichever thread reads it. The channel has its number before it is asked for,
//! so that a reader that comes before the answer finds it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use tensorlane_memory::ring::{First, RingReaders};
use tensorlane_proto::generated as v1;

use super::place;
use crate::segments::Segments;

/// Readers that came before their channel's answer, at most; a sidecar attaches no more to one channel.
const EARLY_MAX: usize = 2_048;

/// Channels of one connection by the numbers that it gave them.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    entries: Mutex<HashMap<u64, Entry>>,
    last: AtomicU64,
    /// Frames that the event pipe spoke of, and those that were read from the socket.
    told: AtomicU64,
    seen: AtomicU64,
}

#[derive(Debug)]
enum Entry {
    /// Asked for; readers that came meanwhile.
    Coming(Vec<v1::ChannelReader>),
    Open(Arc<Attached>),
}

/// Readers of one channel, with who they are.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) ring: Arc<RingReaders>,
    names: Mutex<HashMap<u64, String>>,
    /// Held while the number of readers is looked at to wait for another one.
    pub(crate) turn: Mutex<()>,
    /// Told when a reader came.
    pub(crate) came: Condvar,
}

// === impl Attached ===

impl Attached {
    pub(crate) fn new(ring: Arc<RingReaders>) -> Arc<Self> {
        Arc::new(Self { ring, names: Mutex::default(), turn: Mutex::new(()), came: Condvar::new() })
    }

    /// The client of a reader; empty if it is unknown.
    pub(crate) fn client_of(&self, reader: u64) -> String {
        self.names.lock().get(&reader).cloned().unwrap_or_default()
    }

    /// A reader comes or goes; what its writer says to that.
    fn hear(&self, segments: &Segments, told: &v1::ChannelReader) -> v1::ChannelReady {
        let reader = told.reader;
        if told.gone {
            self.ring.detach(reader);
            self.names.lock().remove(&reader);
            return v1::ChannelReady { reader, gone: true, ..Default::default() };
        }
        match self.attach(segments, told) {
            Ok((first, missed)) => {
                self.names.lock().insert(reader, told.client.clone());
                // Whoever has looked and not slept yet holds it.
                drop(self.turn.lock());
                self.came.notify_all();
                v1::ChannelReady { reader, first, missed, ..Default::default() }
            }
            Err(error) => v1::ChannelReady { reader, error, ..Default::default() },
        }
    }

    fn attach(&self, segments: &Segments, told: &v1::ChannelReader) -> Result<(u64, u64), String> {
        let (cursor, _) = place(segments, told.cursor.as_ref()).map_err(|error| error.to_string())?;
        let from = match told.from() {
            v1::ChannelFrom::Next => First::Next,
            v1::ChannelFrom::Oldest => First::Oldest,
        };
        let first = self.ring.attach(told.reader, cursor, from).map_err(|error| error.to_string())?;
        let missed = if from == First::Oldest { first } else { 0 };
        Ok((first, missed))
    }
}

// === impl Channels ===

impl Channels {
    /// A number for a channel that is about to be asked for.
    pub(crate) fn number(&self) -> u64 {
        let key = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.entries.lock().insert(key, Entry::Coming(Vec::new()));
        key
    }

    /// The channel is there. Answers to those who came before it.
    pub(crate) fn open(
        &self,
        key: u64,
        attached: &Arc<Attached>,
        segments: &Segments,
    ) -> Vec<v1::ChannelReady> {
        // All of it under the lock: the end of a reader is not heard before its begin.
        let mut entries = self.entries.lock();
        match entries.insert(key, Entry::Open(Arc::clone(attached))) {
            Some(Entry::Coming(early)) => early.iter().map(|told| attached.hear(segments, told)).collect(),
            _ => Vec::new(),
        }
    }

    /// The channel has ended, or was never had.
    pub(crate) fn close(&self, key: u64) {
        self.entries.lock().remove(&key);
    }

    /// A reader comes or goes. The answer, unless its channel's is awaited.
    pub(crate) fn hear(&self, segments: &Segments, told: v1::ChannelReader) -> Option<v1::ChannelReady> {
        self.seen.fetch_add(1, Ordering::AcqRel);
        let attached = match self.entries.lock().get_mut(&told.key) {
            Some(Entry::Open(attached)) => Some(Arc::clone(attached)),
            Some(Entry::Coming(early)) if early.len() < EARLY_MAX => {
                early.push(told);
                return None;
            }
            _ => None,
        };
        let reader = told.reader;
        Some(match attached {
            Some(attached) => attached.hear(segments, &told),
            None if told.gone => v1::ChannelReady { reader, gone: true, ..Default::default() },
            None => {
                let error = "its writer has ended the channel".to_owned();
                v1::ChannelReady { reader, error, ..Default::default() }
            }
        })
    }

    /// So many frames were written to the socket, which somebody has to read for that. A word of it that was lost is made up by the next.
    pub(crate) fn awaits(&self, frames: u64) {
        self.told.fetch_max(frames, Ordering::AcqRel);
    }

    /// Returns whether a frame was announced that nobody has read yet.
    pub(crate) fn needs_a_reader(&self) -> bool {
        self.told.load(Ordering::Acquire) > self.seen.load(Ordering::Acquire)
    }
}
