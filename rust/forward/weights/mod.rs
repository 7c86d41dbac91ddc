//! Weights of linear layers, in the blocks of the file.

mod blocks;
mod matrix;
mod pack;

pub use blocks::BlockType;
pub(crate) use blocks::f16;
pub use matrix::PackedMatrix;
pub(crate) use matrix::{Layer, Part};
pub(crate) use pack::{Packed, Plane, Scales};
