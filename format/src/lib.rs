//! What a packed checkpoint is, and how it is read.

mod error;
pub mod plan;

pub use error::{Error, Invalid, Result};
pub use safetensors::Dtype;
