//! The matrix of a pack: its tensors as the model holds them, read as tiles of whole strips.

use glyd_format::Dtype;
use glyd_format::plan::{Pack, Part};
use glyd_format::step::{Grid, STEP_COLUMNS, STEP_ROWS, WEIGHT_BYTES, transpose};

use crate::count::Lines;
use crate::error::Result;
use crate::values::Values;

/// Weights of the largest tile: 64 rows of 4,096 columns, which stay in a core's own cache.
const TILE_WEIGHTS: u64 = 1 << 18;
/// Strips of a tile whose rows are columns of the tensor: as many as make reading across it worth it.
const TRANSPOSED_STRIPS: u64 = 16;

/// A tensor of a pack, and which of the matrix's strips are its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) part: &'a Part,
    pub(crate) first_strip: u64,
    pub(crate) strips: u64,
    columns: u64,
    /// Of experts held as `[in, out]`: `out`, the rows of one expert's matrix.
    expert_rows: Option<u64>,
}

/// A matrix that is packed.
#[derive(Debug)]
pub(crate) struct Matrix<'a> {
    pub(crate) pack: &'a Pack,
    pub(crate) grid: Grid,
    pub(crate) members: Vec<Member<'a>>,
}

/// Whole strips of a matrix that are worked on at a time, and how many of their columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tile {
    /// The tensor.
    pub(crate) member: usize,
    /// The first strip, counted over the whole matrix.
    pub(crate) strip: u64,
    pub(crate) strips: u64,
    /// Columns of a chunk; the last of a strip may be narrower.
    pub(crate) columns: u64,
}

impl<'a> Matrix<'a> {
    /// The matrix of a pack; `None` where no layout takes its shape, or its tensors do not make it.
    pub(crate) fn new(pack: &'a Pack) -> Option<Self> {
        let [rows, columns] = pack.shape;
        let grid = Grid::new(rows, columns)?;
        let transposed = pack.experts.filter(|experts| experts.transposed);
        let mut first_strip = 0;
        let mut members = Vec::with_capacity(pack.tensors.len());
        for part in &pack.tensors {
            let weights = part.shape.iter().try_fold(1_u64, |all, &dim| all.checked_mul(dim))?;
            let own = Grid::new(weights / columns, columns)?;
            let expert_rows = match transposed {
                Some(experts) => Some(Grid::new(rows.checked_div(experts.count)?, columns)?.rows()),
                None => None,
            };
            if own.weights() != weights || part.value.elements() != weights {
                return None;
            }
            members.push(Member { part, first_strip, strips: own.strips(), columns, expert_rows });
            first_strip += own.strips();
        }
        (first_strip == grid.strips()).then_some(Matrix { pack, grid, members })
    }

    /// Bytes of the weights as bf16.
    pub(crate) fn bytes(&self) -> u64 {
        self.grid.weights() * WEIGHT_BYTES as u64
    }

    /// The matrix cut into tiles, in the order of its strips; each tile is of one tensor and, where
    /// experts are transposed, of one expert.
    pub(crate) fn tiles(&self) -> Vec<Tile> {
        let strip_weights = self.grid.columns() * STEP_ROWS as u64;
        let mut tiles = Vec::new();
        for (number, member) in self.members.iter().enumerate() {
            let whole = (TILE_WEIGHTS / strip_weights).max(1);
            let (strips, unit) = match member.expert_rows {
                Some(rows) => (TRANSPOSED_STRIPS, rows / STEP_ROWS as u64),
                None => (whole, member.strips),
            };
            for start in (0..member.strips).step_by(usize::try_from(unit).unwrap_or(usize::MAX)) {
                let mut at = 0;
                while at < unit {
                    let strips = strips.min(unit - at);
                    let columns = TILE_WEIGHTS / (strips * STEP_ROWS as u64);
                    let columns =
                        (columns / STEP_COLUMNS as u64 * STEP_COLUMNS as u64).min(self.grid.columns());
                    tiles.push(Tile {
                        member: number,
                        strip: member.first_strip + start + at,
                        strips,
                        columns,
                    });
                    at += strips;
                }
            }
        }
        tiles
    }
}

impl<'a> Member<'a> {
    pub(crate) fn lines(&self) -> Lines {
        match self.expert_rows {
            None => Lines {
                line_weights: self.columns,
                cell_weights: STEP_COLUMNS,
                group_lines: STEP_ROWS as u64,
            },
            Some(rows) => {
                Lines { line_weights: rows, cell_weights: STEP_ROWS, group_lines: STEP_COLUMNS as u64 }
            }
        }
    }

    /// The strip, counted from the tensor's first, that a cell of a group is in.
    pub(crate) fn strip_of(&self, group: u64, cell: u64) -> u64 {
        match self.expert_rows {
            None => group,
            Some(rows) => {
                let expert = group / (self.columns / STEP_COLUMNS as u64);
                expert * (rows / STEP_ROWS as u64) + cell
            }
        }
    }

    /// Weights of the tensor.
    pub(crate) fn weights(&self) -> u64 {
        self.strips * STEP_ROWS as u64 * self.columns
    }

    /// Reads weights as they are held, from `first` on.
    pub(crate) fn read(&self, values: &mut Values<'a>, first: u64, out: &mut [u16]) -> Result<()> {
        values.read(&self.part.value, Dtype::BF16, first, bytemuck::cast_slice_mut(out))
    }

    /// Reads the columns `columns` of a tile's strips, as rows that stand that many weights apart.
    pub(crate) fn read_tile(
        &self,
        values: &mut Values<'a>,
        tile: Tile,
        columns: std::ops::Range<u64>,
        out: &mut Vec<u16>,
    ) -> Result<()> {
        let wide = usize::try_from(columns.end - columns.start).unwrap_or(usize::MAX);
        let rows = usize::try_from(tile.strips).unwrap_or(usize::MAX).saturating_mul(STEP_ROWS);
        out.resize(wide.saturating_mul(rows), 0);
        let row = (tile.strip - self.first_strip) * STEP_ROWS as u64;
        let Some(expert_rows) = self.expert_rows else {
            if columns.end - columns.start == self.columns {
                return self.read(values, row * self.columns, out);
            }
            for (row, out) in (row..).zip(out.chunks_exact_mut(wide)) {
                self.read(values, row * self.columns + columns.start, out)?;
            }
            return Ok(());
        };
        let (expert, row) = (row / expert_rows, row % expert_rows);
        let mut lines = vec![0; rows.saturating_mul(wide)];
        for (column, line) in columns.zip(lines.chunks_exact_mut(rows)) {
            self.read(values, (expert * self.columns + column) * expert_rows + row, line)?;
        }
        transpose(&lines, rows, out, wide);
        Ok(())
    }
}
