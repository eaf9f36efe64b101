//! Outcome of each item of a reply, for the metrics, whatever carried the reply.

use tensorlane_proto::failure::Reason;
use tensorlane_proto::generated as v1;

/// Outcome of one item.
pub(crate) type Ended = Result<(), Reason>;

/// A reply, item by item.
pub(crate) trait Results {
    /// Returns the outcome of each item; one for a reply that has no items.
    fn ended(&self) -> Vec<Ended>;
}

macro_rules! plural {
    ($($response:ident: $failure:expr;)+) => { $(
        impl Results for v1::$response {
            fn ended(&self) -> Vec<Ended> {
                self.results.iter().map(|result| ended($failure(result))).collect()
            }
        }
    )+ };
}

macro_rules! single {
    ($($response:ident)+) => { $(
        impl Results for v1::$response {
            fn ended(&self) -> Vec<Ended> {
                vec![Ok(())]
            }
        }
    )+ };
}

macro_rules! failure_of {
    ($($function:ident: $result:ident in $module:ident;)+) => { $(
        fn $function(result: &v1::$result) -> Option<&v1::Failure> {
            match &result.outcome {
                Some(v1::$module::Outcome::Failure(failure)) => Some(failure),
                _ => None,
            }
        }
    )+ };
}

failure_of! {
    stored: StoredResult in stored_result;
    reserved: ReserveResult in reserve_result;
    acquired: AcquireResult in acquire_result;
    described: DescribeResult in describe_result;
    ticket: TicketResult in ticket_result;
}

fn done(result: &v1::DoneResult) -> Option<&v1::Failure> {
    result.failure.as_ref()
}

plural! {
    PutResponse: stored;
    SealResponse: stored;
    ReserveResponse: reserved;
    AcquireResponse: acquired;
    RedeemResponse: acquired;
    DescribeResponse: described;
    LookupResponse: described;
    TicketResponse: ticket;
    AbortResponse: done;
    ReleaseResponse: done;
    NameResponse: done;
    UnnameResponse: done;
}

single! {
    FillResponse ListResponse WatchResponse PublishSetResponse ChannelCreateResponse ChannelAttachResponse ChannelStatResponse StatusResponse
    ChannelExtentResponse PeersResponse PipeListenResponse PipeOpened PipeWriteResponse PipeReadResponse
    StageResponse SetCreateResponse SetOpenResponse SetCommitResponse SetStatResponse SetDropResponse
    SetSnapshotResponse
}

fn ended(failure: Option<&v1::Failure>) -> Ended {
    // It was one of ours a moment ago.
    failure.map_or(Ok(()), |failure| Err(failure.reason.parse().unwrap_or(Reason::Internal)))
}
