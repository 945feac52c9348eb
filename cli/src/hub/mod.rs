//! The Hub, as `glyd fit` asks it: a model's config and the headers of its weights, never weights.

mod headers;
mod ranged;
mod request;

pub(crate) use headers::{Described, describe};
pub(crate) use request::HubError;
