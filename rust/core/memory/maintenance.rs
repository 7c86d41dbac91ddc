//! Commands on the stores of request caches: information, compaction, deletion of tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::memory::exchange::{Round, at, missing};
use crate::memory::groups::GroupKey;
use crate::memory::head::{Head, seconds_now};
use crate::memory::object_store::{FoundHead, as_url, below, of_tenants, resolved};
use crate::memory::store::{Memory, MemoryOptions};
use crate::memory::tenant_stores::{store_of, tenant_of};
use crate::memory::tombstones::NameHash;
use crate::memory::transfer::clear_transfers;
use specds_index::{Error, Result};

/// The contents of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreInfo {
    pub vocab_size: u32,
    pub tokenizer: String,
    /// Size of all segments.
    pub num_bytes: u64,
    pub num_segments: usize,
    pub num_tenants: usize,
    pub num_groups: usize,
    pub num_texts: usize,
    pub num_tokens: usize,
    pub num_tombstones: usize,
    /// Seconds since the head was written, by the clocks of its writer and of this process.
    pub age: u64,
}

impl Memory {
    /// Returns the stores at a folder or URL: itself, if it is one, and all below it, or those that may have requests
    /// of these tenants.
    ///
    /// # Errors
    /// That there is none, or an I/O error.
    pub fn stores_at(path: impl AsRef<Path>, tenants: Option<&[&str]>) -> Result<Vec<PathBuf>> {
        let path = path.as_ref();
        let path = resolved(of_tenants(path).as_deref().unwrap_or(path))?;
        let (store, name) = at(&path)?;
        let mut names = store.stores()?;
        names.sort_unstable();
        let has_head = !matches!(store.head(None)?, FoundHead::Missing);
        let own = has_head.then(|| path.clone());
        let mut stores: Vec<_> =
            own.into_iter().chain(names.iter().map(|name| below(&path, name))).collect();
        if stores.is_empty() {
            return Err(missing(&name));
        }
        if let Some(tenants) = tenants {
            let is_one = |of: NameHash| tenants.iter().any(|name| NameHash::of(name) == of);
            stores.retain(|store| tenant_of(store).is_none_or(is_one));
        }
        Ok(stores)
    }

    /// Returns the contents of a store. O(tokens).
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn info(path: impl AsRef<Path>) -> Result<StoreInfo> {
        let path = resolved(path.as_ref())?;
        let memory = Self::new(Self::options_of(&path)?)?;
        let (store, name) = at(&path)?;
        let mut round = Round::begin(&memory, &*store, &name, None);
        round.pull()?;
        let Some(head) = &round.synced.head else { return Err(missing(&name)) };
        let mut info = StoreInfo {
            vocab_size: head.vocab_size,
            tokenizer: head.tokenizer.clone(),
            num_bytes: head.segments.iter().map(|segment| segment.num_bytes).sum(),
            num_segments: head.segments.len(),
            num_tenants: memory.num_tenants(),
            num_tokens: memory.num_tokens(),
            num_tombstones: round.synced.tombstones.versions().len(),
            age: seconds_now().saturating_sub(head.written_at),
            ..StoreInfo::default()
        };
        for tenant in memory.tenants() {
            let data = tenant.read();
            let groups = data.texts.documents().map(|(_, _, group, _)| group);
            info.num_texts += groups.len();
            let named = groups.filter(|&group| group != GroupKey::default());
            info.num_groups += named.collect::<BTreeSet<_>>().len();
        }
        Ok(info)
    }

    /// Writes all segments of a store again as one, and removes objects that are in no head. O(tokens).
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn compact(path: impl AsRef<Path>) -> Result<()> {
        let path = resolved(path.as_ref())?;
        let memory = Self::new(Self::options_of(&path)?)?;
        let (store, name) = at(&path)?;
        let mut round = Round::begin(&memory, &*store, &name, None);
        round.compacts = true;
        round.run(&mut |_| Ok(None))
    }

    /// Deletes tenants from a store and all below it, and returns the number of texts that these had of each; `None`
    /// if they had nothing of a tenant. Processes that share a store delete these tenants at their next exchange, also
    /// those that the store lacks: a process may have texts that it has not written yet. O(tokens).
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn forget_in(path: impl AsRef<Path>, tenants: &[&str]) -> Result<Vec<Option<usize>>> {
        let (mut found, mut of_tenants) = (vec![None; tenants.len()], BTreeMap::new());
        for store in Self::stores_at(path, None)? {
            if let (Some(_), Some(base)) = (tenant_of(&store), store.parent()) {
                of_tenants.entry(base.to_owned()).or_insert(store);
            } else {
                let numbers = Self::forget_in_store(&store, Self::options_of(&store)?, tenants)?;
                found.iter_mut().zip(numbers).for_each(|(sum, number)| add(sum, number));
            }
        }
        // A tenant whose store is missing has one made: a process may have texts that it has not written yet.
        for (base, any) in of_tenants {
            let options = Self::options_of(&any)?;
            for (tenant, sum) in tenants.iter().zip(&mut found) {
                let store = store_of(&base, NameHash::of(tenant));
                let numbers = Self::forget_in_store(&store, options.clone(), &[tenant])?;
                add(sum, numbers.first().copied().flatten());
            }
        }
        Ok(found)
    }

    fn forget_in_store(
        path: &Path,
        options: MemoryOptions,
        tenants: &[&str],
    ) -> Result<Vec<Option<usize>>> {
        let memory = Self::new(options)?;
        let mut num_texts = None;
        let (store, name) = at(path)?;
        memory.exchange(&*store, &name, &mut |memory| {
            num_texts.get_or_insert_with(|| {
                let num_texts = |tenant: &&str| {
                    let number = memory.find(tenant).map(|_| memory.texts(tenant).len());
                    memory.forget(tenant);
                    number
                };
                tenants.iter().map(num_texts).collect()
            });
            Ok(None)
        })?;
        if as_url(path).is_none() {
            clear_transfers(path)?;
        }
        Ok(num_texts.unwrap_or_default())
    }

    /// Returns the vocabulary and the tokenizer of a store, and the largest size limit.
    fn options_of(path: &Path) -> Result<MemoryOptions> {
        let (store, name) = at(path)?;
        let FoundHead::Changed(text, _) = store.head(None)? else { return Err(missing(&name)) };
        let invalid = |reason| Error::Snapshot { path: name, reason };
        let Head { vocab_size, tokenizer, .. } = Head::read(&text).map_err(invalid)?;
        let max_bytes = MemoryOptions::MAX_BYTES;
        Ok(MemoryOptions { max_bytes, tokenizer, ..MemoryOptions::new(vocab_size) })
    }
}

fn add(sum: &mut Option<usize>, number: Option<usize>) {
    *sum = sum.map_or(number, |sum| Some(sum + number.unwrap_or(0)));
}
