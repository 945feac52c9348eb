//! The rounds of several streams, written once for the instructions that do them.

/// The constants of the 64 rounds, four rounds together (FIPS 180-4, 4.2.2).
pub(super) const ROUND_CONSTANTS: [[u32; 4]; 16] = [
    [0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5],
    [0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5],
    [0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3],
    [0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174],
    [0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc],
    [0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da],
    [0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7],
    [0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967],
    [0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13],
    [0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85],
    [0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3],
    [0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070],
    [0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5],
    [0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3],
    [0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208],
    [0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2],
];

/// Defines `compress`, which takes blocks of each stream, as many as the shortest has, for the vectors of
/// four words that the instructions of `$features` work on. These functions do the work; they are in scope,
/// have those features, and are of a stream:
///
/// - `arranged`, `rearranged`: the state as the two halves that the rounds work on, and back
/// - `words`: the sixteen words of a block, as four vectors
/// - `four_rounds`: of both halves, with four words and their constants
/// - `next`: the four words after these sixteen
/// - `sum`: word by word
///
/// The streams' rounds are next to each other, since the processor looks only some hundred instructions
/// ahead for those that need not wait.
macro_rules! compress {
    ($features:literal, $vector:ty) => {
        #[target_feature(enable = $features)]
        fn compress<const N: usize>(streams: [(&mut State, &[Block]); N]) {
            let count = streams.iter().map(|(_, blocks)| blocks.len()).min().unwrap_or(0);
            let blocks: [&[Block]; N] = std::array::from_fn(|s| &streams[s].1[..count]);
            let mut halves: [[$vector; 2]; N] = std::array::from_fn(|s| arranged(*streams[s].0));
            for k in 0..count {
                let before = halves;
                let mut words: [[$vector; 4]; N] = std::array::from_fn(|s| words(&blocks[s][k]));
                let (scheduled, last) = $crate::digest::rounds::ROUND_CONSTANTS.split_at(12);
                for constants in scheduled.as_chunks::<4>().0 {
                    for (i, constants) in constants.iter().enumerate() {
                        for (halves, words) in halves.iter_mut().zip(&mut words) {
                            four_rounds(halves, words[i], *constants);
                            words[i] =
                                next(words[i], words[(i + 1) % 4], words[(i + 2) % 4], words[(i + 3) % 4]);
                        }
                    }
                }
                for (i, constants) in last.iter().enumerate() {
                    for (halves, words) in halves.iter_mut().zip(&words) {
                        four_rounds(halves, words[i], *constants);
                    }
                }
                for (halves, before) in halves.iter_mut().zip(before) {
                    *halves = [sum(halves[0], before[0]), sum(halves[1], before[1])];
                }
            }
            for ((state, _), halves) in streams.into_iter().zip(halves) {
                *state = rearranged(halves);
            }
        }
    };
}

pub(super) use compress;
