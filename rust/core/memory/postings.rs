//! Where did each key of a text come, the latest place first?

use std::ops::Range;

use crate::base::portable_math::saturating_u32;
use crate::memory::slot_table::{SlotTable, bits_of, bytes_of, reserve};

/// The lengths of the first runs of a key, in numbers, their header included; all later ones have the
/// last, a cache line.
const SIZES: [usize; 8] = [4, 4, 4, 4, 8, 8, 8, 16];

/// Runs begin at multiples of this.
const UNIT: usize = SIZES[0];

/// The bits of a run's header that say which of [`SIZES`] it has; the others are the run before it.
const SIZE_BITS: u32 = 3;
const NONE_BEFORE: u32 = u32::MAX >> SIZE_BITS;

/// How many places are sorted at a time when all are filed at once, or a fourth of them.
const AT_ONCE: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };

/// No place yet.
const FREE: u32 = u32::MAX;

/// The places of each key; keys lie elsewhere.
///
/// Places lie side by side in runs, linked backwards, so one cache miss reads many of them. A key that
/// came once has no run; the first runs of a key are short.
#[derive(Debug, Default, Clone)]
pub(crate) struct Postings {
    heads: SlotTable,
    runs: Vec<u32>,
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

    /// Adds a place, later than those before. `key_of` gives the key of any place that was added, and
    /// of this one.
    pub(crate) fn add(&mut self, place: u32, key_of: impl Fn(u32) -> u64) {
        let key = key_of(place);
        let key_of = |number| key_of(one_of(&self.runs, number));
        let next = (place as usize).max(self.runs.len() / UNIT);
        self.heads.reserve(2 * next + 2, key_of);
        let (slot, number) = self.heads.find(key, key_of);
        let head = self.with_place(number.map(Head::of), place);
        self.heads.file(slot, key, head.number(), number.is_none());
    }

    /// The postings of all these places, as if each had been [added](Self::add), in a fraction of the
    /// time: sorted by key first, so runs are written in order. O(n log n), and 2 bytes a place and 16 a
    /// key of memory meanwhile.
    ///
    /// `keys` has each place, below `most`, with its key packed so that both fit 64 bits; `widened`
    /// unpacks a key.
    pub(crate) fn of_all(
        keys: &(impl Iterator<Item = (u32, u64)> + Clone),
        widened: impl Fn(u64) -> u64,
        most: usize,
    ) -> Self {
        let num_parts = most.div_ceil(AT_ONCE).clamp(1, 4);
        let place_bits = bits_of(most);
        let (mut postings, mut heads, mut sorted) = (Self::default(), Vec::new(), Vec::new());
        reserve(&mut heads, most);
        reserve(&mut sorted, most / num_parts * 2);
        let num_parts = num_parts as u64;
        for part in 0..num_parts {
            sorted.clear();
            let in_part = keys.clone().filter(|&(_, key)| {
                let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
                (hash * num_parts) >> 32 == part
            });
            sorted.extend(in_part.map(|(place, key)| key << place_bits | u64::from(place)));
            sorted.sort_unstable();
            for same_key in sorted.chunk_by(|one, other| one >> place_bits == other >> place_bits) {
                let mut head = None;
                for entry in same_key {
                    head = Some(postings.with_place(head, place_of(*entry, place_bits)));
                }
                let key = widened(same_key[0] >> place_bits);
                heads.extend(head.map(|head| (key, head.number())));
            }
        }
        let end = most.max(postings.runs.len() / UNIT);
        postings.heads = SlotTable::of(&heads, 2 * end + 2);
        postings
    }

    /// What is filed under a key once it has one more place.
    fn with_place(&mut self, head: Option<Head>, place: u32) -> Head {
        match head {
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
        }
    }

    /// The places of this key, the latest first.
    pub(crate) fn of(&self, key: u64, key_of: impl Fn(u32) -> u64) -> impl Iterator<Item = usize> {
        let key_of = |number| key_of(one_of(&self.runs, number));
        let head = self.heads.get(key, key_of).map(Head::of);
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

    pub(crate) fn num_bytes(&self) -> usize {
        self.heads.num_bytes() + bytes_of(&self.runs)
    }

    fn begin_run(&mut self, before: Option<u32>, places: &[u32]) -> Head {
        let run = saturating_u32(self.runs.len() / UNIT);
        let size = before.map_or(0, |before| (self.size(before) + 1).min(SIZES.len() - 1));
        let before = before.unwrap_or(NONE_BEFORE);
        reserve(&mut self.runs, SIZES[size]);
        self.runs.push(before << SIZE_BITS | saturating_u32(size));
        self.runs.extend_from_slice(places);
        self.runs.resize(start(run) + SIZES[size], FREE);
        Head::Run(run)
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

/// The low bits of what is sorted to bring the places of a key together.
#[expect(
    clippy::cast_possible_truncation,
    reason = "these bits are what is meant"
)]
fn place_of(entry: u64, place_bits: u32) -> u32 {
    (entry & !(u64::MAX << place_bits)) as u32
}

/// A place of the key that is filed under a number: the only one, or the first of its last run.
fn one_of(runs: &[u32], number: u32) -> u32 {
    match Head::of(number) {
        Head::Place(place) => place,
        Head::Run(run) => runs[start(run) + 1],
    }
}

fn start(run: u32) -> usize {
    run as usize * UNIT
}

fn num_taken(places: &[u32]) -> usize {
    places.partition_point(|&place| place != FREE)
}
