//! A single replica leads, by a Lease: it watches and writes. The others wait, and serve the webhook like it. One that
//! stood still while its lease ran out goes on with nothing: see [`Fence`], also for what that does not cover. Above
//! all, one whose renewals fail while it runs goes on writing until it sees that another has the lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use kube_lease_manager::LeaseManagerBuilder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::AppError;
use super::args::Args;
use super::certificates::Announced;
use super::history::went_back;
use crate::certs::SecretPath;
use crate::metrics::Metrics;
use crate::reconcile::{Controller, Fence, Webhooks, apply_webhooks};

/// Time that a leader that is gone keeps the others waiting.
const LEASE_SECONDS: u64 = 15;

/// Time before the end of a lease at which it is renewed.
const GRACE_SECONDS: u64 = 5;

/// Time that a leader may stand still. The other half of the grace is for clocks that differ.
const STILL: Duration = Duration::from_millis(GRACE_SECONDS * 1_000 / 2);

/// Time that it may take to give the lease back; after that it runs out by itself.
const GIVE_BACK: Duration = Duration::from_secs(10);

/// Delay until the lease is asked for again when it could not be.
const RETRY: Duration = Duration::from_secs(5);

/// Interval at which the configuration of the webhook is applied again, because nobody watches it. For so long pods are refused after
/// somebody has put the chart's own in its place, which names no authority and no path.
const AGAIN: Duration = Duration::from_secs(10);

/// Parts of the webhook's configuration that the leader writes, and the path that it has written.
#[derive(Clone)]
pub(super) struct Configuration {
    pub(super) announced: watch::Receiver<Announced>,
    /// Path that this replica has written; none while it does not lead.
    pub(super) written: watch::Sender<Option<SecretPath>>,
}

/// Leads whenever it can, until `stop`.
pub(super) async fn run(
    client: Client,
    args: Args,
    configuration: Configuration,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<(), AppError> {
    while !stop.is_cancelled() {
        let builder = LeaseManagerBuilder::new(client.clone(), args.lease.clone())
            .with_namespace(args.namespace.clone())
            .with_identity(args.identity())
            .with_duration(LEASE_SECONDS)
            .with_grace(GRACE_SECONDS);
        match builder.build().await {
            Ok(manager) => {
                let (mut leads, mut task) = manager.watch().await;
                terms(&client, &args, &configuration, &metrics, &mut leads, &stop).await;
                // The lease is given back, so that another replica leads at once.
                drop(leads);
                match tokio::time::timeout(GIVE_BACK, &mut task).await {
                    Ok(Ok(Err(error))) => tracing::warn!(%error, "the lease cannot be kept"),
                    Ok(_) => {}
                    Err(_) => {
                        task.abort();
                        tracing::warn!("the lease is not given back: the API server does not answer");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the lease cannot be asked for"),
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
    Ok(())
}

/// Leads in every term that this replica gets, until `stop` or until the lease cannot be kept.
async fn terms(
    client: &Client,
    args: &Args,
    configuration: &Configuration,
    metrics: &Arc<Metrics>,
    leads: &mut watch::Receiver<bool>,
    stop: &CancellationToken,
) {
    loop {
        while !*leads.borrow_and_update() {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = leads.changed() => if changed.is_err() { return },
            }
        }
        tracing::info!(lease = args.lease, "this replica leads");
        metrics.leader.set(1);
        let term = stop.child_token();
        let mut ended = false;
        let fence = Fence::new(STILL, Instant::now());
        let work = fence.guard(work(client, args, configuration.clone(), metrics, &term));
        let lost = leads.wait_for(|leads| !leads);
        tokio::select! {
            // Where both are so, that it stood still is why.
            biased;
            done = work => if done.is_none() {
                // Whose the lease is now is asked from the beginning.
                ended = true;
                tracing::warn!(lease = args.lease, "this replica stood still: another one may lead by now");
            },
            lost = lost => {
                ended = lost.is_err();
                tracing::info!(lease = args.lease, "this replica leads no more");
            }
        }
        term.cancel();
        metrics.leader.set(0);
        configuration.written.send_replace(None);
        if ended || stop.is_cancelled() {
            return;
        }
    }
}

/// The work of one term, which ends early where what it knows is of a history that the API server has given up. It ends when it is
/// dropped, too: nothing of it is spawned.
async fn work(
    client: &Client,
    args: &Args,
    configuration: Configuration,
    metrics: &Arc<Metrics>,
    term: &CancellationToken,
) {
    let (wanted, gpu_namespaces) = watch::channel(None);
    let controller = Controller::run(client, &args.namespace, Arc::clone(metrics), wanted, term.clone());
    // On the heap, because it is large.
    let work = Box::pin(async {
        tokio::join!(controller, configure(client, args, configuration, gpu_namespaces, metrics, term))
    });
    tokio::select! {
        _ = work => {}
        () = went_back(client) => {}
    }
}

/// Applies the configuration of the webhook whenever something in it is to change, and from time to time.
async fn configure(
    client: &Client,
    args: &Args,
    Configuration { mut announced, written }: Configuration,
    mut gpu_namespaces: watch::Receiver<Option<Vec<String>>>,
    metrics: &Metrics,
    term: &CancellationToken,
) {
    let own = args.webhook_certificates.is_none();
    // Their pods are refused by nobody: an exchange there asks in vain.
    let excluded = args.excluded();
    loop {
        let mut wanting = gpu_namespaces.borrow_and_update().clone();
        if let Some(names) = &mut wanting {
            names.retain(|name| !excluded.contains(name));
        }
        let Announced { bundle, path } = announced.borrow_and_update().clone();
        let webhooks = Webhooks { bundle: bundle.filter(|_| own), path, gpu_namespaces: wanting };
        let mut wait = AGAIN;
        if let Some(path) = webhooks.path.as_ref().filter(|_| webhooks.bundle.is_some() || !own) {
            let applied =
                apply_webhooks(client, &args.webhook_configuration, &args.namespace, &webhooks).await;
            metrics.reconciled("webhooks", applied.is_ok());
            if let Err(error) = applied {
                // An API server may say what it was sent.
                let error = path.out_of(&error.to_string());
                tracing::warn!(error, "the configuration of the webhook cannot be applied");
                wait = RETRY;
            } else if webhooks.gpu_namespaces.is_some() {
                // Before that the entry of pods with GPUs calls the path of before.
                written.send_replace(Some(path.clone()));
            }
        }
        tokio::select! {
            () = term.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            changed = announced.changed() => if changed.is_err() { return },
            changed = gpu_namespaces.changed() => if changed.is_err() { return },
        }
    }
}
