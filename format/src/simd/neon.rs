//! The kernels in NEON.

use std::arch::aarch64::{
    uint8x16_t, uint32x4_t, vaddv_u8, vandq_u8, vceqq_u8, vcgeq_u8, vdupq_n_u8, vget_high_u8, vget_low_u8,
    vorrq_u8, vqtbl1q_u8, vuzp1q_u8, vuzp1q_u32, vuzp2q_u8, vuzp2q_u32, vzip1q_u8, vzip1q_u32, vzip2q_u8,
    vzip2q_u32,
};

use super::tables::{COMPRESS, EXPAND, moved};
use super::{HALF_ROWS, Kernels, Lane, Neon, first_row};
use crate::step::{HALF_WEIGHTS, Plane, STEP_COLUMNS, STEP_WEIGHTS};

/// Bytes of a plane that are of four lanes' half.
const BLOCK_BYTES: usize = 4 * HALF_WEIGHTS;
/// Bytes of a vector.
const WIDTH: usize = 16;

#[expect(unsafe_code, reason = "a function with a target feature is called where that feature is proved")]
impl Kernels for Neon {
    #[inline(always)]
    fn gather(self, rows: &[u16], stride: usize, high: &mut Plane, low: &mut Plane) {
        // SAFETY: a `Neon` is made where the processor has it, and nowhere else.
        unsafe { gather(rows, stride, high, low) }
    }

    #[inline(always)]
    fn scatter(self, high: &Plane, low: &Plane, rows: &mut [u16], stride: usize) {
        // SAFETY: a `Neon` is made where the processor has it, and nowhere else.
        unsafe { scatter(high, low, rows, stride) }
    }

    #[inline(always)]
    fn expand(self, digits: &Lane, count: usize, own: [u8; 3], passed: &Lane, out: &mut Lane) {
        // SAFETY: a `Neon` is made where the processor has it, and nowhere else.
        unsafe { expand(digits, count, own, passed, out) }
    }

    #[inline(always)]
    fn compress(self, lanes: [&Lane; 2], count: usize, from: u8, out: [&mut Lane; 2]) -> usize {
        // SAFETY: a `Neon` is made where the processor has it, and nowhere else.
        unsafe { compress(lanes, count, from, out) }
    }
}

/// ```text
/// row      p0 p1 p2 p3, q0 q1 q2 q3      pairs of weights; lane i has pi, qi of each of its rows
/// pairs    p0 q0 p1 q1, p2 q2 p3 q3      ui: pi, qi
/// bytes    low u0 u1 u2 u3, high u0 u1 u2 u3
/// lane i   low ui of row 0 to 3
/// ```
#[inline]
#[target_feature(enable = "neon")]
fn gather(rows: &[u16], stride: usize, high: &mut Plane, low: &mut Plane) {
    let blocks = high.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut().zip(low.as_chunks_mut::<BLOCK_BYTES>().0);
    for (block, (high, low)) in blocks.enumerate() {
        let (mut lows, mut highs) = ([EMPTY; HALF_ROWS], [EMPTY; HALF_ROWS]);
        for own in 0..HALF_ROWS {
            let at = first_row(block, own) * stride;
            let weights: [u16; STEP_COLUMNS] = *rows[at..].first_chunk().expect("rows of the step");
            let [p, q]: [uint32x4_t; 2] = bytemuck::cast(weights);
            let [first, second]: [uint8x16_t; 2] = bytemuck::cast([vzip1q_u32(p, q), vzip2q_u32(p, q)]);
            lows[own] = bytemuck::cast(vuzp1q_u8(first, second));
            highs[own] = bytemuck::cast(vuzp2q_u8(first, second));
        }
        *low = transposed(lows);
        *high = transposed(highs);
    }
}

/// The same backwards.
#[inline]
#[target_feature(enable = "neon")]
fn scatter(high: &Plane, low: &Plane, rows: &mut [u16], stride: usize) {
    let blocks = high.as_chunks::<BLOCK_BYTES>().0.iter().zip(low.as_chunks::<BLOCK_BYTES>().0);
    for (block, (high, low)) in blocks.enumerate() {
        let lows: [uint8x16_t; HALF_ROWS] = bytemuck::cast(transposed(bytemuck::cast(*low)));
        let highs: [uint8x16_t; HALF_ROWS] = bytemuck::cast(transposed(bytemuck::cast(*high)));
        for (own, (low, high)) in lows.into_iter().zip(highs).enumerate() {
            let pairs = [vzip1q_u8(low, high), vzip2q_u8(low, high)];
            let [first, second]: [uint32x4_t; 2] = bytemuck::cast(pairs);
            let weights = bytemuck::cast([vuzp1q_u32(first, second), vuzp2q_u32(first, second)]);
            let at = first_row(block, own) * stride;
            *rows[at..].first_chunk_mut::<STEP_COLUMNS>().expect("rows of the step") = weights;
        }
    }
}

const EMPTY: [u32; 4] = [0; 4];

/// Rows and columns of four by four exchanged.
#[inline]
#[target_feature(enable = "neon")]
fn transposed(rows: [[u32; 4]; HALF_ROWS]) -> [u8; BLOCK_BYTES] {
    let [a, b, c, d]: [uint32x4_t; HALF_ROWS] = bytemuck::cast(rows);
    let (even, odd) = ([vzip1q_u32(a, c), vzip2q_u32(a, c)], [vzip1q_u32(b, d), vzip2q_u32(b, d)]);
    bytemuck::cast([
        vzip1q_u32(even[0], odd[0]),
        vzip2q_u32(even[0], odd[0]),
        vzip1q_u32(even[1], odd[1]),
        vzip2q_u32(even[1], odd[1]),
    ])
}

#[inline]
#[target_feature(enable = "neon")]
fn vector(lane: &Lane, at: usize) -> uint8x16_t {
    let bytes: [u8; WIDTH] = *lane[at.min(STEP_WEIGHTS)..].first_chunk().expect("room past the last byte");
    bytemuck::cast(bytes)
}

#[inline(always)]
fn put<const BYTES: usize>(lane: &mut Lane, at: usize, bytes: [u8; BYTES]) {
    *lane[at.min(STEP_WEIGHTS)..].first_chunk_mut().expect("room past the last byte") = bytes;
}

/// A bit for each byte, all ones or zero: eight and eight.
#[inline]
#[target_feature(enable = "neon")]
fn mask(bytes: uint8x16_t) -> [u8; 2] {
    let bits = vandq_u8(bytes, bytemuck::cast([[1, 2, 4, 8, 16, 32, 64, 128_u8]; 2]));
    [vaddv_u8(vget_low_u8(bits)), vaddv_u8(vget_high_u8(bits))]
}

#[inline]
#[target_feature(enable = "neon")]
fn expand(digits: &Lane, count: usize, own: [u8; 3], passed: &Lane, out: &mut Lane) {
    let mut table = [0; WIDTH];
    table[..own.len()].copy_from_slice(&own);
    let table = bytemuck::cast(table);
    let mut taken = 0;
    for at in (0..count.min(STEP_WEIGHTS)).step_by(WIDTH) {
        let digits = vector(digits, at);
        let [low, high] = mask(vceqq_u8(digits, vdupq_n_u8(3)));
        let first = low.count_ones() as usize;
        let places = [EXPAND[usize::from(low)], moved(EXPAND[usize::from(high)], first)];
        let passed = vqtbl1q_u8(vector(passed, taken), bytemuck::cast(places));
        let bytes: [u8; WIDTH] = bytemuck::cast(vorrq_u8(vqtbl1q_u8(table, digits), passed));
        put(out, at, bytes);
        taken += first + high.count_ones() as usize;
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn compress(lanes: [&Lane; 2], count: usize, from: u8, out: [&mut Lane; 2]) -> usize {
    let count = count.min(STEP_WEIGHTS);
    let [first, second] = out;
    let from = vdupq_n_u8(from);
    let mut taken = 0;
    for at in (0..count).step_by(WIDTH) {
        let (a, b) = (vector(lanes[0], at), vector(lanes[1], at));
        let within = u16::MAX >> WIDTH.saturating_sub(count - at);
        let [low, high] = (u16::from_le_bytes(mask(vcgeq_u8(a, from))) & within).to_le_bytes();
        let places = [COMPRESS[usize::from(low)], moved(COMPRESS[usize::from(high)], WIDTH / 2)];
        let own = low.count_ones() as usize;
        for (to, from) in [(&mut *first, a), (&mut *second, b)] {
            let [low, high]: [[u8; WIDTH / 2]; 2] = bytemuck::cast(vqtbl1q_u8(from, bytemuck::cast(places)));
            put(to, taken, low);
            put(to, taken + own, high);
        }
        taken += own + high.count_ones() as usize;
    }
    taken
}
