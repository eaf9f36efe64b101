//! The asynchronous face: each method runs the synchronous core on tokio's blocking pool.
//!
//! A call that would wait for another peer or for a name occupies a thread of that pool, nothing else. Dropping a future
//! withdraws its call: the sidecar is told, and what came all the same is given back.

use std::time::Duration;

use tensorlane_proto::{Descriptor, PeerName, Reference};
use tokio::task::{JoinError, spawn_blocking};

use crate::client::Client;
use crate::config::ClientOptions;
use crate::describe::{Description, Listed};
use crate::error::{Error, Result};
use crate::target::{AcquireOptions, Target};
use crate::tensor::{Lease, Tensor};
use crate::verbs::{Fetched, Naming, PutOptions, Reservation, Stored};
use crate::wait::Cancel;
use crate::{PeerStatus, Status};

/// A [`Client`] for asynchronous programs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AsyncClient {
    client: Client,
}

/// Withdraws a call when its future is dropped before the call has ended.
struct Withdraw {
    cancel: Cancel,
    has_ended: bool,
}

impl Drop for Withdraw {
    fn drop(&mut self) {
        if !self.has_ended {
            self.cancel.cancel();
        }
    }
}

impl From<Client> for AsyncClient {
    fn from(client: Client) -> Self {
        Self { client }
    }
}

impl AsyncClient {
    /// Connects.
    ///
    /// # Errors
    /// As [`ClientOptions::connect`].
    pub async fn connect(options: ClientOptions) -> Result<Self> {
        let client = spawn_blocking(move || options.connect()).await.map_err(ended)??;
        Ok(Self { client })
    }

    /// The synchronous client beneath.
    pub fn sync(&self) -> &Client {
        &self.client
    }

    /// Runs any calls of the synchronous client; they are withdrawn when the future is dropped. What they have made once they end, such
    /// as a reservation or a set, goes on.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut withdraw = Withdraw { cancel: Cancel::new(), has_ended: false };
        let client = self.client.with_cancel(withdraw.cancel.clone());
        let done = spawn_blocking(move || work(&client)).await;
        // What was made has this client for its own calls.
        withdraw.has_ended = true;
        done.map_err(ended)?
    }

    /// See [`Client::put`].
    ///
    /// # Errors
    /// As there.
    pub async fn put(
        &self,
        descriptor: Descriptor,
        bytes: impl AsRef<[u8]> + Send + 'static,
        options: PutOptions,
    ) -> Result<Stored> {
        self.run(move |client| client.put(&descriptor, bytes.as_ref(), &options)).await
    }

    /// See [`Client::reserve`].
    ///
    /// # Errors
    /// As there.
    pub async fn reserve(&self, descriptor: Descriptor) -> Result<Reservation> {
        self.run(move |client| client.reserve(&descriptor)).await
    }

    /// See [`Reservation::seal`].
    ///
    /// # Errors
    /// As there.
    pub async fn seal(&self, reservation: Reservation, options: PutOptions) -> Result<Stored> {
        self.run(move |client| reservation.of(client).seal(&options)).await
    }

    /// See [`Client::acquire`].
    ///
    /// # Errors
    /// As there.
    pub async fn acquire(&self, target: impl Into<Target>, options: AcquireOptions) -> Result<Tensor> {
        let target = target.into();
        self.run(move |client| client.acquire(target, &options)).await
    }

    /// See [`Client::acquire_many`].
    ///
    /// # Errors
    /// None of its own: each tensor has its result.
    pub async fn acquire_many(
        &self,
        targets: Vec<Target>,
        options: AcquireOptions,
    ) -> Result<Vec<Result<Tensor>>> {
        self.run(move |client| Ok(client.acquire_many(&targets, &options))).await
    }

    /// See [`Client::get`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(&self, target: impl Into<Target>, options: AcquireOptions) -> Result<Fetched> {
        let target = target.into();
        self.run(move |client| client.get(target, &options)).await
    }

    /// See [`Client::redeem`].
    ///
    /// # Errors
    /// As there.
    pub async fn redeem(&self, ticket: String) -> Result<Tensor> {
        self.run(move |client| client.redeem(&ticket, None)).await
    }

    /// See [`Client::ticket`].
    ///
    /// # Errors
    /// As there.
    pub async fn ticket(
        &self,
        target: impl Into<Target>,
        ttl: Option<Duration>,
        uses: u32,
    ) -> Result<String> {
        let target = target.into();
        self.run(move |client| client.ticket(target, ttl, uses)).await
    }

    /// See [`Client::describe`].
    ///
    /// # Errors
    /// As there.
    pub async fn describe(&self, target: impl Into<Target>) -> Result<Description> {
        let target = target.into();
        self.run(move |client| client.describe(target)).await
    }

    /// See [`Client::list`]; all pages at once.
    ///
    /// # Errors
    /// The first one.
    pub async fn list(&self, prefix: String) -> Result<Vec<Listed>> {
        self.run(move |client| client.list(&prefix).collect()).await
    }

    /// See [`Client::name`].
    ///
    /// # Errors
    /// As there.
    pub async fn name(
        &self,
        target: impl Into<Target>,
        name: String,
        replaces: Option<Reference>,
    ) -> Result<()> {
        let target = target.into();
        self.run(move |client| client.name(target, &name, replaces.as_ref())).await
    }

    /// See [`Client::name_together`].
    ///
    /// # Errors
    /// As there.
    pub async fn name_together(&self, items: Vec<Naming>) -> Result<()> {
        self.run(move |client| client.name_together(&items)).await
    }

    /// See [`Client::lease_names`].
    ///
    /// # Errors
    /// As there.
    pub async fn lease_names(&self, prefix: String) -> Result<Vec<(String, Lease)>> {
        self.run(move |client| client.lease_names(&prefix)).await
    }

    /// See [`Client::unname`].
    ///
    /// # Errors
    /// As there.
    pub async fn unname(&self, names: Vec<String>) -> Result<Vec<Result<()>>> {
        self.run(move |client| client.unname(&names)).await
    }

    /// See [`Client::lookup`].
    ///
    /// # Errors
    /// As there.
    pub async fn lookup(
        &self,
        names: Vec<String>,
        peer: Option<PeerName>,
        wait: Duration,
    ) -> Result<Vec<Result<Description>>> {
        self.run(move |client| client.lookup(&names, peer.as_ref(), wait)).await
    }

    /// See [`Client::status`].
    ///
    /// # Errors
    /// As there.
    pub async fn status(&self) -> Result<Status> {
        self.run(Client::status).await
    }

    /// See [`Client::peers`].
    ///
    /// # Errors
    /// As there.
    pub async fn peers(&self) -> Result<Vec<PeerStatus>> {
        self.run(Client::peers).await
    }
}

/// The blocking pool gives a call up only when the runtime ends. A panic goes on where it belongs.
fn ended(error: JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Error::Withdrawn,
    }
}
