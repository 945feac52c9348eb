//! What is counted of a tensor when it is first read: how often each exponent occurs, and how long each
//! strip's part of the list will be.

use glyd_format::layout::mma;
use glyd_format::simd::{Kernels, Simd};
use glyd_format::step::exponent;
use glyd_format::{Coding, for_each_simd};

use crate::histogram::Histogram;

/// A tensor as it is held: lines of equal length, and the steps that they cross. The lines of a group
/// make whole steps; a cell is a line's part of one step.
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    /// Weights of a line.
    pub line_weights: u64,
    /// Weights of a cell.
    pub cell_weights: usize,
    /// Lines of a group.
    pub group_lines: u64,
}

/// Weights that are counted at a time: their exponents stay in the nearest cache.
const BLOCK_WEIGHTS: usize = 4096;
/// Weights of the longest line that strips are counted of: it bounds the counts' memory.
const LINE_WEIGHTS_MAX: u64 = 1 << 20;

/// Counts of a tensor whose weights come in the order in which it is held.
#[derive(Debug)]
pub struct Counts {
    histogram: Histogram,
    /// `None` where lines are too long to count by.
    steps: Option<StepCounts>,
}

impl Counts {
    /// Of a tensor of these lines; lists are counted as this coding makes them.
    #[must_use]
    pub fn new(lines: Lines, coding: Coding) -> Self {
        let counted = lines.line_weights <= LINE_WEIGHTS_MAX;
        Counts { histogram: Histogram::default(), steps: counted.then(|| StepCounts::new(lines, coding)) }
    }

    /// Bytes of the counts of a line's places.
    pub(crate) fn held_bytes(&self) -> u64 {
        let reached = self.steps.iter().flat_map(|steps| &steps.reached);
        reached.map(|counts| counts.len() as u64).sum()
    }

    /// How often each exponent occurred.
    #[must_use]
    pub(crate) fn into_histogram(self) -> Histogram {
        self.histogram
    }

    /// Counts the next weights; `group` takes the units of the list of each step of a group of lines that
    /// ends. Where lines are too long to count by, there are none.
    pub fn add(&mut self, weights: &[u16], group: impl FnMut(&[u64])) {
        self.add_by(Simd::chosen(), weights, group);
    }

    /// As [`Counts::add`], by this instruction set.
    pub fn add_by(&mut self, simd: Simd, weights: &[u16], mut group: impl FnMut(&[u64])) {
        let mut exponents = [0; BLOCK_WEIGHTS];
        for weights in weights.chunks(BLOCK_WEIGHTS) {
            let exponents = &mut exponents[..weights.len()];
            exponents_by(simd, weights, exponents);
            self.histogram.add_exponents_by(simd, exponents);
            if let Some(steps) = &mut self.steps {
                steps.add(simd, exponents, &mut group);
            }
        }
    }
}

for_each_simd! {
    fn exponents_by(weights: &[u16], exponents: &mut [u8]) -> () = take_exponents;
}

#[inline(always)]
fn take_exponents<K: Kernels>(_: K, weights: &[u16], exponents: &mut [u8]) {
    exponents.iter_mut().zip(weights).for_each(|(to, &weight)| *to = exponent(weight));
}

/// How many weights of each place in a line reach the list's tiers, over the lines of a group.
#[derive(Debug)]
struct StepCounts {
    lines: Lines,
    coding: Coding,
    /// For tiers 2 and 3 and the raw exponents, or for exceptions: a count a place, of 64 lines at most.
    reached: [Vec<u8>; 3],
    place: usize,
    line: u64,
    units: Vec<u64>,
}

impl StepCounts {
    fn new(lines: Lines, coding: Coding) -> Self {
        let places = usize::try_from(lines.line_weights).unwrap_or(usize::MAX);
        let tiers = match coding {
            Coding::Mma(_) => [places; 3],
            Coding::Mma12(_) => [places, 0, 0],
        };
        let reached = tiers.map(|places| vec![0; places]);
        StepCounts { lines, coding, reached, place: 0, line: 0, units: Vec::new() }
    }

    fn add(&mut self, simd: Simd, mut exponents: &[u8], group: &mut impl FnMut(&[u64])) {
        while !exponents.is_empty() {
            let places = self.reached[0].len();
            let here;
            (here, exponents) = exponents.split_at(exponents.len().min(places - self.place));
            let range = self.place..self.place + here.len();
            let [first, second, third] = &mut self.reached;
            match &self.coding {
                Coding::Mma(tiers) => {
                    let reached = [&mut first[range.clone()], &mut second[range.clone()], &mut third[range]];
                    reach_tiers_by(simd, tiers, here, reached);
                }
                Coding::Mma12(base) => reach_list_by(simd, 2 * base.get(), here, &mut first[range]),
            }
            self.place += here.len();
            if self.place == places {
                self.place = 0;
                self.line += 1;
            }
            if self.line == self.lines.group_lines {
                self.line = 0;
                self.end_group();
                group(&self.units);
            }
        }
    }

    /// The units of each step of the group.
    fn end_group(&mut self) {
        let cell = self.lines.cell_weights;
        let sum = |places: &[u8]| places.iter().map(|&count| usize::from(count)).sum::<usize>();
        self.units.clear();
        let [first, second, third] = &self.reached;
        match &self.coding {
            Coding::Mma(_) => {
                let steps = first.chunks(cell).zip(second.chunks(cell)).zip(third.chunks(cell));
                let bytes = steps.map(|((t1, t2), t3)| mma::block_bytes(sum(t1), sum(t2), sum(t3)) as u64);
                self.units.extend(bytes);
            }
            Coding::Mma12(_) => self.units.extend(first.chunks(cell).map(|step| sum(step) as u64)),
        }
        self.reached.iter_mut().for_each(|reached| reached.fill(0));
    }
}

for_each_simd! {
    fn reach_tiers_by(tiers: &mma::Tiers, exponents: &[u8], reached: [&mut [u8]; 3]) -> () = reach_tiers;
}

/// Counts, at each place, a weight that reaches tier 2, tier 3, the raw exponents.
#[inline(always)]
fn reach_tiers<K: Kernels>(_: K, tiers: &mma::Tiers, exponents: &[u8], reached: [&mut [u8]; 3]) {
    let [a, b, c, d, e, f, g, h, i] = *tiers.exponents();
    let [first, second, third] = reached;
    let reached = first.iter_mut().zip(second).zip(third);
    for (((first, second), third), &exponent) in reached.zip(exponents) {
        let is = |own: u8| u8::from(exponent == own);
        let past1 = 1 ^ (is(a) | is(b) | is(c));
        let past2 = past1 ^ (is(d) | is(e) | is(f));
        let past3 = past2 ^ (is(g) | is(h) | is(i));
        *first += past1;
        *second += past2;
        *third += past3;
    }
}

for_each_simd! {
    fn reach_list_by(window: u8, exponents: &[u8], reached: &mut [u8]) -> () = reach_list;
}

/// Counts, at each place, a weight whose exponent is outside the window that begins with this one.
#[inline(always)]
fn reach_list<K: Kernels>(_: K, window: u8, exponents: &[u8], reached: &mut [u8]) {
    const WINDOW_EXPONENTS: u8 = 2 * glyd_format::layout::mma12::WINDOW;
    for (reached, &exponent) in reached.iter_mut().zip(exponents) {
        *reached += u8::from(exponent.wrapping_sub(window) >= WINDOW_EXPONENTS);
    }
}
