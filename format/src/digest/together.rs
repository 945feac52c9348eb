//! Streams read and hashed beside each other.

use std::ops::ControlFlow;

use super::{Digest, Hasher};

/// Streams that go on together: more gain nothing on a core.
const STREAMS: usize = 3;

/// Bytes that are made piece by piece.
pub trait Stream {
    /// Why a piece cannot be made.
    type Error;

    /// Makes the next piece; `None` after the last. Pieces of one length gain most.
    ///
    /// # Errors
    /// Why the stream goes no further.
    fn next(&mut self) -> Result<Option<&[u8]>, Self::Error>;
}

/// Hashes streams to their ends, a few beside each other: `begin` gives the next one, and `end` takes each
/// with its digest, or why it went no further. Where `end` breaks, the others are left.
pub fn hash_streams<S: Stream>(
    mut begin: impl FnMut() -> Option<S>,
    mut end: impl FnMut(S, Result<Digest, S::Error>) -> ControlFlow<()>,
) {
    let mut streams: Vec<(S, Hasher)> = Vec::with_capacity(STREAMS);
    loop {
        while streams.len() < STREAMS
            && let Some(stream) = begin()
        {
            streams.push((stream, Hasher::default()));
        }
        if streams.is_empty() {
            return;
        }
        let mut pieces = Vec::with_capacity(STREAMS);
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
    use super::*;

    /// `left` pieces of `bytes` bytes, then an error or the end.
    struct Pieces {
        number: usize,
        left: usize,
        piece: Vec<u8>,
        fails: bool,
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
    }

    fn streams() -> impl Iterator<Item = Pieces> {
        (0..10).map(|number| {
            let piece = vec![u8::try_from(number).unwrap(); 50 * number + 1];
            Pieces { number, left: 7 * number % 5, piece, fails: number == 6 }
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
}
