//! How often each exponent occurs in a matrix, and what follows from it: `docs/format.md`,
//! section 4, "Ranks" and "Base".

use glyd_format::Coding;
use glyd_format::Layout;
use glyd_format::layout::{mma, mma12};
use glyd_format::step::exponent;

/// Exponents of a bf16 weight.
const EXPONENTS: usize = 256;

/// Counts of the 256 exponents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram([u64; EXPONENTS]);

impl Default for Histogram {
    fn default() -> Self {
        Histogram([0; EXPONENTS])
    }
}

impl Histogram {
    /// Counts these weights too.
    pub fn add(&mut self, weights: &[u16]) {
        // Equal neighbours are common: four tables keep a count from waiting for the one before it.
        const LANES: usize = 4;
        for weights in weights.chunks(1 << 20) {
            let mut tables = [[0_u32; EXPONENTS]; LANES];
            let (fours, rest) = weights.as_chunks::<LANES>();
            for four in fours {
                for (table, &weight) in tables.iter_mut().zip(four) {
                    table[usize::from(exponent(weight))] += 1;
                }
            }
            for &weight in rest {
                tables[0][usize::from(exponent(weight))] += 1;
            }
            for (at, count) in self.0.iter_mut().enumerate() {
                *count += tables.iter().map(|table| u64::from(table[at])).sum::<u64>();
            }
        }
    }

    /// Counts what `other` counted too.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, other) in self.0.iter_mut().zip(&other.0) {
            *count += other;
        }
    }

    /// How often an exponent occurs.
    #[must_use]
    pub fn count(&self, exponent: u8) -> u64 {
        self.0[usize::from(exponent)]
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
            self.0[exponents].iter().sum()
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
