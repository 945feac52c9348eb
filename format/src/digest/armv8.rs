//! The blocks of several streams, by ARMv8's SHA-256 instructions.
//!
//! Four rounds wait for the four before them and are hardly any work, so a single stream leaves most of
//! the processor idle: the others' rounds are put in between.

#![expect(unsafe_code, reason = "a function with a target feature is called where that feature is proved")]

use std::arch::aarch64::{
    uint8x16_t, uint32x4_t, vaddq_u32, vreinterpretq_u32_u8, vrev32q_u8, vsha256h2q_u32, vsha256hq_u32,
    vsha256su0q_u32, vsha256su1q_u32,
};
use std::arch::is_aarch64_feature_detected;

use super::{Block, ROUND_CONSTANTS, State};

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

#[target_feature(enable = "sha2")]
fn compress<const N: usize>(streams: [(&mut State, &[Block]); N]) {
    let count = streams.iter().map(|(_, blocks)| blocks.len()).min().unwrap_or(0);
    let blocks: [&[Block]; N] = std::array::from_fn(|s| &streams[s].1[..count]);
    let mut halves: [[uint32x4_t; 2]; N] = std::array::from_fn(|s| bytemuck::cast(*streams[s].0));
    for k in 0..count {
        let before = halves;
        let mut words: [[uint32x4_t; 4]; N] = std::array::from_fn(|s| words(&blocks[s][k]));
        let (scheduled, last) = ROUND_CONSTANTS.split_at(12);
        for constants in scheduled.as_chunks::<4>().0 {
            for (i, constants) in constants.iter().enumerate() {
                for (halves, words) in halves.iter_mut().zip(&mut words) {
                    four_rounds(halves, words[i], *constants);
                    words[i] = next(words[i], words[(i + 1) % 4], words[(i + 2) % 4], words[(i + 3) % 4]);
                }
            }
        }
        for (i, constants) in last.iter().enumerate() {
            for (halves, words) in halves.iter_mut().zip(&words) {
                four_rounds(halves, words[i], *constants);
            }
        }
        for (halves, before) in halves.iter_mut().zip(before) {
            *halves = [vaddq_u32(halves[0], before[0]), vaddq_u32(halves[1], before[1])];
        }
    }
    for ((state, _), halves) in streams.into_iter().zip(halves) {
        *state = bytemuck::cast(halves);
    }
}

/// Four rounds with four words of the message. The halves of the state are `abcd` and `efgh`.
#[inline]
#[target_feature(enable = "sha2")]
fn four_rounds([abcd, efgh]: &mut [uint32x4_t; 2], words: uint32x4_t, constants: [u32; 4]) {
    let sums = vaddq_u32(words, bytemuck::cast(constants));
    (*abcd, *efgh) = (vsha256hq_u32(*abcd, *efgh, sums), vsha256h2q_u32(*efgh, *abcd, sums));
}

/// The four words of the message that follow these sixteen.
#[inline]
#[target_feature(enable = "sha2")]
fn next(a: uint32x4_t, b: uint32x4_t, c: uint32x4_t, d: uint32x4_t) -> uint32x4_t {
    vsha256su1q_u32(vsha256su0q_u32(a, b), c, d)
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
