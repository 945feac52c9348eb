//! SHA-256 of bytes, as `glyd.json` keeps it: lower-case hex.

#[cfg(target_arch = "aarch64")]
mod armv8;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod hasher;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod rounds;
#[cfg(target_arch = "x86_64")]
mod sha_ni;
mod streams;
mod together;

use std::fmt;
use std::str::FromStr;

pub use hasher::Hasher;
pub use together::{Stream, hash_streams};

/// Bytes of a block: what SHA-256 takes at a time.
const BLOCK_BYTES: usize = 64;

type Block = [u8; BLOCK_BYTES];

/// What SHA-256 keeps from block to block: eight words, named a to h.
type State = [u32; 8];

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(hex: &str) -> Result<Self, String> {
        let wrong = || format!("expected a sha256 of 64 lower-case hex digits, found `{hex}`");
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut digest = [0; 32];
        let pairs = hex.as_bytes().chunks(2);
        if pairs.len() != digest.len() {
            return Err(wrong());
        }
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            let [high, low] = pair else { return Err(wrong()) };
            let (Some(high), Some(low)) = (digit(*high), digit(*low)) else { return Err(wrong()) };
            *byte = high << 4 | low;
        }
        Ok(Digest(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints_and_nothing_else() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), Digest::of(b""));
        for wrong in
            ["", "e3", &empty[1..], &empty.to_uppercase(), &format!("{empty}0"), &format!("{}ü", &empty[2..])]
        {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
