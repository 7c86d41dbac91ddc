//! `specds.drafters.Session`: the base class of all sessions, those of the core and those of Python.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use specds::draft;

use crate::token_tree::TokenTree;

/// One request of a drafter: draft, observe what was emitted, and so on until `finish`.
///
/// A drafter of one's own extends it and writes `draft` and `observe`. By default all methods do nothing.
#[pyclass(frozen, subclass, module = "specds.drafters")]
pub(crate) struct Session;

#[pymethods]
#[expect(unused_variables, clippy::unused_self, reason = "subclasses use them")]
impl Session {
    /// Takes what the `__init__` of a subclass takes.
    #[new]
    #[pyo3(signature = (*arguments, **named))]
    fn new(arguments: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> Self {
        Self
    }

    /// Whether it samples its tokens, as draft models do, and so has `proposals`.
    #[getter]
    fn proposes(&self) -> bool {
        false
    }

    /// The sampled tokens of the last draft, a `Proposal` by the node that it follows (-1: the context).
    #[getter]
    fn proposals<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        PyDict::new(py)
    }

    /// How many of the target's likeliest tokens `observe_predictions` uses.
    #[getter]
    fn num_predictions(&self) -> usize {
        0
    }

    /// The entries of `GenerationStats.levels` since `begin`.
    #[getter]
    fn level_stats<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        PyDict::new(py)
    }

    /// How many tokens of the context the last draft matched; None if that is unknown.
    #[getter]
    fn match_length(&self) -> Option<usize> {
        None
    }

    /// Takes the `RequestRules` of a request, before its first draft.
    ///
    /// Raises:
    ///     ValueError: This session cannot draft for that target.
    fn begin(&self, rules: &Bound<'_, PyAny>) {}

    /// Drafts at most `max_nodes` nodes that continue the context, best first.
    ///
    /// A parent of -1 is the last token of the context. The tree may be empty.
    ///
    /// Args:
    ///     max_nodes: The most nodes.
    ///     max_depth: The caller drops deeper nodes; a child of the context has depth 1.
    ///     min_prob: Nodes of a lower probability do not pay.
    #[pyo3(signature = (max_nodes, max_depth = None, min_prob = 0.0))]
    fn draft(&self, max_nodes: usize, max_depth: Option<usize>, min_prob: f32) -> TokenTree {
        TokenTree(draft::TokenTree::default())
    }

    /// Appends tokens to the context: after each step of the target, with or without a draft, what it emitted.
    ///
    /// In a conversation that keeps its session, the next prompt comes this way too.
    ///
    /// Args:
    ///     token_ids: Any integer dtype, shape `(n,)`.
    ///     num_verified: How many of the last draft's first nodes were verified; None for all.
    #[pyo3(signature = (token_ids, num_verified = None))]
    fn observe(&self, token_ids: &Bound<'_, PyAny>, num_verified: Option<usize>) {}

    /// Drafts as if `token_ids` had been observed, and stays as it is; empty if it cannot.
    fn draft_after(&self, token_ids: &Bound<'_, PyAny>, max_nodes: usize) -> TokenTree {
        TokenTree(draft::TokenTree::default())
    }

    /// Suggests what follows, from outside: a draft model's proposal, a tool's known arguments.
    ///
    /// The fused drafter learns what suggestions are worth, and drafts one tree of them and all else. A
    /// suggestion replaces the one before, and stays while the text follows it.
    ///
    /// Args:
    ///     token_ids: Any integer dtype, shape `(n,)`; at most 1,024.
    ///     parents: Shape `(n,)`, as those of a `TokenTree`; by default the tokens are a chain.
    ///     probs: Shape `(n,)`, in [0, 1]: of each token after its parent; 1 by default.
    ///
    /// Returns:
    ///     Whether the session uses suggestions: of those of the core, the fused drafter's alone do.
    ///
    /// Raises:
    ///     ValueError: A token id is not in the vocabulary, it is no tree, or has too many nodes.
    #[pyo3(signature = (token_ids, parents = None, probs = None))]
    fn suggest(
        &self,
        token_ids: &Bound<'_, PyAny>,
        parents: Option<&Bound<'_, PyAny>>,
        probs: Option<&Bound<'_, PyAny>>,
    ) -> bool {
        false
    }

    /// Tells how long a plain step of the model takes, in seconds: what a draft may cost.
    fn set_step_time(&self, step_seconds: f64) {}

    /// Tells what the model predicts, before `observe`; not in steps before a pause.
    ///
    /// Args:
    ///     tree: The draft that was verified.
    ///     predictions: Any integer dtype, shape `(1 + num_nodes, num_predictions)`, likeliest first:
    ///         row 0 after the context, row `1 + i` after node `i`, accepted or not.
    fn observe_predictions(&self, tree: &Bound<'_, TokenTree>, predictions: &Bound<'_, PyAny>) {}

    /// Ends the request, which drafters may remember; called once, also when generation fails. Nothing is
    /// observed or drafted after it.
    fn finish(&self) {}
}
