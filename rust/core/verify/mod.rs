//! The parts of verification that need no model: the memory layout of a pass over drafts, top-k, and the draws of
//! `torch.multinomial`.

mod multinomial;
mod packed_pass;
mod top_k;

pub use multinomial::multinomial;
pub use packed_pass::{Outcome, PassRow, pack_rows, read_outcome};
pub use top_k::top_k;
