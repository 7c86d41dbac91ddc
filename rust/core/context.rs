//! What followed the end of this request's own text the last time it came?

use crate::tree::TokenTree;

/// The tokens of one request, prompt and answer, as a source of drafts: prompt lookup.
#[derive(Debug, Default)]
pub(crate) struct Context {
    tokens: Vec<u32>,
}

impl Context {
    pub(crate) fn observe(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// The length of the longest suffix that came before, up to `max_match`, and up to
    /// `continuation` tokens that followed it the last time, as a tree of one path. It ends with
    /// `separator`. O(tokens).
    pub(crate) fn draft(
        &self,
        max_match: usize,
        continuation: usize,
        separator: u32,
    ) -> (usize, TokenTree) {
        let (length, end) = self.longest_match(max_match);
        let mut tree = TokenTree::with_capacity(continuation);
        if length > 0 {
            let followed = self.tokens[end..].iter().take(continuation);
            for (parent, &token) in (-1..).zip(followed) {
                tree.push(token, parent, 1.0);
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
        let mut best = (0, 0);
        for end in (1..self.tokens.len()).rev() {
            let earlier = self.tokens[..end].iter().rev();
            let pairs = earlier.zip(self.tokens.iter().rev()).take(max_match);
            let length = pairs.take_while(|(a, b)| a == b).count();
            if length > best.0 {
                best = (length, end);
            }
            if best.0 == max_match {
                break;
            }
        }
        best
    }
}
