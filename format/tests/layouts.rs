//! Both layouts decoded: held to the reference codec, and to say so where their bytes are damaged.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "tests' code: it panics when it fails"
)]

use std::ops::Range;

use glyd_fixtures::reference::{encode_mma, encode_mma12};
use glyd_fixtures::weights;
use glyd_format::layout::{Coding, Flaw, Layout, Run, mma, mma12};
use glyd_format::simd::Simd;
use glyd_format::step::{Grid, STEP_COLUMNS, STEP_ROWS};
use proptest::prelude::*;

/// A matrix and its buffers, as the reference packs it.
struct Packed {
    columns: usize,
    weights: Vec<u16>,
    coding: Coding,
    data: Vec<u8>,
    list: Vec<u8>,
    bases: Vec<i32>,
}

fn bytes(integers: &[i32]) -> Vec<u8> {
    integers.iter().flat_map(|integer| integer.to_le_bytes()).collect()
}

fn pack(layout: Layout, rows: usize, columns: usize, weights: &[u16]) -> Packed {
    let (coding, data, list, bases) = match layout {
        Layout::Mma => {
            let packed = encode_mma(rows, columns, weights);
            let tiers = mma::Tiers::from_words(packed.tiers).unwrap();
            (Coding::Mma(tiers), packed.data, packed.blocks, packed.block_base)
        }
        Layout::Mma12 => {
            let packed = encode_mma12(rows, columns, weights);
            let base = mma12::Base::new(packed.hb.into()).unwrap();
            (Coding::Mma12(base), packed.data, bytes(&packed.exc), packed.exc_base)
        }
    };
    Packed { columns, weights: weights.to_vec(), coding, data, list, bases }
}

impl Packed {
    /// The bytes of these steps.
    fn run(&self, steps: Range<usize>) -> Run<'_> {
        let layout = self.coding.layout();
        let (unit, bytes) = (layout.list_unit_bytes(), layout.step_bytes());
        let at = |step: usize| unit * self.bases[step] as usize;
        Run {
            data: &self.data[bytes * steps.start..bytes * steps.end],
            list: &self.list[at(steps.start)..at(steps.end)],
            bases: &self.bases[steps.start..=steps.end],
        }
    }

    /// Decodes these steps of a strip into rows `stride` apart, and holds every weight to the matrix's
    /// and every place beside them to be left alone.
    fn check(&self, strip: usize, steps: Range<usize>, stride: usize) {
        const BESIDE: u16 = 0xBEEF;
        let strip_steps = self.columns / STEP_COLUMNS;
        let run = self.run(strip * strip_steps + steps.start..strip * strip_steps + steps.end);
        let width = STEP_COLUMNS * steps.len();
        for simd in Simd::NAMES.into_iter().filter_map(|name| Simd::named(name).ok()) {
            let mut rows = vec![BESIDE; stride * (STEP_ROWS - 1) + width];
            self.coding.decode_by(simd, &run, &mut rows, stride).unwrap();
            for row in 0..STEP_ROWS {
                let start = (STEP_ROWS * strip + row) * self.columns + STEP_COLUMNS * steps.start;
                let (here, beside) = rows[stride * row..].split_at(width);
                let weights = &self.weights[start..start + width];
                assert!(here == weights, "{simd:?}: row {row} of strip {strip}, {steps:?}");
                let beside = &beside[..beside.len().min(stride - width)];
                assert!(beside.iter().all(|&weight| weight == BESIDE), "{simd:?}: beside row {row}");
            }
        }
    }
}

fn layout() -> impl Strategy<Value = Layout> {
    prop::sample::select(&Layout::ALL[..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 8, ..ProptestConfig::default() })]

    #[test]
    fn whole_strips_are_the_matrix(layout in layout(), strips in 1_usize..4, steps in 1_usize..6, seed: u64) {
        let (rows, columns) = (STEP_ROWS * strips, STEP_COLUMNS * steps);
        for (_, weights) in weights::of_every_kind(rows * columns, seed) {
            let packed = pack(layout, rows, columns, &weights);
            for strip in 0..strips {
                packed.check(strip, 0..steps, columns);
            }
        }
    }

    #[test]
    fn any_run_of_steps_is_its_part_of_the_matrix(
        layout in layout(),
        strip in 0_usize..2,
        (start, end) in (0_usize..7, 0_usize..7),
        extra in 0_usize..40,
        seed: u64,
    ) {
        let (rows, columns) = (STEP_ROWS * 2, STEP_COLUMNS * 7);
        let steps = start.min(end)..start.max(end) + 1;
        for (_, weights) in weights::of_every_kind(rows * columns, seed) {
            let packed = pack(layout, rows, columns, &weights);
            packed.check(strip, steps.clone(), STEP_COLUMNS * steps.len() + extra);
        }
    }

    #[test]
    fn buffers_have_the_lengths_that_the_layout_says(layout in layout(), strips in 1_u64..3, steps in 1_u64..5, seed: u64) {
        let grid = Grid::new(64 * strips, 16 * steps).unwrap();
        for (_, weights) in weights::of_every_kind(grid.weights() as usize, seed) {
            let packed = pack(layout, grid.rows() as usize, grid.columns() as usize, &weights);
            prop_assert_eq!(packed.data.len() as u64, layout.data_bytes(grid));
            prop_assert_eq!(packed.bases.len() as u64, layout.base_entries(grid));
            prop_assert_eq!(packed.bases[0] as u64, layout.list_head_units());
            let units = layout.list_units(*packed.bases.last().unwrap() as u64);
            prop_assert_eq!(packed.list.len() as u64, units * layout.list_unit_bytes() as u64);
            prop_assert!(units <= layout.list_units_max());
            for pair in packed.bases.windows(2) {
                prop_assert!((pair[1] - pair[0]) as usize <= layout.step_list_units());
            }
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_flawed(
        layout in layout(),
        seed: u64,
        data in prop::collection::vec(any::<u8>(), 1536 * 2),
        list in prop::collection::vec(any::<u8>(), 0..4000),
        bases in prop::collection::vec(prop_oneof![any::<i32>(), 0_i32..3000], 0..4),
    ) {
        let coding = pack(layout, 64, 16, &weights::uniform_bits(1024, seed)).coding;
        let mut rows = [0; 64 * 48];
        let _ = coding.decode(&Run { data: &data, list: &list, bases: &bases }, &mut rows, 48);
        // Bases that cut the list in two, whatever its bytes are.
        let end = (list.len() / layout.list_unit_bytes()) as i32;
        let bases = [0, end / 2, end];
        let _ = coding.decode(&Run { data: &data, list: &list, bases: &bases }, &mut rows, 48);
    }
}

/// A matrix of one step whose list has all there is: every digit, exponents of rank 9, exceptions, and
/// digits that end within a byte and a word.
fn full_step(layout: Layout) -> Packed {
    let mut weights = weights::halving_exponents(1024, 3);
    weights.iter_mut().step_by(40).for_each(|weight| *weight &= 0x807F);
    let packed = pack(layout, 64, 16, &weights);
    assert!(packed.run(0..1).list.len() > 40);
    packed
}

fn decode(packed: &Packed, data: &[u8], list: &[u8], bases: &[i32]) -> Result<Vec<u16>, Flaw> {
    let mut rows = vec![0; 1024];
    packed.coding.decode(&Run { data, list, bases }, &mut rows, 16).map(|()| rows)
}

/// Flips every bit of `bytes` in turn; `decoded` must be a flaw, or other weights.
#[track_caller]
fn flip_every_bit(packed: &Packed, bytes: &[u8], decoded: impl Fn(&[u8]) -> Result<Vec<u16>, Flaw>) {
    assert_eq!(decoded(bytes).unwrap(), packed.weights);
    let mut flipped = bytes.to_vec();
    for bit in 0..8 * bytes.len() {
        flipped[bit / 8] ^= 1 << (bit % 8);
        let unnoticed = decoded(&flipped).is_ok_and(|weights| weights == packed.weights);
        assert!(!unnoticed, "bit {} of byte {}", bit % 8, bit / 8);
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn no_bit_of_a_step_is_without_meaning() {
    for layout in Layout::ALL {
        for (_, weights) in weights::of_every_kind(1024, 9) {
            let packed = pack(layout, 64, 16, &weights);
            let Run { data, list, bases } = packed.run(0..1);
            flip_every_bit(&packed, data, |data| decode(&packed, data, list, bases));
            flip_every_bit(&packed, list, |list| decode(&packed, data, list, bases));
        }
    }
}

#[test]
fn no_bit_of_the_bases_is_without_meaning() {
    for layout in Layout::ALL {
        let packed = full_step(layout);
        let run = packed.run(0..1);
        let first = run.bases[0];
        flip_every_bit(&packed, &bytes(run.bases), |bases| {
            let bases: Vec<i32> = bases
                .chunks_exact(4)
                .map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]]))
                .collect();
            // The list that these bases say is theirs, of the pack's whole list.
            let unit = layout.list_unit_bytes();
            let start = usize::try_from(bases[0]).ok().and_then(|base| packed.list.get(unit * base..));
            let moved =
                Flaw { step: 0, form_only: false, expected: first.to_string(), found: bases[0].to_string() };
            decode(&packed, run.data, start.ok_or(moved)?, &bases)
        });
    }
}

#[test]
fn every_truncation_is_a_flaw() {
    for layout in Layout::ALL {
        for (kind, weights) in weights::of_every_kind(1024, 4) {
            let packed = pack(layout, 64, 16, &weights);
            let Run { data, list, bases } = packed.run(0..1);
            for bytes in 0..data.len() {
                let flaw = decode(&packed, &data[..bytes], list, bases).unwrap_err();
                assert!(!flaw.form_only, "{kind}, {bytes}");
            }
            for bytes in 0..list.len() {
                // Under the bases as they are, and under bases that say that the list ends there.
                assert!(decode(&packed, data, &list[..bytes], bases).is_err(), "{kind}, {bytes}");
                let unit = layout.list_unit_bytes();
                let bases = [bases[0], bases[0] + (bytes / unit) as i32];
                let decoded = decode(&packed, data, &list[..bytes], &bases);
                assert!(decoded.is_err() || decoded.unwrap() != weights, "{kind}, {bytes}");
            }
        }
    }
}

#[test]
fn a_flaw_names_its_step_and_what_it_needs() {
    let weights = weights::halving_exponents(3 * 1024, 5);
    let packed = pack(Layout::Mma, 64, 48, &weights);
    let mut run = packed.run(0..3);
    let mut bases = run.bases.to_vec();
    bases[2] -= 4;
    run.bases = &bases;
    let mut rows = vec![0; weights.len()];
    let flaw = packed.coding.decode(&run, &mut rows, 48).unwrap_err();
    assert_eq!((flaw.step, flaw.form_only), (1, false));
    let bytes = bases[2] - bases[1];
    assert_eq!(flaw.found, format!("{bytes} bytes"));
    assert!(flaw.expected.starts_with("a block of the "), "{}", flaw.expected);
}

#[test]
fn bases_that_fall_are_a_flaw() {
    for layout in Layout::ALL {
        let packed = full_step(layout);
        let Run { data, list, .. } = packed.run(0..1);
        for bases in [[5, 4], [i32::MAX, i32::MIN], [0, -1], [i32::MIN, i32::MAX]] {
            let flaw = decode(&packed, data, list, &bases).unwrap_err();
            assert_eq!(flaw.expected, "data and a rising list of the run's length");
        }
    }
}

#[test]
fn a_run_of_no_steps_is_nothing() {
    for layout in Layout::ALL {
        let packed = full_step(layout);
        for bases in [&[][..], &[7]] {
            packed.coding.decode(&Run { data: &[], list: &[], bases }, &mut [], 0).unwrap();
        }
    }
}

/// What is wrong with the exceptions `change` makes of a step's.
fn exceptions_flaw(change: impl Fn(&mut Vec<u32>)) -> Flaw {
    let packed = full_step(Layout::Mma12);
    let Run { data, list, .. } = packed.run(0..1);
    let mut entries: Vec<u32> =
        list.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
    change(&mut entries);
    let list: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    decode(&packed, data, &list, &[0, entries.len() as i32]).unwrap_err()
}

#[test]
fn exceptions_keep_the_form_in_which_they_are_written() {
    type Change = fn(&mut Vec<u32>);
    let cases: [(Change, &str); 6] = [
        (|entries| entries[1] |= 1 << 10, "zero bits beside an exception's index and byte"),
        (|entries| entries[1] |= 1 << 31, "zero bits beside an exception's index and byte"),
        (|entries| entries.swap(0, 1), "exceptions in the order of their weights"),
        (|entries| entries[1] = entries[0], "exceptions in the order of their weights"),
        (|entries| entries[0] |= 1 << 23, "an exception outside the window"),
        (|entries| entries[0] &= 0x3FF, "an exception outside the window"),
    ];
    for (change, expected) in cases {
        let flaw = exceptions_flaw(change);
        assert_eq!((flaw.expected.as_str(), flaw.form_only), (expected, true));
    }
    // A weight whose code has an offset of its own.
    let packed = full_step(Layout::Mma12);
    let Coding::Mma12(base) = packed.coding else { panic!() };
    let coded = (0..1024).find(|&index| {
        let (row, column) = glyd_format::step::place(index);
        let offset = base.offset(glyd_format::step::exponent(packed.weights[16 * row + column]) >> 1);
        offset.is_some_and(|offset| offset > 0)
    });
    let entry = base.exception(coded.unwrap() as u16, 0);
    let flaw = decode(&packed, &packed.data, &entry.to_le_bytes(), &[0, 1]).unwrap_err();
    assert_eq!(flaw.expected, "offset 0 in an exception's code");
}

#[test]
fn unused_digit_bits_are_zero() {
    let packed = full_step(Layout::Mma);
    let Run { data, list, bases } = packed.run(0..1);
    let flaws: Vec<String> = (0..8 * list.len())
        .filter_map(|bit| {
            let mut list = list.to_vec();
            list[bit / 8] ^= 1 << (bit % 8);
            decode(&packed, data, &list, bases).err().filter(|flaw| flaw.form_only)
        })
        .map(|flaw| flaw.expected)
        .collect();
    for tier in ["tier-2", "tier-3"] {
        let expected = format!("zero bits after the last {tier} digit");
        assert!(flaws.contains(&expected), "{tier}: the step leaves no bit unused; give it another seed");
    }
}
