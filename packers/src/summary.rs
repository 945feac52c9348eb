//! What packing a checkpoint did, or would do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use glyd_format::header::tensor_bytes;
use glyd_format::index::INDEX_NAME;
use glyd_format::manifest::{Format, Source};
use glyd_format::plan::{Plan, Put};
use glyd_format::{Checkpoint, Dtype, Layout};

use crate::error::Result;
use crate::extras::Extras;
use crate::pack::Options;
use crate::shards::{Saved, format_of, matrix, put_bytes};

/// What packing a checkpoint did, or (of a dry run) would do.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Where the checkpoint came from.
    pub source: Source,
    /// The source's folder.
    pub path: PathBuf,
    /// The version of the format.
    pub format: Format,
    /// The layout of the packs.
    pub layout: Layout,
    /// Packed matrices.
    pub packs: u64,
    /// Tensors in them.
    pub packed_tensors: u64,
    /// Weights in them.
    pub packed_weights: u64,
    /// Tensors saved as they are.
    pub plain_tensors: u64,
    /// Tensors cast from another dtype to bf16.
    pub cast_tensors: u64,
    /// Tensors widened from bf16 to fp32.
    pub widened_tensors: u64,
    /// Bytes of it all.
    pub bytes: Bytes,
    /// The files of the packed checkpoint, with their bytes: weights, index and manifest. Of a dry run, none.
    pub files: Vec<(String, u64)>,
    /// Files copied, with their bytes.
    pub copied: Vec<(PathBuf, u64)>,
    /// Packed matrices, in the order in which they are put.
    pub matrices: Vec<PackedMatrix>,
    /// Tensors saved as they are, in that order too.
    pub left: Vec<LeftTensor>,
    /// Tensors of the source that are not saved, or not whole.
    pub dropped: Vec<DroppedTensor>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// Bytes by what they are of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// The source's tensors.
    pub source: u64,
    /// What is packed, as bf16.
    pub packed_source: u64,
    /// What is packed, packed. Of a dry run, not known.
    pub packed: Option<u64>,
    /// What is saved as it is.
    pub plain: u64,
    /// All files of weights, the index and the manifest. Of a dry run, not known.
    pub written: Option<u64>,
}

/// A packed matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedMatrix {
    /// The pack's name.
    pub pack: String,
    /// Rows and columns.
    pub shape: [u64; 2],
    /// The names of the tensors in it, in their order by rows.
    pub tensors: Vec<String>,
    /// How many experts' matrices it is, of an experts' weight.
    pub experts: Option<u64>,
}

/// A tensor saved as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftTensor {
    /// Its name in the model.
    pub tensor: String,
    /// Its dtype, as saved.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its bytes, as saved.
    pub bytes: u64,
    /// Why it is not packed.
    pub reason: String,
}

/// A tensor of the source that is not saved, or not whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedTensor {
    /// Its name in the source.
    pub tensor: String,
    /// Bytes of it that are not saved.
    pub bytes: u64,
    /// Why.
    pub reason: String,
}

impl Summary {
    /// Bits that a packed weight takes, over all packs; `None` of a dry run, or where nothing is packed.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn bits_per_weight(&self) -> Option<f64> {
        let bytes = self.bytes.packed.filter(|_| self.packed_weights > 0)?;
        Some(bytes as f64 * 8.0 / self.packed_weights as f64)
    }
}

/// What the plan does: of a dry run, all that can be known.
pub(crate) fn summarize(
    checkpoint: &Checkpoint,
    options: &Options,
    plan: &Plan,
    extras: &Extras,
) -> Result<Summary> {
    let inventory = checkpoint.inventory();
    let source_bytes = |name: &str, elements: u64| {
        let dtype = inventory.get(name).map_or(8, |tensor| tensor.dtype.bitsize() as u64);
        elements.saturating_mul(dtype) / 8
    };
    let mut notes: Vec<String> = checkpoint.notes().to_vec();
    notes.extend(plan.notes.iter().cloned());
    notes.extend(not_copied(checkpoint, extras));
    let mut summary = Summary {
        source: options.source.clone(),
        path: checkpoint.dir().to_owned(),
        format: format_of(plan, options.layout),
        layout: options.layout,
        packs: 0,
        packed_tensors: 0,
        packed_weights: 0,
        plain_tensors: 0,
        cast_tensors: 0,
        widened_tensors: 0,
        bytes: Bytes::default(),
        files: Vec::new(),
        copied: extras.copied.clone(),
        matrices: Vec::new(),
        left: Vec::new(),
        dropped: Vec::new(),
        notes,
    };
    summary.bytes.source =
        inventory.values().filter_map(|tensor| tensor_bytes(tensor.dtype, &tensor.shape)).sum();
    for put in &plan.puts {
        match put {
            Put::Pack(pack) => {
                let matrix = matrix(pack)?;
                summary.packs += 1;
                summary.matrices.push(PackedMatrix {
                    pack: pack.name(),
                    shape: pack.shape,
                    tensors: pack.tensors.iter().map(|part| part.name.clone()).collect(),
                    experts: pack.experts.map(|experts| experts.count),
                });
                summary.packed_tensors += pack.tensors.len() as u64;
                summary.packed_weights += matrix.grid.weights();
                summary.bytes.packed_source += matrix.bytes();
                summary.cast_tensors +=
                    pack.tensors.iter().filter(|part| part.value.dtype != Dtype::BF16).count() as u64;
            }
            Put::Plain(plain) => {
                let bytes = put_bytes(put);
                summary.plain_tensors += 1;
                summary.bytes.plain += bytes;
                summary.widened_tensors +=
                    u64::from(plain.value.dtype == Dtype::BF16 && plain.dtype == Dtype::F32);
                summary.cast_tensors +=
                    u64::from(plain.value.dtype != plain.dtype && plain.dtype == Dtype::BF16);
                summary.left.push(LeftTensor {
                    tensor: plain.name.clone(),
                    dtype: plain.dtype,
                    shape: plain.shape.clone(),
                    bytes,
                    reason: plain.reason.to_string(),
                });
            }
        }
    }
    summary.dropped = plan
        .dropped
        .iter()
        .map(|dropped| DroppedTensor {
            tensor: dropped.tensor.clone(),
            bytes: source_bytes(&dropped.tensor, dropped.elements),
            reason: dropped.reason.clone(),
        })
        .collect();
    Ok(summary)
}

/// The files that stay behind, but for the weights that were packed, their index, and those that the
/// checkpoint's own notes name.
fn not_copied(checkpoint: &Checkpoint, extras: &Extras) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, reason) in &extras.left {
        let packed = checkpoint.weights().files().iter().any(|file| Path::new(&file.name) == path);
        let noted =
            path.components().count() == 1 && path.extension().is_some_and(|ending| ending == "safetensors");
        if !packed && !noted && path != Path::new(INDEX_NAME) {
            by_reason.entry(reason).or_default().push(format!("`{}`", path.display()));
        }
    }
    by_reason
        .into_iter()
        .map(|(reason, paths)| format!("not copied ({reason}): {}", paths.join(", ")))
        .collect()
}

pub(crate) fn finish(mut summary: Summary, saved: Saved) -> Summary {
    summary.bytes.packed = Some(saved.packed_bytes);
    summary.bytes.written = Some(saved.files.iter().map(|(_, bytes)| bytes).sum());
    summary.files = saved.files;
    summary
}
