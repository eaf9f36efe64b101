//! Channels: reading one to its end, and the command in a process of its own.

use std::io::{Read as _, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tensorlane_client::channel::{ChannelReader, End, Message, Policy, Read, Timeout};

use crate::sidecar::{Sidecar, bin_dir};

/// Time in which what must happen has long happened.
pub const LONG: Timeout = Timeout::After(Duration::from_secs(60));
/// Policies under which a writer waits for nobody.
pub const DROPPING: [Policy; 2] = [Policy::DropOldest, Policy::Latest];

/// The next message, which is there or comes.
pub fn message(reader: &mut ChannelReader) -> Message {
    match reader.read(LONG).unwrap() {
        Read::Message(message) => message,
        other => panic!("a message is there, not {other:?}"),
    }
}

/// Reads to the end, from a sequence on; how many messages were read, and how many dropped. Each one was read whole, as `check`
/// says, or told as dropped.
pub fn read_all(mut reader: ChannelReader, mut next: u64, check: impl Fn(&Message)) -> (u64, u64) {
    let (mut got, mut missed) = (0, 0);
    loop {
        match reader.read(LONG).unwrap() {
            Read::Message(message) => {
                assert_eq!(message.sequence(), next);
                check(&message);
                (next, got) = (next + 1, got + 1);
            }
            Read::Gap { dropped, next: after } => {
                next += dropped;
                assert_eq!(next, after);
                missed += dropped;
            }
            Read::Epoch { .. } => panic!("no other channel was asked for"),
            Read::End(end) => {
                assert_eq!(end, End::Finished);
                return (got, missed);
            }
        }
    }
}

/// `tensorlane`, in a process of its own that ends with the test.
pub struct Program(pub Child);

impl Program {
    /// Starts it with these words, at a sidecar.
    pub fn start(sidecar: &Sidecar, words: &[&str]) -> Self {
        let mut command = Command::new(bin_dir().join("tensorlane"));
        command.arg("--sockets").arg(sidecar.sockets()).args(words);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Gives it text to read.
    pub fn say(&mut self, text: &str) {
        let input = self.0.stdin.as_mut().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Output until it ends well.
    pub fn finish(&mut self) -> String {
        drop(self.0.stdin.take());
        let mut printed = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        assert!(self.0.wait().unwrap().success());
        printed
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
