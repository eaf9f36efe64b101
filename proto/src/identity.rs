//! Identities: exchanges, peers, their incarnations and their keys.
//!
//! These are names, parsed once and trusted afterwards. Whether a name is true (a key belongs to a peer) is decided
//! where the peer table is, not here.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

/// The most bytes of the name of an exchange or a peer: what Kubernetes allows for the name of an object.
pub const MAX_NAME_BYTES: usize = 253;

/// A text that names nobody.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// Not the name of an exchange or a peer.
    #[error(
        "{0:?} is not a name: 1 to {MAX_NAME_BYTES} of a-z, 0-9, '-' and '.', a letter or digit at both ends"
    )]
    Name(String),
    /// Not an incarnation.
    #[error("{0:?} is not an incarnation: 32 lower-case hexadecimal digits")]
    Incarnation(String),
    /// Not a fingerprint.
    #[error("{0:?} is not a fingerprint: 'sha256:' and 64 lower-case hexadecimal digits")]
    Fingerprint(String),
}

/// Part that an error shows of a text that may be long and hostile.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

fn is_name(text: &str) -> bool {
    let inner = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    let edge = |byte: Option<&u8>| matches!(byte, Some(b'a'..=b'z' | b'0'..=b'9'));
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME_BYTES && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
}

macro_rules! name {
    ($(#[$doc:meta])+ $type:ident) => {
        $(#[$doc])+
        /// 1 to 253 bytes of `a-z`, `0-9`, `-` and `.`, a letter or digit at both ends. Cheap to clone.
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Checks the form of a name.
            ///
            /// # Errors
            /// [`IdentityError::Name`].
            pub fn new(text: &str) -> Result<Self, IdentityError> {
                if is_name(text) { Ok($type(text.into())) } else { Err(IdentityError::Name(shown(text))) }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = IdentityError;

            fn from_str(text: &str) -> Result<Self, IdentityError> {
                $type::new(text)
            }
        }

        impl From<&$type> for Arc<str> {
            fn from(name: &$type) -> Self {
                Arc::clone(&name.0)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// The name of an exchange: the pods that may exchange tensors.
    ExchangeName
}

name! {
    /// The name of a peer: one sidecar of an exchange.
    PeerName
}

/// Life of a sidecar: a random number made when it starts. A restarted sidecar is another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u128);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Incarnation {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Incarnation, IdentityError> {
        let number = hex_u128(text.as_bytes()).filter(|_| text.len() == 32);
        number.map(Incarnation).ok_or_else(|| IdentityError::Incarnation(shown(text)))
    }
}

/// The value of 1 to 32 lower-case hexadecimal digits.
pub(crate) fn hex_u128(digits: &[u8]) -> Option<u128> {
    if digits.is_empty() || digits.len() > 32 {
        return None;
    }
    digits.iter().try_fold(0, |value: u128, &digit| Some(value << 4 | u128::from(hex_digit(digit)?)))
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// The SHA-256 of a peer's public key (its SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

const FINGERPRINT_PREFIX: &str = "sha256:";

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FINGERPRINT_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Fingerprint, IdentityError> {
        let wrong = || IdentityError::Fingerprint(shown(text));
        let digits = text.strip_prefix(FINGERPRINT_PREFIX).ok_or_else(wrong)?.as_bytes();
        if digits.len() != 64 {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let (high, low) = hex_digit(pair[0]).zip(hex_digit(pair[1])).ok_or_else(wrong)?;
            *byte = high << 4 | low;
        }
        Ok(Fingerprint(bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_those_that_kubernetes_allows() {
        for good in ["a", "0", "trainer-0", "ml.exchange", &"a".repeat(253)] {
            assert_eq!(PeerName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", ".a", "A", "a_b", "a/b", "a b", "ä", &"a".repeat(254)] {
            assert_eq!(ExchangeName::new(bad), Err(IdentityError::Name(shown(bad))));
        }
    }

    #[test]
    fn an_incarnation_is_exactly_32_lower_case_digits() {
        let text = "00000000000000000000000000000a0f";
        assert_eq!(text.parse(), Ok(Incarnation(0xa0f)));
        for bad in ["", "a0f", "00000000000000000000000000000A0F", "+0000000000000000000000000000a0f"] {
            assert!(bad.parse::<Incarnation>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fingerprint_has_one_spelling() {
        let text = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(text.parse(), Ok(Fingerprint([0x0f; 32])));
        for bad in [&text[7..], &text[..70], &text.to_uppercase(), &format!("{text}0")] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(number: u128, bytes: [u8; 32]) {
            prop_assert_eq!(Incarnation(number).to_string().parse(), Ok(Incarnation(number)));
            prop_assert_eq!(Fingerprint(bytes).to_string().parse(), Ok(Fingerprint(bytes)));
        }
    }
}
