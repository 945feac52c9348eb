//! Elements of one dtype as those of another, by their bits: bf16 widened to fp32, which is exact,
//! and floats cast to bf16, to the nearest, ties to even, as a loader that asks for bf16 does.

use glyd_format::Dtype;

/// The bits of the bf16 nearest to a binary32. Every NaN becomes the one that torch makes of it.
const fn bf16_of_f32(bits: u32) -> u16 {
    const NAN: u16 = 0x7FC0;
    const INFINITY: u32 = 0x7F80_0000;
    if bits & 0x7FFF_FFFF > INFINITY {
        return NAN;
    }
    let tie = (bits >> 16) & 1;
    ((bits + 0x7FFF + tie) >> 16) as u16
}

/// The bits of the binary32 that is a binary16.
const fn f32_of_f16(bits: u16) -> u32 {
    let sign = (bits as u32 & 0x8000) << 16;
    let exponent = bits as u32 >> 10 & 0x1F;
    let mantissa = bits as u32 & 0x3FF;
    match exponent {
        0 if mantissa == 0 => sign,
        0 => {
            // A subnormal: shift its first bit up to where a normal number has its hidden one.
            let shift = mantissa.leading_zeros() - 21;
            sign | (113 - shift) << 23 | (mantissa << shift & 0x3FF) << 13
        }
        0x1F => sign | 0xFF << 23 | mantissa << 13,
        _ => sign | (exponent + 112) << 23 | mantissa << 13,
    }
}

/// The bits of the binary32 nearest to a binary64.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the cast rounds to the nearest, which is what is wanted"
)]
fn f32_of_f64(bits: u64) -> u32 {
    (f64::from_bits(bits) as f32).to_bits()
}

/// Whether elements of `from` can be had as elements of `to`.
#[must_use]
pub(crate) fn can_cast(from: Dtype, to: Dtype) -> bool {
    from == to
        || matches!(
            (from, to),
            (Dtype::BF16, Dtype::F32) | (Dtype::F16 | Dtype::F32 | Dtype::F64, Dtype::BF16)
        )
        || (from, to) == (Dtype::F16, Dtype::F32)
}

/// Appends to `to` what the elements in `from` are in the other dtype: one of those of [`can_cast`],
/// and not the same.
pub(crate) fn cast(from: Dtype, elements: &[u8], to: Dtype, out: &mut Vec<u8>) {
    out.clear();
    match (from, to) {
        (Dtype::BF16, Dtype::F32) => {
            let elements = elements.as_chunks::<2>().0.iter();
            out.extend(elements.flat_map(|&[low, high]| [0, 0, low, high]));
        }
        (Dtype::F16, Dtype::F32) => {
            let elements = elements.as_chunks::<2>().0.iter();
            out.extend(elements.flat_map(|&bits| f32_of_f16(u16::from_le_bytes(bits)).to_le_bytes()));
        }
        (Dtype::F16, Dtype::BF16) => {
            let elements = elements.as_chunks::<2>().0.iter();
            let one = |&bits| bf16_of_f32(f32_of_f16(u16::from_le_bytes(bits))).to_le_bytes();
            out.extend(elements.flat_map(one));
        }
        (Dtype::F32, Dtype::BF16) => {
            let elements = elements.as_chunks::<4>().0.iter();
            out.extend(elements.flat_map(|&bits| bf16_of_f32(u32::from_le_bytes(bits)).to_le_bytes()));
        }
        (Dtype::F64, Dtype::BF16) => {
            let elements = elements.as_chunks::<8>().0.iter();
            let one = |&bits| bf16_of_f32(f32_of_f64(u64::from_le_bytes(bits))).to_le_bytes();
            out.extend(elements.flat_map(one));
        }
        _ => debug_assert!(can_cast(from, to), "{from} to {to}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_the_numbers_they_are() {
        let cases = [
            (0x0000, 0.0),
            (0x8000, -0.0),
            (0x3C00, 1.0),
            (0xC000, -2.0),
            (0x7BFF, 65504.0),
            (0x0001, 2.0_f32.powi(-24)),
            (0x03FF, 1023.0 * 2.0_f32.powi(-24)),
            (0x0400, 2.0_f32.powi(-14)),
            (0x7C00, f32::INFINITY),
        ];
        for (half, single) in cases {
            assert_eq!(f32_of_f16(half), single.to_bits(), "{half:#06x}");
        }
        assert_eq!(f32_of_f16(0x7E01), 0x7FC0_2000);
    }

    #[test]
    fn ties_go_to_even() {
        assert_eq!(bf16_of_f32(0x3F80_8000), 0x3F80);
        assert_eq!(bf16_of_f32(0x3F81_8000), 0x3F82);
        assert_eq!(bf16_of_f32(0x3F80_8001), 0x3F81);
        assert_eq!(bf16_of_f32(0x7F7F_FFFF), 0x7F80);
        assert_eq!(bf16_of_f32(0xFF80_0001), 0x7FC0);
        assert_eq!(bf16_of_f32(0x8000_0001), 0x8000);
    }

    #[test]
    fn widening_keeps_every_bit() {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut wide = Vec::new();
        cast(Dtype::BF16, &all, Dtype::F32, &mut wide);
        let back: Vec<u8> =
            wide.as_chunks::<4>().0.iter().flat_map(|&[_, _, low, high]| [low, high]).collect();
        assert_eq!(back, all);
        assert!(wide.as_chunks::<4>().0.iter().all(|element| element[..2] == [0, 0]));
    }
}
