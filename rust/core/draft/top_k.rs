//! The largest scores of a row.

use crate::portable_math::saturating_u32;

/// So many scores are looked at together: few of them are above all before.
const BLOCK: usize = 64;

/// The places of the `k` largest scores, the largest first; of equal ones the first. NaN comes last.
/// O(scores) while `k` is small.
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
        // All of them, so that the processor compares many at a time.
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

/// The best scores so far, the best first, and how many are kept.
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
