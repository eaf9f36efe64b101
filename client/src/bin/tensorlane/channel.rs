//! `tensorlane channel`: messages in and out of channels, and how far their readers are.

use std::fs::File;
use std::io::{self, BufRead, Read as _, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tensorlane_client::channel::{
    ChannelReaderStatus, ChannelSpec, ChannelStatus, ChannelWriter, End, Message, Policy, Read, ReadOptions,
    Timeout, policy_of,
};
use tensorlane_client::{Client, Error};
use tensorlane_proto::{AllowedPeers, Failure, Reason};

use crate::args::{Channel, ChannelLs, ChannelStat, ChannelTail, ChannelWrite};
use crate::output::{self, Output};
use crate::parse;
use crate::watch::while_read;

pub(crate) fn run(client: &Client, output: &Output, args: &Channel) -> Result<()> {
    match args {
        Channel::Ls(ls) => self::ls(client, output, ls),
        Channel::Stat(stat) => self::stat(client, output, stat),
        // It ends with whoever reads what it prints.
        Channel::Tail(tail) => while_read(client, |client| self::tail(client, output, tail)),
        Channel::Write(write) => self::write(client, output, write),
    }
}

fn ls(client: &Client, output: &Output, args: &ChannelLs) -> Result<()> {
    let channels = client.channels(&args.prefix)?;
    output.print(
        || json!({ "channels": channels.iter().map(channel_json).collect::<Vec<_>>() }),
        |out| {
            let row = |channel: &ChannelStatus| {
                let spec = channel.spec.clone().unwrap_or_default();
                vec![
                    name(channel),
                    writer(channel),
                    channel.written.to_string(),
                    (channel.readers.len() + channel.readers_left_out as usize).to_string(),
                    spec.slots.to_string(),
                    output::bytes(spec.slot_bytes),
                    policy(channel).to_owned(),
                ]
            };
            let headings = ["NAME", "WRITER", "WRITTEN", "READERS", "SLOTS", "SLOT", "POLICY"];
            output.table(out, &headings, &channels.iter().map(row).collect::<Vec<_>>())
        },
    )?;
    Ok(())
}

/// Name of a channel; of another peer's with the peer in front.
fn name(channel: &ChannelStatus) -> String {
    let name = channel.spec.clone().unwrap_or_default().name;
    match channel.peer.as_str() {
        "" => name,
        peer => format!("{peer}/{name}"),
    }
}

fn stat(client: &Client, output: &Output, args: &ChannelStat) -> Result<()> {
    let channel = find(client, &args.name)?.ok_or_else(|| {
        let message =
            format!("no channel of this peer is named {}; `tensorlane channel ls` shows them", args.name);
        Error::from(Failure::new(Reason::NotFound, message))
    })?;
    output.print(|| channel_json(&channel), |out| write_stat(out, output, &channel))?;
    Ok(())
}

fn write_stat(out: &mut dyn Write, output: &Output, channel: &ChannelStatus) -> io::Result<()> {
    let spec = channel.spec.clone().unwrap_or_default();
    writeln!(out, "{}  written by {}", spec.name, writer(channel))?;
    let (slots, slot, bytes) = (spec.slots, output::bytes(spec.slot_bytes), output::bytes(channel.bytes));
    let (written, policy) = (channel.written, policy(channel));
    writeln!(out, "{written} messages, {slots} slots of {slot}, {bytes} of the arena, {policy}")?;
    if let Some(allowed) = &channel.allowed {
        let mut patterns = allowed.patterns.clone();
        if channel.allowed_left_out > 0 {
            patterns.push(format!("and {} more", channel.allowed_left_out));
        }
        let others = AllowedPeers::Only(patterns.into());
        writeln!(out, "readers: this pod; of other peers {others}")?;
    }
    let row = |reader: &ChannelReaderStatus| {
        vec![
            reader.reader.to_string(),
            reader.client.clone(),
            reader.route.clone(),
            behind(channel, reader).to_string(),
            reader.dropped.to_string(),
            match (reader.evicted, reader.away, reader.waits) {
                (true, ..) => "evicted",
                (_, true, _) => "away",
                (.., true) => "yes",
                _ => "no",
            }
            .to_owned(),
        ]
    };
    let rows: Vec<_> = channel.readers.iter().map(row).collect();
    output.table(out, &["READER", "CLIENT", "ROUTE", "BEHIND", "DROPPED", "WAITS"], &rows)?;
    match channel.readers_left_out {
        0 => Ok(()),
        more => writeln!(out, "... and {more} more"),
    }
}

/// The channel of a name, as [`name`] gives it. Whoever asks for just this name has all readers told that have room, however many
/// channels are here.
fn find(client: &Client, wanted: &str) -> Result<Option<ChannelStatus>> {
    let of_a_peer = wanted.split_once('/').map(|(_, name)| name);
    for prefix in [Some(wanted), of_a_peer].into_iter().flatten() {
        let channels = client.channels(prefix)?;
        if let Some(found) = channels.into_iter().find(|channel| name(channel) == wanted) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Policy of a channel, as people say it.
fn policy(channel: &ChannelStatus) -> &'static str {
    channel.spec.as_ref().and_then(policy_of).map_or("unknown", Policy::as_str)
}

/// Messages that a reader has not given back.
fn behind(channel: &ChannelStatus, reader: &ChannelReaderStatus) -> u64 {
    channel.written.saturating_sub(reader.next)
}

fn writer(channel: &ChannelStatus) -> String {
    match (channel.writer.as_str(), channel.finished) {
        (writer, _) if channel.away => format!("{writer} (away)"),
        ("", true) => "- (finished)".to_owned(),
        ("", false) => "- (gone)".to_owned(),
        (writer, _) => writer.to_owned(),
    }
}

fn channel_json(channel: &ChannelStatus) -> Value {
    let spec = channel.spec.clone().unwrap_or_default();
    let reader = |reader: &ChannelReaderStatus| {
        json!({
            "reader": reader.reader,
            "client": reader.client,
            "route": reader.route,
            "next": reader.next,
            "behind": behind(channel, reader),
            "dropped": reader.dropped,
            "waits": reader.waits,
            "evicted": reader.evicted,
            "away": reader.away,
        })
    };
    json!({
        "name": spec.name,
        "writer": channel.writer,
        "finished": channel.finished,
        "written": channel.written,
        "slots": spec.slots,
        "slot_bytes": spec.slot_bytes,
        "growth": spec.growth,
        "readers_max": spec.readers_max,
        "policy": policy(channel),
        "evicts": spec.evicts,
        "allowed": channel.allowed.as_ref().map(|allowed| &allowed.patterns),
        "allowed_left_out": channel.allowed_left_out,
        "bytes": channel.bytes,
        "peer": channel.peer,
        "away": channel.away,
        "readers": channel.readers.iter().map(reader).collect::<Vec<_>>(),
        "readers_left_out": channel.readers_left_out,
    })
}

fn tail(client: &Client, output: &Output, args: &ChannelTail) -> Result<()> {
    let mut options = ReadOptions::new().wait(args.wait);
    if args.oldest {
        options = options.from_oldest();
    }
    if args.follow {
        options = options.follow();
    }
    options = options.require(parse::require(&args.require));
    let mut reader = client.channel_reader(&args.name, &options)?;
    let timeout = args.timeout.map_or(Timeout::Never, Timeout::After);
    let mut stdout = io::stdout().lock();
    let mut left = args.count.unwrap_or(u64::MAX);
    let is_raw = args.raw || args.lines;
    while left > 0 {
        match reader.read(timeout)? {
            Read::Message(message) => {
                if is_raw {
                    stdout.write_all(&message.bytes().to_vec())?;
                    if args.lines {
                        stdout.write_all(b"\n")?;
                    }
                } else {
                    stdout.write_all(&output.state(|| message_json(&message), |out| told(out, &message))?)?;
                }
                stdout.flush()?;
                left -= 1;
            }
            Read::Gap { dropped, next } if is_raw => {
                // The bytes are what was asked for, and nothing else may stand among them.
                output.warn(&format!("{dropped} messages were dropped before message {next}"));
            }
            Read::Gap { dropped, next } => {
                let gap = || json!({ "dropped": dropped, "next": next });
                stdout
                    .write_all(&output.state(gap, |out| writeln!(out, "{dropped} dropped before {next}"))?)?;
                stdout.flush()?;
            }
            Read::Epoch { end, missed } if is_raw => {
                output.warn(&format!("{}, and {missed} messages of the next one are gone", ended(end)));
            }
            Read::Epoch { end, missed } => {
                let writer = &reader.attached().writer;
                let epoch = || json!({ "ended": ended(end), "writer": writer, "missed": missed });
                let told = |out: &mut dyn Write| {
                    writeln!(out, "{}; the next one is written by {writer}, {missed} missed", ended(end))
                };
                stdout.write_all(&output.state(epoch, told)?)?;
                stdout.flush()?;
            }
            Read::End(end) => {
                return lost(end, &args.name).map_or(Ok(()), |failure| Err(Error::from(failure).into()));
            }
        }
    }
    Ok(())
}

/// Failure that an end of a channel is; none for an orderly one.
fn lost(end: End, name: &str) -> Option<Failure> {
    let (reason, message) = match end {
        End::Finished => return None,
        End::WriterLost => {
            (Reason::ChannelEnded, format!("the writer of {name} is gone and has not finished it"))
        }
        End::PeerLost => {
            let message = format!("the peer of {name} was lost, or the way to it; attach again, with a wait");
            (Reason::PeerUnreachable, message)
        }
    };
    Some(Failure::new(reason, message))
}

/// End of a channel in words.
fn ended(end: End) -> &'static str {
    match end {
        End::Finished => "the channel was finished",
        End::WriterLost => "the writer of the channel is gone",
        End::PeerLost => "the peer of the channel was lost, or the way to it",
    }
}

fn message_json(message: &Message) -> Value {
    let part = |part: usize| message.descriptor(part).map(|descriptor| descriptor.layout.to_string());
    json!({
        "sequence": message.sequence(),
        "bytes": message.bytes().len(),
        "parts": (0..message.parts()).filter_map(part).collect::<Vec<_>>(),
    })
}

fn told(out: &mut dyn Write, message: &Message) -> io::Result<()> {
    write!(out, "{}  {}", message.sequence(), output::bytes(message.bytes().len() as u64))?;
    for part in 0..message.parts() {
        if let Some(descriptor) = message.descriptor(part) {
            write!(out, "  {}", descriptor.layout)?;
        }
    }
    writeln!(out)
}

fn write(client: &Client, output: &Output, args: &ChannelWrite) -> Result<()> {
    let mut spec = ChannelSpec::new(&args.name)
        .slots(args.slots)
        .slot_bytes(args.slot_bytes)
        .growth(args.growth.unwrap_or_default())
        .expect_readers(args.expect_readers)
        .policy(args.policy);
    if let Some(readers) = &args.readers {
        // What '' says is no pattern.
        spec = spec
            .readers(&readers.iter().map(String::as_str).filter(|one| !one.is_empty()).collect::<Vec<_>>());
    }
    if let Some(after) = args.evict_after {
        spec = spec.evict_after(after);
    }
    let mut writer = client.channel_writer(&spec)?;
    let timeout = args.timeout.map_or(Timeout::Never, Timeout::After);
    let mut sent = Sent::default();
    let most = args.growth.unwrap_or(args.slot_bytes);
    for file in &args.files {
        sent.send(&mut writer, &read_file(file, most)?, timeout)?;
    }
    if args.files.is_empty() {
        let mut input = io::stdin().lock();
        let mut line = Vec::new();
        while read_line(&mut input, &mut line, most)? {
            sent.send(&mut writer, &line, timeout)?;
        }
    }
    writer.finish();
    if let Some(told) = sent.unread() {
        output.warn(&told);
    }
    output.print(
        || {
            json!({
                "name": args.name,
                "messages": sent.messages,
                "bytes": sent.bytes,
                "dropped": sent.dropped,
                "without_readers": sent.without_readers,
            })
        },
        |out| match sent.dropped {
            0 => writeln!(out, "{} messages, {}", sent.messages, output::bytes(sent.bytes)),
            dropped => writeln!(
                out,
                "{} messages, {}; {dropped} of them went to nobody, because readers held every slot (--slots)",
                sent.messages,
                output::bytes(sent.bytes)
            ),
        },
    )?;
    Ok(())
}

#[derive(Default)]
struct Sent {
    messages: u64,
    bytes: u64,
    /// Messages that no reader gets: every slot was held.
    dropped: u64,
    /// Messages at which nobody was attached.
    without_readers: u64,
}

impl Sent {
    /// Words for messages that were written for nobody.
    fn unread(&self) -> Option<String> {
        let Self { messages, without_readers, .. } = self;
        let of = match without_readers {
            0 => return None,
            all if all == messages => "all messages".to_owned(),
            some => format!("{some} of {messages} messages"),
        };
        Some(format!(
            "{of} were written while nobody read the channel; --expect-readers 1 waits for a reader"
        ))
    }

    fn send(&mut self, writer: &mut ChannelWriter, bytes: &[u8], timeout: Timeout) -> Result<()> {
        let written = writer.write_bytes(bytes, timeout)?;
        self.dropped += u64::from(written.dropped);
        self.without_readers += u64::from(written.readers == 0);
        self.messages += 1;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// All bytes of a file. No more is read than a message may have.
fn read_file(file: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|file| file.take(most.saturating_add(1)).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", file.display()))?;
    if bytes.len() as u64 > most {
        let message = format!(
            "{} has more than the {most} bytes of a message; raise --growth or --slot-bytes, or send it in pieces",
            file.display()
        );
        return Err(Error::from(Failure::new(Reason::TooLarge, message)).into());
    }
    Ok(bytes)
}

/// The next line without its end; false where there is none. No more is read than a message may have.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>, most: u64) -> Result<bool> {
    line.clear();
    let read = input.by_ref().take(most.saturating_add(1)).read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    ensure!(
        line.len() as u64 <= most,
        "a line is longer than the {most} bytes of a message; raise --growth or --slot-bytes"
    );
    Ok(read > 0)
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::generated::PeerPatterns;

    use super::*;
    use crate::output::Format;

    #[test]
    fn a_channel_with_more_readers_and_patterns_than_are_told_says_how_many_more() {
        let channel = ChannelStatus {
            readers: vec![ChannelReaderStatus { client: "trainer".to_owned(), ..Default::default() }],
            readers_left_out: 40,
            allowed: Some(PeerPatterns { patterns: vec!["rollout-*".to_owned()] }),
            allowed_left_out: 2,
            ..ChannelStatus::default()
        };
        let mut told = Vec::new();
        write_stat(&mut told, &Output::new(Format::Text), &channel).unwrap();
        let told = String::from_utf8(told).unwrap();
        assert!(told.contains("of other peers rollout-*, and 2 more\n"), "{told}");
        assert!(told.contains("trainer") && told.ends_with("... and 40 more\n"), "{told}");
        let json = channel_json(&channel);
        assert_eq!((&json["readers_left_out"], &json["allowed_left_out"]), (&json!(40), &json!(2)));
    }

    #[test]
    fn a_peer_that_is_lost_is_another_failure_than_a_writer_that_is_gone() {
        let reason = |end| lost(end, "a/c").map(|failure| failure.reason);
        assert_eq!(reason(End::Finished), None);
        assert_eq!(reason(End::WriterLost), Some(Reason::ChannelEnded));
        assert_eq!(reason(End::PeerLost), Some(Reason::PeerUnreachable));
    }

    #[test]
    fn a_file_without_an_end_is_refused_after_the_bytes_of_a_slot() {
        let refused = read_file(Path::new("/dev/zero"), 1_000).unwrap_err().to_string();
        assert!(refused.contains("/dev/zero has more than the 1000 bytes"), "{refused}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 1_000]).unwrap();
        assert_eq!(read_file(file.path(), 1_000).unwrap().len(), 1_000);
        assert!(read_file(file.path(), 999).is_err());
    }
}
