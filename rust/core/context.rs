//! What followed the end of this request's own text the last time it came?

use crate::history::History;
use crate::tree::{Source, TokenTree};

/// The tokens of one request, prompt and answer, as a source of drafts: prompt lookup.
#[derive(Debug, Default)]
pub(crate) struct Context {
    history: History,
}

impl Context {
    pub(crate) fn observe(&mut self, tokens: &[u32]) {
        self.history.extend(tokens);
    }

    /// The length of the longest suffix that came before, up to `max_match`, and up to
    /// `continuation` tokens that followed it the last time, as a tree of one path. It ends with
    /// `separator`. O(earlier occurrences of the last two tokens).
    pub(crate) fn draft(
        &self,
        max_match: usize,
        continuation: usize,
        separator: u32,
    ) -> (usize, TokenTree) {
        let (length, end) = self.longest_match(max_match);
        let mut tree = TokenTree::with_capacity(continuation);
        if length > 0 {
            let followed = self.history.tokens()[end..].iter().take(continuation);
            for (parent, &token) in (-1..).zip(followed) {
                tree.push(token, parent, 1.0, Source::Context);
                if token == separator {
                    break;
                }
            }
        }
        (length, tree)
    }

    /// The length of the longest suffix with an earlier occurrence, and where the last of these
    /// ends. (0, 0) where there is none.
    fn longest_match(&self, max_match: usize) -> (usize, usize) {
        let tokens = self.history.tokens();
        let Some((&last, before)) = tokens.split_last() else {
            return (0, 0);
        };
        let mut best = (0, 0);
        if let (Some(&before), 2..) = (before.last(), max_match) {
            for end in self.history.of_pair(before, last).skip(1) {
                let pairs = tokens[..=end].iter().rev().zip(tokens.iter().rev());
                let length = pairs.take(max_match).take_while(|(a, b)| a == b).count();
                if length > best.0 {
                    best = (length, end + 1);
                }
                if best.0 == max_match {
                    return best;
                }
            }
        }
        if best.0 > 0 {
            return best;
        }
        let earlier = self.history.of_token(last).nth(1);
        earlier.map_or((0, 0), |end| (1, end + 1))
    }
}
