//! The tiered layout `mma`: `docs/format.md`, section 4.1.

use super::Flaw;
use crate::step::{LANE_WEIGHTS, LANES, MANTISSA_BITS, STEP_WEIGHTS, Step, scatter};

/// Bytes of the data buffer that a step takes: its tier-1 digits, and a byte a weight.
pub const STEP_BYTES: usize = DIGIT_BYTES + STEP_WEIGHTS;
/// Bytes of a step's tier-1 digits.
pub const DIGIT_BYTES: usize = STEP_WEIGHTS / 4;
/// Zero bytes before the first block.
pub const HEAD_BYTES: usize = 128;
/// Zero bytes after the last block.
pub const TAIL_BYTES: usize = 256;
/// Bytes of the longest block: all weights of rank 9.
pub const BLOCK_BYTES_MAX: usize = STEP_WEIGHTS / 4 + STEP_WEIGHTS + STEP_WEIGHTS / 4;
/// Exponents a tier has a digit for; the digit after them passes a weight on to the next tier.
pub const TIER_RANKS: usize = 3;
/// Exponents that have a rank of their own; every other one is of the rank after them.
pub const RANKS: usize = 3 * TIER_RANKS;
/// Digits of a tier-2 word: 2 bits each.
pub const WORD_DIGITS: usize = 16;
/// The digit that passes a weight on.
const PASS: usize = TIER_RANKS;

/// The exponents of ranks 0 to 8, most frequent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiers([u8; RANKS]);

impl Tiers {
    /// The tiers of these exponents, `None` where two of them are the same.
    #[must_use]
    pub fn new(exponents: [u8; RANKS]) -> Option<Self> {
        let twice = |at: usize| exponents[..at].contains(&exponents[at]);
        (!(0..RANKS).any(twice)).then_some(Tiers(exponents))
    }

    /// The tiers that `glyd.json` keeps as three words: each has three exponents in its low bytes
    /// and 0xFF in the high one. `None` where the words are not of that form.
    #[must_use]
    pub fn from_words(words: [u32; 3]) -> Option<Self> {
        let mut exponents = [0; RANKS];
        for (word, tier) in words.iter().zip(exponents.chunks_exact_mut(TIER_RANKS)) {
            let [a, b, c, 0xFF] = word.to_le_bytes() else { return None };
            tier.copy_from_slice(&[a, b, c]);
        }
        Tiers::new(exponents)
    }

    /// The three words of `glyd.json`.
    #[must_use]
    pub fn words(&self) -> [u32; 3] {
        [0, 1, 2].map(|tier| {
            let at = TIER_RANKS * tier;
            u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], 0xFF])
        })
    }

    /// The exponents by rank.
    #[must_use]
    pub fn exponents(&self) -> &[u8; RANKS] {
        &self.0
    }
}

/// Bytes of a block whose step has `t1`, `t2` and `t3` weights that reach tiers 2, 3 and the raw
/// exponents.
#[must_use]
pub const fn block_bytes(t1: usize, t2: usize, t3: usize) -> usize {
    t2.div_ceil(4) + t3 + 4 * t1.div_ceil(WORD_DIGITS)
}

/// A step's block while it is read: each part is taken from in step order.
///
/// ```text
/// | tier-3 digits, 2 bits each | exponents | ... tier-2 words, last to first |
/// 0                            r0          r0 + t3                           end
/// ```
struct Block<'a> {
    bytes: &'a [u8],
    raw_offset: usize,
    t1: usize,
    t2: usize,
    t3: usize,
}

impl<'a> Block<'a> {
    /// The block of a step whose tier-1 digits pass `t1` weights on.
    fn open(bytes: &'a [u8], t1: usize) -> Result<Self, Flaw> {
        let mut block = Block { bytes, raw_offset: 0, t1, t2: 0, t3: 0 };
        let words = 4 * t1.div_ceil(WORD_DIGITS);
        if bytes.len() < words {
            return Err(block.wrong_size(words));
        }
        let mut used = 0;
        for word in bytes[bytes.len() - words..].rchunks_exact(4) {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let here = (t1 - used).min(WORD_DIGITS);
            used += here;
            if here < WORD_DIGITS && word >> (2 * here) != 0 {
                return Err(unused_bits("tier-2", word));
            }
            block.t2 += passes(u64::from(word));
        }
        block.raw_offset = block.t2.div_ceil(4);
        let Some(digits) = bytes[..bytes.len() - words].get(..block.raw_offset) else {
            return Err(block.wrong_size(block.raw_offset + words));
        };
        let mut left = block.t2;
        for &byte in digits {
            let here = left.min(4);
            left -= here;
            if here < 4 && byte >> (2 * here) != 0 {
                return Err(unused_bits("tier-3", u32::from(byte)));
            }
            block.t3 += passes(u64::from(byte));
        }
        let needed = block_bytes(t1, block.t2, block.t3);
        if needed != bytes.len() {
            return Err(block.wrong_size(needed));
        }
        Ok(block)
    }

    fn wrong_size(&self, needed: usize) -> Flaw {
        let Block { bytes, t1, t2, t3, .. } = self;
        Flaw {
            step: 0,
            form_only: false,
            expected: format!(
                "a block of the {needed} bytes that its digits need ({t1} of tier 2, {t2} of tier 3, {t3} exponents)"
            ),
            found: format!("{} bytes", bytes.len()),
        }
    }

    /// Tier-2 digit `number`.
    fn tier2(&self, number: usize) -> usize {
        let at = self.bytes.len() - 4 * (number / WORD_DIGITS + 1);
        digit(self.bytes[at + number % WORD_DIGITS / 4], number)
    }

    /// Tier-3 digit `number`.
    fn tier3(&self, number: usize) -> usize {
        digit(self.bytes[number / 4], number)
    }
}

/// The 2-bit digit `number` of a run of digits, from the byte that holds it.
fn digit(byte: u8, number: usize) -> usize {
    usize::from(byte >> (2 * (number % 4)) & 3)
}

/// How many of a word's 2-bit digits are 3.
const fn passes(word: u64) -> usize {
    (word & (word >> 1) & 0x5555_5555_5555_5555).count_ones() as usize
}

fn unused_bits(digits: &str, found: u32) -> Flaw {
    Flaw {
        step: 0,
        form_only: true,
        expected: format!("zero bits after the last {digits} digit"),
        found: format!("{found:#010x}"),
    }
}

/// Decodes a step into rows that stand `stride` weights apart.
pub(super) fn decode_step(
    tiers: &Tiers,
    data: &[u8],
    block: &[u8],
    rows: &mut [u16],
    stride: usize,
) -> Result<(), Flaw> {
    let (digits, bytes) = data.split_at(DIGIT_BYTES);
    let t1 = digits.chunks_exact(8).map(|eight| {
        let mut word = [0; 8];
        word.copy_from_slice(eight);
        passes(u64::from_le_bytes(word))
    });
    let block = Block::open(block, t1.sum())?;
    let exponents = tiers.exponents();
    let mut step: Step = [0; STEP_WEIGHTS];
    let (mut at2, mut at3, mut raw) = (0, 0, block.raw_offset);
    for (lane, weights) in step.chunks_exact_mut(LANE_WEIGHTS).enumerate() {
        for half in 0..2 {
            let word = &digits[128 * half + 4 * lane..][..4];
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let low = &bytes[STEP_WEIGHTS / 2 * half + 16 * lane..][..16];
            for (i, weight) in weights[16 * half..16 * (half + 1)].iter_mut().enumerate() {
                let mut exponent = exponents.get((word >> (2 * i) & 3) as usize).copied();
                if word >> (2 * i) & 3 == 3 {
                    let second = block.tier2(at2);
                    at2 += 1;
                    exponent = exponents.get(TIER_RANKS + second).copied();
                    if second == PASS {
                        let third = block.tier3(at3);
                        at3 += 1;
                        exponent = if third == PASS {
                            raw += 1;
                            block.bytes.get(raw - 1).copied()
                        } else {
                            exponents.get(2 * TIER_RANKS + third).copied()
                        };
                    }
                }
                // A weight's byte is its mantissa, and the sign of its pair's other weight.
                let sign = u16::from(low[i ^ 1] & 1) << 15;
                let exponent = u16::from(exponent.unwrap_or_default()) << MANTISSA_BITS;
                *weight = sign | exponent | u16::from(low[i] >> 1);
            }
        }
    }
    debug_assert_eq!((at2, at3, raw - block.raw_offset), (block.t1, block.t2, block.t3));
    debug_assert_eq!(step.len(), LANES * LANE_WEIGHTS);
    scatter(&step, rows, stride);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_three_exponents_each() {
        let tiers = Tiers::new([1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        assert_eq!(tiers.words(), [0xFF03_0201, 0xFF06_0504, 0xFF09_0807]);
        assert_eq!(Tiers::from_words(tiers.words()), Some(tiers));
        assert_eq!(Tiers::from_words([0x0003_0201, 0xFF06_0504, 0xFF09_0807]), None);
        assert_eq!(Tiers::new([1, 2, 3, 4, 5, 6, 7, 8, 1]), None);
    }

    #[test]
    fn passes_are_digits_of_three() {
        assert_eq!(passes(0b11_10_01_00_11), 2);
        assert_eq!(passes(u64::MAX), 32);
    }

    #[test]
    fn the_longest_block_is_of_raw_exponents_alone() {
        assert_eq!(block_bytes(STEP_WEIGHTS, STEP_WEIGHTS, STEP_WEIGHTS), BLOCK_BYTES_MAX);
    }
}
