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
    /// Word that was said, at most 80 characters of it.
    pub word: String,
    /// Words that may be said.
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
    /// Way in which bytes may get from one peer to another; the same sidecar is always allowed.
    TransportKind {
        /// Shared memory of the same node.
        Shm = "shm",
        /// GPU in common.
        CudaIpc = "cuda_ipc",
        /// Any two peers, over TLS or plain lanes.
        Tcp = "tcp",
        /// Any two peers, many streams in one encrypted connection.
        Quic = "quic",
    }
}

words! {
    /// Requirement for every route of an exchange.
    Requirement {
        /// No byte is copied.
        ZeroCopy = "zero_copy",
        /// Nothing leaves the node.
        SameNode = "same_node",
        /// All bytes that leave the node are encrypted.
        Encrypted = "encrypted",
    }
}

words! {
    /// Encryption of bytes between nodes. Peers know each other by their keys either way.
    Encryption {
        /// Always.
        Required = "required",
        /// Bulk bytes travel in the clear; control does not.
        None = "none",
    }
}

words! {
    /// Use of copies that other pods of the node have of a third pod's tensors.
    Neighbours {
        /// Copies are mapped.
        On = "on",
        /// Each pod brings a copy of its own.
        Off = "off",
    }
}

words! {
    /// Choice between `tcp` and `quic` for large tensors if both may be used.
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
    /// Way in which pods of one node share memory, and in which their sidecars find each other.
    SameNode {
        /// No memory is shared.
        Off = "off",
        /// In a volume of the claim `tensorlane-EXCHANGE`, which an administrator makes.
        Claim = "claim",
        /// In a directory of the node; the namespace must be `privileged`.
        HostPath = "hostPath",
    }
}

words! {
    /// Way in which tensors on GPUs are shared.
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
    /// Level of a sidecar's log.
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
