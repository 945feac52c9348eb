//! Functions compiled once for each instruction set that a processor may have; which of them is called
//! is chosen when the program runs.
//!
//! Most of a body is plain loops over a step's bytes, which the compiler turns into vector code of
//! whatever width it is allowed. What it finds none for are the [`Kernels`]: an instruction set is a type
//! whose value proves that the processor has it, and that has kernels of its own. The portable ones are
//! the others' oracle.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tables;

use std::fmt::Debug;
use std::sync::OnceLock;

use crate::step::{Plane, STEP_COLUMNS, STEP_WEIGHTS};

/// The environment variable that asks for one of [`Simd::NAMES`].
pub const VARIABLE: &str = "GLYD_SIMD";

/// Proof that the processor has AVX2 and what comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2(());

/// Proof that the processor has AVX-512 with VBMI2, and AVX2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx512(());

/// Proof that the processor has NEON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neon(());

/// What every processor has that the program was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portable;

/// The instruction set that vector code is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Simd {
    /// None: plain loops.
    Portable,
    /// AVX2.
    Avx2(Avx2),
    /// AVX-512.
    Avx512(Avx512),
    /// NEON.
    Neon(Neon),
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The proof, where the processor has all of it.
    #[must_use]
    pub fn new() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        has.then_some(Avx2(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// The proof, where the processor has all of it.
    #[must_use]
    pub fn new() -> Option<Self> {
        let has = Avx2::new().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vbmi2");
        has.then_some(Avx512(()))
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Avx2 {
    /// None: this is no such processor.
    #[must_use]
    pub fn new() -> Option<Self> {
        None
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Avx512 {
    /// None: this is no such processor.
    #[must_use]
    pub fn new() -> Option<Self> {
        None
    }
}

#[cfg(target_arch = "aarch64")]
impl Neon {
    /// The proof: every such processor has it.
    #[must_use]
    pub fn new() -> Option<Self> {
        Some(Neon(()))
    }
}

#[cfg(not(target_arch = "aarch64"))]
impl Neon {
    /// None: this is no such processor.
    #[must_use]
    pub fn new() -> Option<Self> {
        None
    }
}

impl Simd {
    /// What may be asked for by name.
    pub const NAMES: [&str; 4] = ["portable", "avx2", "avx512", "neon"];

    /// The instruction set of this name, where the processor has it.
    ///
    /// # Errors
    /// Says which names there are, or that the processor lacks it.
    pub fn named(name: &str) -> Result<Simd, String> {
        let lacking = || format!("the processor lacks `{name}`");
        match name {
            "portable" => Ok(Simd::Portable),
            "avx2" => Avx2::new().map(Simd::Avx2).ok_or_else(lacking),
            "avx512" => Avx512::new().map(Simd::Avx512).ok_or_else(lacking),
            "neon" => Neon::new().map(Simd::Neon).ok_or_else(lacking),
            _ => Err(format!("expected one of {}, found `{name}`", Simd::NAMES.join(", "))),
        }
    }

    /// The widest that the processor has.
    #[must_use]
    pub fn best() -> Simd {
        let avx2 = || Avx2::new().map(Simd::Avx2);
        let neon = || Neon::new().map(Simd::Neon);
        Avx512::new().map(Simd::Avx512).or_else(avx2).or_else(neon).unwrap_or(Simd::Portable)
    }

    /// What `GLYD_SIMD` asks for, or the best.
    ///
    /// # Errors
    /// Where it asks for what is not there.
    pub fn asked() -> Result<Simd, String> {
        match std::env::var(VARIABLE) {
            Ok(name) => Simd::named(&name).map_err(|problem| format!("{VARIABLE}: {problem}")),
            Err(_) => Ok(Simd::best()),
        }
    }

    /// The instruction set that is used: looked up once; the best where `GLYD_SIMD` asks for what is
    /// not there.
    #[must_use]
    pub fn chosen() -> Simd {
        static CHOSEN: OnceLock<Simd> = OnceLock::new();
        *CHOSEN.get_or_init(|| Simd::asked().unwrap_or_else(|_| Simd::best()))
    }
}

/// A step's bytes, a weight each, with room for a whole vector to be read or written past the last.
pub type Lane = [u8; STEP_WEIGHTS + 64];

/// An empty lane.
pub const EMPTY: Lane = [0; STEP_WEIGHTS + 64];

/// Exponents that are counted together.
pub const WINDOW: usize = 16;
/// Bytes that are counted together.
pub const VECTOR: usize = 64;
/// Vectors of which each byte's count is a byte.
pub const WINDOW_VECTORS: usize = 255;

/// The rank of each exponent: its place among nine that differ, or 9.
#[derive(Debug, Clone)]
pub struct Ranks {
    exponents: [u8; NO_RANK as usize],
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "AVX-512 alone looks up in it"))]
    table: [u8; 256],
}

/// The rank of an exponent that is none of the nine.
const NO_RANK: u8 = 9;

impl Ranks {
    /// The ranks of these exponents, which differ.
    #[must_use]
    pub fn new(exponents: &[u8; NO_RANK as usize]) -> Self {
        let mut table = [NO_RANK; 256];
        for (rank, &exponent) in (0..).zip(exponents) {
            table[usize::from(exponent)] = rank;
        }
        Ranks { exponents: *exponents, table }
    }
}

/// Rows that are a lane's, in one half.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const HALF_ROWS: usize = 4;

/// The row, of the step's, that is the `own`th of a plane's block: the half of four lanes.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const fn first_row(block: usize, own: usize) -> usize {
    let (group, half) = (block % 8, block / 8);
    8 * (HALF_ROWS * half + own) + group
}

/// What the layouts do to a step that a compiler finds no vector code for.
pub trait Kernels: Copy + Debug {
    /// Takes a step's weights from rows that stand `stride` apart.
    ///
    /// # Panics
    /// Where `rows` does not reach from the step's first weight to its last.
    #[inline(always)]
    fn gather(self, rows: &[u16], stride: usize, high: &mut Plane, low: &mut Plane) {
        portable::gather(rows, stride, high, low);
    }

    /// Takes two neighbouring steps' weights.
    ///
    /// # Panics
    /// As [`Kernels::gather`].
    #[inline(always)]
    fn gather_two(self, rows: &[u16], stride: usize, high: [&mut Plane; 2], low: [&mut Plane; 2]) {
        for (step, (high, low)) in high.into_iter().zip(low).enumerate() {
            self.gather(&rows[step * STEP_COLUMNS..], stride, high, low);
        }
    }

    /// Puts a step's weights where they stand in rows that are `stride` apart.
    ///
    /// # Panics
    /// As [`Kernels::gather`].
    #[inline(always)]
    fn scatter(self, high: &Plane, low: &Plane, rows: &mut [u16], stride: usize) {
        portable::scatter(high, low, rows, stride);
    }

    /// Puts two neighbouring steps' weights.
    ///
    /// # Panics
    /// As [`Kernels::gather`].
    #[inline(always)]
    fn scatter_two(self, high: [&Plane; 2], low: [&Plane; 2], rows: &mut [u16], stride: usize) {
        for (step, (high, low)) in high.into_iter().zip(low).enumerate() {
            self.scatter(high, low, &mut rows[step * STEP_COLUMNS..], stride);
        }
    }

    /// For each of the first `count` digits, the byte of `own` that it says; and for digit 3 the next of
    /// `passed`. Bytes past `count` are of no meaning.
    #[inline(always)]
    fn expand(self, digits: &Lane, count: usize, own: [u8; 3], passed: &Lane, out: &mut Lane) {
        portable::expand(digits, count, own, passed, out);
    }

    /// Of the first `count` bytes of each of two lanes, those whose byte in the first is at least `from`,
    /// in their order; returns how many. Bytes past them are of no meaning.
    #[inline(always)]
    fn compress(self, lanes: [&Lane; 2], count: usize, from: u8, out: [&mut Lane; 2]) -> usize {
        portable::compress(lanes, count, from, out)
    }

    /// How many of the exponents are each of the [`WINDOW`] that begin with `first`.
    ///
    /// # Panics
    /// Where there are more than [`WINDOW_VECTORS`], or the window ends past the last exponent.
    #[inline(always)]
    fn count_window(self, exponents: &[[u8; VECTOR]], first: u8) -> [u64; WINDOW] {
        portable::count_window(exponents, first)
    }

    /// The rank of each exponent of a plane.
    #[inline(always)]
    fn rank(self, ranks: &Ranks, exponents: &Plane, out: &mut Plane) {
        portable::rank(ranks, exponents, out);
    }
}

impl Kernels for Portable {}

/// Asks for the cache lines of what the steps after the next take from a row: rows far apart are no
/// pattern that the processor foresees.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(unsafe_code, reason = "a prefetch takes a pointer")]
fn prefetch(rows: &[u16], at: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    /// Weights ahead: of four cache lines.
    const AHEAD: usize = 128;
    let ahead = rows.as_ptr().wrapping_add(at + AHEAD);
    // SAFETY: a prefetch reads nothing, and faults nowhere.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) }
}

/// Defines a function that calls `$body`, an `#[inline(always)]` function, compiled for the instruction
/// set that its argument `simd` is; the body's first argument is the proof of it, its [`Kernels`].
#[macro_export]
macro_rules! for_each_simd {
    ($(#[$doc:meta])* $visibility:vis fn $name:ident($($arg:ident: $type:ty),+ $(,)?) -> $result:ty = $body:path;) => {
        $(#[$doc])*
        #[cfg_attr(
            target_arch = "x86_64",
            expect(unsafe_code, reason = "a function with a target feature is called where that feature is proved")
        )]
        $visibility fn $name(simd: $crate::simd::Simd, $($arg: $type),+) -> $result {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2(proof: $crate::simd::Avx2, $($arg: $type),+) -> $result {
                $body(proof, $($arg),+)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2")]
            fn avx512(proof: $crate::simd::Avx512, $($arg: $type),+) -> $result {
                $body(proof, $($arg),+)
            }

            match simd {
                // SAFETY: an `Avx2` is made where the processor has these features, and nowhere else.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Simd::Avx2(proof) => unsafe { avx2(proof, $($arg),+) },
                // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Simd::Avx512(proof) => unsafe { avx512(proof, $($arg),+) },
                #[cfg(target_arch = "aarch64")]
                $crate::simd::Simd::Neon(proof) => $body(proof, $($arg),+),
                _ => $body($crate::simd::Portable, $($arg),+),
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_sets_have_names() {
        assert_eq!(Simd::named("portable"), Ok(Simd::Portable));
        assert!(Simd::named("sse").unwrap_err().contains("portable, avx2, avx512, neon"));
        for name in Simd::NAMES {
            let problem = Simd::named(name).err();
            assert!(problem.is_none_or(|problem| problem.contains("the processor lacks")));
        }
    }
}
