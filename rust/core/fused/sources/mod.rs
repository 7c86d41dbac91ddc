//! What does each source of the fused drafter predict of the next token?
//!
//! It imports every other folder, and of `fused` only `evidence` and `effort`.

pub(crate) mod corpus;
pub(crate) mod echo;
pub(crate) mod recycled;
pub(crate) mod skip_gram;
pub(crate) mod tables;
pub(crate) mod text;
