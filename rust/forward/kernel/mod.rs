//! Products of interleaved weights and the states of some tokens.

#![warn(clippy::missing_docs_in_private_items)]
#![allow(clippy::needless_range_loop)] // iterators bring closures, which kernels have none of

pub(crate) mod interleave;
pub(crate) mod packed;
mod planes;
pub(crate) mod rows;
pub(crate) mod states;
pub(crate) mod tile;
