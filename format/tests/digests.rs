//! Digests of bytes that come in pieces and of several streams, against those of the sha2 crate.

use glyd_format::{Digest, Hasher};
use proptest::prelude::*;
use sha2::Digest as _;

/// Bytes with a period that no block shares, so that blocks changing places would be seen.
fn painted(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|at| ((at + 17 * seed) % 251).to_le_bytes()[0]).collect()
}

fn expected(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every length up to a few blocks, and those about larger numbers of blocks.
fn lengths() -> impl Iterator<Item = usize> {
    let about = |blocks: usize| (64 * blocks - 2)..=(64 * blocks + 2);
    (0..=300).chain([6, 8, 16, 63, 64, 65, 100].into_iter().flat_map(about))
}

#[test]
fn digests_are_those_of_sha2() {
    for count in lengths() {
        let bytes = painted(count, 0);
        assert_eq!(Digest::of(&bytes).to_string(), expected(&bytes), "{count}");
    }
}

#[test]
fn bytes_may_come_in_pieces() {
    for count in [0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 500] {
        let bytes = painted(count, 0);
        for at in 0..=count {
            let mut hasher = Hasher::default();
            hasher.update(&bytes[..at]);
            hasher.update(&[]);
            let mut other = hasher.clone();
            hasher.update(&bytes[at..]);
            assert_eq!(hasher.finish().to_string(), expected(&bytes), "{count} at {at}");
            other.update(&bytes);
            assert_eq!(other.finish().to_string(), expected(&[&bytes[..at], &bytes].concat()));
        }
    }
}

/// What each stream is given at once, in its order.
type Pieces = Vec<Vec<u8>>;

/// Gives every stream its next piece, all of them together, until none has one.
fn check_together(streams: &[Pieces]) {
    let mut hashers = vec![Hasher::default(); streams.len()];
    for at in 0..streams.iter().map(Vec::len).max().unwrap_or(0) {
        let with_pieces = hashers.iter_mut().zip(streams);
        let mut pieces: Vec<(&mut Hasher, &[u8])> =
            with_pieces.filter_map(|(hasher, pieces)| Some((hasher, &pieces.get(at)?[..]))).collect();
        Hasher::update_together(&mut pieces);
        assert!(pieces.iter().all(|(_, bytes)| bytes.is_empty()));
    }
    for (hasher, pieces) in hashers.into_iter().zip(streams) {
        let lengths: Vec<_> = pieces.iter().map(Vec::len).collect();
        assert_eq!(hasher.finish().to_string(), expected(&pieces.concat()), "{lengths:?}");
    }
}

#[test]
fn streams_of_every_length_go_together() {
    for count in lengths() {
        for streams in 0..=5 {
            let stream = |seed| vec![painted(count + 64 * (seed % 3), seed)];
            check_together(&(0..streams).map(stream).collect::<Vec<_>>());
        }
    }
}

#[test]
fn any_number_of_streams_go_together() {
    for count in lengths().filter(|count| (count + 2) % 64 < 5) {
        for streams in 6..=20 {
            let stream = |seed| vec![painted(seed, seed), painted(count + 64 * (seed % 3), seed)];
            check_together(&(0..streams).map(stream).collect::<Vec<_>>());
        }
    }
}

#[test]
fn streams_go_together_wherever_they_were_split() {
    let edges = || [0, 1, 8, 55, 56, 63, 64, 65, 127, 128, 129];
    for (a, b, c) in edges()
        .into_iter()
        .flat_map(|a| edges().into_iter().flat_map(move |b| edges().map(move |c| (a, b, c))))
    {
        let stream = |seed, at| {
            let bytes = painted(333 + seed, seed);
            vec![bytes[..at].to_vec(), bytes[at..].to_vec()]
        };
        check_together(&[stream(0, a), stream(1, b), stream(2, c)]);
    }
}

proptest! {
    #[test]
    fn streams_are_independent(
        lengths in prop::collection::vec(prop::collection::vec(prop_oneof![0..200_usize, 0..20_000_usize], 0..6), 1..=20),
        seed in 0..251_usize,
    ) {
        let pieces = |(stream, lengths): (usize, &Vec<usize>)| -> Pieces {
            lengths.iter().enumerate().map(|(at, &count)| painted(count, seed + 31 * stream + at)).collect()
        };
        check_together(&lengths.iter().enumerate().map(pieces).collect::<Vec<_>>());
    }
}
