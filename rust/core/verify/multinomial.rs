//! Multinomial draws from given random numbers.

/// The number of tokens that are compared together; few blocks can win after the first.
const BLOCK: usize = 64;

/// The relative difference below which rates are tied: the last bits of a logarithm depend on the
/// library.
const TIE: f32 = 1e-6;

/// Returns the draw of `torch.multinomial` for its uniform numbers u: the token of the largest p / -ln(1
/// - u). `probs` need not sum to one. O(tokens), with few logarithms.
///
/// Returns `None` if the two largest are tied, a probability is infinite, or none is positive.
#[must_use]
pub fn multinomial(probs: &[f32], uniforms: &[f64]) -> Option<usize> {
    let mut race = Race::default();
    let blocks = probs.chunks(BLOCK).zip(uniforms.chunks(BLOCK));
    for ((probs, uniforms), start) in blocks.zip((0..).step_by(BLOCK)) {
        let least = race.least();
        // No early exit, so that the loop is vectorized.
        let pairs = || probs.iter().zip(uniforms);
        let any = pairs().map(|(&prob, &uniform)| u8::from(may_win(prob, uniform, least)));
        if any.fold(0, |any, may_win| any | may_win) > 0 {
            for ((&prob, &uniform), place) in pairs().zip(start..) {
                if may_win(prob, uniform, race.least()) {
                    race.add(prob, uniform, place);
                }
            }
        }
    }
    race.winner()
}

/// Returns true if p / t may exceed `least`: t is at least u.
fn may_win(prob: f32, uniform: f64, least: f64) -> bool {
    f64::from(prob) > least * uniform
}

#[derive(Default)]
struct Race {
    best: f32,
    second: f32,
    place: usize,
}

impl Race {
    /// Returns the rate below which a token can neither win nor tie.
    fn least(&self) -> f64 {
        f64::from(self.best) * (1.0 - 2.0 * f64::from(TIE))
    }

    #[expect(clippy::cast_possible_truncation, reason = "torch rounds so too")]
    fn add(&mut self, prob: f32, uniform: f64, place: usize) {
        let time = -(-uniform).ln_1p() as f32;
        let rate = prob / time;
        if rate > self.best {
            (self.second, self.best, self.place) = (self.best, rate, place);
        } else if rate > self.second {
            self.second = rate;
        }
    }

    fn winner(&self) -> Option<usize> {
        let is_clear = self.best.is_finite() && self.second < self.best * (1.0 - TIE);
        is_clear.then_some(self.place)
    }
}
