//! Bad input is refused with a reason that a program can act on, and nothing is left of it.

mod channels;
mod decoders;
mod descriptors;
mod frames;
mod pipes;
mod puts;
mod reservations;
mod selections;
mod set_streams;
mod targets;

use tensorlane_client::AcquireOptions;
use tensorlane_memory::heap::MeteringAllocator;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::{DType, Failure, generated as v1, wire};
use tensorlane_tests::raw::RawSession;

/// Measures what decoders take.
#[global_allocator]
static METERING: MeteringAllocator = MeteringAllocator;

fn all() -> AcquireOptions {
    AcquireOptions::new()
}

/// A descriptor of so many bytes, as a message.
fn bytes_of(count: u64) -> v1::Descriptor {
    v1::Descriptor { dtype: DType::U8 as u32, shape: vec![count], ..v1::Descriptor::default() }
}

fn item(descriptor: v1::Descriptor, data: &[u8]) -> v1::PutItem {
    v1::PutItem { descriptor: Some(descriptor), data: data.to_vec().into(), ..v1::PutItem::default() }
}

/// The refusal of the one item of a Put.
fn refused_put(session: &mut RawSession, item: v1::PutItem) -> Failure {
    let request = v1::PutRequest { items: vec![item], deadline_ms: 0 };
    let mut reply: v1::PutResponse = session.call(SessionKind::Put, &request).unwrap();
    match reply.results.pop().unwrap().outcome.unwrap() {
        v1::stored_result::Outcome::Failure(failure) => wire::failure(failure),
        v1::stored_result::Outcome::Stored(stored) => panic!("it was stored: {stored:?}"),
    }
}

/// The refusal of the one item of a Reserve.
fn refused_reserve(session: &mut RawSession, item: v1::ReserveItem) -> Failure {
    let request = v1::ReserveRequest { items: vec![item], deadline_ms: 0 };
    let mut reply: v1::ReserveResponse = session.call(SessionKind::Reserve, &request).unwrap();
    match reply.results.pop().unwrap().outcome.unwrap() {
        v1::reserve_result::Outcome::Failure(failure) => wire::failure(failure),
        v1::reserve_result::Outcome::Reserved(reserved) => panic!("there was room: {reserved:?}"),
    }
}
