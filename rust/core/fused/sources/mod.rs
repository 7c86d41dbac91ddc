//! What does each source of the fused drafter foretell of the next token?

pub(crate) mod corpus;
pub(crate) mod echo;
pub(crate) mod recycled;
pub(crate) mod skip_gram;
pub(crate) mod tables;
pub(crate) mod text;
