//! How often each exponent occurs in a matrix, and what follows from it: `docs/format.md`,
//! section 4, "Ranks" and "Base".

use glyd_format::Coding;
use glyd_format::Layout;
use glyd_format::for_each_simd;
use glyd_format::layout::{mma, mma12};
use glyd_format::simd::{Kernels, Simd, VECTOR, WINDOW};
use glyd_format::step::exponent;

/// Exponents of a bf16 weight.
const EXPONENTS: usize = 256;

/// Exponents that are counted by comparison, where all but a few are of one window.
const BLOCK: usize = 4096;

/// Counts of the 256 exponents.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: [u64; EXPONENTS],
    /// The first exponent of the window that held most of what was counted when it was last looked for.
    window: u8,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; EXPONENTS], window: 0 }
    }
}

impl Histogram {
    /// Counts the exponents of these weights too.
    pub fn add(&mut self, weights: &[u16]) {
        let mut exponents = [0; BLOCK];
        for weights in weights.chunks(BLOCK) {
            let exponents = &mut exponents[..weights.len()];
            exponents.iter_mut().zip(weights).for_each(|(to, &weight)| *to = exponent(weight));
            self.add_exponents(exponents);
        }
    }

    /// Counts these exponents too.
    pub fn add_exponents(&mut self, exponents: &[u8]) {
        self.add_exponents_by(Simd::chosen(), exponents);
    }

    /// As [`Histogram::add_exponents`], by this instruction set.
    pub fn add_exponents_by(&mut self, simd: Simd, exponents: &[u8]) {
        for block in exponents.chunks(BLOCK) {
            if !add_window_by(simd, &mut self.counts, block, self.window) {
                self.add_each(block);
                self.window = self.best_window();
            }
        }
    }

    fn best_window(&self) -> u8 {
        let counts = self.counts.windows(WINDOW).map(|window| window.iter().sum::<u64>());
        let best = (0..=u8::MAX).zip(counts).max_by_key(|&(_, count)| count);
        best.map_or(0, |(first, _)| first)
    }

    fn add_each(&mut self, exponents: &[u8]) {
        // Equal neighbours are common: four tables keep a count from waiting for the one before it.
        const TABLES: usize = 4;
        let mut tables = [[0_u16; EXPONENTS]; TABLES];
        let (fours, rest) = exponents.as_chunks::<TABLES>();
        for four in fours {
            for (table, &exponent) in tables.iter_mut().zip(four) {
                table[usize::from(exponent)] += 1;
            }
        }
        for &exponent in rest {
            tables[0][usize::from(exponent)] += 1;
        }
        for (at, count) in self.counts.iter_mut().enumerate() {
            *count += tables.iter().map(|table| u64::from(table[at])).sum::<u64>();
        }
    }

    /// Counts what `other` counted too.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, other) in self.counts.iter_mut().zip(&other.counts) {
            *count += other;
        }
    }

    /// How often an exponent occurs.
    #[must_use]
    pub fn count(&self, exponent: u8) -> u64 {
        self.counts[usize::from(exponent)]
    }

    /// What a matrix with these exponents is coded by.
    #[must_use]
    pub fn coding(&self, layout: Layout) -> Coding {
        match layout {
            Layout::Mma => Coding::Mma(self.tiers()),
            Layout::Mma12 => Coding::Mma12(self.base()),
        }
    }

    /// The nine most frequent exponents, most frequent first, the smaller first of equals.
    fn tiers(&self) -> mma::Tiers {
        let mut exponents: Vec<u8> = (0..=u8::MAX).collect();
        exponents.sort_by_key(|&exponent| (std::cmp::Reverse(self.count(exponent)), exponent));
        let mut first = [0; mma::RANKS];
        first.copy_from_slice(&exponents[..mma::RANKS]);
        mma::Tiers::new(first).expect("the exponents of a list without repetition differ")
    }

    /// The smallest base whose window holds the most weights.
    fn base(&self) -> mma12::Base {
        let window = |base: u8| -> u64 {
            let exponents = 2 * usize::from(base)..2 * usize::from(base + mma12::WINDOW);
            self.counts[exponents].iter().sum()
        };
        let best = (0..=mma12::BASE_MAX).max_by_key(|&base| (window(base), std::cmp::Reverse(base)));
        mma12::Base::new(u64::from(best.unwrap_or(0))).expect("the range ends with the highest base")
    }

    /// Whether the two codings make lists of the same lengths of these weights.
    #[must_use]
    pub fn same_lists(&self, a: &Coding, b: &Coding) -> bool {
        match (a, b) {
            (Coding::Mma(a), Coding::Mma(b)) => {
                let tier = |tiers: &mma::Tiers, exponent: u8| {
                    let rank = tiers.exponents().iter().position(|&ranked| ranked == exponent);
                    rank.map(|rank| rank / mma::TIER_RANKS)
                };
                let occurring = (0..=u8::MAX).filter(|&exponent| self.count(exponent) > 0);
                occurring.into_iter().all(|exponent| tier(a, exponent) == tier(b, exponent))
            }
            _ => a == b,
        }
    }
}

for_each_simd! {
    /// Counts a block whose exponents are of the window that begins with `first`, but for a few. Counts
    /// nothing, and says so, where they are not.
    fn add_window_by(counts: &mut [u64; EXPONENTS], block: &[u8], first: u8) -> bool = add_window;
}

#[inline(always)]
fn add_window<K: Kernels>(kernels: K, counts: &mut [u64; EXPONENTS], block: &[u8], first: u8) -> bool {
    let (vectors, rest) = block.as_chunks::<VECTOR>();
    let inside = kernels.count_window(vectors, first);
    let outside = (VECTOR * vectors.len()) as u64 - inside.iter().sum::<u64>();
    if outside > (block.len() / VECTOR) as u64 {
        return false;
    }
    for (at, count) in inside.into_iter().enumerate() {
        counts[usize::from(first) + at] += count;
    }
    let is_outside = |&exponent: &u8| usize::from(exponent.wrapping_sub(first)) >= WINDOW;
    if outside > 0 {
        for vector in vectors {
            let marks: [u8; VECTOR] = vector.map(|exponent| u8::from(is_outside(&exponent)));
            if marks.iter().fold(0, |any, mark| any | mark) != 0 {
                vector
                    .iter()
                    .filter(|exponent| is_outside(exponent))
                    .for_each(|&exponent| counts[usize::from(exponent)] += 1);
            }
        }
    }
    rest.iter().for_each(|&exponent| counts[usize::from(exponent)] += 1);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(exponents: &[u16]) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.add(&exponents.iter().map(|exponent| exponent << 7 | 0x8000).collect::<Vec<_>>());
        histogram
    }

    #[test]
    fn equal_counts_go_to_the_smaller_exponent() {
        let Coding::Mma(tiers) = of(&[200, 200, 7, 9, 7, 9, 9]).coding(Layout::Mma) else { unreachable!() };
        assert_eq!(tiers.exponents(), &[9, 7, 200, 0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn equal_windows_go_to_the_smaller_base() {
        let base = |exponents: &[u16]| match of(exponents).coding(Layout::Mma12) {
            Coding::Mma12(base) => base.get(),
            Coding::Mma(_) => unreachable!(),
        };
        assert_eq!(base(&[0]), 0);
        assert_eq!(base(&[40]), 13);
        assert_eq!(base(&[255]), 120);
        assert_eq!(base(&[0, 1, 200, 201]), 0);
    }
}
