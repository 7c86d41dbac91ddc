//! `specds.drafters.Session`, the base class of sessions in Rust and Python.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use specds_core::draft;

use crate::token_tree::TokenTree;

/// A request of a drafter: `draft`, `observe` the emitted tokens, repeat, then `finish`.
///
/// To write a drafter, subclass it and implement `draft` and `observe`. By default, all methods do nothing.
#[pyclass(frozen, subclass, module = "specds.drafters")]
pub(crate) struct Session;

#[pymethods]
#[expect(unused_variables, clippy::unused_self, reason = "subclasses use them")]
impl Session {
    /// Accepts the arguments of a subclass's `__init__`.
    #[new]
    #[pyo3(signature = (*arguments, **named))]
    fn new(arguments: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> Self {
        Self
    }

    /// True if drafts are sampled, as those of draft models, so that `proposals` has their distributions.
    #[getter]
    fn proposes(&self) -> bool {
        false
    }

    /// The `Proposal` of the sampled tokens after each node of the last draft; -1 stands for the context.
    #[getter]
    fn proposals<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        PyDict::new(py)
    }

    /// Number of the target's likeliest tokens that `observe_predictions` uses.
    #[getter]
    fn num_predictions(&self) -> usize {
        0
    }

    /// The entries of `GenerationStats.levels` since `begin`.
    #[getter]
    fn level_stats<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        PyDict::new(py)
    }

    /// Number of tokens of the context that the last draft matched; None if it is unknown.
    #[getter]
    fn match_length(&self) -> Option<usize> {
        None
    }

    /// Takes the `RequestRules` of a request. Called before its first draft.
    ///
    /// Raises:
    ///     ValueError: The session does not support this target.
    fn begin(&self, rules: &Bound<'_, PyAny>) {}

    /// Drafts at most `max_nodes` nodes that continue the context, best first.
    ///
    /// A parent of -1 is the last token of the context. The tree may be empty.
    ///
    /// Args:
    ///     max_nodes: Maximum number of nodes.
    ///     max_depth: Maximum depth; a child of the context has depth 1. The caller drops deeper nodes.
    ///     min_prob: Minimum probability at which a node improves throughput.
    #[pyo3(signature = (max_nodes, max_depth = None, min_prob = 0.0))]
    fn draft(&self, max_nodes: usize, max_depth: Option<usize>, min_prob: f32) -> TokenTree {
        TokenTree(draft::TokenTree::default())
    }

    /// Appends tokens to the context. Called after each step of the target, with or without a draft.
    ///
    /// A conversation that continues the session also passes its next prompt here.
    ///
    /// Args:
    ///     token_ids: The emitted tokens, any integer dtype, shape `(n,)`.
    ///     num_verified: Number of nodes of the last draft that were verified, from the first one on; None for all.
    #[pyo3(signature = (token_ids, num_verified = None))]
    fn observe(&self, token_ids: &Bound<'_, PyAny>, num_verified: Option<usize>) {}

    /// Drafts as if `token_ids` had been observed, without observing them; empty if that is not supported.
    fn draft_after(&self, token_ids: &Bound<'_, PyAny>, max_nodes: usize) -> TokenTree {
        TokenTree(draft::TokenTree::default())
    }

    /// Passes an external proposal, such as the draft of a model or the known arguments of a tool.
    ///
    /// The fused drafter learns the acceptance rate of proposals, and drafts one tree from them and all other
    /// sources. A proposal is used while the text follows it, and replaces the one before.
    ///
    /// Args:
    ///     token_ids: Any integer dtype, shape `(n,)`, at most 1,024; or a `TokenTree` that replaces all arguments.
    ///     parents: Any integer dtype, shape `(n,)`, as those of a `TokenTree`; a chain by default.
    ///     probs: float32, shape `(n,)`, in [0, 1]: the probability of each token after its parent; 1 by default.
    ///
    /// Returns:
    ///     True if the session uses proposals. In the core, only sessions of the fused drafter do.
    ///
    /// Raises:
    ///     ValueError: A token id is not in the vocabulary, or the nodes are not a tree or too many.
    #[pyo3(signature = (token_ids, parents = None, probs = None))]
    fn suggest(
        &self,
        token_ids: &Bound<'_, PyAny>,
        parents: Option<&Bound<'_, PyAny>>,
        probs: Option<&Bound<'_, PyAny>>,
    ) -> bool {
        false
    }

    /// Takes the seconds of a step of the model without drafts, which bounds the time of a draft.
    fn set_step_time(&self, step_seconds: f64) {}

    /// Takes the model's predictions. Called before `observe`, except in steps after which the row backs off.
    ///
    /// Args:
    ///     tree: The verified draft.
    ///     predictions: Token ids, any integer dtype, shape `(1 + num_nodes, num_predictions)`, likeliest first:
    ///         row 0 after the context, row `1 + i` after node `i`, accepted or not.
    fn observe_predictions(&self, tree: &Bound<'_, TokenTree>, predictions: &Bound<'_, PyAny>) {}

    /// Ends the request, whose text drafters may store. Called once, also if generation fails, and as the last
    /// call.
    fn finish(&self) {}
}
