//! Request groups.
//!
//! Samples of one prompt, turns of a conversation and edits of a file repeat each other most. A group is
//! identified by a name, or by the prompt that its prompts begin with.

use xxhash_rust::xxh3::xxh3_64;

use crate::portable_math::saturating_u32;

/// The identity of a group. The default stands for texts without a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct GroupKey {
    pub(crate) hash: u64,
    /// Length of the prompt that began the group; 0 if the group has a name.
    pub(crate) length: u32,
}

impl GroupKey {
    /// Minimum length of a prompt that other prompts can continue: a shorter one may be the start of a template that
    /// all requests share.
    const MIN_LENGTH: u32 = 16;

    pub(crate) fn named(name: &str) -> Self {
        Self { hash: xxh3_64(name.as_bytes()), length: 0 }
    }

    /// Returns whether a prompt continues the group's prompt, as the next turn of a conversation does. The
    /// group's texts are then part of the prompt.
    pub(crate) fn is_continued_by(self, prompt: &[u32]) -> bool {
        self.length > 0 && (self.length as usize) < prompt.len()
    }

    /// Returns the known group with the shortest prompt that is a prefix of this one, or a new group.
    /// O(tokens + groups).
    pub(crate) fn of_prompt(prompt: &[u32], known: impl Iterator<Item = Self>) -> Self {
        let whole = saturating_u32(prompt.len());
        let hashes = prompt.iter().scan(0, |hash, &token| {
            *hash = hash_step(*hash, token);
            Some(*hash)
        });
        // The hashes of all prefixes, the empty one first.
        let hashes: Vec<u64> = std::iter::once(0).chain(hashes).collect();
        let begins_prompt = |group: &Self| {
            (Self::MIN_LENGTH..whole).contains(&group.length)
                && hashes[group.length as usize] == group.hash
        };
        let shortest = known.filter(begins_prompt).min_by_key(|group| group.length);
        shortest.unwrap_or(Self { hash: hashes[prompt.len()], length: whole })
    }
}

fn hash_step(hash: u64, token: u32) -> u64 {
    (hash.rotate_left(5) ^ u64::from(token) ^ 0x5BD1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::GroupKey;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn prompt_joins_the_group_of_its_shortest_known_prefix(
            prompts in vec((14_usize..20, vec(0_u32..2, 0..3)), 1..12),
        ) {
            let mut groups = Vec::new();
            // The prompt that began each prompt's group.
            let mut known: Vec<Vec<u32>> = Vec::new();
            for (length, end) in prompts {
                let prompt = [vec![7; length], end].concat();
                let begins = |other: &&Vec<u32>| {
                    prompt == **other || other.len() >= 16 && prompt.starts_with(other)
                };
                let first = known.iter().filter(begins).min_by_key(|other| other.len());
                let first = first.cloned().unwrap_or(prompt.clone());
                let group = GroupKey::of_prompt(&prompt, groups.iter().copied());
                prop_assert_eq!(group, GroupKey::of_prompt(&first, std::iter::empty()));
                groups.push(group);
                known.push(first);
            }
        }
    }
}
