//! Why a tensor is saved as it is.

use std::fmt;

use safetensors::Dtype;

use crate::step::{STEP_COLUMNS, STEP_ROWS};

/// Why a tensor is saved as it is, and not packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// It is saved in another dtype than bf16.
    Dtype(Dtype),
    /// It is no matrix: how many dimensions it has.
    Dimensions(usize),
    /// It is an embedding.
    Embedding,
    /// It has the value of this tensor of the model.
    TiedTo(String),
    /// Its rows (of an expert's matrix, the expert's) do not fill steps.
    Rows(u64),
    /// Its columns do not fill steps.
    Columns(u64),
    /// It is no Linear's weight.
    NotLinear,
    /// It is an experts' weight, and another one of its module does not pack.
    Expert,
    /// It is one of those that the caller wants left: packed, it would be larger.
    Grows,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::Dtype(dtype) => write!(f, "dtype {dtype:?}"),
            Left::Dimensions(n) => write!(f, "{n}-D"),
            Left::Embedding => f.write_str("embedding"),
            Left::TiedTo(name) => write!(f, "tied to `{name}`"),
            Left::Rows(0) | Left::Columns(0) => f.write_str("empty"),
            Left::Rows(n) => write!(f, "rows {n} are not a multiple of {ROWS}"),
            Left::Columns(n) => write!(f, "columns {n} are not a multiple of {COLUMNS}"),
            Left::NotLinear => f.write_str("not a Linear"),
            Left::Expert => f.write_str("an expert of this module does not pack"),
            Left::Grows => f.write_str("packed, it would be larger"),
        }
    }
}

const ROWS: u64 = STEP_ROWS as u64;
const COLUMNS: u64 = STEP_COLUMNS as u64;

/// Why a matrix of this shape does not pack (`docs/format.md`, section 2); none where it does.
pub(super) fn unfit(rows: u64, columns: u64) -> Option<Left> {
    if rows == 0 || !rows.is_multiple_of(ROWS) {
        Some(Left::Rows(rows))
    } else if columns == 0 || !columns.is_multiple_of(COLUMNS) {
        Some(Left::Columns(columns))
    } else {
        None
    }
}

/// As [`unfit`], of any shape.
pub(super) fn unfit_shape(shape: &[u64]) -> Option<Left> {
    match *shape {
        [rows, columns] => unfit(rows, columns),
        _ => Some(Left::Dimensions(shape.len())),
    }
}
