//! The data of one tenant.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use crate::memory::group_text::GroupText;
use crate::memory::groups::GroupKey;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::memory::keyless_table::allocated;
use crate::memory::texts::TextLog;
use crate::memory::tombstones::NameHash;
use crate::weights::adaptation::TenantAdaptation;

/// One tenant's texts and adapted weights. Requests share it, so it may outlive its entry in the memory; texts that
/// are added after that are lost.
pub struct Tenant {
    pub(crate) name: Box<str>,
    pub(crate) name_hash: NameHash,
    pub(crate) last_use: AtomicU64,
    data: RwLock<TenantData>,
    /// The group texts that open requests read.
    group_texts: Mutex<BTreeMap<Vec<GroupKey>, Weak<RwLock<GroupText>>>>,
}

#[derive(Default)]
pub struct TenantData {
    pub(crate) texts: TextLog,
    pub(crate) adaptation: Option<TenantAdaptation>,
    pub(crate) is_deleted: bool,
    /// True if a snapshot had data of the tenant.
    pub(crate) is_saved: bool,
}

impl Tenant {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            name_hash: NameHash::of(name),
            last_use: AtomicU64::default(),
            data: RwLock::default(),
            group_texts: Mutex::default(),
        }
    }

    /// Returns the text of these groups, shared by all requests that read them.
    pub(crate) fn group_text(&self, groups: Vec<GroupKey>) -> Arc<RwLock<GroupText>> {
        let mut texts = self.group_texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = texts.get(&groups).and_then(Weak::upgrade) {
            return text;
        }
        texts.retain(|_, text| text.strong_count() > 0);
        let text = Arc::new(RwLock::new(GroupText::of(&groups)));
        texts.insert(groups, Arc::downgrade(&text));
        text
    }

    /// Locks the data for reading. The guard blocks writers, so drop it after some microseconds. While texts are
    /// evicted, the data has none.
    pub fn read(&self) -> RwLockReadGuard<'_, TenantData> {
        self.data.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, TenantData> {
        self.data.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the adapted weights of a tenant that is in no memory.
    pub(crate) fn learn<R>(&self, learn: impl FnOnce(&mut TenantAdaptation) -> R) -> R {
        learn(self.write().adaptation.get_or_insert_default())
    }

    pub(crate) fn reset_weights(&self) {
        if let Some(adaptation) = &mut self.write().adaptation {
            adaptation.reset_weights();
        }
    }

    pub fn num_bytes(&self) -> usize {
        self.fixed_bytes() + self.read().num_bytes()
    }

    pub(crate) fn last_use(&self) -> u64 {
        self.last_use.load(Ordering::Relaxed)
    }

    /// Returns the bytes that it takes without texts and weights.
    pub(crate) fn fixed_bytes(&self) -> usize {
        // The name is stored twice, as a key too; tree nodes may be half full.
        let entry = 6 * size_of::<usize>();
        2 * allocated(self.name.len()) + allocated(size_of::<Self>()) + entry
    }
}

impl TenantData {
    /// The texts in sequence, each followed by a [`BOUNDARY`](IndexedTokens::BOUNDARY).
    pub fn texts(&self) -> &IndexedTokens {
        self.texts.text()
    }

    pub fn adaptation(&self) -> Option<&TenantAdaptation> {
        self.adaptation.as_ref()
    }

    pub(crate) fn adaptation_bytes(&self) -> usize {
        self.adaptation.as_ref().map_or(0, |_| TenantAdaptation::NUM_BYTES)
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.texts.num_bytes() + self.adaptation_bytes()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.texts.num_bytes() == 0 && self.adaptation.is_none()
    }
}
