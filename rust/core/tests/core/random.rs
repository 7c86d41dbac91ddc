//! Pseudorandom tokens with a fixed seed.

/// A linear congruential generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(limit)).unwrap()
    }

    pub(crate) fn tokens(&mut self, length: usize, first: u32, num_tokens: u32) -> Vec<u32> {
        (0..length).map(|_| first + self.below(num_tokens)).collect()
    }

    /// Returns random phrases in sequence.
    pub(crate) fn phrases(&mut self, phrases: &[Vec<u32>], length: usize) -> Vec<u32> {
        let mut text = Vec::new();
        while text.len() < length {
            let last = u32::try_from(phrases.len()).unwrap();
            text.extend(&phrases[self.below(last) as usize]);
        }
        text
    }
}
