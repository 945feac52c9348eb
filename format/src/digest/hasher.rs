//! Bytes that come in pieces, of one stream or of several at once.

use super::streams::Together;
use super::{BLOCK_BYTES, Block, Digest, State};

/// The state before the first block (FIPS 180-4, 5.3.3).
const START: State =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Bytes that the last block ends with: how long the stream was, in bits.
const LENGTH_BYTES: usize = 8;

/// A digest of bytes that come in pieces.
#[derive(Clone)]
pub struct Hasher {
    pub(super) state: State,
    /// The bytes since the last whole block, as many as `taken_bytes` is past a multiple of a block.
    held: Block,
    pub(super) taken_bytes: u64,
}

impl Default for Hasher {
    fn default() -> Self {
        Hasher { state: START, held: [0; BLOCK_BYTES], taken_bytes: 0 }
    }
}

impl Hasher {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let (blocks, tail) = self.complete(bytes).as_chunks();
        sha2::block_api::compress256(&mut self.state, blocks);
        self.taken_bytes += blocks.as_flattened().len() as u64;
        self.hold(tail);
    }

    /// Takes the next bytes of several streams, each as [`Hasher::update`] would, in less time: a round
    /// waits for the one before it, and meanwhile the processor works at other streams' rounds. Three
    /// pieces or more of about a length gain most; with AVX-512, sixteen.
    ///
    /// The list is used up: its pieces are empty afterwards, in another order.
    pub fn update_together(pieces: &mut [(&mut Hasher, &[u8])]) {
        Together::chosen().update(pieces);
    }

    /// The digest of all that was taken.
    #[must_use]
    pub fn finish(mut self) -> Digest {
        let held = self.held_bytes();
        let mut last = [[0; BLOCK_BYTES]; 2];
        let padded = last.as_flattened_mut();
        padded[..held].copy_from_slice(&self.held[..held]);
        padded[held] = 0x80;
        let count = (held + 1 + LENGTH_BYTES).div_ceil(BLOCK_BYTES);
        let end = count * BLOCK_BYTES;
        padded[end - LENGTH_BYTES..end].copy_from_slice(&self.taken_bytes.wrapping_mul(8).to_be_bytes());
        sha2::block_api::compress256(&mut self.state, &last[..count]);
        Digest(bytemuck::cast(self.state.map(u32::to_be)))
    }

    /// Takes bytes up to the end of a block that was begun; returns those after it.
    pub(super) fn complete<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let missing = self.held_bytes().wrapping_neg() % BLOCK_BYTES;
        let (head, rest) = bytes.split_at(bytes.len().min(missing));
        self.hold(head);
        rest
    }

    /// Takes bytes that do not go past the end of a block.
    fn hold(&mut self, bytes: &[u8]) {
        let from = self.held_bytes();
        let to = from + bytes.len();
        self.held[from..to].copy_from_slice(bytes);
        self.taken_bytes += bytes.len() as u64;
        if to == BLOCK_BYTES {
            sha2::block_api::compress256(&mut self.state, &[self.held]);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "it is less than a block")]
    fn held_bytes(&self) -> usize {
        (self.taken_bytes % BLOCK_BYTES as u64) as usize
    }
}
