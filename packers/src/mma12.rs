//! The encoder of the split-byte layout `mma12`: `docs/format.md`, section 4.2.

use glyd_format::layout::mma12::{Base, CODE_BYTES, HALF_CODE_BYTES, WINDOW, WORD_WEIGHTS, pack_word};
use glyd_format::step::{HALF_WEIGHTS, LANES, Plane, STEP_WEIGHTS, Step};

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

    /// Encodes a step: its part of the data buffer, and its exceptions at the end of `list`.
    #[inline(always)]
    pub fn encode(&self, step: &Step, data: &mut [u8], list: &mut Vec<u8>) {
        let (codes, low) = data.split_at_mut(CODE_BYTES);
        low.copy_from_slice(&step.low);
        let (mut own, mut outside) = ([0; STEP_WEIGHTS], [0; STEP_WEIGHTS]);
        let mut any = 0;
        for ((code, outside), &high) in own.iter_mut().zip(&mut outside).zip(&step.high) {
            let offset = (high & 0x7F).wrapping_sub(self.base.get());
            let coded = offset < WINDOW;
            *outside = if coded { 0 } else { u8::MAX };
            any |= *outside;
            *code = high >> 4 & 8 | if coded { offset } else { 0 };
        }
        let mut words = [0; CODE_BYTES];
        for (word, codes) in words.as_chunks_mut::<4>().0.iter_mut().zip(own.as_chunks::<WORD_WEIGHTS>().0) {
            *word = pack_word(u64::from_le_bytes(*codes)).to_le_bytes();
        }
        let halves = words.as_chunks::<HALF_CODE_BYTES>().0.split_at(LANES);
        let codes = codes.as_chunks_mut::<HALF_CODE_BYTES>().0.as_chunks_mut::<2>().0;
        for (lane, (first, second)) in codes.iter_mut().zip(halves.0.iter().zip(halves.1)) {
            *lane = [*first, *second];
        }
        if any != 0 {
            self.list_exceptions(&step.high, &outside, list);
        }
    }

    /// Lists the weights that are marked in `outside`, in step order.
    fn list_exceptions(&self, high: &Plane, outside: &Plane, list: &mut Vec<u8>) {
        let halves = outside.as_chunks::<HALF_WEIGHTS>().0;
        for half in (0..LANES).flat_map(|lane| [lane, LANES + lane]) {
            // A half is 16 bytes: most have no exception, and are passed over at once.
            let mut marks = u128::from_le_bytes(halves[half]);
            while marks != 0 {
                let at = marks.trailing_zeros() / u8::BITS;
                marks &= !(0xFF << (u8::BITS * at));
                let own = HALF_WEIGHTS * half + at as usize;
                let index = 2 * HALF_WEIGHTS * (half % LANES) + HALF_WEIGHTS * (half / LANES) + at as usize;
                let index = u16::try_from(index).expect("a step has 1024 weights");
                list.extend_from_slice(&self.base.exception(index, high[own] & 0x7F).to_le_bytes());
            }
        }
    }
}
