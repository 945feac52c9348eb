//! Matrices packed, held to the slow reference codec byte for byte, and decoded again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests' code: it panics when it fails")]

use glyd_fixtures::random::SplitMix64;
use glyd_fixtures::{reference, weights};
use glyd_format::layout::{Run, mma};
use glyd_format::simd::Simd;
use glyd_format::step::{STEP_COLUMNS, STEP_ROWS, STEP_WEIGHTS, exponent};
use glyd_format::{Coding, Layout};
use glyd_packers::count::{Counts, Lines};
use glyd_packers::encode::{Encoded, Encoder};
use glyd_packers::histogram::Histogram;
use glyd_packers::{MatrixBuffers, pack_matrix};
use proptest::prelude::*;

/// Packs a matrix in both layouts, and holds it to the reference and to itself.
fn check(weights: &[u16], columns: usize) {
    for layout in Layout::ALL {
        let packed = pack_matrix(layout, weights, columns);
        check_reference(&packed, weights, columns);
        check_decoded(&packed, weights, columns);
    }
}

fn check_reference(packed: &MatrixBuffers, weights: &[u16], columns: usize) {
    let rows = weights.len() / columns;
    match packed.coding {
        Coding::Mma(tiers) => {
            let wanted = reference::encode_mma(rows, columns, weights);
            assert_eq!(tiers.words(), wanted.tiers);
            assert!(packed.data == wanted.data, "data");
            assert!(packed.list == wanted.blocks, "blocks");
            assert_eq!(packed.base, wanted.block_base);
        }
        Coding::Mma12(base) => {
            let wanted = reference::encode_mma12(rows, columns, weights);
            let exc: Vec<u8> = wanted.exc.iter().flat_map(|entry| entry.to_le_bytes()).collect();
            assert_eq!(base.get(), wanted.hb);
            assert!(packed.data == wanted.data, "data");
            assert!(packed.list == exc, "exc");
            assert_eq!(packed.base, wanted.exc_base);
        }
    }
}

/// Decodes strip by strip.
fn check_decoded(packed: &MatrixBuffers, weights: &[u16], columns: usize) {
    let layout = packed.coding.layout();
    let steps = columns / STEP_COLUMNS;
    let mut decoded = vec![0; STEP_ROWS * columns];
    for (strip, wanted) in weights.chunks_exact(STEP_ROWS * columns).enumerate() {
        let bases = &packed.base[strip * steps..=(strip + 1) * steps];
        let unit = layout.list_unit_bytes();
        let at = |base: i32| usize::try_from(base).unwrap() * unit;
        let run = Run {
            data: &packed.data[strip * steps * layout.step_bytes()..][..steps * layout.step_bytes()],
            list: &packed.list[at(bases[0])..at(bases[steps])],
            bases,
        };
        packed.coding.decode(&run, &mut decoded, columns).unwrap();
        assert!(decoded == wanted, "strip {strip}");
    }
}

/// Holds what each instruction set makes of a strip, and counts of it, to the portable code.
fn check_simds(weights: &[u16], columns: usize) {
    let steps = columns / STEP_COLUMNS;
    let exponents: Vec<u8> = weights.iter().map(|&weight| exponent(weight)).collect();
    let lines =
        Lines { line_weights: columns as u64, cell_weights: STEP_COLUMNS, group_lines: STEP_ROWS as u64 };
    let mut histogram = Histogram::default();
    histogram.add_exponents_by(Simd::Portable, &exponents);
    let mut each = [0_u64; 256];
    exponents.iter().for_each(|&exponent| each[usize::from(exponent)] += 1);
    for layout in Layout::ALL {
        let encoder = Encoder::new(histogram.coding(layout));
        let mut wanted = Encoded::default();
        wanted.begin(layout, steps);
        encoder.encode_by(Simd::Portable, weights, columns, steps, &mut wanted);
        let units: Vec<u64> =
            wanted.bases.windows(2).map(|pair| u64::from(pair[1].abs_diff(pair[0]))).collect();
        for simd in Simd::NAMES.into_iter().filter_map(|name| Simd::named(name).ok()) {
            let mut own = Histogram::default();
            // In pieces, as blocks before it decide how one is counted.
            exponents.chunks(700).for_each(|exponents| own.add_exponents_by(simd, exponents));
            assert!((0..=u8::MAX).all(|at| own.count(at) == each[usize::from(at)]), "{simd:?}: histogram");
            let mut encoded = Encoded::default();
            encoded.begin(layout, steps);
            let half = steps / 2;
            encoder.encode_by(simd, weights, columns, half, &mut encoded);
            encoder.encode_by(simd, &weights[half * STEP_COLUMNS..], columns, steps - half, &mut encoded);
            assert!(encoded == wanted, "{simd:?}, {layout}");
            let mut counted = Vec::new();
            let mut counts = Counts::new(lines, *encoder.coding());
            for weights in weights.chunks(1000) {
                counts.add_by(simd, weights, |steps| counted.extend_from_slice(steps));
            }
            assert_eq!(counted, units, "{simd:?}, {layout}");
        }
    }
}

/// Weights of these exponents, as often as they are there, with signs and mantissas from a seed.
fn of_exponents(exponents: &[u8], seed: u64) -> Vec<u16> {
    let mut random = SplitMix64::new(seed);
    let weight = |&exponent: &u8| {
        let [low, high, ..] = random.word().to_le_bytes();
        u16::from_le_bytes([low, high]) & 0x807F | u16::from(exponent) << 7
    };
    exponents.iter().map(weight).collect()
}

fn shuffled(mut exponents: Vec<u8>, seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    for last in (1..exponents.len()).rev() {
        exponents.swap(last, usize::try_from(random.below(last as u64 + 1)).unwrap());
    }
    exponents
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 8, ..ProptestConfig::default() })]

    #[test]
    fn every_kind_of_weights_packs_as_the_reference_says(
        strips in 1_usize..=4, steps in 1_usize..=17, kind in 0_usize..10, seed: u64,
    ) {
        let columns = STEP_COLUMNS * steps;
        let (_, weights) = weights::of_every_kind(STEP_ROWS * strips * columns, seed).swap_remove(kind);
        check(&weights, columns);
    }

    #[test]
    fn every_instruction_set_packs_alike(steps in 1_usize..=40, kind in 0_usize..10, seed: u64) {
        let columns = STEP_COLUMNS * steps;
        let (_, weights) = weights::of_every_kind(STEP_ROWS * columns, seed).swap_remove(kind);
        check_simds(&weights, columns);
    }

    #[test]
    fn kinds_in_one_matrix_pack_as_the_reference_says(
        strips in 1_usize..=4, steps in 1_usize..=4, seed: u64, cut in 0.0..1.0_f64, kinds: (u8, u8),
    ) {
        let columns = STEP_COLUMNS * steps;
        let count = STEP_ROWS * strips * columns;
        let kinds = [kinds.0, kinds.1].map(|kind| usize::from(kind % 10));
        let mut weights = weights::of_every_kind(count, seed).swap_remove(kinds[0]).1;
        let other = weights::of_every_kind(count, seed ^ 1).swap_remove(kinds[1]).1;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place below `count`")]
        let cut = (cut * count as f64) as usize;
        weights[cut..].copy_from_slice(&other[cut..]);
        check(&weights, columns);
    }

    /// A few exponents, each as often as the draw says: ties in the counts are common.
    #[test]
    fn ties_in_the_counts_go_to_the_smaller_exponent(
        counts in prop::collection::vec((any::<u8>(), 1_usize..6), 1..40), seed: u64,
    ) {
        let mut exponents: Vec<u8> =
            counts.iter().flat_map(|&(exponent, count)| std::iter::repeat_n(exponent, count)).collect();
        let most = counts[0].0;
        exponents.resize(STEP_WEIGHTS, most);
        check(&of_exponents(&shuffled(exponents, seed), seed), STEP_COLUMNS);
    }
}

#[test]
fn every_pattern_packs_and_comes_back() {
    for columns in [16, 256, 1024] {
        check(&weights::all_patterns(1), columns);
    }
}

/// A step of which `counts` weights reach tier 2, tier 3 and the raw exponents, whose exponents stand
/// for ranks: equal counts go to the smaller.
fn step_of(t1: usize, t2: usize, t3: usize) -> Vec<u8> {
    let spread = |first: u8, count: usize| (first..first + 3).cycle().take(count);
    let raw = (10..).take(t3);
    spread(1, STEP_WEIGHTS - t1).chain(spread(4, t1 - t2)).chain(spread(7, t2 - t3)).chain(raw).collect()
}

#[test]
fn tiers_may_end_anywhere_in_a_word_and_a_byte() {
    let mut steps = 0;
    for t3 in 0..=6 {
        for t2 in t3 + 3..=t3 + 7 {
            for t1 in t2 + 9..=t2 + 26 {
                let weights = of_exponents(&shuffled(step_of(t1, t2, t3), t1 as u64), 1);
                check(&weights, STEP_COLUMNS);
                let packed = pack_matrix(Layout::Mma, &weights, STEP_COLUMNS);
                let block = usize::try_from(packed.base[1] - packed.base[0]).unwrap();
                assert_eq!(block, mma::block_bytes(t1, t2, t3), "{t1}, {t2}, {t3}");
                steps += 1;
            }
        }
    }
    assert_eq!(steps, 7 * 5 * 18);
}

#[test]
fn a_step_may_have_no_list_or_the_longest() {
    // The first step's exponents are rare, and the last's all of rank 0: between them all is told.
    for (rare, common) in [(16_u8..=255, 0_u8..9), (0..=200, 240..249)] {
        let first: Vec<u8> = rare.cycle().take(STEP_WEIGHTS).collect();
        let middle: Vec<u8> = common.clone().cycle().take(4 * STEP_WEIGHTS).collect();
        let most = common.clone().next().unwrap();
        let exponents: Vec<u8> = [first, middle, vec![most; 2 * STEP_WEIGHTS]].concat();
        let weights = of_exponents(&exponents, 2);
        check(&weights, STEP_COLUMNS);
        let packed = pack_matrix(Layout::Mma, &weights, STEP_COLUMNS);
        let blocks: Vec<i32> = packed.base.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(usize::try_from(blocks[0]).unwrap(), mma::BLOCK_BYTES_MAX);
        assert_eq!(*blocks.last().unwrap(), 0);
        let packed = pack_matrix(Layout::Mma12, &weights, STEP_COLUMNS);
        assert_eq!((packed.base[0], packed.base[1]), (0, 1024));
        assert_eq!(packed.base[2], packed.base[7]);
    }
}

#[test]
fn the_window_may_be_the_first_and_the_last() {
    for (exponent, hb) in [(0_u8, 0_u8), (15, 0), (16, 1), (239, 112), (240, 113), (254, 120), (255, 120)] {
        let mut exponents = vec![exponent; STEP_WEIGHTS];
        exponents[7] = 255 - exponent;
        let weights = of_exponents(&exponents, 3);
        check(&weights, STEP_COLUMNS);
        match pack_matrix(Layout::Mma12, &weights, STEP_COLUMNS).coding {
            Coding::Mma12(base) => assert_eq!(base.get(), hb, "exponent {exponent}"),
            Coding::Mma(_) => panic!("another layout"),
        }
    }
}

#[test]
#[should_panic(expected = "columns of whole steps")]
fn a_matrix_is_of_whole_steps() {
    let _ = pack_matrix(Layout::Mma, &[0; 64 * 24], 24);
}
