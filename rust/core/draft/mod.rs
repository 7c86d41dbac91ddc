//! Drafts as token trees, and the session interface of all drafters.
//!
//! The folder also has the tables of a target model, top-k, multinomial draws, and the memory layout of a
//! verification pass.

pub mod model_tables;
pub(crate) mod multinomial;
pub(crate) mod packed_pass;
pub(crate) mod session;
pub(crate) mod token_tree;
pub(crate) mod top_k;

pub use multinomial::multinomial;
pub use packed_pass::{Outcome, PassRow, pack_rows, read_outcome};
pub use session::{DraftLimits, Session, draft_batch};
pub use token_tree::{Source, TokenTree};
pub use top_k::top_k;
