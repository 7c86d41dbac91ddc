//! Products of interleaved weights and the states of some tokens.

mod planes;
mod states;
mod tile;

pub use states::Activations;
pub(crate) use states::States;
pub(crate) use tile::{Range, multiply};
