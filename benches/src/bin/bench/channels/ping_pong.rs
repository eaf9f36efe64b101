//! Small messages in a pod: the rings by themselves, between two processes.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tensorlane_benches::cores;
use tensorlane_benches::limits::futex::FutexPingPong;
use tensorlane_benches::pairs::{Pair, interleaved, median_us};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::worker::{self, At, Worker};
use tensorlane_memory::ring::{
    self, CURSOR_BYTES, Deadline, First, Layout, Place, Read, RingReader, RingShape, RingWriter,
};
use tensorlane_memory::{Arena, ArenaOptions, Block, Mapping, Owner, Purpose};

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, channels};

/// Bytes of a message there, and of the one back.
const MESSAGE: usize = 64;
const SLOTS: u32 = 4;
/// Round trips of one value.
const ROUND_TRIPS: usize = 2_000;
/// Cores that processes that spin take.
const SPINNING: usize = 2;
const ARENA: u64 = 1 << 20;
const SEGMENT: u64 = 256 << 10;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("ping-pong: two processes, each on a core, asleep while they wait");
    let raw = FutexPingPong::start(&Scratch::make()?, [bench.cores.near, bench.cores.far])?;
    Ok(vec![Measured::new(&channels::PINGPONG_POD, beside(bench, raw)?)])
}

/// Measures the same rings beside processes that never sleep.
pub(super) fn beside_spinning(bench: &Bench) -> Result<Vec<Measured>> {
    if bench.cores.count <= SPINNING {
        let why = format!("processes that spin take {SPINNING} cores, and others need one");
        return Ok(vec![Measured::missing(&channels::PINGPONG_SPIN, &why)]);
    }
    bench.progress("ping-pong: two processes, each on a core; those of the limit never sleep");
    let raw = FutexPingPong::start_spinning(&Scratch::make()?, [bench.cores.near, bench.cores.far])?;
    Ok(vec![Measured::new(&channels::PINGPONG_SPIN, beside(bench, raw)?)])
}

fn beside(bench: &Bench, mut raw: FutexPingPong) -> Result<Vec<Pair>> {
    cores::on(Some(bench.cores.near), || -> Result<_> {
        let ours = RefCell::new(PingPong::start(bench.cores.far)?);
        interleaved(PAIRS, WARM_UP, || raw.median_us(ROUND_TRIPS), || ours.borrow_mut().median_us())
    })?
}

/// A process that answers every message of one ring with the same bytes in another.
#[derive(Debug, clap::Args)]
pub(crate) struct Echo {
    /// The descriptor that it writes its segment by, as a file.
    writes: PathBuf,
}

/// Both segments as the echo needs them.
#[derive(Debug, Serialize, Deserialize)]
struct Ends {
    /// The descriptor that it reads the other segment by, as a file.
    reads: PathBuf,
    /// Offsets of ring and cursor in the segment that the asking process writes.
    asking: [u64; 2],
    /// Offsets of ring and cursor in the segment of the echoing process.
    echoing: [u64; 2],
}

fn shape() -> Result<RingShape> {
    Ok(RingShape::new(SLOTS, MESSAGE as u64)?)
}

/// Both directions as one process has them.
struct Lines {
    writer: RingWriter,
    reader: RingReader,
}

impl Lines {
    /// Opens the ring and cursor that this process writes, and those of the other.
    fn open(ours: &Arc<Mapping>, at: [u64; 2], theirs: &Arc<Mapping>, their_at: [u64; 2]) -> Result<Self> {
        let place = |mapping: &Arc<Mapping>, offset| Place { mapping: Arc::clone(mapping), offset };
        let writer = RingWriter::open(place(ours, at[0]), shape()?)?;
        let first = writer.readers().attach(1, place(theirs, their_at[1]), First::Next)?;
        let reader = RingReader::open(place(theirs, their_at[0]), place(ours, at[1]), shape()?, first, 1)?;
        Ok(Self { writer, reader })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let mut slot = self.writer.claim(Layout::Plain, Deadline::Never, &|| false)?;
        slot.bytes(0, bytes.len() as u64)?.copy_from(0, bytes)?;
        slot.publish(bytes.len() as u64);
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        match self.reader.read(Deadline::Never, &|| false)? {
            Read::Message(message) => Ok(message.view().copy_to(bytes)?),
            end => bail!("the other end says {end:?}"),
        }
    }
}

/// The asking side.
struct PingPong {
    lines: Lines,
    _echo: Worker,
    // Last: the blocks are those of a living arena while the other process uses them.
    _blocks: [Block; 4],
    _arena: Arc<Arena>,
}

impl PingPong {
    /// Makes both segments as a sidecar does, and starts the other process on a core.
    fn start(far: usize) -> Result<Self> {
        let options = ArenaOptions {
            segment_bytes: SEGMENT,
            ready_bytes: 0,
            pull_share: 0.0,
            ..ArenaOptions::new(ARENA)
        };
        let arena = Arena::start(options, Arc::new(|| ()))?;
        let fresh = |session| -> Result<_> {
            Ok(arena.admit(Owner::Session(session), Purpose::Put, SEGMENT)?.populate()?)
        };
        let (asking, echoing) = (fresh(1)?, fresh(2)?);
        let ours = Arc::new(Mapping::writer(asking.writer_fd()?.as_fd(), SEGMENT)?);
        // Mapped by the other process before it is sealed.
        let writes = echoing.writer_fd()?;
        let mut echo = Worker::start(
            At { core: Some(far), ..At::default() },
            &["echo".as_ref(), path_of(writes.as_fd()).as_os_str()],
        )?;
        let _: bool = echo.answer()?;
        drop(writes);
        let (asking, echoing) = (arena.adopt(asking)?, arena.adopt(echoing)?);
        let theirs = Arc::new(Mapping::reader(echoing.reader_fd(), SEGMENT)?);
        let (their_blocks, our_blocks) = (blocks(&arena, 2)?, blocks(&arena, 1)?);
        let [at, their_at] =
            [&our_blocks, &their_blocks].map(|[ring, cursor]| [ring.offset(), cursor.offset()]);
        let ends = Ends { reads: path_of(asking.reader_fd()), asking: at, echoing: their_at };
        let _: bool = echo.ask(&ends)?;
        let lines = Lines::open(&ours, at, &theirs, their_at)?;
        let ([a, b], [c, d]) = (our_blocks, their_blocks);
        Ok(Self { lines, _echo: echo, _blocks: [a, b, c, d], _arena: arena })
    }

    fn median_us(&mut self) -> Result<f64> {
        let mut bytes = [7; MESSAGE];
        median_us(ROUND_TRIPS, || {
            self.lines.send(&bytes)?;
            self.lines.receive(&mut bytes)
        })
    }
}

/// Ring and cursor in the segment of a session.
fn blocks(arena: &Arena, session: u64) -> Result<[Block; 2]> {
    let block = |bytes| arena.allocate(Owner::Session(session), Purpose::Put, bytes);
    let (ring, cursor) = (block(shape()?.bytes())?, block(CURSOR_BYTES)?);
    ring::format_ring(&ring, shape()?)?;
    ring::format_cursor(&cursor)?;
    Ok([ring, cursor])
}

/// A descriptor of this process as another of the same user opens it.
fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/{}/fd/{}", process::id(), fd.as_raw_fd()).into()
}

impl Echo {
    /// Answers until its input ends.
    pub(crate) fn run(&self) -> Result<()> {
        let opened = File::options().read(true).write(true).open(&self.writes);
        let opened = opened.with_context(|| format!("at {}", self.writes.display()))?;
        let ours = Arc::new(Mapping::writer(opened.as_fd(), SEGMENT)?);
        drop(opened);
        worker::say(&true)?;
        worker::serve(|ends: Ends| {
            let reads = File::open(&ends.reads).with_context(|| format!("at {}", ends.reads.display()))?;
            let theirs = Arc::new(Mapping::reader(reads.as_fd(), SEGMENT)?);
            let mut lines = Lines::open(&ours, ends.echoing, &theirs, ends.asking)?;
            // Ends with the process.
            thread::spawn(move || -> Result<()> {
                let mut bytes = [0; MESSAGE];
                loop {
                    lines.receive(&mut bytes)?;
                    lines.send(&bytes)?;
                }
            });
            Ok(true)
        })
    }
}
