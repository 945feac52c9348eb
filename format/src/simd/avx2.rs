//! The kernels in AVX2.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_cmpeq_epi8, _mm_max_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    _mm_set1_epi32, _mm_shuffle_epi8, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_permute2x128_si256,
    _mm256_permutevar8x32_epi32, _mm256_setr_epi8, _mm256_setr_epi32, _mm256_shuffle_epi8, _mm256_shuffle_ps,
    _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

use super::tables::{COMPRESS, EXPAND, moved};
use super::{Avx2, HALF_ROWS, Kernels, Lane, first_row, prefetch};
use crate::step::{Plane, STEP_COLUMNS, STEP_WEIGHTS};

/// Bytes of a plane that are of four lanes' half.
const BLOCK_BYTES: usize = 64;
/// Bytes that are taken together, or put apart, at a time.
const WIDTH: usize = 16;

#[expect(unsafe_code, reason = "a function with a target feature is called where that feature is proved")]
impl Kernels for Avx2 {
    #[inline(always)]
    fn gather(self, rows: &[u16], stride: usize, high: &mut Plane, low: &mut Plane) {
        // SAFETY: an `Avx2` is made where the processor has these features, and nowhere else.
        unsafe { gather(rows, stride, high, low) }
    }

    #[inline(always)]
    fn scatter(self, high: &Plane, low: &Plane, rows: &mut [u16], stride: usize) {
        // SAFETY: an `Avx2` is made where the processor has these features, and nowhere else.
        unsafe { scatter(high, low, rows, stride) }
    }

    #[inline(always)]
    fn expand(self, digits: &Lane, count: usize, own: [u8; 3], passed: &Lane, out: &mut Lane) {
        // SAFETY: an `Avx2` is made where the processor has these features, and nowhere else.
        unsafe { expand(digits, count, own, passed, out) }
    }

    #[inline(always)]
    fn compress(self, lanes: [&Lane; 2], count: usize, from: u8, out: [&mut Lane; 2]) -> usize {
        // SAFETY: an `Avx2` is made where the processor has these features, and nowhere else.
        unsafe { compress(lanes, count, from, out) }
    }
}

/// ```text
/// row      p0 p1 p2 p3 | q0 q1 q2 q3     pairs of weights; lane i has pi, qi of each of its rows
/// pairs    p0 q0 p1 q1 | p2 q2 p3 q3     ui: pi, qi
/// bytes    low u0 u1, high u0 u1 | low u2 u3, high u2 u3
/// low      u0 of row 0, 1, u1 of row 0, 1 | u2, u3
///          u0 of row 0 to 3 | u2         lane 0 | lane 2
/// ```
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn gather(rows: &[u16], stride: usize, high: &mut Plane, low: &mut Plane) {
    let pairs = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let split = _mm256_setr_epi8(
        0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11,
        13, 15,
    );
    let blocks = high.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut().zip(low.as_chunks_mut::<BLOCK_BYTES>().0);
    for (block, (high, low)) in blocks.enumerate() {
        let row = |own: usize| {
            let at = first_row(block, own) * stride;
            prefetch(rows, at);
            let weights: [u16; STEP_COLUMNS] = *rows[at..].first_chunk().expect("rows of the step");
            let paired = _mm256_permutevar8x32_epi32(bytemuck::cast(weights), pairs);
            _mm256_shuffle_epi8(paired, split)
        };
        let rows = [row(0), row(1), row(2), row(3)];
        let first = _mm256_unpacklo_epi32(rows[0], rows[1]);
        let last = _mm256_unpacklo_epi32(rows[2], rows[3]);
        *low = lanes(_mm256_unpacklo_epi64(first, last), _mm256_unpackhi_epi64(first, last));
        let first = _mm256_unpackhi_epi32(rows[0], rows[1]);
        let last = _mm256_unpackhi_epi32(rows[2], rows[3]);
        *high = lanes(_mm256_unpacklo_epi64(first, last), _mm256_unpackhi_epi64(first, last));
    }
}

/// The same backwards.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn scatter(high: &Plane, low: &Plane, rows: &mut [u16], stride: usize) {
    const FIRST: i32 = 0b10_00_10_00;
    const SECOND: i32 = 0b11_01_11_01;
    let unpair = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    let join = _mm256_setr_epi8(
        0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14,
        7, 15,
    );
    let blocks = high.as_chunks::<BLOCK_BYTES>().0.iter().zip(low.as_chunks::<BLOCK_BYTES>().0);
    for (block, (high, low)) in blocks.enumerate() {
        let (low, high) = (unlanes(low), unlanes(high));
        for own in 0..HALF_ROWS {
            let pick = |two: [__m256i; 2]| _mm256_castsi256_ps(two[own / 2]);
            let both = if own % 2 == 0 {
                _mm256_shuffle_ps::<FIRST>(pick(low), pick(high))
            } else {
                _mm256_shuffle_ps::<SECOND>(pick(low), pick(high))
            };
            let paired = _mm256_shuffle_epi8(_mm256_castps_si256(both), join);
            let weights: [u16; STEP_COLUMNS] = bytemuck::cast(_mm256_permutevar8x32_epi32(paired, unpair));
            let at = first_row(block, own) * stride;
            *rows[at..].first_chunk_mut().expect("rows of the step") = weights;
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes(even: __m256i, odd: __m256i) -> [u8; BLOCK_BYTES] {
    let first = _mm256_permute2x128_si256::<0x20>(even, odd);
    bytemuck::cast([first, _mm256_permute2x128_si256::<0x31>(even, odd)])
}

/// Of a plane's block, rows 0 and 1, and rows 2 and 3.
#[inline]
#[target_feature(enable = "avx2")]
fn unlanes(block: &[u8; BLOCK_BYTES]) -> [__m256i; 2] {
    let [first, second]: [__m256i; 2] = bytemuck::cast(*block);
    let even = _mm256_permute2x128_si256::<0x20>(first, second);
    let odd = _mm256_permute2x128_si256::<0x31>(first, second);
    [_mm256_unpacklo_epi64(even, odd), _mm256_unpackhi_epi64(even, odd)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn vector(lane: &Lane, at: usize) -> __m128i {
    let bytes: [u8; WIDTH] = *lane[at.min(STEP_WEIGHTS)..].first_chunk().expect("room past the last byte");
    bytemuck::cast(bytes)
}

#[inline]
#[target_feature(enable = "avx2")]
fn put<const BYTES: usize>(lane: &mut Lane, at: usize, bytes: [u8; BYTES]) {
    *lane[at.min(STEP_WEIGHTS)..].first_chunk_mut().expect("room past the last byte") = bytes;
}

#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn expand(digits: &Lane, count: usize, own: [u8; 3], passed: &Lane, out: &mut Lane) {
    let table = _mm_set1_epi32(i32::from_le_bytes([own[0], own[1], own[2], 0]));
    let pass = _mm_set1_epi8(3);
    let mut taken = 0;
    for at in (0..count.min(STEP_WEIGHTS)).step_by(WIDTH) {
        let digits = vector(digits, at);
        let [low, high] = mask(_mm_cmpeq_epi8(digits, pass));
        let first = low.count_ones() as usize;
        let places = [EXPAND[usize::from(low)], moved(EXPAND[usize::from(high)], first)];
        let passed = _mm_shuffle_epi8(vector(passed, taken), bytemuck::cast(places));
        put(
            out,
            at,
            bytemuck::cast::<__m128i, [u8; WIDTH]>(_mm_or_si128(_mm_shuffle_epi8(table, digits), passed)),
        );
        taken += first + high.count_ones() as usize;
    }
}

#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn compress(lanes: [&Lane; 2], count: usize, from: u8, out: [&mut Lane; 2]) -> usize {
    let count = count.min(STEP_WEIGHTS);
    let [first, second] = out;
    let from = _mm_set1_epi8(from.cast_signed());
    let mut taken = 0;
    for at in (0..count).step_by(WIDTH) {
        let (a, b) = (vector(lanes[0], at), vector(lanes[1], at));
        let within = u16::MAX >> WIDTH.saturating_sub(count - at);
        let reached = mask(_mm_cmpeq_epi8(_mm_max_epu8(a, from), a));
        let [low, high] = (u16::from_le_bytes(reached) & within).to_le_bytes();
        let places = [COMPRESS[usize::from(low)], moved(COMPRESS[usize::from(high)], WIDTH / 2)];
        let places = bytemuck::cast(places);
        let own = low.count_ones() as usize;
        for (to, from) in [(&mut *first, a), (&mut *second, b)] {
            let [low, high]: [[u8; WIDTH / 2]; 2] = bytemuck::cast(_mm_shuffle_epi8(from, places));
            put(to, taken, low);
            put(to, taken + own, high);
        }
        taken += own + high.count_ones() as usize;
    }
    taken
}

/// The high bits of 16 bytes, eight and eight.
#[inline]
#[target_feature(enable = "avx2")]
fn mask(bytes: __m128i) -> [u8; 2] {
    let [low, high, ..] = _mm_movemask_epi8(bytes).to_le_bytes();
    [low, high]
}
