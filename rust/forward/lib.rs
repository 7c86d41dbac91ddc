//! Forward passes of language models on a CPU, from GGUF files as they are.
//!
//! Quantized blocks stay as the file has them. Some rows are interleaved when a model is loaded, so that a
//! lane of a vector is a row, and each block is unpacked once for all tokens of a pass: further tokens of a pass
//! cost a fraction of the first one. The logits of a token are the same to the bit alone, in a tree and in a
//! batch, and with any number of threads.
//!
//! ```text
//! Gguf ──▶ Model ──▶ forward(inputs) ──▶ logits
//!                        │    ▲
//!                        ▼    │
//!                        Cache ◀── commit(path)
//! ```
//!
//! [`Gguf`](gguf::Gguf) is a file, [`Model`](model::Model) its weights,
//! [`Cache`](model::Cache) the keys and values of some sequences.

#![warn(missing_docs)]
#![allow(clippy::inline_always)] // the instructions of a kernel apply to what is inlined into it only

mod bandwidth;
mod error;
pub mod gguf;
mod kernel;
pub mod model;
mod parallel;
mod simd;

pub use bandwidth::memory_bandwidth;
pub use error::{Error, Result};
pub use kernel::states::Activations;
pub use simd::instructions::Instructions;

#[cfg(doctest)]
#[doc = include_str!("README.md")]
struct Readme;
