//! The kernels in AVX-512 with VBMI2, two steps at a time: a cache line of each row.

use std::arch::x86_64::{
    __m512i, _mm512_cmpeq_epi8_mask, _mm512_cmpge_epu8_mask, _mm512_mask_blend_epi8, _mm512_mask_expand_epi8,
    _mm512_maskz_compress_epi8, _mm512_movepi8_mask, _mm512_permutex2var_epi8, _mm512_set1_epi8,
    _mm512_set1_epi32, _mm512_shuffle_epi8, _mm512_shuffle_i64x2,
};

use super::{Avx512, Kernels, Lane, Ranks, VECTOR, WINDOW, WINDOW_VECTORS, avx2, first_row, prefetch};
use crate::step::{HALF_WEIGHTS, Plane, STEP_COLUMNS, STEP_WEIGHTS};

/// Bytes of a vector: of a plane's block, the half of four lanes.
const WIDTH: usize = 64;

#[expect(unsafe_code, reason = "a function with a target feature is called where that feature is proved")]
impl Kernels for Avx512 {
    #[inline(always)]
    fn gather(self, rows: &[u16], stride: usize, high: &mut Plane, low: &mut Plane) {
        // SAFETY: an `Avx512` is made where the processor has AVX2 as well, and nowhere else.
        unsafe { avx2::gather(rows, stride, high, low) }
    }

    #[inline(always)]
    fn gather_two(self, rows: &[u16], stride: usize, high: [&mut Plane; 2], low: [&mut Plane; 2]) {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { gather_two(rows, stride, high, low) }
    }

    #[inline(always)]
    fn scatter(self, high: &Plane, low: &Plane, rows: &mut [u16], stride: usize) {
        // SAFETY: an `Avx512` is made where the processor has AVX2 as well, and nowhere else.
        unsafe { avx2::scatter(high, low, rows, stride) }
    }

    #[inline(always)]
    fn scatter_two(self, high: [&Plane; 2], low: [&Plane; 2], rows: &mut [u16], stride: usize) {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { scatter_two(high, low, rows, stride) }
    }

    #[inline(always)]
    fn expand(self, digits: &Lane, count: usize, own: [u8; 3], passed: &Lane, out: &mut Lane) {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { expand(digits, count, own, passed, out) }
    }

    #[inline(always)]
    fn compress(self, lanes: [&Lane; 2], count: usize, from: u8, out: [&mut Lane; 2]) -> usize {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { compress(lanes, count, from, out) }
    }

    #[inline(always)]
    fn count_window(self, exponents: &[[u8; VECTOR]], first: u8) -> [u64; WINDOW] {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { count_window(exponents, first) }
    }

    #[inline(always)]
    fn rank(self, ranks: &Ranks, exponents: &Plane, out: &mut Plane) {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { rank(ranks, exponents, out) }
    }
}

/// Where, in four rows of a step, each byte of a plane's block comes from: the low bytes, or the high.
const fn sources(high: u8) -> [u8; WIDTH] {
    let mut sources = [0; WIDTH];
    let mut at = 0;
    while at < WIDTH {
        let (row, column) = place(at);
        // No more than 127: four rows of 16 weights.
        sources[at] = (2 * (STEP_COLUMNS * row + column)).to_le_bytes()[0] + high;
        at += 1;
    }
    sources
}

/// Where, in a plane's two blocks (low, high), each byte of two rows comes from, `row` and the next.
const fn origins(row: usize) -> [u8; WIDTH] {
    let mut origins = [0; WIDTH];
    let mut at = 0;
    while at < WIDTH {
        let (own, column) = place(at);
        if own / 2 == row / 2 {
            let to = 2 * (STEP_COLUMNS * (own % 2) + column);
            origins[to] = at.to_le_bytes()[0];
            origins[to + 1] = (WIDTH + at).to_le_bytes()[0];
        }
        at += 1;
    }
    origins
}

/// The row, of a half's four, and the column of a block's byte.
const fn place(at: usize) -> (usize, usize) {
    let (lane, weight) = (at / HALF_WEIGHTS, at % HALF_WEIGHTS);
    (weight / 4, 8 * (weight / 2 % 2) + 2 * lane + weight % 2)
}

/// Weights of the two steps in a row.
const LINE_WEIGHTS: usize = 2 * STEP_COLUMNS;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn gather_two(rows: &[u16], stride: usize, high: [&mut Plane; 2], low: [&mut Plane; 2]) {
    const FIRST: i32 = 0b01_00_01_00;
    const SECOND: i32 = 0b11_10_11_10;
    let lows: __m512i = bytemuck::cast(const { sources(0) });
    let highs: __m512i = bytemuck::cast(const { sources(1) });
    let [high_a, high_b] = high.map(|plane| plane.as_chunks_mut::<WIDTH>().0);
    let [low_a, low_b] = low.map(|plane| plane.as_chunks_mut::<WIDTH>().0);
    let blocks = high_a.iter_mut().zip(high_b).zip(low_a.iter_mut().zip(low_b)).enumerate();
    for (block, ((high_a, high_b), (low_a, low_b))) in blocks {
        let row = |own: usize| -> __m512i {
            let at = first_row(block, own) * stride;
            prefetch(rows, at);
            let weights: [u16; LINE_WEIGHTS] = *rows[at..].first_chunk().expect("rows of the steps");
            bytemuck::cast(weights)
        };
        let rows = [row(0), row(1), row(2), row(3)];
        let first = _mm512_shuffle_i64x2::<FIRST>(rows[0], rows[1]);
        let last = _mm512_shuffle_i64x2::<FIRST>(rows[2], rows[3]);
        *low_a = bytemuck::cast(_mm512_permutex2var_epi8(first, lows, last));
        *high_a = bytemuck::cast(_mm512_permutex2var_epi8(first, highs, last));
        let first = _mm512_shuffle_i64x2::<SECOND>(rows[0], rows[1]);
        let last = _mm512_shuffle_i64x2::<SECOND>(rows[2], rows[3]);
        *low_b = bytemuck::cast(_mm512_permutex2var_epi8(first, lows, last));
        *high_b = bytemuck::cast(_mm512_permutex2var_epi8(first, highs, last));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn scatter_two(high: [&Plane; 2], low: [&Plane; 2], rows: &mut [u16], stride: usize) {
    const FIRST: i32 = 0b01_00_01_00;
    const SECOND: i32 = 0b11_10_11_10;
    let first: __m512i = bytemuck::cast(const { origins(0) });
    let last: __m512i = bytemuck::cast(const { origins(2) });
    let [high_a, high_b] = high.map(|plane| plane.as_chunks::<WIDTH>().0);
    let [low_a, low_b] = low.map(|plane| plane.as_chunks::<WIDTH>().0);
    let blocks = high_a.iter().zip(high_b).zip(low_a.iter().zip(low_b)).enumerate();
    for (block, ((high_a, high_b), (low_a, low_b))) in blocks {
        let (low_a, high_a) = (bytemuck::cast(*low_a), bytemuck::cast(*high_a));
        let (low_b, high_b) = (bytemuck::cast(*low_b), bytemuck::cast(*high_b));
        for (pair, origins) in [first, last].into_iter().enumerate() {
            let a = _mm512_permutex2var_epi8(low_a, origins, high_a);
            let b = _mm512_permutex2var_epi8(low_b, origins, high_b);
            let both = [_mm512_shuffle_i64x2::<FIRST>(a, b), _mm512_shuffle_i64x2::<SECOND>(a, b)];
            for (own, row) in both.into_iter().enumerate() {
                let at = first_row(block, 2 * pair + own) * stride;
                let weights: [u16; LINE_WEIGHTS] = bytemuck::cast(row);
                *rows[at..].first_chunk_mut().expect("rows of the steps") = weights;
            }
        }
    }
}

/// The vector at `at`: of a step's bytes there is always a whole one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn vector(lane: &Lane, at: usize) -> __m512i {
    let bytes: [u8; WIDTH] = *lane[at.min(STEP_WEIGHTS)..].first_chunk().expect("room past the last byte");
    bytemuck::cast(bytes)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn put(lane: &mut Lane, at: usize, vector: __m512i) {
    let bytes: [u8; WIDTH] = bytemuck::cast(vector);
    *lane[at.min(STEP_WEIGHTS)..].first_chunk_mut().expect("room past the last byte") = bytes;
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
fn rank(ranks: &Ranks, exponents: &Plane, out: &mut Plane) {
    let [a, b, c, d]: [__m512i; 4] = bytemuck::cast(ranks.table);
    let vectors = exponents.as_chunks::<WIDTH>().0.iter().zip(out.as_chunks_mut::<WIDTH>().0);
    for (bytes, out) in vectors {
        let bytes = bytemuck::cast(*bytes);
        // A permutation of two vectors takes seven bits of an index; the eighth says which two.
        let (low, high) = (_mm512_permutex2var_epi8(a, bytes, b), _mm512_permutex2var_epi8(c, bytes, d));
        *out = bytemuck::cast(_mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,popcnt")]
fn count_window(exponents: &[[u8; VECTOR]], first: u8) -> [u64; WINDOW] {
    assert!(exponents.len() <= WINDOW_VECTORS, "a byte for each count");
    /// Exponents at a time: their counts stay in registers.
    const SOME: usize = 8;
    let mut counts = [0; WINDOW];
    for (some, counts) in counts.as_chunks_mut::<SOME>().0.iter_mut().enumerate() {
        let own = std::array::from_fn(|at| first + (SOME * some + at).to_le_bytes()[0]);
        let own: [__m512i; SOME] = own.map(|own: u8| _mm512_set1_epi8(own.cast_signed()));
        for vector in exponents {
            let vector = bytemuck::cast(*vector);
            for (count, own) in counts.iter_mut().zip(own) {
                *count += u64::from(_mm512_cmpeq_epi8_mask(vector, own).count_ones());
            }
        }
    }
    counts
}
