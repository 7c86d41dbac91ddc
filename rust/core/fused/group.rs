//! What did other requests of the same group say?

use std::sync::Arc;

use crate::fused::mixer::TokenCounts;
use crate::memory::groups::GroupKey;
use crate::memory::history::History;
use crate::memory::tenant::{Kept, Learned};

/// The texts of a request's group, as a text of its own: short, so that every place of it is looked
/// at, and the mixer learns what such places are worth beside all others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    /// `None` before the prompt, unless the group has a name.
    pub(crate) key: Option<GroupKey>,
    num_seen: u64,
    text: Arc<History>,
}

impl Group {
    /// The most tokens: as many as are near.
    const MAX_TOKENS: usize = 1 << 16;

    /// Begins with the prompt.
    pub(crate) fn begin<L: Learned>(&mut self, kept: &Kept<L>, prompt: &[u32]) {
        self.key
            .get_or_insert_with(|| kept.groups.of_prompt(prompt));
    }

    /// Takes in what has become of other requests of the group, as far as there is room, the latest
    /// first, and counts its tokens as used.
    pub(crate) fn update<L: Learned>(&mut self, kept: &Kept<L>, counts: &mut TokenCounts) {
        let Some(key) = self.key else { return };
        if self.num_seen == kept.groups.num_added() {
            return;
        }
        let mut room = Self::MAX_TOKENS.saturating_sub(self.text.tokens().len());
        let new = kept.groups.since(self.num_seen, key);
        let new = new.filter_map(|hash| kept.texts.of_hash(hash));
        let new: Vec<&[u32]> = new
            .take_while(|tokens| {
                let fits = tokens.len() < room;
                room = room.saturating_sub(tokens.len() + 1);
                fits
            })
            .collect();
        self.num_seen = kept.groups.num_added();
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

/// How many tokens at the beginning of a prompt the memory has already: a template, or the turns of
/// a conversation before this one. They would be found twice.
pub(crate) fn num_known(texts: &History, prompt: &[u32]) -> usize {
    const MIN_LENGTH: usize = 16;
    const MAX_PLACES: usize = 64;
    let mut known = 0;
    while let [first, second, ..] = prompt[known..] {
        let length = |end: usize| {
            let pairs = texts.tokens()[end - 1..].iter().zip(&prompt[known..]);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let places = texts.of_pair(first, second).take(MAX_PLACES);
        let longest = places.map(length).max().unwrap_or(0);
        if longest < MIN_LENGTH {
            break;
        }
        known += longest;
    }
    known
}
