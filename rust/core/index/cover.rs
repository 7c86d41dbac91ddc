//! Which suffixes need ranks so that any two can be compared?
//!
//! A difference cover's (Burkhardt and Kärkkäinen, "Fast lightweight suffix array construction and
//! checking", 2003). The residues of [`COVER`] have every difference modulo [`PERIOD`]: so for any
//! two positions there is a shift below the period that takes both to positions of the cover.

use std::cmp::Ordering;

use libsais::SuffixArrayConstruction;

use crate::base::error::Result;
use crate::index::suffix_array::{out_of_memory, zeros};

/// The period of the cover. A longer one takes less memory for ranks and more time where the text
/// repeats itself.
pub(crate) const PERIOD: usize = 64;

/// Residues modulo [`PERIOD`] whose differences are all residues.
pub(crate) const COVER: [usize; 9] = [0, 1, 2, 5, 14, 16, 34, 42, 59];

/// Where the number of a position of the cover is kept: those of one residue after those of another,
/// each by position, so that what follows a number is that of the position a period further.
pub(crate) struct Places {
    /// The place of the first position of a residue; of residues outside the cover, 0.
    starts: [usize; PERIOD],
    /// For each difference a residue of the cover from which it leads to another.
    shifts: [usize; PERIOD],
    count: usize,
}

impl Places {
    /// Places for the positions `0..=num_tokens`: the empty suffix ends what is last of a residue.
    pub(crate) fn new(num_tokens: usize) -> Self {
        let mut places = Self {
            starts: [0; PERIOD],
            shifts: [0; PERIOD],
            count: 0,
        };
        for from in COVER {
            places.starts[from] = places.count;
            places.count += (num_tokens + PERIOD - from) / PERIOD;
            for to in COVER {
                places.shifts[(to + PERIOD - from) % PERIOD] = from;
            }
        }
        places
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn place(&self, position: usize) -> usize {
        self.starts[position % PERIOD] + position / PERIOD
    }
}

/// The ranks of the suffixes at the cover.
pub(crate) struct Ranks {
    ranks: Vec<i32>,
    places: Places,
}

impl Ranks {
    /// Ranks by names, which order as the first [`PERIOD`] tokens do: they are the letters of a text
    /// whose suffixes order as those at the cover do, since names at the end are all different.
    /// O(names); 8 bytes more for each.
    pub(crate) fn new(mut names: Vec<i32>, places: Places) -> Result<Self> {
        let num_names = names.len();
        let mut order: Vec<i32> = zeros(num_names)?;
        let construction = SuffixArrayConstruction::for_text_mut(&mut names);
        construction
            .in_borrowed_buffer(&mut order)
            .single_threaded()
            .run()
            .map_err(|_| out_of_memory(num_names * size_of::<i32>()))?;
        for (rank, place) in (0..).zip(order) {
            names[place.cast_unsigned() as usize] = rank;
        }
        Ok(Self {
            ranks: names,
            places,
        })
    }

    pub(crate) fn num_bytes(&self) -> u64 {
        (self.ranks.len() * size_of::<i32>()) as u64
    }

    /// The order of the suffixes at two positions whose first [`PERIOD`] tokens are the same.
    pub(crate) fn compare(&self, a: usize, b: usize) -> Ordering {
        let difference = b.wrapping_sub(a) % PERIOD;
        let shift = self.places.shifts[difference].wrapping_sub(a) % PERIOD;
        let rank = |position| self.ranks[self.places.place(position + shift)];
        rank(a).cmp(&rank(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_two_positions_have_a_shift_into_the_cover() {
        let places = Places::new(1000);
        for a in 0..PERIOD {
            for b in 0..2 * PERIOD {
                let shift = places.shifts[b.wrapping_sub(a) % PERIOD].wrapping_sub(a) % PERIOD;
                for position in [a, b] {
                    assert!(COVER.contains(&((position + shift) % PERIOD)));
                }
            }
        }
    }

    #[test]
    fn every_position_of_the_cover_has_a_place_of_its_own() {
        for num_tokens in 0..200 {
            let places = Places::new(num_tokens);
            let covered = (0..=num_tokens).filter(|position| COVER.contains(&(position % PERIOD)));
            let mut taken: Vec<_> = covered.map(|position| places.place(position)).collect();
            taken.sort_unstable();
            assert_eq!(taken, (0..places.count()).collect::<Vec<_>>());
        }
    }
}
