//! The story, step by step. Every step checks what it claims; the first that fails ends the demo.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tensorlane_benches::cores::Cores;
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::pairs::{Pair, interleaved};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::style::Style;
use tensorlane_benches::worker::Worker;
use tensorlane_benches::{machine, stats, text, wait};
use tensorlane_client::{Client, Item, PutOptions, Stored};

use crate::account::{Account, Line};
use crate::model::{Model, ModelTensor};
use crate::stage::{Limits, Sidecars};
use crate::worker::{self, Done, Task};

/// Prefix of all names of the model.
const PREFIX: &str = "model/";
/// The name that appears later.
const LATE: &str = "demo/late";
/// Rows of the matrix that are asked for.
const ROWS: u64 = 8;
/// Time that B waits for a name before it appears.
const LATENESS: Duration = Duration::from_millis(300);
/// Bytes that the process holds that is killed.
const HELD: u64 = 256 << 20;
/// The path of what is put.
const COPY: &str = "copy";
/// After that long, what should happen does not.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells all of it; what is repeated is repeated `times`.
pub(crate) fn tell(weights: &Path, programs: &Path, times: usize, style: Style) -> Result<()> {
    let begun = Instant::now();
    let mut account = Account::new(style);
    let model = Model::read(weights)?;
    let hosts = TwoHosts::make();
    println!("{}", style.strong("Tensorlane, two sidecars, one real model"));
    account.say(&machine::description(Cores::here()?));
    account.say(&format!("hosts A and B: {hosts}"));
    let (count, total) = (model.tensors.len(), text::bytes(model.total()));
    account.say(&format!("the model: {count} tensors, {total}"));

    account.step("What this machine can do, without Tensorlane");
    let limits = Limits::prepare(&hosts, model.total(), &account)?;
    account.step("Two sidecars");
    let scratch = Scratch::make()?;
    let sidecars = Sidecars::start(&hosts, programs, &scratch, &account)?;

    let client = sidecars.a.client()?;
    let mut scene = Scene { model: &model, limits, account: &mut account, times };
    let stored = scene.put(&client)?;
    scene.map(&mut worker::start(sidecars.a.sockets())?)?;
    let mut beside_b = worker::start(sidecars.b.sockets())?;
    scene.get(&mut beside_b)?;
    scene.rows(&mut beside_b)?;
    scene.late(&mut beside_b, &client)?;
    scene.kill(&client, worker::start(sidecars.a.sockets())?)?;

    account.step("The end");
    drop((stored, client, beside_b));
    sidecars.end(&account)?;
    println!("\n{}", account.table());
    let took = begun.elapsed().as_secs_f64();
    println!("\n{} in {took:.1} s: all checksums are equal", style.good("done"));
    Ok(())
}

/// Scene: what every step needs.
struct Scene<'a> {
    model: &'a Model,
    limits: Limits,
    account: &'a mut Account,
    times: usize,
}

impl<'a> Scene<'a> {
    /// All tensors into A, by name; then again without one, to see the steady state.
    fn put(&mut self, client: &Client) -> Result<Vec<Stored>> {
        self.account.step("A process of A puts the model");
        let limit = self.limits.memcpy()?;
        let (stored, took) = self.put_all(client, |name| PutOptions::named(format!("{PREFIX}{name}")))?;
        let total = self.model.total() as f64;
        let again = || {
            let (anonymous, took) = self.put_all(client, |_| PutOptions::new())?;
            drop(anonymous);
            client.flush()?;
            Ok(total / took.as_secs_f64())
        };
        // The first of these still finds new memory.
        let again = interleaved(self.times, 1, || self.limits.memcpy(), again)?;
        let count = stored.len();
        let first = total / took.as_secs_f64();
        let first = [Pair { value: first, limit: Some(limit) }];
        self.moved(format!("put {count} tensors into A, for the first time"), COPY, &first)?;
        self.moved(format!("put {count} tensors into A, again"), COPY, &again)?;
        Ok(stored)
    }

    /// Tells of the whole model having been moved, at these rates in bytes a second.
    fn moved(&mut self, what: String, path: &str, rates: &[Pair]) -> Result<()> {
        let median = |values: Vec<f64>| stats::median(&values).context("nothing was measured");
        let rate = median(rates.iter().map(|pair| pair.value).collect())?;
        let of_limit = median(rates.iter().filter_map(|pair| pair.ratio()).collect())?;
        let limit = median(rates.iter().filter_map(|pair| pair.limit).collect())?;
        let moved = self.model.total();
        let took = Duration::from_secs_f64(moved as f64 / rate);
        self.account.did(Line { what, moved, path: path.into(), took, of_limit: Some(of_limit) });
        let without = if path == COPY { "a memcpy" } else { "one bare TLS connection" };
        self.account.say(&format!(
            "that is {}; {without}, in turns with it: {}; the median of the turns is {of_limit:.2} of the limit",
            text::rate(rate),
            text::rate(limit)
        ));
        Ok(())
    }

    fn put_all(
        &self,
        client: &Client,
        options: impl Fn(&str) -> PutOptions,
    ) -> Result<(Vec<Stored>, Duration)> {
        let item = |tensor: &'a ModelTensor| Item {
            descriptor: &tensor.descriptor,
            bytes: self.model.bytes(tensor),
            options: options(&tensor.name),
        };
        let items: Vec<Item<'_>> = self.model.tensors.iter().map(item).collect();
        let begun = Instant::now();
        let stored = client.put_many(&items);
        let took = begun.elapsed();
        Ok((stored.into_iter().collect::<Result<_, _>>()?, took))
    }

    /// A second process of A maps all of them.
    fn map(&mut self, worker: &mut Worker) -> Result<()> {
        self.account.step("A second process of A maps all tensors");
        let first = self.acquire(worker, None, true)?;
        let again = self.acquire(worker, None, false)?;
        ensure!(first.moved == 0, "{} bytes moved where a map needs none", first.moved);
        let count = first.sums.len();
        for (what, done) in [("for the first time", first), ("again", again)] {
            let what = format!("map {count} tensors beside A, {what}");
            let took = Duration::from_secs_f64(done.seconds);
            self.account.did(Line { what, moved: 0, path: done.route, took, of_limit: None });
        }
        self.account.holds("read in place, every checksum equals the file's");
        Ok(())
    }

    /// A process of B gets all of them from A.
    fn get(&mut self, worker: &mut Worker) -> Result<()> {
        self.account.step("A process of B gets all tensors from A");
        let total = self.model.total() as f64;
        let limit = self.limits.tls()?;
        let first = self.acquire(worker, Some("a"), true)?;
        let (model, mut again) = (self.model, Vec::new());
        for _ in 0..self.times {
            let limit = Some(self.limits.tls()?);
            let done = self.acquire(worker, Some("a"), false)?;
            ensure!(done.moved == model.total(), "{} bytes moved of {total}", done.moved);
            again.push(Pair { value: total / done.seconds, limit });
        }
        let count = first.sums.len();
        let pair = Pair { value: total / first.seconds, limit: Some(limit) };
        self.moved(format!("get {count} tensors at B, for the first time"), &first.route, &[pair])?;
        self.moved(format!("get {count} tensors at B, again"), &first.route, &again)?;
        self.account.holds("every checksum equals the file's");
        Ok(())
    }

    /// Lets a worker acquire the whole model, and compares the sums if they are asked for.
    fn acquire(&self, worker: &mut Worker, peer: Option<&str>, sum: bool) -> Result<Done> {
        let names = self.model.tensors.iter().map(|tensor| format!("{PREFIX}{}", tensor.name)).collect();
        let done: Done = worker.ask(&Task::Acquire { peer: peer.map(str::to_owned), names, sum })?;
        let wanted = if sum { self.model.tensors.len() } else { 0 };
        ensure!(done.sums.len() == wanted, "{} checksums came instead of {wanted}", done.sums.len());
        for (tensor, sum) in self.model.tensors.iter().zip(&done.sums) {
            let (name, right) = (&tensor.name, tensor.crc32c);
            ensure!(*sum == right, "{name} has checksum {sum:08x} there and {right:08x} in the file");
        }
        Ok(done)
    }

    /// A few rows of the largest matrix travel alone.
    fn rows(&mut self, worker: &mut Worker) -> Result<()> {
        self.account.step("B gets a few rows of the embedding matrix");
        let matrix = self.model.largest_matrix().context("the model has no matrix")?;
        let height = *matrix.sizes().first().context("a matrix without rows")?;
        // Spread over the matrix and in no order.
        let rows: Vec<u64> = (0..ROWS).map(|row| (row * 5 % ROWS) * height / ROWS).collect();
        let bytes = self.model.bytes(matrix);
        let width = bytes.len() / usize::try_from(height)?.max(1);
        let wanted: Vec<u8> =
            rows.iter().flat_map(|row| &bytes[*row as usize * width..][..width]).copied().collect();
        let name = format!("{PREFIX}{}", matrix.name);
        let done: Done = worker.ask(&Task::Rows { peer: "a".into(), name, rows })?;
        ensure!(done.sums == [crc32c::crc32c(&wanted)], "the rows have another checksum than the file's");
        ensure!(done.moved == wanted.len() as u64, "{} bytes moved for {}", done.moved, wanted.len());
        let what = format!("get {ROWS} rows of {height} at B");
        let took = Duration::from_secs_f64(done.seconds);
        self.account.did(Line { what, moved: done.moved, path: done.route, took, of_limit: None });
        let of = text::bytes(bytes.len() as u64);
        self.account.holds(&format!("{} of {of} travelled, checksum equal", text::bytes(done.moved)));
        Ok(())
    }

    /// B waits for a name that does not exist yet.
    fn late(&mut self, worker: &mut Worker, client: &Client) -> Result<()> {
        self.account.step("B waits for a name that does not exist yet");
        let tensor = self.model.tensors.iter().min_by_key(|tensor| tensor.descriptor.layout.bytes());
        let tensor = tensor.context("the model has no tensor")?;
        worker.tell(&Task::Await { name: LATE.into(), at_most: PATIENCE })?;
        std::thread::sleep(LATENESS);
        let options = PutOptions::named(LATE);
        let put = worker::now();
        let stored = client.put(&tensor.descriptor, self.model.bytes(tensor), &options)?;
        let done: Done = worker.answer()?;
        drop(stored);
        ensure!(done.sums == [tensor.crc32c], "{LATE} has another checksum than the file's");
        let waited = done.seconds;
        ensure!(waited >= LATENESS.as_secs_f64() / 2.0, "B did not wait: {waited} s");
        let after = Duration::from_secs_f64((done.at - put).max(0.0));
        self.account.say(&format!("it waited {} ms", (waited * 1e3).round()));
        self.account.holds(&format!(
            "it had the tensor {} after A began to put it, checksum equal",
            text::time(after)
        ));
        Ok(())
    }

    /// A holder is killed, and what it held comes back.
    fn kill(&mut self, client: &Client, mut holder: Worker) -> Result<()> {
        self.account.step("A process of A is killed while it holds a tensor");
        let free = || Ok::<u64, anyhow::Error>(client.status()?.arena.context("no arena")?.free);
        client.flush()?;
        let before = free()?;
        let _: Done = holder.ask(&Task::Hold { bytes: HELD })?;
        let during = free()?;
        ensure!(
            before >= during + HELD,
            "{before} bytes were free before and {during} while {HELD} are held"
        );
        let killed = holder.process().kill()?;
        if !wait::until(PATIENCE, || Ok(free()? >= before))? {
            bail!("{} of {before} bytes are free {PATIENCE:?} after the holder was killed", free()?);
        }
        let took = killed.elapsed();
        let [before, during] = [before, during].map(text::bytes);
        self.account.say(&format!("free in A's arena: {before} before, {during} while it was held"));
        self.account.holds(&format!("{} after SIGKILL {before} are free again", text::time(took)));
        Ok(())
    }
}
