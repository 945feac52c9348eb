//! Expressions read in ranges, held to an evaluator that follows each element by the definitions.

use glyd_fixtures::random::SplitMix64;
use glyd_fixtures::safetensors;
use glyd_format::weights::WeightsFile;

use super::*;

/// Tensors while an expression over them is drawn; each has weights of its own.
struct Draw {
    random: SplitMix64,
    sources: Vec<(String, Vec<u64>, Vec<u16>)>,
    next: u16,
}

impl Draw {
    fn new(seed: u64) -> Self {
        Draw { random: SplitMix64::new(seed), sources: Vec::new(), next: 0 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn source(&mut self, shape: &[u64]) -> Value {
        let name = format!("t{}", self.sources.len());
        let count: u64 = shape.iter().product();
        let weights = (0..count).map(|_| {
            self.next = self.next.wrapping_add(1);
            self.next
        });
        let weights = weights.collect();
        self.sources.push((name.clone(), shape.to_vec(), weights));
        Value::src(&name, Dtype::BF16, shape).unwrap()
    }

    fn dim(&mut self, shape: &[u64]) -> usize {
        usize::try_from(self.below(shape.len() as u64)).unwrap()
    }

    /// An expression of this shape.
    fn value(&mut self, shape: &[u64], depth: u32) -> Value {
        if depth == 0 || shape.is_empty() {
            return self.source(shape);
        }
        let dim = self.dim(shape);
        let size = shape[dim];
        let with = |size: u64| {
            let mut shape = shape.to_vec();
            shape[dim] = size;
            shape
        };
        match self.below(9) {
            0 if size > 0 && size < 5 => {
                let mut part = shape.to_vec();
                part.remove(dim);
                let parts = (0..size).map(|_| self.value(&part, depth - 1)).collect();
                Value::stack(dim, parts).unwrap()
            }
            1 => {
                let cut = self.below(size + 1);
                let sizes = [cut, 0, size - cut];
                let parts = sizes.iter().map(|&size| self.value(&with(size), depth - 1)).collect();
                Value::cat(dim, parts).unwrap()
            }
            2 => {
                let (before, after) = (self.below(3), self.below(3));
                let of = self.value(&with(before + size + after), depth - 1);
                of.slice(dim, before, before + size).unwrap()
            }
            3 | 4 => {
                let other = self.dim(shape);
                let mut of = shape.to_vec();
                of.swap(dim, other);
                self.value(&of, depth - 1).transpose(dim, other).unwrap()
            }
            5 if size.is_multiple_of(2) => self.value(shape, depth - 1).interleave(dim).unwrap(),
            6 if shape[0] > 0 && shape[0].is_multiple_of(2) => {
                let pairs = shape[0] / 2;
                let heads: Vec<u64> = (1..=pairs).filter(|heads| pairs.is_multiple_of(*heads)).collect();
                let heads = heads[usize::try_from(self.below(heads.len() as u64)).unwrap()];
                self.value(shape, depth - 1).rope(heads).unwrap()
            }
            7 if shape.len() == 3 && shape[1] == 4 => {
                let part = [2 * shape[0], shape[2]];
                let (a, b) = (self.value(&part, depth - 1), self.value(&part, depth - 1));
                Value::queries(a, b).unwrap()
            }
            8 if shape.iter().all(|&size| size > 0) => self.value(shape, depth - 1).last(1.5).unwrap(),
            _ => self.value(shape, depth - 1),
        }
    }

    fn weights(&self, dir: &std::path::Path) -> Weights {
        let bytes: Vec<Vec<u8>> = self
            .sources
            .iter()
            .map(|(_, _, weights)| weights.iter().flat_map(|weight| weight.to_le_bytes()).collect())
            .collect();
        let entries: Vec<safetensors::Entry<'_>> = self
            .sources
            .iter()
            .zip(&bytes)
            .map(|((name, shape, _), bytes)| (name.as_str(), "BF16", shape.as_slice(), bytes.as_slice()))
            .collect();
        safetensors::write(&dir.join("a.safetensors"), None, &entries);
        let (file, _) = WeightsFile::open(dir, "a.safetensors").unwrap();
        Weights::new(vec![file], |_, _| true)
    }

    /// The element of a value at an index, followed down to its source.
    fn at(&self, value: &Value, index: &[u64]) -> u16 {
        let with = |dim: usize, to: u64| {
            let mut index = index.to_vec();
            index[dim] = to;
            index
        };
        match &value.expr {
            Expr::Src(name) => {
                let (_, shape, weights) = self.sources.iter().find(|(own, _, _)| own == name).unwrap();
                let at = shape.iter().zip(index).fold(0, |at, (size, index)| at * size + index);
                weights[usize::try_from(at).unwrap()]
            }
            Expr::Stack { dim, parts } => {
                let mut inner = index.to_vec();
                let part = inner.remove(*dim);
                self.at(&parts[usize::try_from(part).unwrap()], &inner)
            }
            Expr::Cat { dim, parts } => {
                let mut left = index[*dim];
                for part in parts {
                    if left < part.shape[*dim] {
                        return self.at(part, &with(*dim, left));
                    }
                    left -= part.shape[*dim];
                }
                unreachable!("an index within the parts")
            }
            Expr::Slice { dim, from, of, .. } => self.at(of, &with(*dim, from + index[*dim])),
            Expr::Transpose { a, b, of } => {
                let mut index = index.to_vec();
                index.swap(*a, *b);
                self.at(of, &index)
            }
            Expr::Interleave { dim, of } => {
                let order: Vec<u64> =
                    (0..value.shape[*dim]).step_by(2).chain((1..value.shape[*dim]).step_by(2)).collect();
                self.at(of, &with(*dim, order[usize::try_from(index[*dim]).unwrap()]))
            }
            Expr::Rope { heads, of } => {
                // [heads, rows / heads / 2, 2], the last two swapped: the row that comes here.
                let half = value.shape[0] / heads / 2;
                let mut order = Vec::new();
                for head in 0..*heads {
                    for second in 0..2 {
                        order.extend((0..half).map(|pair| head * half * 2 + pair * 2 + second));
                    }
                }
                self.at(of, &with(0, order[usize::try_from(index[0]).unwrap()]))
            }
            Expr::Queries { a, b } => {
                let (of, row) = match index[1] {
                    0 => (a, 2 * index[0]),
                    1 => (b, 2 * index[0]),
                    2 => (b, 2 * index[0] + 1),
                    _ => (a, 2 * index[0] + 1),
                };
                self.at(of, &[row, index[2]])
            }
            Expr::Last { f32_bits, of } => {
                let last = value.shape.iter().zip(index).all(|(size, index)| index + 1 == *size);
                if last {
                    f32_bits.to_be_bytes()[..2].iter().fold(0, |bits, &byte| bits << 8 | u16::from(byte))
                } else {
                    self.at(of, index)
                }
            }
        }
    }

    fn all(&self, value: &Value) -> Vec<u16> {
        let one = |element: u64| {
            let mut left = element;
            let mut index: Vec<u64> = value
                .shape
                .iter()
                .rev()
                .map(|size| {
                    let index = left % size;
                    left /= size;
                    index
                })
                .collect();
            index.reverse();
            self.at(value, &index)
        };
        (0..value.elements()).map(one).collect()
    }
}

fn read<'a>(values: &mut Values<'a>, value: &'a Value, range: std::ops::Range<usize>) -> Vec<u16> {
    let mut bytes = vec![0xAA; range.len() * 2];
    values.read(value, Dtype::BF16, range.start as u64, &mut bytes).unwrap();
    bytes.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect()
}

/// Reads a value whole, in order, and in ranges of any order, and holds it to the evaluator.
fn check(draw: &mut Draw, value: &Value, band_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    let weights = draw.weights(dir.path());
    let wanted = draw.all(value);
    let mut values = Values { band_bytes, ..Values::new(&weights) };
    assert!(read(&mut values, value, 0..wanted.len()) == wanted, "{value:?}");
    let most = 1 + draw.below(100);
    let mut at = 0;
    while at < wanted.len() {
        let end = (at + 1 + usize::try_from(draw.below(most)).unwrap()).min(wanted.len());
        assert!(read(&mut values, value, at..end) == wanted[at..end], "{at}..{end} of {value:?}");
        at = end;
    }
    for _ in 0..8 {
        let start = usize::try_from(draw.below(wanted.len() as u64 + 1)).unwrap();
        let end = start + usize::try_from(draw.below((wanted.len() - start) as u64 + 1)).unwrap();
        assert!(read(&mut values, value, start..end) == wanted[start..end], "{start}..{end} of {value:?}");
    }
}

#[test]
fn expressions_read_as_they_are_defined() {
    for seed in 0..400 {
        let mut draw = Draw::new(seed);
        let shape = match seed % 8 {
            0 => vec![64],
            1 => vec![6, 4, 5],
            2 => vec![2, 3, 4, 2],
            3 => vec![4, 70],
            4 => vec![8, 2, 66],
            5 => vec![3, 4, 8],
            6 => vec![],
            _ => vec![12, 10],
        };
        let value = draw.value(&shape, 4);
        let band_bytes = [2, 8, 64, BAND_BYTES][usize::try_from(draw.below(4)).unwrap()];
        check(&mut draw, &value, band_bytes);
    }
}

#[test]
fn a_transposed_matrix_of_many_bands_reads_as_it_is_defined() {
    let mut draw = Draw::new(1);
    let value = draw.source(&[2, 1100, 1040]).transpose(1, 2).unwrap();
    check(&mut draw, &value, BAND_BYTES / 4);
}
