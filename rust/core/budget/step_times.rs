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
/// then be worth most is tried, if that risks no more time than `INITIAL_LOSSES` and `LOSSES_SHARE` leave.
#[derive(Debug, Clone)]
pub struct StepTimes {
    /// The expected logarithm of the cost of each bucket, and at [`SPEED_INDEX`] that of the seconds of a unit of cost.
    means: Vec<f64>,
    /// The covariance of each two of these logarithms.
    covariance: Vec<Vec<f64>>,
    /// The number of steps of each bucket.
    num_steps: Vec<usize>,
    /// The logarithms of the last times relative to the expected ones.
    deviations: VecDeque<f64>,
    /// The number of tokens of the last step.
    last_num_tokens: usize,
    /// The steps since the last one without drafts.
    since_baseline: usize,
    /// The cost of all steps.
    total_cost: f64,
    /// The cost that probes have lost.
    probe_losses: f64,
    /// The cost at which the next step loses nothing.
    break_even_cost: Option<f64>,
    /// True if the next step is a probe.
    is_probe: bool,
    /// True if the estimates began with the usual cost of a token.
    is_usual: bool,
    /// The sizes to which the engine pads steps.
    graph_sizes: GraphSizes,
    /// The passes of the model that were measured before the first step.
    passes: PassSeconds,
}

/// The number of tokens and the seconds of each measured pass, in the order of their tokens.
#[derive(Debug, Clone, Default)]
struct PassSeconds(Vec<(f64, f64)>);

impl PassSeconds {
    /// Returns the seconds of a pass over this number of tokens, on the line through the next two.
    fn seconds(&self, tokens: f64) -> f64 {
        let next = self.0.partition_point(|pass| pass.0 < tokens).clamp(1, self.0.len() - 1);
        let ((low, first), (high, second)) = (self.0[next - 1], self.0[next]);
        first + (second - first) * (tokens - low) / (high - low)
    }
}

/// The numbers of tokens for which the engine has captured a graph, which rise.
#[derive(Debug, Clone, Default)]
struct GraphSizes(Vec<usize>);

impl GraphSizes {
    /// Returns the number of tokens to which a step is padded.
    fn padded(&self, tokens: f64) -> f64 {
        let next = self.0.partition_point(|&size| to_f64(size) < tokens);
        self.0.get(next).map_or(tokens, |&size| to_f64(size))
    }

    /// Returns the cost of a step of this number of tokens, from the logarithms of the costs of all buckets.
    fn cost_at(&self, costs: &[f64], tokens: f64) -> f64 {
        let (bucket, share) = bucket_at(self.padded(tokens));
        between(costs, bucket, share).exp()
    }

    /// Returns the most tokens of a step with drafts that has this number of tokens without them.
    fn most_tokens(&self, without_drafts: f64) -> f64 {
        let largest = self.0.last().map(|&size| to_f64(size));
        largest.filter(|&largest| without_drafts <= largest).unwrap_or(f64::INFINITY)
    }
}

/// The buckets of sizes, each with a cost of its own: one for each number of tokens up to 17, then four for each power
/// of two.
const NUM_SIZE_BUCKETS: usize = 17 + 40;
/// The index of the logarithm of the seconds of a unit of cost, behind those of all buckets.
const SPEED_INDEX: usize = NUM_SIZE_BUCKETS;
/// The mean logarithm of the cost of twice as many tokens.
const INITIAL_SLOPE: f64 = 0.25;
/// The standard deviation of [`INITIAL_SLOPE`].
const INITIAL_SLOPE_SD: f64 = 0.25;
/// The standard deviation of the random walk for twice as many tokens.
const WALK_SD: f64 = 0.2;
/// The standard deviation of each bucket, because kernels prefer some sizes.
const BUCKET_SD: f64 = 0.1;
/// The standard deviation of the logarithm of a token's cost that is usual for a backend.
const TOKEN_COST_SD: f64 = 0.6;
/// The standard deviation of the logarithm of a token's cost that was measured.
const PASS_COST_SD: f64 = 0.3;
/// The value of [`WALK_SD`] and of [`BUCKET_SD`] for such a backend.
const USUAL_SD: f64 = 0.05;
/// The standard deviation of the speed from step to step.
const SPEED_DRIFT_SD: f64 = 0.03;
/// The standard deviation of a cost from step to step.
const COST_DRIFT_SD: f64 = 0.01;
/// The number of deviations that show the noise.
const NUM_DEVIATIONS: usize = 32;
/// The number of steps that the noise assumed at first counts as.
const INITIAL_NOISE_STEPS: f64 = 2.0;
/// The standard deviation of the noise that is assumed at first.
const INITIAL_NOISE_SD: f64 = 0.2;
/// The least standard deviation of the noise.
const MIN_NOISE_SD: f64 = 0.02;
/// The mean logarithm by which other load slows a step.
const SLOWED_MEAN: f64 = 1.1;
/// The standard deviation of this logarithm.
const SLOWED_SD: f64 = 0.5;
/// The share of slowed steps that is assumed at first.
const INITIAL_SLOWED_SHARE: f64 = 0.3;
/// The number of steps that this share counts as.
const INITIAL_SLOWED_STEPS: f64 = 4.0;
/// The variance of the speed before any step.
const UNKNOWN_VARIANCE: f64 = 1e4;
/// The least steps between two without drafts, the reference of all decisions.
const MIN_BASELINE_STEPS: f64 = 4.0;
/// The most steps between two without drafts. There are fewer for sizes with few steps and little speedup, which may
/// be due to a change of the speed.
const MAX_BASELINE_STEPS: f64 = 64.0;
/// The number of deviations in a row on one side by which the speed has changed: other load started or ended.
const NUM_CHANGED_STEPS: usize = 4;
/// The least of these deviations, in standard deviations of the noise without disturbed steps.
const CHANGED_NOISE_SDS: f64 = 3.0;
/// The standard deviation of such a change.
const CHANGE_SD: f64 = 0.4;
/// The number of steps without drafts before the first draft. The first may be disturbed.
const MIN_KNOWN_STEPS: usize = 3;
/// The time that a step other than a probe may lose, in steps without drafts.
const MAX_STEP_LOSS: f64 = 1.0;
/// The standard deviations from the likely cost to the one that a probe hopes for.
const PROBE_OPTIMISM_SD: f64 = 0.5;
/// The standard deviations from the likely cost to the one that a step other than a probe risks.
const RISK_SD: f64 = 1.5;
/// The standard deviations from the likely cost to the high one that limits what a probe risks.
const PROBE_RISK_SD: f64 = 2.0;
/// The share of the time lost at that cost that a probe is expected to lose.
const PROBE_LOSS_SHARE: f64 = 0.25;
/// The number of times that a probe may be as large as the largest step so far.
const MAX_PROBE_GROWTH: f64 = 8.0;
/// The time that the first probes may lose, in steps without drafts.
const INITIAL_LOSSES: f64 = 2.0;
/// The fraction of all time that later probes may lose.
const LOSSES_SHARE: f64 = 0.001;
/// The minimum gain of a probe at the lower bound, in steps without drafts.
const MIN_PROBE_GAIN: f64 = 0.1;

impl Default for StepTimes {
    /// Times of any curve.
    fn default() -> Self {
        let doublings = (0..NUM_SIZE_BUCKETS).map(|bucket| bucket_tokens(bucket).log2());
        Self::expecting(
            doublings.map(|d| (INITIAL_SLOPE * d, INITIAL_SLOPE_SD * d)),
            (WALK_SD, BUCKET_SD),
            false,
        )
    }
}

impl StepTimes {
    /// Times of a backend where a further token usually costs this fraction of a step of one token.
    #[must_use]
    pub fn with_token_cost(token_cost: f64) -> Self {
        Self::expecting_further(|tokens| token_cost * (tokens - 1.0), TOKEN_COST_SD)
    }

    /// Begins with the cost of further tokens, over a step of one token.
    fn expecting_further(further: impl Fn(f64) -> f64, sd: f64) -> Self {
        let further = (0..NUM_SIZE_BUCKETS).map(|bucket| further(bucket_tokens(bucket)));
        let costs = further.map(|f| (f.ln_1p(), sd * f / (1.0 + f)));
        Self::expecting(costs, (USUAL_SD, USUAL_SD), true)
    }

    /// Begins again, with the seconds of passes of the model by their number of tokens. What the first step takes
    /// beyond its pass, any step does. Fewer than two valid passes are ignored.
    pub fn set_passes(&mut self, passes: &[(usize, f64)]) {
        let is_valid = |pass: &&(usize, f64)| pass.0 > 0 && pass.1 > 0.0 && pass.1.is_finite();
        let mut passes: Vec<_> =
            passes.iter().filter(is_valid).map(|&(n, s)| (to_f64(n), s)).collect();
        passes.sort_by(|a, b| a.0.total_cmp(&b.0));
        passes.dedup_by_key(|pass| pass.0);
        if passes.len() > 1 {
            self.passes = PassSeconds(passes);
            self.begin_with_passes(0.0);
        }
    }

    /// Begins again with steps that take `host_s` seconds beyond their pass.
    fn begin_with_passes(&mut self, host_s: f64) {
        let passes = std::mem::take(&mut self.passes);
        let graph_sizes = std::mem::take(&mut self.graph_sizes);
        let first = passes.seconds(1.0);
        let further = |tokens: f64| (passes.seconds(tokens) - first).max(0.0) / (host_s + first);
        let begun = Self::expecting_further(further, PASS_COST_SD);
        *self = Self { graph_sizes, passes, ..begun };
    }

    /// Begins with a mean and a standard deviation of the logarithm of the cost of each bucket.
    fn expecting(
        costs: impl Iterator<Item = (f64, f64)>,
        (walk, single): (f64, f64),
        is_usual: bool,
    ) -> Self {
        let (mut means, sds): (Vec<_>, Vec<_>) = costs.unzip();
        means.push(0.0);
        let mut covariance = vec![vec![0.0; NUM_SIZE_BUCKETS + 1]; NUM_SIZE_BUCKETS + 1];
        for (a, (row, sd)) in covariance.iter_mut().zip(&sds).enumerate() {
            for (b, (entry, other)) in row.iter_mut().zip(&sds).enumerate() {
                *entry = sd * other + walk.powi(2) * bucket_tokens(a.min(b)).log2();
            }
        }
        for (bucket, row) in covariance.iter_mut().enumerate() {
            row[bucket] += if bucket == SPEED_INDEX { UNKNOWN_VARIANCE } else { single.powi(2) };
        }
        Self {
            means,
            covariance,
            num_steps: vec![0; NUM_SIZE_BUCKETS],
            deviations: VecDeque::new(),
            last_num_tokens: 0,
            since_baseline: 0,
            total_cost: 0.0,
            probe_losses: 0.0,
            break_even_cost: None,
            is_probe: false,
            is_usual,
            graph_sizes: GraphSizes::default(),
            passes: PassSeconds::default(),
        }
    }

    /// Sets the numbers of tokens for which the engine has captured a graph. A step is padded to the next one, so it
    /// costs as much, and drafts make no step larger than the largest.
    pub fn set_graph_sizes(&mut self, mut sizes: Vec<usize>) {
        sizes.sort_unstable();
        self.graph_sizes = GraphSizes(sizes);
    }

    /// Adds an observed step. Invalid times and steps without tokens are ignored.
    pub fn add(&mut self, num_tokens: usize, seconds: f64) {
        let break_even_cost = self.break_even_cost.take();
        if !(seconds > 0.0 && seconds.is_finite() && num_tokens > 0) {
            return;
        }
        let tokens = self.graph_sizes.padded(to_f64(num_tokens));
        if self.last_num_tokens == 0 && !self.passes.0.is_empty() {
            self.begin_with_passes((seconds - self.passes.seconds(tokens)).max(0.0));
        }
        let (bucket, share) = bucket_at(tokens);
        let deviation = self.update(bucket, share, seconds.ln());
        if self.num_steps[bucket] > 1 {
            self.deviations.push_back(deviation);
            if self.deviations.len() > NUM_DEVIATIONS {
                self.deviations.pop_front();
            }
        }
        self.num_steps[bucket] += 1;
        self.last_num_tokens = num_tokens;
        self.total_cost += self.graph_sizes.cost_at(&self.means, to_f64(num_tokens));
        if let Some(break_even_cost) = break_even_cost {
            self.probe_losses += (self.graph_sizes.cost_at(&self.means, to_f64(num_tokens))
                - break_even_cost)
                .max(0.0);
        }
    }

    /// Updates the estimates by a step, and returns its deviation from the expected time.
    fn update(&mut self, bucket: usize, share: f64, log_s: f64) -> f64 {
        for (at, row) in self.covariance.iter_mut().enumerate() {
            row[at] +=
                if at == SPEED_INDEX { SPEED_DRIFT_SD.powi(2) } else { COST_DRIFT_SD.powi(2) };
        }
        if self.has_changed() {
            self.covariance[SPEED_INDEX][SPEED_INDEX] += CHANGE_SD.powi(2);
        }
        let at = |values: &[f64]| between(values, bucket, share) + values[SPEED_INDEX];
        let column: Vec<_> = self.covariance.iter().map(|row| at(row)).collect();
        let expected = at(&column);
        let deviation = log_s - at(&self.means);
        // The share, mean and variance of the deviations of steps that other load does not slow, and of the rest.
        let noise = self.noise();
        let variance = expected + noise.powi(2);
        let slowed = self.slowed(noise);
        let kinds =
            [(1.0 - slowed, 0.0, variance), (slowed, SLOWED_MEAN, variance + SLOWED_SD.powi(2))];
        let likelihoods = kinds.map(|(share, mean, variance)| {
            let square = (deviation - mean).powi(2) / variance;
            (share * (-square / 2.0).exp() / variance.sqrt()).max(f64::MIN_POSITIVE)
        });
        // The posterior of a mixture has the mean of the shifts, and their variance adds to the mean variance.
        let (mut shift, mut square, mut certainty) = (0.0, 0.0, 0.0);
        for ((_, mean, variance), likelihood) in kinds.into_iter().zip(likelihoods) {
            let share = likelihood / likelihoods.iter().sum::<f64>();
            let shift_of_kind = (deviation - mean) / variance;
            shift += share * shift_of_kind;
            square += share * shift_of_kind.powi(2);
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
        let noise = CHANGED_NOISE_SDS * self.noise();
        let recent = || self.deviations.iter().rev().take(NUM_CHANGED_STEPS);
        recent().len() == NUM_CHANGED_STEPS
            && (recent().all(|&d| d > noise) || recent().all(|&d| d < -noise))
    }

    /// Returns the standard deviation of the noise of steps that other load does not slow.
    fn noise(&self) -> f64 {
        let mut sizes: Vec<_> = self.deviations.iter().map(|deviation| deviation.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
        let share = to_f64(sizes.len()) / (to_f64(sizes.len()) + INITIAL_NOISE_STEPS);
        (share * 1.5 * median + (1.0 - share) * INITIAL_NOISE_SD).max(MIN_NOISE_SD)
    }

    /// Returns the share of steps that other load slows, beyond noise of this standard deviation.
    fn slowed(&self, noise: f64) -> f64 {
        let least = CHANGED_NOISE_SDS * noise;
        let slow = self.deviations.iter().filter(|&&deviation| deviation > least).count();
        let assumed = INITIAL_SLOWED_STEPS * INITIAL_SLOWED_SHARE;
        (to_f64(slow) + assumed) / (to_f64(self.deviations.len()) + INITIAL_SLOWED_STEPS)
    }

    /// Returns the seconds of a unit of cost.
    pub(crate) fn unit_s(&self) -> f64 {
        self.means[SPEED_INDEX].exp()
    }

    /// Returns the expected seconds of a step like the last one, or 0 before any.
    pub fn usual(&self) -> f64 {
        let cost = self.graph_sizes.cost_at(&self.means, to_f64(self.last_num_tokens));
        if self.last_num_tokens == 0 { 0.0 } else { cost * self.unit_s() }
    }

    /// Returns true after [`MIN_KNOWN_STEPS`] steps, or after one if the usual cost of a token was given.
    pub(crate) fn is_known(&self) -> bool {
        self.num_steps.iter().sum::<usize>() >= if self.is_usual { 1 } else { MIN_KNOWN_STEPS }
    }

    /// Returns true if the next step is a probe.
    pub(crate) fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Returns the logarithms of the costs of all buckets, raised by this number of standard deviations of their
    /// ratios to the cost of another bucket.
    fn costs(&self, sds: f64, other: usize) -> Vec<f64> {
        let covariance = |a: usize, b: usize| self.covariance[a][b];
        let cost = |bucket: usize| {
            let variance = covariance(bucket, bucket) + covariance(other, other)
                - 2.0 * covariance(bucket, other);
            self.means[bucket] + sds * variance.max(0.0).sqrt()
        };
        (0..NUM_SIZE_BUCKETS).map(cost).collect()
    }

    /// Returns the minimum probability of a node that can improve throughput in a step of `start` other tokens: the
    /// least cost of a further token. It is 0 while costs are not known, and where tokens up to the size of a graph are
    /// free.
    pub fn least_gain(&self, start: usize) -> f64 {
        if !self.is_known() || !self.graph_sizes.0.is_empty() {
            return 0.0;
        }
        let first = bucket_at(to_f64(start)).0;
        let costs = self.costs(0.0, first);
        // A first node may be free, because a pass over one token uses other kernels.
        let tokens = (first + 1..NUM_SIZE_BUCKETS).map(|bucket| (bucket, bucket_tokens(bucket)));
        let points: Vec<_> = tokens.map(|(at, tokens)| (tokens, costs[at].exp())).collect();
        let slopes = points.windows(2).map(|two| (two[1].1 - two[0].1) / (two[1].0 - two[0].0));
        let least = slopes.reduce(f64::min).unwrap_or(0.0).max(0.0);
        least * to_f64(start) / costs[first].exp()
    }

    /// Returns the number of nodes of the next step, the best one or one that is tried, and the likely costs of a
    /// step without drafts and of that step.
    pub(crate) fn choose(
        &mut self,
        selection: &Selection,
        rate: &dyn Fn(f64) -> f64,
    ) -> (usize, f64, f64) {
        let graphs = &self.graph_sizes;
        let tokens = |num_nodes: usize| graphs.padded(selection.tokens(num_nodes));
        let most_tokens = graphs.most_tokens(selection.tokens(0));
        let likely = self.costs(0.0, 0);
        let baseline = graphs.cost_at(&likely, tokens(0));
        let rate = rate(baseline);
        // A draft never makes a step faster, so clamp to the baseline.
        let values = |costs: &[f64]| {
            let cost = |tokens| graphs.cost_at(costs, tokens).max(baseline);
            let mut values = selection.values(rate, &cost);
            for (number, value) in values.iter_mut().enumerate().skip(1) {
                if selection.tokens(number) > most_tokens {
                    *value = f64::NEG_INFINITY;
                }
            }
            values
        };
        let expected = values(&likely);
        let mut allowed = expected.clone();
        let least = values(&self.costs(RISK_SD, bucket_at(tokens(0)).0));
        for (number, least) in least.into_iter().enumerate().skip(1) {
            if allowed[0] - least > rate * baseline * MAX_STEP_LOSS {
                allowed[number] = allowed[0];
            }
        }
        let best = selection.best(&allowed);
        self.since_baseline = if best == 0 { 0 } else { self.since_baseline + 1 };
        let cost = graphs.cost_at(&likely, tokens(best)).max(baseline);
        let speedup = (expected[best] / cost + rate) / (expected[0] / baseline + rate);
        let num_steps = to_f64(self.num_steps[bucket_at(tokens(best)).0]);
        let most = num_steps * speedup.powi(3) / 2.0;
        let most = most.clamp(MIN_BASELINE_STEPS, MAX_BASELINE_STEPS);
        if to_f64(self.since_baseline) > most {
            (self.since_baseline, self.is_probe, self.break_even_cost) = (0, true, None);
            return (0, baseline, baseline);
        }
        let bound = |sds: f64| self.costs(sds, bucket_at(tokens(best)).0);
        let (low, high) = (bound(-PROBE_OPTIMISM_SD), bound(PROBE_RISK_SD));
        let (most, least) = (values(&low), values(&high));
        // A probe may lose what the best number gains, and any other step what none lose.
        let affordable =
            INITIAL_LOSSES * baseline + LOSSES_SHARE * self.total_cost - self.probe_losses;
        let risk = |number: usize| PROBE_LOSS_SHARE * (allowed[best] - least[number]) / rate;
        let numbers = (0..allowed.len()).filter(|&number| number != best);
        let largest = self.num_steps.iter().rposition(|&num| num > 0).map_or(1.0, bucket_tokens);
        let numbers = numbers.filter(|&number| risk(number) <= affordable);
        let numbers = numbers.filter(|&number| tokens(number) <= MAX_PROBE_GROWTH * largest);
        let tried = numbers.max_by(|&a, &b| most[a].total_cmp(&most[b]));
        let least_value = allowed[best] + rate * baseline * MIN_PROBE_GAIN;
        let tried = tried.filter(|&number| most[number] > least_value);
        let number = tried.unwrap_or(best);
        let cost = graphs.cost_at(&likely, tokens(number)).max(baseline);
        let reference = if tried.is_some() { best } else { 0 };
        self.is_probe = tried.is_some();
        self.break_even_cost = Some(cost + (expected[number] - expected[reference]) / rate);
        (number, baseline, cost)
    }
}

fn between(values: &[f64], bucket: usize, share: f64) -> f64 {
    values[bucket] + share * (values[(bucket + 1).min(NUM_SIZE_BUCKETS - 1)] - values[bucket])
}

fn bucket_tokens(bucket: usize) -> f64 {
    if bucket <= 16 { to_f64(bucket + 1) } else { 17.0 * (to_f64(bucket - 16) / 4.0).exp2() }
}

/// Returns the last bucket with at most this number of tokens, and their distance from it to the next.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bucket")]
fn bucket_at(tokens: f64) -> (usize, f64) {
    let bucket = if tokens <= 17.0 { tokens - 1.0 } else { 16.0 + 4.0 * (tokens / 17.0).log2() };
    let bucket = bucket.clamp(0.0, to_f64(NUM_SIZE_BUCKETS - 1));
    (bucket as usize, bucket.fract())
}
