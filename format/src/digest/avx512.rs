//! The blocks of sixteen streams at once, by AVX-512: a vector holds the same word of every stream.
//!
//! No stream's rounds wait for another's, and a rotation or a function of three words is one instruction
//! for all sixteen. Sixteen blocks take about 900 cycles, 56 a block; by the SHA instructions, a block takes
//! 93 where three streams go together and 127 alone.

#![expect(unsafe_code, reason = "a function with a target feature is called where that feature is proved")]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_ror_epi32, _mm512_set1_epi32, _mm512_set4_epi32, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_shuffle_i32x4, _mm512_srli_epi32, _mm512_ternarylogic_epi32,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::rounds::ROUND_CONSTANTS;
use super::streams::LANES;
use super::{Block, State};
use crate::simd::{Avx512, Simd};

/// What `_mm512_ternarylogic_epi32` is asked for: bit `4a + 2b + c` is the result for bits a, b and c.
const XOR: i32 = 0b_1001_0110;
/// The bit of b where that of a is set, else that of c.
const CHOICE: i32 = 0b_1100_1010;
/// What two of the three bits are.
const MAJORITY: i32 = 0b_1110_1000;

/// Streams as the lanes of vectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes {
    /// What makes it sound to compress them.
    _proof: Avx512,
}

impl Lanes {
    /// Where this is AVX-512.
    pub(super) fn new(simd: Simd) -> Option<Self> {
        if let Simd::Avx512(proof) = simd { Some(Lanes { _proof: proof }) } else { None }
    }

    /// Compresses the blocks of each stream into its state: as many as the shortest has.
    pub(super) fn compress(self, states: &mut [State; LANES], blocks: [&[Block]; LANES]) {
        // SAFETY: an `Avx512` is made where the processor has these features, and nowhere else.
        unsafe { compress_lanes(states, blocks) }
    }
}

/// A round's state, the eight words from a to h, each a stream a lane. The names go round: instead of
/// moving a word to the next name, the next round is given other names.
macro_rules! round {
    ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident, $word:expr, $constant:expr) => {
        let constant = _mm512_set1_epi32($constant.cast_signed());
        let sum = add(add(add($h, add($word, constant)), choice($e, $f, $g)), rotations::<6, 11, 25>($e));
        $d = add($d, sum);
        $h = add(add(sum, majority($a, $b, $c)), rotations::<2, 13, 22>($a));
    };
}

/// Sixteen rounds. Each one's word is `$word` of its number, which may change the words.
macro_rules! sixteen_rounds {
    ([$a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident], $word:ident, $constants:expr) => {
        round!($a $b $c $d $e $f $g $h, $word!(0), $constants[0][0]);
        round!($h $a $b $c $d $e $f $g, $word!(1), $constants[0][1]);
        round!($g $h $a $b $c $d $e $f, $word!(2), $constants[0][2]);
        round!($f $g $h $a $b $c $d $e, $word!(3), $constants[0][3]);
        round!($e $f $g $h $a $b $c $d, $word!(4), $constants[1][0]);
        round!($d $e $f $g $h $a $b $c, $word!(5), $constants[1][1]);
        round!($c $d $e $f $g $h $a $b, $word!(6), $constants[1][2]);
        round!($b $c $d $e $f $g $h $a, $word!(7), $constants[1][3]);
        round!($a $b $c $d $e $f $g $h, $word!(8), $constants[2][0]);
        round!($h $a $b $c $d $e $f $g, $word!(9), $constants[2][1]);
        round!($g $h $a $b $c $d $e $f, $word!(10), $constants[2][2]);
        round!($f $g $h $a $b $c $d $e, $word!(11), $constants[2][3]);
        round!($e $f $g $h $a $b $c $d, $word!(12), $constants[3][0]);
        round!($d $e $f $g $h $a $b $c, $word!(13), $constants[3][1]);
        round!($c $d $e $f $g $h $a $b, $word!(14), $constants[3][2]);
        round!($b $c $d $e $f $g $h $a, $word!(15), $constants[3][3]);
    };
}

#[target_feature(enable = "avx512f,avx512bw")]
fn compress_lanes(states: &mut [State; LANES], blocks: [&[Block]; LANES]) {
    let count = blocks.iter().map(|blocks| blocks.len()).min().unwrap_or(0);
    let blocks = blocks.map(|blocks| &blocks[..count]);
    let mut state = [[0; LANES]; 8];
    for (lane, own) in states.iter().enumerate() {
        state.iter_mut().zip(own).for_each(|(words, own)| words[lane] = *own);
    }
    let mut state: [__m512i; 8] = bytemuck::cast(state);
    let (first, scheduled) = (&ROUND_CONSTANTS[..4], ROUND_CONSTANTS[4..].as_chunks::<4>().0);
    for k in 0..count {
        let mut words = words(blocks.map(|blocks| &blocks[k]));
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        macro_rules! as_loaded {
            ($i:literal) => {
                words[$i]
            };
        }
        macro_rules! next {
            ($i:literal) => {{
                words[$i] =
                    next(words[$i], words[($i + 1) % 16], words[($i + 9) % 16], words[($i + 14) % 16]);
                words[$i]
            }};
        }
        sixteen_rounds!([a b c d e f g h], as_loaded, first);
        for constants in scheduled {
            sixteen_rounds!([a b c d e f g h], next, constants);
        }
        for (before, after) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *before = add(*before, after);
        }
    }
    let state: [[u32; LANES]; 8] = bytemuck::cast(state);
    for (lane, own) in states.iter_mut().enumerate() {
        own.iter_mut().zip(&state).for_each(|(own, words)| *own = words[lane]);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn xor(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<XOR>(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn choice(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<CHOICE>(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn majority(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<MAJORITY>(a, b, c)
}

/// A word rotated by each of these, their exclusive or.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn rotations<const A: i32, const B: i32, const C: i32>(word: __m512i) -> __m512i {
    xor(_mm512_ror_epi32::<A>(word), _mm512_ror_epi32::<B>(word), _mm512_ror_epi32::<C>(word))
}

/// The word that follows sixteen: from the first, the second, the tenth and the fifteenth.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn next(first: __m512i, second: __m512i, tenth: __m512i, fifteenth: __m512i) -> __m512i {
    let early =
        xor(_mm512_ror_epi32::<7>(second), _mm512_ror_epi32::<18>(second), _mm512_srli_epi32::<3>(second));
    let late = xor(
        _mm512_ror_epi32::<17>(fifteenth),
        _mm512_ror_epi32::<19>(fifteenth),
        _mm512_srli_epi32::<10>(fifteenth),
    );
    add(add(add(first, early), tenth), late)
}

/// The sixteen words of a block, each of every stream: a square of words, turned. Four by four words are
/// turned within the quarters of vectors, then four by four quarters.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn words(blocks: [&Block; LANES]) -> [__m512i; LANES] {
    let [
        zero,
        one,
        two,
        three,
        four,
        five,
        six,
        seven,
        eight,
        nine,
        ten,
        eleven,
        twelve,
        thirteen,
        fourteen,
        fifteen,
    ] = blocks;
    let a = four_streams([zero, one, two, three]);
    let b = four_streams([four, five, six, seven]);
    let c = four_streams([eight, nine, ten, eleven]);
    let d = four_streams([twelve, thirteen, fourteen, fifteen]);
    let mut words = [_mm512_setzero_si512(); LANES];
    for j in 0..4 {
        let quarters = turn_quarters(a[j], b[j], c[j], d[j]);
        for q in 0..4 {
            words[4 * q + j] = quarters[q];
        }
    }
    words
}

/// Vector j has, in quarter q, word 4q + j of each of four streams.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn four_streams([a, b, c, d]: [&Block; 4]) -> [__m512i; 4] {
    let (a, b, c, d) = (row(a), row(b), row(c), row(d));
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// A block's words, which are big-endian.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn row(block: &Block) -> __m512i {
    let swap = _mm512_set4_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
    _mm512_shuffle_epi8(bytemuck::cast(*block), swap)
}

/// Vector q has quarter q of each of these.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn turn_quarters(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
    /// Quarters 0 and 2 of two vectors.
    const EVEN: i32 = 0b_10_00_10_00;
    /// Quarters 1 and 3.
    const ODD: i32 = 0b_11_01_11_01;
    let (ab, cd) = (_mm512_shuffle_i32x4::<EVEN>(a, b), _mm512_shuffle_i32x4::<EVEN>(c, d));
    let (ab_odd, cd_odd) = (_mm512_shuffle_i32x4::<ODD>(a, b), _mm512_shuffle_i32x4::<ODD>(c, d));
    [
        _mm512_shuffle_i32x4::<EVEN>(ab, cd),
        _mm512_shuffle_i32x4::<EVEN>(ab_odd, cd_odd),
        _mm512_shuffle_i32x4::<ODD>(ab, cd),
        _mm512_shuffle_i32x4::<ODD>(ab_odd, cd_odd),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_streams_are_compressed_as_sha2_does() {
        let Some(lanes) = Avx512::new().map(Simd::Avx512).and_then(Lanes::new) else { return };
        for count in 0..=5 {
            let blocks: [Vec<Block>; LANES] = std::array::from_fn(|lane| {
                let byte = |k: usize, at: usize| ((64 * k + at + 17 * lane) % 251).to_le_bytes()[0];
                (0..count + lane % 3).map(|k| std::array::from_fn(|at| byte(k, at))).collect()
            });
            let mut states: [State; LANES] = std::array::from_fn(|lane| {
                std::array::from_fn(|word| u32::try_from(31 * lane + word).unwrap().wrapping_mul(0x9e37_79b9))
            });
            let mut expected = states;
            for (state, blocks) in expected.iter_mut().zip(&blocks) {
                sha2::block_api::compress256(state, &blocks[..count]);
            }
            lanes.compress(&mut states, blocks.each_ref().map(|blocks| &blocks[..]));
            assert_eq!(states, expected, "{count} blocks");
        }
    }
}
