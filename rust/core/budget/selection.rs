//! Order in which the nodes of several drafts enter a step, and their best number.

/// The minimum expected speedup of a step with drafts, which is the accuracy of the predictions.
pub(crate) const MIN_SPEEDUP: f64 = 1.03;

/// The padding of a forward pass over several rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// The pass costs the tokens of all rows, so each node goes to the row where it gains most.
    Packed,
    /// The pass costs the tokens of its longest row, to which all rows are padded.
    Padded,
    /// Chains whose rows are padded, with these tokens of a row before its draft. Unless a draft is accepted
    /// whole, its accepted tokens and these are fed again in the next step.
    Chains { waiting: usize },
    /// The pass costs the tokens of all rows, each padded to one number of drafted tokens.
    Uniform(DraftSizes),
}

/// The numbers of drafted tokens that a row may have in a step where all rows have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftSizes(u64);

impl DraftSizes {
    /// Returns a set of sizes, to which 0 is added; those above 63 are left out.
    pub fn new(sizes: &[usize]) -> Self {
        Self(sizes.iter().filter(|&&size| size < 64).fold(1, |set, size| set | 1 << size))
    }

    /// Returns the size to which drafts of at most this number of tokens are padded: the next one, or the largest.
    pub fn padded(self, num_tokens: usize) -> usize {
        let next = (num_tokens..64).find(|&size| self.has(size));
        next.unwrap_or_else(|| 63 - self.0.leading_zeros() as usize)
    }

    fn has(self, size: usize) -> bool {
        size < 64 && self.0 >> size & 1 == 1
    }
}

/// The nodes of drafts in the order in which they are added to a step.
#[derive(Debug)]
pub(crate) struct Selection {
    /// The tokens that a step without drafts processes.
    start: f64,
    /// The gain of each further node. In padded passes, a node of every row, on average.
    gains: Vec<f64>,
    /// The row of each node; empty in padded passes.
    rows: Vec<usize>,
    /// Tokens before each draft, where rejections have a price.
    waiting: Option<f64>,
    /// The tokens that a further node costs.
    width: f64,
    /// The numbers of nodes that are possible; None for all.
    possible: Option<DraftSizes>,
}

impl Selection {
    /// Returns the order. `gains` has the expected tokens of each node of each draft; the step may have
    /// more rows.
    pub(crate) fn new(gains: &[Vec<f64>], num_rows: usize, passes: Passes) -> Self {
        match passes {
            Passes::Packed => Self::packed(gains, num_rows),
            Passes::Padded => Self::padded(gains, num_rows),
            Passes::Chains { waiting } => {
                Self { waiting: Some(to_f64(waiting)), ..Self::padded(gains, num_rows) }
            }
            Passes::Uniform(sizes) => Self::uniform(gains, num_rows, sizes),
        }
    }

    fn packed(gains: &[Vec<f64>], num_rows: usize) -> Self {
        let mut nodes = Vec::new();
        for (row, gains) in gains.iter().enumerate() {
            // Reliability may rank a node above its predecessor, which must still come first.
            let mut rank = f64::INFINITY;
            for (node, &gain) in gains.iter().enumerate() {
                rank = rank.min(gain);
                nodes.push((rank, node, row, gain));
            }
        }
        nodes.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        Self {
            start: to_f64(num_rows),
            gains: nodes.iter().map(|node| node.3).collect(),
            rows: nodes.iter().map(|node| node.2).collect(),
            waiting: None,
            width: 1.0,
            possible: None,
        }
    }

    fn padded(gains: &[Vec<f64>], num_rows: usize) -> Self {
        let longest = gains.iter().map(Vec::len).max().unwrap_or(0);
        let sum = |node: usize| gains.iter().filter_map(|row| row.get(node)).sum::<f64>();
        Self {
            start: 1.0,
            gains: (0..longest).map(|node| sum(node) / to_f64(num_rows)).collect(),
            rows: Vec::new(),
            waiting: None,
            width: 1.0,
            possible: None,
        }
    }

    fn uniform(gains: &[Vec<f64>], num_rows: usize, sizes: DraftSizes) -> Self {
        let longest = gains.iter().map(Vec::len).max().unwrap_or(0);
        let sum = |node: usize| gains.iter().filter_map(|row| row.get(node)).sum::<f64>();
        Self {
            start: to_f64(num_rows),
            gains: (0..sizes.padded(longest)).map(sum).collect(),
            rows: Vec::new(),
            waiting: None,
            width: to_f64(num_rows),
            possible: Some(sizes),
        }
    }

    /// The tokens that a step without drafts costs.
    pub(crate) fn start(&self) -> f64 {
        self.start + self.waiting.unwrap_or(0.0)
    }

    /// The tokens that a step with this number of nodes costs.
    pub(crate) fn tokens(&self, num_nodes: usize) -> f64 {
        self.start() + self.width * to_f64(num_nodes)
    }

    /// Returns the value of each number of nodes, from 0 on: the tokens beyond those that the time of the step is
    /// worth at `rate` tokens per unit of time. It is minus infinity for an impossible number.
    pub(crate) fn values(&self, rate: f64, cost: &dyn Fn(f64) -> f64) -> Vec<f64> {
        let (mut tokens, mut processed) = (self.start, self.start());
        let again = self.waiting.map_or(0.0, |_| (cost(9.0) - cost(1.0)) / 8.0);
        let (mut reached, mut accepted) = (1.0_f64, 0.0);
        let mut values = vec![tokens - rate * cost(processed)];
        for (index, gain) in self.gains.iter().enumerate() {
            tokens += gain;
            processed += self.width;
            reached = reached.min(*gain);
            accepted += reached;
            // Tokens to feed again: those before the draft, and what is accepted of it.
            let rejected = (1.0 - reached) * self.start() + accepted - to_f64(index + 1) * reached;
            let is_possible = self.possible.is_none_or(|sizes| sizes.has(index + 1));
            let value = tokens - rate * (cost(processed) + again * rejected);
            values.push(if is_possible { value } else { f64::NEG_INFINITY });
        }
        values
    }

    /// Returns the number of nodes with the highest value.
    pub(crate) fn best(&self, values: &[f64]) -> usize {
        let mut best = (values[0] + (MIN_SPEEDUP - 1.0) * self.start, 0);
        for (number, &value) in values.iter().enumerate().skip(1) {
            if value > best.0 {
                best = (value, number);
            }
        }
        best.1
    }

    /// Returns the number of nodes of each draft among the first `num_nodes` of all.
    pub(crate) fn sizes(&self, num_nodes: usize, gains: &[Vec<f64>]) -> Vec<usize> {
        if self.rows.is_empty() {
            return gains.iter().map(|row| row.len().min(num_nodes)).collect();
        }
        let mut sizes = vec![0; gains.len()];
        for &row in &self.rows[..num_nodes] {
            sizes[row] += 1;
        }
        sizes
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn to_f64(number: usize) -> f64 {
    number as f64
}
