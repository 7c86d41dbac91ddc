//! The seconds that steps take by their tokens, learned from the steps that ran.

use std::collections::BTreeMap;

use crate::budget::selection::to_f64;
use crate::budget::step_cost::StepCost;

/// The times of the steps that ran, by size.
///
/// A machine is faster or slower by the minute, and other work falls into some steps. So the times of sizes
/// are compared by way of the pace of the steps between them, not by the clock. What a size costs is
/// believed only after steps of that size: `probe` names the sizes that deserve one.
#[derive(Debug, Clone, Default)]
pub struct StepTimes {
    /// Seconds of a step over its relative time.
    machine_speed: f64,
    sizes: BTreeMap<usize, SizeStats>,
    num_steps: usize,
    total_s: f64,
    /// What trials took beyond steps without drafts.
    probes_s: f64,
    /// If the next step is a trial, the seconds of one without a draft, and the most that count.
    probe_bounds: Option<(f64, f64)>,
    /// The time of the last step over what its size usually takes.
    last_deviation: f64,
    /// The last step, if it is to tell what its size costs.
    pending_probe: Option<PendingProbe>,
    /// The size of a step without drafts.
    baseline: Option<usize>,
    /// Whether the next step is without drafts, to be measured anew.
    is_baseline_due: bool,
}

/// A step that tells what its size costs once the next one has told the pace behind it: between the two, other
/// work may have begun or ended.
#[derive(Debug, Clone, Copy)]
struct PendingProbe {
    tokens: usize,
    seconds: f64,
}

/// Steps of similar numbers of tokens.
#[derive(Debug, Clone)]
struct SizeStats {
    tokens: f64,
    /// Seconds of a step at a pace of 1.
    relative: f64,
    num_steps: usize,
    last_step: usize,
}

impl Default for SizeStats {
    fn default() -> Self {
        Self { tokens: 0.0, relative: f64::INFINITY, num_steps: 0, last_step: 0 }
    }
}

impl SizeStats {
    /// Forgets the steps that ran, so that the size is measured anew.
    fn forget(&mut self) {
        (self.num_steps, self.relative) = (0, f64::INFINITY);
    }
}

/// One step may have met other work of the machine, or the first use of a kernel; of two that differ much the
/// faster one tells, otherwise both.
const STEPS_KNOWN: usize = 2;
/// A size without a step for so long is measured anew.
const STEPS_FORGOTTEN: usize = 256;
/// Everything hangs on the step without drafts: it is measured anew after a share of all steps, at least and at
/// most so many.
const BASELINE_SHARE: usize = 4;
const STEPS_WITHOUT_BASELINE: (usize, usize) = (32, 128);
/// Steps that are off by this factor met other work, or its end.
const MAX_DEVIATION: f64 = 1.5;
/// No size is tried while steps are off by this one.
const STEADY_DEVIATION: f64 = 1.3;
/// A step counts at least this much in the time of its size.
const LEARNED: f64 = 0.01;
/// A step without drafts that is measured anew has become slower by at most this factor.
const MOST_RISE: f64 = 1.05;
/// How much of a step's deviation the pace follows at once. As the pace and a size follow the same steps, a
/// size that is
/// alone drifts by no more than a thirtieth of what the pace does.
const MACHINE_SPEED_RATE: f64 = 0.3;
/// Trials may lose so many seconds at first, or so many steps, and such a share of all time later.
const FIRST_PROBES_S: f64 = 0.4;
const FIRST_PROBES: f64 = 4.0;
const PROBES_SHARE: f64 = 0.005;

impl StepTimes {
    /// Takes a step that ran. Times that are none, and steps without tokens, are ignored.
    pub fn add(&mut self, num_tokens: usize, seconds: f64) {
        let probe_bounds = self.probe_bounds.take();
        if !(seconds > 0.0 && seconds.is_finite() && num_tokens > 0) {
            return;
        }
        if self.num_steps == 0 {
            self.machine_speed = seconds;
        }
        self.num_steps += 1;
        self.total_s += seconds;
        if let Some((baseline_s, most_s)) = probe_bounds {
            self.probes_s += (seconds.min(most_s) - baseline_s).max(0.0);
        }
        let (place, step) = (bucket(num_tokens), PendingProbe { tokens: num_tokens, seconds });
        let is_measured =
            self.is_due(place) || self.is_baseline_due && self.baseline == Some(place);
        if let Some(pending_probe) = self.pending_probe.take() {
            let size = self.sizes.get(&place).filter(|_| !is_measured);
            let machine_speed = size.map_or(self.machine_speed, |size| seconds / size.relative);
            self.update(pending_probe, machine_speed);
        }
        if is_measured {
            if self.baseline.is_some_and(|baseline| self.is_known(baseline)) {
                self.pending_probe = Some(step);
            } else {
                self.update(step, self.machine_speed);
            }
            return;
        }
        let relative = seconds / self.machine_speed;
        let Some(size) = self.sizes.get_mut(&place) else {
            return;
        };
        size.num_steps += 1;
        size.last_step = self.num_steps;
        let share = (1.0 / to_f64(size.num_steps)).max(LEARNED);
        let off = (relative / size.relative).clamp(1.0 / MAX_DEVIATION, MAX_DEVIATION);
        self.machine_speed *= off.powf(MACHINE_SPEED_RATE);
        size.relative *= off.powf(share);
        size.tokens += share * (to_f64(num_tokens) - size.tokens);
        self.last_deviation = off;
    }

    /// Learns from a step between two paces, by the one that is worse for drafts.
    fn update(&mut self, pending_probe: PendingProbe, machine_speed_after: f64) {
        let place = bucket(pending_probe.tokens);
        let is_baseline = self.baseline == Some(place) && self.is_known(place);
        let machine_speed = if is_baseline {
            self.machine_speed.max(machine_speed_after)
        } else {
            self.machine_speed.min(machine_speed_after)
        };
        let relative = pending_probe.seconds / machine_speed;
        let size = self.sizes.entry(place).or_default();
        size.last_step = self.num_steps;
        if is_baseline {
            size.relative = relative.min(size.relative * MOST_RISE);
            return;
        }
        if size.num_steps >= STEPS_KNOWN {
            size.forget();
        }
        size.num_steps += 1;
        let off = relative / size.relative;
        if (1.0 / STEADY_DEVIATION..STEADY_DEVIATION).contains(&off) {
            size.relative *= off.sqrt();
        } else {
            size.relative = size.relative.min(relative);
        }
        size.tokens = to_f64(pending_probe.tokens);
    }

    fn is_known(&self, place: usize) -> bool {
        let size = self.sizes.get(&place);
        size.is_some_and(|size| size.num_steps >= STEPS_KNOWN)
    }

    /// The seconds of a step like the last one; 0 where none ran.
    pub fn usual(&self) -> f64 {
        let latest = self.sizes.values().max_by_key(|size| size.last_step);
        latest.map_or(0.0, |size| size.relative * self.machine_speed)
    }

    /// What is known by steps that ran; `None` while a step of `start` tokens, that of no draft, is not.
    ///
    /// Beyond the largest size that is known, a token is taken to cost what it costs on average.
    pub fn cost(&mut self, start: usize) -> Option<StepCost> {
        let (least, most) = STEPS_WITHOUT_BASELINE;
        let patience = (self.num_steps / BASELINE_SHARE).clamp(least, most);
        self.baseline = Some(bucket(start));
        let baseline = self.sizes.get(&bucket(start))?;
        if !self.is_known(bucket(start)) || self.is_waiting(start) {
            return None;
        }
        self.is_baseline_due =
            self.pending_probe.is_none() && baseline.last_step + patience < self.num_steps;
        if self.is_baseline_due {
            return None;
        }
        let baseline_relative = baseline.relative;
        let known = self.sizes.iter();
        let known = known.filter(|(_, size)| size.num_steps >= STEPS_KNOWN);
        // No draft makes a step faster.
        let seconds = |(&place, size): (&usize, &SizeStats)| {
            let is_larger = place > bucket(start);
            let least = if is_larger { baseline_relative } else { 0.0 };
            (size.tokens, size.relative.max(least) * self.machine_speed)
        };
        Some(StepCost::measured(known.map(seconds).collect()))
    }

    /// The tokens that the next step should have, to learn what they cost.
    ///
    /// `most_worth` is how many would be worth their time by a cost. A size is tried if it would pay at the
    /// cost of the next smaller one, and has more than the `best` number of nodes that is known. The smallest
    /// comes first, so that no step is much slower than one that ran.
    pub(crate) fn probe(
        &mut self,
        start: usize,
        best: usize,
        cost: &StepCost,
        most_worth: impl FnOnce(&dyn Fn(f64) -> f64) -> usize,
    ) -> Option<usize> {
        let baseline_s = cost.seconds(to_f64(start));
        let first_s = FIRST_PROBES_S.max(FIRST_PROBES * baseline_s);
        let is_spent = self.probes_s > first_s + PROBES_SHARE * self.total_s;
        if is_spent
            || self.pending_probe.is_some()
            || !(1.0 / STEADY_DEVIATION..STEADY_DEVIATION).contains(&self.last_deviation)
        {
            return None;
        }
        let most = most_worth(&|tokens| self.least_seconds(tokens, start, cost));
        let mut sizes = start + best + 1..=most;
        let first = sizes.find(|&tokens| self.is_due(bucket(tokens)))?;
        let same = |tokens: &usize| bucket(*tokens) == bucket(first);
        let last = (first..=most).take_while(same).last()?;
        // What a step takes beyond as many plain ones is other work's.
        self.probe_bounds = Some((baseline_s, baseline_s * to_f64(last) / to_f64(start)));
        Some(last)
    }

    /// What a step takes at least: as long as one of the next smaller size that is known.
    fn least_seconds(&self, tokens: f64, start: usize, cost: &StepCost) -> f64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of tokens"
        )]
        let size = bucket(tokens as usize);
        if !self.is_due(size) {
            return cost.seconds(tokens);
        }
        let smaller = self.sizes.range(bucket(start)..size).rev();
        let known = smaller.map(|(&size, known)| (size, known.tokens));
        let mut known = known.filter(|&(size, _)| !self.is_due(size));
        cost.seconds(known.next().map_or(to_f64(start), |(_, tokens)| tokens))
    }

    /// Whether a size has not been tried often enough, or not lately.
    fn is_waiting(&self, start: usize) -> bool {
        self.pending_probe
            .is_some_and(|pending_probe| bucket(pending_probe.tokens) != bucket(start))
    }

    fn is_due(&self, size: usize) -> bool {
        self.sizes.get(&size).is_none_or(|size| {
            size.num_steps < STEPS_KNOWN || size.last_step + STEPS_FORGOTTEN < self.num_steps
        })
    }
}

/// Up to 8 tokens a size of its own each, then two for each doubling.
fn bucket(num_tokens: usize) -> usize {
    if num_tokens <= 8 {
        return num_tokens;
    }
    let doublings = (num_tokens - 1).ilog2() as usize;
    let is_upper = (num_tokens - 1) >> (doublings - 1) & 1;
    3 + 2 * doublings + is_upper
}
