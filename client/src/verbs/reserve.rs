//! Reserve, seal and abort: writing a tensor where it will be read.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tensorlane_memory::WriteView;
use tensorlane_proto::Descriptor;
use tensorlane_proto::checksum;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;

use super::put::{self, PutOptions, Stored};
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::origin::Origin;
use crate::segments::Segment;
use crate::wire;

/// Room for one tensor, to be written and sealed. Dropped without that, it is given up.
#[must_use = "dropping a reservation gives it up"]
pub struct Reservation {
    client: Client,
    connection: Arc<Connection>,
    origin: Origin,
    id: u64,
    /// None for a tensor without bytes.
    write: Option<WriteView>,
    _segment: Option<Arc<Segment>>,
    descriptor: Descriptor,
    ended: bool,
}

impl Client {
    /// Makes room for a tensor that will be written in place.
    ///
    /// # Errors
    /// The sidecar's refusal (ARENA_FULL and how much is free), or what ended the call.
    pub fn reserve(&self, descriptor: &Descriptor) -> Result<Reservation> {
        self.reserve_within(descriptor, None)
    }

    pub(super) fn reserve_within(
        &self,
        descriptor: &Descriptor,
        deadline: Option<Duration>,
    ) -> Result<Reservation> {
        let wait = self.wait(deadline);
        let connection = self.connection(&wait)?;
        let item = v1::ReserveItem {
            retry_id: Bytes::copy_from_slice(&self.retry_id().0),
            descriptor: Some(descriptor.into()),
        };
        let request = v1::ReserveRequest { items: vec![item], deadline_ms: wait.deadline_ms() };
        let reply: v1::ReserveResponse =
            connection.call(SessionKind::Reserve, &request, &wait, Late::Reserved)?;
        match wire::single(reply.results)?.outcome {
            Some(v1::reserve_result::Outcome::Reserved(reserved)) => {
                self.reservation(connection, &reserved, descriptor)
            }
            Some(v1::reserve_result::Outcome::Failure(why)) => Err(wire::failure(why)),
            None => Err(wire::missing("an outcome")),
        }
    }

    fn reservation(
        &self,
        connection: Arc<Connection>,
        reserved: &v1::Reserved,
        descriptor: &Descriptor,
    ) -> Result<Reservation> {
        // First of all the guard: whatever goes wrong below, the reservation is given up.
        let mut reservation = Reservation {
            client: self.clone(),
            origin: connection.origin().again(),
            connection,
            id: reserved.id,
            write: None,
            _segment: None,
            descriptor: descriptor.clone(),
            ended: false,
        };
        let needed = descriptor.layout.bytes();
        if needed == 0 {
            return Ok(reservation);
        }
        let location =
            reserved.location.as_ref().ok_or_else(|| wire::missing("the place of a reservation"))?;
        let segment = reservation.connection.segment(location.segment)?;
        let write = WriteView::new(Arc::clone(segment.mapping()), location.offset, needed)
            .map_err(|error| Error::protocol(format!("a reservation that cannot be written: {error}")))?;
        reservation.write = Some(write);
        reservation._segment = Some(segment);
        Ok(reservation)
    }
}

impl Reservation {
    /// The id of the tensor at this peer.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Meaning that the bytes will have.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The bytes to write. None for a tensor without bytes.
    pub fn write(&mut self) -> Option<&mut WriteView> {
        self.write.as_mut()
    }

    /// Writes `from` at `offset`; large pieces with all cores.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where it does not fit.
    pub fn copy_from(&mut self, offset: u64, from: &[u8]) -> Result<()> {
        match &mut self.write {
            Some(write) => write.copy_from(offset, from).map_err(|error| Error::invalid(error.to_string())),
            None if from.is_empty() && offset == 0 => Ok(()),
            None => Err(Error::invalid(format!("{} bytes do not fit a tensor without bytes", from.len()))),
        }
    }

    /// Reads `len` bytes to `offset`, from those of a file that begin at `at`: straight there, without a copy between.
    ///
    /// # Errors
    /// `UnexpectedEof` where the file ends before, `InvalidInput` where the bytes do not fit the tensor, and those of the system.
    pub fn read_from(&mut self, offset: u64, len: u64, file: impl AsFd, at: u64) -> io::Result<()> {
        match &mut self.write {
            Some(write) => write.read_from(offset, len, file, at),
            None if len == 0 && offset == 0 => Ok(()),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Makes the tensor visible and immutable. Nothing may write to it afterwards.
    ///
    /// # Errors
    /// The sidecar's refusal (NAME_TAKEN, ...), or what ended the call. Nothing is left of the tensor then.
    pub fn seal(self, options: &PutOptions) -> Result<Stored> {
        let crc32c = match &self.write {
            Some(write) if options.checksum => Some(checksum(write)),
            None if options.checksum => Some(checksum::crc32c(&[])),
            _ => None,
        };
        self.seal_as(options, crc32c)
    }

    pub(super) fn seal_as(mut self, options: &PutOptions, crc32c: Option<u32>) -> Result<Stored> {
        let wait = self.client.wait(options.deadline);
        let retry_id = options.retry_id.unwrap_or_else(|| self.client.retry_id());
        let item = v1::SealItem {
            retry_id: Bytes::copy_from_slice(&retry_id.0),
            id: self.id,
            keep: Some(options.keep()),
            crc32c,
        };
        let request = v1::SealRequest { items: vec![item] };
        let reply: v1::SealResponse =
            self.connection.call(SessionKind::Seal, &request, &wait, options.late())?;
        let result = wire::single(reply.results)?;
        // A seal that was refused leaves the reservation, and so does the repeat of a put that had succeeded: its answer
        // names the first tensor. Either way nobody can use the reservation any more, and it is given up.
        self.ended = match &result.outcome {
            Some(v1::stored_result::Outcome::Stored(stored)) => stored.id == self.id,
            _ => false,
        };
        put::stored(&self.connection, result, options)
    }

    /// Reservation whose seal is a call of this client, and withdrawn with it.
    #[cfg(feature = "tokio")]
    pub(crate) fn of(mut self, client: &Client) -> Self {
        self.client = client.clone();
        self
    }

    /// Gives the reservation up, as dropping it does.
    pub fn abort(self) {}
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.abort(self.id, &self.origin);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("id", &self.id)
            .field("layout", &format_args!("{}", self.descriptor.layout))
            .finish_non_exhaustive()
    }
}

/// The CRC-32C of what was written.
fn checksum(write: &WriteView) -> u32 {
    let view = write.as_view();
    let mut part = vec![0; (256 << 10).min(view.len())];
    let mut crc = 0;
    let mut at = 0;
    while at < view.len() {
        let len = part.len().min(view.len() - at);
        view.copy_range_to(at as u64, &mut part[..len]).expect("the range lies inside the view");
        crc = checksum::crc32c_append(crc, &part[..len]);
        at += len;
    }
    crc
}
