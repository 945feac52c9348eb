//! The encoder of the split-byte layout `mma12`: `docs/format.md`, section 4.2.

use glyd_format::layout::mma12::{Base, CODE_BYTES, WINDOW, pack_word};
use glyd_format::step::{LANE_WEIGHTS, STEP_WEIGHTS, Step, high_exponent};

/// Encodes the steps of one matrix.
#[derive(Debug, Clone)]
pub struct Encoder {
    base: Base,
}

impl Encoder {
    /// The encoder of a matrix of this base.
    #[must_use]
    pub fn new(base: Base) -> Self {
        Encoder { base }
    }

    /// How many of these weights are exceptions.
    #[must_use]
    #[inline(always)]
    pub fn exceptions(&self, weights: &[u16]) -> u64 {
        let coded = |&weight: &u16| high_exponent(weight).wrapping_sub(self.base.get()) < WINDOW;
        weights.iter().map(|weight| u64::from(!coded(weight))).sum()
    }

    /// Encodes a step: its part of the data buffer, and its exceptions at the end of `list`.
    #[inline(always)]
    pub fn encode(&self, step: &Step, data: &mut [u8], list: &mut Vec<u8>) {
        let (words, low) = data.split_at_mut(CODE_BYTES);
        let weights = step.weights();
        let mut codes = [0; STEP_WEIGHTS];
        let mut exceptions = 0_u32;
        for (code, &weight) in codes.iter_mut().zip(weights) {
            let offset = high_exponent(weight).wrapping_sub(self.base.get());
            let coded = offset < WINDOW;
            exceptions += u32::from(!coded);
            let sign = (weight >> 12).to_le_bytes()[0] & 8;
            *code = sign | if coded { offset } else { 0 };
        }
        for (word, codes) in words.as_chunks_mut::<4>().0.iter_mut().zip(codes.as_chunks::<8>().0) {
            *word = pack_word(u64::from_le_bytes(*codes)).to_le_bytes();
        }
        for (lane, weights) in weights.as_chunks::<LANE_WEIGHTS>().0.iter().enumerate() {
            for (half, weights) in weights.as_chunks::<HALF>().0.iter().enumerate() {
                let low = &mut low[STEP_WEIGHTS / 2 * half + HALF * lane..][..HALF];
                for (low, weight) in low.iter_mut().zip(weights) {
                    [*low, _] = weight.to_le_bytes();
                }
            }
        }
        if exceptions > 0 {
            self.list_exceptions(weights, list);
        }
    }

    fn list_exceptions(&self, weights: &[u16; STEP_WEIGHTS], list: &mut Vec<u8>) {
        for (index, &weight) in (0..).zip(weights) {
            let high = high_exponent(weight);
            if self.base.offset(high).is_none() {
                list.extend_from_slice(&self.base.exception(index, high).to_le_bytes());
            }
        }
    }
}

/// Weights of a lane whose low bytes stand together.
const HALF: usize = LANE_WEIGHTS / 2;
