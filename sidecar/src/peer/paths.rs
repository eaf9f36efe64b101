//! The ways that the bytes of one pull came, and why a better one was not taken or was left. Plain data, for replies,
//! metrics and logs.

use tensorlane_proto::PeerName;
use tensorlane_proto::generated as v1;

use super::api::PeerKey;
use super::transport::Way;

/// Most peers that are named as senders of one pull; what others sent is told together.
const SENDERS_MAX: usize = 16;

/// Reason for which a better way was not taken, or was left. The words are for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallBack {
    /// No lane brought anything in the time that the pull could wait.
    NoLane,
    /// Lanes brought a part; then they broke, and none came back in time.
    LanesBroke,
    /// No lane came lately, so none was waited for.
    LanesCooldown,
    /// As many lanes of other peers are up as there may be of all together.
    LanesFull,
    /// The other peer takes no lanes.
    LanesNotOffered,
}

impl FallBack {
    /// The word in replies and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoLane => "no_lane",
            Self::LanesBroke => "lanes_broke",
            Self::LanesCooldown => "lanes_cooldown",
            Self::LanesFull => "lanes_full",
            Self::LanesNotOffered => "lanes_not_offered",
        }
    }
}

/// A part of the bytes of a pull, and the way that they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The way.
    pub way: Way,
    /// Bytes that came; those that came again after a loss count again.
    pub bytes: u64,
    /// Connections of its own that carried them.
    pub lanes: u32,
    /// Of the bytes, those that came without encryption.
    pub plain: u64,
    /// Reason for which the rest did not come this way.
    pub left: Option<FallBack>,
}

/// Record of what came on lanes, or on none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Travelled {
    /// Bytes that came.
    pub(super) bytes: u64,
    /// Of these, bytes that came without encryption.
    pub(super) plain: u64,
    /// Connections of their own that carried them.
    pub(super) lanes: u32,
    /// Senders of what came on lanes.
    pub(super) senders: Senders,
}

impl Travelled {
    /// Bytes came on no lanes.
    pub(super) fn on_none(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }
}

/// Senders of the bytes of one pull: at most 16 peers, and the rest together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Senders {
    sent: Vec<(Option<PeerName>, u64)>,
    /// Others than the owner among them, as far as they are told.
    others: Vec<PeerKey>,
}

impl Senders {
    /// A peer sent bytes; which life of it, if it is another holder than the owner.
    pub(super) fn sent(&mut self, peer: &PeerName, bytes: u64, holder: Option<&PeerKey>) {
        holder.into_iter().for_each(|holder| self.add_other(holder));
        self.add(Some(peer), bytes);
    }

    fn add_other(&mut self, holder: &PeerKey) {
        if self.others.len() < SENDERS_MAX && !self.others.contains(holder) {
            self.others.push(holder.clone());
        }
    }

    /// No name: those that are not told one by one.
    fn add(&mut self, peer: Option<&PeerName>, bytes: u64) {
        let known = self.sent.iter().position(|(name, _)| name.as_ref() == peer);
        let is_full = self.sent.len() >= SENDERS_MAX;
        let rest = || self.sent.iter().position(|(name, _)| name.is_none()).filter(|_| is_full);
        match known.or_else(rest) {
            Some(at) => self.sent[at].1 += bytes,
            None => self.sent.push((peer.cloned().filter(|_| !is_full), bytes)),
        }
    }

    /// Takes what was sent, to be told once; who sends it stays known.
    pub(super) fn take(&mut self) -> Self {
        Self { sent: std::mem::take(&mut self.sent), others: self.others.clone() }
    }

    /// Returns whether another holder than the owner sent any.
    pub fn are_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Others than the owner that sent any.
    pub fn others(&self) -> &[PeerKey] {
        &self.others
    }

    /// Names of those who sent, as far as they are told; for errors.
    pub fn names(&self) -> String {
        let names: Vec<&str> =
            self.sent.iter().filter_map(|(name, _)| name.as_ref().map(PeerName::as_str)).collect();
        names.join(", ")
    }
}

/// Message that tells of them: nothing where the owner sent all.
impl From<&Senders> for Vec<v1::Sender> {
    fn from(senders: &Senders) -> Self {
        let sender = |(name, bytes): &(Option<PeerName>, u64)| v1::Sender {
            peer: name.as_ref().map(ToString::to_string).unwrap_or_default(),
            bytes: *bytes,
        };
        if senders.are_others() { senders.sent.iter().map(sender).collect() } else { Vec::new() }
    }
}

/// The ways of one pull, in the order in which they were tried. Each is there once, and once more for each reason for
/// which it was left, so there are never many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths {
    ways: Vec<Path>,
    /// Senders of what came on lanes.
    senders: Senders,
}

impl Paths {
    /// All bytes came one way, on no lanes.
    pub fn one(way: Way, bytes: u64) -> Self {
        let ways = vec![Path { way, bytes, lanes: 0, plain: 0, left: None }];
        Self { ways, senders: Senders::default() }
    }

    /// No bytes came: this peer, which is not the owner, shows its copy.
    pub fn lent(by: &PeerKey) -> Self {
        let mut paths = Self::default();
        paths.senders.sent(&by.name, 0, Some(by));
        paths
    }

    /// Senders of what came on lanes.
    pub fn senders(&self) -> &Senders {
        &self.senders
    }

    /// Notes who sent some of it. What others have sent stays theirs, whoever sends the rest.
    fn sent_by(&mut self, senders: Senders) {
        senders.others.iter().for_each(|holder| self.senders.add_other(holder));
        for (name, bytes) in senders.sent {
            self.senders.add(name.as_ref(), bytes);
        }
    }

    /// Bytes came this way.
    pub(super) fn came(&mut self, way: Way, travelled: Travelled) {
        self.open(way).add(&travelled);
        self.sent_by(travelled.senders);
    }

    /// The rest does not come this way.
    pub(super) fn left(&mut self, way: Way, why: FallBack) {
        let path = *self.open(way);
        self.ways.retain(|other| other.way != way || other.left.is_some());
        match self.ways.iter_mut().find(|before| before.way == way && before.left == Some(why)) {
            Some(before) => {
                before.add(&Travelled {
                    bytes: path.bytes,
                    plain: path.plain,
                    lanes: path.lanes,
                    ..Travelled::default()
                });
            }
            None => self.ways.push(Path { left: Some(why), ..path }),
        }
    }

    /// Paths that are to be told.
    pub fn as_slice(&self) -> &[Path] {
        &self.ways
    }

    fn open(&mut self, way: Way) -> &mut Path {
        let at = self.ways.iter().position(|path| path.way == way && path.left.is_none());
        let at = at.unwrap_or_else(|| {
            self.ways.push(Path { way, bytes: 0, lanes: 0, plain: 0, left: None });
            self.ways.len() - 1
        });
        &mut self.ways[at]
    }
}

impl Path {
    fn add(&mut self, travelled: &Travelled) {
        self.bytes += travelled.bytes;
        self.plain += travelled.plain;
        self.lanes = self.lanes.max(travelled.lanes);
    }
}

impl From<&Path> for v1::Path {
    fn from(path: &Path) -> Self {
        Self {
            way: v1::Way::from(path.way).into(),
            bytes: path.bytes,
            lanes: path.lanes,
            plain_bytes: path.plain,
            left: path.left.map(|why| why.as_str().to_owned()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::Incarnation;

    use super::*;

    fn path(way: Way, bytes: u64, lanes: u32, left: Option<FallBack>) -> Path {
        Path { way, bytes, lanes, plain: 0, left }
    }

    #[test]
    fn what_came_is_told_by_way_and_a_way_that_was_left_with_its_reason() {
        let mut paths = Paths::default();
        paths.came(Way::Lanes, Travelled { lanes: 2, ..Travelled::on_none(3) });
        paths.left(Way::Lanes, FallBack::LanesBroke);
        paths.came(Way::Stream, Travelled::on_none(4));
        paths.came(Way::Stream, Travelled::on_none(5));
        let broke = path(Way::Lanes, 3, 2, Some(FallBack::LanesBroke));
        assert_eq!(paths.as_slice(), [broke, path(Way::Stream, 9, 0, None)]);
        assert_eq!(v1::Path::from(&broke).left, "lanes_broke");
    }

    #[test]
    fn what_came_without_encryption_is_told_and_added_up() {
        let mut paths = Paths::default();
        paths.came(Way::Lanes, Travelled { plain: 2, lanes: 3, ..Travelled::on_none(5) });
        paths.left(Way::Lanes, FallBack::LanesBroke);
        paths.came(Way::Lanes, Travelled { plain: 4, lanes: 1, ..Travelled::on_none(4) });
        paths.left(Way::Lanes, FallBack::LanesBroke);
        let [told] = paths.as_slice() else { panic!("one way: {paths:?}") };
        let told = v1::Path::from(told);
        assert_eq!((told.bytes, told.plain_bytes, told.lanes), (9, 6, 3));
    }

    #[test]
    fn who_sent_is_told_where_others_than_the_owner_did_and_the_list_ends() {
        let name = |number: usize| PeerName::new(&format!("p{number}")).unwrap();
        let life = |number: usize| PeerKey { name: name(number), incarnation: Incarnation(1) };
        let mut senders = Senders::default();
        senders.sent(&name(0), 5, None);
        assert!(Vec::<v1::Sender>::from(&senders).is_empty(), "the owner alone");
        for number in 0..20 {
            let holder = Some(life(number)).filter(|_| number > 0);
            senders.sent(&name(number), 1, holder.as_ref());
            senders.sent(&name(number), 1, holder.as_ref());
        }
        assert_eq!((senders.others().len(), &senders.others()[0]), (16, &life(1)));
        let told = Vec::<v1::Sender>::from(&senders);
        assert_eq!((told.len(), told[0].peer.as_str(), told[0].bytes), (17, "p0", 7));
        assert_eq!((told[16].peer.as_str(), told[16].bytes), ("", 8));
        assert_eq!(told.iter().map(|sender| sender.bytes).sum::<u64>(), 45);
    }

    #[test]
    fn a_connection_that_comes_and_goes_makes_no_endless_list() {
        let mut paths = Paths::default();
        for _ in 0..100 {
            paths.left(Way::Lanes, FallBack::LanesCooldown);
            paths.came(Way::Stream, Travelled::on_none(1));
            paths.came(Way::Lanes, Travelled { lanes: 1, ..Travelled::on_none(1) });
            paths.left(Way::Lanes, FallBack::LanesBroke);
        }
        assert_eq!(
            paths.as_slice(),
            [
                path(Way::Lanes, 0, 0, Some(FallBack::LanesCooldown)),
                path(Way::Stream, 100, 0, None),
                path(Way::Lanes, 100, 1, Some(FallBack::LanesBroke)),
            ]
        );
    }
}
