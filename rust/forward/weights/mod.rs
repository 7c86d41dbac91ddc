//! Weights of linear layers, in the blocks of the file.

mod blocks;
mod matrix;
mod pack;

pub use blocks::BlockType;
pub(crate) use blocks::f16;
pub(crate) use matrix::{Floats, Layer, Part};
pub use matrix::{Linear, product_of_floats};
pub(crate) use pack::{Arena, Packed, Plane, Scales};
