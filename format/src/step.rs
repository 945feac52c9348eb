//! bf16 weights as bits, and how a matrix is cut into steps: `docs/format.md`, section 3.

/// Rows of a step, and so of a strip.
pub const STEP_ROWS: usize = 64;
/// Columns of a step.
pub const STEP_COLUMNS: usize = 16;
/// Weights of a step.
pub const STEP_WEIGHTS: usize = STEP_ROWS * STEP_COLUMNS;
/// Lanes of a step: the threads that hold its weights on a GPU.
pub const LANES: usize = 32;
/// Weights that a lane holds.
pub const LANE_WEIGHTS: usize = STEP_WEIGHTS / LANES;
/// Bytes of a bf16 weight.
pub const WEIGHT_BYTES: usize = 2;

/// Bits of a weight below its exponent: the mantissa.
pub const MANTISSA_BITS: u32 = 7;
/// The exponent of a bf16 weight, of 256.
#[must_use]
pub const fn exponent(weight: u16) -> u8 {
    (weight >> MANTISSA_BITS).to_le_bytes()[0]
}

/// Where the weight `index` of a step stands in it: `(row, column)`.
///
/// Lane `index / 32` holds 32 weights, in the order in which the tensor cores' m16n8k16 operation
/// takes its operand. Neighbours `index`, `index ^ 1` are neighbouring columns of one row: a pair.
#[must_use]
pub const fn place(index: usize) -> (usize, usize) {
    let (lane, i) = (index / LANE_WEIGHTS, index % LANE_WEIGHTS);
    let row = 8 * (i / 4) + lane / 4;
    let column = 8 * ((i / 2) % 2) + 2 * (lane % 4) + i % 2;
    (row, column)
}

/// Weights of a lane that stand together in a plane: the first or the second half of its own.
pub const HALF_WEIGHTS: usize = LANE_WEIGHTS / 2;

/// One byte of each of a step's weights, in plane order: the first halves of all lanes, lane by lane,
/// then the second halves. It is the order of the data buffers' bytes.
pub type Plane = [u8; STEP_WEIGHTS];

/// Where the weight `index` of a step stands in a plane.
#[must_use]
pub const fn plane_index(index: usize) -> usize {
    let (lane, i) = (index / LANE_WEIGHTS, index % LANE_WEIGHTS);
    STEP_WEIGHTS / 2 * (i / HALF_WEIGHTS) + HALF_WEIGHTS * lane + i % HALF_WEIGHTS
}

/// A step's weights: their high bytes and their low bytes.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Step {
    /// Sign, and the exponent without its last bit.
    pub high: Plane,
    /// The exponent's last bit, and the mantissa.
    pub low: Plane,
}

impl Default for Step {
    fn default() -> Self {
        Step { high: [0; STEP_WEIGHTS], low: [0; STEP_WEIGHTS] }
    }
}

/// Writes a matrix's columns as rows: `from` is rows of `columns` weights, and what was a column is a row
/// of `to`, whose rows stand `stride` apart.
///
/// # Panics
/// Where `to` is too short.
pub fn transpose(from: &[u16], columns: usize, to: &mut [u16], stride: usize) {
    /// Rows and columns that are exchanged at a time: of both sides whole cache lines.
    const BLOCK: usize = 32;
    for (block, rows) in from.chunks(BLOCK * columns).enumerate() {
        for first in (0..columns).step_by(BLOCK) {
            for column in first..columns.min(first + BLOCK) {
                let row = &mut to[column * stride + block * BLOCK..];
                for (to, &weight) in row.iter_mut().zip(rows[column..].iter().step_by(columns)) {
                    *to = weight;
                }
            }
        }
    }
}

/// A matrix that can be packed: rows in strips of 64, columns in steps of 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    rows: u64,
    columns: u64,
}

impl Grid {
    /// The grid of a matrix of this shape; `None` where the layouts do not take it
    /// (`docs/format.md`, section 2) or it has more weights than 64 bits count bytes of.
    #[must_use]
    pub fn new(rows: u64, columns: u64) -> Option<Self> {
        let whole = rows > 0
            && rows.is_multiple_of(STEP_ROWS as u64)
            && columns > 0
            && columns.is_multiple_of(STEP_COLUMNS as u64);
        let bytes = rows.checked_mul(columns)?.checked_mul(8)?;
        (whole && i64::try_from(bytes).is_ok()).then_some(Grid { rows, columns })
    }

    /// Rows of the matrix.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Columns of the matrix.
    #[must_use]
    pub fn columns(&self) -> u64 {
        self.columns
    }

    /// Weights of the matrix.
    #[must_use]
    pub fn weights(&self) -> u64 {
        self.rows * self.columns
    }

    /// Strips: runs of 64 rows.
    #[must_use]
    pub fn strips(&self) -> u64 {
        self.rows / STEP_ROWS as u64
    }

    /// Steps of a strip.
    #[must_use]
    pub fn strip_steps(&self) -> u64 {
        self.columns / STEP_COLUMNS as u64
    }

    /// Steps of the matrix.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.strips() * self.strip_steps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_of_a_step_has_its_own_place() {
        let mut seen = [[false; STEP_COLUMNS]; STEP_ROWS];
        for index in 0..STEP_WEIGHTS {
            let (row, column) = place(index);
            assert!(!seen[row][column], "{row}, {column} twice");
            seen[row][column] = true;
        }
    }

    #[test]
    fn every_weight_of_a_step_has_its_own_place_in_a_plane() {
        let mut seen = [false; STEP_WEIGHTS];
        for index in 0..STEP_WEIGHTS {
            assert!(!std::mem::replace(&mut seen[plane_index(index)], true), "{index}");
        }
    }

    #[test]
    fn columns_are_rows_once_transposed() {
        let (rows, columns, stride) = (70, 45, 75);
        let from: Vec<u16> = (0..u16::try_from(rows * columns).unwrap()).collect();
        let mut to = vec![0; columns * stride];
        transpose(&from, columns, &mut to, stride);
        for (at, &weight) in from.iter().enumerate() {
            assert_eq!(to[at % columns * stride + at / columns], weight);
        }
    }

    #[test]
    fn a_grid_is_of_whole_steps() {
        assert!(Grid::new(0, 16).is_none());
        assert!(Grid::new(64, 0).is_none());
        assert!(Grid::new(96, 16).is_none());
        assert!(Grid::new(64, 24).is_none());
        assert!(Grid::new(1 << 62, 1 << 62).is_none());
        let grid = Grid::new(128, 48).unwrap();
        assert_eq!((grid.strips(), grid.strip_steps(), grid.steps()), (2, 3, 6));
    }
}
