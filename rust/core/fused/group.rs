//! What did other requests of the same group say, or of groups like it?

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fused::mixer::TokenCounts;
use crate::memory::groups::GroupKey;
use crate::memory::history::History;
use crate::memory::tenant::Kept;

/// The texts of a request's group, or of groups like it, as one text: short, so every place of it is read,
/// and a source of its own, so the mixer learns what it is worth.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    /// `None` before the prompt, unless the group has a name.
    pub(crate) key: Option<GroupKey>,
    /// Its own group first, then similar ones, the most similar first.
    read: Vec<GroupKey>,
    num_seen: u64,
    text: Arc<History>,
}

impl Group {
    /// All of it is near.
    const MAX_TOKENS: usize = 1 << 16;

    pub(crate) fn begin(&mut self, kept: &Kept, prompt: &[u32]) {
        let of_prompt = || GroupKey::of_prompt(prompt, kept.texts.groups());
        let key = self.key.unwrap_or_else(of_prompt);
        let own = (!key.is_continued_by(prompt)).then_some(key);
        self.read = own.into_iter().collect();
        if own.is_none_or(|own| kept.texts.since(0, own).next().is_none()) {
            self.read.extend(similar(kept, prompt, key));
        }
        self.key = Some(key);
    }

    /// Takes in what other requests of these groups have written since, the latest first while there is
    /// room, and counts the tokens as used.
    pub(crate) fn update(&mut self, kept: &Kept, counts: &mut TokenCounts) {
        if self.num_seen >= kept.texts.num_added() {
            return; // there are fewer while the oldest are removed
        }
        let mut room = Self::MAX_TOKENS.saturating_sub(self.text.tokens().len());
        let groups = self.read.iter();
        let new = groups.flat_map(|&group| kept.texts.since(self.num_seen, group));
        let new: Vec<&[u32]> = new
            .take_while(|tokens| {
                let fits = tokens.len() < room;
                room = room.saturating_sub(tokens.len() + 1);
                fits
            })
            .collect();
        self.num_seen = kept.texts.num_added();
        for tokens in new.into_iter().rev() {
            let text = Arc::make_mut(&mut self.text);
            text.extend(tokens);
            text.extend(&[History::BOUNDARY]);
            for &token in tokens {
                counts.add(token, 1);
            }
        }
    }

    /// `None` where no other request has ended.
    pub(crate) fn text(&self) -> Option<&History> {
        Some(&*self.text).filter(|text| !text.tokens().is_empty())
    }
}

/// The other groups whose texts a prompt repeats most, such as an agent's earlier trials of a task. A run
/// of tokens at n places counts 1 / n for each.
fn similar(kept: &Kept, prompt: &[u32], own: GroupKey) -> Vec<GroupKey> {
    /// Runs of `NUM_REPEATED` tokens are looked up, among at most this many of the prompt's last tokens.
    const MAX_TOKENS: usize = 4096;
    const NUM_REPEATED: usize = 8;
    const MAX_PLACES: usize = 256;
    const MIN_SHARE: f32 = 0.05;
    const MAX_GROUPS: usize = 4;
    let texts = kept.texts();
    // The memory keeps a template once, in the first request's text: it must not count for that one.
    let template = longest_match(texts, prompt);
    let tail = &prompt[prompt.len().saturating_sub(MAX_TOKENS).max(template)..];
    let mut weights: BTreeMap<GroupKey, f32> = BTreeMap::new();
    for repeated in tail.windows(NUM_REPEATED) {
        let [.., before, last] = *repeated else {
            continue;
        };
        let ends = texts.of_pair(before, last).take(MAX_PLACES);
        let is_same = |&end: &usize| texts.tokens()[..=end].ends_with(repeated);
        let groups = ends.filter(is_same).map(|end| kept.texts.group_at(end));
        let groups: Vec<GroupKey> = groups.flatten().collect();
        for &group in &groups {
            *weights.entry(group).or_default() += 1.0 / groups.len() as f32;
        }
    }
    let least = MIN_SHARE * tail.len() as f32;
    let others = weights
        .into_iter()
        .filter(|(group, weight)| ![own, GroupKey::default()].contains(group) && *weight >= least);
    let mut others: Vec<_> = others.collect();
    others.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    others.truncate(MAX_GROUPS);
    others.into_iter().map(|(group, _)| group).collect()
}

/// How many tokens at the beginning of a prompt the memory has already: a template, or earlier turns.
pub(crate) fn num_known(texts: &History, prompt: &[u32]) -> usize {
    const MIN_LENGTH: usize = 16;
    let mut known = 0;
    loop {
        let longest = longest_match(texts, &prompt[known..]);
        if longest < MIN_LENGTH {
            return known;
        }
        known += longest;
    }
}

/// How many of these tokens, from the first on, stand together in some text.
fn longest_match(texts: &History, tokens: &[u32]) -> usize {
    const MAX_PLACES: usize = 64;
    let [first, second, ..] = *tokens else {
        return 0;
    };
    let length = |end: usize| {
        let pairs = texts.tokens()[end - 1..].iter().zip(tokens);
        pairs.take_while(|(a, b)| a == b).count()
    };
    let places = texts.of_pair(first, second).take(MAX_PLACES);
    places.map(length).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::{Group, similar};
    use crate::memory::groups::GroupKey;
    use crate::memory::store::{Memory, MemoryOptions};

    /// Nine tokens of its own.
    fn sentence(number: u32) -> Vec<u32> {
        (9 * number..9 * (number + 1)).collect()
    }

    fn text(sentences: &[u32]) -> Vec<u32> {
        sentences.iter().copied().flat_map(sentence).collect()
    }

    fn group(number: usize) -> GroupKey {
        GroupKey::named(&number.to_string())
    }

    /// By definition: what of each group's texts the prompt repeats behind the longest beginning that
    /// a text has, and how much is enough.
    fn shares(texts: &[Vec<u32>], num_groups: usize, prompt: &[u32]) -> (Vec<f32>, f32) {
        let begins = |begin: &[u32]| {
            texts
                .iter()
                .any(|text| text.windows(begin.len()).any(|part| part == begin))
        };
        let template = (2..=prompt.len())
            .rev()
            .find(|&length| begins(&prompt[..length]));
        let tail = &prompt[template.unwrap_or(0)..];
        let mut shares = vec![0.0; num_groups];
        for repeated in tail.windows(8) {
            let in_text =
                |text: &Vec<u32>| text.windows(8).filter(|part| *part == repeated).count();
            let all: usize = texts.iter().map(in_text).sum();
            for (number, text) in texts.iter().enumerate().filter(|_| all > 0) {
                let share = in_text(text) as f32 / all as f32;
                shares[number % num_groups] += share;
            }
        }
        let enough = 0.05 * tail.len() as f32;
        (shares, enough)
    }

    #[test]
    fn samples_read_their_own_group_and_others_those_like_it() {
        let memory = Memory::new(MemoryOptions::new(1000)).unwrap();
        let tenant = memory.tenant("").unwrap();
        let read = |prompt: &[u32]| {
            let mut group = Group::default();
            group.begin(&tenant.read(), prompt);
            (group.key.unwrap(), group.read)
        };
        let (first, second) = (text(&[1, 2, 3]), text(&[4, 2, 3]));
        let (key, groups) = read(&first);
        assert_eq!(groups, [key]);
        memory.add(&tenant, &[first.clone(), text(&[5])].concat(), key);
        assert_eq!(read(&first), (key, vec![key]));
        // The next turn has the first one in its own context.
        assert_eq!(read(&text(&[1, 2, 3, 5, 6])), (key, vec![]));
        let (other, groups) = read(&second);
        assert_eq!(groups, [other, key]);
        memory.add(&tenant, &[second.clone(), text(&[7])].concat(), other);
        assert_eq!(read(&second), (other, vec![other]));
        assert_eq!(read(&text(&[4, 2, 3, 7, 2, 3])), (other, vec![key]));
    }

    proptest! {
        #[test]
        fn a_group_is_similar_if_a_prompt_repeats_enough_of_its_texts(
            texts in vec(vec(0_u32..12, 1..6), 0..12),
            prompt in vec(0_u32..24, 1..12),
        ) {
            const NUM_GROUPS: usize = 6;
            const OWN: usize = 0;
            let memory = Memory::new(MemoryOptions::new(1000)).unwrap();
            let tenant = memory.tenant("").unwrap();
            let mut stored = Vec::new();
            for sentences in texts {
                let tokens = text(&sentences);
                // A text that the memory has already is not added again.
                if !stored.contains(&tokens) {
                    memory.add(&tenant, &tokens, group(stored.len() % NUM_GROUPS));
                    stored.push(tokens);
                }
            }
            let prompt = text(&prompt);
            let (mut shares, enough) = shares(&stored, NUM_GROUPS, &prompt);
            prop_assume!(shares.iter().all(|share| (share - enough).abs() > 1e-3));
            shares[OWN] = 0.0;
            let found = similar(&tenant.read(), &prompt, group(OWN));
            let number = |key: &GroupKey| (0..NUM_GROUPS).find(|&number| group(number) == *key);
            let found: Vec<f32> = found.iter().map(|key| shares[number(key).unwrap()]).collect();
            shares.retain(|&share| share >= enough);
            shares.sort_by(|a, b| b.total_cmp(a));
            shares.truncate(4);
            prop_assert_eq!(found.len(), shares.len());
            for (found, expected) in found.into_iter().zip(shares) {
                prop_assert!((found - expected).abs() < 1e-3);
            }
        }
    }
}
