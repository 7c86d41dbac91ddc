//! Duration of a step as a function of its tokens.

use crate::budget::selection::to_f64;
use specds_index::{Error, Result};

/// Maximum number of tokens of a measured size.
const MAX_SIZE: usize = 1 << 16;

/// The seconds of a step by its number of tokens: piecewise linear, constant before the first point, and
/// extrapolated beyond the last.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCost {
    /// Numbers of tokens, which rise, and the seconds of a step of each.
    points: Vec<(f64, f64)>,
}

impl StepCost {
    /// Returns a cost through points of tokens and seconds, in any unit of time. Seconds may fall: some kernels are
    /// slower for odd sizes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are points, with rising tokens and seconds above 0.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Self> {
        let rises = |two: &[(f64, f64)]| two[0].0 < two[1].0;
        let is_usable = |&(tokens, seconds): &(f64, f64)| {
            (0.0..1e12).contains(&tokens) && seconds > 0.0 && seconds.is_finite()
        };
        let is_curve = points.iter().all(is_usable) && points.windows(2).all(rises);
        if points.is_empty() || !is_curve {
            let reason = "must be points [tokens, seconds] with rising tokens";
            return Err(Error::invalid("step_cost", reason));
        }
        Ok(Self { points })
    }

    /// Returns the cost of steps whose kernels are made for some sizes, by the measured seconds of these, which may
    /// fall. A step between two sizes costs as much as the larger one, so that drafts fill it up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are sizes, which rise from 1 to at most 65,536, and seconds above 0.
    pub fn of_sizes(sizes: &[(usize, f64)]) -> Result<Self> {
        let is_usable = |&(tokens, seconds): &(usize, f64)| {
            (1..=MAX_SIZE).contains(&tokens) && seconds > 0.0 && seconds.is_finite()
        };
        let rises = sizes.windows(2).all(|two| two[0].0 < two[1].0);
        if sizes.is_empty() || !rises || !sizes.iter().all(is_usable) {
            let reason = "must be points of rising tokens, from 1 to 65,536, and positive seconds";
            return Err(Error::invalid("step_times", reason));
        }
        let (mut points, mut next) = (Vec::new(), 1);
        for &(tokens, seconds) in sizes {
            points.extend((next..=tokens).map(|tokens| (to_f64(tokens), seconds)));
            next = tokens + 1;
        }
        Ok(Self::measured(points))
    }

    /// Returns a measured cost, which need not be monotone: some kernels are slower for odd sizes. Beyond
    /// the largest size, a token costs the average.
    pub(crate) fn measured(mut points: Vec<(f64, f64)>) -> Self {
        let beyond = points.last().map(|last| (2.0 * last.0, 2.0 * last.1));
        points.extend(beyond);
        Self { points }
    }

    pub(crate) fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Returns the seconds of a step of this number of tokens.
    pub fn seconds(&self, num_tokens: f64) -> f64 {
        let end = self.points.partition_point(|point| point.0 <= num_tokens);
        let end = end.min(self.points.len() - 1);
        match self.points[..=end] {
            [.., a, b] => a.1 + (num_tokens - a.0) * slope(a, b),
            _ => self.points[0].1,
        }
    }

    /// Returns the minimum probability of a node that can improve throughput in a step of `start` other
    /// tokens.
    ///
    /// A first node may be free, because a pass over one token uses other kernels. The result is
    /// therefore the least average cost of a node beyond those that cost as much as the first. It is 0 if
    /// nodes beyond may be free too, as in kernels for several tokens.
    pub fn least_gain(&self, start: usize) -> f64 {
        let start = to_f64(start);
        let with_one = self.seconds(start + 1.0);
        let level = self.points.iter().filter(|point| point.1 <= with_one);
        let first = level.fold(start + 1.0, |first, point| first.max(point.0));
        let mut steps = self.points.windows(2).filter(|two| two[0].0 >= first);
        if steps.any(|two| two[1].1 <= two[0].1) {
            return 0.0;
        }
        let beyond = self.points.iter().filter(|point| point.0 > first);
        let average = |point: &(f64, f64)| slope((first, with_one), *point);
        let steady = || self.points.windows(2).last().map(|two| slope(two[0], two[1]));
        let least = beyond.map(average).reduce(f64::min).or_else(steady);
        let least = least.unwrap_or(0.0).max(0.0);
        least * start / self.seconds(start)
    }
}

fn slope(a: (f64, f64), b: (f64, f64)) -> f64 {
    (b.1 - a.1) / (b.0 - a.0)
}
