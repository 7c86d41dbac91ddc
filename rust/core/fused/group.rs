//! Token sequences of a request group and of similar groups.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::memory::group_text::GroupText;
use crate::memory::groups::GroupKey;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::memory::tenant::{Tenant, TenantData};

/// The token sequences of a request's group, or of similar groups, as one sequence. It is short, so all
/// occurrences in it are read, and it is a source of its own, so the mixer weighs it separately.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestGroup {
    /// The group of the request; `None` before the prompt unless the caller named the group.
    pub(crate) key: Option<GroupKey>,
    /// The sequence that the request reads; `None` if it reads no group.
    text: Option<Arc<RwLock<GroupText>>>,
}

impl RequestGroup {
    pub(crate) fn begin(&mut self, tenant: &Tenant, prompt: &[u32]) {
        let (key, groups) = read_by(tenant, self.key, prompt);
        self.key = Some(key);
        self.text = (!groups.is_empty()).then(|| tenant.group_text(groups));
    }

    /// Returns the current sequence of the groups, which all their readers share.
    pub(crate) fn current(&self, kept: &TenantData) -> Option<RwLockReadGuard<'_, GroupText>> {
        let text = self.text.as_ref()?;
        let current = text.read().unwrap_or_else(PoisonError::into_inner);
        if current.is_current(&kept.texts) {
            return Some(current);
        }
        drop(current);
        let mut stale = text.write().unwrap_or_else(PoisonError::into_inner);
        stale.update(&kept.texts);
        drop(stale);
        Some(text.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the group of a prompt and the groups to read: its own first, then similar ones by descending
/// similarity.
fn read_by(tenant: &Tenant, named: Option<GroupKey>, prompt: &[u32]) -> (GroupKey, Vec<GroupKey>) {
    let kept = tenant.read();
    let key = named.unwrap_or_else(|| GroupKey::of_prompt(prompt, kept.texts.groups()));
    let own = (!key.is_continued_by(prompt)).then_some(key);
    let has_texts = |own| kept.texts.since(0, own).next().is_some();
    let has_own = own.is_some_and(has_texts);
    drop(kept);
    let mut groups: Vec<_> = own.into_iter().collect();
    if !has_own {
        groups.extend(similar(tenant, prompt, key));
    }
    (key, groups)
}

/// Returns the groups whose sequences share most with a prompt, such as earlier attempts of an agent at a
/// task. A run of tokens with n occurrences counts 1 / n for each.
///
/// Evenly spaced runs are looked up in small batches, so that the lock never delays a step of another
/// request for long.
fn similar(tenant: &Tenant, prompt: &[u32], own: GroupKey) -> Vec<GroupKey> {
    /// The maximum number of last prompt tokens that are searched for.
    const MAX_TOKENS: usize = 4096;
    const NUM_REPEATED: usize = 8;
    const MAX_RUNS: usize = 128;
    const RUNS_A_TIME: usize = 16;
    const MIN_SHARE: f32 = 0.05;
    const MAX_GROUPS: usize = 4;
    // The memory stores a template only with the first request, so it must not count for that one.
    let template = longest_match(tenant.read().texts(), prompt);
    let tail = &prompt[prompt.len().saturating_sub(MAX_TOKENS).max(template)..];
    let step = tail.len().div_ceil(MAX_RUNS).max(1);
    let runs: Vec<&[u32]> = tail.windows(NUM_REPEATED).step_by(step).collect();
    let mut weights: BTreeMap<GroupKey, f32> = BTreeMap::new();
    for runs in runs.chunks(RUNS_A_TIME) {
        let kept = tenant.read();
        for run in runs {
            let groups = groups_of(&kept, run);
            for &group in &groups {
                *weights.entry(group).or_default() += 1.0 / groups.len() as f32;
            }
        }
    }
    let least = MIN_SHARE * tail.len() as f32 / step as f32;
    let others = weights
        .into_iter()
        .filter(|(group, weight)| ![own, GroupKey::default()].contains(group) && *weight >= least);
    let mut others: Vec<_> = others.collect();
    others.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    others.truncate(MAX_GROUPS);
    others.into_iter().map(|(group, _)| group).collect()
}

/// Returns the group of each of the latest occurrences of a run.
///
/// Occurrences are found by the pair of tokens that appears rarest: the one whose last two occurrences
/// are farthest apart.
fn groups_of(kept: &TenantData, run: &[u32]) -> Vec<GroupKey> {
    const MAX_PLACES: usize = 32;
    let texts = kept.texts();
    let mut rarest = (0, 0);
    for (at, pair) in run.windows(2).enumerate() {
        let mut places = texts.of_pair(pair[0], pair[1]);
        let Some(last) = places.next() else {
            return Vec::new();
        };
        let gap = places.next().map_or(usize::MAX, |before| last - before);
        rarest = rarest.max((gap, at));
    }
    let (_, at) = rarest;
    let starts = texts.of_pair(run[at], run[at + 1]).take(MAX_PLACES);
    let starts = starts.filter_map(|place| place.checked_sub(at + 1));
    let same = starts.filter(|&start| texts.tokens()[start..].starts_with(run));
    same.filter_map(|start| kept.texts.group_at(start)).collect()
}

/// Returns the number of leading prompt tokens that the memory has already: a template or earlier turns.
pub(crate) fn num_known(texts: &IndexedTokens, prompt: &[u32]) -> usize {
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

/// Returns the length of the longest prefix of `tokens` that occurs in `texts`.
fn longest_match(texts: &IndexedTokens, tokens: &[u32]) -> usize {
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

    use super::{read_by, similar};
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
            texts.iter().any(|text| text.windows(begin.len()).any(|part| part == begin))
        };
        let template = (2..=prompt.len()).rev().find(|&length| begins(&prompt[..length]));
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
    fn samples_read_their_own_group_and_new_prompts_similar_groups() {
        let memory = Memory::new(MemoryOptions::new(1000)).unwrap();
        let tenant = memory.tenant("").unwrap();
        let read = |prompt: &[u32]| read_by(&tenant, None, prompt);
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
        fn similar_groups_equal_those_by_definition(
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
            let found = similar(&tenant, &prompt, group(OWN));
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
