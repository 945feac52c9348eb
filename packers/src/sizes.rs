//! How large a checkpoint's packs would be, exactly: the first pass of packing without the second.

use std::collections::{BTreeMap, BTreeSet};

use glyd_format::plan::Put;
use glyd_format::{Buffer, Checkpoint, Layout, Progress};

use crate::error::Result;
use crate::matrix::Matrix;
use crate::measure::{Puts, measure};
use crate::pack::{Options, plan_for};
use crate::shards::{GROWTH_MAX, matrix};
use crate::workers;

/// Bytes of every pack that packing the checkpoint would make, by its name, in the order of
/// [`Layout::ALL`]: all weights are read, once for each layout, and nothing is written. A pack that would
/// grow has the bytes of its weights, as it is saved as it is. `options.layout` says nothing here.
///
/// # Errors
/// As packing's, but for those of writing.
pub fn measure_sizes(
    checkpoint: &Checkpoint,
    options: &Options,
    progress: &dyn Progress,
) -> Result<BTreeMap<String, [u64; 2]>> {
    let pool = workers::start(options.threads)?;
    let plan = plan_for(checkpoint, options, &BTreeSet::new())?;
    let packs = plan.puts.iter().filter_map(|put| match put {
        Put::Pack(pack) => Some(matrix(pack)),
        Put::Plain(_) => None,
    });
    let matrices: Vec<Matrix<'_>> = packs.collect::<Result<_>>()?;
    let of: Vec<&Matrix<'_>> = matrices.iter().collect();
    // Each layout's pass counts half of the bytes.
    progress.start(matrices.iter().map(Matrix::bytes).sum());
    let mut sizes: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for (at, layout) in Layout::ALL.into_iter().enumerate() {
        let puts = Puts { matrices: &of, plain: &[] };
        let (measured, _) = measure(&pool, checkpoint.weights(), &puts, layout, progress)?;
        for (matrix, measured) in matrices.iter().zip(measured) {
            let bytes = Buffer::ALL.iter().map(|&buffer| measured.buffer_bytes(matrix, buffer)).sum::<u64>();
            let grows = bytes > matrix.bytes() + matrix.bytes() / GROWTH_MAX
                || measured.list_units() > layout.list_units_max();
            let entry = sizes.entry(matrix.pack.name()).or_default();
            entry[at] = if grows { matrix.bytes() } else { bytes };
        }
    }
    checkpoint.weights().check_unchanged()?;
    Ok(sizes)
}
