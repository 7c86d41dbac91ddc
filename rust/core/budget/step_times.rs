//! Step cost measured from the steps of the engine.

use std::collections::VecDeque;

use crate::budget::selection::{Selection, to_f64};

/// Estimates of the cost of a step, by its number of tokens, from the times of steps.
///
/// A Kalman filter on logarithms: the time of a step is the speed of the machine, which drifts, times the cost of
/// its size, times noise. Before any step, a cost is a random walk over the logarithm of the size, so that a step
/// also shows the cost of similar sizes, and any curve is possible. Other load makes some steps much slower and none
/// faster, so noise is a mixture: a step counts by the probability that it was not slowed.
///
/// The covariance shows how much cheaper than expected a size may be, relative to the best one. A size that would
/// then be worth most is tried, if that risks no more time than `FIRST_LOSSES` and `LOSSES_SHARE` leave.
#[derive(Debug, Clone)]
pub struct StepTimes {
    /// The logarithm of the cost of each place, and at [`SPEED`] that of the seconds of a unit of cost.
    means: Vec<f64>,
    covariance: Vec<Vec<f64>>,
    /// The number of steps of each place.
    num_steps: Vec<usize>,
    /// The logarithms of the last times relative to the expected ones.
    deviations: VecDeque<f64>,
    /// The number of tokens of the last step.
    last: usize,
    /// The steps since the last one without drafts.
    since_baseline: usize,
    /// The cost of all steps.
    total: f64,
    /// The cost that probes have lost.
    lost: f64,
    /// The cost at which the next step loses nothing.
    worth: Option<f64>,
    /// True if the next step is a probe.
    is_probe: bool,
    /// True if the estimates began with the usual cost of a token.
    is_usual: bool,
}

/// The numbers of tokens that have a cost of their own: one each up to 17, then four for each power of two.
const PLACES: usize = 17 + 40;
const SPEED: usize = PLACES;
/// The mean logarithm of the cost of twice as many tokens.
const SLOPE: f64 = 0.25;
/// The standard deviation of [`SLOPE`].
const SLOPE_ERROR: f64 = 0.25;
/// The standard deviation of the random walk for twice as many tokens.
const WALK: f64 = 0.2;
/// The standard deviation of each place, because kernels prefer some sizes.
const SINGLE: f64 = 0.1;
/// The standard deviation of the logarithm of a token's cost that is usual for a backend.
const TOKEN_COST_ERROR: f64 = 0.6;
/// The value of [`WALK`] and of [`SINGLE`] for such a backend.
const USUAL_WALK: f64 = 0.05;
/// The standard deviation of the speed from step to step.
const DRIFT: f64 = 0.03;
/// The standard deviation of a cost from step to step.
const COST_DRIFT: f64 = 0.01;
/// The number of deviations that show the noise.
const DEVIATIONS: usize = 32;
/// The number of steps that the noise assumed at first counts as.
const PRIOR_STEPS: f64 = 2.0;
/// The standard deviation of the noise that is assumed at first.
const FIRST_NOISE: f64 = 0.2;
/// The least standard deviation of the noise.
const LEAST_NOISE: f64 = 0.02;
/// The mean and the standard deviation of the logarithm by which other load slows a step.
const SLOWED: (f64, f64) = (1.1, 0.5);
/// The share of slowed steps that is assumed at first, and the number of steps that it counts as.
const FIRST_SLOWED: (f64, f64) = (0.3, 4.0);
/// The variance of the speed before any step.
const UNKNOWN: f64 = 1e4;
/// The least and the most steps between two without drafts, the reference of all decisions. Between these bounds,
/// it is less for sizes with few steps and little speedup, which may be due to a change of the speed.
const BASELINE_STEPS: (f64, f64) = (4.0, 64.0);
/// The number of deviations in a row on one side by which the speed has changed: other load started or ended.
const CHANGED: usize = 4;
/// The least of these deviations, in standard deviations of the noise without disturbed steps.
const CHANGED_NOISE: f64 = 3.0;
/// The standard deviation of such a change.
const CHANGE: f64 = 0.4;
/// The number of steps without drafts before the first draft. The first may be disturbed.
const STEPS_KNOWN: usize = 3;
/// The time that a step other than a probe may lose, in steps without drafts.
const GAMBLE: f64 = 1.0;
/// The standard deviations from the likely cost to the one that a probe hopes for.
const HOPE: f64 = 0.5;
/// The standard deviations from the likely cost to the one that a step other than a probe risks.
const FEAR: f64 = 1.5;
/// The standard deviations from the likely cost to a high one, and the share of the time lost at that cost that a
/// probe is expected to lose.
const RISK: (f64, f64) = (2.0, 0.25);
/// The number of times that a probe may be as large as the largest step so far.
const GROWTH: f64 = 8.0;
/// The time that the first probes may lose, in steps without drafts.
const FIRST_LOSSES: f64 = 2.0;
/// The fraction of all time that later probes may lose.
const LOSSES_SHARE: f64 = 0.007;
/// The minimum gain of a probe at the lower bound, in steps without drafts.
const LEAST_GAIN: f64 = 0.1;

impl Default for StepTimes {
    /// Times of any curve.
    fn default() -> Self {
        let doublings = (0..PLACES).map(|place| tokens_of(place).log2());
        Self::expecting(doublings.map(|d| (SLOPE * d, SLOPE_ERROR * d)), (WALK, SINGLE), false)
    }
}

impl StepTimes {
    /// Times of a backend where a further token usually costs this fraction of a step of one token.
    #[must_use]
    pub fn with_token_cost(token_cost: f64) -> Self {
        let further = (0..PLACES).map(|place| token_cost * (tokens_of(place) - 1.0));
        let costs = further.map(|f| (f.ln_1p(), TOKEN_COST_ERROR * f / (1.0 + f)));
        Self::expecting(costs, (USUAL_WALK, USUAL_WALK), true)
    }

    /// Begins with a mean and a standard deviation of the logarithm of the cost of each place.
    fn expecting(
        costs: impl Iterator<Item = (f64, f64)>,
        (walk, single): (f64, f64),
        is_usual: bool,
    ) -> Self {
        let (mut means, errors): (Vec<_>, Vec<_>) = costs.unzip();
        means.push(0.0);
        let mut covariance = vec![vec![0.0; PLACES + 1]; PLACES + 1];
        for (a, (row, error)) in covariance.iter_mut().zip(&errors).enumerate() {
            for (b, (entry, other)) in row.iter_mut().zip(&errors).enumerate() {
                *entry = error * other + walk.powi(2) * tokens_of(a.min(b)).log2();
            }
        }
        for (place, row) in covariance.iter_mut().enumerate() {
            row[place] += if place == SPEED { UNKNOWN } else { single.powi(2) };
        }
        Self {
            means,
            covariance,
            num_steps: vec![0; PLACES],
            deviations: VecDeque::new(),
            last: 0,
            since_baseline: 0,
            total: 0.0,
            lost: 0.0,
            worth: None,
            is_probe: false,
            is_usual,
        }
    }

    /// Adds an observed step. Invalid times and steps without tokens are ignored.
    pub fn add(&mut self, num_tokens: usize, seconds: f64) {
        let worth = self.worth.take();
        if !(seconds > 0.0 && seconds.is_finite() && num_tokens > 0) {
            return;
        }
        let (place, share) = place_at(to_f64(num_tokens));
        let deviation = self.update(place, share, seconds.ln());
        if self.num_steps[place] > 1 {
            self.deviations.push_back(deviation);
            if self.deviations.len() > DEVIATIONS {
                self.deviations.pop_front();
            }
        }
        self.num_steps[place] += 1;
        self.last = num_tokens;
        self.total += cost_at(&self.means, to_f64(num_tokens));
        if let Some(worth) = worth {
            self.lost += (cost_at(&self.means, to_f64(num_tokens)) - worth).max(0.0);
        }
    }

    /// Updates the estimates by a step, and returns its deviation from the expected time.
    fn update(&mut self, place: usize, share: f64, log_s: f64) -> f64 {
        for (at, row) in self.covariance.iter_mut().enumerate() {
            row[at] += if at == SPEED { DRIFT.powi(2) } else { COST_DRIFT.powi(2) };
        }
        if self.has_changed() {
            self.covariance[SPEED][SPEED] += CHANGE.powi(2);
        }
        let at = |values: &[f64]| between(values, place, share) + values[SPEED];
        let column: Vec<_> = self.covariance.iter().map(|row| at(row)).collect();
        let expected = at(&column);
        let deviation = log_s - at(&self.means);
        // The share, mean and variance of the deviations of steps that other load does not slow, and of the rest.
        let noise = self.noise();
        let variance = expected + noise.powi(2);
        let (slowed, (mean, error)) = (self.slowed(noise), SLOWED);
        let kinds = [(1.0 - slowed, 0.0, variance), (slowed, mean, variance + error.powi(2))];
        let likelihoods = kinds.map(|(share, mean, variance)| {
            let square = (deviation - mean).powi(2) / variance;
            (share * (-square / 2.0).exp() / variance.sqrt()).max(f64::MIN_POSITIVE)
        });
        // The posterior of a mixture has the mean of the shifts, and their variance adds to the mean variance.
        let (mut shift, mut square, mut certainty) = (0.0, 0.0, 0.0);
        for ((_, mean, variance), likelihood) in kinds.into_iter().zip(likelihoods) {
            let share = likelihood / likelihoods.iter().sum::<f64>();
            let of_kind = (deviation - mean) / variance;
            shift += share * of_kind;
            square += share * of_kind.powi(2);
            certainty += share / variance;
        }
        certainty -= square - shift.powi(2);
        for (mean, gain) in self.means.iter_mut().zip(&column) {
            *mean += gain * shift;
        }
        for (row, a) in self.covariance.iter_mut().zip(&column) {
            for (entry, b) in row.iter_mut().zip(&column) {
                *entry -= a * b * certainty;
            }
        }
        deviation
    }

    /// Returns true if the last steps all were slower than noise explains, or all faster.
    fn has_changed(&self) -> bool {
        let noise = CHANGED_NOISE * self.noise();
        let last = || self.deviations.iter().rev().take(CHANGED);
        last().len() == CHANGED && (last().all(|&d| d > noise) || last().all(|&d| d < -noise))
    }

    /// Returns the standard deviation of the noise of steps that other load does not slow.
    fn noise(&self) -> f64 {
        let mut sizes: Vec<_> = self.deviations.iter().map(|deviation| deviation.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
        let share = to_f64(sizes.len()) / (to_f64(sizes.len()) + PRIOR_STEPS);
        (share * 1.5 * median + (1.0 - share) * FIRST_NOISE).max(LEAST_NOISE)
    }

    /// Returns the share of steps that other load slows, beyond noise of this standard deviation.
    fn slowed(&self, noise: f64) -> f64 {
        let least = CHANGED_NOISE * noise;
        let slow = self.deviations.iter().filter(|&&deviation| deviation > least).count();
        let (first, weight) = FIRST_SLOWED;
        (to_f64(slow) + weight * first) / (to_f64(self.deviations.len()) + weight)
    }

    /// Returns the seconds of a unit of cost.
    pub(crate) fn unit_s(&self) -> f64 {
        self.means[SPEED].exp()
    }

    /// Returns the expected seconds of a step like the last one, or 0 before any.
    pub fn usual(&self) -> f64 {
        let cost = cost_at(&self.means, to_f64(self.last));
        if self.last == 0 { 0.0 } else { cost * self.unit_s() }
    }

    /// Returns true after [`STEPS_KNOWN`] steps, or after one if the usual cost of a token was given.
    pub(crate) fn is_known(&self) -> bool {
        self.num_steps.iter().sum::<usize>() >= if self.is_usual { 1 } else { STEPS_KNOWN }
    }

    /// Returns true if the next step is a probe.
    pub(crate) fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Returns the logarithms of the costs of all places, raised by this number of standard deviations of their
    /// ratios to the cost of another place.
    fn costs(&self, errors: f64, other: usize) -> Vec<f64> {
        let of = |a: usize, b: usize| self.covariance[a][b];
        let cost = |place: usize| {
            let variance = of(place, place) + of(other, other) - 2.0 * of(place, other);
            self.means[place] + errors * variance.max(0.0).sqrt()
        };
        (0..PLACES).map(cost).collect()
    }

    /// Returns the number of nodes of the next step, the best one or one that is tried, and the likely costs of a
    /// step without drafts and of that step.
    pub(crate) fn choose(
        &mut self,
        selection: &Selection,
        rate: &dyn Fn(f64) -> f64,
    ) -> (usize, f64, f64) {
        let tokens = |num_nodes: usize| selection.start() + to_f64(num_nodes);
        let likely = self.costs(0.0, 0);
        let baseline = cost_at(&likely, tokens(0));
        let rate = rate(baseline);
        // No draft makes a step faster.
        let values =
            |costs: &[f64]| selection.values(rate, &|tokens| cost_at(costs, tokens).max(baseline));
        let expected = values(&likely);
        let mut worth = expected.clone();
        let least = values(&self.costs(FEAR, place_at(tokens(0)).0));
        for (number, least) in least.into_iter().enumerate().skip(1) {
            if worth[0] - least > rate * baseline * GAMBLE {
                worth[number] = worth[0];
            }
        }
        let best = selection.best(&worth);
        self.since_baseline = if best == 0 { 0 } else { self.since_baseline + 1 };
        let cost = cost_at(&likely, tokens(best)).max(baseline);
        let speedup = (expected[best] / cost + rate) / (expected[0] / baseline + rate);
        let num_steps = to_f64(self.num_steps[place_at(tokens(best)).0]);
        let (fewest, most) = BASELINE_STEPS;
        if to_f64(self.since_baseline) > (num_steps * speedup.powi(3) / 2.0).clamp(fewest, most) {
            (self.since_baseline, self.is_probe, self.worth) = (0, true, None);
            return (0, baseline, baseline);
        }
        let bound = |errors: f64| self.costs(errors, place_at(tokens(best)).0);
        let (low, high) = (bound(-HOPE), bound(RISK.0));
        let (most, least) = (values(&low), values(&high));
        // A probe may lose what the best number gains, and any other step what none lose.
        let affordable = FIRST_LOSSES * baseline + LOSSES_SHARE * self.total - self.lost;
        let risk = |number: usize| RISK.1 * (worth[best] - least[number]) / rate;
        let numbers = (0..worth.len()).filter(|&number| number != best);
        let largest = self.num_steps.iter().rposition(|&num| num > 0).map_or(1.0, tokens_of);
        let numbers = numbers.filter(|&number| risk(number) <= affordable);
        let numbers = numbers.filter(|&number| tokens(number) <= GROWTH * largest);
        let tried = numbers.max_by(|&a, &b| most[a].total_cmp(&most[b]));
        let least_worth = worth[best] + rate * baseline * LEAST_GAIN;
        let tried = tried.filter(|&number| most[number] > least_worth);
        let number = tried.unwrap_or(best);
        let cost = cost_at(&likely, tokens(number)).max(baseline);
        let reference = if tried.is_some() { best } else { 0 };
        self.is_probe = tried.is_some();
        self.worth = Some(cost + (expected[number] - expected[reference]) / rate);
        (number, baseline, cost)
    }
}

/// Returns the cost of a step of this number of tokens, from the logarithms of the costs of all places.
fn cost_at(costs: &[f64], tokens: f64) -> f64 {
    let (place, share) = place_at(tokens);
    between(costs, place, share).exp()
}

fn between(values: &[f64], place: usize, share: f64) -> f64 {
    values[place] + share * (values[(place + 1).min(PLACES - 1)] - values[place])
}

fn tokens_of(place: usize) -> f64 {
    if place <= 16 { to_f64(place + 1) } else { 17.0 * (to_f64(place - 16) / 4.0).exp2() }
}

/// Returns the last place with at most this number of tokens, and their distance from it to the next.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of places")]
fn place_at(tokens: f64) -> (usize, f64) {
    let place = if tokens <= 17.0 { tokens - 1.0 } else { 16.0 + 4.0 * (tokens / 17.0).log2() };
    let place = place.clamp(0.0, to_f64(PLACES - 1));
    (place as usize, place.fract())
}
