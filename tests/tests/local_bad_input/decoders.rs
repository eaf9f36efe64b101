//! Decoders with mutated inputs: bytes that peers, clients, files and the API server send. None panics, goes on for long or takes more
//! memory than is stated here for each; what is taken is encoded, and taken again as the same.
//!
//! `tensorlane_fuzz` says how a seed is repeated.

use std::fmt::Debug;
use std::str::FromStr;

use prost::Message;
use serde_json::json;
use tensorlane_fuzz::{Target, fuzz};
use tensorlane_memory::heap::MeteringAllocator;
use tensorlane_operator::webhook::review::Question;
use tensorlane_proto::channel::Parts;
use tensorlane_proto::checksum::crc32c;
use tensorlane_proto::frame::{HEADER_BYTES, Header, PEER_BODY_MAX, SESSION_ITEMS_MAX, top_level_items};
use tensorlane_proto::ledger::RetryId;
use tensorlane_proto::rows::{Committed, Intent, JournalHead, Record, RowList, SetId, SetReference, Torn};
use tensorlane_proto::set::{Level, Manifest, Node, OwnMeta, Tree};
use tensorlane_proto::{
    DType, Descriptor, Incarnation, Layout, Reason, Reference, Shape, decoded, encoded, generated as v1, wire,
};

/// Bytes of memory for each byte of a request: an empty repeated message of two bytes becomes at most a KiB, and three times that while the list
/// grows. The number of items is bounded, and so is the product.
const SESSION_TIMES: usize = 1536;
/// Bytes of memory for each byte of JSON: a map of one entry in seven bytes has a node with room for eleven, and is read twice.
const JSON_TIMES: usize = 512;
/// Memory of an error, with what it shows.
const SPARE: usize = 16 << 10;

fn target(name: &'static str, corpus: Vec<Vec<u8>>, times: usize, spare: usize) -> Target {
    Target { name, corpus, times, spare, meter: MeteringAllocator::peak_of }
}

#[test]
fn the_meter_of_the_heap_measures() {
    let mut made = Vec::new();
    let peak = MeteringAllocator::peak_of(&mut || made = vec![1_u8; 100_000]);
    assert!((100_000..110_000).contains(&peak), "{peak}");
    assert_eq!(MeteringAllocator::peak_of(&mut || drop(std::mem::take(&mut made))), 0);
}

/// Fuzzes a message that comes from peers. `further`: what is made of it at once.
fn peer_message<M>(name: &'static str, corpus: &[M], further: impl Fn(M) + Send + 'static)
where
    M: Message + Default + PartialEq + Debug + 'static,
{
    let corpus = corpus.iter().map(Message::encode_to_vec).collect();
    // Each list may have three times its bytes for a moment, and what is made of the message stands beside it.
    let (times, spare) = (6 * decoded::TIMES, 6 * decoded::SPARE);
    fuzz(target(name, corpus, times, spare), move |bytes| {
        let Ok(message) = decoded::decode::<M>(bytes) else { return false };
        let again = message.encode_to_vec();
        // A message that is encoded anew is shorter, so that it may be within the bound though it was not.
        assert_eq!(M::decode(&again[..]).as_ref(), Ok(&message));
        further(message);
        true
    });
}

fn descriptor() -> v1::Descriptor {
    let layout = Layout::contiguous(DType::F32, Shape::new(&[4, 6]).unwrap()).unwrap();
    let metadata = [("k".to_owned(), "v".to_owned()), ("tensor".to_owned(), "lane".to_owned())].into();
    v1::Descriptor { metadata, ..v1::Descriptor::from(&Descriptor::host(layout)) }
}

fn selections() -> Vec<v1::Selection> {
    let range = |start, stop, step| v1::Range { start, stop, step };
    let ranges = vec![range(Some(1), Some(3), None), range(None, None, Some(2))];
    let of = |kind| v1::Selection { kind: Some(kind) };
    vec![
        of(v1::selection::Kind::Ranges(v1::Ranges { dimensions: ranges })),
        of(v1::selection::Kind::Rows(v1::Rows { indices: vec![3, 0, 2] })),
    ]
}

fn failure() -> v1::Failure {
    let failure = tensorlane_proto::Failure::new(Reason::NotFound, "no such tensor");
    v1::Failure::from(&failure.with("bytes", 7).with("peer", "a"))
}

fn life() -> v1::Life {
    v1::Life { peer: "trainer-0".into(), incarnation: format!("{:032x}", 9), ..v1::Life::default() }
}

#[test]
fn questions_of_peers_are_bounded_whatever_they_say() {
    let offered = v1::TransportOffer {
        transport: v1::Transport::Tcp.into(),
        addresses: vec!["10.0.0.7:9421".into(), "[fd00::7]:9421".into()],
        details: [("node".to_owned(), "a".to_owned())].into(),
    };
    let offer = v1::Offer { versions: vec![11, 10], transports: vec![offered], ..v1::Offer::default() };
    let node = v1::NodeSocket { name: "0123456789abcdef.sock".into(), inode: 7, ..v1::NodeSocket::default() };
    let hello = v1::PeerHello {
        version: 11,
        exchange: "default".into(),
        peer: "trainer-0".into(),
        incarnation: format!("{:032x}", 9),
        offer: Some(offer),
        lane_key: vec![7; 32].into(),
        lanes: 4,
        node: Some(node),
        ..v1::PeerHello::default()
    };
    peer_message("PeerHello", &[hello], |hello| {
        let _ = wire::offer("b".parse().unwrap(), Incarnation(7), &hello.offer.unwrap_or_default());
    });
    let pull = |selection| v1::Pull {
        id: 7,
        selection,
        bytes: 96,
        owner: Some(life()),
        lost: vec![life(), life()],
        ahead: vec![v1::Span { offset: 8, length: 16 }],
        stored: Some(96),
        ..v1::Pull::default()
    };
    let pulls: Vec<v1::Pull> = selections().into_iter().map(Some).chain([None]).map(pull).collect();
    peer_message("Pull", &pulls, |pull| drop(wire::selection(pull.selection)));
    peer_message("PeerProofs", &[v1::PeerProofs { id: 7, first: 64, count: 64 }], drop);
    peer_message("PullMany", &[v1::PullMany { ids: vec![1, 2, 3], stored: vec![4, 5, 6] }], drop);
    let target = |kind| v1::Target { kind: Some(kind), peer: "trainer-0".into() };
    let targets = vec![target(v1::target::Kind::Id(7)), target(v1::target::Kind::Name("weights".into()))];
    peer_message("Inquire", &[v1::Inquire { targets, wait_ms: 1000, ..v1::Inquire::default() }], drop);
    let part = v1::SetPart { reference: reference().encode(), ..v1::SetPart::default() };
    let commit = v1::SetCommitRequest { parts: vec![part.clone(), part], ..v1::SetCommitRequest::default() };
    let read = v1::SetReadRequest { keys: vec!["obs".into()], ..v1::SetReadRequest::default() };
    let calls = [v1::set_call::Kind::Commit(commit), v1::set_call::Kind::Read(read)];
    let calls: Vec<v1::SetCall> = calls.into_iter().map(|kind| v1::SetCall { kind: Some(kind) }).collect();
    peer_message("SetCall", &calls, drop);
}

#[test]
fn answers_of_peers_are_bounded_whatever_they_say() {
    let head = v1::PullHead {
        descriptor: Some(descriptor()),
        crc32c: Some(7),
        holders: vec![life()],
        pass: vec![7; 16].into(),
        spares: vec![life(), life()],
        ..v1::PullHead::default()
    };
    peer_message("PullHead", &[head], |head| drop(head.descriptor.map(wire::descriptor)));
    peer_message("PeerProven", &[v1::PeerProven { hashes: vec![7; 96].into() }], drop);
    let small =
        v1::PulledSmall { descriptor: Some(descriptor()), data: vec![7; 96].into(), ..Default::default() };
    let failed = v1::PulledSmall { failure: Some(failure()), ..v1::PulledSmall::default() };
    let many = v1::PulledMany { tensors: vec![small, failed] }.encode_to_vec();
    let many = encoded::PulledMany::decode(&many[..]).unwrap();
    peer_message("PulledMany", &[many], |many| {
        let sent = many.tensors.into_iter().filter_map(|tensor| tensor.descriptor);
        sent.for_each(|sent| drop(v1::Descriptor::decode(sent).map(wire::descriptor)));
    });
    let outcome = v1::describe_result::Outcome::Failure(failure());
    let results = vec![v1::DescribeResult { outcome: Some(outcome) }, v1::DescribeResult::default()];
    peer_message("Inquired", &[v1::Inquired { results }], drop);
    let packed = v1::SetPacked { references: vec![reference().encode(); 3], version: 7 };
    let leaf = v1::SetLeaf { key: "obs".into(), dtype: 11, row_shape: vec![4, 6] };
    let spec = v1::SetSpec { leaves: vec![leaf], writers: vec!["*".into()], ..v1::SetSpec::default() };
    let info = v1::SetInfo { spec: Some(spec), ..v1::SetInfo::default() };
    let answers = [v1::set_answer::Kind::Packed(packed), v1::set_answer::Kind::Opened(info)];
    let answers: Vec<v1::SetAnswer> =
        answers.into_iter().map(|kind| v1::SetAnswer { kind: Some(kind) }).collect();
    peer_message("SetAnswer", &answers, drop);
    let event = v1::NameEvent { name: "weights".into(), ..v1::NameEvent::default() };
    let told = v1::WatchResponse { events: vec![event.clone(), event], ..v1::WatchResponse::default() };
    peer_message("WatchResponse", &[told], drop);
    peer_message("Failure", &[failure()], |failure| drop(wire::failure(failure)));
}

/// Fuzzes a request of a session, as it is looked at before and after it is decoded.
fn session_message<M>(name: &'static str, corpus: &[M])
where
    M: Message + Default + PartialEq + Debug + 'static,
{
    let corpus = corpus.iter().map(Message::encode_to_vec).collect();
    fuzz(target(name, corpus, SESSION_TIMES, SPARE), |bytes| {
        if top_level_items(bytes) > SESSION_ITEMS_MAX {
            return false;
        }
        let Ok(message) = M::decode(bytes) else { return false };
        assert_eq!(M::decode(&message.encode_to_vec()[..]).as_ref(), Ok(&message));
        true
    });
}

#[test]
fn requests_of_sessions_are_bounded_whatever_they_say() {
    let put = super::item(descriptor(), &[7; 96]);
    session_message("PutRequest", &[v1::PutRequest { items: vec![put.clone(), put], deadline_ms: 7 }]);
    let target =
        v1::Target { kind: Some(v1::target::Kind::Reference(reference().encode())), peer: String::new() };
    let items = selections()
        .into_iter()
        .map(|selection| v1::GetItem { target: Some(target.clone()), selection: Some(selection) });
    session_message("AcquireRequest", &[v1::AcquireRequest { items: items.collect(), ..Default::default() }]);
    session_message(
        "LookupRequest",
        &[v1::LookupRequest { names: vec!["weights".into(); 3], ..Default::default() }],
    );
    session_message("ReleaseRequest", &[v1::ReleaseRequest { ids: vec![1, 2, 3], still_mapped: vec![4] }]);
    let publish = v1::PublishSetRequest { leaves: vec![1, 2, 3], ..v1::PublishSetRequest::default() };
    session_message("PublishSetRequest", &[publish]);
    let part = v1::PipePart { inline: vec![7; 9].into(), ..v1::PipePart::default() };
    let message = v1::PipeMessage { metadata: vec![1; 9].into(), payloads: vec![part], tensors: Vec::new() };
    session_message("PipeMessage", &[message]);
}

#[test]
fn headers_of_frames_are_read_as_they_were_written() {
    let header = |kind| Header { length: 7, kind, flags: 1, call: 9 }.encode().to_vec();
    fuzz(target("Header", vec![header(2), header(16)], 0, 0), |bytes| {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return false };
        let Ok(header) = Header::decode(bytes, PEER_BODY_MAX) else { return false };
        assert!(header.length <= PEER_BODY_MAX);
        assert_eq!(&header.encode(), bytes);
        true
    });
}

fn reference() -> Reference {
    let layout = Layout::contiguous(DType::F32, Shape::new(&[4, 6]).unwrap()).unwrap();
    Reference::new("ml".parse().unwrap(), "trainer-0".parse().unwrap(), Incarnation(7), 9, &layout)
}

/// Text with the checksum that belongs to it: mutations are to come behind that.
fn summed(text: &[u8]) -> Vec<u8> {
    let end = text.iter().rposition(|byte| *byte == b'/').unwrap_or(text.len());
    [&text[..end], format!("/{:08x}", crc32c(&text[..end])).as_bytes()].concat()
}

#[test]
fn references_are_written_in_one_way_whatever_is_read() {
    let scalar = Layout::contiguous(DType::I64, Shape::new(&[]).unwrap()).unwrap();
    let scalar =
        Reference::new("ml".parse().unwrap(), "b".parse().unwrap(), Incarnation(u128::MAX), 1, &scalar);
    let corpus = [reference(), scalar].iter().map(|one| one.encode().into_bytes()).collect();
    fuzz(target("Reference", corpus, 64, SPARE), |bytes| {
        let text = summed(bytes);
        let (Ok(read), plain) = (Reference::from_bytes(&text), Reference::from_bytes(bytes)) else {
            return false;
        };
        assert_eq!(read.encode().as_bytes(), text);
        plain.is_ok_and(|plain| plain == read)
    });
    let set = |id| SetReference { exchange: "ml".parse().unwrap(), peer: "trainer-0".parse().unwrap(), id };
    let memory = set(SetId::Memory { incarnation: Incarnation(7), number: 9 });
    let corpus = [memory, set(SetId::Files(7))].iter().map(|one| one.to_string().into_bytes()).collect();
    fuzz(target("SetReference", corpus, 64, SPARE), |bytes| {
        let with_its_sum = summed(bytes);
        for text in [&with_its_sum[..], bytes].iter().filter_map(|bytes| str::from_utf8(bytes).ok()) {
            if let Ok(read) = SetReference::from_str(text) {
                assert_eq!(read.to_string(), *text);
            }
        }
        str::from_utf8(bytes).is_ok_and(|text| SetReference::from_str(text).is_ok())
    });
}

#[test]
fn selections_lead_to_runs_within_the_tensor_or_are_refused() {
    let corpus = selections().iter().map(Message::encode_to_vec).collect();
    fuzz(target("Selection", corpus, 256, SPARE), |bytes| {
        let Ok(message) = decoded::decode::<v1::Selection>(bytes) else { return false };
        let Ok(selection) = wire::selection(Some(message)) else { return false };
        let layout = Layout::contiguous(DType::F32, Shape::new(&[4, 6]).unwrap()).unwrap();
        let Ok(resolved) = selection.resolve(&layout) else { return false };
        let runs = resolved.runs();
        let bytes: u64 = runs
            .map(|run| {
                let (offset, bytes) = run;
                assert!(offset + bytes <= layout.bytes(), "{run:?}");
                bytes
            })
            .sum();
        assert_eq!(bytes, resolved.bytes());
        true
    });
}

#[test]
fn layouts_of_channels_are_written_as_they_were_read() {
    let layout = |dims| Descriptor::host(Layout::contiguous(DType::F32, Shape::new(dims).unwrap()).unwrap());
    let parts = [Parts::of([layout(&[4, 6]), layout(&[])]).unwrap(), Parts::of([layout(&[7])]).unwrap()];
    let corpus = parts.iter().map(Parts::encode).collect();
    fuzz(target("Parts", corpus, 6 * decoded::TIMES, 6 * decoded::SPARE), |bytes| {
        let Ok(parts) = Parts::decode(bytes) else { return false };
        assert_eq!(Parts::decode(&parts.encode()), Ok(parts));
        true
    });
}

#[test]
fn manifests_and_levels_of_sets_are_written_as_they_were_read() {
    let inner = Tree {
        batch: vec![4],
        entries: vec![("r".to_owned(), Node::Tensor(reference()))],
        ..Tree::default()
    };
    let entries = vec![
        ("obs".to_owned(), Node::Tensor(reference())),
        ("label".to_owned(), Node::Value(json!({"a": [1, 2.5, null, "x"]}))),
        ("next".to_owned(), Node::Tree(inner)),
    ];
    let class = r#"{"_type": "<class 'replay.Step'>", "label": [1]}"#.to_owned();
    let names = Some(vec![Some("time".to_owned())]);
    let tree = Tree { batch: vec![4], names, classes: vec![class.clone()], entries };
    let corpus = vec![Manifest { version: 7, tree }.encode().unwrap()];
    fuzz(target("Manifest", corpus, JSON_TIMES, SPARE), |bytes| {
        let Ok(manifest) = Manifest::decode(bytes) else { return false };
        // A tree that is read may have more than one may write, such as keys that are too long.
        if let Ok(written) = manifest.encode() {
            assert_eq!(Manifest::decode(&written).unwrap(), manifest);
        }
        true
    });
    let level = json!({
        "_type": "<class 'tensordict._td.TensorDict'>", "shape": [4], "device": "None", "is_memmap": true,
        "obs": {"device": "cpu", "shape": [4, 6], "dtype": "torch.float32"},
        "next": {"type": "TensorDict"},
    });
    let stack = r#"{"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 0}"#.to_owned();
    let corpus = [level.to_string(), class, stack].map(String::into_bytes).to_vec();
    fuzz(target("Level", corpus, JSON_TIMES, SPARE), |bytes| {
        let Ok(level) = Level::read(bytes) else { return false };
        if let Ok(written) = level.write() {
            assert_eq!(Level::read(&written).ok(), Some(level));
        }
        true
    });
    let own = json!({
        "leaves": [{"path": ["obs"], "dtype": "f8_e4m3", "shape": [4, 6]}],
        "mutable": {"id": "07", "name": "replay", "directory": "replay", "writers": ["*"], "durability": "none"},
    });
    fuzz(target("OwnMeta", vec![own.to_string().into_bytes()], JSON_TIMES, SPARE), |bytes| {
        let Ok(own) = serde_json::from_slice::<OwnMeta>(bytes) else { return false };
        let again: OwnMeta = serde_json::from_slice(&serde_json::to_vec(&own).unwrap()).unwrap();
        assert_eq!(again, own);
        true
    });
}

/// Numbers as they stand in files of sets, with the checksum that belongs to them: a sum, a length, then the numbers.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let body = bytes.get(8..).unwrap_or_default();
    let length = body.len() as u32;
    [&crc32c(body).to_le_bytes()[..], &length.to_le_bytes(), body].concat()
}

#[test]
fn records_of_mutable_sets_are_written_as_they_were_read() {
    let intent = Intent::new(41, vec![0, 3], &RowList::List([7, 8, 9, 2, 1 << 40].into()));
    fuzz(target("Intent", vec![intent.encode()], 64, SPARE), |bytes| {
        if let Some(intent) = Intent::decode(&sealed(bytes)) {
            assert_eq!(Intent::decode(&intent.encode()), Some(intent));
        }
        Intent::decode(bytes).is_some()
    });
    let record =
        Record { committed: Committed { version: 41, first: 7 }, cursor: 9, retry: Some(RetryId([7; 16])) };
    let plan_bytes = intent.encode().len() as u64;
    let head = JournalHead { run: 7, record, plan_bytes, data_bytes: 96, sum: 5 };
    fuzz(target("JournalHead", vec![head.encode()], 64, SPARE), |bytes| {
        if let Some(head) = JournalHead::decode(&sealed(bytes)) {
            let _ = head.entry_bytes();
            assert_eq!(JournalHead::decode(&head.encode()), Some(head));
        }
        JournalHead::decode(bytes).is_some()
    });
    fuzz(target("Record", vec![record.encode().to_vec()], 64, SPARE), |bytes| {
        let records = Record::decode_all(bytes);
        let again: Vec<u8> = records.iter().flat_map(Record::encode).collect();
        assert_eq!(Record::decode_all(&again), records);
        !records.is_empty()
    });
    let mut torn = Torn::default();
    torn.add(0, 7, 3);
    torn.add(2, 1 << 40, 9);
    fuzz(target("Torn", vec![torn.encode()], 128, SPARE), |bytes| {
        if let Some(torn) = Torn::decode(&sealed(bytes)) {
            // Without a piece there are no bytes to seal.
            assert!(torn.is_empty() || Torn::decode(&torn.encode()) == Some(torn));
        }
        Torn::decode(bytes).is_some()
    });
}

#[test]
fn reviews_of_the_api_server_are_read_and_answered_or_refused() {
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "42", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "", "namespace": "ml", "operation": "CREATE", "userInfo": {}, "dryRun": false,
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "generateName": "r-", "namespace": "ml", "ownerReferences": owner,
                    "annotations": {"tensorlane.dev/inject": "enabled", "tensorlane.dev/memory": "1Gi"},
                },
                "spec": {
                    "containers": [{"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}],
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                },
            },
        },
    });
    // The review, the pod as JSON once more, and the answer.
    fuzz(target("Question", vec![review.to_string().into_bytes()], 3 * JSON_TIMES, 4 * SPARE), |bytes| {
        let Ok(question) = Question::read(bytes) else { return false };
        let _ = question.look_ups();
        let answer = serde_json::to_value(question.refuse(403, "no")).unwrap();
        assert_eq!(answer["kind"], "AdmissionReview");
        true
    });
}
