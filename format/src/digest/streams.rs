//! Several streams at once: which of them go together, and for how many blocks.

use std::cmp::Reverse;
use std::mem::take;
use std::sync::OnceLock;

use super::{BLOCK_BYTES, Hasher};
use crate::simd;

#[cfg(target_arch = "aarch64")]
pub(super) use super::armv8::Armv8 as Interleaved;
#[cfg(target_arch = "x86_64")]
pub(super) use super::sha_ni::ShaNi as Interleaved;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) use absent::Interleaved;

/// Blocks after which streams are chosen anew: where there are more than go together, all of them come
/// to their ends at about the same time, and none is left to go on alone. Starting a turn costs about the
/// time of a block.
const TURN_BLOCKS: usize = 256;

type Piece<'a, 'b> = (&'a mut Hasher, &'b [u8]);

/// How streams go together here: looked up once. They do not where the processor lacks the instructions,
/// or `GLYD_SIMD` asks for portable code.
pub(super) fn chosen() -> Option<Interleaved> {
    static CHOSEN: OnceLock<Option<Interleaved>> = OnceLock::new();
    *CHOSEN.get_or_init(|| asked(std::env::var(simd::VARIABLE).ok().as_deref()))
}

fn asked(name: Option<&str>) -> Option<Interleaved> {
    if name == Some("portable") { None } else { Interleaved::new() }
}

/// Takes the next bytes of every stream, and leaves the pieces empty.
pub(super) fn update(interleaved: Option<Interleaved>, pieces: &mut [Piece<'_, '_>]) {
    if let Some(interleaved) = interleaved.filter(|_| pieces.len() > 1) {
        for (hasher, bytes) in &mut *pieces {
            *bytes = hasher.complete(bytes);
        }
        while turn(interleaved, pieces) {}
    }
    for (hasher, bytes) in pieces {
        hasher.update(take(bytes));
    }
}

/// Takes blocks of the three streams that have most left, or of two; whether two of them had any.
fn turn(interleaved: Interleaved, pieces: &mut [Piece<'_, '_>]) -> bool {
    pieces.sort_unstable_by_key(|(_, bytes)| Reverse(bytes.len()));
    match pieces {
        [a, b, c, ..] if c.1.len() >= BLOCK_BYTES => take_blocks(interleaved, [a, b, c]),
        [a, b, ..] if b.1.len() >= BLOCK_BYTES => take_blocks(interleaved, [a, b]),
        _ => return false,
    }
    true
}

/// Takes as many blocks of each as all of them have, within a turn. The streams are at a block's start.
fn take_blocks<const N: usize>(interleaved: Interleaved, pieces: [&mut Piece<'_, '_>; N]) {
    let blocks = pieces.iter().map(|(_, bytes)| bytes.len() / BLOCK_BYTES).fold(TURN_BLOCKS, usize::min);
    interleaved.compress(pieces.map(|(hasher, bytes)| {
        let (blocks, rest) = bytes.split_at(blocks * BLOCK_BYTES);
        hasher.taken_bytes += blocks.len() as u64;
        *bytes = rest;
        (&mut hasher.state, blocks.as_chunks().0)
    }));
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod absent {
    use super::super::{Block, State};

    /// Streams going together: there is no such thing here.
    #[derive(Clone, Copy)]
    pub(in super::super) enum Interleaved {}

    impl Interleaved {
        pub(in super::super) fn new() -> Option<Self> {
            None
        }

        pub(in super::super) fn compress<const N: usize>(self, _: [(&mut State, &[Block]); N]) {
            match self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Block, Digest, State};
    use super::*;

    /// Streams of different bytes, of `blocks` blocks and then one more than the last.
    fn check_width<const N: usize>(interleaved: Interleaved, blocks: usize) {
        let stream = |s: usize| -> Vec<Block> {
            (0..blocks + s)
                .map(|k| std::array::from_fn(|at| ((64 * k + at + 17 * s) % 251).to_le_bytes()[0]))
                .collect()
        };
        let streams: [Vec<Block>; N] = std::array::from_fn(stream);
        let mut states: [State; N] = std::array::from_fn(|s| {
            let mut hasher = Hasher::default();
            hasher.update(&[s.to_le_bytes()[0]; BLOCK_BYTES]);
            hasher.state
        });
        let mut expected = states;
        for (state, blocks_of) in expected.iter_mut().zip(&streams) {
            sha2::block_api::compress256(state, &blocks_of[..blocks]);
        }
        let mut pairs = states.iter_mut().zip(&streams);
        interleaved.compress([(); N].map(|()| {
            let (state, blocks) = pairs.next().expect("there are as many streams");
            (state, &blocks[..])
        }));
        assert_eq!(states, expected, "{N} streams of {blocks} blocks");
    }

    #[test]
    fn every_number_of_streams_is_compressed_as_sha2_does() {
        let Some(interleaved) = Interleaved::new() else { return };
        for blocks in 0..70 {
            check_width::<1>(interleaved, blocks);
            check_width::<2>(interleaved, blocks);
            check_width::<3>(interleaved, blocks);
            check_width::<4>(interleaved, blocks);
        }
    }

    #[test]
    fn portable_code_takes_one_stream_after_another() {
        assert!(asked(Some("portable")).is_none());
        assert_eq!(asked(Some("avx2")).is_some(), Interleaved::new().is_some());
        assert_eq!(asked(None).is_some(), Interleaved::new().is_some());
        for interleaved in [None, Interleaved::new()] {
            let bytes = [7; 1000];
            let mut hashers = [(); 4].map(|()| Hasher::default());
            let mut pieces: Vec<_> = hashers.iter_mut().zip(bytes.chunks(300)).collect();
            update(interleaved, &mut pieces);
            for (hasher, piece) in hashers.into_iter().zip(bytes.chunks(300)) {
                assert_eq!(hasher.finish(), Digest::of(piece));
            }
        }
    }
}
