//! The encoder of the split-byte layout `mma12`: `docs/format.md`, section 4.2.

use glyd_format::layout::mma12::{Base, CODE_BYTES, STEP_BYTES, high_offset_byte};
use glyd_format::step::{LANE_WEIGHTS, STEP_WEIGHTS, Step, high_exponent};

/// Encodes the steps of one matrix.
#[derive(Debug, Clone)]
pub struct Encoder {
    base: Base,
    /// By high byte, the code: the sign in bit 7, the offset in bits 2-0.
    codes: [u8; 256],
    /// By high byte, 1 where the weight is an exception.
    exceptions: [u8; 256],
}

impl Encoder {
    /// The encoder of a matrix of this base.
    #[must_use]
    pub fn new(base: Base) -> Self {
        let mut codes = [0; 256];
        let mut exceptions = [0; 256];
        for high in 0..=u8::MAX {
            let offset = base.offset(high & 0x7F);
            codes[usize::from(high)] = high & 0x80 | offset.unwrap_or(0);
            exceptions[usize::from(high)] = u8::from(offset.is_none());
        }
        Encoder { base, codes, exceptions }
    }

    /// How many of these weights are exceptions.
    #[must_use]
    pub fn exceptions(&self, weights: &[u16]) -> u64 {
        weights.iter().map(|weight| u64::from(self.exceptions[usize::from(weight.to_be_bytes()[0])])).sum()
    }

    /// Encodes a step: its part of the data buffer, and its exceptions at the end of `list`.
    pub fn encode(&self, step: &Step, data: &mut [u8; STEP_BYTES], list: &mut Vec<u8>) {
        let (codes, low) = data.split_at_mut(CODE_BYTES);
        let mut exceptions = 0;
        for (lane, weights) in step.as_chunks::<LANE_WEIGHTS>().0.iter().enumerate() {
            for (q, eight) in weights.as_chunks::<8>().0.iter().enumerate() {
                let word = self.word(eight);
                codes[16 * lane + 4 * q..][..4].copy_from_slice(&word);
                let low = &mut low[STEP_WEIGHTS / 2 * (q / 2) + 16 * lane + 8 * (q % 2)..][..8];
                for (low, weight) in low.iter_mut().zip(eight) {
                    *low = weight.to_le_bytes()[0];
                }
                exceptions += self.exceptions(eight);
            }
        }
        if exceptions == 0 {
            return;
        }
        for (index, &weight) in (0..).zip(step) {
            if self.exceptions[usize::from(weight.to_be_bytes()[0])] != 0 {
                list.extend_from_slice(&self.base.exception(index, high_exponent(weight)).to_le_bytes());
            }
        }
    }

    /// The code word of eight weights.
    fn word(&self, eight: &[u16; 8]) -> [u8; 4] {
        let code = |at: usize| self.codes[usize::from(eight[at].to_be_bytes()[0])];
        let mut word = [0; 4];
        for j in 0..4 {
            let (first, second) = (code(j), code(4 + j));
            word[j] |= first | (second & 0x80) >> 4;
            word[high_offset_byte(j)] |= (second & 7) << 4;
        }
        word
    }
}
