//! The key that binds lanes to their control connection, and what is proven with it.
//!
//! ```text
//!   proof = HMAC-SHA-256(key, role, lane, serves, nonces)
//! ```
//! The role says what kind of lane it is and which end proves, so that no proof is good for anything else.

use ring::hmac;

/// Bytes of a key, of a nonce and of a proof.
pub(in crate::peer) const BYTES: usize = 32;
/// Bytes of the number by which a plain lane names its connection.
pub(in crate::peer) const ID_BYTES: usize = 16;

/// Fresh random bytes.
pub(in crate::peer) type Nonce = [u8; BYTES];

/// Role in a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::peer) enum Role {
    /// The end that dials a lane in TLS.
    Tls,
    /// The end that accepts a plain lane.
    PlainAccepts,
    /// The end that dials one.
    PlainDials,
    /// The end that dials a QUIC connection.
    Quic,
    /// The end that accepts on the node's socket.
    NodeAccepts,
    /// The end that calls there.
    NodeDials,
    /// Messages at the node's socket of the end that accepted there.
    NodeAccepted,
    /// Messages of the end that called.
    NodeDialed,
}

impl Role {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Tls => b"tensorlane lane tls dial\0",
            Self::PlainAccepts => b"tensorlane lane plain accept\0",
            Self::PlainDials => b"tensorlane lane plain dial\0",
            Self::Quic => b"tensorlane lane quic dial\0",
            Self::NodeAccepts => b"tensorlane node accept\0",
            Self::NodeDials => b"tensorlane node dial\0",
            Self::NodeAccepted => b"tensorlane node accepted\0",
            Self::NodeDialed => b"tensorlane node dialed\0",
        }
    }
}

/// Name of a lane: its number and its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::peer) struct LaneName {
    /// Number of the lane among those of its direction.
    pub(in crate::peer) number: u8,
    /// True if the end that dials serves on it; else it reads.
    pub(in crate::peer) serves: bool,
}

/// Use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::peer) enum Use {
    Lanes,
    Node,
}

/// Known to both ends of one control connection and nobody else.
#[derive(Clone)]
pub(in crate::peer) struct LaneKey(hmac::Key);

impl LaneKey {
    /// Of what the side that was dialed has told in its Hello: all that there is before version 5.
    pub(in crate::peer) fn told(bytes: &Nonce) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Of that and of what both ends have exported of the connection, which was never on it.
    pub(in crate::peer) fn mixed(exported: &[u8], told: &Nonce, of: Use) -> Self {
        let label: &[u8] = match of {
            Use::Lanes => b"tensorlane lane key\0",
            Use::Node => b"tensorlane node key\0",
        };
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, exported), &[label, told].concat());
        Self(hmac::Key::new(hmac::HMAC_SHA256, tag.as_ref()))
    }

    #[cfg(test)]
    pub(in crate::peer) fn random() -> Self {
        Self::told(&nonce())
    }

    /// A number that says which key it is and nothing about the key.
    pub(in crate::peer) fn id(&self) -> [u8; ID_BYTES] {
        let tag = hmac::sign(&self.0, b"tensorlane lane id\0");
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&tag.as_ref()[..ID_BYTES]);
        id
    }

    pub(in crate::peer) fn prove(&self, role: Role, lane: LaneName, nonces: &[Nonce]) -> Nonce {
        let tag = hmac::sign(&self.0, &message(role, lane, nonces));
        let mut proof = [0; BYTES];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Key of what one end says once both have met. Each meeting has its own, by its nonces.
    pub(in crate::peer) fn messages(&self, role: Role, nonces: &[Nonce]) -> MessageKey {
        let tag = hmac::sign(&self.0, &message(role, LaneName { number: 0, serves: false }, nonces));
        MessageKey(hmac::Key::new(hmac::HMAC_SHA256, tag.as_ref()))
    }

    /// Returns whether the other end has the key. Takes as long for every wrong proof.
    pub(in crate::peer) fn is_proven(
        &self,
        role: Role,
        lane: LaneName,
        nonces: &[Nonce],
        proof: &[u8],
    ) -> bool {
        hmac::verify(&self.0, &message(role, lane, nonces), proof).is_ok()
    }
}

/// Key of what one end says in one meeting at the node's socket. What it says is numbered from 0.
pub(in crate::peer) struct MessageKey(hmac::Key);

impl MessageKey {
    /// Tag of a message.
    pub(in crate::peer) fn tag(&self, number: u64, message: &[u8]) -> Nonce {
        let tag = hmac::sign(&self.0, &numbered(number, message));
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }

    /// Returns whether a tag is that of a message. Takes as long for every wrong one.
    pub(in crate::peer) fn is_tag(&self, number: u64, message: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.0, &numbered(number, message), tag).is_ok()
    }
}

fn numbered(number: u64, message: &[u8]) -> Vec<u8> {
    let mut numbered = Vec::with_capacity(size_of::<u64>() + message.len());
    numbered.extend(number.to_le_bytes());
    numbered.extend(message);
    numbered
}

pub(in crate::peer) fn nonce() -> Nonce {
    rand::random()
}

fn message(role: Role, lane: LaneName, nonces: &[Nonce]) -> Vec<u8> {
    let mut message = role.label().to_vec();
    message.extend([lane.number, u8::from(lane.serves)]);
    nonces.iter().for_each(|nonce| message.extend(nonce));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_key_role_lane_and_nonce() {
        let (key, other) = (LaneKey::random(), LaneKey::random());
        let lane = LaneName { number: 3, serves: true };
        let (mine, theirs) = (nonce(), nonce());
        let proof = key.prove(Role::PlainDials, lane, &[mine, theirs]);
        assert!(key.is_proven(Role::PlainDials, lane, &[mine, theirs], &proof));
        assert!(!other.is_proven(Role::PlainDials, lane, &[mine, theirs], &proof));
        assert!(!key.is_proven(Role::PlainAccepts, lane, &[mine, theirs], &proof));
        assert!(!key.is_proven(Role::PlainDials, lane, &[theirs, mine], &proof));
        for lane in [LaneName { number: 2, ..lane }, LaneName { serves: false, ..lane }] {
            assert!(!key.is_proven(Role::PlainDials, lane, &[mine, theirs], &proof));
        }
        assert!(!key.is_proven(Role::PlainDials, lane, &[mine, theirs], &proof[..31]));
        assert_ne!(key.id(), other.id());
    }

    #[test]
    fn a_tag_is_good_for_one_end_meeting_number_and_message() {
        let (key, nonces) = (LaneKey::random(), [nonce(), nonce()]);
        let dialed = key.messages(Role::NodeDialed, &nonces);
        let tag = dialed.tag(3, b"said");
        assert!(key.messages(Role::NodeDialed, &nonces).is_tag(3, b"said", &tag));
        assert!(!dialed.is_tag(2, b"said", &tag) && !dialed.is_tag(3, b"sald", &tag));
        assert!(!key.messages(Role::NodeAccepted, &nonces).is_tag(3, b"said", &tag));
        assert!(!key.messages(Role::NodeDialed, &[nonces[0], nonce()]).is_tag(3, b"said", &tag));
        assert!(!LaneKey::random().messages(Role::NodeDialed, &nonces).is_tag(3, b"said", &tag));
    }

    #[test]
    fn a_key_follows_from_all_that_it_is_mixed_of_and_from_its_use() {
        let (exported, told) = (nonce(), nonce());
        let id = |exported: &Nonce, told: &Nonce, of| LaneKey::mixed(exported, told, of).id();
        let key = id(&exported, &told, Use::Lanes);
        assert_eq!(key, id(&exported, &told, Use::Lanes));
        let others = [
            id(&nonce(), &told, Use::Lanes),
            id(&exported, &nonce(), Use::Lanes),
            id(&exported, &told, Use::Node),
            LaneKey::told(&told).id(),
            LaneKey::told(&exported).id(),
        ];
        assert!(!others.contains(&key));
    }
}
