//! The model's tensors that the checkpoint gives, in the order in which they arrive.

use std::collections::HashMap;

use super::expr::Value;

/// A tensor of the model.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) value: Value,
}

/// Tensors of the model by their place in the order of arrival, and by name.
#[derive(Debug, Default)]
pub(super) struct Values {
    held: Vec<Held>,
    places: HashMap<String, usize>,
}

impl Values {
    /// Adds a tensor; gives it back where there is one of this name already.
    pub(super) fn add(&mut self, name: &str, value: Value) -> Option<Value> {
        if self.places.contains_key(name) {
            return Some(value);
        }
        self.places.insert(name.to_owned(), self.held.len());
        self.held.push(Held { name: name.to_owned(), value });
        None
    }

    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The tensor at a place that [`Values::place`] gave.
    pub(super) fn at(&self, place: usize) -> &Held {
        &self.held[place]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.held.iter()
    }
}
