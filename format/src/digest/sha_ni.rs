//! The blocks of several streams, by x86-64's SHA instructions.
//!
//! Two rounds take 4 cycles of waiting in `sha256rnds2` and hardly any work, so a single stream leaves
//! most of the processor idle: the others' rounds are put in between.

#![expect(unsafe_code, reason = "a function with a target feature is called where that feature is proved")]

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_blend_epi16, _mm_set_epi64x, _mm_sha256msg1_epu32,
    _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8, _mm_shuffle_epi32,
};

use super::{Block, State, rounds};

/// Proof that the processor has the SHA instructions and what is used beside them.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShaNi(());

impl ShaNi {
    /// The proof, where the processor has all of it.
    pub(super) fn new() -> Option<Self> {
        let has = is_x86_feature_detected!("sha")
            && is_x86_feature_detected!("ssse3")
            && is_x86_feature_detected!("sse4.1")
            && is_x86_feature_detected!("avx");
        has.then_some(ShaNi(()))
    }

    /// Compresses the blocks of each stream into its state: as many as the shortest has.
    pub(super) fn compress<const N: usize>(self, streams: [(&mut State, &[Block]); N]) {
        // SAFETY: a `ShaNi` is made where the processor has these features, and nowhere else.
        unsafe { compress(streams) }
    }
}

rounds::compress!("sha,ssse3,sse4.1,avx", __m128i);

/// Four rounds with four words of the message. The halves of the state are `abef` and `cdgh`, from the
/// highest word down: two rounds turn the one into the other, and the other way round.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1,avx")]
fn four_rounds([abef, cdgh]: &mut [__m128i; 2], words: __m128i, constants: [u32; 4]) {
    let sums = sum(words, bytemuck::cast(constants));
    *cdgh = _mm_sha256rnds2_epu32(*cdgh, *abef, sums);
    *abef = _mm_sha256rnds2_epu32(*abef, *cdgh, _mm_shuffle_epi32(sums, 0b_11_10));
}

/// The four words of the message that follow these sixteen.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1,avx")]
fn next(a: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m128i {
    _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(a, b), _mm_alignr_epi8(d, c, 4)), d)
}

/// Word by word.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1,avx")]
fn sum(a: __m128i, b: __m128i) -> __m128i {
    _mm_add_epi32(a, b)
}

/// A block's words, which are big-endian.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1,avx")]
fn words(block: &Block) -> [__m128i; 4] {
    let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
    let [a, b, c, d] = bytemuck::cast(*block);
    [
        _mm_shuffle_epi8(a, swap),
        _mm_shuffle_epi8(b, swap),
        _mm_shuffle_epi8(c, swap),
        _mm_shuffle_epi8(d, swap),
    ]
}

/// The state `abcdefgh` as the halves `abef` and `cdgh`.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1,avx")]
fn arranged(state: State) -> [__m128i; 2] {
    let [dcba, hgfe] = bytemuck::cast(state);
    let cdab = _mm_shuffle_epi32(dcba, 0b_10_11_00_01);
    let efgh = _mm_shuffle_epi32(hgfe, 0b_00_01_10_11);
    [_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0b_1111_0000)]
}

/// The halves `abef` and `cdgh` as the state `abcdefgh`.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1,avx")]
fn rearranged([abef, cdgh]: [__m128i; 2]) -> State {
    let feba = _mm_shuffle_epi32(abef, 0b_00_01_10_11);
    let dchg = _mm_shuffle_epi32(cdgh, 0b_10_11_00_01);
    bytemuck::cast([_mm_blend_epi16(feba, dchg, 0b_1111_0000), _mm_alignr_epi8(dchg, feba, 8)])
}
