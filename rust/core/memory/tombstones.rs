//! Tombstones of deleted tenants, propagated through the snapshot.
//!
//! Each process numbers its own deletions: a number is larger than any in the snapshots that it has read.
//! A process that reads a larger number of another one deletes that tenant, and ignores the tenant's data
//! in files without it. So earlier data is deleted everywhere, whatever the clocks say, and later data
//! stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::process;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// The start of a name's SHA-256, which does not reveal the name and has no known collisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameHash([u8; Self::NUM_BYTES]);

impl NameHash {
    const NUM_BYTES: usize = 14;

    /// The hash that stands for all names.
    const ALL: Self = Self([0xFF; Self::NUM_BYTES]);

    pub(crate) fn of(name: &str) -> Self {
        let mut hash = [0; Self::NUM_BYTES];
        hash.copy_from_slice(&Sha256::digest(name)[..Self::NUM_BYTES]);
        Self(hash)
    }

    /// Reads what its `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        from_hex(text).map(Self).filter(|hash| hash.to_string() == text)
    }
}

/// Reads bytes of two hexadecimal digits each.
pub(crate) fn from_hex<const NUM_BYTES: usize>(text: &str) -> Option<[u8; NUM_BYTES]> {
    let mut bytes = [0; NUM_BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    (text.len() == 2 * NUM_BYTES).then_some(bytes)
}

impl fmt::Display for NameHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// The tenant of a store of one tenant; `None` for a store of all.
pub(crate) type Only = Option<NameHash>;

/// The tombstones of a memory.
#[derive(Debug, Default)]
pub(crate) struct Lineages {
    of_all: Tombstones,
    /// Those of each tenant, in a memory whose tenants have stores of their own.
    by_tenant: Option<BTreeMap<NameHash, Tombstones>>,
    /// True if tenants were deleted that only other processes have.
    pub(crate) clears: bool,
}

impl Lineages {
    /// Bytes of a tenant's tombstones, without their number.
    const FIXED_BYTES: usize = 512;

    /// Divides the tombstones by tenants. Returns false if a store of all tenants has some.
    pub(crate) fn divide(&mut self) -> bool {
        if self.by_tenant.is_none() {
            if self.of_all.last > 0 {
                return false;
            }
            let new = std::mem::take(&mut self.of_all).new.order;
            self.clears = new.contains_key(&NameHash::ALL);
            let of_one = |name: NameHash| {
                let mut tombstones = Tombstones::new();
                tombstones.new.insert(name, true, 0);
                (name, tombstones)
            };
            self.by_tenant =
                Some(new.into_keys().filter(|name| *name != NameHash::ALL).map(of_one).collect());
        }
        true
    }

    /// Deletes all tenants, if these are divided.
    pub(crate) fn clear(&mut self) -> bool {
        self.clears = self.by_tenant.is_some();
        self.clears
    }

    pub(crate) fn only(&self, name: NameHash) -> Only {
        self.by_tenant.as_ref().map(|_| name)
    }

    /// Changes the tombstones of a store, and returns by how many bytes they have grown; below zero, it wraps around.
    pub(crate) fn change<R>(
        &mut self,
        only: Only,
        change: impl FnOnce(&mut Tombstones) -> R,
    ) -> (R, usize) {
        let (Some(name), Some(by_tenant)) = (only, &mut self.by_tenant) else {
            let before = self.of_all.num_bytes();
            let changed = change(&mut self.of_all);
            return (changed, self.of_all.num_bytes().wrapping_sub(before));
        };
        let num_bytes = |it: &Tombstones| Self::FIXED_BYTES + it.num_bytes();
        let mut tombstones = by_tenant.remove(&name).unwrap_or_default();
        let before = if tombstones.is_initial() { 0 } else { num_bytes(&tombstones) };
        let changed = change(&mut tombstones);
        let after = if tombstones.is_initial() { 0 } else { num_bytes(&tombstones) };
        if after > 0 {
            by_tenant.insert(name, tombstones);
        }
        (changed, after.wrapping_sub(before))
    }

    /// Returns the tenants with deletions that no store has.
    pub(crate) fn unpublished(&self) -> Vec<NameHash> {
        let by_tenant = self.by_tenant.iter().flatten();
        by_tenant.filter(|(_, it)| !it.new.order.is_empty()).map(|(&name, _)| name).collect()
    }

    /// Drops what is known of tenants' stores, except of these tenants and the `most` others that were deleted. Returns
    /// the number of bytes that this frees.
    pub(crate) fn retain(&mut self, kept: &BTreeSet<NameHash>, most: usize) -> usize {
        let (mut num_others, mut freed) = (0, 0);
        if let Some(by_tenant) = &mut self.by_tenant {
            by_tenant.retain(|name, it| {
                let is_other = !kept.contains(name) && it.new.order.is_empty();
                num_others += usize::from(is_other);
                let is_kept = !is_other || !it.versions.is_empty() && num_others <= most;
                freed += if is_kept { 0 } else { Self::FIXED_BYTES + it.num_bytes() };
                is_kept
            });
        }
        freed
    }
}

/// A random number of the process that deletes.
type Origin = [u8; 2];

/// A name's hash, and the origin of its deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tombstone(pub(crate) [u8; Self::NUM_BYTES]);

impl Tombstone {
    pub(crate) const NUM_BYTES: usize = NameHash::NUM_BYTES + size_of::<Origin>();

    fn new(name: NameHash, origin: Origin) -> Self {
        let mut bytes = [0; Self::NUM_BYTES];
        bytes[..NameHash::NUM_BYTES].copy_from_slice(&name.0);
        bytes[NameHash::NUM_BYTES..].copy_from_slice(&origin);
        Self(bytes)
    }

    fn of_name(name: NameHash) -> RangeInclusive<Self> {
        Self::new(name, [0; 2])..=Self::new(name, [0xFF; 2])
    }

    /// The tombstone of all names by the same process.
    fn of_all(self) -> Self {
        let [.., first, second] = self.0;
        Self::new(NameHash::ALL, [first, second])
    }
}

/// Deletions of this process that are in no snapshot yet.
#[derive(Debug, Default)]
struct NewTombstones {
    /// The rank of each deletion in time; the largest number if a snapshot may have data of the name.
    order: BTreeMap<NameHash, u64>,
    next: u64,
    num_unsaved: usize,
}

impl NewTombstones {
    const SAVED: u64 = u64::MAX;

    fn insert(&mut self, name: NameHash, is_saved: bool, most: usize) {
        let before = self.order.get(&name).copied();
        let is_saved = is_saved || before == Some(Self::SAVED);
        self.order.insert(name, if is_saved { Self::SAVED } else { self.next });
        self.next += 1;
        self.num_unsaved -= usize::from(before.is_some_and(|order| order < Self::SAVED));
        self.num_unsaved += usize::from(!is_saved);
        if self.num_unsaved > most {
            // Several at once: finding the oldest takes O(names).
            let mut orders: Vec<_> = self.order.values().copied().collect();
            let (_, &mut last, _) = orders.select_nth_unstable(most / 8);
            self.order.retain(|_, order| *order > last);
            self.num_unsaved -= most / 8 + 1;
        }
    }
}

#[derive(Debug)]
pub(crate) struct Tombstones {
    seed: RandomState,
    /// The latest number of each tombstone in a snapshot.
    versions: BTreeMap<Tombstone, u64>,
    /// Tombstones up to this number may be pruned. A process without a larger number deletes what it has
    /// of earlier snapshots.
    pruned_below: u64,
    /// The largest number.
    last: u64,
    new: NewTombstones,
}

impl Default for Tombstones {
    fn default() -> Self {
        Self::new()
    }
}

impl Tombstones {
    /// Bytes of a tombstone, including its share of half-full tree nodes.
    pub(crate) const BYTES_PER_TOMBSTONE: usize = 64;

    /// Microseconds since 1970 reach it in 140,000 years.
    const MAX_VERSION: u64 = 1 << 62;

    pub(crate) fn new() -> Self {
        let (versions, new) = (BTreeMap::new(), NewTombstones::default());
        Self { seed: RandomState::new(), versions, pruned_below: 0, last: 0, new }
    }

    fn is_initial(&self) -> bool {
        self.versions.is_empty() && self.new.order.is_empty() && self.last == 0
    }

    /// Returns the random number of this process. Processes that were forked share the seed.
    fn origin(&self) -> Origin {
        let [first, second, ..] = self.seed.hash_one(process::id()).to_le_bytes();
        [first, second]
    }

    /// Reads the tombstones of a snapshot; `None` if its numbers contradict each other or are too large.
    pub(crate) fn read(versions: BTreeMap<Tombstone, u64>, pruned_below: u64) -> Option<Self> {
        let last = versions.values().copied().fold(pruned_below, u64::max);
        let is_later = versions.values().all(|&version| version > pruned_below);
        let read = || Self { versions, pruned_below, last, ..Self::new() };
        (is_later && last < Self::MAX_VERSION).then(read)
    }

    /// Returns those that have numbers.
    pub(crate) fn published(&self) -> Self {
        let (versions, pruned_below) = (self.versions.clone(), self.pruned_below);
        Self { versions, pruned_below, last: self.last, ..Self::new() }
    }

    /// Returns whether `theirs` have a deletion or a floor that is not known here.
    pub(crate) fn lacks(&self, theirs: &Self) -> bool {
        let of = |tombstone| self.versions.get(tombstone).copied().unwrap_or(self.pruned_below);
        theirs.pruned_below > self.pruned_below
            || theirs.versions.iter().any(|(tombstone, version)| *version > of(tombstone))
    }

    pub(crate) fn versions(&self) -> &BTreeMap<Tombstone, u64> {
        &self.versions
    }

    pub(crate) fn pruned_below(&self) -> u64 {
        self.pruned_below
    }

    pub(crate) fn num_bytes(&self) -> usize {
        Self::BYTES_PER_TOMBSTONE * (self.versions.len() + self.new.order.len())
    }

    /// Adds a deletion. Beyond `most` new ones of names that no snapshot has, as far as this process knows,
    /// the oldest of these go. There are at most as many others as the memory had tenants.
    pub(crate) fn add(&mut self, name: &str, is_saved: bool, most: usize) {
        if !self.new.order.contains_key(&NameHash::ALL) {
            self.new.insert(NameHash::of(name), is_saved, most);
        }
    }

    /// One tombstone stands for all tenants.
    pub(crate) fn add_all_tenants(&mut self) {
        self.new = NewTombstones::default();
        self.new.insert(NameHash::ALL, true, 0);
    }

    /// Returns whether `theirs` have a deletion of a name that is not known here.
    pub(crate) fn misses_deletion(&self, name: NameHash, theirs: &Self) -> bool {
        let of = |tombstone| self.versions.get(&tombstone).copied();
        let is_new = |(&tombstone, &version): (&Tombstone, &u64)| {
            let of_all = of(tombstone.of_all()).max(Some(self.pruned_below));
            Some(version) > of(tombstone).max(of_all)
        };
        let names = [name, NameHash::ALL];
        names.iter().any(|&name| theirs.versions.range(Tombstone::of_name(name)).any(is_new))
    }

    /// The largest number of a deletion that may be of a name; the largest integer for one that has no number yet,
    /// 0 for none.
    pub(crate) fn last_deletion(&self, name: &str) -> u64 {
        let names = [NameHash::of(name), NameHash::ALL];
        if names.iter().any(|name| self.new.order.contains_key(name)) {
            return u64::MAX;
        }
        let versions = names.iter().flat_map(|&name| self.versions.range(Tombstone::of_name(name)));
        versions.map(|(_, &version)| version).fold(self.pruned_below, u64::max)
    }

    /// Returns whether `theirs` have pruned tombstones that are not known here.
    pub(crate) fn misses_pruned(&self, theirs: &Self) -> bool {
        theirs.pruned_below > self.last
    }

    /// Returns whether a deletion of the name, in `theirs` or pruned there, is not known here.
    pub(crate) fn misses_any(&self, name: NameHash, theirs: &Self) -> bool {
        self.misses_pruned(theirs) || self.misses_deletion(name, theirs)
    }

    /// Returns whether `theirs` lack a deletion of a name that is known here.
    pub(crate) fn has_newer(&self, name: NameHash, theirs: &Self) -> bool {
        let is_new = |name| self.new.order.contains_key(&name);
        is_new(NameHash::ALL) || is_new(name) || theirs.misses_any(name, self)
    }

    /// Adds the tombstones of a snapshot, and keeps at most `most`, the latest.
    pub(crate) fn merge(&mut self, theirs: &Self, most: usize) {
        self.pruned_below = self.pruned_below.max(theirs.pruned_below);
        self.last = self.last.max(theirs.last);
        for (&tombstone, &theirs) in &theirs.versions {
            let ours = self.versions.entry(tombstone).or_default();
            *ours = theirs.max(*ours);
        }
        self.prune(most);
    }

    /// Numbers what is new, for a store; false where there are no more numbers.
    pub(crate) fn publish_new(&mut self, most: usize) -> bool {
        if self.new.order.is_empty() {
            return true;
        }
        // The clock keeps numbers of one process in several stores apart, and orders nothing.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(0));
        let last = now.max(self.last + 1);
        if last >= Self::MAX_VERSION {
            return false;
        }
        self.last = last;
        let new = std::mem::take(&mut self.new);
        let (names, origin) = (new.order.keys(), self.origin());
        self.versions.extend(names.map(|&name| (Tombstone::new(name, origin), last)));
        self.prune(most);
        true
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
