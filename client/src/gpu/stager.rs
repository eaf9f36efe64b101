//! The stager: one thread of a client that uses GPU memory. It copies tensors out of that memory for readers who cannot map it, when
//! the sidecar asks for that, into a segment of its own session. Native throughout: it never waits for an interpreter.
//!
//! ```text
//!   Stage: waits for an order ──> OpenGpu, imported ──> chunks into the segment, a report five times a second ──> Stage with how it ended
//!        ^                                                                                                         |
//!        '---------------------------------------------------------------------------------------------------------'
//! ```
//! It ends with its client. Its session is another than the client's, so that calls of the one never wait behind the other.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tensorlane_cuda::{Device, GpuUuid, driver_version};
use tensorlane_memory::WriteView;
use tensorlane_proto::frame::{STAGE_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

use super::staged_gpus::StagedGpus;
use super::{devices, opened};
use crate::client::{Client, Core};
use crate::config::{ClientOptions, Interrupt};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::wait::Wait;
use crate::wire;

/// Time that the sidecar is given to have an order.
const POLL: Duration = Duration::from_secs(60);
/// Interval of reports: the sidecar takes two seconds without one for a stop.
const REPORT: Duration = Duration::from_millis(200);
/// Time after which a sidecar that is not there or refuses is asked again.
const AGAIN: Duration = Duration::from_millis(500);
/// Most time that a put waits until the sidecar knows whom to ask for copies of it.
const READY: Duration = Duration::from_secs(1);
/// Bytes from which on it pays to make the segment known to the driver.
const PINNED_FROM: u64 = 4 << 20;

/// State of the thread.
struct Work {
    core: Weak<Core>,
    gpus: Arc<StagedGpus>,
    options: ClientOptions,
}

/// Has the client's stager copy out of the memory of a GPU, from now on.
pub(super) fn serve(client: &Client, device: &Device) {
    let core = client.core();
    if !core.options.stages {
        return;
    }
    let mut known = core.staged_gpus.lock();
    if let Some(gpus) = &*known {
        return gpus.add(device);
    }
    let gpus = Arc::new(StagedGpus::default());
    gpus.add(device);
    let weak = Arc::downgrade(core);
    // The client's own interrupt is its interpreter's, which has no place here.
    let over = move || weak.strong_count() == 0;
    let name = format!("{} (stager)", core.options.name);
    let options = ClientOptions { stages: false, patience: Duration::ZERO, ..core.options.clone() };
    let options = options.name(&name).deadline(POLL).interrupt(over);
    let work = Work { core: Arc::downgrade(core), gpus: Arc::clone(&gpus), options };
    let started = thread::Builder::new().name("tensorlane-stager".into()).spawn(move || work.run());
    // Without the thread others do it, or nobody; the next use of a GPU tries again.
    *known = started.ok().map(|_| gpus);
}

/// Waits until the sidecar knows that copies out of a GPU are to be had: for a put, of which a reader may ask for one at once. After
/// a second, or at the call's deadline, it goes on without; so it does at once where the sidecar is older than such copies.
///
/// # Errors
/// The call was withdrawn.
pub(super) fn await_ready(
    client: &Client,
    device: &Device,
    connection: &Connection,
    wait: &Wait,
) -> Result<()> {
    let gpus = client.core().staged_gpus.lock().clone();
    match gpus.filter(|_| connection.sidecar().version >= STAGE_SINCE) {
        Some(gpus) => {
            gpus.await_known(device.uuid(), Instant::now() + READY, wait.instant(), || wait.check())
        }
        None => Ok(()),
    }
}

impl Work {
    fn run(self) {
        let mut client = None;
        while self.core.strong_count() > 0 {
            if client.is_none() {
                client = self.options.clone().connect().ok();
            }
            let ended = client.as_ref().map(|client| self.serve(client));
            if let Some(Ok(())) = ended {
                return;
            }
            client = None;
            self.gpus.know(Vec::new());
            // An older sidecar may be followed by another one, some day.
            let is_old = ended
                .is_some_and(|ended| ended.is_err_and(|error| error.reason() == Some(Reason::Unsupported)));
            if self.core.strong_count() > 0 {
                thread::park_timeout(if is_old { POLL } else { AGAIN });
            }
        }
    }

    /// Carries out orders, one after the other, until there is an error.
    fn serve(&self, client: &Client) -> Result<()> {
        let mut report = None;
        let (core, polled) = (Weak::clone(&self.core), Arc::clone(&self.gpus));
        let outdated: Interrupt = Arc::new(move || core.strong_count() == 0 || polled.is_outdated());
        while self.core.strong_count() > 0 {
            let devices = self.gpus.devices();
            let connection = client.connection(&client.wait(None))?;
            connection.require(
                STAGE_SINCE,
                "copies out of GPU memory need",
                "; use a sidecar of this release",
            )?;
            let cuda_uuids = devices.iter().map(|device| Bytes::copy_from_slice(&device.uuid().0)).collect();
            // The first answer comes at once, order or not: from then on the sidecar knows.
            let gpus: Vec<GpuUuid> = devices.iter().map(Device::uuid).collect();
            let is_news = !self.gpus.is_known(&gpus);
            // Another GPU ends this wait alone: what is copied meanwhile goes on.
            let wait = Wait::new(POLL, Some(Arc::clone(&outdated)), None);
            let deadline_ms = if is_news { 1 } else { wait.deadline_ms() };
            let cuda_driver = driver_version().unwrap_or(0);
            let request = v1::StageRequest { cuda_uuids, report: report.take(), deadline_ms, cuda_driver };
            let answer: Result<v1::StageResponse> =
                connection.call(SessionKind::Stage, &request, &wait, Late::Nothing);
            if is_news && answer.is_ok() {
                self.gpus.know(gpus);
            }
            match answer {
                Ok(v1::StageResponse { order: Some(order), .. }) => {
                    report = Some(self.carry_out(client, &connection, &order, &devices));
                }
                Ok(_) | Err(Error::DeadlineExceeded { .. } | Error::Withdrawn) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Copies a tensor out; the report of how it ended.
    fn carry_out(
        &self,
        client: &Client,
        connection: &Arc<Connection>,
        order: &v1::StageOrder,
        devices: &[Device],
    ) -> v1::StageReport {
        let mut report = v1::StageReport { order: order.order, over: true, ..v1::StageReport::default() };
        match self.copy(client, connection, order, devices) {
            Ok(written) => report.written = written,
            Err(error) => {
                let said = match error {
                    Error::Refused(failure) => *failure,
                    other => Failure::new(Reason::StagingFailed, other.to_string()),
                };
                report.failure = Some((&said).into());
            }
        }
        report
    }

    fn copy(
        &self,
        client: &Client,
        connection: &Arc<Connection>,
        order: &v1::StageOrder,
        devices: &[Device],
    ) -> Result<u64> {
        let location = order.location.as_ref().ok_or_else(|| wire::missing("the place of a copy"))?;
        let near = devices.first().ok_or_else(|| Error::invalid("no GPU is in use"))?;
        let device = |uuid| Ok(devices::found_near(near, uuid)?);
        let source = opened::open(connection, order.id, device, &client.wait(None))?;
        let segment = connection.segment(location.segment)?;
        let mut to = WriteView::new(Arc::clone(segment.mapping()), location.offset, location.bytes)
            .map_err(|error| Error::protocol(format!("a copy that cannot be written: {error}")))?;
        let pinned = (location.bytes >= PINNED_FROM).then(|| segment.pinned(source.device()));
        let mut reported = Instant::now();
        let mut gives_up = false;
        let goes_on = |written| {
            if reported.elapsed() < REPORT {
                return true;
            }
            reported = Instant::now();
            gives_up =
                self.core.strong_count() == 0 || !self.wanted(client, connection, order.order, written);
            !gives_up
        };
        let written = source.copy_to_view(0, &mut to, pinned, goes_on)?;
        match gives_up && written < location.bytes {
            true => Err(Failure::new(Reason::Cancelled, "the copy is not wanted any more").into()),
            false => Ok(written),
        }
    }

    /// Reports how far a copy is. Whether it is still wanted.
    fn wanted(&self, client: &Client, connection: &Connection, order: u64, written: u64) -> bool {
        let report = Some(v1::StageReport { order, written, ..v1::StageReport::default() });
        let cuda_uuids = vec![Bytes::copy_from_slice(&[0; 16])];
        let request = v1::StageRequest { cuda_uuids, report, ..v1::StageRequest::default() };
        let answer: Result<v1::StageResponse> =
            connection.call(SessionKind::Stage, &request, &client.wait(None), Late::Nothing);
        answer.is_ok_and(|answer| answer.wanted)
    }
}
