//! Where did each key of a text come, the latest place first?

use std::hint::{black_box, select_unpredictable};
use std::ops::{BitXor, Range};

use crate::base::portable_math::saturating_u32;
use crate::memory::slot_table::{PARTS, SlotTable, copy, replace};

/// How many numbers the first runs of a key are, each with the one that tells what was before it; the
/// last size is that of all later ones, a line of the cache.
const SIZES: [usize; 8] = [4, 4, 4, 4, 8, 8, 8, 16];

/// Runs begin at multiples of this.
const UNIT: usize = SIZES[0];

/// A run's first number: which of the sizes it has, in the low bits, and which run was before it.
const SIZE_BITS: u32 = 3;
const NONE_BEFORE: u32 = u32::MAX >> SIZE_BITS;

/// Stands for no place yet.
const FREE: u32 = u32::MAX;

/// The places of each key; keys lie elsewhere.
///
/// Places lie side by side in runs, each of which tells the one before it: one wait for memory reads
/// many places. A list in which each place told the one before it would wait for each. A key that came
/// once has no run, and one that came seldom has short ones.
#[derive(Debug, Default, Clone)]
pub(crate) struct Postings {
    heads: SlotTable,
    runs: Vec<u32>,
    num_places: usize,
}

/// What it takes to add places, made without changing what is there.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    heads: Option<SlotTable>,
    runs: Option<Vec<u32>>,
}

/// What is filed under a key, as a number: its only place, or its last run.
#[derive(Debug, Clone, Copy)]
enum Head {
    Place(u32),
    Run(u32),
}

impl Head {
    fn of(number: u32) -> Self {
        if number.is_multiple_of(2) {
            Self::Place(number / 2)
        } else {
            Self::Run(number / 2)
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Place(place) => 2 * place,
            Self::Run(run) => 2 * run + 1,
        }
    }
}

impl Postings {
    /// The most places: a run's number is then below [`NONE_BEFORE`].
    pub(crate) const MAX_PLACES: usize = (1 << 30) - 1;

    /// Adds a place, later than those before, to the key of this hash, which `is_same` tells from the
    /// keys of other places. There is room: see [`reserved`](Self::growth).
    pub(crate) fn add(&mut self, hash: u64, place: u32, is_same: impl Fn(u32) -> bool) {
        let is_key = |number| is_same(self.one_of(number));
        let (slot, number) = self.heads.find(hash, is_key);
        let head = match number.map(Head::of) {
            None => Head::Place(place),
            Some(Head::Place(first)) => self.begin_run(None, &[first, place]),
            Some(Head::Run(run)) => {
                let range = self.range(run);
                let places = &mut self.runs[range];
                let num_taken = num_taken(places);
                if let Some(free) = places.get_mut(num_taken) {
                    *free = place;
                    Head::Run(run)
                } else {
                    self.begin_run(Some(run), &[place])
                }
            }
        };
        self.heads.file(slot, hash, head.number(), number.is_none());
        self.num_places += 1;
    }

    /// The places of the key of this hash, the latest first.
    pub(crate) fn of(
        &self,
        hash: u64,
        is_same: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = usize> {
        let head = self
            .heads
            .get(hash, |number| is_same(self.one_of(number)))
            .map(Head::of);
        let (only, run) = match head {
            Some(Head::Place(place)) => (Some(place), None),
            Some(Head::Run(run)) => (None, Some(run)),
            None => (None, None),
        };
        let mut before = run.and_then(|run| self.before(run));
        let mut places = run.map_or(&[][..], |run| self.taken(run));
        let of_runs = std::iter::from_fn(move || {
            if places.is_empty() {
                let run = before?;
                (places, before) = (self.places(run), self.before(run));
            }
            let (&place, earlier) = places.split_last()?;
            places = earlier;
            Some(place as usize)
        });
        only.map(|place| place as usize).into_iter().chain(of_runs)
    }

    /// Brings what is read to add places to keys of these hashes into the cache, and gives a place of
    /// each, likely; any number where it has none.
    ///
    /// Without a branch, which would wait for what it depends on: so these reads wait for memory at the
    /// same time, which those of one key after another do not.
    pub(crate) fn touch(
        &self,
        hashes: impl Iterator<Item = u64> + Clone,
    ) -> impl Iterator<Item = u32> {
        let numbers = hashes.map(|hash| self.heads.guess(hash));
        black_box(numbers.clone().fold(0, BitXor::bitxor));
        numbers.map(|number| {
            let first = self.runs.get(start(number / 2) + 1);
            let first = first.copied().unwrap_or(FREE);
            select_unpredictable(number.is_multiple_of(2), number / 2, first)
        })
    }

    /// The memory to add `additional` places, below `end`; `hash` gives the hash of a place's key.
    /// O(places so far), but seldom more than O(1).
    pub(crate) fn reserved(
        &self,
        additional: usize,
        end: usize,
        hash: impl Fn(u32) -> u64,
    ) -> Reserved {
        let most = self.most_numbers_with(additional);
        let runs = (most > self.runs.capacity()).then(|| {
            let length = self.runs.len();
            copy(&self.runs, most.max(length + length / PARTS))
        });
        let end = 2 * end.max(most / UNIT + 1);
        let hash = |number| hash(self.one_of(number));
        Reserved {
            heads: self.heads.grown(additional, end, hash),
            runs,
        }
    }

    /// Grows; gives what is not needed any more.
    pub(crate) fn adopt(&mut self, reserved: Reserved) -> Reserved {
        Reserved {
            heads: replace(&mut self.heads, reserved.heads),
            runs: replace(&mut self.runs, reserved.runs),
        }
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.heads.num_bytes() + size_of::<u32>() * self.runs.capacity()
    }

    /// The most memory that it takes after `additional` more places, which are made room for `piece` at a
    /// time, in bytes.
    pub(crate) fn num_bytes_with(&self, additional: usize, piece: usize) -> usize {
        let most = self.most_numbers_with(additional);
        let capacity = if most <= self.runs.capacity() {
            self.runs.capacity()
        } else {
            most + most / PARTS
        };
        self.heads.num_bytes_with(additional, piece) + size_of::<u32>() * capacity
    }

    /// The most numbers of all runs after `additional` more places: each of them begins a run of the
    /// largest size, but runs are never less than half full: each key's last run has just begun then.
    fn most_numbers_with(&self, additional: usize) -> usize {
        let most = self.runs.len() + SIZES[SIZES.len() - 1] * additional;
        most.min(2 * (self.num_places + additional))
    }

    fn begin_run(&mut self, before: Option<u32>, places: &[u32]) -> Head {
        let run = saturating_u32(self.runs.len() / UNIT);
        let size = before.map_or(0, |before| (self.size(before) + 1).min(SIZES.len() - 1));
        let before = before.unwrap_or(NONE_BEFORE);
        self.runs.push(before << SIZE_BITS | saturating_u32(size));
        self.runs.extend_from_slice(places);
        self.runs.resize(start(run) + SIZES[size], FREE);
        Head::Run(run)
    }

    /// A place of the key that is filed under a number: the only one, or the first of its last run.
    fn one_of(&self, number: u32) -> u32 {
        match Head::of(number) {
            Head::Place(place) => place,
            Head::Run(run) => self.runs[start(run) + 1],
        }
    }

    fn before(&self, run: u32) -> Option<u32> {
        let before = self.runs[start(run)] >> SIZE_BITS;
        (before != NONE_BEFORE).then_some(before)
    }

    /// Where the places of a run are.
    fn range(&self, run: u32) -> Range<usize> {
        let start = start(run);
        start + 1..start + SIZES[self.size(run)]
    }

    /// Which of [`SIZES`] a run has.
    fn size(&self, run: u32) -> usize {
        (self.runs[start(run)] % (1 << SIZE_BITS)) as usize
    }

    fn places(&self, run: u32) -> &[u32] {
        &self.runs[self.range(run)]
    }

    fn taken(&self, run: u32) -> &[u32] {
        let places = self.places(run);
        &places[..num_taken(places)]
    }
}

fn start(run: u32) -> usize {
    run as usize * UNIT
}

fn num_taken(places: &[u32]) -> usize {
    places.partition_point(|&place| place != FREE)
}

#[cfg(test)]
mod tests {
    use super::Postings;

    /// Keys of places: one of which all are, many of few places each, and a few of many.
    fn key_of_all(_: u32) -> u32 {
        0
    }

    fn key_of_few(place: u32) -> u32 {
        place % 200
    }

    fn key_of_many(place: u32) -> u32 {
        (place * place / 7) % 5
    }

    /// Three keys share a hash.
    fn hash(key: u32) -> u64 {
        u64::from(key / 3) << 60
    }

    fn add(occurrences: &mut Postings, places: std::ops::Range<u32>, key: impl Fn(u32) -> u32) {
        let reserved =
            occurrences.reserved(places.len(), places.end as usize, |place| hash(key(place)));
        occurrences.adopt(reserved);
        let capacity = occurrences.runs.capacity();
        for place in places {
            occurrences.add(hash(key(place)), place, |other| key(other) == key(place));
        }
        assert_eq!(occurrences.runs.capacity(), capacity, "there was no room");
    }

    fn check(occurrences: &Postings, num_places: u32, key: fn(u32) -> u32) {
        for wanted in 0..201 {
            let found = occurrences.of(hash(wanted), |place| key(place) == wanted);
            let places = (0..num_places).rev().filter(|&place| key(place) == wanted);
            let expected: Vec<_> = places.map(|place| place as usize).collect();
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn places_are_found_latest_first_over_runs_of_every_size() {
        for key in [key_of_all, key_of_few, key_of_many] {
            let mut occurrences = Postings::default();
            for start in (0..600).step_by(60) {
                add(&mut occurrences, start..start + 60, key);
                check(&occurrences, start + 60, key);
            }
        }
    }

    #[test]
    fn the_memory_is_never_more_than_was_said() {
        // Where each key has two places, or four, its last run has just begun.
        for num_keys in [1, 2, 250, 500] {
            let key = |place: u32| place % num_keys;
            let mut occurrences = Postings::default();
            for start in (0..1000).step_by(40) {
                let most = occurrences.num_bytes_with(40, 40);
                add(&mut occurrences, start..start + 40, key);
                assert!(occurrences.num_bytes() <= most);
                assert!(occurrences.runs.len() <= 2 * occurrences.num_places);
            }
        }
    }
}
