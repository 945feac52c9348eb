//! The kernels in plain loops: what runs where there is nothing better, and what all others are held to.

use super::{Lane, NO_RANK, Ranks, VECTOR, WINDOW, WINDOW_VECTORS};
use crate::step::{HALF_WEIGHTS, Plane, STEP_COLUMNS, STEP_ROWS, STEP_WEIGHTS};

/// Weights of a row that stand in one place of a step order: a pair of neighbours.
const PAIR: usize = 2;

/// Where a row's pair `pair` starts in a plane.
const fn pair_index(row: usize, pair: usize) -> usize {
    const LANES_OF_ROW: usize = 4;
    // Eight rows apart are a lane's rows, four of them in a half.
    let (group, own) = (row % 8, row / 8);
    let lane = LANES_OF_ROW * group + pair % LANES_OF_ROW;
    let place = 2 * PAIR * (own % 4) + PAIR * (pair / LANES_OF_ROW);
    STEP_WEIGHTS / 2 * (own / 4) + HALF_WEIGHTS * lane + place
}

#[inline(always)]
pub(super) fn gather(rows: &[u16], stride: usize, high: &mut Plane, low: &mut Plane) {
    for row in 0..STEP_ROWS {
        let from = &rows[row * stride..row * stride + STEP_COLUMNS];
        for (pair, weights) in from.as_chunks::<PAIR>().0.iter().enumerate() {
            let at = pair_index(row, pair);
            for (to, weight) in weights.iter().enumerate() {
                [low[at + to], high[at + to]] = weight.to_le_bytes();
            }
        }
    }
}

#[inline(always)]
pub(super) fn scatter(high: &Plane, low: &Plane, rows: &mut [u16], stride: usize) {
    for row in 0..STEP_ROWS {
        let to = &mut rows[row * stride..row * stride + STEP_COLUMNS];
        for (pair, weights) in to.as_chunks_mut::<PAIR>().0.iter_mut().enumerate() {
            let at = pair_index(row, pair);
            for (from, weight) in weights.iter_mut().enumerate() {
                *weight = u16::from_le_bytes([low[at + from], high[at + from]]);
            }
        }
    }
}

#[inline(always)]
pub(super) fn expand(digits: &Lane, count: usize, own: [u8; 3], passed: &Lane, out: &mut Lane) {
    let own = [own[0], own[1], own[2], 0];
    let mut at = 0;
    for (out, &digit) in out.iter_mut().zip(digits).take(count.min(STEP_WEIGHTS)) {
        // No branch: digits are as good as random, and a wrong guess costs more than the work.
        let passes = u8::from(digit == 3);
        *out = own[usize::from(digit & 3)] | passed[at % STEP_WEIGHTS] & passes.wrapping_neg();
        at += usize::from(passes);
    }
}

#[inline(always)]
pub(super) fn compress(lanes: [&Lane; 2], count: usize, from: u8, out: [&mut Lane; 2]) -> usize {
    let [first, second] = out;
    let mut taken = 0;
    for (&a, &b) in lanes[0].iter().zip(lanes[1]).take(count.min(STEP_WEIGHTS)) {
        first[taken % STEP_WEIGHTS] = a;
        second[taken % STEP_WEIGHTS] = b;
        taken += usize::from(a >= from);
    }
    taken
}

#[inline(always)]
pub(super) fn rank(ranks: &Ranks, exponents: &Plane, out: &mut Plane) {
    for (out, exponent) in out.iter_mut().zip(exponents) {
        // Exponents differ: no more than one of the nine is the weight's.
        let own =
            (0..).zip(&ranks.exponents).map(|(rank, own)| if exponent == own { NO_RANK - rank } else { 0 });
        *out = NO_RANK - own.fold(0, |all, own| all | own);
    }
}

#[inline(always)]
pub(super) fn count_window(exponents: &[[u8; VECTOR]], first: u8) -> [u64; WINDOW] {
    assert!(exponents.len() <= WINDOW_VECTORS, "a byte for each count");
    let own: [u8; WINDOW] = std::array::from_fn(|at| first + at.to_le_bytes()[0]);
    let mut counts = [0; WINDOW];
    // Four at a time: as many counters as stay in registers.
    for (own, counts) in own.as_chunks::<4>().0.iter().zip(counts.as_chunks_mut::<4>().0) {
        let mut counters = [[0_u8; VECTOR]; 4];
        for vector in exponents {
            for (counter, own) in counters.iter_mut().zip(own) {
                for (counter, exponent) in counter.iter_mut().zip(vector) {
                    *counter += u8::from(exponent == own);
                }
            }
        }
        for (count, counter) in counts.iter_mut().zip(&counters) {
            *count = counter.iter().map(|&count| u64::from(count)).sum();
        }
    }
    counts
}
