//! Weights of linear layers, in the blocks of the file.

mod blocks;
mod matrix;
mod pack;

pub use blocks::BlockType;
pub(crate) use blocks::f16;
pub use matrix::Layer;
pub(crate) use pack::{Arena, Packed, Scales, block_bytes, nibble};
