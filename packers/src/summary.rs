//! What packing a checkpoint did, or would do.

use std::path::PathBuf;

use glyd_format::manifest::{Format, Source};
use glyd_format::{Dtype, Layout};

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
