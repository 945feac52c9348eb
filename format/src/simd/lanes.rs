//! What the layouts do to a step's bytes that a compiler does not find vector code for: some of them
//! taken together, or put apart, in their order.

use super::Simd;
use crate::step::STEP_WEIGHTS;

/// Bytes that are worked on at a time.
const WIDTH: usize = 64;

/// A step's bytes, a weight each, with room for a whole vector to be read or written past the last.
pub type Lane = [u8; STEP_WEIGHTS + WIDTH];

/// An empty lane.
pub const EMPTY: Lane = [0; STEP_WEIGHTS + WIDTH];

/// For each of the first `count` digits, the byte of `own` that it says; and for digit 3 the next of
/// `passed`. Bytes past `count` are of no meaning.
#[inline(always)]
pub fn expand(simd: Simd, digits: &Lane, count: usize, own: [u8; 3], passed: &Lane, out: &mut Lane) {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512(proof) => avx512::call_expand(proof, digits, count, own, passed, out),
        _ => {
            let own = [own[0], own[1], own[2], 0];
            let mut at = 0;
            for (out, &digit) in out.iter_mut().zip(digits).take(count.min(STEP_WEIGHTS)) {
                // No branch: digits are as good as random, and a wrong guess costs more than the work.
                let passes = u8::from(digit == 3);
                *out = own[usize::from(digit & 3)] | passed[at % STEP_WEIGHTS] & passes.wrapping_neg();
                at += usize::from(passes);
            }
        }
    }
}

/// Of the first `count` bytes of each of two lanes, those whose byte in the first is at least `from`, in
/// their order; returns how many. Bytes past them are of no meaning.
#[inline(always)]
pub fn compress(simd: Simd, lanes: [&Lane; 2], count: usize, from: u8, out: [&mut Lane; 2]) -> usize {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512(proof) => avx512::call_compress(proof, lanes, count, from, out),
        _ => {
            let [first, second] = out;
            let mut taken = 0;
            for (&a, &b) in lanes[0].iter().zip(lanes[1]).take(count.min(STEP_WEIGHTS)) {
                first[taken % STEP_WEIGHTS] = a;
                second[taken % STEP_WEIGHTS] = b;
                taken += usize::from(a >= from);
            }
            taken
        }
    }
}

/// Each of a step's bytes looked up in a table.
#[inline(always)]
pub fn look_up(simd: Simd, table: &[u8; 256], lane: &Lane, out: &mut Lane) {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512(proof) => avx512::call_look_up(proof, table, lane, out),
        _ => {
            for (out, &byte) in out.iter_mut().zip(lane).take(STEP_WEIGHTS) {
                *out = table[usize::from(byte)];
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "a function with a target feature is called where that feature is proved")]
mod avx512 {
    use std::arch::x86_64::{
        __m512i, _mm512_cmpeq_epi8_mask, _mm512_cmpge_epu8_mask, _mm512_mask_blend_epi8,
        _mm512_mask_expand_epi8, _mm512_maskz_compress_epi8, _mm512_movepi8_mask, _mm512_permutex2var_epi8,
        _mm512_set1_epi8, _mm512_set1_epi32, _mm512_shuffle_epi8,
    };

    use super::super::Avx512;
    use super::{Lane, STEP_WEIGHTS, WIDTH};

    #[inline(always)]
    pub(super) fn call_expand(
        _: Avx512,
        digits: &Lane,
        count: usize,
        own: [u8; 3],
        passed: &Lane,
        out: &mut Lane,
    ) {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { expand(digits, count, own, passed, out) }
    }

    #[inline(always)]
    pub(super) fn call_compress(
        _: Avx512,
        lanes: [&Lane; 2],
        count: usize,
        from: u8,
        out: [&mut Lane; 2],
    ) -> usize {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { compress(lanes, count, from, out) }
    }

    #[inline(always)]
    pub(super) fn call_look_up(_: Avx512, table: &[u8; 256], lane: &Lane, out: &mut Lane) {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { look_up(table, lane, out) }
    }

    /// The vector at `at`: of a step's bytes there is always a whole one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn vector(lane: &Lane, at: usize) -> __m512i {
        let mut bytes = [0; WIDTH];
        let at = at.min(STEP_WEIGHTS);
        bytes.copy_from_slice(&lane[at..at + WIDTH]);
        bytemuck::cast(bytes)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn put(lane: &mut Lane, at: usize, vector: __m512i) {
        let bytes: [u8; WIDTH] = bytemuck::cast(vector);
        let at = at.min(STEP_WEIGHTS);
        lane[at..at + WIDTH].copy_from_slice(&bytes);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    fn expand(digits: &Lane, count: usize, own: [u8; 3], passed: &Lane, out: &mut Lane) {
        let table = _mm512_set1_epi32(i32::from_le_bytes([own[0], own[1], own[2], 0]));
        let pass = _mm512_set1_epi8(3);
        let mut taken = 0;
        for at in (0..count.min(STEP_WEIGHTS)).step_by(WIDTH) {
            let digits = vector(digits, at);
            let mask = _mm512_cmpeq_epi8_mask(digits, pass);
            let own = _mm512_shuffle_epi8(table, digits);
            put(out, at, _mm512_mask_expand_epi8(own, mask, vector(passed, taken)));
            taken += mask.count_ones() as usize;
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    fn compress(lanes: [&Lane; 2], count: usize, from: u8, out: [&mut Lane; 2]) -> usize {
        let count = count.min(STEP_WEIGHTS);
        let [first, second] = out;
        let from = _mm512_set1_epi8(from.cast_signed());
        let mut taken = 0;
        for at in (0..count).step_by(WIDTH) {
            let (a, b) = (vector(lanes[0], at), vector(lanes[1], at));
            let within = u64::MAX >> WIDTH.saturating_sub(count - at);
            let mask = _mm512_cmpge_epu8_mask(a, from) & within;
            put(first, taken, _mm512_maskz_compress_epi8(mask, a));
            put(second, taken, _mm512_maskz_compress_epi8(mask, b));
            taken += mask.count_ones() as usize;
        }
        taken
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn look_up(table: &[u8; 256], lane: &Lane, out: &mut Lane) {
        let [a, b, c, d]: [__m512i; 4] = bytemuck::cast(*table);
        for at in (0..STEP_WEIGHTS).step_by(WIDTH) {
            let bytes = vector(lane, at);
            // A permutation of two vectors takes seven bits of an index; the eighth says which two.
            let (low, high) = (_mm512_permutex2var_epi8(a, bytes, b), _mm512_permutex2var_epi8(c, bytes, d));
            put(out, at, _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(seed: u32, modulus: u32) -> Lane {
        let mut state = seed;
        [(); STEP_WEIGHTS + WIDTH].map(|()| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16).rem_euclid(modulus).to_le_bytes()[0]
        })
    }

    #[test]
    fn every_instruction_set_does_the_same() {
        let simds = Simd::NAMES.into_iter().filter_map(|name| Simd::named(name).ok());
        for simd in simds {
            for count in [0, 1, 63, 64, 65, 500, STEP_WEIGHTS] {
                let (digits, passed) = (lane(1, 4), lane(2, 256));
                let (mut found, mut expected) = (EMPTY, EMPTY);
                expand(simd, &digits, count, [7, 8, 9], &passed, &mut found);
                expand(Simd::Portable, &digits, count, [7, 8, 9], &passed, &mut expected);
                assert_eq!(found[..count], expected[..count], "{simd:?} {count}");

                let (ranks, bytes) = (lane(3, 10), lane(4, 256));
                let (mut a, mut b, mut c, mut d) = (EMPTY, EMPTY, EMPTY, EMPTY);
                let taken = compress(simd, [&ranks, &bytes], count, 3, [&mut a, &mut b]);
                assert_eq!(compress(Simd::Portable, [&ranks, &bytes], count, 3, [&mut c, &mut d]), taken);
                assert_eq!((&a[..taken], &b[..taken]), (&c[..taken], &d[..taken]), "{simd:?} {count}");
            }
            let table: [u8; 256] = std::array::from_fn(|at| (at * 7 % 251).to_le_bytes()[0]);
            let (mut found, mut expected) = (EMPTY, EMPTY);
            look_up(simd, &table, &lane(5, 256), &mut found);
            look_up(Simd::Portable, &table, &lane(5, 256), &mut expected);
            assert_eq!(found[..STEP_WEIGHTS], expected[..STEP_WEIGHTS], "{simd:?}");
        }
    }
}
