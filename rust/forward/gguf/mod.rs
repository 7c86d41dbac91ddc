//! GGUF files: metadata and tensors over a memory map.
//!
//! ```text
//! file   := "GGUF" version:u32 num_tensors:u64 num_fields:u64 field* tensor* padding data
//! field  := key:text kind:u32 value
//! tensor := name:text num_dimensions:u32 dimension:u64* kind:u32 offset:u64
//! text   := length:u64 byte*
//! array  := kind:u32 length:u64 value*
//! ```
//!
//! Numbers are little-endian. A length is compared with what is left of the file before anything is reserved.

pub(crate) mod blocks;
pub(crate) mod bytes;
pub(crate) mod file;
mod layout;
mod merges;
pub(crate) mod reader;
mod split;

pub use blocks::BlockType;
pub use bytes::Bytes;
pub use file::{Gguf, Tensor};
pub use merges::merges;
pub use reader::Value;
