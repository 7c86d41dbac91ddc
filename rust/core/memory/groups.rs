//! Which of a tenant's texts are of requests of one group?
//!
//! Samples of one prompt, turns of one conversation, edits of one file repeat each other most. A group
//! has a name, or is found by how its prompts begin.

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_64;

use crate::base::portable_math::saturating_u32;
use crate::memory::slot_table::{bytes_of, reserve};

/// What tells a group from others of its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct GroupKey {
    hash: u64,
    /// The tokens of the prompt that began the group; 0 where it has a name.
    length: u32,
}

impl GroupKey {
    pub(crate) fn named(name: &str) -> Self {
        Self {
            hash: xxh3_64(name.as_bytes()),
            length: 0,
        }
    }

    /// Whether a prompt of this group goes on with what came of an earlier one, as the turns of a
    /// conversation do: they are its own context.
    pub(crate) fn is_continued_by(self, prompt: &[u32]) -> bool {
        self.length > 0 && (self.length as usize) < prompt.len()
    }
}

/// The texts of a tenant's groups, by their hashes: the latest [`MAX_TEXTS`](Self::MAX_TEXTS).
#[derive(Debug, Default)]
pub(crate) struct Groups {
    texts: Vec<(GroupKey, u64)>,
    /// How many were ever added.
    num_added: u64,
}

impl Groups {
    const MAX_TEXTS: usize = 1 << 14;

    /// The most bytes of [`to_bytes`](Self::to_bytes).
    pub(crate) const MAX_SAVED: usize = 24 * Self::MAX_TEXTS;

    /// A shorter prompt begins no group: it may be the template's first tokens alone.
    const MIN_LENGTH: u32 = 16;

    /// Notes that the text of this hash is of a group.
    pub(crate) fn add(&mut self, group: GroupKey, hash: u64) {
        if self.texts.len() == Self::MAX_TEXTS {
            self.texts.drain(..Self::MAX_TEXTS / 2);
        }
        reserve(&mut self.texts, 1);
        self.texts.push((group, hash));
        self.num_added += 1;
    }

    /// Adds what another one has that this one has not.
    pub(crate) fn absorb(&mut self, other: &Self) {
        let known: BTreeSet<_> = self.texts.iter().copied().collect();
        for &(group, hash) in other.texts.iter().filter(|text| !known.contains(text)) {
            self.add(group, hash);
        }
    }

    /// As a snapshot has them.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let bytes = self.texts.iter().flat_map(|(group, hash)| {
            let numbers = [group.hash, group.length.into(), *hash];
            numbers.into_iter().flat_map(u64::to_le_bytes)
        });
        bytes.collect()
    }

    /// What [`to_bytes`](Self::to_bytes) wrote; `None` where it is anything else.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks();
        let numbers: Vec<u64> = numbers.iter().copied().map(u64::from_le_bytes).collect();
        let (texts, others) = numbers.as_chunks();
        let mut groups = Self::default();
        for &[hash, length, text] in texts {
            let length = length.try_into().ok()?;
            groups.add(GroupKey { hash, length }, text);
        }
        (rest.is_empty() && others.is_empty()).then_some(groups)
    }

    /// Forgets all texts.
    pub(crate) fn clear(&mut self) {
        self.texts = Vec::new();
    }

    /// The group of the shortest earlier prompt that this one begins with; else it begins one.
    /// O(tokens + texts).
    pub(crate) fn of_prompt(&self, prompt: &[u32]) -> GroupKey {
        let whole = saturating_u32(prompt.len());
        let lengths = self.texts.iter().map(|(group, _)| group.length);
        let is_possible = |&length: &u32| (Self::MIN_LENGTH..whole).contains(&length);
        let mut begins: BTreeMap<u32, u64> = lengths
            .filter(is_possible)
            .map(|length| (length, 0))
            .collect();
        let (mut hash, mut done) = (0, 0);
        for (&length, begin) in &mut begins {
            let length = length as usize;
            hash = prompt[done..length].iter().copied().fold(hash, hash_step);
            (*begin, done) = (hash, length);
        }
        let begins_prompt = |group: &&GroupKey| begins.get(&group.length) == Some(&group.hash);
        let known = self.texts.iter().map(|(group, _)| group);
        let shortest = known.filter(begins_prompt).min_by_key(|group| group.length);
        shortest.copied().unwrap_or(GroupKey {
            hash: prompt[done..].iter().copied().fold(hash, hash_step),
            length: whole,
        })
    }

    /// The hashes of a group's texts that were added since there were `num_seen`, the latest first.
    pub(crate) fn since(&self, num_seen: u64, group: GroupKey) -> impl Iterator<Item = u64> {
        let num_new =
            usize::try_from(self.num_added.saturating_sub(num_seen)).unwrap_or(usize::MAX);
        let new = self.texts.iter().rev().take(num_new);
        let of_group = new.filter(move |(other, _)| *other == group);
        of_group.map(|&(_, hash)| hash)
    }

    /// The groups but `own` of the texts of these hashes, at most `most`, the heaviest first: those whose
    /// texts' weights add up to at least `least`.
    pub(crate) fn heaviest(
        &self,
        weights: &BTreeMap<u64, f32>,
        own: GroupKey,
        least: f32,
        most: usize,
    ) -> Vec<GroupKey> {
        let mut sums: BTreeMap<GroupKey, f32> = BTreeMap::new();
        for (group, hash) in self.texts.iter().filter(|(group, _)| *group != own) {
            if let Some(weight) = weights.get(hash) {
                *sums.entry(*group).or_default() += weight;
            }
        }
        let mut groups: Vec<_> = sums.into_iter().filter(|(_, sum)| *sum >= least).collect();
        groups.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        groups.truncate(most);
        groups.into_iter().map(|(group, _)| group).collect()
    }

    pub(crate) fn num_added(&self) -> u64 {
        self.num_added
    }

    pub(crate) fn num_bytes(&self) -> usize {
        bytes_of(&self.texts)
    }
}

fn hash_step(hash: u64, token: u32) -> u64 {
    (hash.rotate_left(5) ^ u64::from(token) ^ 0x5BD1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::{GroupKey, Groups};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_prompt_is_of_the_group_of_the_shortest_one_that_it_begins_with(
            prompts in vec((14_usize..20, vec(0_u32..2, 0..3)), 1..12),
        ) {
            let mut groups = Groups::default();
            // Prompts, and those that began their groups.
            let mut known: Vec<Vec<u32>> = Vec::new();
            for (number, (length, end)) in (0..).zip(prompts) {
                let prompt = [vec![7; length], end].concat();
                let begins = |other: &&Vec<u32>| {
                    prompt == **other || other.len() >= 16 && prompt.starts_with(other)
                };
                let first = known.iter().filter(begins).min_by_key(|other| other.len());
                let first = first.cloned().unwrap_or(prompt.clone());
                let group = groups.of_prompt(&prompt);
                prop_assert_eq!(group, Groups::default().of_prompt(&first));
                groups.add(group, number);
                prop_assert_eq!(groups.since(number, group).next(), Some(number));
                known.push(first);
            }
        }
    }

    #[test]
    fn only_the_latest_texts_are_kept_and_each_is_new_once() {
        let mut groups = Groups::default();
        let ours = GroupKey::named("ours");
        let most = Groups::MAX_TEXTS as u64;
        for number in 0..3 * most {
            let group = if number.is_multiple_of(2) {
                ours
            } else {
                GroupKey::default()
            };
            groups.add(group, number);
        }
        assert!(groups.texts.len() <= Groups::MAX_TEXTS);
        let all: Vec<u64> = groups.since(0, ours).collect();
        assert!(all.len() >= Groups::MAX_TEXTS / 4 && all[0] == 3 * most - 2);
        assert_eq!(groups.since(3 * most - 3, ours).count(), 1);
        assert_eq!(groups.since(groups.num_added(), ours).count(), 0);
    }
}
