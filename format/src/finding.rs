//! What is found where a packed checkpoint is held to the rules of `docs/verify.md`.

use std::fmt;

use crate::error::Invalid;

/// A rule of `docs/verify.md`; `docs/format.md`, section 7, has them by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// `glyd.json` is a manifest (7.1, 7.2).
    Manifest,
    /// The weights are one file, or the shards of an index (7.1).
    Files,
    /// A safetensors file's header (7.3).
    Header,
    /// The index and the shards name the same tensors (7.3).
    Index,
    /// Every tensor is answered for, once (7.4).
    Coverage,
    /// A pack's buffers have its dtypes and sizes (7.4).
    Buffers,
    /// A pack's tensors are its own (7.5).
    Membership,
    /// Lists rise, and are as long as the digits say (7.6).
    Lists,
    /// Bytes have their sha256 (7.7).
    Digest,
    /// Bits beyond the weights are as they are written (7.8).
    Canonical,
}

impl Rule {
    /// The rule's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Manifest => "manifest",
            Rule::Files => "files",
            Rule::Header => "header",
            Rule::Index => "index",
            Rule::Coverage => "coverage",
            Rule::Buffers => "buffers",
            Rule::Membership => "membership",
            Rule::Lists => "lists",
            Rule::Digest => "digest",
            Rule::Canonical => "canonical",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The checkpoint is not what it says.
    Damage,
    /// Something a user should know.
    Warning,
}

impl Level {
    /// The level's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Damage => "damage",
            Level::Warning => "warning",
        }
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// The rule that does not hold.
    pub rule: Rule,
    /// Where, what was expected, what was found.
    pub what: Invalid,
}

impl Finding {
    /// Damage: `rule` does not hold.
    #[must_use]
    pub fn damage(rule: Rule, what: Invalid) -> Self {
        Finding { level: Level::Damage, rule, what }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)
    }
}
