//! A single replica leads, by a [lease](super::lease): it watches and writes. The others wait, and serve the webhook like it. What a
//! term does is behind a [`Fence`]: nothing is written once the lease was not renewed in time.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::AppError;
use super::args::Args;
use super::certificates::Announced;
use super::history::went_back;
use super::lease::{Leadership, Term};
use crate::certs::SecretPath;
use crate::metrics::Metrics;
use crate::reconcile::{Controller, Fence, Webhooks, apply_webhooks};

/// Delay until the configuration of the webhook is applied again when it could not be.
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
    let leadership = Leadership::new(client.clone(), &args.namespace, &args.lease, args.identity());
    loop {
        let mut term = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            term = leadership.won() => term,
        };
        tracing::info!(lease = args.lease, "this replica leads");
        metrics.leader.set(1);
        let why = lead(&client, &args, &configuration, &metrics, (&leadership, &mut term), &stop).await;
        metrics.leader.set(0);
        configuration.written.send_replace(None);
        tracing::info!(lease = args.lease, why, "this replica leads no more");
        leadership.give_back(&term).await;
    }
}

/// Works for one term, until `stop` or until the term ends; says why it did.
async fn lead(
    client: &Client,
    args: &Args,
    configuration: &Configuration,
    metrics: &Arc<Metrics>,
    (leadership, term): (&Leadership, &mut Term),
    stop: &CancellationToken,
) -> String {
    let fence = Fence::new(term.until());
    let work = fence.guard(work(client, args, configuration.clone(), metrics, stop));
    tokio::select! {
        // Where both are so, that the lease ran out is why.
        biased;
        () = stop.cancelled() => "it ends".to_owned(),
        done = work => match done {
            None => "the lease was not renewed in time, and another one may lead by now".to_owned(),
            Some(()) => "what it knows is of a history that the API server has given up".to_owned(),
        },
        why = leadership.keep(term) => why,
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
