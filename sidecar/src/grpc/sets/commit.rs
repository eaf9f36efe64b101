//! SetCommit: a head, the bytes of new rows, and one commit when all of them have come.
//!
//! ```text
//!   head ── the set is asked for its layout ── room for all bytes, or none ── chunks ── the stream ends well: committed
//!                                                                       '── it breaks: given back
//! ```

use std::sync::Arc;
use std::time::Instant;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::set_commit_chunk::Part;

use super::super::call::{Cancelled, outcome, within};
use super::super::coming::ComingBytes;
use super::super::put::{From, next};
use super::left_ms;
use crate::exchange::{Caller, Exchange, OpenRows};
use crate::store::Direction;

/// Writes the rows of a stream.
pub(in crate::grpc) async fn commit(
    exchange: Arc<Exchange>,
    caller: Caller,
    from: From,
    mut stream: tonic::Streaming<v1::SetCommitChunk>,
) -> Result<v1::SetCommitResponse, Failure> {
    let cancelled = Cancelled::of(&caller.cancel);
    from.bounds.cancels(&caller.cancel);
    let held = exchange.store().streams().enter(Direction::Put, Arc::clone(&from.program));
    let Some(v1::SetCommitChunk { part: Some(Part::Head(head)) }) =
        next(&mut stream, &cancelled, &from.bounds).await?
    else {
        return Err(misuse("the first message of a SetCommit stream is `head`"));
    };
    within(head.keys.len())?;
    let deadline = exchange.deadline(head.deadline_ms);
    if head.deadline_ms > 0 {
        // Whoever says when to give up may stand still until then.
        from.bounds.bear_until(deadline);
    }
    // Its client may send on, and is not taken for one that stands still.
    let pause = from.bounds.pause();
    let opened = open(&exchange, &caller, head, deadline).await;
    let (mut rows, mut coming) = opened.map_err(|failure| from.bounds.spent().unwrap_or(failure))?;
    drop(pause);
    let waits = deadline.saturating_duration_since(Instant::now());
    held.keeps_bytes(coming.progress().1);
    loop {
        let chunk = match next(&mut stream, &cancelled, &from.bounds).await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(failure) => return Err(told(failure, &coming)),
        };
        held.moved();
        let Some(Part::Bytes(v1::SetBytes { leaf, data })) = chunk.part else {
            return Err(misuse("behind the head of a SetCommit stream come bytes, and nothing else"));
        };
        let landing = coming.take(leaf, data.len())?;
        rows.write(landing.part, &data)?;
    }
    if !coming.is_whole() {
        let (came, all) = coming.progress();
        let what = format!("the rows have {all} bytes, and {came} of them came; nothing was written");
        return Err(told(Failure::new(Reason::SetMismatch, what), &coming));
    }
    // The bytes took as long as they took.
    let deadline_ms = left_ms(Instant::now() + waits);
    outcome(|done| rows.commit(deadline_ms, done), drop).await
}

/// Finds the set, and makes room for its new rows.
async fn open(
    exchange: &Arc<Exchange>,
    caller: &Caller,
    mut head: v1::SetCommitHead,
    deadline: Instant,
) -> Result<(OpenRows, ComingBytes), Failure> {
    let asked = v1::SetOpenRequest {
        set: std::mem::take(&mut head.set),
        deadline_ms: left_ms(deadline),
        ..v1::SetOpenRequest::default()
    };
    let opened = outcome(|done| exchange.set_open(caller, &asked, done), drop).await?;
    let set = opened.set.unwrap_or_default();
    let rows = outcome(|done| exchange.open_rows(caller.clone(), set, head, deadline, done), drop).await?;
    let mut coming = ComingBytes::default();
    rows.bytes().try_for_each(|bytes| coming.push(bytes))?;
    Ok((rows, coming))
}

/// The failure of a stream, with how much had come.
fn told(failure: Failure, coming: &ComingBytes) -> Failure {
    let (came, all) = coming.progress();
    failure.with("given_bytes", came).with("expected_bytes", all)
}

fn misuse(why: &str) -> Failure {
    Failure::new(Reason::InvalidArgument, why)
}
