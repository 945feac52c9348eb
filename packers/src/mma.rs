//! The encoder of the tiered layout `mma`: `docs/format.md`, section 4.1.

use glyd_format::layout::mma::{DIGIT_BYTES, RANKS, STEP_BYTES, Tiers, WORD_DIGITS, block_bytes};
use glyd_format::step::{LANE_WEIGHTS, STEP_WEIGHTS, Step, exponent};

/// Digits are of 2 bits.
const DIGIT_BITS: usize = 2;
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
    pub fn encode(&self, step: &Step, data: &mut [u8; STEP_BYTES], blocks: &mut Vec<u8>) {
        let (digits, bytes) = data.split_at_mut(DIGIT_BYTES);
        // At most every weight is of the last rank: a digit of each tier and an exponent.
        let mut tier2 = Digits::default();
        let mut tier3 = Digits::default();
        let mut raw = [0; STEP_WEIGHTS];
        let mut raw_count = 0;
        for (lane, weights) in step.as_chunks::<LANE_WEIGHTS>().0.iter().enumerate() {
            for half in 0..2 {
                let mut word = 0;
                let weights = &weights[16 * half..16 * (half + 1)];
                let low = &mut bytes[STEP_WEIGHTS / 2 * half + 16 * lane..][..16];
                for (i, &weight) in weights.iter().enumerate() {
                    let rank = self.ranks[usize::from(exponent(weight))];
                    word |= u32::from(rank.min(PASS)) << (DIGIT_BITS * i);
                    if rank >= PASS {
                        tier2.push((rank - PASS).min(PASS));
                    }
                    if rank >= 2 * PASS {
                        tier3.push(rank - 2 * PASS);
                    }
                    if rank == 3 * PASS {
                        raw[raw_count] = exponent(weight);
                        raw_count += 1;
                    }
                    // A weight's byte is its mantissa, and the sign of its pair's other weight.
                    let [mantissa, _] = (weight << 1).to_le_bytes();
                    let sign = weights[i ^ 1].to_be_bytes()[0] >> 7;
                    low[i] = mantissa | sign;
                }
                digits[DIGIT_BYTES / 2 * half + 4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
            }
        }
        blocks.extend_from_slice(&tier3.bytes[..tier3.count.div_ceil(4)]);
        blocks.extend_from_slice(&raw[..raw_count]);
        let words = tier2.bytes.as_chunks::<4>().0;
        blocks.extend(words[..tier2.count.div_ceil(WORD_DIGITS)].iter().rev().flatten());
    }
}

/// 2-bit digits, the first in the low bits of the first byte.
struct Digits {
    bytes: [u8; STEP_WEIGHTS / 4],
    count: usize,
}

impl Default for Digits {
    fn default() -> Self {
        Digits { bytes: [0; STEP_WEIGHTS / 4], count: 0 }
    }
}

impl Digits {
    fn push(&mut self, digit: u8) {
        self.bytes[self.count / 4] |= digit << (DIGIT_BITS * (self.count % 4));
        self.count += 1;
    }
}
