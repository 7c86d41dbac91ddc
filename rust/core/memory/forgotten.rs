//! The names that were forgotten, and how other processes hear of it.
//!
//! A name that is forgotten leaves a mark, which goes into the snapshot with a number: one more than any
//! there. Whoever reads a number that is new to it forgets that name, and takes in nothing of the name from
//! a file that lacks the number. So what was kept before goes wherever it is, and what comes later stays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// The start of a name's SHA-256: it does not tell the name, and nobody finds another one with the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(pub(crate) [u8; Self::NUM_BYTES]);

impl Mark {
    pub(crate) const NUM_BYTES: usize = 16;

    /// The mark that stands for all names.
    const EVERYBODY: Self = Self([0xFF; Self::NUM_BYTES]);

    fn of(name: &str) -> Self {
        let mut mark = [0; Self::NUM_BYTES];
        mark.copy_from_slice(&Sha256::digest(name)[..Self::NUM_BYTES]);
        Self(mark)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    /// For each mark, the number of the last forgetting that a snapshot has.
    numbers: BTreeMap<Mark, u64>,
    /// Forgettings up to this number may have lost their marks. Who has heard of none since forgets
    /// everybody.
    floor: u64,
    /// The largest number.
    last: u64,
    /// What was forgotten here, and is in no snapshot yet.
    new: BTreeSet<Mark>,
}

impl Forgotten {
    /// How many bytes a mark takes, with its share of the nodes of a tree that are half full.
    pub(crate) const BYTES_PER_MARK: usize = 64;

    const MAX_NUMBER: u64 = 1 << 63;

    /// What a snapshot has; `None` where its numbers contradict each other.
    pub(crate) fn read(numbers: BTreeMap<Mark, u64>, floor: u64) -> Option<Self> {
        let last = numbers.values().copied().fold(floor, u64::max);
        let is_later = numbers.values().all(|&number| number > floor);
        let new = BTreeSet::new();
        (is_later && last < Self::MAX_NUMBER).then_some(Self { numbers, floor, last, new })
    }

    pub(crate) fn numbers(&self) -> &BTreeMap<Mark, u64> {
        &self.numbers
    }

    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    pub(crate) fn num_bytes(&self) -> usize {
        Self::BYTES_PER_MARK * (self.numbers.len() + self.new.len())
    }

    /// Beyond `most` new marks, the one of everybody stands for them.
    pub(crate) fn add(&mut self, name: &str, most: usize) {
        if !self.new.contains(&Mark::EVERYBODY) {
            self.new.insert(Mark::of(name));
        }
        if self.new.len() > most {
            self.add_everybody();
        }
    }

    pub(crate) fn add_everybody(&mut self) {
        self.new = BTreeSet::from([Mark::EVERYBODY]);
    }

    /// Whether `theirs` have a forgetting of a name that is not known here.
    pub(crate) fn lacks(&self, name: &str, theirs: &Self) -> bool {
        let of = |mark| self.numbers.get(mark).copied();
        let of_all = Some(self.floor).max(of(&Mark::EVERYBODY));
        let is_new = |mark| theirs.numbers.get(mark).copied() > of_all.max(of(mark));
        theirs.floor > self.last || is_new(&Mark::EVERYBODY) || is_new(&Mark::of(name))
    }

    /// Whether `theirs` lack one that is known here.
    pub(crate) fn exceeds(&self, name: &str, theirs: &Self) -> bool {
        let is_new = |mark| self.new.contains(mark);
        is_new(&Mark::EVERYBODY) || is_new(&Mark::of(name)) || theirs.lacks(name, self)
    }

    /// Takes up what `theirs` know, and keeps at most `most` marks, the latest.
    pub(crate) fn join(&mut self, theirs: &Self, most: usize) {
        self.floor = self.floor.max(theirs.floor);
        self.last = self.last.max(theirs.last);
        for (&mark, &theirs) in &theirs.numbers {
            let ours = self.numbers.entry(mark).or_default();
            *ours = theirs.max(*ours);
        }
        self.cut(most);
    }

    /// Gives what is new a number, for a snapshot, and returns it.
    pub(crate) fn number_new(&mut self, most: usize) -> BTreeSet<Mark> {
        let new = std::mem::take(&mut self.new);
        if !new.is_empty() {
            // The clock keeps numbers of several files apart, and orders nothing.
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(0));
            self.last = now.max(self.last + 1);
            let numbered = new.iter().map(|&mark| (mark, self.last));
            self.numbers.extend(numbered);
            self.cut(most);
        }
        new
    }

    /// What was not written after all.
    pub(crate) fn put_back(&mut self, mut new: BTreeSet<Mark>) {
        self.new.append(&mut new);
    }

    fn cut(&mut self, most: usize) {
        if let Some(over) = self.numbers.len().checked_sub(most + 1) {
            let mut numbers: Vec<_> = self.numbers.values().copied().collect();
            let (_, &mut last, _) = numbers.select_nth_unstable(over);
            self.floor = self.floor.max(last);
        }
        let floor = self.floor;
        self.numbers.retain(|_, number| *number > floor);
    }
}
