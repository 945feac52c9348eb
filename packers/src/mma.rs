//! The encoder of the tiered layout `mma`: `docs/format.md`, section 4.1.

use glyd_format::layout::mma::{DIGIT_BYTES, RANKS, Tiers, WORD_DIGITS, block_bytes};
use glyd_format::simd::{Simd, lanes};
use glyd_format::step::{LANE_WEIGHTS, LANES, STEP_WEIGHTS, Step, exponent};

/// The digit that passes a weight on to the next tier.
const PASS: u8 = 3;

/// Encodes the steps of one matrix.
#[derive(Debug, Clone)]
pub struct Encoder {
    /// The rank of each exponent, 9 for all that have none.
    ranks: [u8; 256],
    /// By exponent, what a weight of it adds to a step's counts of tiers 2, 3 and raw exponents: a
    /// count in each of three fields of a word.
    counts: [u64; 256],
}

/// The fields of a word of counts: a step has no more than 1024 weights.
const FIELD_BITS: u32 = 16;

impl Encoder {
    /// The encoder of a matrix of these tiers.
    #[must_use]
    pub fn new(tiers: &Tiers) -> Self {
        const NO_RANK: u8 = 9;
        let mut ranks = [NO_RANK; 256];
        for (rank, &exponent) in (0..).zip(tiers.exponents()) {
            ranks[usize::from(exponent)] = rank;
        }
        debug_assert_eq!(usize::from(NO_RANK), RANKS);
        let counts = ranks.map(|rank| {
            let reached = u32::from(rank / PASS);
            (0..reached).map(|tier| 1 << (FIELD_BITS * tier)).sum()
        });
        Encoder { ranks, counts }
    }

    /// What some weights of a step add to its counts; a step's whole is the sum of its parts.
    #[must_use]
    #[inline(always)]
    pub fn counts(&self, weights: &[u16]) -> u64 {
        weights.iter().map(|&weight| self.counts[usize::from(exponent(weight))]).sum()
    }

    /// Bytes of the block of a step with these counts.
    #[must_use]
    pub fn block_bytes(counts: u64) -> usize {
        let [a, b, c, d, e, f, ..] = counts.to_le_bytes();
        let field = |low, high| usize::from(u16::from_le_bytes([low, high]));
        block_bytes(field(a, b), field(c, d), field(e, f))
    }

    /// Encodes a step: its part of the data buffer, and its block at the end of `blocks`.
    #[inline(always)]
    pub fn encode(&self, simd: Simd, step: &Step, data: &mut [u8], blocks: &mut Vec<u8>) {
        let (digits, bytes) = data.split_at_mut(DIGIT_BYTES);
        let weights = step.weights();
        let (mut exponents, mut ranks, mut digits1) = (lanes::EMPTY, lanes::EMPTY, lanes::EMPTY);
        for (to, &weight) in exponents.iter_mut().zip(weights) {
            *to = exponent(weight);
        }
        lanes::look_up(simd, &self.ranks, &exponents, &mut ranks);
        for (digit, &rank) in digits1.iter_mut().zip(&ranks) {
            *digit = rank.min(PASS);
        }
        for lane in 0..LANES {
            for half in 0..2 {
                let from = LANE_WEIGHTS * lane + HALF * half;
                pack_digits(&digits1[from..][..HALF], &mut digits[DIGIT_BYTES / 2 * half + 4 * lane..][..4]);
                let low = &mut bytes[STEP_WEIGHTS / 2 * half + HALF * lane..][..HALF];
                let weights = weights[from..][..HALF].as_chunks::<2>().0;
                for (low, &[first, second]) in low.as_chunks_mut::<2>().0.iter_mut().zip(weights) {
                    // A weight's byte is its mantissa, and the sign of its pair's other weight.
                    let byte = |weight: u16, other: u16| {
                        (weight << 1).to_le_bytes()[0] | (other >> 15).to_le_bytes()[0]
                    };
                    *low = [byte(first, second), byte(second, first)];
                }
            }
        }

        // Each tier's weights are those that the one before it passes on, in step order.
        let (mut ranks2, mut exponents2) = (lanes::EMPTY, lanes::EMPTY);
        let t1 =
            lanes::compress(simd, [&ranks, &exponents], STEP_WEIGHTS, PASS, [&mut ranks2, &mut exponents2]);
        let (mut ranks3, mut exponents3) = (lanes::EMPTY, lanes::EMPTY);
        let t2 = lanes::compress(simd, [&ranks2, &exponents2], t1, 2 * PASS, [&mut ranks3, &mut exponents3]);
        let t3 = lanes::compress(simd, [&ranks3, &exponents3], t2, 3 * PASS, [&mut ranks, &mut exponents]);
        let tier2 = tier_digits(&ranks2[..t1], PASS);
        let tier3 = tier_digits(&ranks3[..t2], 2 * PASS);
        blocks.extend_from_slice(&tier3[..t2.div_ceil(4)]);
        blocks.extend_from_slice(&exponents[..t3]);
        let words = tier2.as_chunks::<4>().0;
        blocks.extend(words[..t1.div_ceil(WORD_DIGITS)].iter().rev().flatten());
    }
}

/// Weights of a lane whose digits are in one word.
const HALF: usize = LANE_WEIGHTS / 2;

/// The digits of a tier whose first rank is `first`, packed; zero where there are no more weights.
#[inline(always)]
fn tier_digits(ranks: &[u8], first: u8) -> [u8; STEP_WEIGHTS / 4] {
    let mut digits = [0; STEP_WEIGHTS];
    for (digit, &rank) in digits.iter_mut().zip(ranks) {
        *digit = (rank - first).min(PASS);
    }
    let mut packed = [0; STEP_WEIGHTS / 4];
    let used = ranks.len().next_multiple_of(4);
    pack_digits(&digits[..used], &mut packed[..used / 4]);
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
