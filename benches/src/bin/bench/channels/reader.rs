//! A process at the other end of channels, and the handle that the measuring one has of it.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tensorlane_benches::pairs::median_us;
use tensorlane_benches::process::Process;
use tensorlane_benches::sidecar::Sidecar;
use tensorlane_benches::worker::{self, At, Worker};
use tensorlane_client::channel::{
    ChannelReader, ChannelSpec, ChannelWriter, Message, Read, ReadOptions, Timeout,
};
use tensorlane_client::{Client, View};
use tensorlane_memory::heap::CountingAllocator;

/// Bytes of a small message.
pub(super) const SMALL: usize = 64;
/// Patience of everything that is not measured, and of what is, should it hang.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const LONG: Timeout = Timeout::After(PATIENCE);
/// Bytes of the answer that says when a message was read: the time, and the first and last eight bytes of the message.
const STAMP: usize = 24;

/// A process that reads channels, or answers what comes.
#[derive(Debug, clap::Args)]
pub(crate) struct ChannelEnd {
    /// The sockets of its sidecar.
    sockets: PathBuf,
}

/// Errand of such a process.
#[derive(Debug, Serialize, Deserialize)]
enum Errand {
    /// Attaches to a channel, which the errands behind it mean.
    Attach { channel: String },
    /// Reads so many messages, one after the other, and hashes them after that if it is to.
    Read { count: u64, hash: bool },
    /// Reads one message and keeps it.
    Hold,
    /// Answers every message of one channel in another one, until it is ended.
    Answer { from: String, to: String },
    /// Answers every message of one channel in another one with when it was read, until it is ended.
    Stamp { from: String, to: String },
}

/// Reading: what became of an errand.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Reading {
    /// Time at which the last message was read, in seconds of the machine's clock.
    pub(super) at: f64,
    /// Allocations meanwhile.
    pub(super) allocations: u64,
    /// Checksum of the last message, if it was asked for.
    pub(super) crc32c: Option<u32>,
}

/// Seconds of the machine's clock, which all processes have.
pub(super) fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// Nanoseconds of that clock.
pub(super) fn nanoseconds() -> Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    u64::try_from(since.as_nanos()).context("the clock is centuries ahead")
}

/// Checksum of the bytes of a view.
pub(super) fn crc32c(view: &View) -> u32 {
    crc32c::crc32c(&view.to_vec())
}

/// The next message of a channel that blocks.
pub(super) fn next(reader: &mut ChannelReader) -> Result<Message> {
    match reader.read(LONG)? {
        Read::Message(message) => Ok(message),
        other => bail!("a message of {} should have come: {other:?}", reader.name()),
    }
}

/// Attaches to a channel that is there soon.
pub(super) fn attach(client: &Client, channel: &str) -> Result<ChannelReader> {
    Ok(client.channel_reader(channel, &ReadOptions::new().wait(PATIENCE))?)
}

impl ChannelEnd {
    /// Runs errands until its input ends.
    pub(crate) fn run(&self) -> Result<()> {
        let client = Client::connect(&self.sockets)?;
        let mut reader: Option<ChannelReader> = None;
        let mut held = Vec::new();
        worker::say(&Reading::default())?;
        worker::serve(|errand: Errand| {
            let attached = |reader: &mut Option<ChannelReader>| -> Result<ChannelReader> {
                reader.take().context("nothing is attached")
            };
            match errand {
                Errand::Attach { channel } => {
                    reader = Some(attach(&client, &channel)?);
                    Ok(Reading::default())
                }
                Errand::Read { count, hash } => {
                    let mut own = attached(&mut reader)?;
                    let reading = read(&mut own, count, hash);
                    reader = Some(own);
                    reading
                }
                Errand::Hold => {
                    let mut own = attached(&mut reader)?;
                    held.push(next(&mut own)?);
                    reader = Some(own);
                    Ok(Reading::default())
                }
                Errand::Answer { from, to } => {
                    answer(&client, &from, &to)?;
                    Ok(Reading::default())
                }
                Errand::Stamp { from, to } => {
                    stamp(&client, &from, &to)?;
                    Ok(Reading::default())
                }
            }
        })
    }
}

fn read(reader: &mut ChannelReader, count: u64, hash: bool) -> Result<Reading> {
    let before = CountingAllocator::allocations();
    let mut ends = [0; 2];
    let (mut at, mut last) = (0.0, None);
    for number in 1..=count {
        let message = next(reader)?;
        let view = message.bytes();
        view.copy_range_to(0, &mut ends[..1])?;
        view.copy_range_to(view.len() as u64 - 1, &mut ends[1..])?;
        if number == count {
            at = now()?;
            last = Some(message);
        }
    }
    let allocations = CountingAllocator::allocations() - before;
    let crc32c = last.filter(|_| hash).map(|message| crc32c(message.bytes()));
    Ok(Reading { at, allocations, crc32c })
}

/// Answers on a thread that ends with the process.
fn answer(client: &Client, from: &str, to: &str) -> Result<()> {
    let mut writer = client.channel_writer(&ChannelSpec::new(to).slot_bytes(SMALL as u64))?;
    let mut reader = attach(client, from)?;
    thread::spawn(move || -> Result<()> {
        let mut bytes = [0; SMALL];
        loop {
            next(&mut reader)?.bytes().copy_to(&mut bytes)?;
            writer.write_bytes(&bytes, LONG)?;
        }
    });
    Ok(())
}

/// Answers with when messages were read, on a thread that ends with the process.
fn stamp(client: &Client, from: &str, to: &str) -> Result<()> {
    let mut writer = client.channel_writer(&ChannelSpec::new(to).slot_bytes(STAMP as u64))?;
    let mut reader = attach(client, from)?;
    thread::spawn(move || -> Result<()> {
        loop {
            let message = next(&mut reader)?;
            let at = nanoseconds()?;
            let (view, mut bytes) = (message.bytes(), [0; STAMP]);
            bytes[..8].copy_from_slice(&at.to_le_bytes());
            view.copy_range_to(0, &mut bytes[8..16])?;
            view.copy_range_to(view.len() as u64 - 8, &mut bytes[16..])?;
            drop(message);
            writer.write_bytes(&bytes, LONG)?;
        }
    });
    Ok(())
}

/// Time at which a message was read, if both its ends had this mark.
pub(super) fn stamped(answer: &Message, mark: u64) -> Result<u64> {
    let mut words = [[0u8; 8]; STAMP / 8];
    for (at, word) in (0..).step_by(8).zip(&mut words) {
        answer.bytes().copy_range_to(at, word)?;
    }
    let [at, first, last] = words.map(u64::from_le_bytes);
    ensure!([first, last] == [mark; 2], "a message with the mark {mark} was read as {first} and {last}");
    Ok(at)
}

/// Microseconds of a message and its answer, which has the same bytes. `number` tells it from those before.
pub(super) fn round_trip_us(
    writer: &mut ChannelWriter,
    reader: &mut ChannelReader,
    number: &mut u64,
    count: usize,
) -> Result<f64> {
    median_us(count, || {
        *number += 1;
        let (mut bytes, mut back) = ([7; SMALL], [0; SMALL]);
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        writer.write_bytes(&bytes, LONG)?;
        next(reader)?.bytes().copy_to(&mut back)?;
        ensure!(bytes == back, "what came back is not what was written");
        Ok(())
    })
}

/// Handle of such a process.
pub(super) struct Far {
    worker: Worker,
}

impl Far {
    /// Starts one beside a sidecar, on one core if one is named.
    pub(super) fn start(sidecar: &Sidecar, core: Option<usize>) -> Result<Self> {
        let at = At { core, ..At::default() };
        let mut worker = Worker::start(at, &["channel-end".as_ref(), sidecar.sockets().as_os_str()])?;
        let _: Reading = worker.answer()?;
        Ok(Self { worker })
    }

    /// Lets it attach to a channel.
    pub(super) fn attach(&mut self, channel: &str) -> Result<()> {
        self.run(&Errand::Attach { channel: channel.to_owned() })
    }

    /// Lets it hold the next message.
    pub(super) fn hold(&mut self) -> Result<()> {
        self.run(&Errand::Hold)
    }

    /// Lets it answer what comes on one channel in another one.
    pub(super) fn answer(&mut self, from: &str, to: &str) -> Result<()> {
        self.run(&Errand::Answer { from: from.to_owned(), to: to.to_owned() })
    }

    /// Lets it answer what comes on one channel in another one with when that was read.
    pub(super) fn stamp(&mut self, from: &str, to: &str) -> Result<()> {
        self.run(&Errand::Stamp { from: from.to_owned(), to: to.to_owned() })
    }

    fn run(&mut self, errand: &Errand) -> Result<()> {
        let Reading { .. } = self.worker.ask(errand)?;
        Ok(())
    }

    /// Lets it read while this process goes on; [`Far::reading`] waits for it.
    pub(super) fn begin(&mut self, count: u64, hash: bool) -> Result<()> {
        self.worker.tell(&Errand::Read { count, hash })
    }

    pub(super) fn reading(&mut self) -> Result<Reading> {
        self.worker.answer()
    }

    /// Waits for what it reads, and checks the hash of the last message.
    pub(super) fn proven(&mut self, expected: u32) -> Result<Reading> {
        let reading = self.reading()?;
        ensure!(reading.crc32c == Some(expected), "what was read is not what was written: {reading:?}");
        Ok(reading)
    }

    pub(super) fn process(&self) -> &Process {
        self.worker.process()
    }
}
