//! Even samples of many occurrences.

/// An even sample of the occurrences `0..count`, which takes the middle one of each of `num_samples` equal parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EvenSample {
    pub(crate) num_samples: u64,
    quotient: u64,
    remainder: u64,
}

impl EvenSample {
    pub(crate) fn new(count: u64, max_samples: u64) -> Self {
        let num_samples = count.min(max_samples);
        Self {
            num_samples,
            quotient: count.checked_div(num_samples).unwrap_or(0),
            remainder: count.checked_rem(num_samples).unwrap_or(0),
        }
    }

    /// Returns the sampled occurrences, ascending. Sample i of s among n is floor((2 i + 1) n / (2 s)), computed
    /// by steps so that no product overflows.
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
}

#[cfg(test)]
mod tests {
    use super::EvenSample;

    #[test]
    fn sample_of_the_largest_corpus_does_not_overflow() {
        let count = 1 << 47;
        for max_samples in [1, 1 << 16] {
            let occurrences: Vec<_> = EvenSample::new(count, max_samples).occurrences().collect();
            assert_eq!(occurrences.len() as u64, max_samples);
            assert_eq!(occurrences.last(), Some(&(count - count / max_samples / 2)));
        }
    }
}
