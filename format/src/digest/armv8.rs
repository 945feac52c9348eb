//! The blocks of several streams, by aarch64's SHA-256 instructions.
//!
//! Four rounds wait for the four before them and are hardly any work, so a single stream leaves most of
//! the processor idle: the others' rounds are put in between.

#![expect(unsafe_code, reason = "a function with a target feature is called where that feature is proved")]

use std::arch::aarch64::{
    uint8x16_t, uint32x4_t, vaddq_u32, vreinterpretq_u32_u8, vrev32q_u8, vsha256h2q_u32, vsha256hq_u32,
    vsha256su0q_u32, vsha256su1q_u32,
};
use std::arch::is_aarch64_feature_detected;

use super::{Block, State, rounds};

/// Proof that the processor has the SHA-256 instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Armv8(());

impl Armv8 {
    /// The proof, where the processor has them.
    pub(super) fn new() -> Option<Self> {
        is_aarch64_feature_detected!("sha2").then_some(Armv8(()))
    }

    /// Compresses the blocks of each stream into its state: as many as the shortest has.
    pub(super) fn compress<const N: usize>(self, streams: [(&mut State, &[Block]); N]) {
        // SAFETY: an `Armv8` is made where the processor has this feature, and nowhere else.
        unsafe { compress(streams) }
    }
}

rounds::compress!("sha2", uint32x4_t);

/// Four rounds with four words of the message. The halves of the state are `abcd` and `efgh`.
#[inline]
#[target_feature(enable = "sha2")]
fn four_rounds([abcd, efgh]: &mut [uint32x4_t; 2], words: uint32x4_t, constants: [u32; 4]) {
    let sums = sum(words, bytemuck::cast(constants));
    (*abcd, *efgh) = (vsha256hq_u32(*abcd, *efgh, sums), vsha256h2q_u32(*efgh, *abcd, sums));
}

/// The four words of the message that follow these sixteen.
#[inline]
#[target_feature(enable = "sha2")]
fn next(a: uint32x4_t, b: uint32x4_t, c: uint32x4_t, d: uint32x4_t) -> uint32x4_t {
    vsha256su1q_u32(vsha256su0q_u32(a, b), c, d)
}

/// Word by word.
#[inline]
#[target_feature(enable = "sha2")]
fn sum(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
    vaddq_u32(a, b)
}

/// A block's words, which are big-endian.
#[inline]
#[target_feature(enable = "sha2")]
fn words(block: &Block) -> [uint32x4_t; 4] {
    let parts: [uint8x16_t; 4] = bytemuck::cast(*block);
    let [a, b, c, d] = parts;
    [word(a), word(b), word(c), word(d)]
}

#[inline]
#[target_feature(enable = "sha2")]
fn word(bytes: uint8x16_t) -> uint32x4_t {
    vreinterpretq_u32_u8(vrev32q_u8(bytes))
}

/// The state `abcdefgh` as the halves `abcd` and `efgh`.
#[inline]
#[target_feature(enable = "sha2")]
fn arranged(state: State) -> [uint32x4_t; 2] {
    bytemuck::cast(state)
}

/// The halves `abcd` and `efgh` as the state `abcdefgh`.
#[inline]
#[target_feature(enable = "sha2")]
fn rearranged(halves: [uint32x4_t; 2]) -> State {
    bytemuck::cast(halves)
}
