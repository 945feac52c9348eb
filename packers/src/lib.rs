//! How a packed checkpoint is made: measured first, then written at known places by many threads.
//!
//! The bytes are those of `docs/format.md`; what is saved, packed and merged is `glyd_format::plan`'s
//! to say. Every step that is packed is decoded again by `glyd_format`'s decoder and compared with its
//! weights before its bytes are written.

mod cast;
pub mod count;
pub mod encode;
mod error;
mod extras;
pub mod histogram;
mod matrix;
mod measure;
pub mod mma;
pub mod mma12;
mod output_file;
mod pack;
mod save;
mod shards;
mod sizes;
mod summary;
mod values;
mod workers;
mod write;

pub use encode::{MatrixBuffers, pack_matrix};
pub use error::{Error, Result};
pub use extras::left_behind;
pub use pack::{Options, SHARD_BYTES, pack, plan};
pub use sizes::measure_sizes;
pub use summary::{Bytes, DroppedTensor, LeftTensor, PackedMatrix, Summary};
