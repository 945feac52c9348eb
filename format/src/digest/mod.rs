//! SHA-256 of bytes, as `glyd.json` keeps it: lower-case hex.

#[cfg(target_arch = "aarch64")]
mod armv8;
mod hasher;
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

/// The constants of the 64 rounds, four rounds together (FIPS 180-4, 4.2.2).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const ROUND_CONSTANTS: [[u32; 4]; 16] = [
    [0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5],
    [0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5],
    [0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3],
    [0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174],
    [0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc],
    [0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da],
    [0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7],
    [0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967],
    [0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13],
    [0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85],
    [0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3],
    [0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070],
    [0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5],
    [0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3],
    [0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208],
    [0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2],
];

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
