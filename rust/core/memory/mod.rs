//! The memory of earlier requests, and growing texts that are searched.
//!
//! It imports `base`, `storage`, `lookup` and `weights`.

mod forgotten;
pub(crate) mod group_text;
pub(crate) mod groups;
pub(crate) mod history;
pub(crate) mod sharing;
pub(crate) mod slot_table;
mod snapshot;
pub(crate) mod store;
pub(crate) mod tenant;
pub(crate) mod texts;
pub(crate) mod token_counts;

pub use history::History;
pub use sharing::Sharing;
pub use store::{Memory, MemoryOptions};
pub use tenant::{Tenant, TenantData};
