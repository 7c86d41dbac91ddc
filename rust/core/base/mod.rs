//! What does every other folder need? Errors, threads, arithmetic that is the same on every machine.
//!
//! It imports nothing of this crate.

pub(crate) mod checks;
pub(crate) mod error;
pub(crate) mod even_sample;
pub(crate) mod portable_math;
pub(crate) mod search;
pub(crate) mod threads;

pub use error::{Error, Result};
