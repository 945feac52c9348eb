//! The split-byte layout `mma12`: `docs/format.md`, section 4.2.

use super::{BASE_BYTES, Flaw};
use crate::step::{LANES, STEP_WEIGHTS, Step, plane_index};

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

/// Weights whose codes are in one word.
pub const WORD_WEIGHTS: usize = 8;
/// Bytes of the words of half a lane: in the data buffer a lane's halves are neighbours, in a plane all
/// first halves come first.
pub const HALF_CODE_BYTES: usize = CODE_BYTES / LANES / 2;

/// The codes of eight weights, a byte each (bit 3 the sign, bits 2-0 the offset), from their word.
///
/// ```text
/// byte j of the word:  bit 7 sign of j | bits 6-4 offset of 4 + (j + 1) % 4 | bit 3 sign of 4 + j | bits 2-0 offset of j
/// ```
#[must_use]
#[inline(always)]
pub const fn unpack_word(word: u32) -> u64 {
    // The word twice: shifted by four, the lower's last bits come to where the upper's first offset is.
    let twice = word as u64 | (word as u64) << 32;
    twice & 0x0808_0808_0707_0707 | twice >> 4 & 0x0808_0808 | twice << 4 & 0x0707_0707_0000_0000
}

/// The word of eight weights' codes: the inverse of [`unpack_word`].
#[must_use]
#[inline(always)]
pub const fn pack_word(codes: u64) -> u32 {
    let spread =
        codes & 0x0808_0808_0707_0707 | (codes & 0x0808_0808) << 4 | (codes & 0x0707_0707_0000_0000) >> 4;
    let [a, b, c, d, e, f, g, h] = spread.to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) | u32::from_le_bytes([e, f, g, h])
}

/// Decodes a step.
#[inline(always)]
pub(super) fn decode_step(base: Base, data: &[u8], exceptions: &[u8], step: &mut Step) -> Result<(), Flaw> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let (codes, low) = data.split_at(CODE_BYTES);
    step.low.copy_from_slice(low);
    let mut words = [0; CODE_BYTES];
    let (first, second) = words.as_chunks_mut::<HALF_CODE_BYTES>().0.split_at_mut(LANES);
    for ((first, second), lane) in
        first.iter_mut().zip(second).zip(codes.as_chunks::<HALF_CODE_BYTES>().0.as_chunks::<2>().0)
    {
        [*first, *second] = *lane;
    }
    for (high, word) in step.high.as_chunks_mut::<WORD_WEIGHTS>().0.iter_mut().zip(words.as_chunks::<4>().0) {
        let codes = unpack_word(u32::from_le_bytes(*word));
        // No byte carries into the next: 7 + 120 fits seven bits.
        let high_exponents = (codes & (7 * EACH)) + u64::from(base.0) * EACH;
        *high = (high_exponents | (codes & (8 * EACH)) << 4).to_le_bytes();
    }
    let mut last = None;
    for entry in exceptions.as_chunks::<BASE_BYTES>().0 {
        let entry = u32::from_le_bytes(*entry);
        let index = (entry & INDEX_MASK) as usize;
        let high = &mut step.high[plane_index(index)];
        check_exception(base, entry, last, *high)?;
        *high ^= entry.to_le_bytes()[2];
        last = Some(index);
    }
    Ok(())
}

/// Holds an exception to the form in which it is written: `docs/format.md`, section 7, rule 8.
fn check_exception(base: Base, entry: u32, last: Option<usize>, coded: u8) -> Result<(), Flaw> {
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
    if coded & 0x7F != base.0 {
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
    fn a_word_packs_what_it_unpacks() {
        // Weight i has offset i and the sign of its parity.
        let codes = u64::from_le_bytes([0, 9, 2, 11, 4, 13, 6, 15]);
        let word = pack_word(codes);
        assert_eq!(word.to_le_bytes(), [0x50, 0xE9, 0x72, 0xCB]);
        assert_eq!(unpack_word(word), codes);
    }

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
