//! Functions compiled once for each instruction set that a processor may have; which of them is called
//! is chosen when the program runs.
//!
//! The bodies are plain loops over arrays of a step's size, which the compiler turns into vector code of
//! whatever width it is allowed: one body serves all, and the portable one is the others' oracle. On
//! aarch64 the portable code is NEON code, since every such processor has it.

pub mod lanes;

use std::sync::OnceLock;

/// The environment variable that asks for one of [`Simd::NAMES`].
pub const VARIABLE: &str = "GLYD_SIMD";

/// Proof that the processor has AVX2 and what comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2(());

/// Proof that the processor has AVX-512 with VBMI2, and AVX2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx512(());

/// The instruction set that vector code is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Simd {
    /// What the program was compiled for.
    Portable,
    /// AVX2.
    Avx2(Avx2),
    /// AVX-512.
    Avx512(Avx512),
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
            "neon" if cfg!(target_arch = "aarch64") => Ok(Simd::Portable),
            "neon" => Err(lacking()),
            _ => Err(format!("expected one of {}, found `{name}`", Simd::NAMES.join(", "))),
        }
    }

    /// The widest that the processor has.
    #[must_use]
    pub fn best() -> Simd {
        let avx2 = || Avx2::new().map(Simd::Avx2);
        Avx512::new().map(Simd::Avx512).or_else(avx2).unwrap_or(Simd::Portable)
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

/// Defines a function that calls `$body`, an `#[inline(always)]` function, compiled for the instruction
/// set that its argument `simd` is the proof of; the body's first argument is that proof.
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
            fn avx2(simd: $crate::simd::Simd, $($arg: $type),+) -> $result {
                $body(simd, $($arg),+)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2")]
            fn avx512(simd: $crate::simd::Simd, $($arg: $type),+) -> $result {
                $body(simd, $($arg),+)
            }

            match simd {
                // SAFETY: an `Avx2` is made where the processor has these features, and nowhere else.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Simd::Avx2(_) => unsafe { avx2(simd, $($arg),+) },
                // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Simd::Avx512(_) => unsafe { avx512(simd, $($arg),+) },
                _ => $body(simd, $($arg),+),
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
