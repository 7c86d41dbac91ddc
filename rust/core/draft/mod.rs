//! Drafts as token trees, the session interface of all drafters, and the tables of a target model.

pub mod model_tables;
pub(crate) mod session;
pub(crate) mod token_tree;

pub use session::{DraftLimits, Session, draft_batch};
pub use token_tree::{Source, TokenTree};
