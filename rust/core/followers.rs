//! What follows a single token in a datastore?

use std::sync::OnceLock;

use crate::datastore::{Datastore, Match};
use crate::stride::Stride;

/// The most frequent tokens after one token.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    pub(crate) num_matches: f32,
    pub(crate) total: f32,
    pub(crate) counts: Box<[(u32, f32)]>,
}

#[derive(Debug)]
pub(crate) struct AllFollowers {
    by_token: Vec<OnceLock<Followers>>,
    cap: usize,
    top: usize,
}

impl AllFollowers {
    pub(crate) fn new(vocab_size: u32, cap: usize, top: usize) -> Self {
        let by_token = (0..vocab_size).map(|_| OnceLock::new()).collect();
        Self { by_token, cap, top }
    }

    pub(crate) fn of(&self, datastore: &Datastore, token: u32) -> Option<&Followers> {
        let followers = self.by_token.get(token as usize)?;
        Some(followers.get_or_init(|| self.read(datastore, token)))
    }

    fn read(&self, datastore: &Datastore, token: u32) -> Followers {
        if token == datastore.separator() {
            return Followers::default();
        }
        let mut found = Match::default();
        datastore.find(&[token], &mut found);
        let count = found.count();
        let samples = datastore.samples(&found, 1, self.cap);
        let mut counts: Vec<(u32, f32)> = Vec::new();
        for row in samples.iter() {
            match (row.first(), counts.last_mut()) {
                (Some(&token), Some(last)) if last.0 == token => last.1 += 1.0,
                (Some(&token), _) => counts.push((token, 1.0)),
                (None, _) => {}
            }
        }
        counts.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        counts.truncate(self.top);
        Followers {
            num_matches: count as f32,
            total: Stride::new(count, self.cap as u64).num_samples() as f32,
            counts: counts.into(),
        }
    }
}
