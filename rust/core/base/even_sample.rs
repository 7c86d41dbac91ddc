//! Which of many occurrences are looked at?

/// An even sample of the occurrences `0..count`: the middle of each of equal parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stride {
    count: u64,
    num_samples: u64,
    quotient: u64,
    remainder: u64,
}

impl Stride {
    /// At most `max_samples` of `count` occurrences.
    pub(crate) fn new(count: u64, max_samples: u64) -> Self {
        let num_samples = count.min(max_samples);
        Self {
            count,
            num_samples,
            quotient: count.checked_div(num_samples).unwrap_or(0),
            remainder: count.checked_rem(num_samples).unwrap_or(0),
        }
    }

    pub(crate) fn num_samples(self) -> u64 {
        self.num_samples
    }

    /// The occurrences in the sample, ascending: as [`occurrence`](Self::occurrence), with one division
    /// for all.
    pub(crate) fn occurrences(self) -> impl Iterator<Item = u64> {
        let parts = (2 * self.num_samples).max(1);
        let first = self.quotient * self.num_samples + self.remainder;
        let (mut whole, mut rest) = (first / parts, first % parts);
        (0..self.num_samples).map(move |_| {
            let occurrence = whole;
            whole += self.quotient;
            rest += 2 * self.remainder;
            if rest >= parts {
                rest -= parts;
                whole += 1;
            }
            occurrence
        })
    }

    /// Sample number i of s among n: floor((2 i + 1) n / (2 s)), by quotient and remainder so that
    /// no product overflows.
    pub(crate) fn occurrence(self, sample: u64) -> u64 {
        let half = self.quotient * self.num_samples;
        let middle = half + (2 * sample + 1) * self.remainder;
        sample * self.quotient + middle / (2 * self.num_samples)
    }

    /// How many occurrences lie between `start` and the middle one of the `count` samples after it.
    pub(crate) fn middle(self, start: u64, count: u64) -> u64 {
        self.occurrence(self.num_before(start) + count / 2) - start
    }

    /// How many samples come before an occurrence.
    ///
    /// Sample i comes before x if (2 i + 1) n / (2 s) < x, as x is whole: ceil(s x / n - 1/2) do.
    pub(crate) fn num_before(self, occurrence: u64) -> u64 {
        let (count, num_samples) = (u128::from(self.count), u128::from(self.num_samples));
        let num_before = 2 * num_samples * u128::from(occurrence) + count.saturating_sub(1);
        let num_before = num_before.checked_div(2 * count).unwrap_or(0);
        u64::try_from(num_before).unwrap_or(self.num_samples)
    }
}

#[cfg(test)]
mod tests {
    use super::Stride;

    #[test]
    fn samples_are_the_middles_of_equal_parts_and_are_counted_as_they_lie() {
        for count in 0..40 {
            for max_samples in 0..45 {
                let stride = Stride::new(count, max_samples);
                let occurrences: Vec<_> = stride.occurrences().collect();
                let num_samples = count.min(max_samples);
                let middle = |i| (2 * i + 1) * count / (2 * num_samples);
                assert_eq!(
                    occurrences,
                    (0..num_samples).map(middle).collect::<Vec<_>>()
                );
                for occurrence in 0..=count {
                    let before = occurrences.iter().filter(|&&other| other < occurrence);
                    assert_eq!(stride.num_before(occurrence), before.count() as u64);
                }
            }
        }
    }

    #[test]
    fn the_largest_corpora_do_not_overflow() {
        let count = 1 << 47;
        for max_samples in [1, 1 << 16, u64::MAX] {
            let stride = Stride::new(count, max_samples);
            let last = stride.occurrence(stride.num_samples() - 1);
            assert!(last < count);
            assert_eq!(stride.num_before(last) + 1, stride.num_samples());
            assert_eq!(stride.num_before(count), stride.num_samples());
        }
    }
}
