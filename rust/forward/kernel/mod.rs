//! Products of interleaved weights and the states of some tokens.

#![allow(clippy::needless_range_loop)] // iterators bring closures, which kernels have none of

mod planes;
mod rows;
mod states;
mod tile;

pub(crate) use rows::multiply_rows;
pub use states::Activations;
pub(crate) use states::States;
pub(crate) use tile::{Range, multiply};
