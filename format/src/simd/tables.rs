//! Bytes taken together, or put apart, eight at a time: for each mask of eight, where each byte comes
//! from. A byte with its high bit set gives zero, as byte shuffles have it.

/// No byte: what a shuffle makes zero.
const NONE: u8 = 0x80;

/// For each mask, the places of its bits, first to last.
pub(super) const COMPRESS: [u64; 256] = {
    let mut table = [0; 256];
    let mut mask = 0;
    while mask < 256 {
        let mut places = [NONE; 8];
        let (mut bit, mut taken) = (0, 0);
        while bit < 8 {
            if mask >> bit & 1 == 1 {
                places[taken] = bit;
                taken += 1;
            }
            bit += 1;
        }
        table[mask] = u64::from_le_bytes(places);
        mask += 1;
    }
    table
};

/// For each mask, how many of its bits are below each one that is set.
pub(super) const EXPAND: [u64; 256] = {
    let mut table = [0; 256];
    let mut mask = 0;
    while mask < 256 {
        let mut places = [NONE; 8];
        let (mut bit, mut taken) = (0, 0);
        while bit < 8 {
            if mask >> bit & 1 == 1 {
                places[bit] = taken;
                taken += 1;
            }
            bit += 1;
        }
        table[mask] = u64::from_le_bytes(places);
        mask += 1;
    }
    table
};

/// `count` added to each of eight places: none of them carries.
#[inline(always)]
pub(super) fn moved(places: u64, count: usize) -> u64 {
    places.wrapping_add(0x0101_0101_0101_0101_u64.wrapping_mul(count as u64))
}
