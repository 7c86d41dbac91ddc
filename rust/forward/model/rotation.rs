//! Rotations of queries and keys by their position.

use std::f32::consts::PI;

/// Rotation of the first dimensions of a head; others stay as they are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rotation {
    /// The dimensions that are rotated together.
    pub(crate) pairs: Pairs,
    /// The angles of position 1 in radians, one for each pair of dimensions.
    pub(crate) angles: Vec<f32>,
    /// Those of texts above the short context, if they differ.
    pub(crate) long_angles: Option<Vec<f32>>,
    /// The factor of what is rotated.
    pub(crate) magnitude: f32,
}

/// The dimensions that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// A dimension and the next one.
    Neighbors,
    /// A dimension of the first half and its partner of the second one.
    Halves,
}

/// The angles that `YaRN` divides: those that turn fewer times within the original context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ramp {
    /// The base of the powers that angles are.
    pub(crate) base: f32,
    /// The original context, in tokens.
    pub(crate) length: f32,
    /// The turns from which on angles stay as they are.
    pub(crate) fast: f32,
    /// The turns up to which angles are divided; those between are divided in part.
    pub(crate) slow: f32,
    /// True if the ramp need not begin and end at whole pairs.
    pub(crate) is_exact: bool,
}

impl Ramp {
    /// The index of the pair of `size` dimensions that turns this often.
    fn pair(self, size: f32, turns: f32) -> f32 {
        size * (self.length / (turns * 2.0 * PI)).ln() / (2.0 * self.base.ln())
    }
}

impl Rotation {
    /// Divides the angles of a ramp by a factor.
    pub(crate) fn stretch(&mut self, factor: f32, ramp: Ramp) {
        let size = 2.0 * self.angles.len() as f32;
        let (start, end) = (ramp.pair(size, ramp.fast), ramp.pair(size, ramp.slow));
        let (start, end) = if ramp.is_exact { (start, end) } else { (start.floor(), end.ceil()) };
        let (start, end) = (start.max(0.0), end.min(size - 1.0));
        for (pair, angle) in self.angles.iter_mut().enumerate() {
            let divided = ((pair as f32 - start) / (end - start).max(0.001)).clamp(0.0, 1.0);
            *angle = *angle / factor * divided + *angle * (1.0 - divided);
        }
    }

    /// Returns the cosine and the sine of each angle at a position, in a text above the short context if `is_long`.
    #[expect(clippy::cast_possible_truncation, reason = "as models are computed")]
    pub(crate) fn at(&self, position: usize, is_long: bool) -> Vec<[f32; 2]> {
        let angles = self.long_angles.as_ref().filter(|_| is_long).unwrap_or(&self.angles);
        let turn = |&angle: &f32| {
            let angle = f64::from(position as f32 * angle);
            [angle.cos() as f32, angle.sin() as f32].map(|turn| turn * self.magnitude)
        };
        angles.iter().map(turn).collect()
    }

    /// Turns each pair of dimensions of a head.
    pub(crate) fn apply(&self, turns: &[[f32; 2]], head: &mut [f32]) {
        let half = turns.len();
        for (pair, &[cosine, sine]) in turns.iter().enumerate() {
            let (first, second) = match self.pairs {
                Pairs::Neighbors => (2 * pair, 2 * pair + 1),
                Pairs::Halves => (pair, pair + half),
            };
            let (a, b) = (head[first], head[second]);
            head[first] = a * cosine - b * sine;
            head[second] = a * sine + b * cosine;
        }
    }
}
