//! Errors, argument checks, threads and searches that all other folders use.
//!
//! The crate `specds-core` uses it too; it is not part of the documented interface.

pub mod checks;
pub(crate) mod error;
pub(crate) mod even_sample;
pub mod forks;
pub mod runs;
pub(crate) mod search;
pub mod threads;

pub use error::{Error, Result};
