//! What every other folder needs: errors, checks of arguments, threads.
//!
//! It imports nothing of this crate. The crate `specds` uses it too; it is no part of the documented interface.

pub mod checks;
pub(crate) mod error;
pub(crate) mod even_sample;
pub mod runs;
pub(crate) mod search;
pub mod threads;

pub use error::{Error, Result};
