//! Streams read and hashed beside each other.

use std::ops::ControlFlow;

use super::streams::{INTERLEAVED, Together};
use super::{Digest, Hasher};

/// Bytes that streams beyond the first three may hold together with them: each thread has as much.
const BUDGET_BYTES: u64 = 24 << 20;

/// Bytes that are made piece by piece.
pub trait Stream {
    /// Why a piece cannot be made.
    type Error;

    /// Makes the next piece; `None` after the last. Pieces of one length gain most.
    ///
    /// # Errors
    /// Why the stream goes no further.
    fn next(&mut self) -> Result<Option<&[u8]>, Self::Error>;

    /// Bytes of memory that it holds at the most, about: fewer streams go on together where each holds
    /// much.
    fn held_bytes(&self) -> u64;
}

/// Hashes streams to their ends, as many beside each other as gain on this processor and are not more
/// than some 24 MiB of memory, but three in any case: `begin` gives the next one, and `end` takes each
/// with its digest, or why it went no further. Where `end` breaks, the others are left.
pub fn hash_streams<S: Stream>(
    mut begin: impl FnMut() -> Option<S>,
    mut end: impl FnMut(S, Result<Digest, S::Error>) -> ControlFlow<()>,
) {
    let most = Together::chosen().streams();
    let mut streams: Vec<(S, Hasher)> = Vec::with_capacity(most);
    loop {
        while streams.len() < INTERLEAVED
            && let Some(stream) = begin()
        {
            streams.push((stream, Hasher::default()));
        }
        // One more a turn: threads that share what there is to begin come to as many each.
        if streams.len() >= INTERLEAVED
            && streams.len() < most
            && streams.iter().map(|(stream, _)| stream.held_bytes()).sum::<u64>() < BUDGET_BYTES
            && let Some(stream) = begin()
        {
            streams.push((stream, Hasher::default()));
        }
        if streams.is_empty() {
            return;
        }
        let mut pieces = Vec::with_capacity(streams.len());
        let mut ended = Vec::new();
        for (number, (stream, hasher)) in streams.iter_mut().enumerate() {
            match stream.next() {
                Ok(Some(piece)) => pieces.push((hasher, piece)),
                Ok(None) => ended.push((number, Ok(()))),
                Err(error) => ended.push((number, Err(error))),
            }
        }
        Hasher::update_together(&mut pieces);
        // The last first: those before it keep their numbers.
        for (number, done) in ended.into_iter().rev() {
            let (stream, hasher) = streams.swap_remove(number);
            if end(stream, done.map(|()| hasher.finish())).is_break() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// `left` pieces of `bytes` bytes, then an error or the end.
    struct Pieces {
        number: usize,
        left: usize,
        piece: Vec<u8>,
        fails: bool,
        held_bytes: u64,
    }

    impl Stream for Pieces {
        type Error = ();

        fn next(&mut self) -> Result<Option<&[u8]>, ()> {
            if self.left == 0 {
                return if self.fails { Err(()) } else { Ok(None) };
            }
            self.left -= 1;
            Ok(Some(&self.piece))
        }

        fn held_bytes(&self) -> u64 {
            self.held_bytes
        }
    }

    fn streams() -> impl Iterator<Item = Pieces> {
        (0..50).map(|number| {
            let piece = vec![u8::try_from(number).unwrap(); 50 * number + 1];
            let left = if number < 20 { 30 } else { 7 * number % 5 };
            Pieces { number, left, piece, fails: number == 6, held_bytes: 1000 }
        })
    }

    #[test]
    fn each_stream_has_its_own_digest() {
        let mut streams_left = streams();
        let mut found = Vec::new();
        let end = |stream: Pieces, digest| {
            found.push((stream.number, digest));
            ControlFlow::Continue(())
        };
        hash_streams(|| streams_left.next(), end);
        found.sort_by_key(|(number, _)| *number);
        let expected: Vec<_> = streams()
            .map(|stream| {
                let digest = Digest::of(&stream.piece.repeat(stream.left));
                (stream.number, if stream.fails { Err(()) } else { Ok(digest) })
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_break_leaves_the_others() {
        let mut streams_left = streams();
        let mut ended = 0;
        let end = |_: Pieces, _| {
            ended += 1;
            ControlFlow::Break(())
        };
        hash_streams(|| streams_left.next(), end);
        assert_eq!(ended, 1);
    }

    /// The most streams of so many bytes each that were begun and had not ended.
    fn most_at_once(held_bytes: u64) -> usize {
        let mut streams_left = streams();
        let (begun, ended) = (Cell::new(0), Cell::new(0));
        let mut most = 0;
        let begin = || {
            let stream = streams_left.next()?;
            begun.set(begun.get() + 1);
            most = most.max(begun.get() - ended.get());
            Some(Pieces { held_bytes, ..stream })
        };
        hash_streams(begin, |_, _| {
            ended.set(ended.get() + 1);
            ControlFlow::Continue(())
        });
        assert_eq!((begun.get(), ended.get()), (50, 50));
        most
    }

    #[test]
    fn streams_that_hold_much_are_fewer() {
        let most = Together::chosen().streams();
        assert_eq!(most_at_once(0), most);
        assert_eq!(most_at_once(BUDGET_BYTES / 8), most.min(8));
        assert_eq!(most_at_once(BUDGET_BYTES), INTERLEAVED);
    }
}
