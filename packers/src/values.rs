//! A model's tensors read, range by range, from the checkpoint's: an expression is a way to find
//! each element, and nothing of a tensor is held but the range that is asked for
//! (`docs/families.md`, "Expressions").

use glyd_format::plan::{Expr, Value};
use glyd_format::weights::Weights;
use glyd_format::{Dtype, Invalid};

use crate::cast::{can_cast, cast};
use crate::error::Result;

/// Bytes of a transposed band that are kept: reading across the rows of a matrix is slow unless many
/// neighbouring columns are taken at a time.
const BAND_BYTES: u64 = 1 << 20;
/// Bytes up to which a tensor is read whole where its elements are scattered.
const WHOLE_BYTES: u64 = 64 << 20;

/// Reads tensors of the model, which outlive it; one a thread.
pub(crate) struct Values<'a> {
    weights: &'a Weights,
    band_bytes: u64,
    band: Option<Band<'a>>,
    uncast: Vec<u8>,
}

/// Rows of a transposed matrix, as they were last read.
struct Band<'a> {
    /// The transposed value.
    of: &'a Value,
    first: u64,
    bytes: Vec<u8>,
}

/// Whether reading a value reads across the rows of a matrix, band by band.
fn transposes(value: &Value) -> bool {
    match &value.expr {
        Expr::Src(_) => false,
        Expr::Transpose { a, b, of } => a != b || transposes(of),
        Expr::Stack { parts, .. } | Expr::Cat { parts, .. } => parts.iter().any(transposes),
        Expr::Queries { a, b } => transposes(a) || transposes(b),
        Expr::Slice { of, .. }
        | Expr::Interleave { of, .. }
        | Expr::Rope { of, .. }
        | Expr::Last { of, .. } => transposes(of),
    }
}

/// How a dimension of a value splits its elements: `outer` runs of `size` blocks of `inner`.
#[derive(Clone, Copy)]
struct Split {
    size: u64,
    inner: u64,
}

impl Split {
    fn of(value: &Value, dim: usize) -> Split {
        let inner = value.shape.iter().skip(dim + 1).product();
        Split { size: value.shape.get(dim).copied().unwrap_or(1), inner }
    }

    fn run(self) -> u64 {
        self.size * self.inner
    }
}

impl<'a> Values<'a> {
    pub(crate) fn new(weights: &'a Weights) -> Self {
        Values { weights, band_bytes: BAND_BYTES, band: None, uncast: Vec::new() }
    }

    /// Where they are read from.
    pub(crate) fn weights(&self) -> &'a Weights {
        self.weights
    }

    /// Bytes that are kept while a value is read in a dtype, so many elements at a time.
    pub(crate) fn held_bytes(value: &Value, dtype: Dtype, elements: u64) -> u64 {
        let band_bytes = if transposes(value) { BAND_BYTES } else { 0 };
        let uncast_bits = if value.dtype == dtype { 0 } else { value.dtype.bitsize() as u64 };
        band_bytes + elements * uncast_bits / 8
    }

    /// Fills `out` with a value's elements from `first` on, in the dtype `dtype`.
    pub(crate) fn read(&mut self, value: &'a Value, dtype: Dtype, first: u64, out: &mut [u8]) -> Result<()> {
        if value.dtype == dtype {
            return self.fill(value, first, out);
        }
        if !can_cast(value.dtype, dtype) {
            return Err(unreadable(value, &format!("a dtype that can be had as {dtype}")));
        }
        let elements = out.len() / (dtype.bitsize() / 8);
        let mut uncast = std::mem::take(&mut self.uncast);
        uncast.resize(elements * (value.dtype.bitsize() / 8), 0);
        self.fill(value, first, &mut uncast)?;
        let mut converted = Vec::new();
        cast(value.dtype, &uncast, dtype, &mut converted);
        out.copy_from_slice(&converted);
        self.uncast = uncast;
        Ok(())
    }

    fn fill(&mut self, value: &'a Value, first: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let bits = value.dtype.bitsize() as u64;
        if let Expr::Src(name) = &value.expr {
            let at =
                self.weights.find(name).ok_or_else(|| unreadable(value, "a tensor of the checkpoint"))?;
            return Ok(self.weights.read_at(at, out, first * bits / 8)?);
        }
        if !bits.is_multiple_of(8) {
            return Err(unreadable(value, "elements of whole bytes"));
        }
        match &value.expr {
            Expr::Src(_) => Ok(()),
            Expr::Stack { dim, parts } => self.fill_parts(value, *dim, parts, first, out),
            Expr::Cat { dim, parts } => self.fill_parts(value, *dim, parts, first, out),
            Expr::Slice { dim, from, of, .. } => {
                let (to, source) = (Split::of(value, *dim), Split::of(of, *dim));
                self.fill_blocks(first, out, value, to.run(), |element| {
                    (of.as_ref(), element / to.run() * source.run() + from * to.inner + element % to.run())
                })
            }
            Expr::Interleave { dim, of } => {
                let half = Split::of(value, *dim).size / 2;
                let row = |row: u64| if row < half { 2 * row } else { 2 * (row - half) + 1 };
                self.fill_rows(value, of, Split::of(value, *dim), row, first, out)
            }
            Expr::Rope { heads, of } => {
                let split = Split::of(value, 0);
                let head = (split.size / (*heads).max(1)).max(2);
                let row = |row: u64| {
                    let (base, row) = (row / head * head, row % head);
                    base + row % (head / 2) * 2 + row / (head / 2)
                };
                self.fill_rows(value, of, split, row, first, out)
            }
            Expr::Queries { a, b } => {
                let width = Split::of(a, 0).inner;
                self.fill_blocks(first, out, value, width, |element| {
                    let (query, row, column) = (element / width / 4, element / width % 4, element % width);
                    let of = if matches!(row, 0 | 3) { a } else { b };
                    (of.as_ref(), (2 * query + row / 2) * width + column)
                })
            }
            Expr::Transpose { a, b, of } => {
                self.fill_transposed(value, of, (*a).min(*b), (*a).max(*b), first, out)
            }
            Expr::Last { f32_bits, of } => {
                self.fill(of, first, out)?;
                let width = bits / 8;
                if first + out.len() as u64 / width == value.elements() {
                    let last = last_element(value, *f32_bits)?;
                    let at = out.len() - last.len();
                    out[at..].copy_from_slice(&last);
                }
                Ok(())
            }
        }
    }

    /// Fills `out` block by block: `find` says which value has an element and where, and that holds up
    /// to the next multiple of `block` elements.
    fn fill_blocks(
        &mut self,
        first: u64,
        out: &mut [u8],
        value: &'a Value,
        block: u64,
        find: impl Fn(u64) -> (&'a Value, u64),
    ) -> Result<()> {
        let width = value.dtype.bitsize() / 8;
        let mut element = first;
        let mut rest = out;
        while !rest.is_empty() {
            let here = bytes_of(block - element % block, width).min(rest.len());
            let (now, later) = rest.split_at_mut(here);
            let (of, at) = find(element);
            self.fill(of, at, now)?;
            element += (here / width) as u64;
            rest = later;
        }
        Ok(())
    }

    /// A stack or a concatenation.
    fn fill_parts(
        &mut self,
        value: &'a Value,
        dim: usize,
        parts: &'a [Value],
        first: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let stacked = matches!(value.expr, Expr::Stack { .. });
        let split = Split::of(value, dim);
        let width = value.dtype.bitsize() / 8;
        let mut element = first;
        let mut rest = out;
        let rows = |part: &Value| if stacked { 1 } else { Split::of(part, dim).size };
        let mut starts = vec![0];
        starts.extend(parts.iter().scan(0, |end, part| {
            *end += rows(part) * split.inner;
            Some(*end)
        }));
        while !rest.is_empty() {
            let (outer, within) = (element / split.run(), element % split.run());
            // The last part that starts no later: parts without rows are passed over.
            let part = starts.partition_point(|&start| start <= within) - 1;
            let (start, end) = (starts[part], starts[part + 1]);
            let here = bytes_of(end - within, width).min(rest.len());
            let (now, later) = rest.split_at_mut(here);
            self.fill(&parts[part], outer * (end - start) + within - start, now)?;
            element += (here / width) as u64;
            rest = later;
        }
        Ok(())
    }

    /// Rows of a dimension in another order: row `k` is row `row(k)` of `of`.
    fn fill_rows(
        &mut self,
        value: &'a Value,
        of: &'a Value,
        split: Split,
        row: impl Fn(u64) -> u64,
        first: u64,
        out: &mut [u8],
    ) -> Result<()> {
        const FEW: u64 = 64;
        if split.inner >= FEW || split.run() * 8 > WHOLE_BYTES {
            return self.fill_blocks(first, out, value, split.inner, |element| {
                let (outer, k) = (element / split.run(), element / split.inner % split.size);
                (of, outer * split.run() + row(k) * split.inner + element % split.inner)
            });
        }
        // Short blocks: a run of them is read whole.
        let width = value.dtype.bitsize() / 8;
        let mut run = vec![0; bytes_of(split.run(), width)];
        let mut read = None;
        for (element, to) in (first..).zip(out.chunks_exact_mut(width)) {
            let outer = element / split.run();
            if read != Some(outer) {
                self.fill(of, outer * split.run(), &mut run)?;
                read = Some(outer);
            }
            let k = element / split.inner % split.size;
            let at = bytes_of(row(k) * split.inner + element % split.inner, width);
            to.copy_from_slice(&run[at..at + width]);
        }
        Ok(())
    }

    /// Two dimensions swapped, `a` before `b`.
    fn fill_transposed(
        &mut self,
        value: &'a Value,
        of: &'a Value,
        a: usize,
        b: usize,
        first: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let width = value.dtype.bitsize() / 8;
        if a == b {
            return self.fill(of, first, out);
        }
        if b != a + 1 || b + 1 != value.shape.len() {
            return self.fill_swapped(value, of, a, b, first, out);
        }
        let mut element = first;
        let mut rest = out;
        while !rest.is_empty() {
            let band = match self.band.take() {
                Some(band) if std::ptr::eq(band.of, value) && band.first <= element => Some(band),
                _ => None,
            };
            let held = band.filter(|band| bytes_of(element - band.first, width) < band.bytes.len());
            let band = match held {
                Some(band) => band,
                None => self.read_band(value, of, element)?,
            };
            let skip = bytes_of(element - band.first, width);
            let here = (band.bytes.len() - skip).min(rest.len());
            let (now, later) = rest.split_at_mut(here);
            now.copy_from_slice(&band.bytes[skip..skip + here]);
            element += (here / width) as u64;
            rest = later;
            self.band = Some(band);
        }
        Ok(())
    }

    /// The rows of a transposed matrix from the one that has `element` on; of rows that are longer than a
    /// band, a part of one.
    fn read_band(&mut self, value: &'a Value, of: &'a Value, element: u64) -> Result<Band<'a>> {
        let width = value.dtype.bitsize() / 8;
        let dims = value.shape.len();
        let (rows, columns) = (value.shape[dims - 2], value.shape[dims - 1]);
        let (matrix, row, column) = (element / (rows * columns), element / columns % rows, element % columns);
        let row_bytes = columns.saturating_mul(width as u64);
        let (from, wide) = if row_bytes > self.band_bytes {
            (column, (self.band_bytes / width as u64).min(columns - column))
        } else {
            (0, columns)
        };
        let band_rows = (self.band_bytes / row_bytes).clamp(1, rows - row);
        let mut bytes = vec![0; bytes_of(band_rows * wide, width)];
        let mut line = vec![0; bytes_of(band_rows, width)];
        for column in 0..wide {
            self.fill(of, (matrix * columns + from + column) * rows + row, &mut line)?;
            let at = bytes_of(column, width);
            let to = bytes[at..].chunks_mut(bytes_of(wide, width));
            for (to, from) in to.zip(line.chunks_exact(width)) {
                to[..width].copy_from_slice(from);
            }
        }
        Ok(Band { of: value, first: (matrix * rows + row) * columns + from, bytes })
    }

    /// Any two dimensions swapped: `of` is read whole, as such tensors are small.
    fn fill_swapped(
        &mut self,
        value: &'a Value,
        of: &'a Value,
        a: usize,
        b: usize,
        first: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let width = value.dtype.bitsize() / 8;
        if of.elements().checked_mul(width as u64).is_none_or(|bytes| bytes > WHOLE_BYTES) {
            return Err(unreadable(
                value,
                &format!("at most {WHOLE_BYTES} bytes where these dimensions are swapped"),
            ));
        }
        let mut whole = vec![0; bytes_of(of.elements(), width)];
        self.fill(of, 0, &mut whole)?;
        let strides: Vec<u64> = (0..of.shape.len()).map(|dim| Split::of(of, dim).inner).collect();
        for (element, to) in (first..).zip(out.chunks_exact_mut(width)) {
            let mut at = 0;
            let mut left = element;
            for dim in (0..value.shape.len()).rev() {
                let index = left % value.shape[dim];
                left /= value.shape[dim];
                let source = if dim == a {
                    b
                } else if dim == b {
                    a
                } else {
                    dim
                };
                at += index * strides[source];
            }
            let at = bytes_of(at, width);
            to.copy_from_slice(&whole[at..at + width]);
        }
        Ok(())
    }
}

/// Bytes of this many elements: of a range that is held in memory, or none where that cannot be.
fn bytes_of(elements: u64, width: usize) -> usize {
    usize::try_from(elements).map_or(usize::MAX, |elements| elements.saturating_mul(width))
}

fn last_element(value: &Value, f32_bits: u32) -> Result<Vec<u8>> {
    match value.dtype {
        Dtype::F32 => Ok(f32_bits.to_le_bytes().to_vec()),
        Dtype::BF16 => Ok(f32_bits.to_le_bytes()[2..].to_vec()),
        _ => Err(unreadable(value, "BF16 or F32 where the last element is replaced")),
    }
}

fn unreadable(value: &Value, expected: &str) -> crate::Error {
    let tensor = value.expr.sources().next().map(str::to_owned);
    let found = format!("{} {:?}", value.dtype, value.shape);
    Invalid { tensor, expected: expected.to_owned(), found, ..Invalid::default() }.into()
}

#[cfg(test)]
mod tests;
