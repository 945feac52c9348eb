//! What a packed checkpoint is, and how it is read.
//!
//! The format is described by `docs/format.md`; every module says which of its sections it follows.
//! Weights are bits here: bf16 numbers are `u16`, and are never compared or computed with as floats.

const _: () = assert!(cfg!(target_endian = "little"), "weights are read as they are stored: little-endian");

pub mod checkpoint;
pub mod digest;
mod error;
pub mod file;
pub mod finding;
pub mod header;
pub mod index;
pub mod json;
pub mod layout;
pub mod manifest;
pub mod packed;
pub mod plan;
pub mod progress;
pub mod simd;
pub mod step;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use digest::{Digest, Hasher};
pub use error::{Error, Invalid, Result};
pub use layout::{Buffer, Coding, Layout};
pub use manifest::Manifest;
pub use packed::Packed;
pub use progress::Progress;
pub use safetensors::Dtype;
