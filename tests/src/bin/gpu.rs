//! A workload with GPU memory, for the suites: told line by line what to do, it answers with one line each. The driver is the one
//! that its environment leads to.
//!
//! ```text
//! probe                        probed N LABEL...      what each of N devices can: `shares`, or why not
//! put NAME BYTES SEED          put REFERENCE          a pattern from the host into GPU memory; holds the lease
//! copy NAME BYTES SEED         put REFERENCE          the same from memory of the device
//! keep NAME BYTES SEED         put REFERENCE          as put, but only the name keeps it
//! stray NAME                   error LABEL            a put from an address of the host
//! beyond NAME                  error LABEL            a put of more than lies at an address
//! reserve BYTES                reserved BYTES         makes room and gives it back
//! get TARGET                   got CRC LENGTH WAY     leases, maps and reads; holds it
//! exact TARGET                 got CRC LENGTH WAY     the same, if no byte is copied
//! part TARGET START STOP STEP  got CRC LENGTH WAY     the same of a part of a row
//! rows TARGET                  error LABEL            a list of rows
//! again                        read CRC...            reads once more all that is held
//! host TARGET                  got CRC LENGTH WAY     as a client that knows of host memory alone
//! unname NAME                  unnamed
//! drop                         dropped N              gives back what is held
//! trim                         trimmed BYTES          gives back what is kept for the next puts
//! rounds N BYTES               rounds N               puts, gets, checks and drops
//! fork                         child LABEL...         what a forked child hears
//! ```
//!
//! With the one word `--probe` it tells what there is, and fails where nothing is shared.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::str::FromStr;

use tensorlane_client::gpu::{Device, DeviceTensor, Gpu, Stream, probe};
use tensorlane_client::{AcquireOptions, Client, Error, Moved, PutOptions, Result, Stored, Target};
use tensorlane_memory::fork::spawn_child;
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::selection::{Range, Selection};
use tensorlane_proto::{DType, Layout, Metadata, Reference, Shape, Transport};
use tensorlane_tests::sidecar::session;
use tensorlane_tests::tensors::pattern;

struct Workload {
    client: Client,
    gpu: Option<Gpu>,
    tensors: Vec<DeviceTensor>,
    stored: Vec<Stored>,
}

fn main() -> ExitCode {
    let Some(word) = std::env::args().nth(1) else {
        eprintln!("usage: gpu SOCKETS | gpu --probe");
        return ExitCode::FAILURE;
    };
    if word == "--probe" {
        return show_probe();
    }
    let client = match session(word) {
        Ok(client) => client,
        Err(error) => {
            say(&format!("error {error}"));
            return ExitCode::FAILURE;
        }
    };
    let mut workload = Workload { client, gpu: None, tensors: Vec::new(), stored: Vec::new() };
    say("ready");
    for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = workload.obey(&words);
        say(&answer.unwrap_or_else(|error| format!("error {}", label(&error))));
    }
    ExitCode::SUCCESS
}

fn show_probe() -> ExitCode {
    match probe() {
        Err(refusal) => {
            eprintln!("no GPU memory: {refusal} ({})", refusal.label());
            ExitCode::FAILURE
        }
        Ok(found) => {
            println!("driver for CUDA {}.{}", found.driver / 1000, found.driver % 1000 / 10);
            for device in &found.devices {
                let shares =
                    device.shares.as_ref().map_or_else(ToString::to_string, |()| "shares memory".into());
                println!("{} {} {}: {shares}", device.index, device.name, device.uuid);
            }
            let shares = found.devices.iter().any(|device| device.shares.is_ok());
            if shares { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

/// Prints one line, at once. Who does not listen any more has killed us or soon will.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn label(error: &Error) -> String {
    match error {
        Error::Gpu(refusal) => refusal.label().to_owned(),
        Error::Refused(failure) => failure.reason.to_string(),
        Error::SessionLost { .. } => "lost".to_owned(),
        Error::Forked => "forked".to_owned(),
        other => other.to_string(),
    }
}

fn target(word: &str) -> Target {
    Reference::from_str(word).map_or_else(|_| Target::name(word), Target::from)
}

fn number<T: FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is not a number"))
}

fn row(bytes: u64) -> Layout {
    let shape = Shape::new(&[bytes]).expect("a shape");
    Layout::contiguous(DType::U8, shape).expect("a layout")
}

fn got(tensor: &DeviceTensor) -> Result<String> {
    let bytes = tensor.to_vec()?;
    Ok(format!("got {:08x} {} {}", crc32c::crc32c(&bytes), bytes.len(), route(tensor.moved())))
}

/// Transport, and why a tensor had to be copied out of GPU memory, as in `local:host_reader`.
fn route(moved: &Moved) -> String {
    let way = moved.transport.map_or("unknown".to_owned(), |transport| transport.to_string());
    let of_gpu = moved.refusals.iter().find(|refused| refused.transport == Some(Transport::CudaIpc));
    match of_gpu.filter(|_| moved.staged) {
        Some(refused) => format!("{way}:{}", refused.why),
        None => way,
    }
}

impl Workload {
    fn obey(&mut self, words: &[&str]) -> Result<String> {
        match words {
            ["probe"] => Ok(probed()),
            ["put", name, bytes, seed] => self.put(&PutOptions::named(*name), number(bytes), number(seed)),
            ["keep", name, bytes, seed] => {
                let options = PutOptions { no_lease: true, ..PutOptions::named(*name) };
                self.put(&options, number(bytes), number(seed))
            }
            ["copy", name, bytes, seed] => self.copy(name, number(bytes), number(seed)),
            ["stray", name] => self.stray(name),
            ["beyond", name] => self.beyond(name),
            ["reserve", bytes] => {
                let bytes: u64 = number(bytes);
                drop(self.gpu()?.reserve(&row(bytes), &Metadata::default())?);
                Ok(format!("reserved {bytes}"))
            }
            ["get", of] => self.get(target(of), &AcquireOptions::new()),
            ["exact", of] => {
                let require = Require::ZERO_COPY;
                self.get(target(of), &AcquireOptions { require, ..AcquireOptions::new() })
            }
            ["part", of, start, stop, step] => {
                let range =
                    Range { start: Some(number(start)), stop: Some(number(stop)), step: number(step) };
                let selection = Selection::Ranges(vec![range]);
                self.get(target(of), &AcquireOptions { selection, ..AcquireOptions::new() })
            }
            ["rows", of] => {
                let selection = Selection::Rows(vec![0, 2].into());
                self.get(target(of), &AcquireOptions { selection, ..AcquireOptions::new() })
            }
            ["again"] => self.again(),
            ["host", of] => {
                let got = self.client.get(target(of), &AcquireOptions::new())?;
                let crc = crc32c::crc32c(&got.bytes);
                Ok(format!("got {crc:08x} {} {}", got.bytes.len(), route(&got.moved)))
            }
            ["unname", name] => {
                self.client.unname(&[name])?.into_iter().collect::<Result<Vec<()>>>()?;
                Ok("unnamed".to_owned())
            }
            ["trim"] => Ok(format!("trimmed {}", self.gpu()?.release_idle())),
            ["drop"] => {
                let count = self.tensors.len() + self.stored.len();
                self.tensors.clear();
                self.stored.clear();
                self.client.flush()?;
                Ok(format!("dropped {count}"))
            }
            ["rounds", count, bytes] => self.rounds(number(count), number(bytes)),
            ["fork"] => Ok(self.fork()),
            _ => panic!("{words:?} is nothing that can be told"),
        }
    }

    fn gpu(&mut self) -> Result<Gpu> {
        if let Some(gpu) = &self.gpu {
            return Ok(gpu.clone());
        }
        let gpu = self.client.gpu(&Device::open(0)?);
        self.gpu = Some(gpu.clone());
        Ok(gpu)
    }

    fn put(&mut self, options: &PutOptions, bytes: u64, seed: u64) -> Result<String> {
        let stored = self.gpu()?.put_bytes(&row(bytes), &pattern(seed, bytes as usize), options)?;
        Ok(self.keep(stored))
    }

    fn keep(&mut self, stored: Stored) -> String {
        let reference = stored.reference().to_string();
        self.stored.push(stored);
        format!("put {reference}")
    }

    fn copy(&mut self, name: &str, bytes: u64, seed: u64) -> Result<String> {
        let gpu = self.gpu()?;
        let unnamed = PutOptions::new();
        // Memory of this process on the device, which happens to be a tensor's.
        let source = gpu.put_bytes(&row(bytes), &pattern(seed, bytes as usize), &unnamed)?;
        let source = gpu.acquire(source.reference(), &AcquireOptions::new())?;
        let options = PutOptions::named(name);
        let stored = gpu.put_device(&row(bytes), source.pointer(), bytes, Stream::default(), &options)?;
        Ok(self.keep(stored))
    }

    fn stray(&mut self, name: &str) -> Result<String> {
        let bytes = [7u8; 64];
        let (pointer, options) = (bytes.as_ptr() as u64, PutOptions::named(name));
        let stored = self.gpu()?.put_device(&row(64), pointer, 64, Stream::default(), &options)?;
        Ok(self.keep(stored))
    }

    fn beyond(&mut self, name: &str) -> Result<String> {
        let gpu = self.gpu()?;
        let room = gpu.reserve(&row(1), &Metadata::default())?;
        let bytes = 64 << 20;
        let options = PutOptions::named(name);
        let stored = gpu.put_device(&row(bytes), room.pointer(), bytes, Stream::default(), &options)?;
        Ok(self.keep(stored))
    }

    fn get(&mut self, of: Target, options: &AcquireOptions) -> Result<String> {
        let tensor = self.gpu()?.acquire(of, options)?;
        let answer = got(&tensor)?;
        self.tensors.push(tensor);
        Ok(answer)
    }

    fn again(&self) -> Result<String> {
        let read = |tensor: &DeviceTensor| Ok(format!("{:08x}", crc32c::crc32c(&tensor.to_vec()?)));
        let sums: Vec<String> = self.tensors.iter().map(read).collect::<Result<_>>()?;
        Ok(format!("read {}", sums.join(" ")))
    }

    fn rounds(&mut self, count: u64, bytes: u64) -> Result<String> {
        let gpu = self.gpu()?;
        for seed in 0..count {
            let wanted = pattern(seed, bytes as usize);
            let stored = gpu.put_bytes(&row(bytes), &wanted, &PutOptions::new())?;
            let tensor = gpu.acquire(stored.reference(), &AcquireOptions::new())?;
            assert!(tensor.to_vec()? == wanted, "other bytes in round {seed}");
        }
        self.client.flush()?;
        Ok(format!("rounds {count}"))
    }

    /// The child tries what it inherited, and a driver of its own, which the parent's fork took from it.
    fn fork(&mut self) -> String {
        let (tensors, gpu) = (&mut self.tensors, &self.gpu);
        let child = spawn_child(|| {
            // Taken in the child alone: the parent's stay where they are.
            let held = std::mem::take(tensors);
            let refused = |error: Option<Error>| error.map_or("nothing".to_owned(), |error| label(&error));
            let read = held.iter().map(|tensor| refused(tensor.to_vec().err())).collect::<Vec<_>>().join(" ");
            let open = Device::open(0).err().map_or("nothing", |refusal| refusal.label());
            let get = gpu.as_ref().map(|gpu| refused(gpu.acquire("a", &AcquireOptions::new()).err()));
            drop(held);
            say(&format!("child {read} {open} {}", get.unwrap_or_default()));
            0
        });
        child.expect("a process can be forked");
        "forked".to_owned()
    }
}

fn probed() -> String {
    match probe() {
        Err(refusal) => format!("error {}", refusal.label()),
        Ok(found) => {
            let can = |device: &tensorlane_client::gpu::Probed| match &device.shares {
                Ok(()) => "shares",
                Err(refusal) => refusal.label(),
            };
            let labels: Vec<&str> = found.devices.iter().map(can).collect();
            format!("probed {} {}", labels.len(), labels.join(" "))
        }
    }
}
