//! What each instruction set does to a step, held to the portable code.
#![allow(clippy::unwrap_used, reason = "tests' code: it panics when it fails")]

use glyd_fixtures::random::SplitMix64;
use glyd_format::for_each_simd;
use glyd_format::simd::{EMPTY, Kernels, Lane, Portable, Ranks, Simd};
use glyd_format::step::{STEP_COLUMNS, STEP_ROWS, STEP_WEIGHTS, Step, place, plane_index};
use proptest::prelude::*;

/// Random bytes below `end`.
fn lane(random: &mut SplitMix64, end: u64) -> Lane {
    EMPTY.map(|_| random.below(end).to_le_bytes()[0])
}

fn weights(random: &mut SplitMix64, count: usize) -> Vec<u16> {
    (0..count).map(|_| u16::try_from(random.below(1 << 16)).unwrap()).collect()
}

fn simds() -> impl Iterator<Item = Simd> {
    Simd::NAMES.into_iter().filter_map(|name| Simd::named(name).ok())
}

#[test]
fn gather_takes_each_weight_from_its_place() {
    let mut random = SplitMix64::new(1);
    let stride = 48;
    let rows = weights(&mut random, STEP_ROWS * stride);
    let mut step = Step::default();
    Portable.gather(&rows[16..], stride, &mut step.high, &mut step.low);
    for index in 0..STEP_WEIGHTS {
        let (row, column) = place(index);
        let at = plane_index(index);
        let weight = u16::from_le_bytes([step.low[at], step.high[at]]);
        assert_eq!(weight, rows[16 + row * stride + column]);
    }
}

for_each_simd! {
    fn check_gather_by(random: &mut SplitMix64, stride: usize) -> () = check_gather;
}

fn check_gather<K: Kernels>(kernels: K, random: &mut SplitMix64, stride: usize) {
    // The last row ends with its last step.
    let length = (STEP_ROWS - 1) * stride + 2 * STEP_COLUMNS;
    let rows = weights(random, length);
    let steps = || (Step::default(), Step::default());
    let ((mut a, mut b), (mut c, mut d)) = (steps(), steps());
    kernels.gather(&rows, stride, &mut c.high, &mut c.low);
    Portable.gather(&rows, stride, &mut a.high, &mut a.low);
    assert!((a.high, a.low) == (c.high, c.low), "{kernels:?}: gather");
    Portable.gather(&rows[STEP_COLUMNS..], stride, &mut b.high, &mut b.low);
    kernels.gather_two(&rows, stride, [&mut c.high, &mut d.high], [&mut c.low, &mut d.low]);
    assert!((a.high, a.low) == (c.high, c.low), "{kernels:?}: gather_two, first");
    assert!((b.high, b.low) == (d.high, d.low), "{kernels:?}: gather_two, second");

    // What is beside the steps is left alone.
    let beside = weights(random, length);
    let width = |row: usize, width: usize| row * stride..row * stride + width;
    let (mut one, mut two) = (beside.clone(), beside.clone());
    kernels.scatter(&a.high, &a.low, &mut one, stride);
    kernels.scatter_two([&a.high, &b.high], [&a.low, &b.low], &mut two, stride);
    let (mut wanted_one, mut wanted_two) = (beside.clone(), beside);
    for row in 0..STEP_ROWS {
        let range = width(row, STEP_COLUMNS);
        wanted_one[range.clone()].copy_from_slice(&rows[range]);
        let range = width(row, 2 * STEP_COLUMNS);
        wanted_two[range.clone()].copy_from_slice(&rows[range]);
    }
    assert!(one == wanted_one, "{kernels:?}: scatter");
    assert!(two == wanted_two, "{kernels:?}: scatter_two");
}

for_each_simd! {
    fn check_digits_by(random: &mut SplitMix64, count: usize) -> () = check_digits;
}

fn check_digits<K: Kernels>(kernels: K, random: &mut SplitMix64, count: usize) {
    let (digits, passed) = (lane(random, 4), lane(random, 256));
    let own = [random.below(256), random.below(256), random.below(256)].map(|byte| byte.to_le_bytes()[0]);
    let (mut found, mut wanted) = (EMPTY, EMPTY);
    kernels.expand(&digits, count, own, &passed, &mut found);
    Portable.expand(&digits, count, own, &passed, &mut wanted);
    assert_eq!(found[..count], wanted[..count], "{kernels:?}: expand {count}");

    let (ranks, bytes) = (lane(random, 10), lane(random, 256));
    for from in [0, 3, 6, 9, 10] {
        let (mut a, mut b, mut c, mut d) = (EMPTY, EMPTY, EMPTY, EMPTY);
        let taken = kernels.compress([&ranks, &bytes], count, from, [&mut a, &mut b]);
        let wanted = Portable.compress([&ranks, &bytes], count, from, [&mut c, &mut d]);
        assert_eq!(taken, wanted, "{kernels:?}: compress {count} from {from}");
        assert_eq!(
            (&a[..taken], &b[..taken]),
            (&c[..taken], &d[..taken]),
            "{kernels:?}: {count} from {from}"
        );
    }

    let mut exponents: Vec<u8> = (0..=u8::MAX).collect();
    let nine = [(); 9]
        .map(|()| exponents.swap_remove(usize::try_from(random.below(exponents.len() as u64)).unwrap()));
    let plane = *lane(random, 256).first_chunk().unwrap();
    let (mut found, mut wanted) = ([0; STEP_WEIGHTS], [0; STEP_WEIGHTS]);
    kernels.rank(&Ranks::new(&nine), &plane, &mut found);
    Portable.rank(&Ranks::new(&nine), &plane, &mut wanted);
    assert_eq!(found, wanted, "{kernels:?}: rank");
    let place = |exponent| nine.iter().position(|own| own == exponent).unwrap_or(9);
    assert!(plane.iter().map(place).eq(wanted.map(usize::from)), "ranks are places");
}

proptest! {
    #[test]
    fn steps_are_gathered_and_scattered_alike(seed: u64, stride in 2 * STEP_COLUMNS..200) {
        for simd in simds() {
            check_gather_by(simd, &mut SplitMix64::new(seed), stride);
        }
    }

    #[test]
    fn digits_are_taken_and_put_alike(seed: u64, count in 0..=STEP_WEIGHTS) {
        for simd in simds() {
            check_digits_by(simd, &mut SplitMix64::new(seed), count);
        }
    }
}
