//! Arguments that the command understands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use clap::{Args as ClapArgs, Parser, Subcommand};
use tensorlane_client::channel::Policy;
#[cfg(feature = "kubernetes")]
use tensorlane_client::set::mutable::Durability;
use tensorlane_client::{
    AcquireOptions, Client, ClientOptions, DEADLINE_DEFAULT, Description, SOCKETS_ENV, Target,
    sockets_directory,
};
use tensorlane_proto::{PeerName, Revision, Selection};

use crate::output::Format;
use crate::parse;

/// Put tensors into the exchange, get them out, and see what is there.
#[derive(Debug, Parser)]
#[command(name = "tensorlane", version, disable_help_subcommand = true)]
pub(crate) struct Args {
    /// Format of results.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub(crate) output: Format,
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Way to the sidecar, and time for its answers.
#[derive(Debug, ClapArgs)]
pub(crate) struct Connection {
    /// The directory of the sidecar's session socket [default: /run/tensorlane].
    #[arg(long, global = true, env = SOCKETS_ENV, value_name = "DIR", hide_env_values = true, value_parser = OsStringValueParser::new())]
    sockets: Option<OsString>,
    /// Time that a call waits for the sidecar, such as 500ms, 30s, 10m [default: 30s]; it gives up 500ms later at the latest. If
    /// given, it holds for all calls of a get or describe together, and --wait is cut to it. A put has it for each call. Files are
    /// read and written beyond it.
    #[arg(long, global = true, value_parser = parse::duration, value_name = "DURATION")]
    deadline: Option<Duration>,
}

impl Connection {
    /// Directory in which the sockets are looked for.
    pub(crate) fn directory(&self) -> PathBuf {
        sockets_directory(self.sockets.clone())
    }

    pub(crate) fn connect(&self) -> tensorlane_client::Result<Client> {
        let options = ClientOptions::at(self.directory());
        options.deadline(self.deadline.unwrap_or(DEADLINE_DEFAULT)).connect()
    }

    /// Names are waited for as long as was asked, but not beyond a deadline that was given. (The default deadline is one of
    /// calls that need not wait.)
    fn bound(&self, wait: &mut Waiting, now: Instant) {
        wait.until = self.deadline.and_then(|deadline| now.checked_add(deadline));
        wait.wait = self.deadline.map_or(wait.wait, |deadline| wait.wait.min(deadline));
    }
}

impl Args {
    /// The command line, with what one option says of another. `now`: when the command began.
    pub(crate) fn settled(mut self, now: Instant) -> Self {
        match &mut self.command {
            Command::Get(get) => self.connection.bound(&mut get.waiting, now),
            Command::Describe(describe) => self.connection.bound(&mut describe.waiting, now),
            Command::Set(Set::Get(get)) => self.connection.bound(&mut get.waiting, now),
            _ => {}
        }
        self
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put all tensors of a safetensors file.
    Put(Put),
    /// Get tensors, into a safetensors file if one is given.
    Get(Get),
    /// List the names of this peer.
    Ls(Ls),
    /// Show the names of this peer that there are, then each that comes, is replaced or goes. Ends with Ctrl-C.
    Watch(Watch),
    /// Tell what is known of tensors without moving them.
    Describe(Describe),
    /// Take names away; a tensor that nothing else keeps is freed.
    Rm(Rm),
    /// Put and get sets: directories of tensors as tensordict saves them, published by versions. Make sets whose rows change.
    #[command(subcommand)]
    Set(Set),
    /// Write and read channels: messages from one process to many, through shared memory.
    #[command(subcommand)]
    Channel(Channel),
    /// Show the state of the sidecar: arena, tensors, leases.
    Status,
    /// Show the peers and the route that would be taken to each.
    Peers,
    /// Show of every peer which transport would be taken, and why each better one is not.
    Routes(Routes),
    /// Find out what is wrong with this pod: sockets, sidecar, arena, peers. The cluster's side: kubectl tensorlane check.
    #[cfg(feature = "kubernetes")]
    Check,
    /// Print manifests with sidecars injected, as the operator would.
    #[cfg(feature = "kubernetes")]
    Inject(Inject),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Routes {
    /// Go on, and show what changes: on a terminal in place, into a pipe or file each state below the one before, with -o
    /// json each in a line of its own. Ends with Ctrl-C, or with whoever reads.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Time between two looks, such as 500ms; 100ms at least.
    #[arg(long, default_value = "1s", value_parser = parse::interval, value_name = "DURATION", requires = "watch")]
    pub(crate) interval: Duration,
}

/// Needs no sidecar and no cluster: what only a cluster knows (quotas, limit ranges, claims) may still refuse the result. With -o json
/// the manifests are one List in JSON, and each note about them a line of JSON on standard error.
#[cfg(feature = "kubernetes")]
#[derive(Debug, ClapArgs)]
pub(crate) struct Inject {
    /// The manifests, YAML or JSON; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The namespace of what names none.
    #[arg(short, long, default_value = "default", value_parser = namespace, value_name = "NAME")]
    pub(crate) namespace: String,
    /// The sidecar's image [default: that of this version].
    #[arg(long, value_name = "IMAGE", value_parser = tensorlane_operator::sidecar_args::image)]
    pub(crate) sidecar_image: Option<String>,
    #[command(flatten)]
    pub(crate) sidecar: tensorlane_operator::sidecar_args::SidecarArgs,
}

/// The name of a namespace, as Kubernetes takes it.
#[cfg(feature = "kubernetes")]
fn namespace(text: &str) -> Result<String, tensorlane_operator::dns::BadName> {
    tensorlane_operator::dns::Label::new("the namespace", text).map(|label| label.to_string())
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Put {
    /// The safetensors file.
    #[arg(value_parser = PathBufValueParser::new().try_map(parse::path))]
    pub(crate) file: PathBuf,
    /// Name each tensor PREFIX/NAME-IN-FILE. Without it each gets a ticket instead.
    #[arg(long, value_parser = parse::name, value_name = "PREFIX")]
    pub(crate) name: Option<String>,
    /// Give names that are taken to the new tensors.
    #[arg(long, requires = "name")]
    pub(crate) replace: bool,
    /// Take names below PREFIX that the file does not have away, in the step that gives the others. Names of sets stay.
    #[arg(long, requires = "replace")]
    pub(crate) prune: bool,
    /// Time that a ticket keeps each tensor [default: 60s if there is no name].
    #[arg(long, visible_alias = "ticket-ttl", value_parser = parse::duration, value_name = "DURATION")]
    pub(crate) keep: Option<Duration>,
    /// Number of times that each ticket can be redeemed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub(crate) uses: u32,
    /// Store a CRC-32C with each tensor; it is verified on every transfer.
    #[arg(long)]
    pub(crate) checksum: bool,
    /// Fail, and put nothing, if metadata of the file would be left out (an exchange keeps 64 of them, 4 KiB each), or if names
    /// below PREFIX would stay that the file does not have, where it replaces others.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Get {
    /// Names, references or tickets.
    #[arg(required = true, value_parser = parse::wanted, value_name = "NAME|REFERENCE|TICKET")]
    pub(crate) targets: Vec<String>,
    /// The given names are prefixes: get every tensor below them. Names of this peer only: run it beside the one that
    /// has them.
    #[arg(short, long, conflicts_with = "peer")]
    pub(crate) recursive: bool,
    /// Write the tensors into this safetensors file, which appears when it is whole; into a device or pipe, if it is one.
    #[arg(long, value_parser = PathBufValueParser::new().try_map(parse::path), value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
    /// Fail, and write nothing, if the file would lack something: metadata that put left out or that the tensors do not
    /// agree on, or sets below a prefix.
    #[arg(long, requires = "to")]
    pub(crate) strict: bool,
    /// The peer that the names belong to; without it this peer and all connected ones are asked.
    #[arg(long, value_name = "PEER")]
    pub(crate) peer: Option<PeerName>,
    #[command(flatten)]
    pub(crate) part: WantedPart,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Requirements of the route, else the call fails: zero_copy, same_node, encrypted.
    #[arg(long, value_delimiter = ',', value_name = "WHAT")]
    pub(crate) require: Vec<parse::Requirement>,
}

/// Part of each tensor that is wanted.
#[derive(Debug, ClapArgs)]
pub(crate) struct WantedPart {
    /// Only these rows of each tensor, such as 3,7,10-19.
    #[arg(long, value_parser = parse::rows, value_name = "ROWS")]
    rows: Option<Selection>,
    /// Only this part of each tensor, a range for each dimension, such as 0:10,::2. Of mutable sets one range, of rows.
    #[arg(long, value_parser = parse::ranges, value_name = "RANGES", conflicts_with = "rows")]
    part: Option<Selection>,
}

impl WantedPart {
    /// The part; all where none was given.
    pub(crate) fn selection(&self) -> Selection {
        self.rows.clone().or_else(|| self.part.clone()).unwrap_or_default()
    }
}

/// A set is all of one version: whoever gets it never has some of one and some of another.
#[derive(Debug, Subcommand)]
pub(crate) enum Set {
    /// Publish a directory that tensordict saved, or a safetensors file, as the next version of a name.
    Put(SetPut),
    /// Get a set, into a directory that tensordict opens or a safetensors file if one is given. All rows of a mutable set are of one
    /// version; with --rows, --part or --key the rest of them stays where it is.
    Get(SetGet),
    /// Publish what a mutable set holds at one moment as the next version of a sealed set at its peer. Commits go on meanwhile.
    Snapshot(SetSnapshot),
    /// Find out whether a directory or a set is whole: what is missing, torn, too short, too long, or damaged. The exit code is 1 if
    /// anything is.
    Verify(SetVerify),
    /// List the versions of this peer's sets, and its mutable sets.
    Ls(SetLs),
    /// Make a mutable set of this peer: rows that programs write and read, in memory or on files. All of them are zero; nothing is
    /// written.
    Create(SetCreate),
    /// Show mutable sets of this peer: version, memory, leaves, and who may write.
    Stat(SetStat),
    /// Take a mutable set of this peer away, with its rows. The directory of one on files stays.
    Drop(SetDrop),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SetCreate {
    /// The set's name.
    pub(crate) name: String,
    /// The number of rows. With --open, that of the directory by default.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), value_name = "N", required_unless_present = "open")]
    pub(crate) rows: Option<u64>,
    /// A leaf, with the type and shape of one row: obs:u8:480,480,3 or, of one element, next/reward:f32. With --open, those of the
    /// directory by default.
    #[arg(long = "leaf", value_parser = parse::leaf, value_name = "KEY:DTYPE[:SHAPE]", required_unless_present = "open")]
    pub(crate) leaves: Vec<parse::Leaf>,
    /// Lets workloads of another peer write, too; rollout-* stands for all whose names begin so.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) writers: Vec<String>,
    /// Have the rows lie in files, in a new directory of this name below `sets.root` of the sidecar, which TensorDict.load_memmap opens.
    #[arg(long, value_name = "DIR")]
    pub(crate) files: Option<String>,
    /// Take a directory that is there, as written by TensorDict.memmap or an earlier set.
    #[arg(long, requires = "files")]
    pub(crate) open: bool,
    /// Durability: all survive the sidecar; with process torn rows are known, with disk commits survive a loss of
    /// power. Without it, that of a set that is opened, and process for one that is made.
    #[arg(long, requires = "files", value_name = "none|process|disk")]
    pub(crate) durability: Option<Durability>,
    /// Have the rows of each leaf lie in one piece of the arena, taken at once, so that programs of this pod map them without a copy.
    #[arg(long, conflicts_with = "files")]
    pub(crate) contiguous: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SetStat {
    /// Only names that begin so; PEER/NAME for the set of another peer.
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SetSnapshot {
    /// The mutable set's name at this peer, PEER/NAME, or its reference.
    #[arg(value_name = "NAME|REFERENCE")]
    pub(crate) set: String,
    /// The sealed set's name [default: that of the mutable set]. Of a set of another peer it can be no other.
    #[arg(value_parser = parse::name, value_name = "AS")]
    pub(crate) name: Option<String>,
    /// Number of versions that stay, this one included. Each is a copy of all rows.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub(crate) keep: u32,
    /// Time to wait for a set that is not there yet, or whose peer is not.
    #[arg(long, default_value = "0s", value_parser = parse::duration, value_name = "DURATION")]
    pub(crate) wait: Duration,
}

/// A directory is verified without a sidecar; anything else is a set of the exchange.
#[derive(Debug, ClapArgs)]
pub(crate) struct SetVerify {
    /// The directory, or the set's name, NAME@VERSION, or a reference. A name is the mutable set that is called so, here or as PEER/NAME;
    /// if there is none, the latest version of the sealed set.
    #[arg(value_name = "DIR|NAME|REFERENCE")]
    pub(crate) what: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SetDrop {
    /// The set's name at this peer, or its reference.
    #[arg(value_name = "NAME|REFERENCE")]
    pub(crate) set: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SetPut {
    /// The directory, as written by `TensorDict.memmap` or `set get`, an archive of one, whose name ends in .tdz, or a safetensors file, whose
    /// name ends in .safetensors. An archive is unpacked into a temporary directory (TMPDIR) first.
    #[arg(value_parser = PathBufValueParser::new().try_map(parse::path), value_name = "DIR|FILE.tdz|FILE.safetensors")]
    pub(crate) from: PathBuf,
    /// The set's name. Version 7 is also named NAME@7.
    #[arg(long, value_parser = parse::name, value_name = "NAME")]
    pub(crate) name: String,
    /// Number of versions that stay, this one included.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub(crate) keep: u32,
    /// Publish only if this is the latest version; 0 means that there is none.
    #[arg(long, value_name = "VERSION")]
    pub(crate) expects: Option<u64>,
    /// Store a CRC-32C with each tensor; it is verified on every transfer, and by `set verify`.
    #[arg(long)]
    pub(crate) checksum: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SetGet {
    /// The set's name, NAME@VERSION, or a reference. A name is the mutable set that is called so, here or at --peer, as it is at this moment;
    /// if there is none, the latest version of the sealed set. Snapshots of a mutable set are got by NAME@VERSION.
    #[arg(value_parser = parse::target, value_name = "NAME|REFERENCE")]
    pub(crate) target: Target,
    /// Only this leaf, such as obs or next/reward. Of a sealed set also a tree, or encoder.* for all keys that begin so. Can be given
    /// several times.
    #[arg(long = "key", value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    #[command(flatten)]
    pub(crate) part: WantedPart,
    /// Write the set into this directory, or into this archive (.tdz) or safetensors file if it is called so; none of them must exist.
    #[arg(long, value_parser = PathBufValueParser::new().try_map(parse::path), value_name = "DIR|FILE.tdz|FILE.safetensors")]
    pub(crate) to: Option<PathBuf>,
    /// Swap a set that is in the directory, or the file, for this one.
    #[arg(long, requires = "to")]
    pub(crate) replace: bool,
    /// Fail, and write nothing, if parts of the set would be left out: a safetensors file has no batch shapes, names of dimensions and trees
    /// without keys.
    #[arg(long, requires = "to")]
    pub(crate) strict: bool,
    /// The peer that the name belongs to; without it this peer and all connected ones are asked.
    #[arg(long, value_name = "PEER")]
    pub(crate) peer: Option<PeerName>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SetLs {
    /// Only names that begin so.
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// A channel lives as long as its writer. A reader gets every message from the one on with which it was attached.
#[derive(Debug, Subcommand)]
pub(crate) enum Channel {
    /// List the channels of this peer.
    Ls(ChannelLs),
    /// Show one channel, and how far each reader is.
    Stat(ChannelStat),
    /// Read a channel and show its messages.
    Tail(ChannelTail),
    /// Make a channel and write messages into it: a file each, or the lines of standard input.
    Write(ChannelWrite),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Watch {
    /// Only names that begin so.
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Watch the names of this peer [default: the one that is asked].
    #[arg(long, value_name = "PEER")]
    pub(crate) peer: Option<PeerName>,
    /// Show only what has changed since this revision of an earlier watch; -o json prints one with each change.
    #[arg(long, value_name = "REVISION")]
    pub(crate) from: Option<Revision>,
    /// End after so many names and changes [default: go on].
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Time to wait for each change [default: for ever].
    #[arg(long, value_parser = parse::duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ChannelLs {
    /// Only names that begin so.
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ChannelStat {
    /// The channel's name.
    pub(crate) name: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ChannelTail {
    /// The channel's name.
    pub(crate) name: String,
    /// End after so many messages [default: with the channel].
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Begin with the oldest message that is still there, rather than with the next one.
    #[arg(long)]
    pub(crate) oldest: bool,
    /// Time to wait for a channel that does not exist yet.
    #[arg(long, default_value = "0s", value_parser = parse::duration, value_name = "DURATION")]
    pub(crate) wait: Duration,
    /// Time to wait for each message [default: for ever].
    #[arg(long, value_parser = parse::duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
    /// Print the bytes of the messages and nothing else, not even between two.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print the bytes of the messages with the end of a line behind each, as `channel write` takes them.
    #[arg(long, conflicts_with = "raw")]
    pub(crate) lines: bool,
    /// Go on with the next channel of the name when this one ends; ends with Ctrl-C, or with whoever reads.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Requirements of the way of the messages, else nobody is attached: zero_copy, same_node, encrypted.
    #[arg(long, value_delimiter = ',', value_name = "WHAT")]
    pub(crate) require: Vec<parse::Requirement>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ChannelWrite {
    /// The channel's name.
    pub(crate) name: String,
    /// Files, each of which is one message; without them each line of standard input is one.
    #[arg(value_parser = PathBufValueParser::new().try_map(parse::path))]
    pub(crate) files: Vec<PathBuf>,
    /// Number of messages that the channel holds.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=65_536), value_name = "N")]
    pub(crate) slots: u32,
    /// Bytes of a slot, such as 64KiB or 1GiB: the largest message, unless there is a --growth.
    #[arg(long, default_value = "1MiB", value_parser = parse::bytes, value_name = "BYTES")]
    pub(crate) slot_bytes: u64,
    /// The largest message, if it may be larger than a slot: it has memory of its own then [default: a slot's bytes].
    #[arg(long, value_parser = parse::bytes, value_name = "BYTES")]
    pub(crate) growth: Option<u64>,
    /// Number of readers that the first message waits for.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) expect_readers: u32,
    /// Policy for messages whose readers are slow: block, drop_oldest or latest.
    #[arg(long, default_value_t = Policy::Block, value_parser = parse::policy, value_name = "POLICY")]
    pub(crate) policy: Policy,
    /// Peers that may read it beside this pod, such as rollout-*; several with commas, none with '' [default: all].
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    pub(crate) readers: Option<Vec<String>>,
    /// Time after which a reader that a message waits for is evicted, if the policy is to block [default: never].
    #[arg(long, value_parser = parse::duration, value_name = "DURATION")]
    pub(crate) evict_after: Option<Duration>,
    /// Time to wait for a place for each message, if the policy is to block [default: for ever].
    #[arg(long, value_parser = parse::duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Ls {
    /// Only names that begin so.
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Show references, too.
    #[arg(short, long)]
    pub(crate) long: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Describe {
    /// Names or references.
    #[arg(required = true, value_parser = parse::target, value_name = "NAME|REFERENCE")]
    pub(crate) targets: Vec<Target>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// Time to wait for names, and the instant until which all of it must be done.
#[derive(Debug, ClapArgs)]
pub(crate) struct Waiting {
    /// Time to wait for names that do not exist yet; no longer than a --deadline.
    #[arg(long, default_value = "0s", value_parser = parse::duration, value_name = "DURATION")]
    wait: Duration,
    /// When the deadline passes, where one is given.
    #[arg(skip)]
    until: Option<Instant>,
}

impl Waiting {
    /// Descriptions of what names stand for, within the deadline.
    pub(crate) fn lookup(
        &self,
        client: &Client,
        names: &[&str],
        peer: Option<&PeerName>,
    ) -> tensorlane_client::Result<Vec<tensorlane_client::Result<Description>>> {
        let client = self.rest(client);
        let Some(left) = self.until.map(|_| client.deadline()) else {
            return client.lookup(names, peer, self.wait);
        };
        // The wait comes on top of a client's deadline.
        let wait = self.wait.min(left);
        client.with_deadline(left - wait).lookup(names, peer, wait)
    }

    /// Time for which names are waited for.
    pub(crate) fn wait(&self) -> Duration {
        self.wait
    }

    /// Returns whether names are waited for.
    pub(crate) fn waits(&self) -> bool {
        !self.wait.is_zero()
    }

    /// Options of one call that waits for its name, within the deadline.
    pub(crate) fn options(&self, client: &Client) -> AcquireOptions {
        let client = self.rest(client);
        let deadline = match self.until {
            Some(_) => client.deadline(),
            // The wait comes on top of the default deadline.
            None => client.deadline().saturating_add(self.wait),
        };
        AcquireOptions::new().deadline(deadline).wait(self.wait)
    }

    /// A client for the next call, with what is left of the deadline that was given; 1 ms at least, so that it is the call that
    /// says what it could not do.
    pub(crate) fn rest(&self, client: &Client) -> Client {
        let left = |until: Instant| until.saturating_duration_since(Instant::now()).max(LEFT_MIN);
        client.with_deadline(self.until.map_or(client.deadline(), left))
    }
}

/// The shortest deadline of a call.
const LEFT_MIN: Duration = Duration::from_millis(1);

#[derive(Debug, ClapArgs)]
pub(crate) struct Rm {
    /// Names of this peer.
    #[arg(required_unless_present = "all", value_parser = parse::name, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The given names are prefixes: every name below them goes, and the name itself.
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Every name of this peer goes.
    #[arg(long, requires = "recursive", conflicts_with = "names")]
    pub(crate) all: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use tensorlane_client::SOCKETS_DEFAULT;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn options_may_stand_before_and_behind_the_verb() {
        for line in ["tensorlane -o json ls a", "tensorlane ls a -o json"] {
            let args = Args::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(args.output, Format::Json);
        }
    }

    #[test]
    fn sockets_of_an_empty_variable_are_the_default_ones() {
        let directory = |value: &str| {
            let args = Args::try_parse_from(["tensorlane", "status", "--sockets", value]).unwrap();
            args.connection.directory()
        };
        assert_eq!((directory(""), directory("/a")), (SOCKETS_DEFAULT.into(), "/a".into()));
    }

    #[test]
    fn a_deadline_that_is_given_bounds_the_wait() {
        let settled = |line: &str| Args::try_parse_from(line.split(' ')).unwrap().settled(Instant::now());
        let wait = |line: &str| match settled(line).command {
            Command::Get(get) => get.waiting.wait.as_secs(),
            Command::Describe(describe) => describe.waiting.wait.as_secs(),
            _ => unreachable!("{line}"),
        };
        assert_eq!(wait("tensorlane get a --wait 5m"), 300);
        assert_eq!(wait("tensorlane get a --wait 5m --deadline 2s"), 2);
        assert_eq!(wait("tensorlane --deadline 2s describe a --wait 5m"), 2);
        assert_eq!(wait("tensorlane --deadline 2s describe a --wait 1s"), 1);
    }

    #[test]
    fn what_cannot_go_together_is_refused() {
        for line in [
            "tensorlane get a --rows 1 --part 0:1",
            "tensorlane put f --replace",
            "tensorlane put f --name n --prune",
            "tensorlane get",
            "tensorlane get a --rows x",
            "tensorlane get a --rows 9-3",
            "tensorlane get tl1:x",
            "tensorlane get a --to -",
            "tensorlane put -",
            "tensorlane set put - --name n",
            "tensorlane channel write c -",
            "tensorlane rm",
            "tensorlane rm -r",
            // An empty word, of a variable that is not set.
            "tensorlane rm -r ",
            "tensorlane put f --name ",
            "tensorlane rm --all",
            "tensorlane rm -r --all a",
            "tensorlane put f --uses 0",
            "tensorlane get a --strict",
            "tensorlane get a --require speed",
            "tensorlane --deadline 5 status x",
            "tensorlane set put d",
            "tensorlane set put d --name n --keep 0",
            "tensorlane set get n --replace",
            "tensorlane set get n --strict",
            "tensorlane set get n --rows 1 --part 0:1",
            "tensorlane set get n --rows 9-3",
            "tensorlane set create n --rows 1",
            "tensorlane set create n --rows 0 --leaf a:u8",
            "tensorlane set create n --rows 1 --leaf a:u7",
            "tensorlane set create n --rows 1 --leaf a:u8:3,x",
            "tensorlane set drop",
            "tensorlane routes --interval 1s",
            "tensorlane routes --watch --interval 99ms",
        ] {
            assert_eq!(Args::try_parse_from(line.split(' ')).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
