//! Ends of pipes for the suites: what both are asked, in a pod and between peers, and an end in a process of its own.

use std::time::Duration;

use tensorlane_client::Error;
use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{Delivered, Descriptor, Incoming, Message, Pipe, WriteFailed};
use tensorlane_proto::frame::PIPE_MESSAGE_MAX;
use tensorlane_proto::{DType, Reason};

use crate::Sidecar;
use crate::other::Other;
use crate::refused::in_time;
use crate::tensors::{dense, pattern};
use crate::wait::until;

/// Time in which what must happen has long happened.
pub const LONG: Timeout = Timeout::After(Duration::from_secs(60));
/// Sequences and bytes of messages that are written one after the other to a new pipe, each with the reason of its refusal. None of
/// them is delivered.
pub const WRONG_WRITES: [(u64, usize, Reason); 5] = [
    (0, 0, Reason::InvalidArgument),
    (1, PIPE_MESSAGE_MAX + 1, Reason::TooLarge),
    (u64::MAX, 10, Reason::InvalidArgument),
    (u64::MAX - 1, 10, Reason::DeadlineExceeded),
    (5, 10, Reason::InvalidArgument),
];

/// A message of metadata alone.
pub fn text(text: &str) -> Message {
    Message::new().metadata(text)
}

/// The next message, which is there.
pub fn next(pipe: &Pipe) -> Descriptor {
    match pipe.read_descriptor(LONG).unwrap() {
        Incoming::Message(descriptor) => descriptor,
        Incoming::End => panic!("a message is there"),
    }
}

/// Returns whether the other end has finished, and everything was read.
pub fn is_end(pipe: &Pipe) -> bool {
    matches!(pipe.read_descriptor(LONG).unwrap(), Incoming::End)
}

/// The error of a read that brings nothing, in the sidecar's words.
pub fn nothing(pipe: &Pipe, timeout: Timeout) -> Error {
    match in_time(|| pipe.read_descriptor(timeout)) {
        Ok(incoming) => panic!("nothing is there, not {incoming:?}"),
        Err(error) => error,
    }
}

/// The failure of a write that was not delivered, and of which that is said in time. On a busy machine the word may come too late:
/// then it is written again.
pub fn undelivered(pipe: &Pipe, message: Message, timeout: Timeout) -> Box<WriteFailed> {
    let mut failed = pipe.write(message, timeout).unwrap_err();
    until("it is said in time that the message was not delivered", || {
        let is_said = failed.delivered == Delivered::No && failed.error.reason().is_some();
        if !is_said {
            failed = pipe.write(std::mem::take(&mut failed.message), timeout).unwrap_err();
        }
        is_said
    });
    failed
}

/// Starts an end of a pipe in a process of its own: the test `pipes::another_process_has_an_end` of this program.
pub fn other_end(sidecar: &Sidecar, role: &str) -> Other {
    Other::start("pipes::another_process_has_an_end", sidecar, role)
}

/// Writes two messages, or takes the descriptor of one, says so, and goes on until it is killed.
pub fn go_on(pipe: &Pipe, writes: bool) {
    if writes {
        let (descriptor, bytes) = (dense(DType::U8, &[1 << 20]), pattern(1, 1 << 20));
        let first = pipe.begin(text("first").tensor(descriptor, bytes), LONG).unwrap();
        let second = pipe.begin(text("second"), LONG).unwrap();
        println!("written");
        // Killed here.
        drop((first.wait(), second.wait()));
        return;
    }
    let descriptor = next(pipe);
    println!("shown");
    // Killed here, with a descriptor in hand.
    let _ = nothing(pipe, LONG);
    drop(descriptor);
}
