//! Top-k of a row of scores.

use crate::portable_math::saturating_u32;

/// The number of scores that are compared together; few blocks exceed all earlier ones.
const BLOCK: usize = 64;

/// Returns the indices of the `k` largest scores, largest first, then by index. NaN comes last. O(scores)
/// for a small `k`.
#[must_use]
pub fn top_k(scores: &[f32], k: usize) -> Vec<u32> {
    let k = k.min(scores.len());
    let mut best = Best(Vec::with_capacity(k + 1), k);
    let (first, rest) = scores.split_at(k);
    for (place, &score) in first.iter().enumerate() {
        best.add(score, place);
    }
    let blocks = rest.chunks(BLOCK).zip((k..).step_by(BLOCK));
    for (block, start) in blocks {
        let least = best.least();
        // No early exit, so that the loop is vectorized.
        let above = block.iter().map(|&score| u8::from(score > least));
        if above.fold(0, |any, is_above| any | is_above) > 0 {
            for (&score, place) in block.iter().zip(start..) {
                if score > best.least() {
                    best.add(score, place);
                }
            }
        }
    }
    best.0.into_iter().map(|(_, place)| place).collect()
}

/// The best scores so far, best first, and their maximum number.
struct Best(Vec<(f32, u32)>, usize);

impl Best {
    fn least(&self) -> f32 {
        self.0.last().map_or(f32::INFINITY, |&(score, _)| score)
    }

    fn add(&mut self, score: f32, place: usize) {
        let score = if score.is_nan() { f32::NEG_INFINITY } else { score };
        let at = self.0.partition_point(|&(other, _)| other >= score);
        self.0.insert(at, (score, saturating_u32(place)));
        self.0.truncate(self.1);
    }
}
