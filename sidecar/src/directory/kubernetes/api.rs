//! The three requests that this directory makes, with their limits: list, watch, write the status.

use std::time::Duration;

use kube::Resource as _;
use kube::api::{ListParams, ObjectList, Patch, PatchParams, Request, VersionMatch, WatchEvent, WatchParams};
use kube::{Client, Error};
use serde_json::Value;
use tensorlane_proto::crd::TensorPeer;
use tokio_stream::Stream;

use super::KubernetesSettings;
use super::object::SeenPeer;

/// Name of who wrote a field, in the API server's books.
const FIELD_MANAGER: &str = "tensorlane-sidecar";

/// Objects of one page of what is stored: half a megabyte or so at a time.
const PAGE: u32 = 250;

/// HTTP status of an API server that has too much to do, also while its cache is being filled.
const TOO_MANY_REQUESTS: u16 = 429;

/// HTTP status of a token that is not accepted.
const UNAUTHORIZED: u16 = 401;

/// Advice to whoever reads of a refused token.
const TOKEN_REFUSED: &str = "401: the token is not accepted: it has expired, or its pod or account is gone. It is that of peers.kubeconfig, or in a pod \
    /var/run/secrets/kubernetes.io/serviceaccount/token, which is read again within a minute";

/// Version that any list is as new as.
const ANY: &str = "0";

/// Source of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListSource<'a> {
    /// Everything that is stored, as it is now, in pages: a read by a quorum of etcd, where the API server cannot
    /// answer it from its memory.
    Stored,
    /// The API server's memory, whole, as new as this version; empty for any. Each peer takes some two kilobytes of
    /// it for a moment.
    Cache(&'a str),
}

/// Reason for which a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// The API server refused, or was not reached.
    #[error("{}", told(.0))]
    Kube(#[from] Box<Error>),
    /// No answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Slow(Duration),
    /// The watch ended as soon as it began.
    #[error("the watch {0}")]
    Watch(&'static str),
    /// Nothing came on the watch for so long.
    #[error("the watch was silent for {} s", .0.as_secs())]
    Silent(Duration),
}

/// The whole chain: `client error (Connect)` alone helps nobody. Whose token is refused is told which one it is.
fn told(error: &Error) -> String {
    let mut text = error.to_string();
    if matches!(error, Error::Api(status) if status.code == UNAUTHORIZED) {
        return format!("{text}; {TOKEN_REFUSED}");
    }
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        ApiError::Kube(Box::new(error))
    }
}

impl ApiError {
    /// The HTTP status that the API server answered with.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            ApiError::Kube(error) => match &**error {
                Error::Api(status) => Some(status.code),
                _ => None,
            },
            ApiError::Slow(_) | ApiError::Watch(_) | ApiError::Silent(_) => None,
        }
    }

    /// Returns whether nobody answered, or the API server has too much to do: what is asked for is no reason of it.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            ApiError::Kube(error) => {
                !matches!(&**error, Error::Api(status) if status.code != TOO_MANY_REQUESTS)
            }
            ApiError::Slow(_) | ApiError::Watch(_) | ApiError::Silent(_) => false,
        }
    }

    /// Time that the API server asks us to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let ApiError::Kube(error) = self else { return None };
        let Error::Api(status) = &**error else { return None };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }
}

/// The requests, for the peers of one exchange.
#[derive(Clone)]
pub(super) struct Api {
    client: Client,
    path: String,
    selector: String,
    /// The object of this peer.
    own: String,
    timeout: Duration,
}

impl Api {
    pub(super) fn new(client: Client, settings: &KubernetesSettings, timeout: Duration) -> Api {
        Api {
            client,
            path: TensorPeer::url_path(&(), Some(&settings.namespace)),
            // A selectable field: objects of other exchanges are neither sent nor seen.
            selector: format!("spec.exchange={}", settings.exchange),
            own: settings.peer.to_string(),
            timeout,
        }
    }

    /// The name of this peer's object.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// Text that says where the objects are and which of them, for logs.
    pub(super) fn what(&self) -> String {
        format!("{}?fieldSelector={}", self.path, self.selector)
    }

    /// Lists one page, the first one unless `next` says otherwise.
    pub(super) async fn list(
        &self,
        source: ListSource<'_>,
        next: Option<String>,
    ) -> Result<ObjectList<SeenPeer>, ApiError> {
        let params = ListParams { continue_token: next, ..ListParams::default().fields(&self.selector) };
        let params = match source {
            ListSource::Stored => params.limit(PAGE),
            // With a limit the API server would ask etcd.
            ListSource::Cache(version) => {
                let version = if version.is_empty() { ANY } else { version };
                params.matching(VersionMatch::NotOlderThan).at(version)
            }
        };
        let request = Request::new(&self.path).list(&params).map_err(Error::BuildRequest)?;
        self.in_time(self.client.request(request)).await
    }

    /// Watches what changes after `version`, for so many seconds.
    pub(super) async fn watch(
        &self,
        version: &str,
        seconds: u32,
    ) -> Result<impl Stream<Item = Result<WatchEvent<SeenPeer>, Error>> + use<>, ApiError> {
        let params = WatchParams::default().fields(&self.selector).timeout(seconds);
        let request = Request::new(&self.path).watch(&params, version).map_err(Error::BuildRequest)?;
        self.in_time(self.client.request_events(request)).await
    }

    /// Writes the status of this peer's object: server-side apply, so that what others say there stays. The object as it
    /// stands after that.
    pub(super) async fn write(&self, body: &Value) -> Result<SeenPeer, ApiError> {
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let request =
            Request::new(&self.path).patch_subresource("status", &self.own, &params, &Patch::Apply(body));
        let request = request.map_err(Error::BuildRequest)?;
        self.in_time(self.client.request(request)).await
    }

    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, ApiError> {
        let answer = tokio::time::timeout(self.timeout, answer).await;
        Ok(answer.map_err(|_| ApiError::Slow(self.timeout))??)
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answered(code: u16) -> ApiError {
        Error::Api(Box::new(Status::failure("no", "No").with_code(code))).into()
    }

    #[test]
    fn a_refused_token_is_told_with_its_code_and_its_file() {
        let text = answered(401).to_string();
        assert!(text.contains("401") && text.contains("/serviceaccount/token"), "{text}");
        assert!(!answered(403).to_string().contains("/serviceaccount/token"));
    }

    #[test]
    fn an_api_server_that_is_away_or_busy_is_no_reason_to_ask_etcd() {
        assert!(answered(429).is_outage());
        assert!(!answered(504).is_outage() && !answered(403).is_outage());
        assert!(!ApiError::Silent(Duration::ZERO).is_outage());
    }
}
