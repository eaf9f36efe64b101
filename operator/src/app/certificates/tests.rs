//! Two replicas that find the same Secret in need of the same change, and what is made of a Secret.

use std::sync::Mutex;

use clap::Parser;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::certs::rotation::AUTHORITY_LIFE_SECONDS;
use crate::certs::{ANNOUNCE_AFTER_SECONDS, Authority, CHANGE_AFTER_SECONDS};

/// Content of a Secret.
type Data = BTreeMap<String, ByteString>;

/// An API server with one Secret, and another replica that is always a little faster.
#[derive(Default)]
struct Twin {
    /// Content that is kept, and its version.
    secret: Option<(u64, Data)>,
    /// Content that the other one writes just before the next write.
    other: Option<Data>,
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
        shown(self.secret.insert((next, serde_json::from_value(written["data"].clone()).unwrap())))
    }
}

fn shown((version, data): &(u64, Data)) -> (StatusCode, Value) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "tensorlane-webhook-ca", "namespace": "system", "resourceVersion": version.to_string()},
        "data": data,
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

fn keeper_with(twin: &Arc<Mutex<Twin>>, more: &[&str]) -> Keeper {
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
        args: Args::try_parse_from(words.iter().chain(more)).unwrap(),
        current: Current::default(),
        gate: Gate::default(),
        announced: watch::channel(Announced::default()).0,
        written: watch::channel(None).1,
        readiness: Readiness::default(),
        metrics: Arc::new(Metrics::new().unwrap()),
    }
}

fn keeper(twin: &Arc<Mutex<Twin>>) -> Keeper {
    keeper_with(twin, &[])
}

fn twin(data: Option<Data>) -> Arc<Mutex<Twin>> {
    Arc::new(Mutex::new(Twin { secret: data.map(|data| (7, data)), ..Twin::default() }))
}

/// Returns the content that is kept after what is to be done with this.
fn after(kept: &Kept, now: u64) -> Kept {
    kept.after(&kept.step(now), now).unwrap().unwrap()
}

/// An authority that is to be followed by the next one.
fn old(now: u64) -> Kept {
    let old = Authority::make(now - AUTHORITY_LIFE_SECONDS / 3 * 2).unwrap();
    Kept::read(&serde_json::to_vec(&json!({"authorities": [old]})).unwrap()).unwrap()
}

fn paths(made: u64) -> SecretPaths {
    SecretPaths::default().after(made, None).unwrap()
}

fn data(kept: &Kept, paths: &SecretPaths) -> Data {
    let kept = (SECRET_KEY.to_owned(), ByteString(kept.to_bytes().unwrap()));
    [kept, (PATHS_KEY.to_owned(), ByteString(paths.to_bytes().unwrap()))].into()
}

fn kept_of(data: &Data) -> Kept {
    Kept::read(&data[SECRET_KEY].0).unwrap()
}

fn paths_of(data: &Data) -> SecretPaths {
    SecretPaths::read(&data[PATHS_KEY].0).unwrap()
}

#[tokio::test]
async fn of_two_that_write_at_once_one_loses_and_takes_what_the_other_has_written() {
    let now = now();
    let of_both = paths(now);
    for (what, before) in [("the first authority", None), ("the next authority", Some(old(now)))] {
        let others = after(before.as_ref().unwrap_or(&Kept::default()), now);
        let twin = twin(before.map(|kept| data(&kept, &of_both)));
        twin.lock().unwrap().other = Some(data(&others, &of_both));
        let keeper = keeper(&twin);
        assert!(matches!(keeper.once().await, Err(KeepError::Conflict)), "{what}");
        assert!(keeper.current.leaf().is_none(), "{what}: it shows what nobody keeps");
        assert!(keeper.announced.borrow().path.is_none(), "{what}: it announces what nobody keeps");
        keeper.once().await.unwrap();
        let twin = twin.lock().unwrap();
        assert_eq!(twin.secret.as_ref().map(|(_, kept)| kept), Some(&data(&others, &of_both)), "{what}");
        let announced = keeper.announced.borrow().clone();
        assert_eq!(
            (announced.bundle, announced.path),
            (Some(others.bundle()), of_both.announced(now)),
            "{what}"
        );
        let signer = others.step(now).signer;
        assert_eq!(keeper.current.leaf().map(|leaf| leaf.authority), signer, "{what}");
        assert_eq!(twin.writes, 1, "{what}: it reads again, and has nothing to write");
    }
}

#[tokio::test]
async fn whoever_is_alone_writes_the_version_that_it_has_read() {
    let now = now();
    let (old, paths) = (old(now), paths(now));
    let mut before = data(&old, &paths);
    before.insert("of-others".to_owned(), ByteString(b"x".to_vec()));
    let twin = twin(Some(before));
    let keeper = keeper(&twin);
    keeper.once().await.unwrap();
    let twin = twin.lock().unwrap();
    let (version, data) = twin.secret.as_ref().unwrap();
    assert_eq!(*version, 8);
    let kept = kept_of(data);
    assert!(kept.bundle().starts_with(&old.bundle()) && kept.bundle().len() > old.bundle().len());
    assert_eq!((paths_of(data), data["of-others"].0.as_slice()), (paths, &b"x"[..]), "the rest stays");
}

/// As after an upgrade from a release that kept none.
#[tokio::test]
async fn a_secret_without_a_path_gets_one_and_keeps_its_authorities() {
    let now = now();
    let authorities = after(&Kept::default(), now);
    let mut before = data(&authorities, &SecretPaths::default());
    before.remove(PATHS_KEY);
    let twin = twin(Some(before));
    keeper(&twin).once().await.unwrap();
    let (_, data) = twin.lock().unwrap().secret.clone().unwrap();
    assert_eq!((kept_of(&data), paths_of(&data).accepted().len()), (authorities, 1));
}

#[tokio::test]
async fn with_certificates_of_somebody_else_there_is_a_path_and_no_authority() {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["webhook".to_owned()]).unwrap();
    std::fs::write(directory.path().join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(directory.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let twin = twin(Some(Data::new()));
    let option = format!("--webhook-certificates={}", directory.path().display());
    let keeper = keeper_with(&twin, &[&option]);
    keeper.once().await.unwrap();
    let (_, data) = twin.lock().unwrap().secret.clone().unwrap();
    assert!(!data.contains_key(SECRET_KEY));
    let announced = keeper.announced.borrow().clone();
    assert_eq!((announced.bundle, announced.path), (None, paths_of(&data).announced(now())));
    assert!(keeper.current.leaf().is_some());
}

#[tokio::test]
async fn a_leader_that_has_written_a_path_of_yesterday_makes_the_next_one_and_both_are_accepted() {
    let now = now();
    let before = paths(now - CHANGE_AFTER_SECONDS);
    let old = before.announced(now).unwrap();
    let twin = twin(Some(data(&after(&Kept::default(), now), &before)));
    let mut keeper = keeper(&twin);
    keeper.once().await.unwrap();
    assert_eq!(twin.lock().unwrap().writes, 0, "it does not lead");
    let (_leads, written) = watch::channel(Some(old.clone()));
    keeper.written = written;
    keeper.once().await.unwrap();
    let (_, data) = twin.lock().unwrap().secret.clone().unwrap();
    let both = paths_of(&data);
    assert_eq!(both.accepted().len(), 2);
    assert!(both.accepted().iter().all(|path| keeper.gate.knows(path.as_str())));
    assert_eq!(keeper.announced.borrow().path, Some(old), "others have not seen the next one");
    assert_eq!(both.announced(now + 2 * ANNOUNCE_AFTER_SECONDS), both.accepted().pop());
    keeper.once().await.unwrap();
    assert_eq!(twin.lock().unwrap().writes, 1);
}
