//! Messages beside everything else: each host writes a channel that the one before it reads, and a pipe to the next one. Whatever fails,
//! what is read is whole and in order, nothing comes twice, and a write that was done was read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tensorlane_client::channel::{ChannelReader, ChannelSpec, ChannelWriter, Read, ReadOptions, Timeout};
use tensorlane_client::pipe::{Allocation, ConnectOptions, Incoming, Message, Pipe, Tensor};
use tensorlane_client::{Client, Error};
use tensorlane_proto::{DType, Reason};
use tensorlane_tests::tensors::{dense, pattern};

/// Wait of a call, after which its thread looks whether it is to stop.
const BRIEF: Timeout = Timeout::After(Duration::from_millis(500));
/// Wait for what a fault may hold up.
const PATIENT: Timeout = Timeout::After(Duration::from_secs(3));
/// Wait for a channel or a listener that is not there.
const WAIT: Duration = Duration::from_millis(500);

/// Messages of all hosts together, and whether they come to an end.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) stop: AtomicBool,
    /// Messages of channels that were read.
    pub(crate) of_channels: AtomicU64,
    /// Writes to pipes that were done.
    pub(crate) written: AtomicU64,
    /// Messages of pipes that were read, those included of which it is not known.
    pub(crate) read: AtomicU64,
}

fn bytes_of(number: u64) -> Vec<u8> {
    pattern(number, 1 + (number * 7_919 % 50_000) as usize)
}

fn is_late(error: &Error) -> bool {
    matches!(error, Error::DeadlineExceeded { .. }) || error.reason() == Some(Reason::DeadlineExceeded)
}

/// Faults explain whatever ends a call, but for what is a mistake of ours.
#[track_caller]
fn assert_excused(error: &Error) {
    let is_ours = matches!(error, Error::Protocol(_) | Error::Forked | Error::InvalidArgument(_))
        || matches!(
            error.reason(),
            Some(
                Reason::Internal | Reason::MessageDamaged | Reason::ChecksumMismatch | Reason::LayoutMismatch
            )
        );
    assert!(!is_ours, "{error}");
}

impl Messages {
    fn goes_on(&self) -> bool {
        thread::park_timeout(Duration::from_millis(10));
        !self.stop.load(Ordering::Relaxed)
    }

    /// Writes a channel of the name `beat`, and another one whenever it is lost.
    pub(crate) fn write_channels(&self, client: &Client) {
        let spec = ChannelSpec::new("beat").slots(4).slot_bytes(64 << 10);
        while self.goes_on() {
            match client.channel_writer(&spec) {
                Ok(writer) => self.write_channel(writer),
                Err(error) => assert_excused(&error),
            }
        }
    }

    fn write_channel(&self, mut writer: ChannelWriter) {
        let mut number = 0;
        while self.goes_on() {
            match writer.write_bytes(&bytes_of(number), BRIEF) {
                Ok(written) => {
                    assert_eq!(written.sequence, number);
                    number += 1;
                }
                // Its reader is cut off, or its sidecar is stopped.
                Err(error) if error.reason() == Some(Reason::BlockedBy) => {}
                Err(error) => return assert_excused(&error),
            }
        }
    }

    /// Reads the channel of another host, and the next one whenever it ends.
    pub(crate) fn read_channels(&self, client: &Client, from: &str) {
        let options = ReadOptions::new().wait(WAIT);
        while self.goes_on() {
            match client.channel_reader(&format!("{from}/beat"), &options) {
                Ok(reader) => self.read_channel(reader),
                Err(error) => assert_excused(&error),
            }
        }
    }

    fn read_channel(&self, mut reader: ChannelReader) {
        let mut next = reader.attached().first;
        while self.goes_on() {
            match reader.read(BRIEF) {
                Ok(Read::Message(message)) => {
                    assert_eq!(message.sequence(), next, "none is missed, and none comes twice");
                    assert!(message.bytes().to_vec() == bytes_of(next), "message {next} is another one");
                    next += 1;
                    self.of_channels.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Read::End(_)) => return,
                Ok(other) => panic!("a message or an end, not {other:?}"),
                Err(error) if is_late(&error) => {}
                Err(error) => return assert_excused(&error),
            }
        }
    }

    /// Writes to the listener of another host, by another pipe whenever one is lost.
    pub(crate) fn write_pipes(&self, client: &Client, to: &str) {
        let options = ConnectOptions::new().wait(WAIT);
        let mut number = 0;
        while self.goes_on() {
            match client.connect_pipe(&format!("{to}/inbox"), &options) {
                Ok(pipe) => self.write_pipe(&pipe, &mut number),
                Err(error) => assert_excused(&error),
            }
        }
    }

    fn write_pipe(&self, pipe: &Pipe, number: &mut u64) {
        while self.goes_on() {
            *number += 1;
            let bytes = bytes_of(*number);
            let tensor = dense(DType::U8, &[bytes.len() as u64]);
            let message = Message::new().metadata(number.to_le_bytes()).tensor(tensor, bytes);
            match pipe.write(message, PATIENT) {
                Ok(message) => {
                    assert_eq!(message.parts(), (0, 1), "the message comes back");
                    self.written.fetch_add(1, Ordering::Relaxed);
                }
                Err(failed) => {
                    assert_eq!(failed.message.parts(), (0, 1), "the message comes back");
                    if !is_late(&failed.error) {
                        return assert_excused(&failed.error);
                    }
                }
            }
        }
    }

    /// Reads every pipe that is connected to the listener `inbox`, and listens again whenever that is lost.
    pub(crate) fn read_pipes(&self, client: &Client) {
        while self.goes_on() {
            let listener = match client.listen("inbox") {
                Ok(listener) => listener,
                Err(error) => {
                    assert_excused(&error);
                    continue;
                }
            };
            while self.goes_on() {
                match listener.accept(BRIEF) {
                    Ok(pipe) => self.read_pipe(&pipe),
                    Err(error) if is_late(&error) => {}
                    Err(error) => {
                        assert_excused(&error);
                        break;
                    }
                }
            }
        }
    }

    fn read_pipe(&self, pipe: &Pipe) {
        let mut last = 0;
        while self.goes_on() {
            let descriptor = match pipe.read_descriptor(BRIEF) {
                Ok(Incoming::Message(descriptor)) => descriptor,
                Ok(Incoming::End) => return,
                Err(error) if is_late(&error) => continue,
                Err(error) => return assert_excused(&error),
            };
            let number = u64::from_le_bytes(descriptor.metadata().try_into().unwrap());
            match pipe.read_within(descriptor, Allocation::map(), PATIENT) {
                Ok(received) => {
                    assert!(number > last, "{number} comes behind {last}");
                    last = number;
                    let Tensor::Mapped(tensor) = &received.tensors[0] else { panic!("it is mapped") };
                    assert!(tensor.to_vec() == bytes_of(number), "message {number} is another one");
                    self.read.fetch_add(1, Ordering::Relaxed);
                }
                // Its descriptor comes again, unless its writer has taken it back.
                Err(failed) => {
                    assert_excused(&failed.error);
                    // The word that it was read may have gone out before.
                    let is_lost = matches!(failed.error, Error::SessionLost { .. });
                    self.read.fetch_add(u64::from(is_lost), Ordering::Relaxed);
                }
            }
        }
    }
}
