//! Messages of whom we do not trust: refused by what they would take in memory, before any of that is taken.
//!
//! An element of a repeated field takes two bytes on the wire, and some hundred once it is decoded: 4 MiB of them would be half a GiB.
//! [`decode`] walks over the bytes first, at every level, and adds up what they become. The shapes of the messages are those of the
//! descriptor set, so that a new message or field is counted without a word here. The sum is an estimate from above: the fields of a
//! `oneof` are counted as if all were there. While a list grows, the allocator may have three times as much for a moment.

use std::any::type_name;
use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message;
use prost::bytes::Buf;
use thiserror::Error;

use crate::frame::varint;
use crate::generated::DESCRIPTORS;

/// Bytes that a message may become, however short it is: the largest selection, or 10,000 of the largest items.
pub const SPARE: usize = 16 << 20;
/// Bytes that a message may become for each of its own, besides.
pub const TIMES: usize = 2;
/// Longest body that is not looked at: whatever it says it becomes less than [`SPARE`].
const SHORT: usize = 2 << 10;
/// Messages within messages. Ours have six.
const DEPTH_MAX: usize = 32;

/// Reason for which a body is no message that is taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Undecodable {
    /// Body that is none.
    #[error("{0}")]
    Malformed(#[from] prost::DecodeError),
    /// Body that says much in few bytes.
    #[error("a message of {0} bytes that would take more than {TIMES} times as many, and {SPARE}")]
    TooDense(usize),
}

/// Decodes a message whose memory is bounded by its length: at most [`TIMES`] its bytes and [`SPARE`].
///
/// # Errors
/// [`Undecodable`].
pub fn decode<M: Message + Default>(body: impl Buf + AsRef<[u8]>) -> Result<M, Undecodable> {
    let bytes = body.as_ref();
    if bytes.len() > SHORT && !becomes_at_most(name_of::<M>(), bytes, TIMES * bytes.len() + SPARE) {
        return Err(Undecodable::TooDense(bytes.len()));
    }
    Ok(M::decode(body)?)
}

/// Bytes that a message takes beside its body once it is decoded, an estimate from above: its structure, and its texts. Fields of bytes are
/// parts of the body. None where the body is no message.
pub fn decoded_bytes<M>(body: &[u8]) -> Option<usize> {
    let shape = SHAPES.by_name.get(name_of::<M>())?;
    let mut room = Room { left: usize::MAX, has_bytes: false };
    SHAPES.take(*shape, body, &mut room, DEPTH_MAX)?;
    Some(usize::MAX - room.left)
}

/// Name of a message, which is that of its type. Types that decode parts of a message later have the same name.
fn name_of<M>() -> &'static str {
    let path = type_name::<M>();
    path.rsplit("::").next().unwrap_or(path)
}

/// Returns whether the bytes become at most so many as a message of this name. One that is not known becomes too many.
fn becomes_at_most(name: &str, body: &[u8], most: usize) -> bool {
    let mut room = Room { left: most, has_bytes: true };
    let shape = SHAPES.by_name.get(name);
    shape.is_some_and(|shape| SHAPES.take(*shape, body, &mut room, DEPTH_MAX).is_some())
}

/// Shapes of all messages.
static SHAPES: LazyLock<Shapes> = LazyLock::new(|| Shapes::of(DESCRIPTORS));

/// Bytes that a message may yet become.
struct Room {
    left: usize,
    /// Set if fields of bytes take as much as they have in the body.
    has_bytes: bool,
}

/// Package of the messages, as it stands before their names in a descriptor set.
const PACKAGE: &str = ".tensorlane.v1.";

#[derive(Default)]
struct Shapes {
    /// Numbers of the messages of [`PACKAGE`], without it.
    by_name: HashMap<String, usize>,
    all: Vec<MessageShape>,
}

#[derive(Default)]
struct MessageShape {
    /// Bytes of the message itself, without what lies elsewhere on the heap.
    own: usize,
    /// By the number of the field.
    fields: Vec<Option<FieldShape>>,
}

#[derive(Clone, Copy)]
struct FieldShape {
    value: FieldValue,
    repeated: bool,
}

#[derive(Clone, Copy)]
enum FieldValue {
    /// A message, by its number among the shapes.
    Message(usize),
    /// Text, which is copied.
    Text,
    /// Bytes, which are a part of the body.
    Bytes,
    /// A number, of so many bytes on the wire; none: as many as it takes.
    Number(Option<usize>),
}

/// Bytes of a list, a text or bytes, where they stand in a message.
const LIST: usize = 32;
/// Bytes of a number, present or not.
const NUMBER: usize = 16;
/// Bytes of a message besides its fields.
const PRESENCE: usize = 8;

impl Shapes {
    /// Reads the shapes from a descriptor set; those that are not in it are not known.
    fn of(descriptors: &[u8]) -> Self {
        let set = FileSet::decode(descriptors).unwrap_or_default();
        let mut declared = Vec::new();
        for file in &set.files {
            declare(&format!(".{}", file.package), &file.messages, &mut declared);
        }
        let by_name: HashMap<String, usize> =
            declared.iter().map(|(name, _)| name.clone()).zip(0..).collect();
        let shape = |message: &Declared| {
            let mut fields = Vec::new();
            for field in &message.fields {
                let Some(number) = field.key() else { continue };
                fields.resize(fields.len().max(number + 1), None);
                fields[number] = field.shape(&by_name);
            }
            MessageShape { own: 0, fields }
        };
        let all = declared.iter().map(|(_, message)| shape(message)).collect();
        let ours =
            |(name, number): (&String, &usize)| Some((name.strip_prefix(PACKAGE)?.to_owned(), *number));
        let mut shapes = Self { by_name: by_name.iter().filter_map(ours).collect(), all };
        for number in 0..shapes.all.len() {
            shapes.all[number].own = shapes.own(number, DEPTH_MAX);
        }
        shapes
    }

    /// Bytes of a message itself.
    fn own(&self, number: usize, depth: usize) -> usize {
        let Some(depth) = depth.checked_sub(1) else { return LIST };
        let bytes = |field: &FieldShape| match field.value {
            FieldValue::Message(inner) if !field.repeated => self.own(inner, depth),
            FieldValue::Number(_) if !field.repeated => NUMBER,
            _ => LIST,
        };
        PRESENCE + self.all[number].fields.iter().flatten().map(bytes).sum::<usize>()
    }

    /// Takes from the room what a message's bytes become; none where there is less, or where they are no message.
    fn take(&self, number: usize, body: &[u8], room: &mut Room, depth: usize) -> Option<()> {
        let (depth, mut rest) = (depth.checked_sub(1)?, body);
        let shape = self.all.get(number)?;
        while !rest.is_empty() {
            let key = varint(&mut rest)?;
            let number = usize::try_from(key >> 3).ok()?;
            let field = shape.fields.get(number).and_then(Option::as_ref);
            let skipped = match key & 7 {
                0 => varint(&mut rest).map(|_| 0)?,
                1 => 8,
                2 => {
                    let length = usize::try_from(varint(&mut rest)?).ok()?;
                    let (part, after) = rest.split_at_checked(length)?;
                    rest = after;
                    if let Some(field) = field {
                        self.take_part(*field, part, room, depth)?;
                    }
                    continue;
                }
                5 => 4,
                // Groups, which nobody of ours writes.
                _ => return None,
            };
            rest = rest.get(skipped..)?;
            if field.is_some_and(|field| field.repeated) {
                room.left = room.left.checked_sub(8)?;
            }
        }
        Some(())
    }

    /// Takes a field that has a length.
    fn take_part(&self, field: FieldShape, part: &[u8], room: &mut Room, depth: usize) -> Option<()> {
        let bytes = match field.value {
            FieldValue::Message(inner) => {
                self.take(inner, part, room, depth)?;
                if field.repeated { self.all.get(inner)?.own } else { 0 }
            }
            FieldValue::Bytes if !room.has_bytes => {
                if field.repeated {
                    LIST
                } else {
                    0
                }
            }
            FieldValue::Text | FieldValue::Bytes => part.len() + if field.repeated { LIST } else { 0 },
            FieldValue::Number(Some(width)) => part.len() / width * 8,
            // The last byte of a number is the one without the highest bit.
            FieldValue::Number(None) => part.iter().filter(|byte| **byte < 0x80).count() * 8,
        };
        room.left = room.left.checked_sub(bytes)?;
        Some(())
    }
}

/// Puts all messages on the list, nested ones too, with their full names.
fn declare<'a>(within: &str, messages: &'a [Declared], to: &mut Vec<(String, &'a Declared)>) {
    for message in messages {
        let name = format!("{within}.{}", message.name);
        declare(&name, &message.nested, to);
        to.push((name, message));
    }
}

/// As much of `google.protobuf.FileDescriptorSet` as is needed here.
#[derive(Clone, PartialEq, Message)]
struct FileSet {
    #[prost(message, repeated, tag = "1")]
    files: Vec<DeclaredFile>,
}

#[derive(Clone, PartialEq, Message)]
struct DeclaredFile {
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<Declared>,
}

#[derive(Clone, PartialEq, Message)]
struct Declared {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    fields: Vec<DeclaredField>,
    #[prost(message, repeated, tag = "3")]
    nested: Vec<Declared>,
}

#[derive(Clone, PartialEq, Message)]
struct DeclaredField {
    #[prost(int32, tag = "3")]
    number: i32,
    #[prost(int32, tag = "4")]
    label: i32,
    #[prost(int32, tag = "5")]
    kind: i32,
    #[prost(string, tag = "6")]
    of: String,
}

impl DeclaredField {
    fn key(&self) -> Option<usize> {
        usize::try_from(self.number).ok()
    }

    /// The shape of the field; none of a message that is not declared.
    fn shape(&self, by_name: &HashMap<String, usize>) -> Option<FieldShape> {
        // Numbers of `google.protobuf.FieldDescriptorProto.Type`.
        let value = match self.kind {
            11 => FieldValue::Message(*by_name.get(&self.of)?),
            9 => FieldValue::Text,
            12 => FieldValue::Bytes,
            1 | 6 | 16 => FieldValue::Number(Some(8)),
            2 | 7 | 15 => FieldValue::Number(Some(4)),
            _ => FieldValue::Number(None),
        };
        Some(FieldShape { value, repeated: self.label == 3 })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;
    use crate::encoded;
    use crate::generated as v1;

    fn is_too_dense<M: Message + Default>(body: &[u8]) -> bool {
        matches!(decode::<M>(body), Err(Undecodable::TooDense(bytes)) if bytes == body.len())
    }

    /// A field with a length.
    fn field(number: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2];
        prost::encoding::encode_varint(body.len() as u64, &mut bytes);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn messages_of_empty_elements_are_refused_at_every_level() {
        let empty = |number| field(number, &[]).repeat(2 << 20);
        assert!(is_too_dense::<v1::Inquire>(&empty(1)));
        assert!(is_too_dense::<v1::Inquired>(&empty(1)));
        assert!(is_too_dense::<encoded::PulledMany>(&empty(1)));
        assert!(is_too_dense::<v1::Pull>(&empty(9)));
        assert!(is_too_dense::<v1::Pull>(&empty(10)));
        // A pull's selection, and its ranges.
        assert!(is_too_dense::<v1::Pull>(&field(2, &field(1, &empty(1)))));
        // A commit, and its parts.
        assert!(is_too_dense::<v1::SetCall>(&field(3, &empty(1))));
        // The leaves of a set's layout: three levels below.
        let info = v1::SetInfo { spec: Some(v1::SetSpec::default()), ..v1::SetInfo::default() };
        let number = info.encode_to_vec()[0] >> 3;
        assert!(is_too_dense::<v1::SetAnswer>(&field(1, &field(number, &empty(1)))));
        // Metadata that differ.
        let entry = |key: u32| field(6, &field(1, &key.to_le_bytes().map(|byte| byte & 0x7f)));
        let metadata: Vec<u8> = (0..300_000).flat_map(entry).collect();
        assert!(is_too_dense::<v1::PullHead>(&field(1, &metadata)));
    }

    #[test]
    fn what_is_sent_in_good_faith_is_taken() {
        let many = v1::PullMany { ids: vec![u64::MAX; 4096], stored: vec![1; 4096] };
        assert_eq!(decode::<v1::PullMany>(&many.encode_to_vec()[..]), Ok(many));
        // The largest selection, of the shortest rows.
        let rows = v1::selection::Kind::Rows(v1::Rows { indices: vec![1; crate::selection::MAX_ROWS] });
        let pull = v1::Pull { selection: Some(v1::Selection { kind: Some(rows) }), ..v1::Pull::default() };
        assert!(decode::<v1::Pull>(&pull.encode_to_vec()[..]).is_ok());
        let targets = vec![v1::Target { peer: "a".into(), kind: Some(v1::target::Kind::Id(1)) }; 4096];
        assert!(
            decode::<v1::Inquire>(&v1::Inquire { targets, ..Default::default() }.encode_to_vec()[..]).is_ok()
        );
        let results = vec![v1::DescribeResult::default(); 4096];
        assert!(decode::<v1::Inquired>(&v1::Inquired { results }.encode_to_vec()[..]).is_ok());
        let events = vec![v1::NameEvent { name: "weights".into(), ..Default::default() }; 10_000];
        let told = v1::WatchResponse { events, ..Default::default() };
        assert!(decode::<v1::WatchResponse>(&told.encode_to_vec()[..]).is_ok());
        let small = v1::PulledSmall { data: vec![0xff; 1000].into(), ..Default::default() };
        let pulled = v1::PulledMany { tensors: vec![small; 4096] };
        assert!(decode::<encoded::PulledMany>(&pulled.encode_to_vec()[..]).is_ok());
    }

    #[test]
    fn a_message_is_never_larger_than_it_is_counted_for() {
        fn counted<M>() -> usize {
            SHAPES.all[SHAPES.by_name[name_of::<M>()]].own
        }
        macro_rules! counted_for {
            ($($message:ident),+) => {$(
                let (own, size) = (counted::<v1::$message>(), size_of::<v1::$message>());
                assert!(own >= size, "{}: {own} for {size}", stringify!($message));
            )+};
        }
        counted_for!(
            Target,
            Life,
            Span,
            PulledSmall,
            DescribeResult,
            Description,
            Descriptor,
            Failure,
            NameEvent,
            SetPart,
            SetLeaf,
            SetInfo,
            SetSpec,
            Range,
            TransportOffer,
            Offer,
            Place,
            Selection,
            Require,
            PullHead,
            SetCall,
            SetAnswer
        );
    }

    #[test]
    fn what_a_request_becomes_is_its_structure_and_its_texts_and_not_its_bytes() {
        let item = |name: &str, data: usize| v1::PutItem {
            keep: Some(v1::Keep { name: name.to_owned(), ..v1::Keep::default() }),
            data: vec![7; data].into(),
            ..v1::PutItem::default()
        };
        let becomes = |items: Vec<v1::PutItem>| {
            let body = v1::PutRequest { items, ..v1::PutRequest::default() }.encode_to_vec();
            (body.len(), decoded_bytes::<v1::PutRequest>(&body).unwrap())
        };
        let (_, empty) = becomes(vec![v1::PutItem::default(); 1000]);
        assert!(empty >= 1000 * size_of::<v1::PutItem>(), "{empty}");
        let (_, named) = becomes(vec![item(&"n".repeat(200), 0); 1000]);
        assert!((empty + 200_000..empty + 220_000).contains(&named), "{named} beside {empty}");
        let (body, filled) = becomes(vec![item("", 4096); 1000]);
        assert!(body > 4_000_000 && filled < empty + 20_000, "{filled} beside {empty}");
        assert_eq!(decoded_bytes::<v1::PutRequest>(&[0xff; 9]), None);
    }

    #[test]
    fn groups_and_names_of_no_message_are_refused_and_what_is_malformed_is_no_message() {
        let group = [0xf3, 0x3e, 0xf4, 0x3e].repeat(SHORT);
        assert!(is_too_dense::<v1::Pull>(&group));
        assert!(!becomes_at_most("Nothing", &[], usize::MAX));
        assert!(matches!(decode::<v1::Pull>(&[0xff; 5][..]), Err(Undecodable::Malformed(_))));
    }
}
