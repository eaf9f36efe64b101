//! The words that an exchange or an annotation may say, each closed.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A word that is none of those that may stand there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{word:?} is not one of {accepted}")]
pub struct UnknownWord {
    /// What was said, at most 80 characters of it.
    pub word: String,
    /// What may be said.
    pub accepted: String,
}

macro_rules! words {
    ($(#[$doc:meta])+ $type:ident { $($(#[$word_doc:meta])+ $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        pub enum $type {
            $($(#[$word_doc])+ #[serde(rename = $word)] $variant,)+
        }

        impl $type {
            /// Every one.
            pub const ALL: &[$type] = &[$($type::$variant),+];

            /// The word in objects, annotations and settings.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(word: &str) -> Result<$type, UnknownWord> {
                let found = $type::ALL.iter().find(|known| known.as_str() == word);
                found.copied().ok_or_else(|| UnknownWord {
                    word: word.chars().take(80).collect(),
                    accepted: [$($word),+].join(", "),
                })
            }
        }
    };
}

words! {
    /// How bytes may get from one peer to another; the same sidecar is always allowed.
    TransportKind {
        /// Shared memory of the same node.
        Shm = "shm",
        /// The same GPU.
        CudaIpc = "cuda_ipc",
        /// Any two peers, over TLS or plain lanes.
        Tcp = "tcp",
        /// Any two peers, many streams in one encrypted connection.
        Quic = "quic",
    }
}

words! {
    /// What every route of an exchange has to be.
    Requirement {
        /// No byte is copied.
        ZeroCopy = "zero_copy",
        /// Nothing leaves the node.
        SameNode = "same_node",
        /// Whatever leaves the node is encrypted.
        Encrypted = "encrypted",
    }
}

words! {
    /// Whether bytes between nodes are encrypted. Peers know each other by their keys either way.
    Encryption {
        /// Always.
        Required = "required",
        /// Bulk bytes travel in the clear; control does not.
        None = "none",
    }
}

words! {
    /// Which of `tcp` and `quic` brings large tensors where both may be used.
    Prefer {
        /// The one that brings more, found out by trying the other now and then.
        Measured = "measured",
        /// TCP, unless it cannot.
        Tcp = "tcp",
        /// QUIC, unless it cannot.
        Quic = "quic",
    }
}

words! {
    /// Whether pods of one node share memory, and how their sidecars find each other.
    SameNode {
        /// They do not.
        Off = "off",
        /// In a volume of the claim `tensorlane-EXCHANGE`, which an administrator makes.
        Claim = "claim",
        /// In a directory of the node; the namespace must be `privileged`.
        HostPath = "hostPath",
    }
}

words! {
    /// How tensors on GPUs are shared.
    GpuMode {
        /// As `broker` where a container of the pod has a GPU, else as `none`.
        Auto = "auto",
        /// Not at all.
        None = "none",
        /// The sidecar passes descriptors between processes; it needs no GPU.
        Broker = "broker",
        /// By handles that need a shared process namespace.
        LegacyIpc = "legacy_ipc",
    }
}

words! {
    /// How much a sidecar logs.
    LogLevel {
        /// Someone must act.
        Error = "error",
        /// And what was recovered from.
        Warn = "warn",
        /// And what worked.
        Info = "info",
        /// And why.
        Debug = "debug",
        /// And every step.
        Trace = "trace",
    }
}
