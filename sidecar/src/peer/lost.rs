//! Reasons for which holders are lost, as we say it, as it is counted, and as the wire has it.

use tensorlane_proto::frame::HOLDERS_TRIED;
use tensorlane_proto::generated as v1;

use super::api::LostHolder;
use super::relay;

/// Holders that a pull may lose where most of them refused: each costs a round trip, and says that one that had it has let it go.
const REFUSED_MAX: usize = 8;

/// Reason for which a pull does not go on from a holder. The words are for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderLost {
    /// Holder not reached, or its connection ended.
    Unreachable,
    /// Holder without such a tensor, or one that does not give it to us.
    Refused,
    /// No byte came though some were due.
    Stalled,
    /// Holder that lives, and had nothing for too long.
    Starved,
    /// Holder that sent other bytes than it summed, or than the owner has.
    Altered,
    /// At its rate the rest would come after the deadline.
    Slow,
    /// Holder that was not asked: it was unreachable or stalled a moment ago, or there is no lane to it now.
    Cooldown,
    /// Another connection with it took the place of the one that it was asked on, twice.
    Replaced,
}

impl HolderLost {
    /// The word in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Stalled => "stalled",
            Self::Starved => "starved",
            Self::Altered => "altered",
            Self::Slow => "slow",
            Self::Cooldown => "cooldown",
            Self::Replaced => "replaced",
        }
    }

    /// Returns whether it is not to be asked again for a while, for whatever tensor.
    pub(super) fn is_for_a_while(self) -> bool {
        matches!(self, Self::Unreachable | Self::Stalled)
    }
}

impl From<HolderLost> for v1::LostReason {
    fn from(why: HolderLost) -> Self {
        match why {
            HolderLost::Unreachable | HolderLost::Cooldown | HolderLost::Replaced => Self::Unreachable,
            HolderLost::Refused => Self::Refused,
            HolderLost::Stalled => Self::Stalled,
            HolderLost::Starved => Self::Starved,
            HolderLost::Altered => Self::Altered,
            HolderLost::Slow => Self::Slow,
        }
    }
}

/// Reason for which a holder is lost, if that is said.
fn why(reason: v1::LostReason) -> Option<HolderLost> {
    Some(match reason {
        v1::LostReason::Unspecified => return None,
        v1::LostReason::Unreachable => HolderLost::Unreachable,
        v1::LostReason::Refused => HolderLost::Refused,
        v1::LostReason::Stalled => HolderLost::Stalled,
        v1::LostReason::Starved => HolderLost::Starved,
        v1::LostReason::Altered => HolderLost::Altered,
        v1::LostReason::Slow => HolderLost::Slow,
    })
}

/// Returns whether a reader that has lost these asks another one. One that refuses says so at once, and counts for
/// less.
pub fn asks_on(lost: &[LostHolder]) -> bool {
    let dear = lost.iter().filter(|lost| lost.why != Some(HolderLost::Refused)).count();
    dear < HOLDERS_TRIED && lost.len() < REFUSED_MAX
}

/// Lost holder, as the wire has it.
pub(super) fn life(lost: &LostHolder) -> v1::Life {
    let why = lost.why.map_or(v1::LostReason::Unspecified, v1::LostReason::from);
    v1::Life { lost: why.into(), ..relay::life(&lost.peer) }
}

/// Lost holder, as we have it. A reason that this release does not know is none.
pub(super) fn holder(life: &v1::Life) -> Option<LostHolder> {
    let why = v1::LostReason::try_from(life.lost).ok().and_then(why);
    relay::key(life).map(|peer| LostHolder { peer, why })
}
