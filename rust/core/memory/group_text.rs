//! The latest texts of request groups, joined into one sequence.

use crate::memory::groups::GroupKey;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::memory::texts::TextLog;
use crate::memory::token_counts::TokenCounts;

/// The latest texts of some groups, in a sequence short enough for every match in it to be recent. Requests that
/// read the same groups share it, so each text is copied and indexed once.
#[derive(Debug)]
pub(crate) struct GroupText {
    groups: Vec<GroupKey>,
    num_seen: u64,
    num_removed: u64,
    text: IndexedTokens,
    uses: TokenCounts,
}

impl GroupText {
    const MAX_TOKENS: usize = 1 << 16;

    /// A rebuilt sequence has at most this length, to leave room for new texts.
    const KEPT_TOKENS: usize = Self::MAX_TOKENS / 4 * 3;

    /// Returns an empty sequence of these groups, which are sorted by relevance.
    pub(crate) fn of(groups: &[GroupKey]) -> Self {
        Self {
            groups: groups.to_vec(),
            num_seen: 0,
            num_removed: 0,
            text: IndexedTokens::default(),
            uses: TokenCounts::default(),
        }
    }

    /// Returns whether it has all added texts and no removed one. While texts are being removed, the log is empty and
    /// the sequence counts as current.
    pub(crate) fn is_current(&self, texts: &TextLog) -> bool {
        let (seen, now) = (self.num_seen, texts.num_added());
        seen > now || seen == now && self.num_removed == texts.num_removed()
    }

    /// Appends the texts that were added since the last update. If there is no room for them, or texts were removed,
    /// it is rebuilt from the latest ones.
    pub(crate) fn update(&mut self, texts: &TextLog) {
        if self.is_current(texts) {
            return;
        }
        let new = self.groups.iter();
        let new = new.flat_map(|&group| texts.since(self.num_seen, group));
        let mut new: Vec<&[u32]> = new.collect();
        let num_new: usize = new.iter().map(|tokens| tokens.len() + 1).sum();
        let has_room = self.text.tokens().len() + num_new <= Self::MAX_TOKENS;
        if !has_room || self.num_removed < texts.num_removed() {
            (self.text, self.uses) = (IndexedTokens::default(), TokenCounts::default());
            let latest = self.groups.iter();
            let latest = latest.flat_map(|&group| texts.since(0, group));
            let mut num_kept = 0;
            let is_kept = |tokens: &&[u32]| {
                let is_kept =
                    num_kept < Self::KEPT_TOKENS && num_kept + tokens.len() < Self::MAX_TOKENS;
                num_kept += tokens.len() + 1;
                is_kept
            };
            new = latest.take_while(is_kept).collect();
        }
        (self.num_seen, self.num_removed) = (texts.num_added(), texts.num_removed());
        for tokens in new.into_iter().rev() {
            self.text.extend(tokens);
            self.text.extend(&[IndexedTokens::BOUNDARY]);
            for &token in tokens {
                self.uses.add(token, 1);
            }
        }
    }

    /// The texts in sequence, each followed by a boundary.
    pub(crate) fn text(&self) -> &IndexedTokens {
        &self.text
    }

    pub(crate) fn uses(&self) -> &TokenCounts {
        &self.uses
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::GroupText;
    use crate::memory::groups::GroupKey;
    use crate::memory::indexed_tokens::IndexedTokens;
    use crate::memory::texts::TextLog;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn group_text_has_the_latest_texts_of_its_groups_and_no_removed_one(
            added in vec((0_usize..3, 1_usize..30_000, any::<bool>()), 1..9),
        ) {
            let keys = ["a", "b", "other"].map(GroupKey::named);
            let (mut texts, mut own) = (TextLog::default(), GroupText::of(&keys[..2]));
            for (number, (group, length, removes)) in added.into_iter().enumerate() {
                let token = u32::try_from(number).unwrap();
                texts.append(&vec![token; length], keys[group], 0, false);
                own.update(&texts);
                if removes && number % 3 == 2 {
                    texts = texts.without_least_useful();
                    own.update(&texts);
                }
                let tokens = own.text().tokens();
                let mut found: Vec<_> = tokens.split(|&token| token == IndexedTokens::BOUNDARY).collect();
                prop_assert!(found.pop().is_none_or(<[u32]>::is_empty));
                let kept = texts.documents().filter(|(_, _, key, _)| keys[..2].contains(key));
                let kept: Vec<_> = kept.map(|(tokens, ..)| tokens).collect();
                prop_assert!(found.iter().all(|text| kept.contains(text)));
                let all: usize = kept.iter().map(|text| text.len() + 1).sum();
                prop_assert!(tokens.len() <= GroupText::MAX_TOKENS);
                // One of each group may be too long for what is left.
                let least = GroupText::KEPT_TOKENS - 30_001;
                prop_assert!(tokens.len() >= all.min(least));
                let length = tokens.iter().filter(|&&other| other == token).count();
                prop_assert_eq!(usize::from(own.uses().times(token)), length.min(255));
            }
        }
    }
}
