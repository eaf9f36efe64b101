//! A large message that is written in place: publishing it costs what a small one costs.

use std::slice;

use anyhow::{Context, Result, ensure};
use tensorlane_benches::pairs::interleaved;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::{cores, machine, stats, tensors};
use tensorlane_client::Client;
use tensorlane_client::channel::{ChannelReader, ChannelSpec, ChannelWriter};
use tensorlane_proto::Descriptor;

use super::reader::{Far, LONG, SMALL, attach, nanoseconds, next, stamped};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, channels};

const LARGE: u64 = 1 << 30;
const SLOTS: u32 = 2;
/// Room for the ring, beside what is for tensors of other peers.
const ARENA: u64 = 3 << 30;
/// Messages of one value.
const TIMES: usize = 200;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let free = machine::available_memory()?;
    ensure!(free >= ARENA + LARGE, "{free} bytes of memory are free, and the row takes {ARENA} and some");
    bench.progress("loans of 1 GiB and of 64 bytes: the writer on one core, sidecar and reader on another");
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let options = SidecarOptions { core: Some(far), ..SidecarOptions::new("loan", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let mut process = Far::start(&sidecar, Some(far))?;
    let pairs = cores::on(Some(near), || -> Result<_> {
        let client = sidecar.client()?;
        let mut small = Loans::start(&client, &mut process, "small", SMALL as u64)?;
        let mut large = Loans::start(&client, &mut process, "large", LARGE)?;
        interleaved(PAIRS, WARM_UP, || small.us(), || large.us())
    })??;
    drop(process);
    sidecar.end()?;
    Ok(vec![Measured::new(&channels::LOAN_1G, pairs)])
}

/// Messages of one size, and the answers that say when they were read.
struct Loans {
    writer: ChannelWriter,
    answers: ChannelReader,
    descriptor: Descriptor,
    mark: u64,
}

impl Loans {
    fn start(client: &Client, process: &mut Far, name: &str, bytes: u64) -> Result<Self> {
        let writer = client.channel_writer(&ChannelSpec::new(name).slots(SLOTS).slot_bytes(bytes))?;
        let answers = format!("{name}-read");
        process.stamp(name, &answers)?;
        let answers = attach(client, &answers)?;
        Ok(Self { writer, answers, descriptor: tensors::bytes(bytes)?, mark: 0 })
    }

    /// The median of the microseconds from publishing a message until it is read, in the reader's own words.
    fn us(&mut self) -> Result<f64> {
        let took = (0..TIMES).map(|_| Ok(self.nanoseconds()? as f64 / 1e3)).collect::<Result<Vec<_>>>()?;
        stats::median(&took).context("nothing was measured")
    }

    fn nanoseconds(&mut self) -> Result<u64> {
        self.mark += 1;
        let mark = self.mark.to_le_bytes();
        let mut loan = self.writer.loan(slice::from_ref(&self.descriptor), LONG)?;
        let mut part = loan.part(0)?;
        part.copy_from(0, &mark)?;
        part.copy_from(part.len() as u64 - 8, &mark)?;
        let begun = nanoseconds()?;
        loan.publish()?;
        let read = stamped(&next(&mut self.answers)?, self.mark)?;
        read.checked_sub(begun).context("the clock went back")
    }
}
