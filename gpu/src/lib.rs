//! A model and a card: whether one fits the other.
//!
//! [`fit`] is pure sums over a config and an inventory of tensors: it reads no file, asks no network and
//! prints nothing.

pub mod fit;
