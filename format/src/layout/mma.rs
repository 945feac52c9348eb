//! The tiered layout `mma`: `docs/format.md`, section 4.1.

use super::Flaw;
use crate::simd::{EMPTY, Kernels, Lane};
use crate::step::{HALF_WEIGHTS, LANES, Plane, STEP_WEIGHTS, Step};

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

/// A step's bytes in step order, from a plane.
#[inline(always)]
pub fn to_step_order(plane: &Plane, lane: &mut Lane) {
    let halves = plane.as_chunks::<HALF_WEIGHTS>().0.split_at(LANES);
    let to = lane.as_chunks_mut::<HALF_WEIGHTS>().0.as_chunks_mut::<2>().0;
    for (to, (first, second)) in to.iter_mut().zip(halves.0.iter().zip(halves.1)) {
        *to = [*first, *second];
    }
}

/// A plane from a step's bytes in step order.
#[inline(always)]
fn to_plane(lane: &Lane, plane: &mut Plane) {
    let (first, second) = plane.as_chunks_mut::<HALF_WEIGHTS>().0.split_at_mut(LANES);
    let from = lane.as_chunks::<HALF_WEIGHTS>().0.as_chunks::<2>().0;
    for ((first, second), from) in first.iter_mut().zip(second).zip(from) {
        [*first, *second] = *from;
    }
}

/// 2-bit digits, a byte each, from bytes of four, the first lowest.
#[inline(always)]
fn spread(packed: &[u8], digits: &mut [u8]) {
    for (digits, byte) in digits.as_chunks_mut::<4>().0.iter_mut().zip(packed) {
        let four = u32::from(*byte);
        *digits = ((four | four << 6 | four << 12 | four << 18) & 0x0303_0303).to_le_bytes();
    }
}

/// The same of the first `count` digits, and some more: loops of a fixed length become vectors.
#[inline(always)]
fn spread_some(packed: &[u8; DIGIT_BYTES], count: usize, digits: &mut Lane) {
    const BYTES: usize = 16;
    let chunks = packed.as_chunks::<BYTES>().0.iter().zip(digits.as_chunks_mut::<{ 4 * BYTES }>().0);
    for (packed, digits) in chunks.take(count.div_ceil(4 * BYTES)) {
        spread(packed, digits);
    }
}

/// Decodes a step.
#[inline(always)]
pub(super) fn decode_step<K: Kernels>(
    kernels: K,
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
    let (mut third, mut second, mut first) = (EMPTY, EMPTY, EMPTY);
    let (mut digits, mut buffer) = (EMPTY, [0; DIGIT_BYTES]);
    first[..block.raw.len()].copy_from_slice(block.raw);
    buffer[..block.tier3.len()].copy_from_slice(block.tier3);
    let t2 = 4 * block.tier3.len();
    spread_some(&buffer, t2, &mut digits);
    kernels.expand(&digits, t2, [g, h, i], &first, &mut third);
    let words = block.tier2.as_chunks::<4>().0.iter().rev();
    for (to, word) in buffer.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = *word;
    }
    spread_some(&buffer, t1, &mut digits);
    kernels.expand(&digits, t1, [d, e, f], &third, &mut second);
    let mut plane = [0; STEP_WEIGHTS];
    spread(packed, &mut plane);
    to_step_order(&plane, &mut digits);
    kernels.expand(&digits, STEP_WEIGHTS, [a, b, c], &second, &mut first);
    to_plane(&first, &mut plane);

    let pairs = plane.as_chunks::<2>().0.iter().zip(bytes.as_chunks::<2>().0);
    let to = step.high.as_chunks_mut::<2>().0.iter_mut().zip(step.low.as_chunks_mut::<2>().0);
    for ((high, low), (exponents, bytes)) in to.zip(pairs) {
        // A weight's byte is its mantissa, and the sign of its pair's other weight.
        let (exponents, bytes) = (u16::from_le_bytes(*exponents), u16::from_le_bytes(*bytes));
        *high = ((bytes.rotate_left(8) & 0x0101) << 7 | exponents >> 1 & 0x7F7F).to_le_bytes();
        *low = ((exponents & 0x0101) << 7 | bytes >> 1 & 0x7F7F).to_le_bytes();
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
