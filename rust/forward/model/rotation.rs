//! Rotations of queries and keys by their position.

/// Rotation of the first dimensions of a head; others stay as they are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rotation {
    pub(crate) pairs: Pairs,
    /// Angles of position 1, one for each pair of dimensions.
    pub(crate) angles: Vec<f32>,
    /// Times what is rotated.
    pub(crate) magnitude: f32,
}

/// The dimensions that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pairs {
    Neighbors,
    /// A dimension of the first half and its partner of the second one.
    Halves,
}

impl Rotation {
    /// Returns the cosine and the sine of each angle at a position.
    #[expect(clippy::cast_possible_truncation, reason = "as models are computed")]
    pub(crate) fn at(&self, position: usize) -> Vec<[f32; 2]> {
        let turn = |&angle: &f32| {
            let angle = f64::from(position as f32 * angle);
            [angle.cos() as f32, angle.sin() as f32].map(|of| of * self.magnitude)
        };
        self.angles.iter().map(turn).collect()
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
