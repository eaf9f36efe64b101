//! Keeps the webhook's certificate current: reads the Secret, makes what is to be made, shows the leaf.
//!
//! Every replica does this. Whoever writes the Secret names the version that it has read, so of two that write at once
//! one loses and reads again.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::AppError;
use super::admin::Readiness;
use super::args::Args;
use crate::certs::rotation::leaf_is_old;
use crate::certs::{CertError, Current, Kept, KeptError, Leaf, SECRET_KEY, now, read_files};
use crate::metrics::Metrics;
use crate::names::FIELD_MANAGER;

/// Interval of looks at the Secret or the files: one small read. An authority signs an hour after it is made, so every
/// replica has seen it long before. Where somebody has deleted the Secret, calls fail until all have seen the next one.
const EVERY: Duration = Duration::from_secs(10);

/// Delay until it is tried again if there is no certificate yet.
const SOON: Duration = Duration::from_secs(1);

/// The task.
pub(super) struct Keeper {
    pub(super) client: Client,
    pub(super) args: Args,
    pub(super) current: Current,
    /// Certificates that callers have to trust, for the leader.
    pub(super) bundle: watch::Sender<Option<String>>,
    pub(super) readiness: Readiness,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Debug, Error)]
enum KeepError {
    #[error(transparent)]
    Kube(#[from] Box<kube::Error>),
    #[error(transparent)]
    Kept(#[from] KeptError),
    #[error(transparent)]
    Cert(#[from] CertError),
    #[error("another replica has written the Secret at the same time")]
    Conflict,
}

impl Keeper {
    pub(super) async fn run(self, stop: CancellationToken) -> Result<(), AppError> {
        loop {
            let wait = match self.once().await {
                Ok(()) => {
                    self.readiness.set();
                    EVERY
                }
                Err(KeepError::Conflict) => SOON,
                Err(error) => {
                    tracing::warn!(%error, "the webhook's certificate cannot be kept current");
                    if self.current.leaf().is_some() { EVERY } else { SOON }
                }
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn once(&self) -> Result<(), KeepError> {
        let now = now();
        if let Some(directory) = &self.args.webhook_certificates {
            let leaf = read_files(directory, now)?;
            if self.current.leaf().is_none_or(|old| old.key.cert != leaf.key.cert) {
                self.show(leaf);
            }
            return Ok(());
        }
        let kept = self.kept(now).await?;
        let Some(authority) = kept.step(now).signer.and_then(|signer| kept.authority(signer)) else {
            return Err(KeepError::Conflict);
        };
        let old = |leaf: &Leaf| leaf_is_old(now, leaf.made, leaf.authority, authority.made);
        if self.current.leaf().as_ref().is_none_or(old) {
            self.show(authority.sign(&self.args.webhook_names(), now)?);
            tracing::info!(authority = authority.made, "the webhook has a new certificate");
        }
        self.bundle.send_replace(Some(kept.bundle()));
        Ok(())
    }

    fn show(&self, leaf: Leaf) {
        self.metrics.certificate_expiry.set(i64::try_from(leaf.until).unwrap_or(i64::MAX));
        self.current.set(leaf);
    }

    /// Returns the content of the Secret, after whatever is to be done now.
    async fn kept(&self, now: u64) -> Result<Kept, KeepError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.args.namespace);
        let name = &self.args.webhook_secret;
        let found = secrets.get_opt(name).await.map_err(Box::new)?;
        let bytes = found.as_ref().and_then(|secret| secret.data.as_ref()?.get(SECRET_KEY));
        let kept = bytes.map_or_else(|| Ok(Kept::default()), |bytes| Kept::read(&bytes.0))?;
        let Some(changed) = kept.after(&kept.step(now), now)? else { return Ok(kept) };
        let mut secret = found.clone().unwrap_or_default();
        secret.metadata.name = Some(name.clone());
        secret.data.get_or_insert_default().insert(SECRET_KEY.to_owned(), ByteString(changed.to_bytes()?));
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = match found {
            None => secrets.create(&parameters, &secret).await,
            Some(_) => secrets.replace(name, &parameters, &secret).await,
        };
        match written {
            Ok(_) => Ok(changed),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                Err(KeepError::Conflict)
            }
            Err(error) => Err(KeepError::Kube(Box::new(error))),
        }
    }
}

#[cfg(test)]
mod tests;
