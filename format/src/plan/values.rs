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
    /// Adds a tensor; one that is there already stays, and is named.
    pub(super) fn add(&mut self, name: String, value: Value) -> Result<usize, &Held> {
        if let Some(&place) = self.places.get(&name) {
            return Err(&self.held[place]);
        }
        let place = self.held.len();
        self.places.insert(name.clone(), place);
        self.held.push(Held { name, value });
        Ok(place)
    }

    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The tensor at a place that [`Values::add`] or [`Values::place`] gave.
    pub(super) fn at(&self, place: usize) -> &Held {
        &self.held[place]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.held.iter()
    }
}
