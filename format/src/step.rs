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

/// The exponent without its last bit, of 128: what the 12-bit layout codes.
#[must_use]
pub const fn high_exponent(weight: u16) -> u8 {
    weight.to_be_bytes()[0] & 0x7F
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

/// A step's weights in step order.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Step([u32; STEP_WEIGHTS / 2]);

impl Default for Step {
    fn default() -> Self {
        Step([0; STEP_WEIGHTS / 2])
    }
}

impl Step {
    /// The weights.
    #[must_use]
    pub fn weights(&self) -> &[u16; STEP_WEIGHTS] {
        bytemuck::cast_ref(&self.0)
    }

    /// The weights, to be written.
    pub fn weights_mut(&mut self) -> &mut [u16; STEP_WEIGHTS] {
        bytemuck::cast_mut(&mut self.0)
    }

    /// Takes the weights from rows that stand `stride` apart.
    ///
    /// # Panics
    /// Where `rows` does not reach from the step's first weight to its last.
    #[inline(always)]
    pub fn gather(&mut self, rows: &[u16], stride: usize) {
        for row in 0..STEP_ROWS {
            let from = &rows[row * stride..row * stride + STEP_COLUMNS];
            let first = first_pair(row);
            for (at, pair) in from.as_chunks::<2>().0.iter().enumerate() {
                self.0[first + pair_offset(at)] = u32::from(pair[0]) | u32::from(pair[1]) << 16;
            }
        }
    }

    /// Puts the weights where they stand in rows that are `stride` apart.
    ///
    /// # Panics
    /// Where `rows` does not reach from the step's first weight to its last.
    #[inline(always)]
    pub fn scatter(&self, rows: &mut [u16], stride: usize) {
        for row in 0..STEP_ROWS {
            let to = &mut rows[row * stride..row * stride + STEP_COLUMNS];
            let first = first_pair(row);
            for (at, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let [a, b, c, d] = self.0[first + pair_offset(at)].to_le_bytes();
                *to = [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])];
            }
        }
    }
}

/// The pair, in step order, that a row's first one is.
const fn first_pair(row: usize) -> usize {
    const ROW_LANES: usize = 4;
    LANE_WEIGHTS / 2 * ROW_LANES * (row % 8) + 2 * (row / 8)
}

/// How far behind it, in step order, a row's pair `pair` is: the inverse of [`place`].
const fn pair_offset(pair: usize) -> usize {
    LANE_WEIGHTS / 2 * (pair % 4) + pair / 4
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
    fn gather_and_scatter_follow_place() {
        let stride = 48;
        let rows: Vec<u16> = (0..u16::try_from(STEP_ROWS * stride).unwrap()).collect();
        let mut step = Step::default();
        step.gather(&rows[16..], stride);
        for (index, &weight) in step.weights().iter().enumerate() {
            let (row, column) = place(index);
            assert_eq!(weight, rows[16 + row * stride + column]);
        }
        let mut back = vec![0; rows.len()];
        step.scatter(&mut back[16..], stride);
        for row in 0..STEP_ROWS {
            let at = row * stride + 16;
            assert_eq!(back[at..at + STEP_COLUMNS], rows[at..at + STEP_COLUMNS]);
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
