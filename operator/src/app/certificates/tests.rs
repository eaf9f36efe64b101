//! Two replicas that find the same Secret in need of the same change.

use std::sync::Mutex;

use clap::Parser;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::certs::Authority;
use crate::certs::rotation::AUTHORITY_LIFE_SECONDS;

/// An API server with one Secret, and another replica that is always a little faster.
#[derive(Default)]
struct Twin {
    /// Content that is kept, and its version.
    secret: Option<(u64, Kept)>,
    /// Content that the other one writes just before the next write.
    other: Option<Kept>,
    writes: u32,
}

impl Twin {
    fn answer(&mut self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
        if method == Method::GET {
            return self.secret.as_ref().map_or_else(|| refusal(404, "NotFound"), shown);
        }
        self.writes += 1;
        if let Some(other) = self.other.take() {
            self.secret = Some((self.secret.as_ref().map_or(1, |(version, _)| version + 1), other));
        }
        let written: Value = serde_json::from_slice(body).unwrap();
        let named = written["metadata"]["resourceVersion"].as_str();
        let next = match (&self.secret, named) {
            (None, None) => 1,
            (Some((version, _)), Some(named)) if version.to_string() == named => version + 1,
            (Some(_), None) if method == Method::POST => return refusal(409, "AlreadyExists"),
            _ => return refusal(409, "Conflict"),
        };
        let bytes: ByteString = serde_json::from_value(written["data"][SECRET_KEY].clone()).unwrap();
        shown(self.secret.insert((next, Kept::read(&bytes.0).unwrap())))
    }
}

fn shown((version, kept): &(u64, Kept)) -> (StatusCode, Value) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "tensorlane-webhook-ca", "namespace": "system", "resourceVersion": version.to_string()},
        "data": {SECRET_KEY: ByteString(kept.to_bytes().unwrap())},
    });
    (StatusCode::OK, secret)
}

fn refusal(code: u16, reason: &str) -> (StatusCode, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": reason,
    });
    (StatusCode::from_u16(code).unwrap(), status)
}

fn keeper(twin: &Arc<Mutex<Twin>>) -> Keeper {
    let twin = Arc::clone(twin);
    let service = tower::service_fn(move |request: Request<Body>| {
        let twin = Arc::clone(&twin);
        async move {
            let method = request.method().clone();
            let body = request.into_body().collect_bytes().await?;
            let (code, answer) = twin.lock().unwrap().answer(&method, &body);
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            Ok::<_, kube::Error>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    let words = ["operator", "--pod-name=a", "--namespace=system", "--sidecar-image=x"];
    Keeper {
        client: Client::new(service, "system"),
        args: Args::try_parse_from(words).unwrap(),
        current: Current::default(),
        bundle: watch::channel(None).0,
        readiness: Readiness::default(),
        metrics: Arc::new(Metrics::new().unwrap()),
    }
}

/// Returns the content that is kept after what is to be done with this.
fn after(kept: &Kept, now: u64) -> Kept {
    kept.after(&kept.step(now), now).unwrap().unwrap()
}

#[tokio::test]
async fn of_two_that_write_at_once_one_loses_and_takes_what_the_other_has_written() {
    let now = now();
    let old = Authority::make(now - AUTHORITY_LIFE_SECONDS / 3 * 2).unwrap();
    let old = Kept::read(&serde_json::to_vec(&json!({"authorities": [old]})).unwrap()).unwrap();
    for (what, before) in [("the first authority", None), ("the next authority", Some((7, old)))] {
        let others = after(before.as_ref().map_or(&Kept::default(), |(_, kept)| kept), now);
        let twin =
            Arc::new(Mutex::new(Twin { secret: before, other: Some(others.clone()), ..Twin::default() }));
        let keeper = keeper(&twin);
        assert!(matches!(keeper.once().await, Err(KeepError::Conflict)), "{what}");
        assert!(keeper.current.leaf().is_none(), "{what}: it shows what nobody keeps");
        keeper.once().await.unwrap();
        let twin = twin.lock().unwrap();
        assert_eq!(twin.secret.as_ref().map(|(_, kept)| kept), Some(&others), "{what}");
        assert_eq!(keeper.bundle.borrow().as_deref(), Some(others.bundle().as_str()), "{what}");
        let signer = others.step(now).signer;
        assert_eq!(keeper.current.leaf().map(|leaf| leaf.authority), signer, "{what}");
        assert_eq!(twin.writes, 1, "{what}: it reads again, and has nothing to write");
    }
}

#[tokio::test]
async fn whoever_is_alone_writes_the_version_that_it_has_read() {
    let now = now();
    let old = Authority::make(now - AUTHORITY_LIFE_SECONDS / 3 * 2).unwrap();
    let old = Kept::read(&serde_json::to_vec(&json!({"authorities": [old]})).unwrap()).unwrap();
    let twin = Arc::new(Mutex::new(Twin { secret: Some((7, old.clone())), ..Twin::default() }));
    let keeper = keeper(&twin);
    keeper.once().await.unwrap();
    let twin = twin.lock().unwrap();
    let (version, kept) = twin.secret.as_ref().unwrap();
    assert_eq!(*version, 8);
    assert!(kept.bundle().starts_with(&old.bundle()) && kept.bundle().len() > old.bundle().len());
}
