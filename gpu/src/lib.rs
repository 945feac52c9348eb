//! A model and a card: whether one fits the other, and what the card makes of the packs. Nothing is here yet.
