//! The split-byte layout `mma12`: `docs/format.md`, section 4.2.

use super::{BASE_BYTES, Flaw};
use crate::step::{LANE_WEIGHTS, STEP_WEIGHTS, Step, scatter};

/// Bytes of the data buffer that a step takes: a 4-bit code a weight, and its low byte.
pub const STEP_BYTES: usize = CODE_BYTES + STEP_WEIGHTS;
/// Bytes of a step's codes.
pub const CODE_BYTES: usize = STEP_WEIGHTS / 2;
/// High exponents that have a code of their own: the window.
pub const WINDOW: u8 = 8;
/// The highest base: its window ends with the last high exponent.
pub const BASE_MAX: u8 = 120;
/// Exceptions are padded to a multiple of this, with at least one more.
const EXCEPTIONS_MULTIPLE: u64 = 4;
/// Bits of an exception that say where in the step its weight is.
const INDEX_MASK: u32 = 0x3FF;
/// Where an exception's byte is in its entry.
const BYTE_SHIFT: u32 = 16;

/// The first high exponent of the window: `hb` of `glyd.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base(u8);

impl Base {
    /// The base `hb`, `None` where its window would end past the last high exponent.
    #[must_use]
    pub fn new(hb: u64) -> Option<Self> {
        u8::try_from(hb).ok().filter(|&hb| hb <= BASE_MAX).map(Base)
    }

    /// The number in `glyd.json`.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The high exponent's offset in the window, where it is in it.
    #[must_use]
    pub const fn offset(self, high_exponent: u8) -> Option<u8> {
        let offset = high_exponent.wrapping_sub(self.0);
        if offset < WINDOW { Some(offset) } else { None }
    }

    /// The entry of an exception: a step's weight `index`, whose high exponent has no code.
    #[must_use]
    pub fn exception(self, index: u16, high_exponent: u8) -> u32 {
        u32::from(index) | u32::from(self.0 ^ high_exponent) << BYTE_SHIFT
    }
}

/// Entries of the list of a matrix with this many exceptions: padded to a multiple of four, with
/// at least one zero entry after the last.
#[must_use]
pub const fn padded_count(exceptions: u64) -> u64 {
    EXCEPTIONS_MULTIPLE * (exceptions / EXCEPTIONS_MULTIPLE + 1)
}

/// The byte of a code word that has the offset of its weight `4 + j`: the weights 0 to 3 have a
/// byte each, and the weights 4 to 7 the bits between.
///
/// ```text
/// byte j:   bit 7 sign of j | bits 6-4 offset of 4 + (j + 1) % 4 | bit 3 sign of 4 + j | bits 2-0 offset of j
/// ```
#[must_use]
pub const fn high_offset_byte(j: usize) -> usize {
    (j + 3) % 4
}

/// The high bytes of a code word's eight weights.
fn decode_word(word: [u8; 4], base: u8) -> [u8; 8] {
    let mut high = [0; 8];
    for j in 0..4 {
        high[j] = word[j] & 0x80 | (base + (word[j] & 7));
        high[4 + j] = (word[j] & 8) << 4 | (base + (word[high_offset_byte(j)] >> 4 & 7));
    }
    high
}

/// Decodes a step into rows that stand `stride` weights apart.
pub(super) fn decode_step(
    base: Base,
    data: &[u8],
    exceptions: &[u8],
    rows: &mut [u16],
    stride: usize,
) -> Result<(), Flaw> {
    let (codes, low) = data.split_at(CODE_BYTES);
    let mut step: Step = [0; STEP_WEIGHTS];
    for (lane, weights) in step.chunks_exact_mut(LANE_WEIGHTS).enumerate() {
        for (q, eight) in weights.chunks_exact_mut(8).enumerate() {
            let word = &codes[16 * lane + 4 * q..][..4];
            let high = decode_word([word[0], word[1], word[2], word[3]], base.0);
            let low = &low[STEP_WEIGHTS / 2 * (q / 2) + 16 * lane + 8 * (q % 2)..][..8];
            for ((weight, &high), &low) in eight.iter_mut().zip(&high).zip(low) {
                *weight = u16::from_be_bytes([high, low]);
            }
        }
    }
    let mut last = None;
    for entry in exceptions.chunks_exact(BASE_BYTES) {
        let entry = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let index = (entry & INDEX_MASK) as usize;
        let byte = entry.to_le_bytes()[2];
        check_exception(base, entry, last, step[index])?;
        step[index] ^= u16::from_be_bytes([byte, 0]);
        last = Some(index);
    }
    scatter(&step, rows, stride);
    Ok(())
}

/// Holds an exception to the form in which it is written: `docs/format.md`, section 7, rule 8.
fn check_exception(base: Base, entry: u32, last: Option<usize>, coded: u16) -> Result<(), Flaw> {
    let index = (entry & INDEX_MASK) as usize;
    let byte = entry.to_le_bytes()[2];
    let flaw = |expected: &str, found: String| {
        Err(Flaw { step: 0, form_only: true, expected: expected.to_owned(), found })
    };
    if entry & !(INDEX_MASK | 0xFF << BYTE_SHIFT) != 0 {
        return flaw("zero bits beside an exception's index and byte", format!("{entry:#010x}"));
    }
    if last.is_some_and(|last| last >= index) {
        let last = last.unwrap_or_default();
        return flaw("exceptions in the order of their weights", format!("{index} after {last}"));
    }
    if coded.to_be_bytes()[0] & 0x7F != base.0 {
        return flaw("offset 0 in an exception's code", format!("weight {index} with another"));
    }
    let high_exponent = base.0 ^ byte;
    if byte & 0x80 != 0 || base.offset(high_exponent).is_some() {
        return flaw("an exception outside the window", format!("byte {byte:#04x} for weight {index}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_always_ends_in_a_zero_entry() {
        assert_eq!([0, 1, 3, 4, 5].map(padded_count), [4, 4, 4, 8, 8]);
    }

    #[test]
    fn a_base_keeps_its_window_in_seven_bits() {
        assert!(Base::new(120).is_some());
        assert!(Base::new(121).is_none());
        let base = Base::new(120).unwrap();
        assert_eq!(base.offset(127), Some(7));
        assert_eq!(base.offset(119), None);
        assert_eq!(base.offset(0), None);
    }

    #[test]
    fn an_exception_holds_its_index_and_byte() {
        let base = Base::new(60).unwrap();
        assert_eq!(base.exception(1023, 0), 0x003C_03FF);
    }
}
