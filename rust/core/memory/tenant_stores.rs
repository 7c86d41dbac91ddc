//! Stores of single tenants below one folder or URL, of which a process reads those of its own tenants.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use crate::memory::exchange::missing;
use crate::memory::object_store::{ObjectStore, below};
use crate::memory::store::Memory;
use crate::memory::tombstones::NameHash;
use specds_index::{Datastore, Error, Result};

/// Returns the store of a tenant: the hash of its name is that of the store.
pub(super) fn store_of(base: &Path, tenant: NameHash) -> PathBuf {
    below(base, &tenant.to_string())
}

/// Returns the tenant of a store of this name.
pub(super) fn tenant_of(store: &Path) -> Option<NameHash> {
    let path = store.to_str()?;
    NameHash::parse(path.rsplit(std::path::is_separator).next()?)
}

/// Returns the tenants that have stores directly below a store.
fn tenants_in(store: &dyn ObjectStore) -> Result<Vec<NameHash>> {
    let names = store.stores()?;
    Ok(names.iter().filter_map(|name| NameHash::parse(name)).collect())
}

impl Memory {
    /// Exchanges with the stores of this memory's tenants, which are below `store`. A damaged one does not keep others
    /// from being exchanged.
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn exchange_tenants(
        &self,
        store: &dyn ObjectStore,
        name: &Path,
        known: Option<&Arc<Datastore>>,
    ) -> Result<()> {
        let mut failure = None;
        for only in self.divide(store)? {
            let below = store.below(&only.to_string())?;
            let saved = self.exchange_only(&*below, &store_of(name, only), Some(only), known);
            let is_away = matches!(saved, Err(Error::Io { .. }));
            failure = failure.or(saved.err());
            if is_away {
                break;
            }
        }
        let tenants = self.tenants().iter().map(|tenant| tenant.name_hash).collect();
        self.retain_tombstones(&tenants);
        let names: BTreeSet<_> = tenants.iter().map(|&only| store_of(name, only)).collect();
        let mut kept = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|name, _| names.contains(name));
        drop(kept);
        failure.map_or(Ok(()), Err)
    }

    /// Reads the stores of all tenants.
    pub(super) fn read_tenants(&self, store: &dyn ObjectStore, name: &Path) -> Result<()> {
        self.divide(store)?;
        let tenants = tenants_in(store)?;
        if tenants.is_empty() {
            return Err(missing(name));
        }
        tenants.into_iter().try_for_each(|only| {
            self.read(&*store.below(&only.to_string())?, &store_of(name, only), Some(only))
        })
    }

    /// Divides this memory by tenants, and returns those whose stores it exchanges with.
    fn divide(&self, store: &dyn ObjectStore) -> Result<BTreeSet<NameHash>> {
        if !self.lineages().divide() {
            let reason = "names a store for each tenant, but this memory was shared as a whole: begin with an \
                          empty one";
            return Err(Error::invalid("path", reason));
        }
        let clears = self.lineages().clears;
        if clears {
            for only in tenants_in(store)? {
                self.change_tombstones(Some(only), |it, _| it.add_all_tenants());
            }
            self.lineages().clears = false;
        }
        let mut tenants: BTreeSet<_> =
            self.tenants().iter().map(|tenant| tenant.name_hash).collect();
        tenants.extend(self.lineages().unpublished());
        Ok(tenants)
    }
}
