//! The tiered layout `mma`: `docs/format.md`, section 4.1.

use super::Flaw;
use crate::simd::{Simd, lanes};
use crate::step::{LANE_WEIGHTS, MANTISSA_BITS, STEP_WEIGHTS, Step};

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

/// A step's block, its parts told apart.
///
/// ```text
/// | tier-3 digits, 2 bits each | exponents | ... tier-2 words, last to first |
/// 0                            r0          r0 + t3                           end
/// ```
struct Block<'a> {
    tier3: &'a [u8],
    raw: &'a [u8],
    tier2: &'a [u8],
}

impl<'a> Block<'a> {
    /// The block of a step whose tier-1 digits pass `t1` weights on.
    #[inline(always)]
    fn open(bytes: &'a [u8], t1: usize) -> Result<Self, Flaw> {
        let words = 4 * t1.div_ceil(WORD_DIGITS);
        let Some(split) = bytes.len().checked_sub(words) else {
            return Err(wrong_size(bytes.len(), words, [t1, 0, 0]));
        };
        let (front, tier2) = bytes.split_at(split);
        let mut t2 = 0;
        let mut left = t1;
        for word in tier2.as_chunks::<4>().0.iter().rev() {
            let word = u32::from_le_bytes(*word);
            let here = left.min(WORD_DIGITS);
            left -= here;
            if here < WORD_DIGITS && word >> (2 * here) != 0 {
                return Err(unused_bits("tier-2", word));
            }
            t2 += passes(u64::from(word));
        }
        let Some((tier3, raw)) = front.split_at_checked(t2.div_ceil(4)) else {
            return Err(wrong_size(bytes.len(), t2.div_ceil(4) + words, [t1, t2, 0]));
        };
        if let (1.., Some(&last)) = (t2 % 4, tier3.last())
            && last >> (2 * (t2 % 4)) != 0
        {
            return Err(unused_bits("tier-3", u32::from(last)));
        }
        let t3 = tier3.iter().map(|&byte| passes(u64::from(byte))).sum();
        if raw.len() != t3 {
            return Err(wrong_size(bytes.len(), block_bytes(t1, t2, t3), [t1, t2, t3]));
        }
        Ok(Block { tier3, raw, tier2 })
    }
}

fn wrong_size(found: usize, needed: usize, [t1, t2, t3]: [usize; 3]) -> Flaw {
    Flaw {
        step: 0,
        form_only: false,
        expected: format!(
            "a block of the {needed} bytes that its digits need ({t1} of tier 2, {t2} of tier 3, {t3} exponents)"
        ),
        found: format!("{found} bytes"),
    }
}

/// How many of a word's 2-bit digits are 3.
#[inline(always)]
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

/// A byte's four 2-bit digits, a byte each, the first lowest.
#[inline(always)]
const fn spread(byte: u8) -> [u8; 4] {
    let digits = byte as u32;
    ((digits | digits << 6 | digits << 12 | digits << 18) & 0x0303_0303).to_le_bytes()
}

/// Unpacks bytes of four digits each; returns how many digits there are.
#[inline(always)]
fn unpack<'a>(packed: impl Iterator<Item = &'a u8>, digits: &mut lanes::Lane) -> usize {
    let mut count = 0;
    for (digits, byte) in digits.as_chunks_mut::<4>().0.iter_mut().zip(packed) {
        *digits = spread(*byte);
        count += 4;
    }
    count
}

/// Decodes a step.
#[inline(always)]
pub(super) fn decode_step(
    simd: Simd,
    tiers: &Tiers,
    data: &[u8],
    block: &[u8],
    step: &mut Step,
) -> Result<(), Flaw> {
    let (packed, bytes) = data.split_at(DIGIT_BYTES);
    let t1 = packed.as_chunks::<8>().0.iter().map(|eight| passes(u64::from_le_bytes(*eight))).sum();
    let block = Block::open(block, t1)?;
    let [a, b, c, d, e, f, g, h, i] = tiers.0;

    // From the last tier to the first: the weights that a tier passes on are those of the tier behind it.
    let mut digits = lanes::EMPTY;
    let (mut third, mut second, mut exponents) = (lanes::EMPTY, lanes::EMPTY, lanes::EMPTY);
    let mut raw = lanes::EMPTY;
    raw[..block.raw.len()].copy_from_slice(block.raw);
    let t2 = unpack(block.tier3.iter(), &mut digits);
    lanes::expand(simd, &digits, t2, [g, h, i], &raw, &mut third);
    let words = block.tier2.as_chunks::<4>().0.iter().rev();
    let t1 = unpack(words.flatten(), &mut digits);
    lanes::expand(simd, &digits, t1, [d, e, f], &third, &mut second);
    for (lane, digits) in digits[..STEP_WEIGHTS].as_chunks_mut::<LANE_WEIGHTS>().0.iter_mut().enumerate() {
        for (half, digits) in digits.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let word = &packed[DIGIT_BYTES / 2 * half + 4 * lane..][..4];
            for (digits, byte) in digits.as_chunks_mut::<4>().0.iter_mut().zip(word) {
                *digits = spread(*byte);
            }
        }
    }
    lanes::expand(simd, &digits, STEP_WEIGHTS, [a, b, c], &second, &mut exponents);

    let weights = step.weights_mut().as_chunks_mut::<LANE_WEIGHTS>().0;
    for (lane, (weights, exponents)) in
        weights.iter_mut().zip(exponents.as_chunks::<LANE_WEIGHTS>().0).enumerate()
    {
        for half in 0..2 {
            let low = &bytes[STEP_WEIGHTS / 2 * half + 16 * lane..][..16];
            let weights = weights[16 * half..].as_chunks_mut::<2>().0.iter_mut();
            let exponents = exponents[16 * half..].as_chunks::<2>().0;
            for ((weights, exponents), low) in weights.zip(exponents).zip(low.as_chunks::<2>().0) {
                // A weight's byte is its mantissa, and the sign of its pair's other weight.
                let weight = |at: usize| {
                    let sign = u16::from(low[1 - at] & 1) << 15;
                    sign | u16::from(exponents[at]) << MANTISSA_BITS | u16::from(low[at] >> 1)
                };
                *weights = [weight(0), weight(1)];
            }
        }
    }
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
