//! Which places came before a place, as many as one read can tell?

use crate::numeric::small;

/// Stands for no place.
const NONE: u32 = u32::MAX;

/// Marks a link to two places: how far before its own place the first is, in the low bits, and how
/// far before that the second. Any other link is the first place itself.
const TWO: u32 = 1 << 31;
const FIRST_BITS: u32 = 16;
const MAX_FIRST: u32 = (1 << FIRST_BITS) - 1;
/// The largest that is not taken for no place at all.
const MAX_SECOND: u32 = (1 << (31 - FIRST_BITS)) - 2;

/// For each place of a text, the one before it that is alike; in 4 bytes.
///
/// Steps along links wait for memory, each for the one before it. So a link tells the second place
/// as well where both are near, as those of what comes often are, which have the most steps: two of
/// five waits fewer in a million tokens of chat.
#[derive(Debug, Default, Clone)]
pub(crate) struct Links(Vec<u32>);

impl Links {
    /// The largest place that a link may lead to.
    pub(crate) const MAX_PLACE: u32 = TWO - 1;

    /// The same links with room for so many.
    pub(crate) fn grown(&self, capacity: usize) -> Self {
        Self(copy(&self.0, capacity))
    }

    /// Links the next place to an earlier one.
    pub(crate) fn push(&mut self, earlier: Option<u32>) {
        let link = earlier.map_or(NONE, |first| {
            let second = self.earlier(first).map(|second| first - second);
            match (small(self.0.len()) - first, second) {
                (first @ 1..=MAX_FIRST, Some(second @ 1..=MAX_SECOND)) => {
                    TWO | second << FIRST_BITS | first
                }
                _ => first,
            }
        });
        self.0.push(link);
    }

    /// Takes the last link back: where it led to.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let link = self.0.pop()?;
        places(small(self.0.len()), link).0
    }

    /// The place before this one.
    fn earlier(&self, place: u32) -> Option<u32> {
        places(place, self.0[place as usize]).0
    }

    /// This place and all before it, the latest first.
    pub(crate) fn from(&self, latest: Option<u32>) -> impl Iterator<Item = usize> {
        let (mut next, mut second) = (latest, None);
        std::iter::from_fn(move || {
            let place = next?;
            next = second.take();
            if next.is_none() {
                (next, second) = places(place, self.0[place as usize]);
            }
            Some(place as usize)
        })
    }
}

/// The same numbers with room for so many.
pub(crate) fn copy(numbers: &[u32], capacity: usize) -> Vec<u32> {
    let mut copy = Vec::with_capacity(capacity);
    copy.extend_from_slice(numbers);
    copy
}

/// The first two places that the link of a place tells.
fn places(place: u32, link: u32) -> (Option<u32>, Option<u32>) {
    if link == NONE {
        (None, None)
    } else if link < TWO {
        (Some(link), None)
    } else {
        let first = place - (link & MAX_FIRST);
        let second = first - ((link ^ TWO) >> FIRST_BITS);
        (Some(first), Some(second))
    }
}

#[cfg(test)]
mod tests {
    use super::{Links, MAX_FIRST, MAX_SECOND};

    /// Links as many places as these say to the ones before them, with others between.
    fn links(places: &[u32]) -> Links {
        let mut links = Links::default();
        let mut earlier = None;
        for &place in places {
            while links.0.len() < place as usize {
                links.push(None);
            }
            links.push(earlier);
            earlier = Some(place);
        }
        links
    }

    #[test]
    fn places_are_found_however_far_apart() {
        let distances = [1, 2, MAX_SECOND, MAX_SECOND + 1, MAX_FIRST, MAX_FIRST + 1];
        for first in distances {
            for second in distances {
                for third in distances {
                    let places = [7, 7 + first, 7 + first + second, 7 + first + second + third];
                    let mut links = links(&places);
                    for (index, &place) in places.iter().enumerate().rev() {
                        let found: Vec<_> = links.from(Some(place)).collect();
                        let expected = places[..=index].iter().rev().map(|&place| place as usize);
                        assert_eq!(found, expected.collect::<Vec<_>>());
                    }
                    assert_eq!(links.pop(), Some(places[2]));
                    assert_eq!(links.0.len(), places[3] as usize);
                }
            }
        }
        assert_eq!(links(&[3]).pop(), None);
        assert_eq!(links(&[3]).from(None).count(), 0);
    }
}
