//! Several streams at once: which of them go together, and for how many blocks.

use std::cmp::Reverse;
use std::mem::take;
use std::sync::OnceLock;

use super::{BLOCK_BYTES, Block, Hasher, State};
use crate::simd::{self, Simd};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use absent::Interleaved;
#[cfg(not(target_arch = "x86_64"))]
use absent::Lanes;

#[cfg(target_arch = "aarch64")]
use super::armv8::Armv8 as Interleaved;
#[cfg(target_arch = "x86_64")]
use super::avx512::Lanes;
#[cfg(target_arch = "x86_64")]
use super::sha_ni::ShaNi as Interleaved;

/// Blocks after which streams are chosen anew: where there are more than go together, all of them come
/// to their ends at about the same time, and none is left to go on alone. Starting a turn costs about the
/// time of a block.
const TURN_BLOCKS: usize = 256;

type Piece<'a, 'b> = (&'a mut Hasher, &'b [u8]);

/// Streams that go together by the processor's SHA instructions.
pub(super) const INTERLEAVED: usize = 3;
/// Streams that go together as the lanes of vectors.
pub(super) const LANES: usize = 16;
/// Streams from which lanes are worth it, as they take the same time whatever their number: on Sapphire
/// Rapids nine are 1.28 times one and ten 1.42 times, by the SHA instructions 1.36.
const LANES_MIN: usize = 10;

/// How streams go together: by which instructions, where the processor has them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Together {
    interleaved: Option<Interleaved>,
    lanes: Option<Lanes>,
}

impl Together {
    /// How they do here: looked up once. They do not where the processor lacks the instructions, or
    /// `GLYD_SIMD` asks for portable code.
    pub(super) fn chosen() -> Self {
        static CHOSEN: OnceLock<Together> = OnceLock::new();
        *CHOSEN.get_or_init(|| Together::by(std::env::var(simd::VARIABLE).ok().as_deref(), Simd::chosen()))
    }

    /// The SHA instructions are of no set that has a name: only the portable one goes without.
    fn by(name: Option<&str>, simd: Simd) -> Self {
        let interleaved = if name == Some("portable") { None } else { Interleaved::new() };
        Together { interleaved, lanes: Lanes::new(simd) }
    }

    /// Streams beyond which more gain nothing on a core.
    pub(super) fn streams(self) -> usize {
        if self.lanes.is_some() { LANES } else { INTERLEAVED }
    }

    /// Takes the next bytes of every stream, and leaves the pieces empty.
    pub(super) fn update(self, pieces: &mut [Piece<'_, '_>]) {
        if pieces.len() > 1 {
            for (hasher, bytes) in &mut *pieces {
                *bytes = hasher.complete(bytes);
            }
            while self.turn(pieces) {}
        }
        for (hasher, bytes) in pieces {
            hasher.update(take(bytes));
        }
    }

    /// Takes blocks of the streams that have most left: of as many as go together; whether there were
    /// two or more.
    fn turn(self, pieces: &mut [Piece<'_, '_>]) -> bool {
        pieces.sort_unstable_by_key(|(_, bytes)| Reverse(bytes.len()));
        let begun = pieces.partition_point(|(_, bytes)| bytes.len() >= BLOCK_BYTES);
        if let Some(lanes) = self.lanes.filter(|_| begun >= LANES_MIN) {
            take_lanes(lanes, &mut pieces[..begun.min(LANES)]);
            return true;
        }
        let Some(interleaved) = self.interleaved else { return false };
        match &mut pieces[..begun] {
            [a, b, c, ..] => take_blocks(interleaved, [a, b, c]),
            [a, b] => take_blocks(interleaved, [a, b]),
            _ => return false,
        }
        true
    }
}

/// Takes blocks of two or three streams.
fn take_blocks<const N: usize>(interleaved: Interleaved, pieces: [&mut Piece<'_, '_>; N]) {
    let count = common_blocks(pieces.iter().map(|piece| &**piece));
    interleaved.compress(pieces.map(|piece| take_from(piece, count)));
}

/// Takes blocks of as many streams as there are lanes, or fewer.
fn take_lanes(lanes: Lanes, pieces: &mut [Piece<'_, '_>]) {
    let count = common_blocks(pieces.iter());
    let mut states = [State::default(); LANES];
    let mut blocks: [&[Block]; LANES] = [&[]; LANES];
    for (piece, (state, blocks)) in pieces.iter_mut().zip(states.iter_mut().zip(&mut blocks)) {
        let (own, taken) = take_from(piece, count);
        (*state, *blocks) = (*own, taken);
    }
    // A lane that no stream is left for does another's work again, for nothing.
    let first = blocks[0];
    blocks[pieces.len()..].fill(first);
    lanes.compress(&mut states, blocks);
    for ((hasher, _), state) in pieces.iter_mut().zip(states) {
        hasher.state = state;
    }
}

/// Blocks that all of these have, within a turn.
fn common_blocks<'a, 'b: 'a>(pieces: impl Iterator<Item = &'a Piece<'a, 'b>>) -> usize {
    pieces.map(|(_, bytes)| bytes.len() / BLOCK_BYTES).fold(TURN_BLOCKS, usize::min)
}

/// The next blocks of a stream that is at a block's start, and the state that they go into.
fn take_from<'a, 'b>((hasher, bytes): &'a mut Piece<'_, 'b>, count: usize) -> (&'a mut State, &'b [Block]) {
    let (blocks, rest) = bytes.split_at(count * BLOCK_BYTES);
    hasher.taken_bytes += blocks.len() as u64;
    *bytes = rest;
    (&mut hasher.state, blocks.as_chunks().0)
}

#[cfg(not(target_arch = "x86_64"))]
mod absent {
    use super::super::{Block, State};
    use super::{LANES, Simd};

    /// Streams as the lanes of vectors: there is no such thing here.
    #[derive(Debug, Clone, Copy)]
    pub(super) enum Lanes {}

    impl Lanes {
        pub(super) fn new(_: Simd) -> Option<Self> {
            None
        }

        pub(super) fn compress(self, _: &mut [State; LANES], _: [&[Block]; LANES]) {
            match self {}
        }
    }

    /// Streams going together: there is no such thing here.
    #[cfg(not(target_arch = "aarch64"))]
    #[derive(Debug, Clone, Copy)]
    pub(super) enum Interleaved {}

    #[cfg(not(target_arch = "aarch64"))]
    impl Interleaved {
        pub(super) fn new() -> Option<Self> {
            None
        }

        pub(super) fn compress<const N: usize>(self, _: [(&mut State, &[Block]); N]) {
            match self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Avx2, Avx512};

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
    fn an_instruction_set_that_is_asked_for_bounds_what_is_used() {
        let portable = Together::by(Some("portable"), Simd::Portable);
        assert!(portable.interleaved.is_none() && portable.lanes.is_none());
        let bare = Together::by(None, Simd::Portable);
        assert_eq!(bare.interleaved.is_some(), Interleaved::new().is_some());
        if let Some(proof) = Avx2::new() {
            let avx2 = Together::by(Some("avx2"), Simd::Avx2(proof));
            assert_eq!(avx2.interleaved.is_some(), Interleaved::new().is_some());
            assert_eq!((avx2.lanes.is_some(), avx2.streams()), (false, INTERLEAVED));
        }
        if let Some(proof) = Avx512::new() {
            let avx512 = Together::by(None, Simd::Avx512(proof));
            assert_eq!((avx512.lanes.is_some(), avx512.streams()), (true, LANES));
        }
    }

    /// All ways for streams to go together that the processor has.
    fn ways() -> impl Iterator<Item = Together> {
        [(Some("portable"), Simd::best()), (None, Simd::Portable), (None, Simd::best())]
            .into_iter()
            .map(|(name, simd)| Together::by(name, simd))
    }

    #[test]
    fn any_number_of_streams_is_hashed_as_each_alone() {
        // About a block, about a turn, and well past one.
        let lengths = [0, 1, 63, 64, 65, 127, 128, 1000, 16383, 16384, 16385, 40_000];
        let bytes: Vec<u8> = (0..40_000 + 20).map(|at| (at % 251_usize).to_le_bytes()[0]).collect();
        for together in ways() {
            for count in 1..=20 {
                for shift in 0..lengths.len() {
                    let piece = |s: usize| &bytes[s..][..lengths[(s / 3 + shift) % lengths.len()]];
                    let mut hashers = vec![Hasher::default(); count];
                    for (s, hasher) in hashers.iter_mut().enumerate() {
                        hasher.update(&bytes[..s * 7 % 65]);
                    }
                    let expected: Vec<_> = hashers
                        .iter()
                        .enumerate()
                        .map(|(s, hasher)| {
                            let mut hasher = hasher.clone();
                            hasher.update(piece(s));
                            hasher.finish()
                        })
                        .collect();
                    let mut pieces: Vec<_> =
                        hashers.iter_mut().enumerate().map(|(s, hasher)| (hasher, piece(s))).collect();
                    together.update(&mut pieces);
                    assert!(pieces.iter().all(|(_, bytes)| bytes.is_empty()));
                    let found: Vec<_> = hashers.into_iter().map(Hasher::finish).collect();
                    assert_eq!(found, expected, "{count} streams from length {shift}, {together:?}");
                }
            }
        }
    }

    #[test]
    fn portable_code_takes_one_stream_after_another() {
        let bytes = [7; 1000];
        let mut hashers = [(); 4].map(|()| Hasher::default());
        let mut pieces: Vec<_> = hashers.iter_mut().zip(bytes.chunks(300)).collect();
        assert!(!Together::default().turn(&mut pieces));
        assert!(pieces.iter().map(|(_, bytes)| bytes.len()).eq([300, 300, 300, 100]));
    }
}
