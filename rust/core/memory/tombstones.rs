//! Tombstones of deleted tenants, propagated through the snapshot.
//!
//! A tombstone carries a version: one more than any in the snapshot. A process that reads a newer one
//! deletes that tenant and ignores its data in files without it. So earlier data is deleted everywhere, and
//! later data stays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// The start of a name's SHA-256, which does not reveal the name and has no known collisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tombstone(pub(crate) [u8; Self::NUM_BYTES]);

impl Tombstone {
    pub(crate) const NUM_BYTES: usize = 16;

    /// The tombstone that stands for all names.
    const ALL_TENANTS: Self = Self([0xFF; Self::NUM_BYTES]);

    fn of(name: &str) -> Self {
        let mut tombstone = [0; Self::NUM_BYTES];
        tombstone.copy_from_slice(&Sha256::digest(name)[..Self::NUM_BYTES]);
        Self(tombstone)
    }
}

/// The tombstones of a snapshot, and the new ones of this process.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    /// The latest version of each tombstone in a snapshot.
    versions: BTreeMap<Tombstone, u64>,
    /// Tombstones up to this version may be pruned. A process without a newer one deletes all tenants.
    pruned_below: u64,
    /// The largest version.
    last: u64,
    /// Tombstones of this process that are in no snapshot yet.
    new: BTreeSet<Tombstone>,
}

impl Tombstones {
    /// Bytes of a tombstone, including its share of half-full tree nodes.
    pub(crate) const BYTES_PER_TOMBSTONE: usize = 64;

    const MAX_VERSION: u64 = 1 << 63;

    /// Reads the tombstones of a snapshot; `None` if its versions contradict each other.
    pub(crate) fn read(versions: BTreeMap<Tombstone, u64>, pruned_below: u64) -> Option<Self> {
        let last = versions.values().copied().fold(pruned_below, u64::max);
        let is_later = versions.values().all(|&version| version > pruned_below);
        let new = BTreeSet::new();
        (is_later && last < Self::MAX_VERSION).then_some(Self { versions, pruned_below, last, new })
    }

    pub(crate) fn versions(&self) -> &BTreeMap<Tombstone, u64> {
        &self.versions
    }

    pub(crate) fn pruned_below(&self) -> u64 {
        self.pruned_below
    }

    pub(crate) fn num_bytes(&self) -> usize {
        Self::BYTES_PER_TOMBSTONE * (self.versions.len() + self.new.len())
    }

    /// Marks a tenant as deleted. More than `most` new tombstones are replaced by the one of all tenants.
    pub(crate) fn add(&mut self, name: &str, most: usize) {
        if !self.new.contains(&Tombstone::ALL_TENANTS) {
            self.new.insert(Tombstone::of(name));
        }
        if self.new.len() > most {
            self.add_all_tenants();
        }
    }

    pub(crate) fn add_all_tenants(&mut self) {
        self.new = BTreeSet::from([Tombstone::ALL_TENANTS]);
    }

    /// Returns whether `theirs` has a newer deletion of this name.
    pub(crate) fn misses_deletion(&self, name: &str, theirs: &Self) -> bool {
        let of = |tombstone| self.versions.get(tombstone).copied();
        let of_all = Some(self.pruned_below).max(of(&Tombstone::ALL_TENANTS));
        let is_new =
            |tombstone| theirs.versions.get(tombstone).copied() > of_all.max(of(tombstone));
        theirs.pruned_below > self.last
            || is_new(&Tombstone::ALL_TENANTS)
            || is_new(&Tombstone::of(name))
    }

    /// Returns whether `theirs` lacks a deletion of this name.
    pub(crate) fn has_newer(&self, name: &str, theirs: &Self) -> bool {
        let is_new = |tombstone| self.new.contains(tombstone);
        is_new(&Tombstone::ALL_TENANTS)
            || is_new(&Tombstone::of(name))
            || theirs.misses_deletion(name, self)
    }

    /// Adopts newer versions of `theirs`, and retains the latest `most` tombstones.
    pub(crate) fn merge(&mut self, theirs: &Self, most: usize) {
        self.pruned_below = self.pruned_below.max(theirs.pruned_below);
        self.last = self.last.max(theirs.last);
        for (&tombstone, &theirs) in &theirs.versions {
            let ours = self.versions.entry(tombstone).or_default();
            *ours = theirs.max(*ours);
        }
        self.prune(most);
    }

    /// Assigns a version to the new tombstones, for a snapshot, and returns them.
    pub(crate) fn publish_new(&mut self, most: usize) -> BTreeSet<Tombstone> {
        let new = std::mem::take(&mut self.new);
        if !new.is_empty() {
            // The clock makes versions of different files distinct; it does not define an order.
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(0));
            self.last = now.max(self.last + 1);
            let numbered = new.iter().map(|&tombstone| (tombstone, self.last));
            self.versions.extend(numbered);
            self.prune(most);
        }
        new
    }

    /// Marks tombstones as new again whose snapshot could not be written.
    pub(crate) fn restore_new(&mut self, mut new: BTreeSet<Tombstone>) {
        self.new.append(&mut new);
    }

    fn prune(&mut self, most: usize) {
        if let Some(over) = self.versions.len().checked_sub(most + 1) {
            let mut versions: Vec<_> = self.versions.values().copied().collect();
            let (_, &mut last, _) = versions.select_nth_unstable(over);
            self.pruned_below = self.pruned_below.max(last);
        }
        let pruned_below = self.pruned_below;
        self.versions.retain(|_, version| *version > pruned_below);
    }
}
