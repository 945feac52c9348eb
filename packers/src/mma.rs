//! The encoder of the tiered layout `mma`: `docs/format.md`, section 4.1.

use glyd_format::layout::mma::{DIGIT_BYTES, Tiers, WORD_DIGITS, to_step_order};
use glyd_format::simd::{EMPTY, Kernels, Lane, Ranks};
use glyd_format::step::{STEP_WEIGHTS, Step};

/// The digit that passes a weight on to the next tier.
const PASS: u8 = 3;

/// Encodes the steps of one matrix.
#[derive(Debug, Clone)]
pub struct Encoder {
    ranks: Ranks,
}

impl Encoder {
    /// The encoder of a matrix of these tiers.
    #[must_use]
    pub fn new(tiers: &Tiers) -> Self {
        Encoder { ranks: Ranks::new(tiers.exponents()) }
    }

    /// Encodes a step: its part of the data buffer, and its block at the end of `blocks`.
    #[inline(always)]
    pub fn encode<K: Kernels>(&self, kernels: K, step: &Step, data: &mut [u8], blocks: &mut Vec<u8>) {
        let (digits, bytes) = data.split_at_mut(DIGIT_BYTES);
        let mut exponents = [0; STEP_WEIGHTS];
        let planes = step.high.as_chunks::<2>().0.iter().zip(step.low.as_chunks::<2>().0);
        let to = exponents.as_chunks_mut::<2>().0.iter_mut().zip(bytes.as_chunks_mut::<2>().0);
        for ((exponents, bytes), (high, low)) in to.zip(planes) {
            // A weight's byte is its mantissa, and the sign of its pair's other weight.
            let (high, low) = (u16::from_le_bytes(*high), u16::from_le_bytes(*low));
            *exponents = (high << 1 & 0xFEFE | low >> 7 & 0x0101).to_le_bytes();
            *bytes = (low << 1 & 0xFEFE | high.rotate_left(8) >> 7 & 0x0101).to_le_bytes();
        }
        let mut ranks = [0; STEP_WEIGHTS];
        kernels.rank(&self.ranks, &exponents, &mut ranks);
        let mut digits1 = [0; STEP_WEIGHTS];
        for (digit, &rank) in digits1.iter_mut().zip(&ranks) {
            *digit = rank.min(PASS);
        }
        pack_digits(&digits1, digits);

        // Each tier's weights are those that the one before it passes on, in step order.
        let (mut ranks1, mut exponents1) = (EMPTY, EMPTY);
        to_step_order(&ranks, &mut ranks1);
        to_step_order(&exponents, &mut exponents1);
        let (mut ranks2, mut exponents2) = (EMPTY, EMPTY);
        let t1 = kernels.compress([&ranks1, &exponents1], STEP_WEIGHTS, PASS, [&mut ranks2, &mut exponents2]);
        let (mut ranks3, mut exponents3) = (EMPTY, EMPTY);
        let t2 = kernels.compress([&ranks2, &exponents2], t1, 2 * PASS, [&mut ranks3, &mut exponents3]);
        let t3 = kernels.compress([&ranks3, &exponents3], t2, 3 * PASS, [&mut ranks1, &mut exponents1]);
        let tier2 = tier_digits(&mut ranks2, t1, PASS);
        let tier3 = tier_digits(&mut ranks3, t2, 2 * PASS);
        blocks.extend_from_slice(&tier3[..t2.div_ceil(4)]);
        blocks.extend_from_slice(&exponents1[..t3]);
        let words = tier2.as_chunks::<4>().0;
        blocks.extend(words[..t1.div_ceil(WORD_DIGITS)].iter().rev().flatten());
    }
}

/// The digits of a tier whose first rank is `first`, packed; zero where there are no more weights.
#[inline(always)]
fn tier_digits(ranks: &mut Lane, count: usize, first: u8) -> [u8; DIGIT_BYTES] {
    /// Digits at a time: loops of a fixed length become vectors.
    const SOME: usize = 64;
    let mut packed = [0; DIGIT_BYTES];
    ranks[count..count + SOME].fill(first);
    let chunks = ranks.as_chunks::<SOME>().0.iter().zip(packed.as_chunks_mut::<{ SOME / 4 }>().0);
    for (ranks, packed) in chunks.take(count.div_ceil(SOME)) {
        pack_digits(&ranks.map(|rank| (rank - first).min(PASS)), packed);
    }
    packed
}

/// Packs 2-bit digits, four a byte, the first lowest.
#[inline(always)]
fn pack_digits(digits: &[u8], packed: &mut [u8]) {
    for (packed, four) in packed.iter_mut().zip(digits.as_chunks::<4>().0) {
        let four = u32::from_le_bytes(*four);
        [*packed, ..] = (four | four >> 6 | four >> 12 | four >> 18).to_le_bytes();
    }
}
