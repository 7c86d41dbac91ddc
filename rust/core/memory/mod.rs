//! The request cache: earlier requests per tenant, and indexed token sequences.

mod encrypted;
mod exchange;
mod folder;
pub(crate) mod group_text;
pub(crate) mod groups;
mod head;
pub(crate) mod indexed_tokens;
pub(crate) mod keyless_table;
mod maintenance;
pub(crate) mod object_store;
pub(crate) mod sharing;
mod snapshot;
pub(crate) mod store;
pub(crate) mod tenant;
mod tenant_stores;
pub(crate) mod texts;
pub(crate) mod token_counts;
mod tombstones;
pub(crate) mod transfer;

pub use indexed_tokens::IndexedTokens;
pub use maintenance::StoreInfo;
pub use object_store::{FoundHead, ObjectStore, Opener, set_opener, without_credentials};
pub use sharing::{Sharing, Unstored};
pub use store::{Memory, MemoryOptions};
pub use tenant::{Tenant, TenantData};
pub use transfer::{Transfer, TransferReport};
