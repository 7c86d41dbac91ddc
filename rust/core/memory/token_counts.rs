//! Approximate token counts of a request.

use crate::portable_math::hash;

/// Saturating token counts in a hashed array. Tokens that share a slot have one count.
#[derive(Debug, Clone)]
pub(crate) struct TokenCounts(Box<[u8; Self::NUM_SLOTS]>);

impl Default for TokenCounts {
    fn default() -> Self {
        Self(Box::new([0; Self::NUM_SLOTS]))
    }
}

impl TokenCounts {
    const BITS: u32 = 12;
    const NUM_SLOTS: usize = 1 << Self::BITS;

    pub(crate) fn add(&mut self, token: u32, times: u8) {
        let slot = &mut self.0[hash::<{ Self::BITS }>(token)];
        *slot = slot.saturating_add(times);
    }

    pub(crate) fn times(&self, token: u32) -> u8 {
        self.0[hash::<{ Self::BITS }>(token)]
    }
}
