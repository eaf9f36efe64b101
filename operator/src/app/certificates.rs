//! Keeps the webhook's certificate and path current: reads the Secret, makes what is to be made, shows the leaf,
//! opens the gate.
//!
//! Every replica does this. Whoever writes the Secret names the version that it has read, so of two that write at once
//! one loses and reads again.

use std::collections::BTreeMap;
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
use crate::certs::{
    BadPaths, CertError, Current, Kept, KeptError, Leaf, PATHS_KEY, SECRET_KEY, SecretPath, SecretPaths, now,
    read_files,
};
use crate::metrics::Metrics;
use crate::names::FIELD_MANAGER;
use crate::webhook::Gate;

/// Interval of looks at the Secret or the files: one small read. An authority signs an hour after it is made, so every
/// replica has seen it long before. Where somebody has deleted the Secret, calls fail until all have seen the next one.
const EVERY: Duration = Duration::from_secs(10);

/// Delay until it is tried again if there is no certificate yet.
const SOON: Duration = Duration::from_secs(1);

/// Parts of the webhook's configuration that come from the Secret.
#[derive(Clone, Debug, Default)]
pub(super) struct Announced {
    /// Certificates that callers have to trust; none where somebody else sees to it.
    pub(super) bundle: Option<String>,
    /// Path that they have to call; none before the Secret was read.
    pub(super) path: Option<SecretPath>,
}

/// The task.
pub(super) struct Keeper {
    pub(super) client: Client,
    pub(super) args: Args,
    pub(super) current: Current,
    /// Paths that the API server may call.
    pub(super) gate: Gate,
    /// For the leader.
    pub(super) announced: watch::Sender<Announced>,
    /// Path that this replica has written into the configuration; none while it does not lead.
    pub(super) written: watch::Receiver<Option<SecretPath>>,
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
    #[error(transparent)]
    Paths(#[from] BadPaths),
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
                    tracing::warn!(%error, "the webhook's certificate and path cannot be kept current");
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
        }
        let (kept, paths) = self.kept(now).await?;
        self.gate.set(paths.accepted());
        if self.args.webhook_certificates.is_some() {
            self.announced.send_replace(Announced { bundle: None, path: paths.announced(now) });
            return Ok(());
        }
        let Some(authority) = kept.step(now).signer.and_then(|signer| kept.authority(signer)) else {
            return Err(KeepError::Conflict);
        };
        let old = |leaf: &Leaf| leaf_is_old(now, leaf.made, leaf.authority, authority.made);
        if self.current.leaf().as_ref().is_none_or(old) {
            self.show(authority.sign(&self.args.webhook_names(), now)?);
            tracing::info!(authority = authority.made, "the webhook has a new certificate");
        }
        let (bundle, path) = (Some(kept.bundle()), paths.announced(now));
        self.announced.send_replace(Announced { bundle, path });
        Ok(())
    }

    fn show(&self, leaf: Leaf) {
        self.metrics.certificate_expiry.set(i64::try_from(leaf.until).unwrap_or(i64::MAX));
        self.current.set(leaf);
    }

    /// Returns the content of the Secret, after whatever is to be done now. Authorities are made only where nobody
    /// else makes certificates.
    async fn kept(&self, now: u64) -> Result<(Kept, SecretPaths), KeepError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.args.namespace);
        let found = secrets.get_opt(&self.args.webhook_secret).await.map_err(Box::new)?;
        let bytes = |key: &str| found.as_ref().and_then(|secret| secret.data.as_ref()?.get(key));
        let mut kept = bytes(SECRET_KEY).map_or_else(|| Ok(Kept::default()), |bytes| Kept::read(&bytes.0))?;
        let paths = bytes(PATHS_KEY).map_or_else(|| Ok(SecretPaths::default()), |b| SecretPaths::read(&b.0));
        let paths = paths?;
        let mut changed: BTreeMap<String, ByteString> = BTreeMap::new();
        let next =
            if self.args.webhook_certificates.is_none() { kept.after(&kept.step(now), now)? } else { None };
        if let Some(next) = next {
            kept = next;
            changed.insert(SECRET_KEY.to_owned(), ByteString(kept.to_bytes()?));
        }
        let next = paths.after(now, self.written.borrow().as_ref());
        let can_do_without = changed.is_empty() && paths.announced(now).is_some();
        if let Some(next) = &next {
            changed.insert(PATHS_KEY.to_owned(), ByteString(next.to_bytes()?));
        }
        if !changed.is_empty() {
            match self.write(&secrets, found, changed).await {
                // The path that there is serves, and certificates are made all the same.
                Err(error) if can_do_without => {
                    tracing::warn!(%error, "the next path of the webhook cannot be kept");
                    return Ok((kept, paths));
                }
                written => written?,
            }
        }
        Ok((kept, next.unwrap_or(paths)))
    }

    /// Writes these keys of the Secret, in the version that was found.
    async fn write(
        &self,
        secrets: &Api<Secret>,
        found: Option<Secret>,
        changed: BTreeMap<String, ByteString>,
    ) -> Result<(), KeepError> {
        let name = &self.args.webhook_secret;
        let mut secret = found.clone().unwrap_or_default();
        secret.metadata.name = Some(name.clone());
        secret.data.get_or_insert_default().extend(changed);
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = match found {
            None => secrets.create(&parameters, &secret).await,
            Some(_) => secrets.replace(name, &parameters, &secret).await,
        };
        match written {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                Err(KeepError::Conflict)
            }
            Err(error) => Err(KeepError::Kube(Box::new(error))),
        }
    }
}

#[cfg(test)]
mod tests;
